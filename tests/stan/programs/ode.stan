// Exponential decay by two solvers: the explicit one throws when the tolerance cannot be met, both link what they need.
functions {
  vector decay(real t, vector u, real rate) {
    return -rate * u;
  }
}
data {
  int<lower=1> N;
  array[N] real<lower=0> times;
  vector[N] observed;
}
parameters {
  real<lower=0> rate;
}
model {
  array[N] vector[1] explicit_solution = ode_rk45_tol(decay, [1]', 0, times, 1e-8, 1e-8, 1000, rate);
  array[N] vector[1] implicit_solution = ode_bdf(decay, [1]', 0, times, rate);
  rate ~ lognormal(0, 1);
  for (n in 1 : N) {
    observed[n] ~ normal(explicit_solution[n, 1], 0.1);
    observed[n] ~ normal(implicit_solution[n, 1], 0.1);
  }
}

// Hares and lynxes: a predator-prey system of ordinary differential equations, observed with log-normal errors.
functions {
  vector rate(real t, vector z, real alpha, real beta, real gamma, real delta) {
    return [(alpha - beta * z[2]) * z[1], (delta * z[1] - gamma) * z[2]]';
  }
}
data {
  int<lower=1> N; // times after the first
  array[N] real<lower=0> ts;
  array[N, 2] real<lower=0> y; // hares and lynxes, thousands of pelts
  array[2] real<lower=0> y_init; // the same at time 0
  int<lower=0, upper=1> prior_only;
}
parameters {
  vector<lower=0>[4] theta; // alpha, beta, gamma, delta
  vector<lower=0>[2] z_init;
  vector<lower=0>[2] sigma;
}
transformed parameters {
  array[N] vector[2] z = ode_rk45_tol(rate, z_init, 0, ts, 1e-7, 1e-7, 100000, theta[1], theta[2], theta[3], theta[4]);
}
model {
  theta[{1, 3}] ~ normal(1, 0.5);
  theta[{2, 4}] ~ normal(0.05, 0.05);
  sigma ~ lognormal(-1, 1);
  z_init ~ lognormal(log(10), 1);
  if (!prior_only) {
    y_init ~ lognormal(log(z_init), sigma);
    for (n in 1:N) {
      y[n] ~ lognormal(log(z[n]), sigma);
    }
  }
}
generated quantities {
  vector[N + 1] log_lik;
  log_lik[1] = lognormal_lpdf(y_init | log(z_init), sigma);
  for (n in 1:N) {
    log_lik[n + 1] = lognormal_lpdf(y[n] | log(z[n]), sigma);
  }
}

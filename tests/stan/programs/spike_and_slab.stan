// Probit regression with a spike and a slab on every coefficient.
functions {
  real probit_lpmf(array[] int y, vector eta) {
    return std_normal_lcdf((2 * to_vector(y) - 1) .* eta | );
  }
}
data {
  int<lower=0> N;
  int<lower=1> P;
  matrix[N, P] X;
  array[N] int<lower=0, upper=1> y;
  real<lower=0> spike;
  real<lower=0> slab;
}
parameters {
  vector[P] beta;
}
model {
  for (p in 1:P) {
    target += log_mix(0.3, normal_lpdf(beta[p] | 0, spike), normal_lpdf(beta[p] | 0, slab));
  }
  y ~ probit(X * beta);
}
generated quantities {
  vector[N] eta = X * beta;
  vector[N] log_lik;
  for (n in 1:N) {
    log_lik[n] = probit_lpmf(y[n:n] | eta[n:n]);
  }
}

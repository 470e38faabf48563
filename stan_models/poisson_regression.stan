// Poisson regression with a log link and an exposure.
data {
  int<lower=0> N; // observations
  int<lower=1> P; // predictors, the intercept included
  matrix[N, P] X;
  vector[N] log_exposure;
  array[N] int<lower=0> y;
  real<lower=0> prior_sd;
  int<lower=0, upper=1> prior_only;
}
parameters {
  vector[P] beta;
}
model {
  beta ~ normal(0, prior_sd);
  if (!prior_only) {
    y ~ poisson_log_glm(X, log_exposure, beta);
  }
}
generated quantities {
  vector[N] eta = log_exposure + X * beta;
  vector[N] log_lik;
  for (n in 1:N) {
    log_lik[n] = poisson_log_lpmf(y[n] | eta[n]);
  }
}

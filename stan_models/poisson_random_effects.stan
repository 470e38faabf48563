// Poisson regression with a log link, an exposure and a Gaussian intercept for each group.
data {
  int<lower=0> N; // observations
  int<lower=1> J; // groups
  int<lower=1> P; // predictors, the intercept included
  array[N] int<lower=1, upper=J> group;
  matrix[N, P] X;
  vector[N] log_exposure;
  array[N] int<lower=0> y;
  real<lower=0> prior_sd;
  int<lower=0, upper=1> prior_only;
}
parameters {
  vector[P] beta;
  real<lower=0> tau;
  vector[J] z;
}
transformed parameters {
  vector[J] u = tau * z;
}
model {
  beta ~ normal(0, prior_sd);
  tau ~ normal(0, 1);
  z ~ std_normal();
  if (!prior_only) {
    y ~ poisson_log_glm(X, log_exposure + u[group], beta);
  }
}
generated quantities {
  vector[N] eta = log_exposure + u[group] + X * beta;
  vector[N] log_lik;
  for (n in 1:N) {
    log_lik[n] = poisson_log_lpmf(y[n] | eta[n]);
  }
}

// Logistic regression with known prior scale.
data {
  int<lower=0> N;
  int<lower=1> D;
  matrix[N, D] X;
  array[N] int<lower=0, upper=1> y;
}
parameters {
  vector[D] beta;
  real<lower=0> tau;
}
model {
  tau ~ cauchy(0, 1);
  beta ~ normal(0, tau);
  y ~ bernoulli_logit(X * beta);
}
generated quantities {
  vector[N] log_lik;
  array[N] int y_rep;
  for (n in 1 : N) {
    log_lik[n] = bernoulli_logit_lpmf(y[n] | X[n] * beta);
    y_rep[n] = bernoulli_logit_rng(X[n] * beta);
  }
}

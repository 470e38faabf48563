// Logistic regression with independent normal priors.
data {
  int<lower=0> N;
  int<lower=1> P;
  matrix[N, P] X;
  array[N] int<lower=0, upper=1> y;
  vector<lower=0>[P] sd;
}
parameters {
  vector[P] beta;
}
model {
  beta ~ normal(0, sd);
  y ~ bernoulli_logit_glm(X, 0, beta);
}

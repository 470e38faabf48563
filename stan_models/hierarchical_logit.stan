// Logistic regression whose intercept and slopes vary between groups, with a correlation matrix of their own.
data {
  int<lower=0> N; // observations
  int<lower=1> J; // groups
  int<lower=1> P; // predictors, the intercept included
  array[N] int<lower=1, upper=J> group;
  matrix[N, P] X;
  array[N] int<lower=0, upper=1> y;
  int<lower=0, upper=1> prior_only;
}
parameters {
  vector[P] beta; // coefficients of the average group
  vector<lower=0>[P] tau; // standard deviations between groups
  cholesky_factor_corr[P] L;
  matrix[P, J] z; // standardised deviations of the groups
}
transformed parameters {
  matrix[J, P] gamma = rep_matrix(beta', J) + (diag_pre_multiply(tau, L) * z)';
}
model {
  beta ~ normal(0, 2.5);
  tau ~ normal(0, 1);
  L ~ lkj_corr_cholesky(2);
  to_vector(z) ~ std_normal();
  if (!prior_only) {
    y ~ bernoulli_logit(rows_dot_product(X, gamma[group]));
  }
}
generated quantities {
  vector[N] eta = rows_dot_product(X, gamma[group]);
  vector[N] log_lik;
  for (n in 1:N) {
    log_lik[n] = bernoulli_logit_lpmf(y[n] | eta[n]);
  }
}

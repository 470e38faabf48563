// Logistic regression whose intercept and slope vary between groups, non-centred.
data {
  int<lower=0> N;
  int<lower=1> J;
  int<lower=1> P;
  array[N] int<lower=1, upper=J> group;
  matrix[N, P] X;
  array[N] int<lower=0, upper=1> y;
}
parameters {
  vector[P] beta;
  vector<lower=0>[P] tau;
  matrix[J, P] z;
}
model {
  beta ~ normal(0, 2.5);
  tau ~ normal(0, 1);
  to_vector(z) ~ std_normal();
  y ~ bernoulli_logit(rows_dot_product(X, (rep_matrix(beta', J) + z .* rep_matrix(tau', J))[group]));
}

// Binary regression: probit link, independent Cauchy priors on the coefficients.
// prior_scale: for predictors of standard deviation 0.5, 10 for the intercept and 2.5 for the others (Chopin & Ridgway 2017).
functions {
  // Bernoulli with probability Phi(eta), stable in the tails, where Phi underflows
  real probit_lpmf(array[] int y, vector eta) {
    return std_normal_lcdf((2 * to_vector(y) - 1) .* eta | );
  }
}
data {
  int<lower=0> N; // observations
  int<lower=1> P; // predictors, the intercept included
  matrix[N, P] X;
  array[N] int<lower=0, upper=1> y;
  vector<lower=0>[P] prior_scale;
  int<lower=0, upper=1> prior_only;
}
parameters {
  vector[P] beta;
}
model {
  beta ~ cauchy(0, prior_scale);
  if (!prior_only) {
    y ~ probit(X * beta);
  }
}
generated quantities {
  vector[N] eta = X * beta;
  vector[N] log_lik;
  for (n in 1:N) {
    log_lik[n] = probit_lpmf(y[n:n] | eta[n:n]);
  }
}

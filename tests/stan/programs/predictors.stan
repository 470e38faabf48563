// Negative-binomial regression with what the tests of EP's factors need switched on one at a time.
data {
  int<lower=0> N;
  int<lower=1> P;
  matrix[N, P] X;
  array[N] int<lower=0> y;
  matrix[P, P] prior_covariance;
  real<lower=0> dispersion;
  int<lower=0, upper=2> bent; // the predictor is not affine in one coefficient, or in none
  int<lower=0, upper=1> overdispersed; // the likelihood sees more than the predictor
  int<lower=0, upper=1> tied; // a prior that is neither Gaussian nor independent
  int<lower=0, upper=1> skewed; // a prior of no known family
}
parameters {
  vector[P] beta;
  real extra;
}
transformed parameters {
  vector[N] eta = X * (bent == 2 ? exp(beta) : beta) + (bent == 1) * square(beta[2]);
  vector[N] twice = 2 * eta;
  real<lower=0> alpha = dispersion * exp(overdispersed * extra);
}
model {
  beta ~ multi_normal(rep_vector(0.5, P), prior_covariance);
  if (tied) {
    extra ~ cauchy(beta[2], 1);
  } else if (skewed) {
    extra ~ gumbel(0, 1);
  } else {
    extra ~ student_t(3, 0.3, 1.2);
  }
  y ~ neg_binomial_2_log(eta, alpha);
}
generated quantities {
  vector[N] log_lik;
  for (n in 1 : N) {
    log_lik[n] = neg_binomial_2_log_lpmf(y[n] | eta[n], alpha);
  }
}

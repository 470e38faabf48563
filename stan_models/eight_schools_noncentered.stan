// Effects of coaching in eight schools, non-centred: the school effects are standardised.
data {
  int<lower=0> J; // schools
  vector[J] y; // estimated effects
  vector<lower=0>[J] sigma; // their standard errors
  int<lower=0, upper=1> prior_only;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[J] theta_std;
}
transformed parameters {
  vector[J] theta = mu + tau * theta_std;
}
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  theta_std ~ std_normal();
  if (!prior_only) {
    y ~ normal(theta, sigma);
  }
}
generated quantities {
  array[J] real y_rep = normal_rng(theta, sigma);
  vector[J] log_lik;
  for (j in 1:J) {
    log_lik[j] = normal_lpdf(y[j] | theta[j], sigma[j]);
  }
}

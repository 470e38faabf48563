// Effects of coaching in eight schools, non-centred.
data {
  int<lower=0> J;
  vector[J] y;
  vector<lower=0>[J] sigma;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[J] trans;
}
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  trans ~ std_normal();
  y ~ normal(mu + tau * trans, sigma);
}

// Stochastic volatility: returns whose log variance is a stationary autoregression of order one, non-centred.
data {
  int<lower=1> T; // times
  vector[T] y; // mean-corrected returns
  int<lower=0, upper=1> prior_only;
}
parameters {
  real mu; // mean log variance
  real<lower=-1, upper=1> phi; // persistence
  real<lower=0> sigma; // volatility of the log variance
  vector[T] z;
}
transformed parameters {
  vector[T] h = sigma * z; // log variance
  h[1] /= sqrt(1 - square(phi));
  h += mu;
  for (t in 2:T) {
    h[t] += phi * (h[t - 1] - mu);
  }
}
model {
  mu ~ normal(0, 5);
  (phi + 1) / 2 ~ beta(20, 1.5); // Kim, Shephard & Chib (1998)
  target += -log(2); // its Jacobian
  sigma ~ normal(0, 1);
  z ~ std_normal();
  if (!prior_only) {
    y ~ normal(0, exp(h / 2));
  }
}
generated quantities {
  vector[T] log_lik;
  for (t in 1:T) {
    log_lik[t] = normal_lpdf(y[t] | 0, exp(h[t] / 2));
  }
}

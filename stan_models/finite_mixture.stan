// Mixture of K normal distributions; the means are ordered, so that components have names.
data {
  int<lower=0> N; // observations
  int<lower=1> K; // components
  vector[N] y;
  int<lower=0, upper=1> prior_only;
}
parameters {
  ordered[K] mu;
  vector<lower=0>[K] sigma;
  simplex[K] weight;
}
model {
  mu ~ normal(0, 5);
  sigma ~ lognormal(0, 1);
  weight ~ dirichlet(rep_vector(2, K));
  if (!prior_only) {
    for (n in 1:N) {
      vector[K] component = log(weight);
      for (k in 1:K) {
        component[k] += normal_lpdf(y[n] | mu[k], sigma[k]);
      }
      target += log_sum_exp(component);
    }
  }
}
generated quantities {
  vector[N] log_lik;
  for (n in 1:N) {
    vector[K] component = log(weight);
    for (k in 1:K) {
      component[k] += normal_lpdf(y[n] | mu[k], sigma[k]);
    }
    log_lik[n] = log_sum_exp(component);
  }
}

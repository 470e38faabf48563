// Counts of areas and groups, with area effects, non-centred.
data {
  int<lower=0> N;
  int<lower=1> A;
  int<lower=1> G;
  array[N] int<lower=1, upper=A> area;
  matrix[N, G] X;
  vector<lower=0>[N] exposure;
  array[N] int<lower=0> y;
}
parameters {
  real level;
  vector[G] effect;
  real<lower=0> tau;
  vector[A] z;
}
model {
  level ~ normal(0, 2.5);
  effect ~ normal(0, 2.5);
  tau ~ normal(0, 1);
  z ~ std_normal();
  y ~ poisson_log(log(exposure) + level + X * effect + tau * z[area]);
}

// Refuses half of its points, in the ways a program can; on data, what is no sum over rows and what sizes a parameter.
data {
  int<lower=0> N;
  vector[N] row;
  int<lower=0> M;
  vector[M] sizing;
}
parameters {
  real x;
  real y;
  vector[M] latent;
}
model {
  x ~ std_normal();
  y ~ std_normal();
  latent ~ normal(sizing, 1);
  if (N > 0) target += normal_lpdf(mean(row) | x, 1);
  if (y > 5) {
    target += hypot(x - x, x - x);  // finite, with a gradient that is not
  } else if (y > 4) {
    target += log(negative_infinity());
  } else if (x < 0) {
    reject("x is negative: ", x);
  }
}
generated quantities {
  real gq = x;
  if (x < -1) reject("no quantities");
  real after = 1;
}

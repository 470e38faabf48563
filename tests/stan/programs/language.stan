// One program with most of what the language has, so that it is compiled once.
functions {
  #include scale.stanfunctions
  real partial_sum(array[] real slice, int start, int end, real mu) {
    return normal_lpdf(slice | mu, 1);
  }
}
data {
  int<lower=0> N;
  array[N] real y;
  int<lower=0> K;
  matrix[K, 2] nothing;
  tuple(real<lower=0>, array[2] int) pair;
  complex shift;
  array[2] tuple(real, vector[2]) nested;
}
transformed data {
  print("constructed with N = ", N);
}
parameters {
  real mu;
  vector[K] none;
  simplex[3] p;
  array[2] vector[3] z;
  tuple(real<lower=0>, vector[2]) t;
  complex c;
  cholesky_factor_corr[2] L;
}
transformed parameters {
  matrix[2, 3] Z;
  for (i in 1 : 2) Z[i] = z[i]';
}
model {
  profile("prior") {
    mu ~ normal(scaled(pair.1, 2), 1);
    p ~ dirichlet([2, 3, 4]');
    t.1 ~ exponential(1);
    t.2 ~ normal(nested[1].1, pair.2);
  }
  profile("rest") {
    for (i in 1 : 2) z[i] ~ std_normal();
    get_real(c) ~ normal(get_real(shift), 1);
    get_imag(c) ~ normal(get_imag(shift), 1);
    L ~ lkj_corr_cholesky(2);
    target += reduce_sum(partial_sum, y, 1, mu);
  }
  if (mu > 100) print("mu is large");
}
generated quantities {
  array[2, 3] int counts;
  complex_vector[2] cv = [c, 2 * c]';
  tuple(array[2] real, matrix[2, 1]) made = ({mu, 2 * mu}, [[1], [2]]);
  array[2] tuple(real, vector[2]) list = {(mu, [mu, mu]'), (3, [4, 5]')};
  array[0] real empty;
  array[K, 4] real empty_too;
  vector[N] log_lik;
  for (i in 1 : 2) for (j in 1 : 3) counts[i, j] = 10 * i + j;
  for (n in 1 : N) log_lik[n] = normal_lpdf(y[n] | mu, 1);
  real noise = normal_rng(mu, 1);
}

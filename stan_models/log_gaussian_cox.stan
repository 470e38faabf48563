// Log-Gaussian Cox process: points counted in the cells of a square grid; the log intensity is a Gaussian process with
// exponential covariance sigma^2 exp(-distance / beta), whose parameters are given (Møller, Syversveen & Waagepetersen 1998).
data {
  int<lower=1> G; // cells along each side of the unit square
  array[G * G] int<lower=0> y; // counts, row by row
  real mu; // mean of the log intensity
  real<lower=0> sigma; // its standard deviation
  real<lower=0> beta; // and its range
  int<lower=0, upper=1> prior_only;
}
transformed data {
  int D = G * G;
  real log_area = -log(D);
  cholesky_factor_cov[D] L;
  {
    array[D] vector[2] centre;
    for (i in 1:G) {
      for (j in 1:G) {
        centre[(i - 1) * G + j] = [(i - 0.5) / G, (j - 0.5) / G]';
      }
    }
    L = cholesky_decompose(add_diag(gp_exponential_cov(centre, sigma, beta), 1e-10));
  }
}
parameters {
  vector[D] z;
}
transformed parameters {
  vector[D] f = mu + L * z; // log intensity
}
model {
  z ~ std_normal();
  if (!prior_only) {
    y ~ poisson_log(f + log_area);
  }
}
generated quantities {
  vector[D] log_lik;
  for (d in 1:D) {
    log_lik[d] = poisson_log_lpmf(y[d] | f[d] + log_area);
  }
}

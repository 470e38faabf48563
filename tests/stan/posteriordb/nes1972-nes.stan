data {
  int<lower=0> N;
  vector[N] partyid7;
  vector[N] real_ideo;
  vector[N] race_adj;
  vector[N] educ1;
  vector[N] gender;
  vector[N] income;
  array[N] int<lower=1, upper=4> age_discrete;
}
transformed data {
  matrix[N, 3] age; // indicators of the age groups after the first
  for (n in 1 : N) {
    for (k in 1 : 3) {
      age[n, k] = age_discrete[n] == k + 1;
    }
  }
}
parameters {
  vector[9] beta;
  real<lower=0> sigma;
}
model {
  partyid7 ~ normal(beta[1] + beta[2] * real_ideo + beta[3] * race_adj + age * beta[4 : 6]
                    + beta[7] * educ1 + beta[8] * gender + beta[9] * income, sigma);
}

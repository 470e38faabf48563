"""The routes to the prior against each other, on compiled programs."""

import numpy as np
import pytest

from ppl_backends.errors import ModelError
from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.split.prior import changed_data, check_split
from ppl_backends.targets.stan.split.routes import find_split

pytest.importorskip("httpstan", reason="needs the stan extra")

pytestmark = [pytest.mark.stan, pytest.mark.slow]

CODE = """
functions {
  real centre_lp(real raw, real scale) { raw ~ std_normal(); return scale * raw; }
  real slab_lpdf(vector b, real scale) { return student_t_lpdf(b | 3, 0, scale); }
}
data {
  int<lower=0> N; int<lower=1> K; matrix[N, K] X; array[N] int<lower=0> y;
  real<lower=0> scale; int<lower=0, upper=1> prior_only;
}
parameters { real raw; vector[K] beta; real<lower=0> shape; simplex[2] weight; }
transformed parameters {
  real lprior = gamma_lpdf(shape | 2, scale);
  lprior += log_mix(weight[1], normal_lpdf(beta[1] | 0, 1), normal_lpdf(beta[1] | 0, 3));
}
model {
  real alpha = centre_lp(raw, scale);
  beta ~ slab(scale);
  target += lprior;
  vector[N] eta = alpha + X * beta;
  if (!prior_only) {
    for (n in 1:N) {
      if (y[n] == 0) target += log_sum_exp(log(weight[1]), log(weight[2]) + neg_binomial_2_log_lpmf(0 | eta[n], shape));
      else target += log(weight[2]) + neg_binomial_2_log_lpmf(y[n] | eta[n], shape);
    }
  }
}
generated quantities {
  vector[N] log_lik;
  for (n in 1:N) {
    real eta = scale * raw + X[n] * beta;
    if (y[n] == 0) log_lik[n] = log_sum_exp(log(weight[1]), log(weight[2]) + neg_binomial_2_log_lpmf(0 | eta, shape));
    else log_lik[n] = log(weight[2]) + neg_binomial_2_log_lpmf(y[n] | eta, shape);
  }
}
"""


@pytest.fixture(scope="module")
def setting():
    """Return the program, its data, and a function that evaluates it (or another text of it) on data."""
    from ppl_backends.targets.stan.build import build_library
    from ppl_backends.targets.stan.library import open_model

    rng = np.random.default_rng(3)
    X = rng.normal(size=(12, 2))
    data = {"N": 12, "K": 2, "X": X, "y": rng.poisson(1.0, size=12), "scale": 1.5, "prior_only": 0}
    program = StanProgram("split", CODE)

    def evaluator(new_data, code=CODE):
        model = open_model(build_library(StanProgram("split", code)), new_data, "split")
        return lambda x: model.evaluate(x, gradient=False, threads=1)[0]

    return program, data, evaluator, rng.normal(size=(20, 5))


def test_three_routes_give_one_prior(setting):
    program, data, evaluator, points = setting
    routes = [
        find_split(program, data),
        find_split(program, data, exclude=["prior_only"]),
        find_split(program, data, exclude=["prior_only", "no_observations"]),
    ]
    assert [split.route for split in routes] == ["prior_only", "no_observations", "lprior"]
    log_priors = [evaluator(split.prior_data or data, split.prior_program or program.code)(points) for split in routes]
    np.testing.assert_allclose(log_priors[1], log_priors[0], rtol=1e-12)
    np.testing.assert_allclose(log_priors[2], log_priors[0], rtol=1e-12)
    assert np.abs(evaluator(data)(points) - log_priors[0]).min() > 0.1


def test_checks_pass_for_the_split_and_fail_for_another(setting):
    program, data, evaluator, points = setting
    split = find_split(program, data, exclude=["prior_only", "no_observations"])
    changed = changed_data(data, split.likelihood_data)
    report = check_split(
        evaluator(data),
        evaluator(data, split.prior_program),
        evaluator(changed),
        points,
        evaluate_prior_on_changed_data=evaluator(changed, split.prior_program),
    )
    assert report == "checked at 20 points; the prior does not depend on the observed values; the likelihood does"
    with pytest.raises(ModelError, match="the prior part changes with the observed data"):
        check_split(
            evaluator(data),
            evaluator(data),
            evaluator(changed),
            points,
            evaluate_prior_on_changed_data=evaluator(changed),
        )

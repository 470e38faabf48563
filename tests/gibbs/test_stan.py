"""Gibbs posteriors with Stan: a program's prior under a loss, and the loss written into the program."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.gibbs import GibbsPosterior
from ppl_backends.results.inference_data import group

pytestmark = pytest.mark.stan

PROGRAM = """
data {
  int<lower=1> n;
  int<lower=1> p;
  matrix[n, p] X;
  vector[n] y;                // -1 or 1
  real<lower=0> lambda;       // learning rate of the mean loss
}
parameters {
  vector[p] beta;
}
model {
  beta ~ normal(0, 1);
  target += -lambda * mean(fmax(0, 1 - y .* (X * beta)));
}
"""


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    return X, np.sign(X @ [1.0, -1.0] + 0.5 * rng.normal(size=40))


@pytest.fixture(scope="module")
def program(data):
    X, y = data
    return pb.as_target(
        PROGRAM, data={"n": 40, "p": 2, "X": X, "y": y, "lambda": 30.0}, likelihood_data=["X", "y", "lambda"]
    )


@pytest.mark.slow
def test_the_recipe_is_the_gibbs_posterior(program, data):
    posterior = GibbsPosterior((0.0, 1.0), "hinge", *data, learning_rate=30.0)
    x = np.random.default_rng(1).normal(size=(3, 2))
    np.testing.assert_allclose(program.log_density(x), posterior.log_density(x))
    hotter = program.with_data({"lambda": 10.0})
    np.testing.assert_allclose(hotter.log_density(x), posterior.with_learning_rate(10.0).log_density(x))
    assert program.has_split, program.split_problem
    np.testing.assert_allclose(program.evaluate(x).log_likelihood, posterior.evaluate(x).log_likelihood)


def test_the_prior_of_a_program_takes_any_loss(program, data):
    X, y = data
    posterior = GibbsPosterior(program, "zero_one", X, y, learning_rate=30.0)
    gaussian = GibbsPosterior((0.0, 1.0), "zero_one", X, y, learning_rate=30.0)
    x = np.random.default_rng(1).normal(size=(3, 2))
    np.testing.assert_allclose(posterior.log_density(x), gaussian.log_density(x))
    idata = pb.sample_smc(posterior, draws=500, chains=2, random_seed=1, progressbar=False)
    exact = pb.sample_smc(gaussian, draws=500, chains=2, random_seed=1, progressbar=False)
    found, expected = (group(run, "posterior").attrs for run in (idata, exact))
    error = np.hypot(found["log_evidence_se"], expected["log_evidence_se"])
    assert abs(found["log_evidence"] - expected["log_evidence"]) < 5 * error + 0.05


def test_a_hidden_likelihood_is_no_prior(data):
    X, y = data
    values = {"n": 40, "p": 2, "X": X, "y": y, "lambda": 30.0}
    with pytest.raises(ModelError, match="uses only the prior"):
        GibbsPosterior(PROGRAM, "zero_one", X, y, learning_rate=30.0, data=values)

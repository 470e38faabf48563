"""``pb.steps.ModelSearch`` in ``pm.sample`` against enumeration, and what it refuses."""

import arviz as az
import numpy as np
import pytest

pm = pytest.importorskip("pymc")

import ppl_backends as pb  # noqa: E402
from ppl_backends.errors import ModelError  # noqa: E402
from ppl_backends.model_search.evidences.laplace import ImportanceEvidence  # noqa: E402

RNG = np.random.default_rng(8)
X = RNG.standard_normal((60, 4))
X[:, 1] += X[:, 0]
Y = (0.8 * X[:, 0] + 0.5 * X[:, 3] + RNG.standard_normal(60) > 0).astype(int)
P = 0.3  # prior probability of an indicator


def make_model(predictor=lambda level, gamma, beta: level + X @ (gamma * beta)):
    with pm.Model(coords={"predictor": list("abcd")}) as model:
        level = pm.Normal("level", 0.5, 2.0)
        gamma = pm.Bernoulli("gamma", P, dims="predictor")
        beta = pm.Normal("beta", 0.2, 1.5, dims="predictor")
        pm.Bernoulli("y", logit_p=predictor(level, gamma, beta), observed=Y)
    return model


def run(model, draws=800, **options):
    step = pb.steps.ModelSearch({"gamma": "beta"}, model=model, **options)
    return pm.sample(
        draws,
        tune=0,
        step=step,
        chains=2,
        cores=1,
        random_seed=3,
        progressbar=False,
        compute_convergence_checks=False,
        model=model,
    )


def slab_model():
    with pm.Model(coords={"predictor": list("abcd")}) as model:
        level = pm.Normal("level", 0.5, 2.0)
        beta = pm.Normal("beta", 0.2, 1.5, dims="predictor")
        pm.Bernoulli("y", logit_p=level + X @ beta, observed=Y)
    return model


def enumerated():
    """Return the search over all models by long importance runs."""
    return pb.select_variables(
        slab_model(),
        select={"beta": True},
        model_prior=lambda columns: columns[:, 1:] @ np.full(4, np.log(P / (1 - P))) + 4 * np.log(1 - P),
        evidence="importance_laplace",
        points=4096,
        random_seed=1,
        progressbar=False,
    )


def z_scores(draws, expected):
    """Return how many standard errors the means of draws ``(chain, draw, ...)`` are off."""
    n = np.array([az.ess(draws[..., j]) for j in range(draws.shape[-1])], dtype=float)
    return (draws.mean(axis=(0, 1)) - expected) / (draws.std(axis=(0, 1)) / np.sqrt(n))


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.mark.slow  # chains of PyMC
def test_the_step_draws_the_joint_posterior(model):
    idata = run(model, points=2)
    gamma, beta = (idata.posterior[name].values.astype(float) for name in ("gamma", "beta"))
    averaged = enumerated()
    assert np.abs(z_scores(gamma, averaged.selection["inclusion"].values)).max() < 4
    off = beta[gamma == 0]  # has its prior
    assert abs(off.mean() - 0.2) < 4 * 1.5 / len(off) ** 0.5
    assert abs(off.std() - 1.5) < 4 * 1.5 / (2 * len(off)) ** 0.5
    expected = averaged.posterior["beta"].values.mean(axis=(0, 1))
    assert np.abs(z_scores(gamma * beta, expected)).max() < 5
    assert set(idata.sample_stats["size"].values.ravel()) <= set(range(5))


@pytest.mark.slow
def test_evidences_without_their_constants_are_noticed(model, monkeypatch):
    draw = ImportanceEvidence.draw

    def twin(self, columns, rng):
        found, theta = draw(self, columns, rng)
        return found + columns.sum(), theta

    monkeypatch.setattr(ImportanceEvidence, "draw", twin)
    idata = run(model, points=2)
    gamma = idata.posterior["gamma"].values.astype(float)
    assert np.abs(z_scores(gamma, enumerated().selection["inclusion"].values)).max() > 6


@pytest.mark.parametrize("evidence", ["laplace", pytest.param("ep", marks=pytest.mark.slow)])
def test_computed_evidences_are_approximate(model, evidence):
    idata = run(model, draws=20, evidence=evidence)
    assert idata.sample_stats["approximate"].values.all()


def test_what_does_not_fit_is_refused(model):
    with pytest.raises(ModelError, match="'delta' is not among the free variables"):
        pb.steps.ModelSearch({"delta": "beta"}, model=model)
    with pytest.raises(ModelError, match="shape"):
        pb.steps.ModelSearch({"gamma": "level"}, model=model)
    with pytest.raises(ModelError, match="does not drop out"):
        pb.steps.ModelSearch({"gamma": "beta"}, model=make_model(lambda level, g, b: level + X @ ((0.5 + 0.5 * g) * b)))
    with pytest.raises(ModelError, match="make it inside of a model"):
        pb.steps.ModelSearch({"gamma": "beta"})

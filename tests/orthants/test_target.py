"""Rectangles beside a prior of any kind: the same numbers as the distributions of PyMC models, gradients, estimates."""

import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.orthants import (
    RectangleTarget,
    choice_rectangles,
    ordinal_rectangles,
    probit_rectangles,
    ranking_rectangles,
)
from ppl_backends.orthants.batch import best_log_rectangles, fixed_points
from tests.orthants.test_distributions import CUTS, DISTS, FACTOR, MEANS, PANEL, SCALE, pseudo_marginal_estimate

RECTANGLES = {
    "probit": lambda mean, y: probit_rectangles(y, mean, FACTOR),
    "ordinal": lambda mean, y: ordinal_rectangles(y, mean, FACTOR, CUTS),
    "choices": lambda mean, y: choice_rectangles(y, mean, PANEL),
    "ranking": lambda mean, y: ranking_rectangles(y, mean, SCALE),
}


def gaussian(dim):
    """Return independent standard normals, with a density that is normalised."""
    return pb.FunctionTarget(
        dim,
        lambda x: (np.zeros(len(x)), np.zeros_like(x)),
        lambda x: (-0.5 * (x**2).sum(axis=1) - 0.5 * dim * np.log(2 * np.pi), -x),
        sample_prior=lambda n, rng: rng.standard_normal((n, dim)),
    )


def of_case(name, y, **options):
    shape = MEANS[name].shape
    return RectangleTarget(
        gaussian(MEANS[name].size), lambda v: RECTANGLES[name](v["x"].reshape(-1, *shape), y), **options
    )


@pytest.mark.parametrize("name", RECTANGLES)
def test_the_same_as_the_distributions_with_their_gradients(name):
    y = pm.draw(DISTS[name](), random_seed=1)[:5]
    target, at = of_case(name, y), MEANS[name].ravel() * np.array([[1.0], [0.4], [-2.0]])
    value, gradient = target.log_density_and_gradient(at)
    rows = RECTANGLES[name](at[:1].reshape(1, *MEANS[name].shape), y).rows()
    alone = best_log_rectangles(*(part[0] for part in rows), fixed_points(128, 0)).log_p
    np.testing.assert_allclose(pm.logp(DISTS[name](), y).eval(), alone, atol=1e-10)
    assert target.evaluate(at[:1]).log_likelihood[0] == pytest.approx(alone.sum(), abs=1e-10)
    assert value[0] == target.log_density(at)[0]
    for j, shift in enumerate(1e-4 * np.eye(at.shape[1])):
        slope = (target.log_density(at + shift) - target.log_density(at - shift)) / 2e-4
        np.testing.assert_allclose(gradient[:, j], slope, rtol=1e-5, atol=1e-6)


def test_parameters_of_the_covariance_have_gradients():
    y = pm.draw(DISTS["ordinal"](), random_seed=1)[:5]

    def rectangles(values):
        x = values["x"]
        factor = np.zeros((len(x), 3, 3)) + np.eye(3)
        factor[:, 1, 0], factor[:, 2, 1] = np.tanh(x[:, 0]), 0.3 * x[:, 1]
        return ordinal_rectangles(
            y, x[:, [1, 1, 0]], factor, np.stack([x[:, 0] - 1, x[:, 0] + np.exp(x[:, 1])], axis=1)
        )

    target, at = RectangleTarget(gaussian(2), rectangles), np.array([[0.3, -0.2], [-0.8, 0.5]])
    _, gradient = target.log_density_and_gradient(at)
    for j, shift in enumerate(1e-4 * np.eye(2)):
        slope = (target.log_density(at + shift) - target.log_density(at - shift)) / 2e-4
        np.testing.assert_allclose(gradient[:, j], slope, rtol=1e-5)


def test_estimates_are_for_methods_that_keep_them():
    y = pm.draw(DISTS["probit"](), random_seed=1)[:5]
    target, at = of_case("probit", y, estimated=True, n_points=2), MEANS["probit"][None] + np.zeros((2, 1))
    assert not target.has_gradient
    one = target.log_likelihood_estimate(at, np.random.default_rng(1))
    assert one[0] != one[1]
    by_hand = pseudo_marginal_estimate(y, n_points=2)({"mean": at}, np.random.default_rng(1))
    np.testing.assert_array_equal(one, by_hand)
    with pytest.raises(ModelError, match="is not evaluated"):
        pb.fit_laplace(target, progressbar=False)


def test_smc_with_estimates_agrees_with_fixed_points():
    y = pm.draw(DISTS["probit"](), random_seed=3)[:20]
    sure, noisy = of_case("probit", y), of_case("probit", y, estimated=True, n_points=2)
    at = np.tile(MEANS["probit"], (99, 1))
    assert noisy.log_likelihood_estimate(at, np.random.default_rng(1)).std() > 0.3
    exact, found = (
        pb.sample_smc(target, draws=500, chains=4, random_seed=1, progressbar=False) for target in (sure, noisy)
    )
    gap = found.posterior.attrs["log_evidence"] - exact.posterior.attrs["log_evidence"]
    assert abs(gap) < 5 * np.hypot(*(run.posterior.attrs["log_evidence_se"] for run in (found, exact))) + 0.02
    sd = exact.posterior["x"].std(("chain", "draw"))
    apart = abs(found.posterior["x"].mean(("chain", "draw")) - exact.posterior["x"].mean(("chain", "draw")))
    assert (apart < 0.3 * sd).all()


@pytest.mark.slow
def test_a_prior_written_in_stan(tmp_path):
    """Densities and gradients are those of the same model in PyMC, and SMC from the prior takes both forms."""
    program = tmp_path / "prior.stan"
    program.write_text(
        "parameters { vector[3] mean; real<lower=0> spread; } model { mean ~ normal(0, 1); spread ~ lognormal(0, 0.2); }"
    )
    y = pm.draw(DISTS["probit"](), random_seed=3)[:15]
    prior = pb.as_target(str(program))
    target, noisy = (
        RectangleTarget(
            prior, lambda v: probit_rectangles(y, v["mean"] * v["spread"][:, None], FACTOR), estimated=estimated
        )
        for estimated in (False, True)
    )
    with pm.Model() as model:
        mean, spread = pm.Normal("mean", 0, 1, shape=3), pm.LogNormal("spread", 0, 0.2)
        pb.MultivariateProbit("y", mean * spread, FACTOR, observed=y)
    at = np.random.default_rng(1).normal(size=(5, 4))
    stan, pymc = (t.log_density_and_gradient(at) for t in (target, pb.as_target(model)))
    np.testing.assert_allclose(stan[0], pymc[0], atol=1e-6)
    np.testing.assert_allclose(stan[1], pymc[1], atol=1e-6)
    runs = [pb.sample_smc(t, draws=500, chains=2, random_seed=1, progressbar=False) for t in (target, noisy)]
    assert set(runs[0].posterior.data_vars) == {"mean", "spread"}
    means = [run.posterior["mean"].mean(("chain", "draw")) for run in runs]
    assert (abs(means[0] - means[1]) < 0.4 * runs[0].posterior["mean"].std(("chain", "draw"))).all()


@pytest.mark.parametrize(
    ("y", "worths", "scale", "said"),
    [
        ("junk", np.zeros((1, 3)), 1.0, "permutation"),
        ([[0, 1, 1]], np.zeros((1, 3)), 1.0, "permutation"),
        ([[0, 1, 2]], np.zeros((1, 4)), 1.0, "worths has shape"),
        ([[0, 1, 2]], "junk", 1.0, "arrays of numbers"),
        ([[0, 1, 2]], np.zeros((1, 3)), [1.0, -1.0, 1.0], "expected one positive number or 3"),
        ([[0, 1, 2]], np.zeros((1, 3)), [1.0, 1.0], "expected one positive number or 3"),
    ],
)
def test_junk_for_rankings_is_refused_in_one_line(y, worths, scale, said):
    with pytest.raises(ModelError, match=said) as caught:
        ranking_rectangles(y, worths, scale)
    assert "\n" not in str(caught.value)

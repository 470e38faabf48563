"""Leave-one-out and leave-future-out against quadrature and conjugate predictions."""

import warnings
from functools import partial

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.targets.observations import Observations
from ppl_backends.targets.protocol import BaseTarget, Evaluation

Y = np.array([0.1, -0.4, 0.5, 0.2, -0.3, 0.0, 6.0])


class Rows(Observations):
    def __init__(self, y):
        self.y, self.n = y, len(y)

    def log_likelihood(self, x, index=None):
        y = self.y if index is None else self.y[index]
        return stats.norm.logpdf(y, x[:, :1], np.exp(x[:, 1:]))

    def sum(self, x, index=None, weights=None, gradient=False):
        y = self.y if index is None else self.y[index]
        z = (y - x[:, :1]) / np.exp(x[:, 1:])
        value = self.log_likelihood(x, index).sum(axis=1)
        if not gradient:
            return value
        return value, np.stack([(z / np.exp(x[:, 1:])).sum(axis=1), (z**2 - 1).sum(axis=1)], axis=1)


class Normal(BaseTarget):
    """Unknown mean and log sd, with priors N(0, 9) and N(0, 1)."""

    dim, names, has_split, log_prior_normalizer = 2, ("mu", "log_sigma"), True, 0.0
    sd = np.array([3.0, 1.0])

    def __init__(self, y):
        self.observations = Rows(y)

    def evaluate(self, x, gradient=False):
        prior = stats.norm.logpdf(x, 0, self.sd).sum(axis=1)
        if not gradient:
            return Evaluation(prior, self.observations.sum(x))
        value, slope = self.observations.sum(x, gradient=True)
        return Evaluation(prior, value, -x / self.sd**2, slope)

    def sample_prior(self, n, rng):
        return self.sd * rng.standard_normal((n, 2))


def evidence(target, n_rows):
    """Log evidence of the rows given by quadrature."""
    grid = np.stack(np.meshgrid(np.linspace(-10, 10, 601), np.linspace(-4, 4, 401), indexing="ij"), axis=-1).reshape(
        -1, 2
    )
    density = stats.norm.logpdf(grid, 0, target.sd).sum(axis=1)
    if len(n_rows):
        density = density + target.observations.log_likelihood(grid, np.asarray(n_rows)).sum(axis=1)
    return logsumexp(density)


@pytest.fixture(scope="module")
def target():
    return Normal(Y)


def test_bad_weights_of_an_outlier_are_repaired(target):
    idata = pb.sample_smc(target, draws=2000, chains=2, random_seed=1, progressbar=False)
    loo = pb.loo_moment_match(idata, target, random_seed=1)
    elpd = loo["loo_i"] if "loo_i" in dir(loo) else loo.elpd_i
    every = list(range(len(Y)))
    known = [evidence(target, every) - evidence(target, [j for j in every if j != i]) for i in every]
    np.testing.assert_allclose(elpd.values[:-1], known[:-1], atol=0.05)
    assert abs(elpd.values[-1] - known[-1]) < 0.25
    assert loo.pareto_k["k_before"].values[-1] > 0.7
    assert loo.pareto_k["source"].values[-1] != "PSIS"
    assert float(loo.pareto_k.max()) < 0.7


@pytest.mark.parametrize("call", [partial(pb.loo_moment_match, refit=False), partial(pb.sensitivity, method="weights")])
def test_draws_of_other_data_or_of_a_part_are_not_trusted(call):
    rng = np.random.default_rng(3)
    target, other = Normal(Y[:-1]), Normal(Y[:-1] + 0.3)
    right, shifted = (
        pb.sample_importance(one, draws=2000, chains=2, random_seed=1, progressbar=False)["posterior"]["x"].values
        for one in (target, other)
    )
    above = np.stack([chain[chain[:, 0] > np.median(chain[:, 0])] for chain in right])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call({"x": right}, target, random_seed=1)
    for wrong in (above, shifted):
        with pytest.warns(SamplerWarning, match="the draws do not follow this density: .* raise the log density"):
            call({"x": rng.permutation(wrong, axis=1)}, target, random_seed=1)


def test_arviz_compares_repaired_densities(target):
    import arviz as az

    idata = pb.sample_smc(target, draws=500, chains=2, random_seed=1, progressbar=False)
    loo = pb.loo_moment_match(idata, target, random_seed=1)
    assert list(az.compare({"a": loo, "b": loo})["rank"]) == [0, 1]


def test_moment_matching_maps_a_gaussian_onto_a_shifted_one():
    """The posterior without the row is N(m, 1), the draws are of N(0, ½), so weights in place have no variance."""
    from ppl_backends.checks.loo import Posterior, match_moments, weigh

    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 1)) * 0.5
    target = pb.FunctionTarget(1, lambda x: (-2.0 * x[:, 0] ** 2, -4.0 * x))

    def row(x):  # p(y | θ) with π / p ∝ N(1.5, 1)
        return -2.0 * x[:, 0] ** 2 + 0.5 * (x[:, 0] - 1.5) ** 2

    before = weigh(-row(x), row(x))
    after = match_moments(target, Posterior(x, target.log_density(x)), row, before, 0.5, 30)
    known = 0.5 * np.log(np.pi / 2) - 0.5 * np.log(2 * np.pi)  # log of ∫ exp(−2x²) over ∫ exp(−½(x − 1.5)²)
    assert before.k > 0.6
    assert after.k < 0.5
    assert abs(after.elpd - known) < 0.05


@pytest.mark.slow
def test_rows_are_predicted_from_those_before_them(target):
    result = pb.lfo(target, min_observations=2, draws=500, random_seed=1, progressbar=False)
    known = [evidence(target, range(t + 1)) - evidence(target, range(t)) for t in range(2, len(Y))]
    score = result.pointwise["log_score"].values
    assert (abs(score - known) < 5 * result.pointwise["mcse"].values + 0.02).all()
    assert result.n_fits == 1
    two = pb.lfo(target, min_observations=2, steps=2, draws=500, random_seed=1, progressbar=False)
    assert np.isnan(pb.lfo(target, min_observations=0, steps=7, draws=500, random_seed=1, progressbar=False).se)
    np.testing.assert_allclose(two.pointwise["log_score"].values, score[:-1] + score[1:], atol=0.05)
    with pytest.raises(ModelError, match="there are 7 observations"):
        pb.lfo(target, min_observations=7, progressbar=False)


def test_a_series_with_one_density_is_named():
    with pm.Model() as model:
        pm.AR("y", pm.Normal("rho", 0, 1, shape=1), init_dist=pm.Normal.dist(0, 1), observed=np.arange(8.0))
    for options in ({}, {"min_observations": 3}):
        with pytest.raises(
            ModelError, match=r"there is one observation; .* pm\.AR has one density for its whole series"
        ):
            pb.lfo(model, progressbar=False, **options)
    idata = pb.sample_smc(model, draws=500, chains=2, random_seed=1, progressbar=False)
    with pytest.warns(
        SamplerWarning, match=r"there is one observation, .* pm\.AR has one density for its whole series"
    ):
        loo = pb.loo_moment_match(idata, model, random_seed=1)
    assert np.isnan(loo.se)


def test_a_likelihood_of_potentials_has_no_observations():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Potential("likelihood", pm.logp(pm.Normal.dist(mu, 1), np.ones(5)).sum())
    idata = {"mu": np.random.default_rng(0).normal(5 / 6, 6**-0.5, size=(4, 500))}
    message = r"the model has no observed variable: write a likelihood that is a Potential as pm\.CustomDist$"
    for call in (pb.loo_moment_match, pb.sensitivity):
        with pytest.raises(ModelError, match=message):
            call(idata, model)
    with pytest.raises(ModelError, match=message):
        pb.lfo(model, progressbar=False)


def test_a_refit_gives_the_density_of_its_row(target):
    from ppl_backends.checks.lfo import _refit

    found = _refit(target, 6, {"draws": 1000, "chains": 2}, None, np.random.default_rng(1))
    assert abs(found.mean() - (evidence(target, range(7)) - evidence(target, range(6)))) < 0.2


def test_the_error_of_an_elpd_is_its_spread_over_sets_of_draws():
    """Twelve rows of N(θ, 1) under a flat prior: errors of rows by the same draws are dependent."""
    from ppl_backends.checks.loo import PSIS, REFITTED, Fit, errors_of, weigh

    rng = np.random.default_rng(4)
    y, n = rng.standard_normal(12), 500
    theta = y.mean() + rng.standard_normal((400, n)) / np.sqrt(len(y))
    elpd, errors = [], []
    for draws in theta:
        fits = [weigh(-row, row) for row in stats.norm.logpdf(y[:, None], draws)]
        elpd.append([fit.elpd for fit in fits])
        errors.append(errors_of(fits, [PSIS] * len(y), n))
    found = np.mean([one["mcse"][1] for one in errors], axis=0)
    np.testing.assert_allclose(found, np.std(elpd, axis=0), rtol=0.15)  # four standard errors of a spread of 400
    total = np.std(np.sum(elpd, axis=1))
    assert np.mean([one["mcse_elpd"] for one in errors]) == pytest.approx(total, rel=0.15)
    assert abs(total / np.sqrt((np.std(elpd, axis=0) ** 2).sum()) - 1) > 0.2  # rows are dependent
    refit = Fit(0.0, 0.0, np.ones(1), np.array([0.3]))
    assert errors_of([refit, refit], [REFITTED] * 2, n)["mcse_elpd"] == pytest.approx(0.3 * 2**0.5)

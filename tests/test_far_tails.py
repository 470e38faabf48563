"""Heavy tails in which few of the draws are."""

import warnings

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import betaln

import ppl_backends as pb
from ppl_backends.errors import ApproximationWarning, SamplerWarning
from ppl_backends.results.far_tails import far_tail
from ppl_backends.results.heavy_tails import unreliable_means
from ppl_backends.targets.protocol import BaseTarget, Evaluation

DRAWS = 4000


class Scale(BaseTarget):
    """A positive variable with a density, on the log scale, and a standard normal one."""

    dim, names, label = 2, ("log_scale", "other"), "a scale"

    def __init__(self, log_density):
        self.log_density_of = log_density

    def evaluate(self, x, gradient=False):
        """Return the log density of the logarithm and of the other variable, and the slope, by a difference."""
        u, step = x[:, 0], 1e-5
        low, middle, high = (self.log_density_of(np.exp(u + by)) + u + by for by in (-step, 0.0, step))
        slope = np.column_stack([(high - low) / (2 * step), -x[:, 1]])
        value = middle + stats.norm.logpdf(x[:, 1])
        return Evaluation(np.zeros(len(x)), value, np.zeros_like(x) if gradient else None, slope if gradient else None)

    def constrain(self, x, rng=None):
        """Return the scale, its inverse and the other variable."""
        return {"scale": np.exp(x[:, :1]), "inverse": np.exp(-x[:, :1]), "other": x[:, 1:]}


def _found(distribution, seed):
    """Return Pareto k of the far tail of a scale of a SciPy distribution, and the warning from its draws alone."""
    rng = np.random.default_rng(seed)
    scale = distribution.rvs(size=DRAWS, random_state=rng)
    x = np.column_stack([np.log(scale), rng.standard_normal(DRAWS)])
    target = Scale(distribution.logpdf)
    values = target.constrain(x)
    return [far_tail(target, x, name, 0, value[:, 0]) for name, value in values.items()], unreliable_means(values)


class Concentration:
    """The posterior of the concentration of beta binomial counts with a known mean, under a half Cauchy prior.

    For large ones the counts are binomial, so the posterior falls as the prior does. About 0.3 % of its mass are there.
    """

    trials, counts = np.array([16, 18, 17, 13, 28, 14, 21, 14]), np.array([3, 5, 9, 1, 9, 9, 2, 5])
    a, b = 0.25, 0.75

    def logpdf(self, k):
        """Return the log density, up to a constant."""
        by_group = betaln(self.a * k[:, None] + self.counts, self.b * k[:, None] + self.trials - self.counts)
        return (by_group - betaln(self.a * k, self.b * k)[:, None]).sum(axis=1) + stats.halfcauchy.logpdf(k, scale=5)

    def rvs(self, size, random_state):
        """Draw by a grid of logarithms."""
        u = np.linspace(-6, 22, 8000)
        value = self.logpdf(np.exp(u)) + u
        share = np.exp(value - value.max()).cumsum()
        return np.exp(np.interp(random_state.random(size), share / share[-1], u))


def test_a_tail_with_few_draws_is_found_in_the_density():
    alone = 0
    for seed in range(20):
        found, said = _found(Concentration(), seed)
        assert abs(found[0] - 1.0) < 0.05  # by the distance, over half of eight factors of ten
        assert found[1:] == [0.0, 0.0]
        alone += "scale" in said
    assert alone < 10


@pytest.mark.parametrize(
    ("distribution", "k"),
    [
        (stats.halfcauchy, 1.0),
        (stats.invgamma(0.5), 2.0),
        (stats.invgamma(1.6), 0.0),  # k = 0.625
        (stats.lognorm(1.0), 0.0),
        (stats.gamma(2.0), 0.0),
        (stats.uniform(), 0.0),
    ],
)
def test_only_tails_without_a_reliable_mean_are_found(distribution, k):
    for seed in range(5):
        found, _ = _found(distribution, seed)
        assert abs(found[0] - k) < 0.05
        assert found[2] == 0.0


@pytest.mark.parametrize(("df", "k"), [(1, 1.0), (3, 0.0)])
def test_tails_of_a_variable_without_a_transform(df, k):
    x = np.random.default_rng(df).standard_t(df, size=(DRAWS, 1))
    target = pb.FunctionTarget(1, lambda x: (stats.t.logpdf(x[:, 0], df), -(df + 1) * x / (df + x**2)))
    assert abs(far_tail(target, x, "x", 0, x[:, 0]) - k) < 0.05


def test_a_tail_in_which_no_draw_is_expected_is_not_reported():
    share = 1e-5

    def logpdf(x):
        near = np.log1p(-share) + stats.halfnorm.logpdf(x)
        return np.logaddexp(near, np.log(share) + stats.halfcauchy.logpdf(x, scale=60.0))

    x = np.random.default_rng(1).standard_normal((DRAWS, 2))
    x[:, 0] = np.log(np.abs(x[:, 0]))
    assert far_tail(Scale(logpdf), x, "scale", 0, np.exp(x[:, 0])) == 0.0


@pytest.mark.parametrize("seed", [1, 2])
def test_smc_warns_of_a_concentration_without_a_mean(seed):
    target = Scale(Concentration().logpdf)
    with pytest.warns(SamplerWarning, match=r"a tail of `scale\[0\]` has Pareto k") as caught:
        idata = pb.sample_smc(target, initial="laplace", draws=1000, random_seed=seed, progressbar=False)
    assert len(caught) == 1
    assert idata["posterior"].attrs["log_evidence_trusted"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("fit", [pb.fit_vi, pb.fit_ep, pb.fit_inla])
def test_draws_of_fits_warn_of_a_concentration_without_a_mean(fit):
    known = Concentration()
    with pm.Model() as model:
        k = pm.HalfCauchy("k", 5.0)
        pm.BetaBinomial("y", n=known.trials, alpha=known.a * k, beta=known.b * k, observed=known.counts)
    with warnings.catch_warnings():  # VI is not trusted
        warnings.simplefilter("ignore", ApproximationWarning)
        found = fit(model)
    with pytest.warns(SamplerWarning, match="a tail of `k` has Pareto k 1.0"):
        found.to_inference_data(draws=2000, random_seed=1)


def test_draws_of_a_laplace_fit_warn_of_a_half_cauchy_scale():
    with pytest.warns(ApproximationWarning, match="the Gaussian there is not the posterior"):
        fit = pb.fit_laplace(Scale(stats.halfcauchy.logpdf))
    # One over a half Cauchy variable is half Cauchy
    with pytest.warns(SamplerWarning, match=r"a tail of `inverse\[0\]`, `scale\[0\]` has Pareto k 1.0"):
        fit.to_inference_data(draws=4000, random_seed=1)


def test_no_warning_of_a_normal_posterior():
    target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(axis=1), -x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pb.sample_smc(target, initial="laplace", draws=500, random_seed=1, progressbar=False)

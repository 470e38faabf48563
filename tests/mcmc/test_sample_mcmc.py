"""Warnings of ``sample_mcmc`` about chains that differ."""

import numpy as np
import pytest

from ppl_backends import FunctionTarget, GaussianApproximation, sample_mcmc, steps
from ppl_backends.approximations.without_draws import mode_without_chains
from ppl_backends.errors import SamplerWarning
from ppl_backends.kernels.streams import Generators
from ppl_backends.mcmc.sample import _run, why_not_converged
from ppl_backends.results.inference_data import group
from tests.toys import bimodal


def test_chains_in_different_modes_are_not_called_exact():
    def density(x):
        value = np.logaddexp(-0.5 * (x[:, 0] - 20) ** 2, -0.5 * (x[:, 0] + 20) ** 2)
        return value, 20 * np.tanh(20 * x) - x

    target, starts = FunctionTarget(1, density), np.array([[-20.0], [20.0]])
    with pytest.warns(SamplerWarning, match=r"R-hat is \d.* for `x\[0\]`, above 1.05: increase tune and draws"):
        idata = sample_mcmc(target, draws=200, tune=100, chains=2, initvals=starts, random_seed=1, progressbar=False)
    attrs = group(idata, "posterior").attrs
    assert attrs["accuracy"] == "approximate"
    assert "R-hat" in attrs["warnings"]


def test_chains_get_around_that_start_from_a_far_too_narrow_approximation():
    """A trajectory is as long as 1.6 standard deviations of the metric, as of one by VI at a bound of the support."""
    target = FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(axis=1), -x))
    step = steps.HMC(approximation=GaussianApproximation(np.zeros(2), 1e-8 * np.eye(2)))
    idata = sample_mcmc(target, step=step, random_seed=1, progressbar=False)
    assert group(idata, "posterior").attrs["warnings"] == ""
    sd = group(idata, "posterior")["x"].std(("chain", "draw")).values
    assert sd == pytest.approx(1.0, abs=0.08)  # five standard errors of 2,000 independent draws


def test_a_mode_that_all_chains_miss_is_not_left_out_in_silence():
    """All chains start at one mode, so R-hat shows nothing."""
    with pytest.warns(
        SamplerWarning, match=r"a mode with about (2[5-9]|3[0-5]) % of the posterior, at .* holds no draw"
    ):
        idata = sample_mcmc(bimodal(2).target, draws=200, tune=200, chains=2, random_seed=1, progressbar=False)
    attrs = group(idata, "posterior").attrs
    assert attrs["accuracy"] == "approximate"
    assert "a mode with about" in attrs["warnings"]


def test_chains_in_both_modes_miss_none():
    """A short distance between the modes, which the chains cross."""
    target = bimodal(2, separation=1.2).target
    assert mode_without_chains(target, _draws_of(target), np.random.default_rng(1)) is None


def _draws_of(target):
    """Draw from a target by weighted points of its prior."""
    rng = np.random.default_rng(2)
    x = target.sample_prior(100_000, rng)
    weights = np.exp(target.evaluate(x).log_likelihood)
    return x[rng.choice(len(x), 4000, p=weights / weights.sum())]


def test_chains_that_never_move_are_named():
    assert "no chain ever moved in `b`" in why_not_converged(np.zeros((2, 50, 2)), ["b", "c"])
    assert "no chain ever moved in `b`" in why_not_converged(np.zeros((1, 50, 2)), ["b", "c"])


@pytest.mark.parametrize("seed", range(5))
def test_independent_chains_are_not_held_to_differ(seed):
    assert why_not_converged(np.random.default_rng(seed).standard_normal((4, 500, 10)), list("abcdefghij")) == ""


def test_few_effective_draws_are_not_called_exact():
    """Successive draws of a random walk in two dimensions are correlated, so 200 are worth few independent ones."""
    target = FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(axis=1), -x))
    settings = dict(step=steps.RandomWalk(), tune=500, chains=1, random_seed=5, progressbar=False)
    with pytest.warns(
        SamplerWarning, match=r"worth \d+ independent ones in its mean or standard deviation, fewer than 100"
    ):
        few = sample_mcmc(target, draws=200, **settings)
    attrs = group(few, "posterior").attrs
    assert attrs["accuracy"] == "approximate"
    assert "independent ones" in attrs["warnings"]
    enough = sample_mcmc(target, draws=5000, **settings)
    assert group(enough, "posterior").attrs["accuracy"] == "exact"


@pytest.mark.parametrize("chains", [1, 4])
def test_slow_chains_are_named_by_their_slowest_coordinate(chains):
    """AR(1) with coefficient 0.99: a mean of 2,000 draws has the variance of one of 2,000 / 199 = 10 independent draws."""
    rng = np.random.default_rng(chains)
    x = rng.standard_normal((chains, 2000, 3))
    for t in range(1, 2000):
        x[:, t, 1] = 0.99 * x[:, t - 1, 1] + np.sqrt(1 - 0.99**2) * x[:, t, 1]
    said = why_not_converged(x, ["a", "b", "c"])
    assert "`b`" in said
    assert "R-hat" in said or "independent ones" in said


@pytest.mark.filterwarnings("ignore:.*(R-hat|independent ones)")  # a short run
@pytest.mark.parametrize("step", [steps.RandomWalk, steps.MALA, steps.Barker, steps.HMC, steps.Independent])
def test_chains_of_a_batch_are_the_chains_that_each_would_be_alone(step):
    """Each draws from its own generator and adapts its own step; evaluations go by rows here."""
    target = FunctionTarget(2, lambda x: (-0.5 * (x**4).sum(1), -2 * x**3))
    bound = step(approximation=GaussianApproximation(np.zeros(2), np.eye(2))).bind(target)
    starts = np.random.default_rng(1).standard_normal((3, 2))
    together = _run(bound, starts, 20, 20, Generators([np.random.default_rng(k) for k in range(3)]), None, None)
    for k in range(3):
        alone = _run(bound, starts[k : k + 1], 20, 20, np.random.default_rng(k), None, None)
        np.testing.assert_allclose(together.x[k], alone.x[0], rtol=1e-6)

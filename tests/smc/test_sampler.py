"""Single runs against known answers: evidence, means and sds, error bars, tempered and incomplete runs."""

import numpy as np
import pytest
from scipy import stats

from ppl_backends.approximations import GaussianApproximation
from ppl_backends.errors import ModelError
from ppl_backends.kernels.table import make_kernel
from ppl_backends.numerics.population import Population
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.smc.coordinates import coordinates_of_chains
from ppl_backends.smc.core import Resampled
from ppl_backends.smc.evidence import combine_evidence
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.path import BridgePath, PriorPath
from ppl_backends.smc.results import lineage_ess
from ppl_backends.smc.sampler import run_tempering
from ppl_backends.targets import FunctionTarget
from ppl_backends.targets.power import with_power
from tests.toys import bimodal, conjugate_gaussian, gamma_poisson

KNOWN = {"gaussian": conjugate_gaussian(), "skewed": gamma_poisson(), "bimodal": bimodal()}


def rough_start(known):
    """Return a start that is off in place and scale."""
    return GaussianApproximation(known.mean + 0.5 * known.sd, np.diag((1.5 * known.sd) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "start", "len_chain"),
    [
        ("gaussian", "prior", None),
        ("skewed", "gaussian", None),
        ("skewed", "prior", 10),
        ("bimodal", "prior", 10),
    ],
)
def test_single_run_intervals_cover_over_100_seeds(name, start, len_chain):
    """Nominal 95 % intervals hold at least 88.5 %, which is three standard errors below; mean(se)/sd is at most 1.5."""
    known = KNOWN[name]
    path = PriorPath(known.target) if start == "prior" else BridgePath(known.target, rough_start(known))
    n = 400 if len_chain is None else 1000
    moves = MoveSettings(1, 20)
    estimates = []
    for seed in range(100):
        rng = np.random.default_rng([11, seed])
        run = run_tempering(path, make_kernel("hmc"), n, rng, len_chain=len_chain, moves=moves)
        figures = (run.log_evidence, run.lineage.variance, run.lineage.df)
        estimates.append(combine_evidence(*(np.array([figure]) for figure in figures)))
    error = np.array([estimate.log_evidence for estimate in estimates]) - known.log_evidence
    size = np.array([estimate.standard_error for estimate in estimates])
    half = size * stats.t.ppf(0.975, [estimate.df for estimate in estimates])
    assert np.mean(np.abs(error) < half) >= 0.885
    assert 0.8 < size.mean() / error.std(ddof=1) < 1.5
    assert np.mean(np.exp(error)) == pytest.approx(1.0, abs=4.5 * error.std() / 10)


def test_a_perfect_start_is_importance_sampling_with_weights_one():
    known = KNOWN["gaussian"]
    hessian = known.target.hessian(known.mean[None])[0]
    exact = GaussianApproximation(known.mean, np.linalg.inv(-hessian))
    run = run_tempering(BridgePath(known.target, exact), make_kernel("mala"), 500, np.random.default_rng(0))
    assert len(run.stages) == 1
    assert run.stages[0].moves is None
    assert run.log_evidence == pytest.approx(known.log_evidence, abs=1e-6)
    assert run.stages[0].ess == pytest.approx(500, rel=1e-6)
    points, log_weights = run.weighted
    assert points.shape == (500, 5)
    np.testing.assert_allclose(log_weights, known.log_evidence, atol=1e-6)


def test_the_ladder_is_the_evidence_of_every_tempered_posterior():
    """The running log evidence at β equals the closed form for the Gamma–Poisson model raised to β."""
    from scipy.special import gammaln

    counts, a, b = np.array([3, 0, 1, 2]), 1.5, 0.5
    known = gamma_poisson(counts)
    for seed in range(5):
        run = run_tempering(PriorPath(known.target), make_kernel("mala"), 4000, np.random.default_rng(seed))
        for stage in run.stages:
            lam = stage.beta
            shape, rate = a + lam * counts.sum(), b + lam * len(counts)
            exact = a * np.log(b) - gammaln(a) + gammaln(shape) - shape * np.log(rate)
            exact -= lam * gammaln(counts + 1).sum()
            assert abs(stage.log_evidence - exact) < 5 * run.lineage.variance**0.5


def test_power_tempers_the_likelihood_only():
    known = gamma_poisson()
    half = with_power(known.target, 0.5)
    x = np.array([[0.3], [-1.0]])
    full, tempered = known.target.evaluate(x, True), half.evaluate(x, True)
    np.testing.assert_allclose(tempered.log_prior, full.log_prior)
    np.testing.assert_allclose(tempered.log_likelihood, 0.5 * full.log_likelihood)
    np.testing.assert_allclose(tempered.gradient, full.log_prior_gradient + 0.5 * full.log_likelihood_gradient)
    hessian = half.hessian(x, "joint") - half.hessian(x, "likelihood")
    np.testing.assert_allclose(hessian, known.target.hessian(x) - known.target.hessian(x, "likelihood"))
    assert half.dim == 1
    assert half.names == known.target.names


@pytest.mark.parametrize("power", [-1.0, np.nan, np.inf])
def test_power_out_of_range_is_refused(power):
    with pytest.raises(ModelError, match="power="):
        with_power(gamma_poisson().target, power)


def test_points_outside_the_support_never_survive():
    def log_likelihood(x):
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(x[:, 0] > 1.0, -2 * x[:, 0], np.nan), np.full_like(x, -2.0)

    target = FunctionTarget(
        1,
        log_likelihood,
        lambda x: (-0.5 * x[:, 0] ** 2, -x),
        lambda n, rng: rng.standard_normal((n, 1)),
    )
    run = run_tempering(PriorPath(target), make_kernel("random_walk"), 2000, np.random.default_rng(0))
    assert run.x.min() > 1.0
    from scipy.stats import norm

    exact = 2.0 + norm.logsf(3.0)  # E[exp(−2x); x > 1] under N(0, 1)
    assert abs(run.log_evidence - exact) < 5 * run.lineage.variance**0.5


def test_no_point_inside_the_support_is_an_error_that_says_so():
    target = FunctionTarget(
        1,
        lambda x: (np.full(len(x), np.nan), x),
        lambda x: (-(x[:, 0] ** 2), -x),
        lambda n, rng: rng.normal(size=(n, 1)),
    )
    with pytest.raises(ModelError, match="-inf or NaN at all 600 starting points"):
        run_tempering(PriorPath(target), make_kernel("mala"), 100, np.random.default_rng(0))


def test_max_time_leaves_an_incomplete_run():
    run = run_tempering(
        PriorPath(KNOWN["gaussian"].target), make_kernel("mala"), 100, np.random.default_rng(0), max_time=0.0
    )
    assert not run.complete
    assert len(run.stages) == 1
    assert 0 < run.stages[0].beta < 1


def test_lineage_ess_of_clones_is_the_number_of_lineages():
    rng = np.random.default_rng(0)
    ancestors = rng.standard_normal((50, 2))
    ancestor = np.repeat(np.arange(50), 20)
    np.testing.assert_allclose(lineage_ess(ancestors[ancestor], ancestor), 50, rtol=1e-9)
    independent = lineage_ess(rng.standard_normal((1000, 2)), np.arange(1000))
    np.testing.assert_allclose(independent, 1000, rtol=1e-9)


def test_no_chain_is_in_the_metric_that_moves_its_descendants():
    """Every chain is at its own number, so that centres tell which chains a metric has seen; 31 have no middle."""
    chains, length, rng = 31, 10, np.random.default_rng(4)
    x = np.repeat(np.arange(chains), length)[:, None] + 1e-3 * rng.standard_normal((chains * length, 2))
    weights = np.full(len(x), 1.0 / len(x))
    parents = systematic_resampling(weights, 2 * chains + 1, rng)
    drawn = Resampled(Population(x), weights, parents, Population(x[parents]), None)
    metric = coordinates_of_chains(drawn, length, PriorPath(KNOWN["gaussian"].target), rng).metric
    before = parents[: metric.n_first] // length
    after = parents[metric.n_first :] // length
    assert before.max() < after.min() == 15
    np.testing.assert_allclose(metric.second.place(np.zeros((1, 2))), 7.0, atol=0.01)  # the mean of 0 to 14
    np.testing.assert_allclose(metric.first.place(np.zeros((1, 2))), 22.5, atol=0.01)

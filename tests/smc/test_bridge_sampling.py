"""The evidence from the last particles alone: known answers, error bars, and when it is reported."""

import warnings

import numpy as np
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.kernels.table import make_kernel
from ppl_backends.numerics.bridge import bridge
from ppl_backends.results.inference_data import group
from ppl_backends.smc.bridge_sampling import Sample, bridge_evidence
from ppl_backends.smc.health import draws_are_healthy, figures_of
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.sampler import run_tempering
from tests.toys import bimodal, conjugate_gaussian, funnel, gamma_poisson, wide_regression


def test_errors_of_a_bridge_between_independent_points_are_honest():
    """The bridge goes from Gamma to Gaussian: skewed, with a heavier tail on one side."""
    errors, sizes, rng = [], [], np.random.default_rng(0)
    normal = stats.norm(np.log(2.0), 0.8)
    for _ in range(400):
        x, y = np.log(rng.gamma(2.0, size=500)), normal.rvs(500, random_state=rng)
        found = bridge(*(1.5 + 2.0 * z - np.exp(z) - normal.logpdf(z) for z in (x, y)), np.arange(500))
        errors.append(found.log_evidence - 1.5)
        sizes.append(found.variance**0.5)
    assert abs(np.mean(errors)) < 4.5 * np.std(errors) / 20
    assert np.mean(np.abs(errors) < 1.96 * np.array(sizes)) > 0.91
    # The points' part of the variance is counted twice.
    assert 1.0 < np.mean(sizes) / np.std(errors) < 1.5


def test_clones_count_once():
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 2000)) * 0.8
    ratio, proposed = -0.3 * x**2, -0.3 * (1.25 * y) ** 2
    once = bridge(ratio[:200], proposed, np.arange(200))
    cloned = bridge(np.repeat(ratio[:200], 10), proposed, np.repeat(np.arange(200), 10))
    assert cloned.log_evidence == pytest.approx(once.log_evidence, abs=1e-6)
    assert cloned.variance == pytest.approx(once.variance, rel=1e-3)


def exact_draws(dim, n, rng):
    """Return exact draws of the posterior of ``conjugate_gaussian(dim)``, with its density."""
    known = conjugate_gaussian(dim)
    hessian = known.target.hessian(known.mean[None])[0]
    x = rng.multivariate_normal(known.mean, np.linalg.inv(-hessian), size=n)
    return known, Sample(x, known.target.log_density(x), np.arange(n))


@pytest.mark.parametrize(("dim", "chains"), [(2, 1), (10, 1), (10, 4), (50, 4)])
def test_the_evidence_of_a_gaussian(dim, chains):
    rng = np.random.default_rng(2)
    samples = []
    for _ in range(chains):
        known, sample = exact_draws(dim, 1000, rng)
        samples.append(sample)
    found = bridge_evidence(samples, known.target.log_density, rng)
    assert abs(found.log_evidence - known.log_evidence) < 5 * found.standard_error
    assert found.standard_error < 0.03
    assert not found.runs_disagree


@pytest.mark.parametrize(("name", "n"), [("gaussian", 1000), ("funnel", 500)])
def test_the_evidence_in_250_coordinates_from_few_points(name, n):
    """The points are too few for a covariance; the Gaussian has twelve narrow directions across all coordinates."""
    rng, samples = np.random.default_rng(12), []
    known = conjugate_gaussian(250)
    density, truth = (known.target.log_density, known.log_evidence) if name == "gaussian" else (wide_funnel, 0.0)
    for _ in range(4):
        v = 3.0 * rng.standard_normal((n, 1))
        x = np.hstack([v, np.exp(v / 2) * rng.standard_normal((n, 249))])
        samples.append(exact_draws(250, n, rng)[1] if name == "gaussian" else Sample(x, density(x), np.arange(n)))
    found = bridge_evidence(samples, density, rng)
    assert abs(found.log_evidence - truth) < 4 * found.standard_error
    assert found.standard_error < 0.1


def wide_funnel(x):
    """Return the log density of Neal's funnel, whose integral is one."""
    v, rest = x[:, 0], x[:, 1:]
    return stats.norm.logpdf(v, 0, 3) + stats.norm.logpdf(rest, 0, np.exp(v / 2)[:, None]).sum(axis=1)


def test_separated_modes_need_points_for_a_covariance_each():
    rng, samples = np.random.default_rng(13), []
    for _ in range(4):
        x = rng.standard_normal((100, 60))
        x[:, 0] += rng.choice([-8.0, 8.0], 100)
        samples.append(Sample(x, np.zeros(100), np.arange(100)))
    assert bridge_evidence(samples, lambda x: np.zeros(len(x)), rng) is None


def test_more_draws_of_the_fitted_density_reduce_the_error():
    rng = np.random.default_rng(6)

    def box(x):  # uniform on the square, of which a Gaussian covers little more than half of its own mass
        return np.where((np.abs(x) < 1).all(axis=1), 0.0, -np.inf)

    samples = [Sample(rng.uniform(-1, 1, (1000, 2)), np.zeros(1000), np.arange(1000)) for _ in range(4)]
    few, many = (bridge_evidence(samples, box, np.random.default_rng(7), batches) for batches in (1, 16))
    for found in (few, many):
        assert abs(found.log_evidence - np.log(4)) < 4 * found.standard_error
    assert many.standard_error < 0.5 * few.standard_error


def test_two_modes_take_two_gaussians():
    known = bimodal(separation=6.0)
    runs = [
        run_tempering(PriorPath(known.target), make_kernel("hmc"), 1000, np.random.default_rng(s)) for s in range(3)
    ]
    samples = [Sample(run.x, run.log_density, run.lineage.ancestor) for run in runs]
    found = bridge_evidence(samples, known.target.log_density, np.random.default_rng(3))
    assert found.log_evidence == pytest.approx(known.log_evidence, abs=0.05)
    assert found.standard_error < 0.02


def test_points_without_overlap_or_that_do_not_vary_are_left_alone():
    rng = np.random.default_rng(4)
    known, sample = exact_draws(50, 200, rng)
    assert bridge_evidence([sample], known.target.log_density, rng) is None
    stuck = Sample(np.zeros((200, 2)), np.zeros(200), np.arange(200))
    assert bridge_evidence([stuck, stuck], lambda x: np.zeros(len(x)), rng) is None


@pytest.mark.slow
@pytest.mark.parametrize("known", [gamma_poisson(), conjugate_gaussian(3)], ids=["skewed", "gaussian"])
def test_intervals_cover_over_60_seeds(known):
    """Nominal 95 % hold at least 86.5 %, three standard errors below; the mean standard error is at most 1.6 of the sd."""
    errors, inside, sizes = [], [], []
    for seed in range(60):
        runs = [
            run_tempering(
                PriorPath(known.target), make_kernel("hmc"), 500, np.random.default_rng([9, seed, k]), len_chain=5
            )
            for k in range(4)
        ]
        samples = [Sample(run.x, run.log_density, run.lineage.ancestor) for run in runs]
        found = bridge_evidence(samples, known.target.log_density, np.random.default_rng(seed))
        errors.append(found.log_evidence - known.log_evidence)
        sizes.append(found.standard_error)
        inside.append(abs(errors[-1]) < found.standard_error * stats.t.ppf(0.975, found.df))
    assert np.mean(inside) >= 0.865
    assert np.mean(sizes) / np.std(errors) < 1.6


def sampled(target, **options):
    """Return attributes of the result, and the warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", SamplerWarning)
        idata = pb.sample_smc(target, random_seed=1, progressbar=False, **options)
    return group(idata, "posterior").attrs, " ".join(str(one.message) for one in said)


@pytest.mark.usefixtures("no_change_of_variables")
def test_an_evidence_lost_on_the_way_is_replaced_and_said_to_be():
    target, truth = wide_regression(prior_sd=30.0)
    attrs, said = sampled(target, draws=1000, chains=3, ess_threshold=0.5)
    assert attrs["log_evidence_tempering"] < truth - 0.3
    assert attrs["log_evidence_method"] == "bridge sampling"
    assert "reported is by bridge sampling" in said
    assert attrs["log_evidence"] == attrs["log_evidence_bridge"]
    assert attrs["log_evidence_se"] < 0.03
    assert abs(attrs["log_evidence"] - truth) < 5 * attrs["log_evidence_se"]
    assert attrs["log_evidence_trusted"] == 1


@pytest.mark.usefixtures("no_change_of_variables")
def test_an_unbiased_evidence_is_never_replaced():
    target, _ = wide_regression()
    attrs, said = sampled(target, draws=500, chains=2, unbiased=True)
    assert attrs["log_evidence_method"] == "tempering"
    assert attrs["log_evidence_trusted"] == 0
    assert "do not trust" in said


def test_a_healthy_run_has_both_and_reports_the_more_precise():
    known = conjugate_gaussian(3)
    attrs, said = sampled(known.target, draws=1000, chains=2)
    assert said == ""
    assert attrs["log_evidence_bridge_se"] < attrs["log_evidence_tempering_se"]
    assert attrs["log_evidence"] == attrs["log_evidence_bridge"]
    assert attrs["log_evidence_method"] == "bridge sampling"
    assert abs(attrs["log_evidence_tempering"] - known.log_evidence) < 5 * attrs["log_evidence_tempering_se"]
    assert abs(attrs["log_evidence_bridge"] - known.log_evidence) < 5 * attrs["log_evidence_bridge_se"]


@pytest.mark.usefixtures("no_change_of_variables")
def test_particles_that_did_not_mix_at_the_end_replace_nothing():
    """In a funnel the last particles are no better than those on the way, and bridges between them are off as well.

    That is so where no change of variables is found.
    """
    start = pb.GaussianApproximation(np.zeros(6), np.diag(np.r_[9.0, np.full(5, 4.0)]))
    attrs, said = sampled(funnel(5), initial=start, draws=400, chains=2, max_moves=30)
    assert attrs["log_evidence_method"] == "tempering"
    assert attrs["log_evidence_trusted"] == 0
    assert "do not trust" in said


def test_one_importance_step_has_no_bridge():
    known = conjugate_gaussian(3)
    attrs, _ = sampled(known.target, initial="laplace", draws=500, chains=2)
    assert "log_evidence_bridge" not in attrs


def test_a_short_chain_of_moves_is_not_replaced():
    known = conjugate_gaussian(20)
    runs = [
        run_tempering(
            PriorPath(known.target), make_kernel("random_walk"), 500, np.random.default_rng(s), moves=MoveSettings(1, 3)
        )
        for s in range(2)
    ]
    assert not draws_are_healthy(figures_of(runs))

"""Second runs of funnels, from a density fitted to the last particles in their non-centred coordinates."""

import numpy as np
import pytest
from scipy.stats import multivariate_t, norm, t

import ppl_backends as pb
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.importance.noncentred import NonCentred
from ppl_backends.kernels.noncentring import find_noncentring
from ppl_backends.kernels.table import make_kernel
from ppl_backends.results.inference_data import group
from ppl_backends.smc import outcome
from ppl_backends.smc.evidence import EvidenceEstimate
from ppl_backends.smc.health import Verdict
from ppl_backends.smc.path import BridgePath
from ppl_backends.smc.sampler import run_tempering
from ppl_backends.smc.straightened import (
    has_an_unused_bridge,
    is_straightened,
    is_strained,
    lacks_a_bridge,
    straightened_path,
)
from ppl_backends.targets import FunctionTarget

# Mass of the first coordinate above 0.5, of 0.4 t₃(−2, 1) + 0.6 t₃(2, 1/2)
SHARE_ABOVE = 0.4 * t(3, -2.0, 1.0).sf(0.5) + 0.6 * t(3, 2.0, 0.5).sf(0.5)


def funnel(dim, sd=3.0):
    """Return Neal's funnel, v ~ N(0, sd²) and x ~ N(0, exp(v)), whose log evidence is zero."""

    def density(points):
        v, x = points[:, 0], points[:, 1:]
        with np.errstate(over="ignore"):
            precision = np.exp(-v)
            shrunk = (x**2).sum(axis=1) * precision
            slope = np.column_stack([-v / sd**2 + 0.5 * shrunk - 0.5 * (dim - 1), -x * precision[:, None]])
        constant = np.log(sd) + 0.5 * dim * np.log(2 * np.pi)
        return -(v**2) / (2 * sd**2) - 0.5 * shrunk - 0.5 * (dim - 1) * v - constant, slope

    return FunctionTarget(dim, density)


def gaussian(dim):
    return FunctionTarget(dim, lambda x: (-0.5 * (x**2).sum(axis=1), -x))


def runs_from_a_mode(target, sd):
    """Return a path from a Gaussian that is narrow in the first coordinate, and two runs along it."""
    start = GaussianApproximation(np.zeros(target.dim), np.diag(np.r_[sd, np.ones(target.dim - 1)] ** 2))
    path, kernel = BridgePath(target, start), make_kernel("hmc")
    return path, [run_tempering(path, kernel, 1000, np.random.default_rng(k), len_chain=10) for k in range(2)]


@pytest.mark.parametrize("turned", [False, True])
def test_the_gradient_of_a_non_centred_density_is_that_of_its_values(turned):
    rng = np.random.default_rng(1)
    v = 1.5 * rng.standard_normal(2000)
    x = np.column_stack([v, np.exp(v / 2)[:, None] * rng.standard_normal((2000, 4))])
    slope = funnel(5, 1.5).log_density_and_gradient(x)[1]
    if turned:
        turn = np.linalg.qr(rng.standard_normal((5, 5)))[0]
        x, slope = x @ turn.T, slope @ turn.T
    change = find_noncentring(x, slope)
    assert (change.axes is not None) == turned
    z = change.to_z(x)
    q = NonCentred(MixtureApproximation([1.0], [z.mean(axis=0)], [np.cov(z.T)]), change)
    points = q.sample(5, rng)
    value, gradient = q.log_density_and_gradient(points)
    np.testing.assert_allclose(value, q.log_density(points))
    steps = 1e-6 * np.eye(5)
    differences = [(q.log_density(points + step) - q.log_density(points - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(gradient, np.column_stack(differences), rtol=1e-4, atol=1e-5)


def test_a_path_from_the_last_particles_of_a_funnel_starts_near_it():
    target = funnel(8)
    path, runs = runs_from_a_mode(target, 0.15)
    near = straightened_path(path, runs)
    assert is_straightened(near)
    drawn = near.start(4000, np.random.default_rng(3)).population
    weights = np.exp(drawn.increment)
    error = weights.std() / len(weights) ** 0.5
    assert error < 0.05
    assert abs(weights.mean() - 1.0) < 4 * error
    assert straightened_path(near, runs) is None


def test_a_density_without_a_funnel_has_no_such_path():
    path, runs = runs_from_a_mode(gaussian(4), 0.15)
    assert straightened_path(path, runs) is None


def test_a_second_run_is_made_where_tempering_has_no_precise_bridge():
    estimate = EvidenceEstimate(0.0, 0.1, 3.0, False, 0.1)
    tempering = Verdict(estimate, "tempering", [])
    assert lacks_a_bridge(tempering, {})
    assert lacks_a_bridge(tempering, {"log_evidence_bridge_se": 0.2})
    assert not lacks_a_bridge(tempering, {"log_evidence_bridge_se": 0.05})
    assert not lacks_a_bridge(tempering._replace(interrupted=True), {})
    assert not lacks_a_bridge(Verdict(estimate, "bridge sampling", []), {})


def test_a_second_run_is_made_where_a_more_precise_bridge_may_not_replace_tempering():
    tempering = Verdict(EvidenceEstimate(0.0, 0.1, 3.0, False, 0.1), "tempering", ["moves did not mix"])
    assert has_an_unused_bridge(tempering, {"log_evidence_bridge_se": 0.004})
    assert not has_an_unused_bridge(tempering, {"log_evidence_bridge_se": 0.2})
    assert not has_an_unused_bridge(tempering, {})
    assert not has_an_unused_bridge(tempering._replace(interrupted=True), {"log_evidence_bridge_se": 0.004})
    assert not has_an_unused_bridge(tempering._replace(method="bridge sampling"), {"log_evidence_bridge_se": 0.004})


def test_a_finer_ladder_is_used_where_the_error_of_tempering_is_mostly_its_difference_from_a_bridge():
    own = EvidenceEstimate(-0.2, 0.056, 43.0, False, 0.1)
    tempering = Verdict(own._replace(standard_error=0.156), "tempering", [])
    assert is_strained(tempering, own)
    assert not is_strained(tempering, own._replace(standard_error=0.15))
    assert not is_strained(tempering._replace(evidence=own._replace(standard_error=0.09)), own)
    assert not is_strained(tempering._replace(method="bridge sampling"), own)


def two_student_modes():
    """Return 0.4 t₃(−2, I) + 0.6 t₃(2, I/4) in five coordinates as the posterior of a wide Gaussian prior."""
    locations, scales, shares = np.array([-2.0, 2.0]), np.array([1.0, 0.5]), np.array([0.4, 0.6])
    student = multivariate_t(np.zeros(5), np.eye(5), df=3)
    prior_mean, prior_sd = np.full(5, 1.0), 5.0**0.5

    def posterior(x):
        z = (x[:, None] - locations[:, None]) / scales[:, None]
        logs = np.log(shares / scales**5) + student.logpdf(z)
        belongs = np.exp(logs - logs.max(axis=1, keepdims=True))
        belongs /= belongs.sum(axis=1, keepdims=True)
        slopes = -8.0 * z / (3.0 + (z**2).sum(axis=2, keepdims=True)) / scales[:, None]
        return np.logaddexp.reduce(logs, axis=1), (belongs[:, :, None] * slopes).sum(axis=1)

    def prior(x):
        z = (x - prior_mean) / prior_sd
        return norm.logpdf(z).sum(axis=1) - 5 * np.log(prior_sd), -z / prior_sd

    def likelihood(x):
        return tuple(one - other for one, other in zip(posterior(x), prior(x), strict=True))

    def draw(n, rng):
        return prior_mean + prior_sd * rng.standard_normal((n, 5))

    return FunctionTarget(5, likelihood, prior, sample_prior=draw)


@pytest.mark.slow
def test_shares_of_modes_that_a_coarse_ladder_gave_are_found_on_a_finer_one():
    """Two of eight runs had errors of 0.12 and 0.16 for log evidences 0.14 and 0.21 too low, and were trusted."""
    wrong = []
    for seed in range(1, 7):
        idata = pb.sample_smc(two_student_modes(), draws=1000, random_seed=seed, progressbar=False)
        attrs, x = group(idata, "posterior").attrs, group(idata, "posterior")["x"].values[..., 0]
        if attrs["log_evidence_trusted"]:
            assert abs(attrs["log_evidence"]) < 4 * attrs["log_evidence_se"]
            assert attrs["log_evidence_se"] < 0.1
            wrong.append(abs((x > 0.5).mean() - SHARE_ABOVE) > 0.06)
    assert len(wrong) >= 4
    assert not any(wrong)


@pytest.mark.filterwarnings("ignore::ppl_backends.errors.PPLBackendsWarning")
@pytest.mark.parametrize("options", [{"max_time": 1e6}, {"unbiased": True}])
def test_a_funnel_without_a_bridge_that_may_not_be_run_again_is_not_trusted(options, monkeypatch):
    monkeypatch.setattr(outcome, "bridge_evidence", lambda *arguments: None)
    idata = pb.sample_smc(funnel(12), draws=500, chains=1, random_seed=3, progressbar=False, **options)
    attrs = group(idata, "posterior").attrs
    assert attrs["log_evidence_trusted"] == 0
    assert "the evidence may be too low, and no precise bridge shows by how much" in attrs["warnings"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ppl_backends.errors.PPLBackendsWarning")
def test_a_funnel_without_a_bridge_is_run_again_and_is_right(monkeypatch):
    """Tempering alone is too low, by 0.08 ± 0.02 in six runs."""
    monkeypatch.setattr(outcome, "bridge_evidence", lambda *arguments: None)
    errors = []
    for seed in (1, 2):
        idata = pb.sample_smc(funnel(20), draws=500, random_seed=seed, progressbar=False)
        attrs = group(idata, "posterior").attrs
        assert attrs["run_again"] == 1
        assert attrs["initial"].startswith("non-centred draws of a run from")
        assert attrs["log_evidence_trusted"] == 1
        errors.append(attrs["log_evidence"])
    assert np.max(np.abs(errors)) < 0.035  # four standard errors

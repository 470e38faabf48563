"""Posteriors with heavier tails than a Gaussian, from Gaussian starts: evidence, its error bar, and quantiles."""

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import cauchy, norm, t

import ppl_backends as pb
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.importance.tails import tails_of_points, with_tails
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.results.inference_data import group
from ppl_backends.smc.checkpoint import _TYPES
from ppl_backends.smc.codec import pack, unpack
from ppl_backends.smc.coordinates import coordinates_of
from ppl_backends.smc.health import distrust, figures_of, is_too_coarse, tail_of_single_steps
from ppl_backends.smc.path import BridgePath, Power, PriorPath
from ppl_backends.smc.routes import choose_kernel
from ppl_backends.smc.sampler import run_tempering
from ppl_backends.targets import FunctionTarget


def independent_t(df, dim):
    """Return t_ν variables: the log evidence is 0."""
    constant = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * np.log(df * np.pi)

    def density(x):
        return (constant - 0.5 * (df + 1) * np.log1p(x**2 / df)).sum(axis=1), -(df + 1) * x / (df + x**2)

    return FunctionTarget(dim, density)


def multivariate_t(df, dim):
    """Return a multivariate t_ν: the log evidence is 0."""
    constant = gammaln((df + dim) / 2) - gammaln(df / 2) - 0.5 * dim * np.log(df * np.pi)

    def density(x):
        square = (x**2).sum(axis=1)
        value = constant - 0.5 * (df + dim) * np.log1p(square / df)
        return value, -(df + dim) * x / (df + square)[:, None]

    return FunctionTarget(dim, density)


def rotated(target):
    """Return the same after a rotation."""
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(target.dim, target.dim)))[0]

    def density(x):
        value, slope = target.log_density_and_gradient(x @ turn)
        return value, slope @ turn.T

    return FunctionTarget(target.dim, density)


TARGETS = {
    "Cauchy": independent_t(1, 1),
    "three Cauchys": independent_t(1, 3),
    "ten Cauchys": independent_t(1, 10),
    "ten Cauchys, rotated": rotated(independent_t(1, 10)),
    "ten t3": independent_t(3, 10),
    "multivariate Cauchy": multivariate_t(1, 10),
}


def test_a_second_path_names_the_tails_of_its_own_start_alone():
    target = TARGETS["ten t3"]
    first = GaussianApproximation(np.zeros(10), np.eye(10), names=target.names, target=target, method="laplace")
    path = BridgePath(target, first, with_tails(target, first))
    assert path.description == "laplace, with Student tails"
    again = first.replaced(method=f"modes of a run from {path.origin}")
    assert BridgePath(target, again, path.tails).description == "modes of a run from laplace, with Student tails"


@pytest.mark.filterwarnings("ignore:a tail of")  # there is no mean
@pytest.mark.parametrize("name", TARGETS)
def test_the_evidence_from_laplace(name):
    z, wrong = [], []
    for seed in range(4):
        idata = pb.sample_smc(
            TARGETS[name], draws=1000, chains=2, initial="laplace", random_seed=seed, progressbar=False
        )
        attrs = group(idata, "posterior").attrs
        assert attrs["initial"] == "laplace, with Student tails"
        z.append(attrs["log_evidence"] / attrs["log_evidence_se"])
        wrong.append(abs(attrs["log_evidence"]))
    assert np.abs(z).max() < 4.5
    assert np.sqrt(np.mean(np.square(z))) < 2.2  # four squares: 1e-4 for a chi-square with four degrees of freedom
    assert max(wrong) < 0.15


@pytest.mark.filterwarnings("ignore:a tail of")  # there is no mean
@pytest.mark.parametrize("name", ["three Cauchys", pytest.param("multivariate Cauchy", marks=pytest.mark.slow)])
def test_quantiles_after_moves(name):
    """A shifted and narrower Gaussian needs moves, and the tails come from new draws of the start that moves propose."""
    dim = TARGETS[name].dim
    start = pb.GaussianApproximation(np.full(dim, 1.0), np.full(dim, 0.3))
    idata = pb.sample_smc(TARGETS[name], initial=start, draws=500, random_seed=2, progressbar=False)
    posterior, stats = group(idata, "posterior"), group(idata, "sample_stats")
    assert np.nanmax(stats["n_moves"].values, axis=1).min() > 0
    x = np.asarray(posterior["x"]).reshape(-1, dim)
    found = np.mean(x > cauchy.isf(0.05), axis=0), np.mean(x < cauchy.ppf(0.05), axis=0)
    # An effective size of 500 is asked for: one standard error is 0.01.
    assert np.abs(np.array(found) - 0.05).max() < 0.045
    assert abs(np.mean(found) - 0.05) < 0.02
    assert np.abs(np.mean(x > 0, axis=0) - 0.5).max() < 0.1


def test_a_bridge_to_tails():
    """Particles of independent t₃ variables: the density fitted has tails, and the error is that of the bridge."""
    from ppl_backends.importance.proposals import StudentMixture
    from ppl_backends.smc.bridge_sampling import Sample, _fitted, bridge_evidence

    target, rng = TARGETS["ten t3"], np.random.default_rng(3)
    samples = []
    for _ in range(4):
        x = t(3).rvs((1000, 10), random_state=rng)
        samples.append(Sample(x, target.log_density(x), np.arange(1000)))
    assert isinstance(_fitted(samples[0].x), StudentMixture)
    found = bridge_evidence(samples, target.log_density, rng)
    assert abs(found.log_evidence) < 4 * found.standard_error
    assert found.standard_error < 0.03


def with_a_wide_part(share):
    """Return N(0, 1), and a share of N(0, 3²): the log evidence is 0."""

    def density(x):
        narrow = norm.logpdf(x[:, 0]) + np.log1p(-share)
        value = np.logaddexp(narrow, norm.logpdf(x[:, 0], scale=3.0) + np.log(share))
        of_narrow = np.exp(narrow - value)[:, None]
        return value, -x * (of_narrow + (1 - of_narrow) / 9.0)

    return FunctionTarget(1, density)


STANDARD = GaussianApproximation(np.zeros(1), cov=np.eye(1), method="given")


def test_a_wide_part_with_little_mass_is_in_the_evidence():
    for seed in range(2):
        idata = pb.sample_smc(with_a_wide_part(0.02), initial=STANDARD, random_seed=seed, progressbar=False)
        attrs = idata.posterior.attrs
        assert attrs["log_evidence_trusted"] == 1
        assert abs(attrs["log_evidence"]) < 4 * attrs["log_evidence_se"]


def test_weights_of_all_runs_of_one_step_are_judged_together():
    target = with_a_wide_part(0.1)
    path, kernel = BridgePath(target, STANDARD), choose_kernel("auto", target, True)
    runs = [run_tempering(path, kernel, 1000, np.random.default_rng(seed)) for seed in range(4)]
    k, share = tail_of_single_steps(runs)
    assert k > 0.7
    figures = figures_of(runs)
    assert figures.evidence.standard_error > share > 0.02
    assert is_too_coarse(figures)
    assert any("only step" in reason for reason in distrust(figures))


def of_prior_alone(dim, precision=0.0):
    """Return Cauchy variables as prior, with an observation 5 of the first, by default of precision 0."""
    prior = independent_t(1, dim)

    def likelihood(x):
        away = np.where(np.arange(dim) == 0, x - 5.0, 0.0)
        return -0.5 * precision * (away**2).sum(axis=1), -precision * away

    return FunctionTarget(
        dim, likelihood, prior.log_density_and_gradient, sample_prior=lambda n, rng: rng.standard_cauchy((n, dim))
    )


def test_moves_from_the_prior_return_from_far_tails():
    """Particles of a heavy tail are proposed draws of a density with such tails, which leave the posterior invariant."""
    target, rng, n = of_prior_alone(3), np.random.default_rng(4), 4000
    path = PriorPath(target).for_moves(True)
    here = path.evaluate(rng.standard_cauchy((n, 3)), 1.0, True)
    coordinates = coordinates_of(here, path)
    assert coordinates.tails is not None
    moved = here
    for _ in range(4):
        moved, useful = coordinates.jump(rng, moved, path.density(Power(1.0, 0.0)))
        assert useful
    far = cauchy.isf(0.01)
    for x in moved.x.T:
        assert abs(np.mean(np.abs(x) > far) - 0.02) < 4 * (0.02 / n) ** 0.5
    before, after = np.abs(here.x) > far, np.abs(moved.x) > far
    assert np.mean(after[before]) < 0.7  # of those that were far out; an HMC trajectory brings back one in a hundred
    stored = unpack(pack(coordinates, _TYPES), _TYPES).tails
    assert np.array_equal(stored.mixture.log_density(here.x), coordinates.tails.mixture.log_density(here.x))
    far_out = coordinates_of(path.evaluate(1000 * rng.standard_cauchy((n, 3)), 1.0, True), path)
    assert not far_out.jump(rng, here, path.density(Power(1.0, 0.0)))[1]
    normal = path.evaluate(rng.standard_normal((n, 3)), 1.0, True)
    assert coordinates_of(normal, path).tails is None
    assert tails_of_points(rng.standard_cauchy((20, 30))) is None  # the points have a singular covariance


def test_an_unbiased_run_proposes_the_draws_that_its_pilot_did():
    """The number of moves was chosen for moves with these draws: without them half of the correlation was left."""
    target, rng = of_prior_alone(4, precision=1.0), np.random.default_rng(1)
    found = run_tempering(PriorPath(target), Hmc(), 500, rng, len_chain=5, unbiased=True)
    assert max(stage.moves.correlation for stage in found.stages) < 0.3

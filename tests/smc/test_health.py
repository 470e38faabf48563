"""The verdict on runs that fail on purpose, and on good runs."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import SamplerWarning
from ppl_backends.kernels.hmc import LEAPFROG, Hmc, Trajectory
from ppl_backends.kernels.mala import Mala
from ppl_backends.kernels.random_walk import RandomWalk
from ppl_backends.results.inference_data import group
from ppl_backends.smc.evidence import EvidenceEstimate
from ppl_backends.smc.health import Verdict, _with_displacement, distrust, figures_of, judge
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.path import BridgePath, PriorPath
from ppl_backends.smc.sampler import run_tempering
from ppl_backends.smc.schedule import Schedule
from ppl_backends.smc.start_verdict import with_start
from tests.toys import bimodal, conjugate_gaussian, funnel

GAUSSIAN = conjugate_gaussian(20)


class StiffHmc(Hmc):
    """Takes steps many times too long, as one that was tuned at another temperature does."""

    def step(self, rng, population, density, parameters):
        return self.trajectory(rng, population, density, Trajectory(np.full((1, 1), 6.0), 2, LEAPFROG), parameters)


class TimidMala(Mala):
    """Takes steps so short that all are accepted."""

    def step(self, rng, population, density, parameters):
        return super().step(rng, population, density, parameters._replace(scale=0.01))


def figures(known, kernel, n=500, chains=3, seed=5, **options):
    path = PriorPath(known.target)
    runs = [run_tempering(path, kernel, n, np.random.default_rng([seed, chain]), **options) for chain in range(chains)]
    return figures_of(runs)


def verdict(known, kernel, **options):
    found = figures(known, kernel, **options)
    reasons, estimate = distrust(found, len_chain=options.get("len_chain")), found.evidence
    return " ".join(reasons), estimate.log_evidence - known.log_evidence, estimate.standard_error


@pytest.mark.parametrize("options", [{}, {"len_chain": 10}])
def test_a_healthy_run_is_trusted_and_right(options):
    reasons, error, size = verdict(GAUSSIAN, Hmc(), n=1500, **options)
    assert reasons == ""
    assert abs(error) < 5 * size


@pytest.mark.parametrize("options", [{}, {"len_chain": 10}])
@pytest.mark.parametrize("kernel", [pytest.param(StiffHmc(), marks=pytest.mark.slow), TimidMala()])
def test_a_mis_tuned_kernel_is_not_trusted(kernel, options):
    """With this seed all chains finish; with others a chain stops at two different points, and is not judged."""
    reasons, _, _ = verdict(GAUSSIAN, kernel, moves=MoveSettings(1, 12), seed=6, **options)
    assert "did not mix" in reasons
    assert "have descendants" in reasons


@pytest.mark.parametrize(("kernel", "shares"), [(Hmc(), (0.0, 0.2)), (TimidMala(), (0.5, 1.0))])
def test_bridges_of_particles_that_correlate_have_the_error_of_their_displacement(kernel, shares):
    """Moves that mix leave none of a distance of two nats from tempering; moves that do not leave most of it."""
    found = figures(GAUSSIAN, kernel, moves=MoveSettings(1, 12))
    near = found.evidence._replace(standard_error=1e-3)
    far = near._replace(log_evidence=near.log_evidence + found.evidence.standard_error + 2.0)
    assert _with_displacement(near, found).standard_error == pytest.approx(1e-3)
    assert shares[0] <= _with_displacement(far, found).standard_error / 2 <= shares[1]


def test_a_bridge_does_not_replace_the_evidence_of_a_start_without_a_mode():
    start = GaussianApproximation(np.zeros(20), np.eye(20), method="laplace", converged=False, trouble="no mode")
    bridge = Verdict(
        EvidenceEstimate(0.0, 0.01, 10.0, False, np.nan), "bridge sampling", ["not mixed"], "bridge reported"
    )
    assert bridge.trusted
    assert not with_start(bridge, BridgePath(GAUSSIAN.target, start), np.random.default_rng(0)).trusted


@pytest.mark.usefixtures("no_change_of_variables")
def test_trajectories_that_diverge_are_a_reason():
    """The neck of a funnel, which nothing else may show: chains agree and mix, and the evidence is low by 0.1.

    That is so where no change of variables is found.
    """
    start = pb.GaussianApproximation(np.zeros(6), np.diag(np.r_[9.0, np.full(5, 4.0)]))
    with pytest.warns(SamplerWarning, match="trajectories diverged"):
        idata = pb.sample_smc(funnel(5), initial=start, draws=2000, chains=3, random_seed=4, progressbar=False)
    attrs, stats = group(idata, "posterior").attrs, group(idata, "sample_stats")
    assert attrs["log_evidence_trusted"] == 0
    assert attrs["log_evidence_method"] == "tempering"
    assert float(stats["divergent"].isel(stage=-1).mean()) > 0.0005
    assert attrs["log_evidence_tempering"] < -0.05


def test_too_few_moves_are_not_trusted_and_path_sampling_sees_it_too():
    reasons, _, _ = verdict(GAUSSIAN, RandomWalk(), moves=MoveSettings(1, 1), schedule=Schedule(fraction=0.5))
    assert "did not mix" in reasons
    assert "path sampling" in reasons


def test_a_lost_mode_is_not_trusted():
    """Few particles under a narrow prior: chains lose one mode or the other, and disagree about the evidence."""
    reasons, _, _ = verdict(bimodal(dim=4, separation=6.0), Hmc(), n=60, chains=6, moves=MoveSettings(1, 10))
    assert "log evidences have a standard deviation of" in reasons or "have descendants" in reasons


@pytest.mark.parametrize("options", [{}, {"len_chain": 10}])
def test_separated_modes_that_every_chain_keeps_are_trusted_and_right(options):
    reasons, error, size = verdict(bimodal(dim=2, separation=6.0), Hmc(), n=1500, **options)
    assert reasons == ""
    assert abs(error) < 5 * size


def test_a_kernel_that_does_not_mix_within_modes_is_not_trusted():
    reasons, _, _ = verdict(bimodal(dim=2, separation=6.0), TimidMala(), moves=MoveSettings(1, 12), len_chain=5)
    assert "did not mix" in reasons


def test_a_bridge_that_may_not_be_reported_shows_in_the_error_of_tempering():
    found = figures(GAUSSIAN, Hmc(), n=1500)
    evidence, se = found.evidence, found.evidence.standard_error
    further = evidence._replace(log_evidence=evidence.log_evidence + 3.0 * se, standard_error=0.1 * se)
    given = judge(found, further, replaceable=False)
    assert (given.method, given.reasons) == ("tempering", [])
    assert given.evidence.log_evidence == evidence.log_evidence
    assert given.evidence.standard_error == pytest.approx(se * np.hypot(1.0, 3.0 - np.hypot(1.0, 0.1)))
    near = evidence._replace(log_evidence=evidence.log_evidence + se, standard_error=0.1 * se)
    assert judge(found, near, replaceable=False).evidence.standard_error == se

"""The loop on a discrete space: {0, 1}³, with a path, a kernel and parts of a few lines each."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from ppl_backends.numerics.population import Population
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.smc.core import Moved, Parts, Start, Watch, begin, run_smc
from ppl_backends.smc.evidence import combine_evidence
from tests.statistics import assert_mean_is, normal_bound

FIELD = np.array([1.5, -2.0, 0.5])
CORNERS = np.array(list(product([False, True], repeat=3)))


def score(x):
    """Log density of a small Boltzmann machine, against the uniform distribution on the corners."""
    return x @ FIELD + 1.2 * (x[:, 0] ^ x[:, 1]) - 2.0 * (x[:, 1] & x[:, 2])


LOG_EVIDENCE = np.log(np.exp(score(CORNERS)).mean())
MARGINALS = np.exp(score(CORNERS) - 3 * np.log(2.0) - LOG_EVIDENCE) @ CORNERS


@dataclass(frozen=True)
class Corners(Population):
    """Corners of the cube, their scores, and the power that these are read at; ``x`` is boolean."""

    score: np.ndarray
    power: float


class Cube:
    """From the uniform distribution on {0, 1}³ to ``exp(score)``; a stage is a power."""

    def start(self, n, rng):
        x = rng.random((n, 3)) < 0.5
        return Start(Corners(x, score(x), 0.0))

    def next(self, population, weights, schedule):
        power = min(1.0, population.power + schedule.step)
        return power, (power - population.power) * population.score

    def is_last(self, stage):
        return stage == 1.0

    def extend(self, population, stage, rng):
        return replace(population, power=stage)

    def density(self, stage):
        return lambda x, rng: Corners(x, score(x), stage)


@dataclass(frozen=True)
class EqualSteps:
    step: float

    def after(self, run):
        return self

    def shorter(self, done, path):
        return None


class Forever(Watch):
    """A run without a limit, which reports its stage."""

    def __init__(self):
        self.seen = []

    def see(self, run):
        self.seen.append(run.stage)


def flip(drawn, path, tuning, rng, forgetful=False):
    """Return Metropolis moves that flip one bit each; ``forgetful`` ones accept everything."""
    state, n = drawn.particles, len(drawn.particles.x)
    for _ in range(6):
        x = state.x.copy()
        x[np.arange(n), rng.integers(3, size=n)] ^= True
        proposal = path.density(drawn.stage)(x, rng)
        log_ratio = drawn.stage * (proposal.score - state.score)
        state = state.where((np.log(rng.random(n)) < log_ratio) | forgetful, proposal)
    return Moved(state, drawn.parents)


def run(seed, move=flip, n=500):
    rng, path = np.random.default_rng([3, seed]), Cube()
    parts = Parts(
        schedule=EqualSteps(0.25),
        resample=lambda weights, is_last, rng: systematic_resampling(weights, n, rng),
        move=move,
        figures=lambda step: step.after.stage,
    )
    watch = Forever()
    done, ended = run_smc(begin(path.start(n, rng), rng), path, parts, watch)
    assert ended == ""
    assert done.stages == (0.25, 0.5, 0.75, 1.0) == tuple(watch.seen)
    assert done.population.x.dtype == bool
    return done


def error(runs):
    """Return the error of the log evidence, in its standard errors."""
    found = combine_evidence(
        *np.array([(each.log_evidence, each.lineage.variance, each.lineage.df) for each in runs]).T
    )
    return (found.log_evidence - LOG_EVIDENCE) / found.standard_error


def test_the_evidence_and_the_marginals_of_a_boolean_space_are_those_of_its_enumeration():
    runs = [run(seed) for seed in range(40)]
    assert abs(error(runs)) < normal_bound()
    assert_mean_is(np.array([each.population.x.mean(axis=0) for each in runs]), MARGINALS)


def test_moves_that_do_not_leave_the_stage_invariant_are_found_out():
    runs = [run(seed, lambda *arguments: flip(*arguments, forgetful=True)) for seed in range(40)]
    assert abs(error(runs)) > normal_bound()


def test_particles_may_keep_their_weights():
    def once(weights, is_last, rng):
        return systematic_resampling(weights, len(weights), rng) if is_last else None

    rng, path = np.random.default_rng(1), Cube()
    parts = Parts(EqualSteps(0.5), once, flip, lambda step: step.after.weights is None)
    done, _ = run_smc(begin(path.start(20_000, rng), rng), path, parts, Forever())
    assert done.stages == (False, True)
    assert done.log_evidence == pytest.approx(LOG_EVIDENCE, abs=normal_bound() * done.lineage.variance**0.5)

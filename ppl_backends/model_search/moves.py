"""Moves of models at one temperature: independent proposals and small steps alternately, until autocorrelation is small.

A proposal from nested logistic regressions can reach any model, but is hardly ever accepted if the posterior is more
complex than they are. Small steps are accepted, but stay in one region. On the 78 products of the concrete data,
independent proposals alone lose 13 units of log evidence, and chains of small steps alone differ by 0.9 in a
probability; so they alternate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppl_backends.kernels.boolean.add_delete_swap import AddDeleteSwap
from ppl_backends.kernels.boolean.nested_logistic import NestedLogistic
from ppl_backends.kernels.protocol import Density, accept
from ppl_backends.model_search.path import ModelPath, ModelState
from ppl_backends.smc.core import Moved, Resampled
from ppl_backends.smc.mixing import WeightAutocorrelation
from ppl_backends.smc.moves import MoveSummary
from ppl_backends.targets.protocol import Array

UNCORRELATED = 0.1  # correlation with the particles before the moves
EASY = 0.5  # acceptance of independent proposals above which small steps add nothing
_ENOUGH = 3  # rounds of accepted independent proposals, after which small steps are added
_LENGTHS = (3.0, 1.0, 0.3, 0.1)  # of walks under a surrogate, alternately: if it is poor, long ones are rejected
_COMPILED, _CHEAP, _COSTLY = 6, 0.5, 0.1  # small steps per bit and round: compiled, of a matrix, and others


@dataclass(frozen=True)
class SearchMoves:
    """Rounds of one independent proposal and small steps, until particles have mixed or ``most`` rounds were made.

    If every small step needs an evidence, there are fewer steps, and still fewer if particles come from a surrogate's
    posterior, of which they are a fresh sample: moves then only need to separate the copies of a particle.
    """

    most: int = 30
    most_uncompiled: int = 12
    most_decided: int = 6

    def __call__(self, drawn: Resampled, path: ModelPath, tuning: Any, rng: np.random.Generator) -> Moved:
        """Move the particles, all of which were resampled."""
        walk = _Walk(drawn, path, rng)
        most = self.most if is_compiled(path) else self.most_uncompiled if path.below is None else self.most_decided
        while walk.rounds < most:
            walk.round()
            if max(walk.left, walk.weights_left) < walk.threshold:
                break
        return Moved(walk.result(), drawn.parents, tuning, walk.summary())


class _Walk:
    """Moves of the particles of one stage, with a record of their effect."""

    def __init__(self, drawn: Resampled, path: ModelPath, rng: np.random.Generator) -> None:
        self.state, self.stage, self.path, self.rng = drawn.particles, drawn.stage, path, rng
        self.start = self.state.x.astype(np.float64)
        n = len(self.start)
        self.afar = NestedLogistic()
        self.parameters = self.afar.calibrate(drawn.before.x, drawn.weights)
        self.weights = WeightAutocorrelation(*path.ahead(self.state), np.zeros(n, dtype=np.intp))
        self.threshold = max(UNCORRELATED, 3.0 / n**0.5)
        self.density = path.density(self.stage)
        self.acceptance: list[float] = []
        self.share = np.zeros(self.start.shape)
        self.rounds, self.evaluations, self.jumps, self.left, self.weights_left = 0, 0.0, 0.0, 1.0, 1.0

    def round(self) -> None:
        """Make one independent proposal, and small steps unless such proposals are accepted and have been enough."""
        self.rounds += 1
        rate = self._from_afar()
        self.acceptance.append(rate)
        if self.rounds > _ENOUGH:
            rate = min(rate, 0.5 * EASY)
        self.share += self.state.x if rate >= EASY else self._small_steps(rate)
        self.left = _correlation(self.start, self.state.x)
        self.weights_left = self.weights.left(self.path.ahead(self.state)[0])

    def _from_afar(self) -> float:
        """Propose a draw of the nested regressions to every particle, and return how many are accepted."""
        below = self.path.below
        if below is None:
            self.state, info = self.afar.step(self.rng, self.state, self.density, self.parameters)
            self.evaluations += 1.0
            self.jumps += float((info.acceptance * info.squared_jump).mean())
            return float(info.acceptance.mean())
        start = below.at(self.state.x, 1.0, self.rng)
        end, _ = self.afar.step(self.rng, start, _density(below, 1.0), self.parameters)
        return self._decide(end.x)

    def _small_steps(self, rate: float) -> Array:
        """Make small steps, many if they are cheap, and return the share of them during which each bit was on ``(n, m)``."""
        below, share = self.path.below, 1.0 - rate / EASY
        if below is None:
            n_steps = steps_of(self.path, share)
            self.state, on, evaluations = small_steps(self.rng, self.state, self.path, self.stage.beta, n_steps)
            self.evaluations += evaluations
            return on
        n_steps = steps_of(below, _LENGTHS[self.rounds % len(_LENGTHS)])
        start = below.at(self.state.x, 1.0, self.rng)
        self._decide(small_steps(self.rng, start, below, 1.0, n_steps)[0].x)
        return self.state.x.astype(np.float64)

    def _decide(self, x: Any) -> float:
        """Accept the end points of a kernel that is reversible under the surrogate, by the evidences minus the surrogate.

        This is a second acceptance step for the transitions (Christen & Fox 2005). Returns the share of the particles
        that moved.
        """
        n = len(x)
        moves = np.flatnonzero((x != self.state.x).any(axis=1))
        there, proposal = self.state.take(moves), self.density(x[moves], self.rng)
        log_ratio = self.stage.beta * (proposal.increment - there.increment)
        jump = (proposal.x != there.x).sum(axis=1).astype(np.float64)
        moved, info = accept(self.rng, there, proposal, log_ratio, jump)
        self.state = self.state.scatter(moves, moved)
        self.evaluations += len(moves) / n
        self.jumps += float(info.acceptance @ info.squared_jump) / n
        return float(info.acceptance.sum()) / n

    def result(self) -> ModelState:
        """Return the particles, each with the mean of its bits over the rounds."""
        return replace(self.state, share=self.share / self.rounds)

    def summary(self) -> MoveSummary:
        """Return the figures of the moves."""
        stuck = float(np.mean((self.state.x == self.start).all(axis=1)))
        rate, jump = float(np.mean(self.acceptance)), self.jumps / self.rounds / self.start.shape[1]
        left = self.left if self.path.below is not None else max(self.left, self.weights_left)
        return MoveSummary(self.rounds, rate, np.nan, left, jump, self.evaluations, stuck, self.weights.noise)


def _density(path: ModelPath, beta: float) -> Density[ModelState]:
    return lambda x, rng: path.at(np.asarray(x, dtype=bool), beta, rng)


def is_compiled(path: ModelPath) -> bool:
    """Return whether small steps of a path are compiled."""
    return path.space.is_plain and path.evidence.walks


def steps_of(path: ModelPath, share: float) -> int:
    """Return the number of small steps in a round, of which a ``share`` is needed; cheap steps are many."""
    per_bit = _COMPILED if is_compiled(path) else _CHEAP if path.evidence.walks else _COSTLY
    return max(1, round(share * per_bit * path.space.n_candidates))


def small_steps(
    rng: np.random.Generator, state: ModelState, path: ModelPath, beta: float, n_steps: int
) -> tuple[ModelState, Array, float]:
    """Return models after small steps, the share of steps with each bit on ``(n, m)``, and evaluations of each model."""
    if is_compiled(path):
        on, share = path.evidence.walk(path.space.columns(state.x), path.space, n_steps, beta, rng)
        members = np.argmax(path.space.members, axis=1)
        return path.at(on[:, members], beta, rng), share[:, members], n_steps
    near, total, evaluations = AddDeleteSwap(), np.zeros(state.x.shape), 0.0
    for _ in range(n_steps):
        state, info = near.step(rng, state, _density(path, beta))
        evaluations += float(info.evaluations.mean())
        total += state.x
    return state, total / n_steps, evaluations


def _correlation(before: Array, after: Any) -> float:
    """Return the largest correlation, over bits that vary, with the bit before the moves."""
    mean = before.mean(axis=0)
    varies = (mean > 0.02) & (mean < 0.98)
    if not varies.any():
        return 0.0
    old, new = before[:, varies] - mean[varies], after[:, varies] - after[:, varies].mean(axis=0)
    norm = np.sqrt((old**2).sum(axis=0) * (new**2).sum(axis=0))
    return float(((old * new).sum(axis=0) / np.maximum(norm, 1e-300)).max())

"""The surrogate of a regression's evidences: one Gaussian likelihood for all models, found by weighted least squares.

Newton's method for one model is a sequence of weighted least squares. Here each of them is for all models at once: the
likelihood is expanded over draws of models and their coefficients, and a walk under this expansion gives the next
draws. The remaining difference from Laplace's evidences is regressed on the included columns. A small step under the
surrogate takes tenths of microseconds, for any number of rows.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.gaussian import GaussianEvidence
from ppl_backends.model_search.evidences.laplace import LaplaceEvidence
from ppl_backends.model_search.moves import SearchMoves, small_steps, steps_of
from ppl_backends.model_search.path import ModelPath
from ppl_backends.model_search.space import Bits, ModelSpace, by_model
from ppl_backends.smc.core import Parts, begin, run_smc
from ppl_backends.smc.sampler import Watcher
from ppl_backends.smc.schedule import Resampling, Schedule
from ppl_backends.targets.protocol import Array

ROUNDS, MODELS = 12, 100  # of least squares, and models in each
_REGRESSED = 3  # rounds whose models are in the regression
_LENGTH = 3.0  # of the walks between rounds, relative to those of a search's round
_PRECISE = 0.25  # sd of what the surrogate leaves of its models' log evidences, below which it is good enough
_RIDGE = 1.0  # prior precision of a column's contribution
_PARTS = Parts(Schedule(), Resampling(MODELS), SearchMoves(most=5, most_uncompiled=5), lambda step: None)


def find_surrogate(space: ModelSpace, evidence: Evidence, rng: np.random.Generator) -> GaussianEvidence | None:
    """Return the surrogate of an evidence if its regression is known, else None.

    The models come from a short search under the first surrogate, and then walk under each new one.
    """
    laplace = evidence.laplace
    if laplace is None:
        return None
    surrogate = _expanded(laplace, space.columns(np.zeros((MODELS, space.n_candidates), dtype=bool)), rng)
    path = ModelPath(space, surrogate)
    run = begin(path.start(MODELS, rng), rng)
    run, _ = run_smc(run, path, _PARTS, Watcher(None))
    bits, known = run.population.x, []
    for k in range(ROUNDS):
        if k > 0:
            path = ModelPath(space, surrogate)
            bits = small_steps(rng, path.at(bits, 1.0, rng), path, 1.0, steps_of(path, _LENGTH))[0].x
        columns = space.columns(bits)
        known.append((columns, laplace(columns, rng)))
        left = np.std(known[-1][1] - surrogate(columns, rng))
        surrogate = _expanded(laplace, columns, rng)
        recent, values = map(np.concatenate, zip(*known[-_REGRESSED:], strict=True))
        surrogate = surrogate.corrected(*_regressed(recent, values - surrogate(recent, rng)))
        if left < _PRECISE:
            break
    return surrogate


def _expanded(laplace: LaplaceEvidence, columns: Bits, rng: np.random.Generator) -> GaussianEvidence:
    """Return the mean expansion over a draw of the coefficients of each model ``(models, p)``."""
    theta = np.zeros(columns.shape)
    for model, rows in by_model(columns):
        theta[rows] = laplace.coefficients(model, len(rows), rng)["coefficients"]
    return GaussianEvidence(laplace.compiled, theta, columns, laplace.log_constant)


def _regressed(columns: Bits, above: Array) -> tuple[Array, float]:
    """Return slopes ``(p,)`` and level of the ridge regression of a difference ``(models,)`` on columns."""
    mean = columns.mean(axis=0)
    centred = columns - mean
    matrix = centred.T @ centred + _RIDGE * np.eye(columns.shape[1])
    slopes = np.linalg.solve(matrix, centred.T @ (above - above.mean()))
    return slopes, float(above.mean() - slopes @ mean)

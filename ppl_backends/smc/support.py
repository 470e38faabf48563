"""A start of which only a small part lies where the posterior can be.

A likelihood may be zero on most of the prior: an inequality written as a Potential of minus infinity, a box, data that only a
few parameter values allow. No beta makes that step smaller, since every β > 0 has the same support. The start is then the
prior restricted to the support, by rejection: points are drawn until enough of them are inside. The share of the draws that
are inside estimates the integral of the restricted start, with the error of a binomial share.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.importance.outside import share_undefined
from ppl_backends.kernels.population import concatenate
from ppl_backends.smc.core import Start
from ppl_backends.smc.evidence import LineageVariance
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.smc.start import StartFigures

__all__ = ["start_inside"]

_SHARE, _FEWEST = 0.1, 100  # of the particles, or so many: points inside that make a start
_MOST = 100  # draws per particle
_HOPELESS = 20  # points inside, fewer than which are no basis for an error bar


def start_inside(path: TemperingPath, n: int, rng: np.random.Generator, n_draws: int | None = None) -> Start:
    """Draw the start of a path, and more of it where few of its points are inside the support.

    Parameters
    ----------
    path : TemperingPath
        A start that a run of its own drew is left as it is.
    n : int
        Number of particles.
    rng : numpy.random.Generator
    n_draws : int, optional
        Draws to make, where a pilot run decided it.

    Returns
    -------
    Start
        With :class:`~ppl_backends.smc.start.StartFigures`.

    Raises
    ------
    ModelError
        If no point is inside the support, saying what is in the way.
    """
    start = path.start(n, rng)
    state, lineage = start.population, start.lineage or LineageVariance(n)
    found = np.flatnonzero(state.increment > -np.inf)
    zero = state.x[state.increment == -np.inf]
    undefined = share_undefined(path.target, zero) * len(zero) / n
    figures = start.figures or StartFigures(start.log_normalizer, lineage.variance, lineage.df)
    figures = figures._replace(undefined=undefined, n_draws=n)
    wanted = min(n, max(_FEWEST, int(_SHARE * n)))
    if figures.stages or (len(found) >= wanted if n_draws is None else n_draws == n):
        _check(path, state, len(found), n)
        return Start(state, start.log_normalizer, lineage, figures)
    kept, n_inside, drawn = [state.take(found)], len(found), n
    while drawn < n_draws if n_draws is not None else _goes_on(n_inside, wanted, drawn, n):
        more = path.start(n, rng).population
        kept.append(more.take(np.flatnonzero(more.increment > -np.inf)))
        n_inside, drawn = n_inside + len(kept[-1].x), drawn + n
    _check(path, state, n_inside, drawn)
    ancestors = min(n, n_inside)
    ancestor = np.arange(n) * ancestors // n
    lineage, share = LineageVariance(n), n_inside / drawn
    lineage.ancestor = ancestor
    lineage.contribution[:ancestors] = n * np.sqrt((1.0 - share) / (n_inside * ancestors))
    population = concatenate(kept).take(ancestor)
    return Start(population, start.log_normalizer + float(np.log(share)), lineage, figures._replace(n_draws=drawn))


def _check(path: TemperingPath, state: PathState, n_inside: int, n_draws: int) -> None:
    """Refuse a start with no point inside the support, saying what is in the way."""
    if n_inside:
        return
    said = path.target.explain(state.x[0])
    raise ModelError(
        f"{path.target.label}: the log density is -inf or NaN at all {n_draws} starting points "
        f"drawn from the {path.description}{said and f': {said}'}; check the data against the model's support"
    )


def _goes_on(n_inside: int, wanted: int, drawn: int, n: int) -> bool:
    """Whether more draws are needed, and can be expected to be enough."""
    return n_inside < wanted and drawn < _MOST * n and (n_inside + 1) * _MOST * n >= _HOPELESS * drawn

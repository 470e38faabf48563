"""A start of which only a small part lies where the posterior can be.

A likelihood may be zero on most of the prior: an inequality written as a Potential of minus infinity, a box, data that only a
few parameter values allow. No beta makes that step smaller, since every β > 0 has the same support. The start is then the
prior restricted to the support, by rejection: points are drawn until enough of them are inside. The share of the draws that
are inside estimates the integral of the restricted start, with the error of a binomial share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.importance.outside import share_undefined
from ppl_backends.kernels.population import concatenate
from ppl_backends.smc.evidence import LineageVariance
from ppl_backends.smc.path import PathState, TemperingPath

__all__ = ["SupportedStart", "start_inside"]

_SHARE, _FEWEST = 0.1, 100  # of the particles, or so many: points inside that make a start
_MOST = 100  # draws per particle
_HOPELESS = 20  # points inside, fewer than which are no basis for an error bar


class SupportedStart(NamedTuple):
    """Particles at β = 0, all of which may have descendants.

    Attributes
    ----------
    state : PathState
    lineage : LineageVariance
    log_share : float
        Log of the share of the draws that lie inside; 0 where the start was left as it is.
    n_draws : int
        Draws made.
    undefined : float
        Share of the first ``n`` draws whose density is NaN or +inf.
    """

    state: PathState
    lineage: LineageVariance
    log_share: float
    n_draws: int
    undefined: float


def start_inside(
    path: TemperingPath, n: int, rng: np.random.Generator, run: Callable[..., Any], n_draws: int | None = None
) -> tuple[Any, SupportedStart]:
    """Draw the start of a path, and more of it where few of its points are inside the support.

    Parameters
    ----------
    path : TemperingPath
    n : int
        Number of particles.
    rng : numpy.random.Generator
    run : callable
        Runs a path of its own where drawing the start takes one; such a start is left as it is.
    n_draws : int, optional
        Draws to make, where a pilot run decided it.

    Returns
    -------
    start : Start
        The first ``n`` draws.
    inside : SupportedStart
    """
    start = path.start(n, rng, run)
    state = path.evaluate(start.x, 0.0, False)
    found = np.flatnonzero(state.increment > -np.inf)
    zero = state.x[state.increment == -np.inf]
    undefined = share_undefined(path.target, zero) * len(zero) / n
    wanted = min(n, max(_FEWEST, int(_SHARE * n)))
    if start.stages or (len(found) >= wanted if n_draws is None else n_draws == n):
        return start, SupportedStart(state, start.lineage, 0.0, n, undefined)
    kept, n_inside, drawn = [state.take(found)], len(found), n
    while drawn < n_draws if n_draws is not None else _goes_on(n_inside, wanted, drawn, n):
        more = path.evaluate(path.start(n, rng, run).x, 0.0, False)
        kept.append(more.take(np.flatnonzero(more.increment > -np.inf)))
        n_inside, drawn = n_inside + len(kept[-1].x), drawn + n
    if n_inside == 0:
        return start, SupportedStart(state, start.lineage, 0.0, drawn, undefined)
    ancestors = min(n, n_inside)
    ancestor = np.arange(n) * ancestors // n
    lineage, share = LineageVariance(n), n_inside / drawn
    lineage.ancestor = ancestor
    lineage.contribution[:ancestors] = n * np.sqrt((1.0 - share) / (n_inside * ancestors))
    return start, SupportedStart(concatenate(kept).take(ancestor), lineage, float(np.log(share)), drawn, undefined)


def _goes_on(n_inside: int, wanted: int, drawn: int, n: int) -> bool:
    """Whether more draws are needed, and can be expected to be enough."""
    return n_inside < wanted and drawn < _MOST * n and (n_inside + 1) * _MOST * n >= _HOPELESS * drawn

"""Whether chains of draws look alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppl_backends.results.inference_data import ARVIZ_MAJOR
from ppl_backends.targets.protocol import Array

__all__ = ["LARGEST_RHAT", "rank_rhat", "why_not_converged"]

LARGEST_RHAT = 1.05
_FEWEST_DRAWS = 20


def rank_rhat(draws: Array) -> Array:
    """Return the rank-normalised R̂ ``(dim,)``, by ArviZ, of draws ``(chain, draw, dim)``; NaN where all draws are equal.

    Examples
    --------
    >>> draws = np.random.default_rng(0).standard_normal((4, 500, 2))
    >>> bool((rank_rhat(draws) < 1.02).all())
    True
    """
    import arviz as az

    with np.errstate(invalid="ignore", divide="ignore"):
        if ARVIZ_MAJOR == 0:
            return np.atleast_1d(np.asarray(az.rhat(az.convert_to_dataset({"x": draws}))["x"]))
        return np.atleast_1d(np.asarray(az.rhat(draws, chain_axis=0, draw_axis=1)))


def why_not_converged(draws: Array, names: Sequence[str]) -> str:
    """Return why chains cannot have converged, with the figure; empty where nothing shows it, or one chain is all there is.

    Parameters
    ----------
    draws : ndarray (chain, draw, dim)
    names : sequence of str
        Of the coordinates.
    """
    if len(draws) < 2 or draws.shape[1] < _FEWEST_DRAWS:
        return ""
    stuck = np.flatnonzero(np.ptp(draws, axis=1).max(axis=0) == 0)
    if len(stuck):
        return f"no chain ever moved in `{names[stuck[0]]}`"
    rhat = rank_rhat(draws)
    worst = int(np.nanargmax(rhat))
    if not rhat[worst] > LARGEST_RHAT:
        return ""
    return f"the chains have not converged: R-hat is {rhat[worst]:.2f} for `{names[worst]}`, above {LARGEST_RHAT}"

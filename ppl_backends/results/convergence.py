"""Convergence diagnostics of chains by ArviZ: R̂ and effective sample sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppl_backends.numerics.arrays import Array, Index
from ppl_backends.numerics.weights import FEWEST_INDEPENDENT, few_independent
from ppl_backends.results.inference_data import ARVIZ_MAJOR

LARGEST_RHAT = 1.05
FEW_EFFECTIVE = 400  # effective draws, which give means a Monte Carlo error of a twentieth of the sd
FEWEST_DRAWS = 20  # of a chain, below which its R̂ is not judged
_BLOCKS = 20  # blocks of a chain, whose means show which coordinates move slowly


def rank_rhat(draws: Array) -> Array:
    """Return the rank-normalised R̂ ``(dim,)``, by ArviZ, of draws ``(chain, draw, dim)``; NaN where all draws are equal."""
    import arviz as az

    with np.errstate(invalid="ignore", divide="ignore"):
        if ARVIZ_MAJOR == 0:
            return np.atleast_1d(np.asarray(az.rhat(az.convert_to_dataset({"x": draws}))["x"]))
        return np.atleast_1d(np.asarray(az.rhat(draws, chain_axis=0, draw_axis=1)))


def differing_chains(rhat: Array, names: Sequence[str]) -> str:
    """Return in which coordinate chains differ most, with the figure; empty if every R̂ is a number within the limit."""
    worst = int(np.argmax(np.where(np.isnan(rhat), np.inf, rhat)))
    if rhat[worst] <= LARGEST_RHAT:
        return ""
    return f"the chains have not converged: R-hat is {rhat[worst]:.2f} for `{names[worst]}`, above {LARGEST_RHAT}"


def effective_draws(draws: Array, method: str = "bulk") -> Array:
    """Return effective numbers of draws ``(dim,)``, by ArviZ, of draws ``(chain, draw, dim)``.

    ``method`` is ``"bulk"``, for quantiles in the middle, or ``"mean"``. Draws that are all equal count as independent.
    """
    import arviz as az

    chains, n, _ = draws.shape
    with np.errstate(invalid="ignore", divide="ignore"):
        if ARVIZ_MAJOR == 0:
            found = np.asarray(az.ess(az.convert_to_dataset({"x": draws}), method=method)["x"])
        else:
            found = np.asarray(az.ess(draws, chain_axis=0, draw_axis=1, method=method))
    return np.where(np.isnan(found), float(chains * n), np.atleast_1d(found))


def effective_in_moments(draws: Array) -> Array:
    """Return the effective numbers ``(dim,)`` of draws ``(chain, draw, dim)`` in means or in sds, whichever are fewer."""
    return np.minimum(effective_draws(draws, "mean"), effective_draws((draws - draws.mean(axis=(0, 1))) ** 2, "mean"))


def few_effective(ess: Array, names: Sequence[str]) -> str:
    """Return which coordinate has too few effective draws in its moments, with the figure; empty if none has."""
    worst = int(np.argmin(ess))
    if not few_independent(ess[worst]):
        return ""
    return (
        f"the draws of `{names[worst]}` are worth {ess[worst]:.0f} independent ones in its mean or standard deviation, fewer "
        f"than {FEWEST_INDEPENDENT:.0f}"
    )


def slowest(draws: Array, n: int) -> Index:
    """Return the ``n`` coordinates of draws ``(chain, draw, dim)`` whose block means vary most."""
    chains, length, dim = draws.shape
    block = max(1, length // _BLOCKS)
    means = draws[:, : block * (length // block)].reshape(chains, -1, block, dim).mean(axis=2)
    variance = draws.var(axis=(0, 1))
    ratio = means.var(axis=(0, 1)) / np.where(variance > 0, variance, 1.0)
    return np.sort(np.argsort(-ratio, kind="stable")[:n])

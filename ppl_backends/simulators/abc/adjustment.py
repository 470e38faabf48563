"""Regression adjustment of an ABC sample: draws are shifted to predicted values at the observed summaries.

θ = m(s) + σ(s) e is fitted around the observed summaries s° by weighted linear regressions, of θ on s and of the log
squared residuals on s; draws become m(s°) + σ(s°)/σ(s) (θ − m(s)) (Beaumont, Zhang & Balding 2002; σ: Blum & François
2010). The result is not an ABC posterior at any tolerance, but an extrapolation to tolerance zero that is as good as
the regression.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array

__all__ = ["adjusted"]

SMALLEST_RESIDUAL = 1e-12


def adjusted(x: Array, summaries: Array, observed: Array, weights: Array, heteroscedastic: bool) -> Array:
    """Return the adjusted points ``(n, dim)``.

    Parameters
    ----------
    x : ndarray (n, dim)
        Points on the unconstrained space, so that adjusted points stay within bounds.
    summaries : ndarray (n, k)
        Summaries of an accepted data set at each point.
    observed : ndarray (k,)
    weights : ndarray (n,)
        Zero for points without an accepted data set.
    heteroscedastic : bool
        Whether to scale residuals too.

    Raises
    ------
    ModelError
        If fewer points have positive weight than the regression has coefficients.
    """
    used = (weights > 0) & np.isfinite(summaries).all(axis=1)
    size = weights[used].sum() ** 2 / np.sum(weights[used] ** 2) if used.any() else 0.0
    if size < 2 * (summaries.shape[1] + 1):
        raise ModelError(
            f"adjust=: an effective size of {size:.0f} is too small to regress on {summaries.shape[1]} summaries; use "
            "a summary= with fewer"
        )
    design, root = _design(summaries[used] - observed), np.sqrt(weights[used] / weights[used].sum())[:, None]
    coefficients = np.linalg.lstsq(root * design, root * x[used], rcond=None)[0]
    residual = x[used] - design @ coefficients
    if heteroscedastic:
        logs = np.log(np.maximum(residual**2, SMALLEST_RESIDUAL * residual.var(axis=0)))
        slopes = np.linalg.lstsq(root * design, root * logs, rcond=None)[0]
        residual = residual * np.exp(0.5 * (slopes[0] - design @ slopes))
    moved = x.copy()
    moved[used] = coefficients[0] + residual
    return moved


def _design(apart: Array) -> Array:
    """Return a column of ones and the summaries minus the observed ones, in units of their spread."""
    spread = apart.std(axis=0)
    return np.column_stack([np.ones(len(apart)), apart / np.where(spread > 0, spread, 1.0)])

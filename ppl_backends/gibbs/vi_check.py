"""Verdict on the Gaussian of ``fit_gibbs_vi`` by weighted points.

The solver finds the nearest Gaussian. It cannot tell how near that is: under a loss with jumps a Gaussian that covers
the posterior loses points where the risk is high, so the nearest one is too narrow.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ppl_backends.approximations.ep.weighted import ERRORS, POINTS, WeightedMoments, weighted_moments
from ppl_backends.approximations.verdict import LARGEST_SHIFT, SD_RANGE
from ppl_backends.errors import ApproximationWarning, user_level
from ppl_backends.targets.factors.sites import Array

MOST_ROWS = 2**16  # above which 4,096 evaluations of the risk take longer than most fits
BLOCK = 2**22  # losses in memory at once


def checked_fit(fit: Any) -> Any:
    """Return a fit with the verdict of weighted points on its means and standard deviations, and warn if it is bad.

    Only full covariances are checked: the other families are narrower than the posterior wherever coefficients are
    correlated. Many coefficients make the weights useless. The posterior of a convex loss is log-concave, and its nearest
    Gaussian stays near in many dimensions, so nothing is said then.
    """
    posterior = fit.posterior
    if fit.family != "dense" or not fit.converged or posterior.n > MOST_ROWS:
        return fit
    moments = weighted_moments(
        fit.replaced(log_evidence=fit.elbo),
        lambda x: _log_density(posterior, x),
        fit.cholesky / fit.sd[:, None],
        posterior.n ** (2 if posterior.paired else 1),
    )
    trouble, figures = _judged(moments, fit.names, posterior.loss.convex)
    found = fit.replaced(
        converged=not trouble, trouble=trouble or fit.trouble, diagnostics={**fit.diagnostics, **figures}
    )
    if trouble:
        said = f"VI: {trouble}: check with sample_smc"
        warnings.warn(said, ApproximationWarning, stacklevel=user_level())
    return found


def _log_density(posterior: Any, x: Array) -> Array:
    blocks = np.array_split(x, max(1, len(x) * posterior.n // BLOCK))
    return np.concatenate([posterior.log_density(block) for block in blocks])


def _judged(moments: WeightedMoments, names: Any, convex: bool) -> tuple[str, dict[str, float]]:
    """Return what is off by more than the noise, empty if nothing, and figures."""
    figures = {"effective_draws": moments.effective}
    if not moments.reliable:
        said = (
            f"{POINTS} weighted points are worth {moments.effective:.0f} draws, so nothing checks the Gaussian, and its "
            "standard deviations may be too small"
        )
        return "" if convex else said, figures
    low, high = moments.ratio - ERRORS * moments.ratio_se, moments.ratio + ERRORS * moments.ratio_se
    excess = np.maximum(low - SD_RANGE[1], SD_RANGE[0] - high)
    moved = np.abs(moments.shift) - ERRORS * moments.shift_se
    narrow, far = int(np.argmax(excess)), int(np.argmax(moved))
    figures["weighted_sd_error"] = float(abs(moments.ratio[narrow] - 1))
    figures["weighted_shift"] = float(abs(moments.shift[far]))
    if excess[narrow] > 0:
        ratio = f"{moments.ratio[narrow]:.2f} ± {moments.ratio_se[narrow]:.2f}"
        return f"by weighted points the standard deviation of {names[narrow]} is {ratio} times the Gaussian's", figures
    if moved[far] > LARGEST_SHIFT:
        shift = f"{abs(moments.shift[far]):.2f} ± {moments.shift_se[far]:.2f}"
        return f"by weighted points the posterior mean of {names[far]} is {shift} standard deviations away", figures
    return "", figures

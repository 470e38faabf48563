"""The ladder of exponents, chosen as it is climbed."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from ppl_backends.importance.weights import effective_sample_size
from ppl_backends.targets.protocol import Array

__all__ = ["next_exponent"]


def next_exponent(increment: Array, exponent: float, ess_fraction: float) -> float:
    """Largest λ' ≤ 1 whose incremental weights exp{(λ' − λ)·increment} keep an ESS of ``ess_fraction`` of the points.

    Buchholz (2018), equation 5.1 and Algorithm 13. Points outside the support have weight zero at every λ' > λ, so the ESS
    is measured against those inside.

    Parameters
    ----------
    increment : ndarray (n,)
    exponent : float
        The present λ.
    ess_fraction : float
    """
    finite = increment[increment > -np.inf]
    wanted = ess_fraction * len(finite)

    def excess(step: float) -> float:
        return effective_sample_size(step * finite) - wanted

    longest = 1.0 - exponent
    if excess(longest) >= 0:
        return 1.0
    # The step can be many orders of magnitude below one (vague priors): bisect on the log scale.
    shortest = longest
    while excess(shortest) < 0 and shortest > 1e-300:
        shortest *= 1e-3
    log_step = brentq(lambda s: excess(np.exp(s)), np.log(shortest), np.log(min(shortest * 1e3, longest)), xtol=1e-6)
    return min(1.0, exponent + float(np.exp(log_step)))

r"""The kl-inverse bound of Seeger (2002), Langford & Seeger (2001) and Maurer (2004).

Let kl(q ‖ p) be the divergence of a Bernoulli variable of mean q from one of mean p. For a loss in [0, 1] and m
independent observations, with probability at least 1 − ε over the data, for all ρ at once,

.. math::

    kl\Bigl(\int r_n \,d\rho \,\Big\|\, \int R \,d\rho\Bigr) \le \frac{KL(\rho, \pi) + \log \xi(m) + \log(1/\varepsilon)}{m},

where ξ(m) = Σ_k C(m, k) (k/m)^k (1 − k/m)^{m−k} ≤ 2√m is the mean of exp{m kl(r_m ‖ R)} for losses 0 and 1, and a
bound on it for other losses. The bound contains no λ, so it is valid for a λ chosen by any means.

*Pairs.* The mean over all ordered pairs of n independent rows is the mean, over permutations of the rows, of means
over m = ⌊n/2⌋ independent pairs (Hoeffding 1963). Because kl is convex, exp{m kl(r_n ‖ R)} is at most the mean of the
terms exp{m kl} of independent pairs, and its expectation is at most ξ(m): the bound is valid with m = ⌊n/2⌋. Given the
classes, the mean over the n₊n₋ pairs with one row of each class is a mean of means over min(n₊, n₋) independent pairs.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, rel_entr, xlogy


def log_moment(m: int) -> float:
    """Return log ξ(m), exact."""
    k = np.arange(m + 1.0)
    share = k / m
    log_choose = gammaln(m + 1) - gammaln(k + 1) - gammaln(m - k + 1)
    return float(logsumexp(log_choose + xlogy(k, share) + xlogy(m - k, 1 - share)))


def bernoulli_divergence(q: float, p: float) -> float:
    """Return kl(q ‖ p)."""
    return float(rel_entr(q, p) + rel_entr(1 - q, 1 - p))


def kl_inverse(q: float, budget: float) -> float:
    """Return the largest p with kl(q ‖ p) ≤ budget.

    Examples
    --------
    >>> round(kl_inverse(0.0, 0.1), 6), round(float(-np.expm1(-0.1)), 6)
    (0.095163, 0.095163)
    """
    q = min(max(q, 0.0), 1.0)
    if q == 1.0 or bernoulli_divergence(q, 1 - 1e-15) <= budget:
        return 1.0
    return float(brentq(lambda p: bernoulli_divergence(q, p) - budget, q, 1 - 1e-15, xtol=1e-12))


def tangent(scaled: float, rate: float, m: int) -> float:
    """Return the largest R with −m log{1 − R (1 − e^{−λ/m})} ≤ ``scaled``, the bound of Catoni (2007) at ``rate`` λ.

    m kl(r ‖ R) is the largest of −m log{1 − R (1 − e^{−β})} − m β r over β; this is the value at β = λ/m. Its
    exponential has a mean of at most one for a fixed λ, so the bound does not contain log ξ(m).
    """
    return float(np.expm1(-scaled / m) / np.expm1(-rate / m))

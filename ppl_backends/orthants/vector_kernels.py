"""Exponentials and normal probabilities of many numbers, without branches or calls, so that compilers vectorise them."""

from __future__ import annotations

import math

import numba
import numpy as np
from scipy.special import erfcx

TAYLOR = tuple(1 / math.factorial(k) for k in range(12))
CENTRE = 4.0
FAR = 7.3  # beyond which a tail is below 2e-13
DEGREE = 14
LANES = 16  # numbers that are processed together


def _scaled_tail(s):
    z = CENTRE * (1 + s) / (1 - s)
    return 0.5 * erfcx(z / np.sqrt(2))


# Φ(−z) = exp(−z² / 2) × SCALED_TAIL(s), s = (z − CENTRE) / (z + CENTRE), for 0 ≤ z ≤ FAR.
EDGE = (FAR - CENTRE) / (FAR + CENTRE)
SCALED_TAIL = tuple(
    np.polynomial.Chebyshev.interpolate(_scaled_tail, DEGREE, [-1, EDGE]).convert(kind=np.polynomial.Polynomial).coef
)
QUICK = {"fastmath": {"contract", "nnan", "nsz"}, "error_model": "numpy", "cache": True}


@numba.njit(**QUICK)
def exp_all(x, start, n):
    """Replace ``n`` numbers from ``start`` on, none above 700, by their exponentials, to 1e-13 of each.

    Numbers after them, up to a multiple of ``LANES``, are overwritten too.
    """
    for i in range(start, start + (n + LANES - 1) // LANES * LANES):
        t = max(x[i], -700.0) / 1024.0
        y = TAYLOR[11]
        for k in range(10, -1, -1):
            y = y * t + TAYLOR[k]
        for _ in range(10):
            y *= y
        x[i] = y


@numba.njit(**QUICK)
def phi_all(x, start, n, spare):
    """Replace ``n`` numbers by the normal distribution function, to 2e-13, in the same way; overwrite ``spare`` on."""
    n = (n + LANES - 1) // LANES * LANES
    for i in range(n):
        z = max(-FAR, -max(-FAR, -x[start + i]))
        x[start + i], x[spare + i] = z, -0.5 * z * z
    exp_all(x, spare, n)
    for i in range(n):
        z = abs(x[start + i])
        s = (z - CENTRE) / (z + CENTRE)
        y = SCALED_TAIL[DEGREE]
        for k in range(DEGREE - 1, -1, -1):
            y = y * s + SCALED_TAIL[k]
        x[start + i] = 0.5 + math.copysign(0.5 - x[spare + i] * y, x[start + i])

"""Compiled Newton steps with one fixed coordinate, for a batch of points."""

from __future__ import annotations

import math

import numpy as np

from ppl_backends.numerics.jit import jit


@jit
def newton_steps(precision, gradient, held):
    """Return steps ``(m, d)``, log determinants ``(m,)``, gains ½ gᵀH⁻¹g ``(m,)``, and whether H is positive definite.

    ``precision`` ``(m, d, d)`` is −∇² log p, ``gradient`` ``(m, d)``. H lacks row and column ``held`` ``(m,)``, none if −1.
    The Cholesky factor overwrites the lower half of ``precision``.
    """
    m, d = gradient.shape
    step, log_determinant, gain = np.zeros((m, d)), np.zeros(m), np.zeros(m)
    definite = np.ones(m, dtype=np.bool_)
    for k in range(m):
        h, j = precision[k], held[k]
        if j >= 0:
            for c in range(d):
                h[j, c] = 0.0
                h[c, j] = 0.0
            h[j, j] = 1.0
        for r in range(d):
            for c in range(r + 1):
                total = h[r, c]
                for i in range(c):
                    total -= h[r, i] * h[c, i]
                if r > c:
                    h[r, c] = total / h[c, c]
                elif total > 1e-14 * abs(h[r, r]) and math.isfinite(total):
                    h[r, r] = math.sqrt(total)
                    log_determinant[k] += math.log(total)
                else:
                    definite[k] = False
                    break
            if not definite[k]:
                break
        if not definite[k]:
            continue
        for r in range(d):
            total = 0.0 if r == j else gradient[k, r]
            for c in range(r):
                total -= h[r, c] * step[k, c]
            step[k, r] = total / h[r, r]
            gain[k] += 0.5 * step[k, r] ** 2
        for r in range(d - 1, -1, -1):
            total = step[k, r]
            for c in range(r + 1, d):
                total -= h[c, r] * step[k, c]
            step[k, r] = total / h[r, r]
    return step, log_determinant, gain, definite

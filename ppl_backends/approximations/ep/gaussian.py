"""The global Gaussian of EP, from natural parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, cholesky
from scipy.linalg.lapack import dtrtri

from ppl_backends.targets.factors.sites import LOG_2PI, Array

__all__ = ["Global", "factorise"]


class Global(NamedTuple):
    """N(m₀ + mean, Q⁻¹) with Q = L Lᵀ.

    Attributes
    ----------
    centre : ndarray (d,)
        The prior mean m₀.
    mean : ndarray (d,)
        Relative to the centre.
    root : ndarray (d, d)
        L⁻¹, so that the covariance is rootᵀ root.
    log_normaliser : float
        Ψ(r, Q) = (d/2) log 2π − ½ log det Q + ½ rᵀ Q⁻¹ r.
    """

    centre: Array
    mean: Array
    root: Array
    log_normaliser: float

    @property
    def cov(self) -> Array:
        """Covariance ``(d, d)``."""
        return self.root.T @ self.root

    def marginals(self, design: Any) -> tuple[Array, Array]:
        """Mean (relative to the centre) and variance of every row's aᵀθ."""
        if hasattr(design, "variances"):  # a design known by its structure
            return design @ self.mean, design.variances(self.root)
        spread = design @ self.root.T if not sparse.issparse(design) else np.asarray(design @ self.root.T)
        return np.asarray(design @ self.mean), np.einsum("nd,nd->n", spread, spread)


@np.errstate(all="ignore")
def factorise(precision: Array, shift: Array, centre: Array) -> Global | None:
    """The Gaussian of natural parameters (r, Q) about a centre; None where Q is not positive definite."""
    if not (np.isfinite(precision).all() and np.isfinite(shift).all()):
        return None
    try:
        lower = cholesky(precision, lower=True, check_finite=False)
    except LinAlgError:
        return None
    diagonal = np.diagonal(lower)
    # The share of each pivot left by the columns before it; at rounding error the matrix is singular.
    if np.any(diagonal**2 <= 4 * len(shift) * np.finfo(float).eps * np.diagonal(precision)):
        return None
    root, info = dtrtri(lower, lower=1)
    if info != 0 or not np.isfinite(root).all():
        return None
    root = np.tril(root)
    white = root @ shift
    log_normaliser = 0.5 * (len(shift) * LOG_2PI + white @ white) - float(np.log(diagonal).sum())
    return Global(centre, root.T @ white, root, float(log_normaliser))

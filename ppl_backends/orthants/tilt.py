"""The exponential tilt of minimax tilting (Botev 2017), its saddle point, and weights under it.

Coordinates are drawn one after the other from normals with means μ_k, truncated to their intervals. With
log N_k(z) = log P(lower_k ≤ Z + μ_k + c_k ≤ upper_k) the log weight of a point is

    ψ(z; μ) = Σ_k [μ_k²/2 − μ_k z_k + log N_k(z)],

and μ is the saddle point of ψ: min over μ, max over z. Let P_k be the mean of the standard normal on
[lower_k − s_k, upper_k − s_k], with s_k = c_k + μ_k. Then ∂ψ/∂z = 0 and ∂ψ/∂μ = 0 read μ_j = Σ_{i>j} L_ij P_i and
z = μ + P, so that with S = L L', L having ones on its diagonal,

    s = (S − I) P(s):

one equation in s alone, whose Jacobian I + (S − I) diag(1 − V), V the variances on the intervals, is similar to the
positive definite V + W^½ S W^½, W = 1 − V. This is true for a singular S as well.

Because μ = L'P, Σ_k μ_k z_k = Σ_k P_k c_k, and the weight of coordinate k may be written as

    log N_k + μ_k²/2 − P_k c_k,

which does not depend on z_k. Products up to k are then weights for the densities
γ_k(z_{1:k}) ∝ Π_{j≤k} φ(z_j) 1{interval j} · exp(Σ_{j≤k} z_j Σ_{i>k} L_ij P_i): the tilt is the linearised future.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ppl_backends.orthants.intervals import Array, moments, quantile
from ppl_backends.orthants.ordering import Rectangle

PANEL = 64  # coordinates whose offsets are computed in one matrix product
TOLERANCE = 1e-9
MOST_STEPS = 100


@dataclass(frozen=True)
class Tilt:
    """A tilt of the coordinates of a rectangle.

    Attributes
    ----------
    push : ndarray (rank,)
        P_k, the tilt that coordinate k requires of earlier ones; 0 everywhere is no tilt.
    mean : ndarray (rank,)
        μ = L'P.
    log_bound : float
        ψ at the saddle point: no weight is larger, and it bounds log P from above.
    converged : bool
    """

    push: Array
    mean: Array
    log_bound: float
    converged: bool

    def future(self, rectangle: Rectangle, k: int) -> Array:
        """Return the means ``(k,)`` by which coordinates from k on shift those before k."""
        return self.push[k:] @ rectangle.rows[k : rectangle.rank, :k]


def no_tilt(rectangle: Rectangle) -> Tilt:
    """Return the zero tilt, under which coordinates are drawn as in GHK."""
    zero = np.zeros(rectangle.rank)
    return Tilt(zero, zero, 0.0, True)


def saddle_point(rectangle: Rectangle) -> Tilt:
    """Return the tilt at the saddle point, by Newton's method with backtracking on the residual."""
    rank = rectangle.rank
    factor = rectangle.rows[:rank]
    beyond = factor @ factor.T - np.eye(rank)
    lower, upper = rectangle.lower[:rank], rectangle.upper[:rank]
    if not (lower < upper).all():
        return no_tilt(rectangle)

    s = np.zeros(rank)
    at = moments(lower - s, upper - s)
    residual = s - beyond @ at.mean
    for _ in range(MOST_STEPS):
        size = np.abs(residual).max()
        if size <= TOLERANCE * (1 + np.abs(s).max()):
            break
        step = _newton_step(beyond, at.variance, residual)
        length = 1.0
        while length > 1e-10:
            new = s - length * step
            new_at = moments(lower - new, upper - new)
            new_residual = new - beyond @ new_at.mean
            if (new_residual @ new_residual) < (1 - 1e-4 * length) * (residual @ residual):
                break
            length /= 2
        else:
            break
        s, at, residual = new, new_at, new_residual
    push = at.mean
    mean = push @ factor - push  # μ = L'P exactly, converged or not: the weights require it
    z = mean + push
    log_bound = float((0.5 * mean**2 - mean * z + at.log_p).sum())
    return Tilt(push, mean, log_bound, bool(size <= 1e-6 * (1 + np.abs(s).max())))


def _newton_step(beyond: Array, variance: Array, residual: Array) -> Array:
    """Solve (I + (S − I) W) step = residual through the similar symmetric matrix V + W^½ S W^½, W = 1 − V."""
    root = np.sqrt(np.maximum(1 - variance, 1e-12))
    symmetric = root[:, None] * beyond * root
    symmetric[np.diag_indices(len(root))] += 1.0
    return cho_solve(cho_factor(symmetric), root * residual) / root


def weigh(rectangle: Rectangle, tilt: Tilt, uniforms: Array, scale: Array | float = 1.0) -> tuple[Array, Array]:
    """Return coordinates ``(rank, n)`` drawn under a tilt from uniform numbers ``(rank, n)``, and log weights ``(n,)``.

    The bounds are multiplied by ``scale``, a number or one for each point.
    """
    rank, n = uniforms.shape
    z, log_weights = np.empty((rank, n)), np.zeros(n)
    for first in range(0, rank, PANEL):
        offsets = rectangle.rows[first : first + PANEL, :first] @ z[:first]
        for k in range(first, min(first + PANEL, rank)):
            offset = offsets[k - first] + rectangle.rows[k, first:k] @ z[first:k]
            z[k], increment = extend(rectangle, tilt, k, offset, z, uniforms[k], scale)
            log_weights += increment
    return z, log_weights


def extend(
    rectangle: Rectangle, tilt: Tilt, k: int, offset: Array, z: Array, u: Array, scale: Array | float = 1.0
) -> tuple[Array, Array]:
    """Return coordinate k, given the earlier ones, and the log of its weight."""
    lower, upper = rectangle.interval(k, offset, z, scale)
    mean = tilt.mean[k]
    x, log_p = quantile(u, lower - mean, upper - mean)
    return x + mean, log_p + (0.5 * mean**2 - tilt.push[k] * offset)

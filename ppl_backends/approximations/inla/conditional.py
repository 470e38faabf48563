r"""Improved Laplace marginals: the density of a coordinate, with a Laplace approximation of all others at each value.

    q(xⱼ = b) ∝ p(x̂(b), y) |H₋ⱼ(x̂(b))|^(−½)                (Tierney & Kadane 1986; Chopin & Ridgway 2017, section 3.2)

x̂(b) is the mode given xⱼ = b, and H₋ⱼ is the negative Hessian at x̂(b) without row and column j; it is neither that
at the joint mode nor carried from one b to the next. One batch of climbs finds the modes of all coordinates at all
grid points, each from the conditional mean of the Gaussian at the joint mode.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.interpolate import CubicSpline

from ppl_backends.approximations.marginals import Marginals
from ppl_backends.numerics.gaussian import LOG_2PI, Gaussian
from ppl_backends.numerics.jit import jit
from ppl_backends.targets.blocks import pad_rows
from ppl_backends.targets.protocol import Array, BaseTarget

HALF_WIDTH = 6.0  # standard deviations of the Gaussian that a grid covers initially
SMALLEST_DROP = 14.0  # nats below its peak that a density must have at both ends of its grid
EXTENSIONS = 4  # largest number of extensions of a grid, each by the number of standard deviations on that side
LARGEST_EDGE = 0.05  # density at an end of a grid, relative to its peak
FINE = 601  # points of a density
GAIN = 1e-6  # expected gain, in nats, below which a Newton search for a conditional mode stops
ITERATIONS, HALVINGS = 50, 25
BLOCK_BYTES = 2**26  # of the Hessians of a batch
FEW_POINTS = 64


class ConditionalModes(NamedTuple):
    """Laplace approximations of ∫ p(x, y) dx₋ⱼ at given xⱼ, in logs ``(m,)``; ``-inf`` if a climb found no mode."""

    log_integral: Array
    x: Array  # (m, d)
    iterations: int


def conditional_modes(
    target: BaseTarget, x: Array, held: NDArray[np.integer], largest_gain: float = GAIN
) -> ConditionalModes:
    """Climb from points ``x`` ``(m, d)`` to the modes given their coordinates ``held`` ``(m,)``, all at once.

    If ``held`` is −1, no coordinate is fixed, and the integral is over all of them.
    """
    x = x.copy()
    log_integral = np.full(len(x), -np.inf)
    value, gradient = (found[: len(x)] for found in target.log_density_and_gradient(_padded(x)))
    active = np.flatnonzero(np.isfinite(value))
    iterations = 0
    while len(active) and iterations < ITERATIONS:
        iterations += 1
        precision = -target.hessian(_padded(x[active]))[: len(active)]
        step, log_determinant, gain, definite = _steps(precision, gradient[active], held[active])
        constant = 0.5 * (target.dim - (held[active] >= 0)) * LOG_2PI
        settled = definite & (gain < largest_gain)
        # The expected gain of the last step is added, but the step is not made.
        log_integral[active] = np.where(settled, value[active] + gain + constant - 0.5 * log_determinant, -np.inf)
        moved = _move(target, x, value, gradient, active[~settled], step[~settled])
        active = active[~settled][moved]
    return ConditionalModes(log_integral, x, iterations)


def _steps(
    precision: Array, gradient: Array, held: NDArray[np.integer]
) -> tuple[Array, Array, Array, NDArray[np.bool_]]:
    """Return Newton steps; if H is not positive definite, use the absolute values of its eigenvalues."""
    whole = np.nan_to_num(precision)
    step, log_determinant, gain, definite = newton_steps(whole.copy(), gradient, held)
    for k in np.flatnonzero(~definite):
        free = np.arange(len(gradient[k])) != held[k]
        values, axes = np.linalg.eigh(whole[k][np.ix_(free, free)])
        safe = np.maximum(np.abs(values), 1e-8 * np.abs(values).max(initial=1e-300))
        step[k, free] = axes @ ((axes.T @ gradient[k, free]) / safe)
    return step, log_determinant, gain, definite


def _move(
    target: BaseTarget, x: Array, value: Array, gradient: Array, rows: NDArray[np.integer], step: Array
) -> NDArray[np.bool_]:
    """Make steps in place, each halved until the log density does not decrease; return which rows moved."""
    moved = np.zeros(len(rows), dtype=bool)
    for halving in range(HALVINGS):
        left = np.flatnonzero(~moved)
        if not len(left):
            break
        at = rows[left]
        trial = x[at] + 0.5**halving * step[left]
        trial_value, trial_gradient = (found[: len(at)] for found in target.log_density_and_gradient(_padded(trial)))
        better = trial_value >= value[at] - 1e-11 * np.maximum(1.0, np.abs(value[at]))
        kept = at[better]
        x[kept], value[kept], gradient[kept] = trial[better], trial_value[better], trial_gradient[better]
        moved[left[better]] = True
    return moved


def _padded(x: Array) -> Array:
    """Return the points and copies of the last: a power of two above 64 points, so that climbs need few compiled shapes."""
    return x if len(x) <= FEW_POINTS else pad_rows(x, 1 << (len(x) - 1).bit_length())


class ImprovedLaplace(NamedTuple):
    """Marginals, the log evidence that each of them integrates to ``(k,)``, and figures of the computation.

    ``edges`` ``(k,)`` are the densities at the ends of the grids, relative to their peaks.
    """

    marginals: Marginals
    log_evidence: Array
    edges: Array
    figures: dict[str, float]

    def open_end(self) -> str:
        """Return that a density has not decreased at an end of its grid; empty if all have."""
        worst = int(np.argmax(self.edges))
        if not self.edges[worst] > LARGEST_EDGE:
            return ""
        return (
            f"the density of {self.marginals.names[worst]} is still {self.edges[worst]:.0%} of its peak at an end of its "
            "grid, so the posterior may be improper"
        )


def improved_marginals(
    target: BaseTarget, q: Gaussian, names: tuple[str, ...], index: NDArray[np.integer], points: int
) -> ImprovedLaplace:
    """Return the marginals of the coordinates ``index`` of a target whose Gaussian at the mode is ``q``."""
    sd = q.sd
    z = [np.linspace(-HALF_WIDTH, HALF_WIDTH, points)] * len(index)
    cov = q.cov[:, index]
    slope = cov / np.diagonal(cov[index])  # of the conditional means in every coordinate asked for (d, k)
    curves = _on_grid(target, q.mean, sd, slope, index, np.arange(len(index)), z)
    for _ in range(EXTENSIONS):
        further = [_beyond(a, b, points) for a, b in curves]
        longer = [k for k, more in enumerate(further) if len(more)]
        if not longer:
            break
        found = _on_grid(target, q.mean, sd, slope, index, np.array(longer), [further[k] for k in longer])
        for k, (z_new, log_new) in zip(longer, found, strict=True):
            joined = np.concatenate([curves[k][0], z_new]), np.concatenate([curves[k][1], log_new])
            order = np.argsort(joined[0])
            curves[k] = joined[0][order], joined[1][order]
    failed = sum(int((~np.isfinite(log_density)).sum()) for _, log_density in curves)
    total = sum(len(log_density) for _, log_density in curves)
    grid, log_density = np.stack([_refined(*curve) for curve in curves], axis=1)
    top = log_density.max(axis=1)
    density = np.exp(log_density - top[:, None])
    mass = trapezoid(density, grid, axis=1) * sd[index]
    placed = q.mean[index, None] + sd[index, None] * grid
    marginals = Marginals.of_densities([names[j] for j in index], placed, density)
    edges = np.array([_edge(log_density) for _, log_density in curves])
    figures = {"failed_share": failed / total, "grid_points": float(total), "edge": float(edges.max())}
    return ImprovedLaplace(marginals, top + np.log(mass), edges, figures)


Curve = tuple[Array, Array]  # values of a coordinate in standard deviations from the mode, and their log densities


def _on_grid(
    target: BaseTarget,
    mode: Array,
    sd: Array,
    slope: Array,
    index: NDArray[np.integer],
    columns: NDArray[np.integer],
    z: list[Array],
) -> list[Curve]:
    """Return unnormalised log densities of some of the coordinates ``index`` at their points ``z``."""
    which = np.repeat(columns, [len(points) for points in z])
    shift = np.concatenate(z) * sd[index[which]]
    values = np.empty(len(which))
    rows = max(1, int(BLOCK_BYTES / (8 * len(mode) ** 2)))
    for start in range(0, len(which), rows):
        part = slice(start, start + rows)
        at = mode + shift[part, None] * slope[:, which[part]].T
        values[part] = conditional_modes(target, at, index[which[part]]).log_integral
    return list(zip(z, np.split(values, np.cumsum([len(points) for points in z])[:-1]), strict=True))


def _beyond(z: Array, log_density: Array, points: int) -> Array:
    """Return points beyond an end of a grid at which the density has not decreased enough."""
    finite = np.isfinite(log_density)
    top = log_density[finite].max(initial=-np.inf)
    steps = np.linspace(0, HALF_WIDTH, points // 2 + 1)[1:]
    sides = [z[0] - steps[::-1]] if finite[0] and log_density[0] > top - SMALLEST_DROP else []
    sides += [z[-1] + steps] if finite[-1] and log_density[-1] > top - SMALLEST_DROP else []
    return np.concatenate([*sides, np.empty(0)])


def _edge(log_density: Array) -> float:
    """Return the larger density at an end of a grid, relative to its peak; zero where there is none."""
    finite = np.where(np.isfinite(log_density), log_density, -np.inf)
    return float(np.exp(max(finite[0], finite[-1]) - finite.max()))


def _refined(z: Array, log_density: Array) -> Array:
    """Return a fine grid and the log densities on it ``(2, m)``, by a cubic spline of the logs."""
    known = np.isfinite(log_density)
    near = known & (log_density > log_density[known].max(initial=-np.inf) - 60)
    spline = CubicSpline(z[near], log_density[near])
    inside = np.flatnonzero(log_density[near] > log_density[near].max() - 2 * SMALLEST_DROP)
    low, high = z[near][max(0, inside[0] - 1)], z[near][min(near.sum() - 1, inside[-1] + 1)]
    fine = np.linspace(low, high, FINE)
    return np.stack([fine, spline(fine)])


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

r"""Climbs to a mode of a density, and the Gaussian there.

Newton's method uses exact gradients and Hessians. Each iteration solves in the eigenbasis of the Hessian with the
absolute values of its eigenvalues, which ascends from any point, and evaluates a geometric ladder of step lengths in
one batched call. For large models, L-BFGS first moves near the mode.

A mode is judged on the scale of the posterior itself. One figure is the Newton decrement √(∇ᵀQ⁻¹∇), the distance to
the mode in posterior standard deviations. The other is the drop of the log density one standard deviation away, which
is ½ for a Gaussian. Along a flat direction (separated data, an improper posterior) both figures are near zero. The
drop is large if the density bends away from the axis (a ring, a ridge).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import ModelError
from ppl_backends.numerics.differences import central_differences
from ppl_backends.numerics.gaussian import LOG_2PI, Gaussian
from ppl_backends.progress import ChainProgress
from ppl_backends.targets.protocol import Array, BaseTarget, Index

DECREMENT_TOLERANCE = 1e-6  # posterior standard deviations
_SAME_MODE = 1e-3  # posterior standard deviations between the ends of climbs to one mode
SMALLEST_DROP = 0.05  # of the log density at one standard deviation; a Gaussian has 0.5, a Cauchy 0.41
LARGEST_DROP = 2.0  # a skewness of 1 makes 0.67
LADDER = 2.0 ** np.arange(2, -14, -1)  # step lengths tried in one call
LARGEST_NEWTON_DIM = 300  # above it L-BFGS runs first
LARGEST_DENSE_DIM = 2000  # above it only the diagonal of the Hessian is computed
WIDEST_FALLBACK_SD = 10.0  # largest sd of a Gaussian returned if the Hessian does not give one
BLOCK_BYTES = 32e6


class _Modes(NamedTuple):
    """Results of several climbs, row by row; ``precision`` is the negative Hessian, or its diagonal."""

    x: Array
    log_density: Array
    precision: Array
    decrement: Array
    iterations: int


class ModeCheck(NamedTuple):
    """Verdict on one mode: the Gaussian there, its fault (empty if there is none), and its figures."""

    gaussian: GaussianApproximation
    trouble: str
    figures: dict[str, float]


def modes_above(target: BaseTarget, starts: Array, max_iterations: int) -> list[GaussianApproximation]:
    """Return the Gaussians at the modes that a batch of climbs from ``starts`` ``(n, dim)`` finds, each mode once."""
    with ChainProgress("Laplace", 1, (), enabled=False) as silent:
        try:
            modes = _newton(target, starts, max_iterations, silent)
        except ModelError:  # a loss without second derivatives has no Gaussian at its mode
            return []
    at_mode = _distinct(modes, np.flatnonzero(modes.decrement < DECREMENT_TOLERANCE))
    checks = [check_mode(target, modes, row) for row in at_mode]
    return [check.gaussian for check in checks if not check.trouble]


def _distinct(modes: _Modes, rows: Index) -> list[int]:
    """Return the first of the climbs, of those in ``rows``, to each mode."""
    first = list[int]()
    for row in map(int, rows):
        apart = modes.x[first] - modes.x[row]
        # On the scales of both, because a narrow mode can be near the middle of a wide one
        theirs = np.einsum("kd,kde,ke->k", apart, modes.precision[first], apart)
        own = np.einsum("kd,de,ke->k", apart, modes.precision[row], apart)
        squares = np.maximum(np.abs(theirs), np.abs(own))
        if not (squares < _SAME_MODE**2).any():
            first.append(row)
    return first


def climb(target: BaseTarget, starts: Array, dense: bool, max_iterations: int, progress: ChainProgress) -> _Modes:
    """Climb from each start to a mode."""
    if target.dim > LARGEST_NEWTON_DIM or not dense:
        starts = np.array([_quasi_newton(target, start, max_iterations, dense) for start in starts])
    if dense:
        return _newton(target, starts, max_iterations, progress)
    value, gradient = target.log_density_and_gradient(starts)
    curvature = np.array([_negative_hessian_diagonal(target, x) for x in starts])
    floored = np.maximum(np.abs(curvature), WIDEST_FALLBACK_SD**-2)
    return _Modes(starts, value, curvature, np.sqrt((gradient**2 / floored).sum(axis=1)), max_iterations)


def _newton(target: BaseTarget, x: Array, max_iterations: int, progress: ChainProgress) -> _Modes:
    """Run Newton's method from several starts ``(m, dim)`` at once."""
    m, dim = x.shape
    value, gradient = target.log_density_and_gradient(x)
    for iteration in range(max_iterations):
        precision = -np.nan_to_num(target.hessian(x))
        curvature, axes = scaled_axes(precision)
        safe = np.maximum(np.abs(curvature), 1e-12)
        slope = np.einsum("mdk,md->mk", axes, gradient)
        decrement = np.sqrt((slope**2 / safe).sum(axis=1))
        progress.update(0, iteration / max_iterations, **{"log density": value.max(), "decrement": decrement.min()})
        step = np.einsum("mdk,mk->md", axes, slope / safe)
        if (decrement < DECREMENT_TOLERANCE).all():
            x = x + step  # too short to change the log density
            break
        # If the density is flat, the step is only a direction.
        step *= np.minimum(1.0, 10 * (1 + np.abs(x).max(axis=1)) / np.abs(step).max(axis=1, initial=1e-300))[:, None]
        trial = x[:, None] + LADDER[:, None] * step[:, None]
        trial_value, trial_gradient = target.log_density_and_gradient(trial.reshape(-1, dim))
        trial_value = trial_value.reshape(m, -1)
        # Near the mode rounding decides between step lengths, and the full step is the right one.
        rounding = 1e-11 * np.maximum(1.0, np.abs(value))
        chosen = np.argmax(trial_value + rounding[:, None] * (LADDER == 1), axis=1)
        rows = np.arange(m)
        moved = trial_value[rows, chosen] >= value - rounding
        if not moved.any():
            break
        x = np.where(moved[:, None], trial[rows, chosen], x)
        value = np.where(moved, trial_value[rows, chosen], value)
        gradient = np.where(moved[:, None], trial_gradient.reshape(m, -1, dim)[rows, chosen], gradient)
    return _Modes(x, value, precision, decrement, iteration + 1)


def scaled_axes(precision: Array) -> tuple[Array, Array]:
    """Return eigenvalues c ``(m, k)`` of matrices scaled to a unit diagonal, and axes W ``(m, dim, k)``; inverse W c⁻¹ Wᵀ."""
    diagonal = np.abs(np.diagonal(precision, axis1=1, axis2=2))
    scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    curvature, axes = np.linalg.eigh(scale[:, :, None] * precision * scale[:, None, :])
    return curvature, scale[:, :, None] * axes


def _quasi_newton(target: BaseTarget, start: Array, max_iterations: int, polished: bool) -> Array:
    """Return the end point of L-BFGS ``(dim,)``; it stops earlier if Newton's method refines the mode."""

    def negative(x: Array) -> tuple[float, Array]:
        value, gradient = target.log_density_and_gradient(x[None])
        return (-float(value[0]) if np.isfinite(value[0]) else 1e300), -gradient[0]

    options: dict[str, float] = {"maxiter": 100 * max_iterations, "maxfun": 200 * max_iterations, "maxcor": 20}
    options |= {"ftol": 1e-9, "gtol": 1e-5} if polished else {"ftol": 0.0, "gtol": 1e-9}
    return minimize(negative, start, jac=True, method="L-BFGS-B", options=options).x


def _negative_hessian_diagonal(target: BaseTarget, x: Array) -> Array:
    """Return −∂²ⱼⱼ log p ``(dim,)`` by central differences of gradients, one block of coordinates per call."""
    block = max(1, int(BLOCK_BYTES / (2 * 8 * target.dim)))
    curvature = []
    for columns in np.split(np.arange(target.dim), range(block, target.dim, block)):
        slopes = central_differences(lambda points: target.log_density_and_gradient(points)[1], x[None], columns)[0]
        curvature.append(-np.diagonal(slopes[:, columns]))
    return np.concatenate(curvature)


def check_mode(target: BaseTarget, modes: _Modes, row: int) -> ModeCheck:
    """Return the Gaussian around a mode, and the reason not to trust it, if any."""
    x, precision, decrement = modes.x[row], modes.precision[row], float(modes.decrement[row])
    log_density = float(modes.log_density[row])
    if precision.ndim == 2:
        curvatures, all_axes = scaled_axes(precision[None])
        curvature, axes = curvatures[0], all_axes[0]
    else:
        curvature, axes = precision, None
    worst = int(np.argmin(curvature))
    smallest = float(curvature[worst])
    figures = {
        "newton_decrement": decrement,
        "smallest_curvature": smallest,
        "smallest_drop": float("nan"),
        "largest_drop": float("nan"),
        "iterations": float(modes.iterations),
        "log_density": log_density,
    }
    trouble = ""
    if smallest <= 0:
        where = target.names[worst if axes is None else int(np.argmax(np.abs(axes[:, worst])))]
        trouble = (
            f"the Hessian is not negative definite (smallest scaled curvature {smallest:.3g}, mostly along "
            f"{where}); no mode there"
        )
    elif not decrement < DECREMENT_TOLERANCE * (1 if axes is not None else 1e3):
        farthest = int(np.argmax(np.abs(x)))
        trouble = (
            f"no mode found in {modes.iterations} iterations (Newton decrement {decrement:.3g} posterior standard "
            f"deviations, {target.names[farthest]} at {x[farthest]:.3g} on the unconstrained scale)"
        )
    else:
        trouble = _trouble_along_axes(target, x, log_density, curvature, axes, figures)
    return ModeCheck(_gaussian(target, x, precision, curvature, axes, trouble, figures), trouble, figures)


def _trouble_along_axes(
    target: BaseTarget, mode: Array, log_density: float, curvature: Array, axes: Array | None, figures: dict[str, float]
) -> str:
    """Return the fault of the log density one standard deviation away along the axes; store drops in ``figures``."""
    if axes is None:  # as many points as for a dense matrix: the widest coordinates
        widest = np.argsort(curvature)[:LARGEST_NEWTON_DIM]
        steps = np.zeros((len(widest), target.dim))
        steps[np.arange(len(widest)), widest] = curvature[widest] ** -0.5
    else:
        steps = (axes / np.sqrt(curvature)).T
    value, _ = target.log_density_and_gradient(np.concatenate([mode + steps, mode - steps]))
    drop = log_density - value
    smallest, largest = int(np.argmin(drop)), int(np.argmax(drop))
    figures["smallest_drop"], figures["largest_drop"] = float(drop[smallest]), float(drop[largest])

    def at(row: int) -> str:
        step = steps[row % len(steps)]
        where = target.names[int(np.argmax(np.abs(step)))]
        return (
            f"along {where}: one standard deviation ({np.linalg.norm(step):.3g}) away its log falls by {drop[row]:.2g}"
        )

    if not drop[smallest] >= SMALLEST_DROP:
        return f"the density is nearly flat {at(smallest)}, not 0.5 (separated data or an improper posterior?)"
    if not drop[largest] <= LARGEST_DROP:
        where = "as on a ridge, in a funnel, or with separated data under a flat prior; no Gaussian at a mode fits"
        return f"the density is curved {at(largest)}, not 0.5, {where}"
    return ""


def _gaussian(
    target: BaseTarget,
    mode: Array,
    precision: Array,
    curvature: Array,
    axes: Array | None,
    trouble: str,
    figures: dict[str, float],
) -> GaussianApproximation:
    """Return the Gaussian at a mode; if there is trouble, one with bounded widths."""
    about: dict[str, Any] = {"target": target, "method": "laplace", "diagnostics": figures}
    about |= {"converged": not trouble, "trouble": trouble}
    if trouble and precision.ndim == 2:
        eigenvalues, vectors = np.linalg.eigh(precision)
        root = vectors / np.sqrt(np.maximum(np.abs(eigenvalues), WIDEST_FALLBACK_SD**-2))
        return GaussianApproximation(mode, cholesky=_lower(root), **about)
    if axes is None:
        floored = np.maximum(np.abs(precision), WIDEST_FALLBACK_SD**-2) if trouble else precision
        return GaussianApproximation(mode, precision=floored, **about)
    q = Gaussian(mode, _lower(axes / np.sqrt(curvature)))
    log_evidence = figures["log_density"] + 0.5 * target.dim * LOG_2PI + 0.5 * q.log_determinant
    return GaussianApproximation(mode, cholesky=q.factor, log_evidence=log_evidence, **about)


def _lower(root: Array) -> Array:
    """Return a lower triangular L with L Lᵀ = root rootᵀ; do not compute the product, which rounding may make indefinite."""
    upper: Array = np.linalg.qr(root.T)[1]
    return upper.T * np.sign(np.diagonal(upper))

r"""The Laplace approximation N(mode, Q⁻¹), Q = −∇² log p(mode, y), and its evidence.

    log Z ≈ log p(mode, y) + (d/2) log 2π − ½ log |Q|          (Chopin & Ridgway 2017, section 2.3.1)

The mode is found by Newton's method with exact gradients and Hessian. Each iteration solves in the eigenbasis of the
Hessian with the absolute values of its eigenvalues, which ascends from any point, and evaluates a geometric ladder of
step lengths in one batched call. Large models are first brought near the mode by L-BFGS.

Convergence is judged on the scale of the posterior itself: by the Newton decrement √(∇ᵀQ⁻¹∇), which is the distance to
the mode in posterior standard deviations, and by the drop of the log density one standard deviation away, which is ½
for a Gaussian and vanishes along a flat direction (separated data, an improper posterior), where the decrement vanishes
too.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from ppl_backends.approximations.gaussian import LOG_2PI, GaussianApproximation
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.errors import ApproximationWarning, ModelError, PriorSamplingError
from ppl_backends.options import array, checked, choice, instance, integer, none
from ppl_backends.progress import ChainProgress
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.targets.power import with_power
from ppl_backends.targets.protocol import Array, BaseTarget, as_points, explain_point, named_point

__all__ = ["fit_laplace", "with_other_modes"]

DECREMENT_TOLERANCE = 1e-6  # posterior standard deviations
SMALLEST_DROP = 0.05  # of the log density at one standard deviation; a Gaussian has 0.5, a Cauchy 0.41
LADDER = 2.0 ** np.arange(2, -14, -1)  # step lengths tried in one call
LARGEST_NEWTON_DIM = 300  # above it L-BFGS goes first
LARGEST_DENSE_DIM = 2000  # above it only the diagonal of the Hessian is formed
FALLBACK_STARTS = 8
OTHER_STARTS = 8
APART = 0.1  # posterior standard deviations between two modes
SMALLEST_SHARE = 1e-6  # of the evidence, of modes that are kept
WIDEST_FALLBACK_SD = 10.0  # of a Gaussian returned although the Hessian does not give one
BLOCK_BYTES = 32e6


class _Modes(NamedTuple):
    """Where several climbs ended: row by row.

    Attributes
    ----------
    x : ndarray (starts, dim)
    log_density : ndarray (starts,)
    precision : ndarray (starts, dim, dim) or (starts, dim)
        Negative Hessian, or its diagonal.
    decrement : ndarray (starts,)
    iterations : int
    """

    x: Array
    log_density: Array
    precision: Array
    decrement: Array
    iterations: int


class _Check(NamedTuple):
    """Verdict on one mode: the Gaussian there, what is wrong with it (empty where nothing is), and its figures."""

    gaussian: GaussianApproximation
    trouble: str
    figures: dict[str, float]


@checked(
    start=none | instance(Mapping, "a dict of values by name") | array("an array (dim,)"),
    representation=choice("auto", "dense", "diagonal"),
    max_iterations=integer(1),
)
def fit_laplace(
    model: Any = None,
    *,
    data: Any = None,
    start: Any = None,
    representation: str = "auto",
    max_iterations: int = 100,
    power: float = 1.0,
    power_potentials: bool = False,
    random_seed: SeedLike = None,
    progressbar: bool = True,
    **target_options: Any,
) -> GaussianApproximation:
    """Laplace approximation of a posterior on the unconstrained space.

    Parameters
    ----------
    model : pymc.Model, Stan model or target, optional
        The PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan model.
    start : array (dim,) or (n_starts, dim), or dict, optional
        Where to start, on the unconstrained space, or in model space as a dict. By default the origin of the
        unconstrained space, and if that fails eight dispersed points at once.
    representation : {"auto", "dense", "diagonal"}
        ``"auto"`` is dense up to 2,000 coordinates and diagonal above. A diagonal Gaussian has the *conditional*
        variances −1 / ∂²ⱼⱼ and no evidence.
    max_iterations : int
    power : float
        α of the tempered posterior p(θ)L(θ)^α; Potentials keep power one unless ``power_potentials``.
    power_potentials : bool
    random_seed : int or numpy.random.Generator, optional
        For the dispersed starts.
    progressbar : bool
    **target_options
        Passed on to :func:`ppl_backends.as_target`.

    Returns
    -------
    GaussianApproximation
        With ``converged``, ``log_evidence`` (NaN where it did not converge) and ``diagnostics``: ``newton_decrement``,
        ``smallest_curvature`` (eigenvalue of −∇² log p scaled to a unit diagonal), ``smallest_drop``, ``iterations``.

    Raises
    ------
    ModelError
        If no start has a finite density.

    Warns
    -----
    ApproximationWarning
        If no mode was found, the Hessian there is not negative definite, or the density is flat in some direction. The
        Gaussian returned is then a usable start, no wider than 10 in any direction, with ``converged=False``.

    Examples
    --------
    >>> from ppl_backends.targets import FunctionTarget
    >>> gaussian = FunctionTarget(2, lambda x: (-0.5 * ((x - 3) ** 2).sum(1), 3 - x))
    >>> q = fit_laplace(gaussian, progressbar=False)
    >>> q.mean.round(6), bool(np.isclose(q.log_evidence, np.log(2 * np.pi)))
    (array([3., 3.]), True)
    """
    from ppl_backends.targets.convert import as_target

    target = with_power(as_target(model, data, **target_options), power, power_potentials)
    dense = representation == "dense" or (representation == "auto" and target.dim <= LARGEST_DENSE_DIM)
    (rng,) = spawn_generators(random_seed, 1)

    best: _Check | None = None
    progress = ChainProgress("Laplace", 1, ("log density", "decrement"), enabled=progressbar)
    with progress, np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # long steps leave the support
        for starts in _starting_points(target, start, rng):
            modes = _climb(target, starts, dense, max_iterations, progress)
            checks = [_check(target, modes, row) for row in range(len(modes.x))]
            found = min(checks, key=lambda check: (check.trouble != "", -check.figures["log_density"]))
            if best is None or found.trouble == "":
                best = found
            if best.trouble == "":
                break
        progress.update(0, 1.0)
    if best is None:
        raise ModelError(_nowhere_finite(target, start))
    if best.trouble:
        warnings.warn(f"Laplace approximation of {target.label}: {best.trouble}", ApproximationWarning, stacklevel=3)
    return best.gaussian


def with_other_modes(target: BaseTarget, found: GaussianApproximation) -> GaussianApproximation | MixtureApproximation:
    """A Laplace approximation with the modes added that climbs from eight draws of the prior lead to.

    Parameters
    ----------
    target : BaseTarget
    found : GaussianApproximation
        At one mode. Where there is no other, it is returned as it is; so it is above 300 coordinates, where none is
        looked for.

    Returns
    -------
    GaussianApproximation or MixtureApproximation
        Gaussians at the modes, weighted by their Laplace evidences. The draws are the same in every call.
    """
    if not found.converged or target.dim > LARGEST_NEWTON_DIM:
        return found
    modes, silent = [found], ChainProgress("Laplace", 1, (), enabled=False)
    with silent, np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for start in _dispersed(target, np.random.default_rng(0)):
            end = _quasi_newton(target, start, 1, True)
            if _is_known(end, modes):
                continue
            climbed = _newton(target, end[None], 100, silent)
            check = _check(target, climbed, 0)
            if not check.trouble and not _is_known(check.gaussian.mean, modes):
                modes.append(check.gaussian)
    evidence = np.array([mode.log_evidence for mode in modes])
    weights = np.exp(evidence - evidence.max())
    modes = [mode for mode, weight in zip(modes, weights, strict=True) if weight > SMALLEST_SHARE]
    if len(modes) == 1:
        return modes[0]
    return MixtureApproximation(
        weights[weights > SMALLEST_SHARE],
        np.stack([mode.mean for mode in modes]),
        np.stack([mode.cov for mode in modes]),
        target=target,
        method="laplace",
        log_evidence=float(np.logaddexp.reduce(evidence)),
        diagnostics={"modes": float(len(modes))},
    )


def _dispersed(target: BaseTarget, rng: np.random.Generator) -> Array:
    """Points of finite density to look for modes from: of the prior, where it can be drawn from."""
    try:
        points = target.sample_prior(OTHER_STARTS, rng)
    except PriorSamplingError:
        points = target.initial_points(OTHER_STARTS, rng)
    return points[np.isfinite(target.log_density_and_gradient(points)[0])]


def _is_known(x: Array, modes: list[GaussianApproximation]) -> bool:
    """Whether a point is at one of the modes, on the scale of the Gaussians there."""
    return any(float(np.sum((mode.whiten(x[None])) ** 2)) < APART**2 for mode in modes)


def _starting_points(target: BaseTarget, start: Any, rng: np.random.Generator):
    """Batches of starts of finite density ``(n, dim)``: what was asked for or the origin, then dispersed points."""
    if isinstance(start, Mapping):
        start = named_point(target, start, "start")
    first = np.zeros((1, target.dim)) if start is None else as_points(start, target.dim)
    for points in (lambda: first, lambda: target.initial_points(FALLBACK_STARTS, rng)):
        candidates = points()
        finite = np.isfinite(target.log_density_and_gradient(candidates)[0])
        if finite.any():
            yield candidates[finite]


def _nowhere_finite(target: BaseTarget, start: Any) -> str:
    """The error message when every start has density zero."""
    origin = np.zeros(target.dim) if start is None else start
    reason = "" if isinstance(origin, Mapping) else explain_point(target, np.ravel(origin))
    return f"{target.label}: the log density is not finite at any start; {reason or 'give start= or check the data'}"


def _climb(target: BaseTarget, starts: Array, dense: bool, max_iterations: int, progress: ChainProgress) -> _Modes:
    """From each start to a mode."""
    if target.dim > LARGEST_NEWTON_DIM or not dense:
        starts = np.array([_quasi_newton(target, start, max_iterations, dense) for start in starts])
    if dense:
        return _newton(target, starts, max_iterations, progress)
    value, gradient = target.log_density_and_gradient(starts)
    curvature = np.array([_negative_hessian_diagonal(target, x) for x in starts])
    floored = np.maximum(np.abs(curvature), WIDEST_FALLBACK_SD**-2)
    return _Modes(starts, value, curvature, np.sqrt((gradient**2 / floored).sum(axis=1)), max_iterations)


def _newton(target: BaseTarget, x: Array, max_iterations: int, progress: ChainProgress) -> _Modes:
    """Newton's method from several starts ``(m, dim)`` at once."""
    m, dim = x.shape
    value, gradient = target.log_density_and_gradient(x)
    for iteration in range(max_iterations):
        precision = -np.nan_to_num(target.hessian(x))
        curvature, axes = _curvature(precision)
        safe = np.maximum(np.abs(curvature), 1e-12)
        slope = np.einsum("mdk,md->mk", axes, gradient)
        decrement = np.sqrt((slope**2 / safe).sum(axis=1))
        progress.update(0, iteration / max_iterations, **{"log density": value.max(), "decrement": decrement.min()})
        step = np.einsum("mdk,mk->md", axes, slope / safe)
        if (decrement < DECREMENT_TOLERANCE).all():
            x = x + step  # too short to be seen in the log density
            break
        # Where the density is flat the step is only a direction.
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


def _curvature(precision: Array) -> tuple[Array, Array]:
    """Eigenvalues c ``(m, k)`` of matrices scaled to a unit diagonal, and axes W ``(m, dim, k)``; inverse W c⁻¹ Wᵀ."""
    diagonal = np.abs(np.diagonal(precision, axis1=1, axis2=2))
    scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    curvature, axes = np.linalg.eigh(scale[:, :, None] * precision * scale[:, None, :])
    return curvature, scale[:, :, None] * axes


def _quasi_newton(target: BaseTarget, start: Array, max_iterations: int, polished: bool) -> Array:
    """Where L-BFGS ends ``(dim,)``; it goes less far if Newton's method polishes the mode."""

    def negative(x: Array) -> tuple[float, Array]:
        value, gradient = target.log_density_and_gradient(x[None])
        return (-float(value[0]) if np.isfinite(value[0]) else 1e300), -gradient[0]

    options: dict[str, float] = {"maxiter": 100 * max_iterations, "maxfun": 200 * max_iterations, "maxcor": 20}
    options |= {"ftol": 1e-9, "gtol": 1e-5} if polished else {"ftol": 0.0, "gtol": 1e-9}
    return minimize(negative, start, jac=True, method="L-BFGS-B", options=options).x


def _negative_hessian_diagonal(target: BaseTarget, x: Array) -> Array:
    """−∂²ⱼⱼ log p ``(dim,)`` by central differences of gradients, a block of coordinates a call."""
    dim = target.dim
    step = np.cbrt(np.finfo(float).eps) * np.maximum(1.0, np.abs(x))
    block = max(1, int(BLOCK_BYTES / (2 * 8 * dim)))
    curvature = np.empty(dim)
    for first in range(0, dim, block):
        columns = np.arange(first, min(first + block, dim))
        rows = np.arange(len(columns))
        shift = np.zeros((len(columns), dim))
        shift[rows, columns] = step[columns]
        _, gradient = target.log_density_and_gradient(np.concatenate([x + shift, x - shift]))
        up, down = gradient[rows, columns], gradient[len(rows) + rows, columns]
        curvature[columns] = (down - up) / (2 * step[columns])
    return curvature


def _check(target: BaseTarget, modes: _Modes, row: int) -> _Check:
    """Is this a mode with a Gaussian around it? Says what is wrong, and makes the Gaussian in either case."""
    x, precision, decrement = modes.x[row], modes.precision[row], float(modes.decrement[row])
    log_density = float(modes.log_density[row])
    if precision.ndim == 2:
        curvatures, all_axes = _curvature(precision[None])
        curvature, axes = curvatures[0], all_axes[0]
    else:
        curvature, axes = precision, None
    worst = int(np.argmin(curvature))
    smallest = float(curvature[worst])
    figures = {
        "newton_decrement": decrement,
        "smallest_curvature": smallest,
        "smallest_drop": float("nan"),
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
        where = target.names[int(np.argmax(np.abs(x)))]
        trouble = (
            f"no mode found in {modes.iterations} iterations (Newton decrement {decrement:.3g} posterior standard "
            f"deviations, largest coordinate {where} = {np.abs(x).max():.3g})"
        )
    else:
        figures["smallest_drop"], where, sd = _smallest_drop(target, x, log_density, curvature, axes)
        if not figures["smallest_drop"] >= SMALLEST_DROP:
            trouble = (
                f"the density is nearly flat along {where}: one standard deviation ({sd:.3g}) away its log falls by "
                f"{figures['smallest_drop']:.2g}, not 0.5 (separated data or an improper posterior?)"
            )
    return _Check(_gaussian(target, x, precision, curvature, axes, trouble, figures), trouble, figures)


def _smallest_drop(
    target: BaseTarget, mode: Array, log_density: float, curvature: Array, axes: Array | None
) -> tuple[float, str, float]:
    """Smallest fall of the log density one standard deviation away along the axes, whose name and length follow."""
    if axes is None:  # as many points as a dense check: the widest coordinates
        widest = np.argsort(curvature)[:LARGEST_NEWTON_DIM]
        steps = np.zeros((len(widest), target.dim))
        steps[np.arange(len(widest)), widest] = curvature[widest] ** -0.5
    else:
        steps = (axes / np.sqrt(curvature)).T
    value, _ = target.log_density_and_gradient(np.concatenate([mode + steps, mode - steps]))
    drop = log_density - value
    worst = steps[int(np.argmin(drop)) % len(steps)]
    return float(drop.min()), target.names[int(np.argmax(np.abs(worst)))], float(np.linalg.norm(worst))


def _gaussian(
    target: BaseTarget,
    mode: Array,
    precision: Array,
    curvature: Array,
    axes: Array | None,
    trouble: str,
    figures: dict[str, float],
) -> GaussianApproximation:
    """The Gaussian at a mode; where there is trouble, one with bounded widths in its place."""
    about: dict[str, Any] = {"target": target, "method": "laplace", "diagnostics": figures, "converged": not trouble}
    if trouble and precision.ndim == 2:
        eigenvalues, vectors = np.linalg.eigh(precision)
        root = vectors / np.sqrt(np.maximum(np.abs(eigenvalues), WIDEST_FALLBACK_SD**-2))
        return GaussianApproximation(mode, root @ root.T, **about)
    if axes is None:
        floored = np.maximum(np.abs(precision), WIDEST_FALLBACK_SD**-2) if trouble else precision
        return GaussianApproximation(mode, precision=floored, **about)
    gaussian = GaussianApproximation(mode, (axes / curvature) @ axes.T, **about)
    gaussian.log_evidence = figures["log_density"] + 0.5 * target.dim * LOG_2PI + 0.5 * gaussian.log_determinant
    return gaussian

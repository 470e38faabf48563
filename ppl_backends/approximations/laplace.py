r"""The Laplace approximation N(mode, Q⁻¹), Q = −∇² log p(mode, y), and its evidence.

    log Z ≈ log p(mode, y) + (d/2) log 2π − ½ log |Q|          (Chopin & Ridgway 2017, section 2.3.1)

:mod:`.newton` finds the mode, :mod:`.verdict` compares the Gaussian there with the posterior at 256 points of the
Gaussian, and climbs from draws of the prior of high density that the Gaussian does not explain search for another
mode.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from ppl_backends.approximations.elsewhere import NEGLIGIBLE_SHARE, is_log_concave, judge_elsewhere
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.newton import LARGEST_DENSE_DIM, ModeCheck, check_mode, climb, scaled_axes
from ppl_backends.approximations.verdict import POINTS, evidence_seen, judge_gaussian
from ppl_backends.errors import ApproximationWarning, ModelError, user_level
from ppl_backends.options import array, checked, choice, instance, integer, none
from ppl_backends.progress import ChainProgress
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.targets.power import with_power
from ppl_backends.targets.propriety import endless_direction, has_proper_prior, improper_coordinate
from ppl_backends.targets.protocol import BaseTarget, as_points, named_point

FALLBACK_STARTS = 8
MAX_ITERATIONS = 100
FLATTEST, RAYS = 10, 8  # directions of least curvature, and points, from which rays are followed


@checked(
    initvals=none | instance(Mapping, "a dict of values by name") | array("an array (dim,)"),
    representation=choice("auto", "dense", "diagonal"),
    max_iterations=integer(1),
)
def fit_laplace(
    model: Any = None,
    *,
    data: Any = None,
    initvals: Any = None,
    representation: str = "auto",
    max_iterations: int = MAX_ITERATIONS,
    power: float = 1.0,
    power_potentials: bool = False,
    random_seed: SeedLike = None,
    progressbar: bool = True,
    **target_options: Any,
) -> GaussianApproximation:
    """Fit the Laplace approximation of a posterior on the unconstrained space.

    Parameters
    ----------
    model : pymc.Model, Stan model or target, optional
        The PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan model.
    initvals : array (dim,) or (n_starts, dim), or dict, optional
        Start on the unconstrained space, or in model space as a dict. By default the origin of the unconstrained
        space, and if that fails eight dispersed points at once. These are draws of the prior where the support depends
        on the data and a model's own starting points are outside of it.
    representation : {"auto", "dense", "diagonal"}
        ``"auto"`` is dense up to 2,000 coordinates and diagonal above. A diagonal Gaussian has the *conditional*
        variances −1 / ∂²ⱼⱼ and no evidence.
    max_iterations : int
    power : float
        α of the tempered posterior p(θ)L(θ)^α; Potentials keep power one unless ``power_potentials``.
    power_potentials : bool
    random_seed : int or numpy.random.Generator, optional
        Seed of the dispersed starts.
    progressbar : bool
    **target_options
        Passed to :func:`ppl_backends.as_target`.

    Returns
    -------
    GaussianApproximation
        ``converged`` is True if the Gaussian can be used in place of the posterior. Then there is a mode. 256 points show
        no posterior mean that is off by more than a fifth of a standard deviation, and no standard deviation that is off
        by more than a fifth. A search from draws of the prior finds no other mode with more than 1 % of the mass, and no
        wider region around the Gaussian changes a moment by a fifth. (A diagonal Gaussian is not compared, a log-concave
        density has one mode, and above 300 coordinates there is no search.) Otherwise ``trouble`` has the reason.
        ``log_evidence`` is NaN if there is no mode. ``diagnostics`` has ``newton_decrement``, ``smallest_curvature``
        (eigenvalue of −∇² log p scaled to a unit diagonal), ``smallest_drop``, ``largest_drop``, ``iterations`` and, from
        the points, ``mean_shift``, ``sd_ratio``, ``evidence_shift``, ``distance``, ``pareto_k``, ``tail_share``,
        ``importance_efficiency``, ``other_mode_share`` and ``around_share``.

    Raises
    ------
    ModelError
        If no start has a finite density.

    Warns
    -----
    ApproximationWarning
        If no mode was found, the Hessian there is not negative definite, or the density is flat or not quadratic in
        some direction; the Gaussian returned is then no wider than 10 in any direction. If the density does not fall
        in some direction, the posterior is improper, and the warning says so. Also if there is a mode, but the
        points show that the Gaussian there differs from the posterior, or a search finds another mode. In all cases
        ``converged`` is False.

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
    q = gaussian_at_mode(target, initvals, dense, max_iterations, random_seed, progressbar)
    if q.converged and dense and not is_log_concave(target):
        q = _judged(q, *judge_elsewhere(target, q))
    if q.trouble:
        text = f"Laplace approximation of {target.label}: {q.trouble}{_advice(q)}"
        warnings.warn(text, ApproximationWarning, stacklevel=user_level())
    return q


def _best(target: BaseTarget, checks: list[ModeCheck]) -> ModeCheck:
    """Return the highest mode without trouble; else the Gaussian whose points see the largest evidence."""
    sound = [check for check in checks if not check.trouble]
    if sound:
        return max(sound, key=lambda check: check.figures["log_density"])
    return max(checks, key=lambda check: evidence_seen(target, check.gaussian))


def _advice(q: GaussianApproximation) -> str:
    """Return advice on methods for a posterior far from the Gaussian at its mode."""
    if is_improper(q):
        return ""
    if q.diagnostics.get("other_mode_share", 0.0) > NEGLIGIBLE_SHARE:
        return ": use sample_importance or sample_smc(initial='auto'), which start from all modes"
    if np.isfinite(q.log_evidence):
        return ": use fit_vi for a closer Gaussian, or sample_smc for the posterior itself"
    return ": use sample_smc, which needs no mode"


def gaussian_at_mode(
    target: BaseTarget,
    start: Any = None,
    dense: bool = True,
    max_iterations: int = MAX_ITERATIONS,
    random_seed: SeedLike = None,
    progressbar: bool = False,
) -> GaussianApproximation:
    """Fit the Gaussian at one mode and compare it with the posterior there; do not warn or search for another mode."""
    best = find_mode(target, start, dense, max_iterations, random_seed, progressbar)
    return best.gaussian if best.trouble or not dense else _compared(target, best.gaussian)


def find_mode(
    target: BaseTarget,
    start: Any = None,
    dense: bool = True,
    max_iterations: int = MAX_ITERATIONS,
    random_seed: SeedLike = None,
    progressbar: bool = False,
) -> ModeCheck:
    """Return the best end point of the climbs, with the Gaussian there and its faults."""
    (rng,) = spawn_generators(random_seed, 1)
    best = _end_of_climbs(target, start, dense, max_iterations, rng, progressbar)
    return _judged_as_proper(target, best, rng) if best.trouble and dense and not has_proper_prior(target) else best


def _end_of_climbs(
    target: BaseTarget, start: Any, dense: bool, max_iterations: int, rng: np.random.Generator, progressbar: bool
) -> ModeCheck:
    """Return the highest mode, or the best end point if there is none."""
    best: ModeCheck | None = None
    progress = ChainProgress("Laplace", 1, ("log density", "decrement"), enabled=progressbar)
    with progress, np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # long steps leave the support
        for starts in _starting_points(target, start, rng):
            modes = climb(target, starts, dense, max_iterations, progress)
            checks = [check_mode(target, modes, row) for row in range(len(modes.x))]
            best = _best(target, [*checks, *([best] if best else [])])
            if best.trouble == "":
                break
        progress.update(0, 1.0)
    if best is None:
        raise ModelError(_nowhere_finite(target, start))
    return best


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def _judged_as_proper(target: BaseTarget, end: ModeCheck, rng: np.random.Generator) -> ModeCheck:
    """Return the end point of a climb without a mode; its fault is the improper posterior if the climb has no end."""
    q = end.gaussian
    curvature, axes = scaled_axes(-np.nan_to_num(target.hessian(q.mean[None])))
    flattest = axes[0][:, np.argsort(np.abs(curvature[0]))[:FLATTEST]]
    rays = np.concatenate([q.mean[None], flattest.T, np.eye(target.dim)])
    length = np.linalg.norm(rays, axis=1, keepdims=True)
    points = np.concatenate([q.mean[None], q.sample(RAYS, rng)])
    direction = endless_direction(target, points, (rays / np.maximum(length, 1e-300))[length[:, 0] > 0])
    if direction is None:
        return end
    name = target.names[int(np.argmax(np.abs(direction)))]
    trouble = (
        f"the posterior is improper: its density does not fall along {name}, as with separated data under a flat prior; "
        f"give {name.partition('[')[0]} a proper prior"
    )
    figures = end.figures | {"improper": 1.0}
    return ModeCheck(q.replaced(trouble=trouble, diagnostics=q.diagnostics | figures), trouble, figures)


def is_improper(q: Any) -> bool:
    """Return whether a climb without an end showed that the posterior is improper."""
    return bool(q.diagnostics.get("improper", 0.0))


def proper(target: BaseTarget, q: GaussianApproximation) -> GaussianApproximation:
    """Return the Gaussian; raise an error if the posterior is improper, because samplers would not end on it."""
    if is_improper(q):
        raise ModelError(f"{target.label}: {q.trouble}")
    return q


def endless_climb(target: BaseTarget) -> GaussianApproximation | None:
    """Return the end of a climb that shows that the posterior is improper, looked for if the prior is; else None."""
    if not target.has_gradient or improper_coordinate(target) is None:
        return None
    rng = np.random.default_rng(0)  # the same in every call
    try:
        best = _end_of_climbs(target, None, True, MAX_ITERATIONS, rng, False)
    except ModelError:  # no start has a finite density
        return None
    q = _judged_as_proper(target, best, rng).gaussian if best.trouble else best.gaussian
    return q if is_improper(q) else None


def _compared(target: BaseTarget, q: GaussianApproximation) -> GaussianApproximation:
    """Return the Gaussian at a mode with the verdict of its points."""
    verdict = judge_gaussian(target, q)
    trouble = ""
    if verdict.trouble:
        trouble = (
            f"there is a mode, but the Gaussian there is not the posterior: by {POINTS} of its points {verdict.trouble}"
        )
    return _judged(q, trouble, verdict.figures)


def _judged(q: GaussianApproximation, trouble: str, figures: Mapping[str, float]) -> GaussianApproximation:
    """Return the same Gaussian with its faults and more figures."""
    return q.replaced(converged=not trouble, trouble=trouble, diagnostics=q.diagnostics | dict(figures))


def _starting_points(target: BaseTarget, start: Any, rng: np.random.Generator):
    """Return batches of starts of finite density ``(n, dim)``: the given ones or the origin, then dispersed points."""
    if isinstance(start, Mapping):
        start = named_point(target, start, "initvals")
    first = np.zeros((1, target.dim)) if start is None else as_points(start, target.dim)
    for points in (lambda: first, lambda: target.initial_points(FALLBACK_STARTS, rng)):
        candidates = points()
        finite = np.isfinite(target.log_density_and_gradient(candidates)[0])
        if finite.any():
            yield candidates[finite]


def _nowhere_finite(target: BaseTarget, start: Any) -> str:
    """Return the error message if every start has density zero."""
    origin = np.zeros(target.dim) if start is None else start
    reason = "" if isinstance(origin, Mapping) else target.explain(np.ravel(origin))
    return f"{target.label}: the log density is not finite at any start; {reason or 'give initvals= or check the data'}"

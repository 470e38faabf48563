"""``fit_inla``: improved Laplace marginals of a posterior, and integrated Laplace approximations over hyper-parameters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.stats import norm

from ppl_backends.approximations.elsewhere import log_concave_factors, reason_of_another_mode, share_of_another_mode
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.inla.conditional import FINE, improved_marginals
from ppl_backends.approximations.inla.integrated import IntegratedLaplace, SparseLatent, integrate
from ppl_backends.approximations.inla.named import NamedHyperParameters
from ppl_backends.approximations.inla.result import INLAApproximation
from ppl_backends.approximations.laplace import find_mode, is_improper
from ppl_backends.approximations.marginals import Marginals, chosen
from ppl_backends.approximations.verdict import POINTS, evidence_seen, judge_gaussian
from ppl_backends.approximations.without_draws import mode_missed_by
from ppl_backends.errors import ApproximationWarning, ModelError, user_level
from ppl_backends.numerics.gaussian import MAX_DENSE_DIM
from ppl_backends.options import array, checked, choice, entries, instance, integer, none
from ppl_backends.progress import ChainProgress
from ppl_backends.random import SeedLike
from ppl_backends.targets.power import with_power
from ppl_backends.targets.protocol import Array, BaseTarget, named_point

LARGEST_FAILED_SHARE = 0.05  # of grid points without a conditional mode
SMALLEST_SD = 1e-10  # of a Gaussian on a grid, relative to its mean
GAUSSIAN_RANGE = 7.0  # standard deviations on the grid of a coordinate that keeps its Gaussian


@checked(
    initvals=none | instance(Mapping, "a dict of values by name") | array("an array (dim,)"),
    points=integer(9),
    coordinates=none | entries("names or integers", at_least=1),
    hyper=choice("auto", None) | entries("one to six names or integers", at_least=1),
)
def fit_inla(
    model: Any = None,
    *,
    data: Any = None,
    coordinates: Any = None,
    hyper: Any = "auto",
    points: int = 25,
    initvals: Any = None,
    power: float = 1.0,
    power_potentials: bool = False,
    random_seed: SeedLike = None,
    progressbar: bool = True,
    **target_options: Any,
) -> INLAApproximation | IntegratedLaplace:
    """Fit improved Laplace marginals: at every value of a coordinate, a Laplace approximation of all the others.

    A latent Gaussian model with hyper-parameters is instead fitted at each point of a lattice of hyper-parameters, and
    the fits are integrated over the lattice.

    Parameters
    ----------
    model : pymc.Model, Stan model or target, optional
        The PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan model.
    coordinates : sequence of int or str, optional
        Unconstrained coordinates whose marginals are improved; all by default. The others keep the Gaussian at the
        mode. The cost of one coordinate is ``points`` Newton climbs in all the others; each step costs a Hessian and
        its Cholesky factor.
    hyper : "auto", sequence of int or str, or None
        Variables or unconstrained coordinates that are hyper-parameters, one to six coordinates, to be integrated
        over; every other coordinate of any model is then latent. Names of those that ``"auto"`` finds mean ``"auto"``,
        unless there are ``initvals``. ``"auto"``: those without which the model is a
        Gaussian times sites of one linear predictor each, found as by :func:`~ppl_backends.fit_ep`, or those of a
        :class:`~ppl_backends.LatentGaussian`. None: there are none.
    points : int
        Number of values of every coordinate, up to six standard deviations on both sides of the mode; more are added
        if the density has not fallen by 14 nats there. Between them its log is a cubic spline.
    initvals : array (dim,) or (n_starts, dim), or dict, optional
        Starting points of the search for the mode, as for :func:`~ppl_backends.fit_laplace`.
    power : float
        α of the tempered posterior p(θ)L(θ)^α; Potentials keep power one unless ``power_potentials``.
    power_potentials : bool
    random_seed : int or numpy.random.Generator, optional
        Seed of dispersed starts, used if the origin leads to no mode.
    progressbar : bool
    **target_options
        Passed to :func:`ppl_backends.as_target`.

    Returns
    -------
    INLAApproximation, or IntegratedLaplace if there are hyper-parameters
        With ``pdf``, ``cdf``, ``quantile``, ``mean``, ``sd``, ``log_evidence`` and ``to_inference_data``. ``converged`` is
        True if the result can be used: there is a mode, climbs find no other, and 256 points weighted by the posterior
        show no mean off by more than a fifth of a standard deviation and no standard deviation off by a fifth. With
        hyper-parameters the points φ must also cover their posterior. Otherwise ``trouble`` has the reason.

    Raises
    ------
    ModelError
        If no start has a finite density, or there are more than 4,000 coordinates.

    Warns
    -----
    ApproximationWarning
        If ``converged`` is False. Without a mode, the marginals are those of a Gaussian of bounded width.

    References
    ----------
    Tierney & Kadane (1986), Accurate approximations for posterior moments and marginal densities. Rue, Martino & Chopin
    (2009), Approximate Bayesian inference for latent Gaussian models. Chopin & Ridgway (2017), Leave Pima Indians alone,
    section 3.2.

    Examples
    --------
    The logarithm of a Gamma(7) variable has mean ψ(7) and variance ψ′(7).

    >>> import numpy as np
    >>> from scipy.special import polygamma
    >>> from ppl_backends.targets import FunctionTarget
    >>> log_gamma = FunctionTarget(1, lambda x: ((7 * x - np.exp(x)).sum(1), 7 - np.exp(x)))
    >>> q = fit_inla(log_gamma, progressbar=False)
    >>> np.allclose([q.mean[0], q.sd[0] ** 2], polygamma([0, 1], 7), atol=1e-4)
    True
    """
    from ppl_backends.targets.convert import as_target

    target = with_power(as_target(model, data, **target_options), power, power_potentials)
    if target.dim > MAX_DENSE_DIM and target.latent_gaussian is None:
        raise ModelError(f"{target.label} has {target.dim} coordinates; dense Hessians take at most {MAX_DENSE_DIM}")
    index = chosen(coordinates, target.names)
    # A start that is given belongs to the named hyper-parameters, so their fit needs no factors.
    factors = None if hyper is None or (_is_named(hyper) and initvals is not None) else _factors(target)
    described = _described(target, hyper, factors, initvals, points)
    result: Any
    with ChainProgress("INLA", 1, (), enabled=progressbar) as progress:
        if described is not None:
            result = _without_a_missed_mode(_integrated(described, target), target)
        else:
            q = find_mode(target, initvals, random_seed=random_seed).gaussian
            progress.update(0, 0.3)
            one_mode = target.log_concave or log_concave_factors(factors)
            if np.isnan(q.log_evidence):
                result = _without_improvement(target, q)
            else:
                result = improve(target, q, index, points, 0.0 if one_mode else share_of_another_mode(target, q))
        progress.update(0, 1.0)
    if result.trouble:
        advice = "" if is_improper(result) else ": use sample_smc, which draws from the posterior itself"
        text = f"INLA of {target.label}: {result.trouble}{advice}"
        warnings.warn(text, ApproximationWarning, stacklevel=user_level())
    return result


def _integrated(described: Any, target: BaseTarget) -> IntegratedLaplace:
    """Integrate over the hyper-parameters; if no Gaussian fits and the density is zero or NaN everywhere, say why."""
    try:
        return integrate(described, target)
    except ModelError:
        target.check_possible()
        raise


def _without_a_missed_mode(result: IntegratedLaplace, target: BaseTarget) -> IntegratedLaplace:
    """Return the result, with trouble if climbs on the density find a mode that it misses.

    Matrices of a latent Gaussian model have no compiled Hessians, so climbs would take fifty times as long as the fit.
    """
    missed = "" if result.trouble or target.latent_gaussian is not None else mode_missed_by(result, target)
    return result.replaced(trouble=missed, converged=False) if missed else result


def _factors(target: BaseTarget) -> Any:
    """Return the factors of a target without a latent description; None if there are none."""
    try:
        return target.factors if target.latent_gaussian is None else None
    except (ModelError, LinAlgError):
        return None


def _is_named(hyper: Any) -> bool:
    """Return whether hyper-parameters are given as names or coordinates."""
    return hyper is not None and not (isinstance(hyper, str) and hyper == "auto")


def _described(target: BaseTarget, hyper: Any, factors: Any, initvals: Any, points: int) -> Any:
    """Return the latent posterior of a target given its hyper-parameters; None if it has none.

    Names of the hyper-parameters that "auto" finds mean "auto", which takes a tenth of the time.
    """
    if _is_named(hyper):
        index = list(dict.fromkeys(chosen(hyper, target.names).tolist()))
        known = factors if target.latent_gaussian is None else target.latent_gaussian
        found = set() if known is None else set(np.asarray(known.hyper_coordinates).tolist())
        if initvals is not None or found != set(index):
            return NamedHyperParameters(target, index, _start(target, initvals), points)
    if target.latent_gaussian is not None:
        return SparseLatent(target.latent_gaussian)
    return None if factors is None or not len(factors.hyper_names) else SparseLatent(factors, target)


def _start(target: BaseTarget, initvals: Any) -> Array:
    """Return the point ``(dim,)`` from which named hyper-parameters are searched."""
    if initvals is None:
        return 0.1 * np.random.default_rng(0).standard_normal(target.dim)  # zero can be a saddle
    given = named_point(target, initvals, "initvals") if isinstance(initvals, Mapping) else initvals
    start: Array = np.atleast_2d(np.asarray(given, dtype=np.float64))[0]
    if len(start) != target.dim:
        raise ModelError(
            f"initvals has shape {np.shape(initvals)}: expected (dim,) or (n_starts, dim) with dim={target.dim}"
        )
    return start


def improve(
    target: BaseTarget, q: GaussianApproximation, index: NDArray[np.integer], points: int, share: float
) -> INLAApproximation:
    """Return improved marginals about the Gaussian at a mode, with a verdict; another mode has ``share`` of the mass."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # long steps leave the support
        improved = improved_marginals(target, q, target.names, index, points)
    marginals = _with_gaussians(q, index, improved.marginals)
    figures = improved.figures | {"laplace_log_evidence": q.log_evidence, "other_mode_share": share}
    about: dict[str, Any] = {"target": target, "method": "inla"}
    result = INLAApproximation(q, marginals, **about)
    seen, scores = result.in_scores(target), result.scores
    log_evidence = evidence_seen(seen, scores)
    verdict = judge_gaussian(seen, scores.replaced(log_evidence=log_evidence))
    figures |= {**verdict.figures, "evidence_shift": log_evidence - q.log_evidence}
    return result.replaced(
        diagnostics=figures,
        log_evidence=log_evidence,
        log_evidence_se=float(np.sqrt(np.maximum(0.0, 1 / figures.get("importance_efficiency", np.nan) - 1) / POINTS)),
        **_verdict(figures, verdict.trouble, improved.open_end()),
    )


def _verdict(figures: dict[str, float], trouble: str, open_end: str) -> dict[str, Any]:
    """Return ``trouble`` and ``converged`` from the verdict of the points, and from the other figures."""
    if trouble:
        trouble = f"the marginals are not the posterior's: by {POINTS} points {trouble}"
    elif open_end:
        trouble = open_end
    elif figures["failed_share"] > LARGEST_FAILED_SHARE:
        trouble = f"{figures['failed_share']:.0%} of the grid points have no conditional mode"
    else:
        trouble = reason_of_another_mode(figures["other_mode_share"])
    return {"trouble": trouble, "converged": not trouble}


def _with_gaussians(q: GaussianApproximation, index: NDArray[np.integer], improved: Marginals | None) -> Marginals:
    """Return marginals of all coordinates: the improved ones, and Gaussian ones for the others."""
    z = np.linspace(-GAUSSIAN_RANGE, GAUSSIAN_RANGE, FINE)
    # Without a mode a climb can end at a point where a standard deviation is below the rounding of its mean.
    sd = np.maximum(q.sd, SMALLEST_SD * (1.0 + np.abs(q.mean)))
    found = Marginals.of_densities(q.names, q.mean[:, None] + sd[:, None] * z, np.tile(norm.pdf(z), (q.dim, 1)))
    if improved is not None:
        for whole, part in zip(found[1:], improved[1:], strict=True):
            whole[index] = part
    return found


def _without_improvement(target: BaseTarget, q: GaussianApproximation) -> INLAApproximation:
    """Return the Gaussian of a target without a mode, without improvement."""
    about: dict[str, Any] = {"target": target, "method": "inla", "diagnostics": q.diagnostics}
    marginals = _with_gaussians(q, np.arange(0), None)
    return INLAApproximation(q, marginals, converged=False, trouble=q.trouble, **about)

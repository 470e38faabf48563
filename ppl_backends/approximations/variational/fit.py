r"""Gaussian variational inference: the Gaussian closest to the posterior in KL(q ‖ p), for any target.

By default quasi-Newton steps maximise the bound on a fixed sample of scrambled Sobol noise. They start from Laplace's
Gaussian, in its units, and the sample doubles until the answer stops changing; see :mod:`.sample_average`. Stochastic
gradients handle minibatches, and score functions handle targets without gradients. In every case the bound is then
estimated on fresh points. This measures how good the Gaussian is, not how well the optimiser did on its own sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.given import as_approximation, is_poor_start
from ppl_backends.approximations.laplace import gaussian_at_mode, proper
from ppl_backends.approximations.newton import LARGEST_DENSE_DIM, LARGEST_NEWTON_DIM
from ppl_backends.approximations.variational.annealing import ladder, prior_gaussian, tempered
from ppl_backends.approximations.variational.ascents import RULES
from ppl_backends.approximations.variational.elbo import BoundEstimate, Search, VariationalFit, estimate_bound
from ppl_backends.approximations.variational.families import make_family
from ppl_backends.approximations.variational.faults import faults, faults_elsewhere, faults_of_width
from ppl_backends.approximations.variational.sample_average import fit_fixed_samples
from ppl_backends.approximations.variational.schedules import SubsetTarget, check_minibatch, fit_stochastic
from ppl_backends.approximations.variational.score import LARGEST_FULL_RANK_DIM, fit_by_scores
from ppl_backends.errors import ApproximationWarning, ModelError, user_level
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.options import (
    approximation,
    array,
    check_memory,
    checked,
    choice,
    flag,
    has_moments,
    increasing,
    integer,
    none,
    number,
)
from ppl_backends.progress import ChainProgress
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.targets.power import with_power
from ppl_backends.targets.propriety import improper_note
from ppl_backends.targets.protocol import Array, BaseTarget

FAMILIES = ("auto", "diagonal", "low_rank", "dense")
AUTO_FULL_RANK_DIM = 150
AUTO_LOW_RANK_DIM = 2000  # up to here Laplace's Gaussian is dense, and gives the initial directions
DEFAULT_RANK = 10
BOUND_DRAWS = 2048
PILOT_DRAWS = 32
HALVINGS = 40
SHORT_ITERATIONS = 50
CLIMBS = 10  # hundreds of quasi-Newton steps
SUBSET_BATCHES = 10  # minibatches of rows from which Laplace's start is computed


@checked(
    family=choice(*FAMILIES),
    rank=none | integer(1),
    method=choice("auto", "fixed", "stochastic"),
    gradient=choice("auto", "reparameterised", "score"),
    optimizer=choice("auto", *RULES),
    step=none | number(above=0),
    initial=approximation("auto", "laplace", "prior") | array("an array (dim,)"),
    annealing=none | integer(1) | increasing(above=0, at_most=1),
    minibatch=none | integer(1),
    draws=none | integer(1),
    max_draws=none | integer(1),
    tolerance=number(above=0),
    max_iterations=none | integer(1),
    elbo_draws=integer(2),
    qmc=flag,
)
def fit_vi(
    model: Any = None,
    *,
    data: Any = None,
    family: str = "auto",
    rank: int | None = None,
    method: str = "auto",
    gradient: str = "auto",
    optimizer: str = "auto",
    step: float | None = None,
    initial: Any = "auto",
    annealing: int | Sequence[float] | None = None,
    minibatch: int | None = None,
    draws: int | None = None,
    max_draws: int | None = None,
    tolerance: float = 0.02,
    max_iterations: int | None = None,
    elbo_draws: int = BOUND_DRAWS,
    qmc: bool = True,
    power: float = 1.0,
    power_potentials: bool = False,
    random_seed: SeedLike = None,
    progressbar: bool = True,
    **target_options: Any,
) -> VariationalApproximation:
    """Fit a Gaussian variational approximation of a posterior on the unconstrained space.

    Parameters
    ----------
    model : pymc.Model, Stan model or target, optional
        The PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan model.
    family : {"auto", "diagonal", "low_rank", "dense"}
        Covariance: diagonal, diagonal widened along ``rank`` directions, or any. ``"auto"`` is full rank up to 150
        coordinates, low rank up to 2,000 and mean-field above. A mean-field fit has standard deviations near the
        *conditional* ones, which are too small if coordinates are correlated.
    rank : int, optional
        Number of directions of ``"low_rank"``; 10 by default.
    method : {"auto", "fixed", "stochastic"}
        ``"fixed"`` keeps the noise fixed and takes quasi-Newton steps; ``"stochastic"`` takes gradient steps with fresh
        noise. ``"auto"`` is fixed, unless ``minibatch``, ``optimizer`` or ``step`` is given.
    gradient : {"auto", "reparameterised", "score"}
        ``"score"`` needs only values of the log density; ``"auto"`` chooses it if the target has no gradient.
    optimizer : {"auto", "constant", "adam", "adagrad"}
        Rule of the gradient steps of ``method="stochastic"``; ``"auto"`` is constant lengths.
    step : float, optional
        Initial step length, in the units of ``initial``: 0.25, or 0.1 for Adam and Adagrad.
    initial : {"auto", "laplace", "prior"}, approximation or array (dim,)
        Start of the fit, and its units. ``"auto"`` is Laplace; with ``annealing`` it is the prior, and for score gradients a
        standard normal around the mean of ``initial_points``.
    annealing : int or sequence of float, optional
        Number of temperatures, or their powers λ: the fit goes from the prior to the posterior along them. Use it for targets
        with several modes, or without a mode.
    minibatch : int, optional
        Rows of data per step, through ``target.observations``.
    draws, max_draws : int, optional
        Points of the first sample (8 per step with ``method="stochastic"``, which rounds down to powers of two) and of
        the largest.
    tolerance : float
        Root mean square change of means, in posterior standard deviations, and of log standard deviations, between the
        last two samples (or phases).
    max_iterations : int, optional
        Per sample (500), or in total with stochastic gradients (20,000) and scores (100).
    elbo_draws : int
        Fresh points for the bound, its standard error and Pareto k.
    qmc : bool
        Whether to use scrambled Sobol noise (True) or random noise (False).
    power : float
        α of the tempered posterior p(θ)L(θ)^α; Potentials keep power one unless ``power_potentials``.
    power_potentials : bool
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool
    **target_options
        Passed to :func:`ppl_backends.as_target`.

    Returns
    -------
    VariationalApproximation
        A Gaussian with ``elbo``, ``elbo_se``, ``pareto_k``, ``family``, ``history`` and ``diagnostics``: ``change`` (see
        ``tolerance``), ``optimism`` (by how much the bound on the fit's own sample exceeds the one on fresh points),
        ``draws`` and ``samples``; and, if nothing else is wrong, the masses beside it, ``other_mode_share`` and
        ``around_share``. ``trouble`` says why it has not ``converged``.

    Raises
    ------
    ModelError
        If an option is out of range, no start has a finite bound, or the posterior is improper.

    Warns
    -----
    ApproximationWarning
        If the fit did not settle within ``max_draws`` and ``max_iterations``, if Pareto k is above 0.7, if another mode or a
        wider region has mass, if weights or a marginal by Laplace's method say that a moment is off (full rank only; also one
        of a skewed variable in model space), or if the posterior density is zero at some points of the Gaussian, so that
        there is no bound.

    References
    ----------
    Buchholz, A., Wenzel, F. and Mandt, S. (2018). Quasi-Monte Carlo variational inference. *ICML*.
    Kingma, D. P. and Ba, J. (2015). Adam: a method for stochastic optimization. *ICLR*.
    Duchi, J., Hazan, E. and Singer, Y. (2011). Adaptive subgradient methods. *JMLR* 12.
    Giordano, R., Ingram, M. and Broderick, T. (2024). Black box variational inference with a deterministic objective:
    faster, more accurate, and even more black box. *JMLR* 25.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.targets import FunctionTarget
    >>> target = FunctionTarget(2, lambda x: (-0.5 * ((x - 3) ** 2).sum(1), 3 - x))
    >>> q = fit_vi(target, random_seed=1, progressbar=False)
    >>> q.mean.round(6), bool(np.isclose(q.elbo, np.log(2 * np.pi)))
    (array([3., 3.]), True)
    """
    from ppl_backends.targets.convert import as_target

    whole = with_power(as_target(model, data, **target_options), power, power_potentials)
    climbs = _rule(optimizer, step)
    family, method, gradient = _choices(whole, family, method, gradient, minibatch, climbs)
    target = _evaluated(whole, gradient)
    check_memory(max(elbo_draws, max_draws or 0, draws or 0), 1, whole.dim)
    fit_rng, bound_rng = spawn_generators(random_seed, 2)
    largest_rank = min(DEFAULT_RANK if rank is None else rank, target.dim)

    with ChainProgress("Variational inference", 1, ("draws", "ELBO", "change"), enabled=progressbar) as progress:
        bases = _bases(target, initial, annealing, gradient, minibatch, fit_rng)
        members = [make_family(family, base.mean, base.factor, largest_rank, fit_rng) for base in bases]
        member = _best(target, members, tolerance, fit_rng)
        first = draws or _first_draws(method, gradient, family, target.dim)
        most_draws = max(4096, 16 * first) if method == "fixed" else 512
        optimise, most = _optimiser(method, gradient, minibatch, climbs)
        search = Search(first, max_draws or most_draws, tolerance, max_iterations or most, qmc)
        if annealing is not None:
            member = _anneal(target, member, ladder(annealing), search, gradient, fit_rng, progress)
        fit = optimise(target, member, search._replace(report=_reporter(progress, tolerance)), fit_rng)
        progress.update(0, 1.0)
    gaussian = gaussian_of_fit(fit, target)
    bound = estimate_bound(target, gaussian, elbo_draws, bound_rng, qmc)
    q = _result(whole, gaussian, fit, bound, improper_note(target))
    found = faults(q, fit, bound, tolerance)
    if not found and q.family == "dense" and minibatch is None and target.has_gradient and not target.log_concave:
        found, figures = faults_elsewhere(target, q)
        q = q.replaced(diagnostics=q.diagnostics | figures)
        found = found or faults_of_width(target, q, bound)
    if found:
        q = q.replaced(converged=False, trouble="; ".join(found))
        warnings.warn(
            f"variational inference, {q.family} family: {q.trouble}", ApproximationWarning, stacklevel=user_level()
        )
    return q


def _rule(optimizer: str, step: float | None) -> dict[str, Any]:
    """Return the options of gradient steps that were given; empty if there are none."""
    return ({} if optimizer == "auto" else {"optimizer": optimizer}) | ({} if step is None else {"step": step})


def _choices(
    target: BaseTarget, family: str, method: str, gradient: str, minibatch: int | None, climbs: Mapping[str, Any]
) -> tuple[str, str, str]:
    """Return family, method and gradient with every "auto" decided."""
    if gradient == "auto":
        gradient = "reparameterised" if target.has_gradient else "score"
    if gradient == "score" and minibatch is not None:
        raise ModelError("minibatch= needs gradients: gradient='score' evaluates all data")
    if method == "fixed" and minibatch is not None:
        raise ModelError("method='fixed' evaluates all data; minibatch= goes with method='stochastic'")
    if climbs and (method == "fixed" or gradient == "score"):
        raise ModelError(f"{next(iter(climbs))}= goes with method='stochastic' and gradients of the target")
    if minibatch is not None:
        check_minibatch(target, minibatch)
    if method == "auto":
        method = "fixed" if minibatch is None and not climbs else "stochastic"
    if family == "auto":
        dense = LARGEST_FULL_RANK_DIM if gradient == "score" else AUTO_FULL_RANK_DIM
        family = "dense" if target.dim <= dense else "low_rank" if target.dim <= AUTO_LOW_RANK_DIM else "diagonal"
        if gradient == "score" and family == "low_rank":
            family = "diagonal"
    return family, method, gradient


def _evaluated(target: BaseTarget, gradient: str) -> BaseTarget:
    """Return the target in the form that the fit evaluates: small targets by one compiled program."""
    small = target.dim <= LARGEST_NEWTON_DIM and gradient == "reparameterised"
    return target.with_fixed_batch_size() if small else target


def _first_draws(method: str, gradient: str, family: str, dim: int) -> int:
    """Return the size of the first sample; it exceeds dim for a full-rank factor, whose bound has no maximum otherwise."""
    if method == "stochastic":
        return 8
    least = 8 * dim if family == "dense" and gradient != "score" else 256 if family == "low_rank" else 64
    return 2 ** int(np.ceil(np.log2(max(64, least))))


def _optimiser(
    method: str, gradient: str, minibatch: int | None, climbs: Mapping[str, Any]
) -> tuple[Callable[..., VariationalFit], int]:
    """Return the optimiser, and its default number of iterations: per sample (fixed), or in total."""
    if gradient == "score":
        return fit_by_scores, 100
    if method == "stochastic":
        return partial(fit_stochastic, minibatch=minibatch, **climbs), 20_000
    return fit_fixed_samples, 500


def _bases(
    target: BaseTarget, start: Any, annealing: Any, gradient: str, minibatch: int | None, rng: np.random.Generator
) -> list[Gaussian]:
    """Return the Gaussian that the fit starts from; if Laplace finds no mode, return the prior's as well."""
    if isinstance(start, str):
        if start == "prior" or (start == "auto" and annealing is not None):
            found = [prior_gaussian(target, rng)]
        elif start == "auto" and gradient == "score":
            mean = np.mean(target.initial_points(PILOT_DRAWS, rng), axis=0)
            found = [Gaussian(mean, np.ones(target.dim))]
        else:
            found = _laplace_or_prior(target, minibatch, rng)
    elif has_moments(start):
        found = [as_approximation(start, target).gaussian]
    else:
        mean = np.asarray(start, dtype=np.float64)
        if mean.shape != (target.dim,):
            raise ModelError(f"initial has shape {mean.shape}; expected ({target.dim},)")
        found = [Gaussian(mean, np.ones(target.dim))]
    usable = _usable(target, found, rng)
    if not usable and isinstance(start, str):  # the bound of the support cuts off their means
        points = target.initial_points(PILOT_DRAWS, rng)
        highest = points[np.argmax(target.log_density(points))]
        usable = _usable(target, [Gaussian(highest, np.ones(target.dim))], rng)
    if not usable:
        reason = target.explain(found[0].mean) or "give another initial="
        raise ModelError(f"{target.label}: the log density is not finite around the start; {reason}")
    return usable


def _laplace_or_prior(target: BaseTarget, minibatch: int | None, rng: np.random.Generator) -> list[Any]:
    """Return Laplace's Gaussian (of a subset of the data, with minibatches); two candidates if it is a poor start."""
    seen = target
    if minibatch is not None:
        rows = rng.integers(target.observations.n, size=SUBSET_BATCHES * minibatch)  # type: ignore[union-attr]
        seen = SubsetTarget(target, rows)
    try:
        laplace = _laplace(seen, rng)
    except (ModelError, LinAlgError):  # no point or no curvature for a Gaussian
        return [prior_gaussian(target, rng)]
    if minibatch is None:
        proper(target, laplace)
    return [laplace, prior_gaussian(target, rng)] if is_poor_start(laplace) else [laplace]


def _laplace(target: BaseTarget, rng: np.random.Generator) -> GaussianApproximation:
    """Return Laplace's Gaussian; with many coordinates a dense one only if a cheap climb has found the mode."""
    start = None
    if target.dim > LARGEST_NEWTON_DIM:
        found = gaussian_at_mode(target, dense=False, max_iterations=CLIMBS, random_seed=rng)
        if not found.converged or target.dim > LARGEST_DENSE_DIM:
            return found
        start = found.mean
    return gaussian_at_mode(target, start, random_seed=rng)


def _usable(target: BaseTarget, bases: Sequence[Any], rng: np.random.Generator) -> list[Gaussian]:
    """Return the bases that can be narrowed so far that the density is finite around them."""
    return [base for base in (_narrowed(target, base, rng) for base in bases) if base is not None]


def _narrowed(target: BaseTarget, base: Any, rng: np.random.Generator) -> Gaussian | None:
    """Return the base, narrowed until the density is finite at all of a few of its points; None if it never is."""
    z = rng.standard_normal((PILOT_DRAWS, target.dim))
    q = Gaussian(base.mean, base.cholesky)
    for _ in range(HALVINGS):
        with np.errstate(all="ignore"):
            finite = np.isfinite(target.log_density(q.place(z)))
        if finite.all():
            return q
        q = Gaussian(q.mean, 0.5 * q.factor)
    return None


def _best(target: BaseTarget, members: list[Any], tolerance: float, rng: np.random.Generator) -> Any:
    """Return the start from which a short fit on a small sample reaches the highest bound."""
    if len(members) == 1:
        return members[0]
    search = Search(
        _first_draws("fixed", "reparameterised", members[0].name, target.dim), 1, tolerance, SHORT_ITERATIONS
    )
    fits = [fit_fixed_samples(target, member, search, rng) for member in members]
    return max(fits, key=lambda fit: fit.value).family


def _anneal(
    target: BaseTarget,
    member: Any,
    powers: Array,
    search: Search,
    gradient: str,
    rng: np.random.Generator,
    progress: ChainProgress,
) -> Any:
    """Return the family based at the fit of the last temperature; each fit starts from the previous one."""
    draws = search.draws if gradient == "score" else max(search.draws, 64)
    optimise, iterations = (fit_by_scores, 10) if gradient == "score" else (fit_fixed_samples, SHORT_ITERATIONS)
    short = search._replace(draws=draws, max_draws=draws, max_iterations=iterations)
    for step, power in enumerate(powers):
        member = optimise(tempered(target, float(power)), member, short, rng).family
        progress.update(0, 0.5 * (step + 1) / len(powers), draws=draws, ELBO="", change=f"λ {power:.3g}")
    return member


def _reporter(progress: ChainProgress, tolerance: float) -> Callable[[int, float, float], None]:
    """Return a function that shows a sample's figures; it estimates progress from the change."""

    def report(draws: int, bound: float, change: float) -> None:
        done = 0.5 + 0.5 * min(1.0, tolerance / max(change, 1e-12)) ** 0.5
        progress.update(0, done, draws=draws, ELBO=f"{bound:.3f}", change=change)

    return report


def gaussian_of_fit(fit: Any, target: BaseTarget) -> Gaussian:
    """Return the Gaussian of a fit; raise an error if a scale has shrunk to zero, or grown without bound."""
    mean, _ = fit.family.mean_and_sd(fit.family.start())
    gaussian = Gaussian(mean, *fit.family.factor(fit.family.start()))
    scales = np.diagonal(gaussian.factor) if gaussian.factor.ndim == 2 else gaussian.factor
    lost = ~((scales > 0) & np.isfinite(scales) & np.isfinite(mean))
    if lost.any():
        j = int(np.argmax(lost))
        raise ModelError(
            f"{target.label}: variational inference diverged, its scale along `{target.names[j]}` is {scales[j]:.3g}: give "
            "another initial=, or use sample_smc"
        )
    return gaussian


def _result(
    target: BaseTarget, q: Gaussian, fit: Any, bound: BoundEstimate, note: str | None
) -> VariationalApproximation:
    """Return the Gaussian with the figures of the fit."""
    columns = (np.asarray(column) for column in zip(*fit.history, strict=True))
    return VariationalApproximation(
        q.mean,
        cholesky=q.factor,
        directions=q.directions,
        target=target,
        method="variational inference",
        diagnostics={
            "change": float(fit.change),
            "optimism": float(fit.history[-1][1]) - bound.elbo,
            "draws": float(fit.draws),
            "samples": float(len(fit.history)),
            "tail_share": bound.tail_share,
            "outside": bound.outside,
            "distance": bound.distance,
        },
        elbo=bound.elbo,
        elbo_se=bound.standard_error,
        pareto_k=bound.pareto_k,
        evidence_note=note,
        history=dict(zip(("draws", "elbo", "iterations", "change"), columns, strict=True)),
    )


class VariationalApproximation(GaussianApproximation):
    """The Gaussian of :func:`ppl_backends.fit_vi`; it has a lower bound of the evidence, but no evidence.

    Attributes
    ----------
    family : {"diagonal", "low_rank", "dense"}
    elbo, elbo_se : float
        Lower bound of the log evidence, on fresh points, and its standard error.
    pareto_k : float
        Pareto k of the importance weights p/q. Above 0.7 the Gaussian is too far from the posterior to be corrected by
        weights.
    evidence_note : str or None
        A note that the bound is known only up to a constant, if the prior is improper.
    history : dict of str to array
        Per sample size (or phase): ``draws``, ``elbo``, ``iterations``, ``change``.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> q = pb.fit_vi(target, random_seed=1)
    >>> q.family, bool(abs(q.elbo - np.log(2 * np.pi)) < 0.01), bool(q.pareto_k < 0.7)
    ('dense', True, True)
    """

    evidence_note: str | None
    history: Mapping[str, Array]

    @property
    def family(self) -> str:
        """Return the family fitted, by the form of the covariance."""
        return self.representation

    def _attributes(self) -> dict[str, Any]:
        figures = {"elbo": self.elbo, "elbo_se": self.elbo_se, "pareto_k": self.pareto_k, "family": self.family}
        return figures | ({} if self.evidence_note is None else {"log_evidence_note": self.evidence_note})

    def __repr__(self) -> str:
        return (
            f"VariationalApproximation(dim={self.dim}, family={self.family!r}, converged={self.converged}, "
            f"elbo={self.elbo:.6g}, elbo_se={self.elbo_se:.2g}, pareto_k={self.pareto_k:.2f})"
        )

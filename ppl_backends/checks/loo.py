r"""Leave-one-out densities if importance weights fail: moment matching, then moves to the posterior without a row.

The density p(y_i | y_{−i}) is the mean of p(y_i | θ) over the posterior without the observation, which has weights
1/p(y_i | θ) relative to the posterior. If their Pareto k is above its limit, the draws are shifted, scaled and rotated
so that their moments match those of the weighted draws, as long as that reduces k (Paananen et al. 2021, Algorithm 2).
Half of the draws stay in place (section 3.3 there). If k is still above its limit, SMC moves the draws.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import xarray as xr
from scipy.special import logsumexp

from ppl_backends.checks.moving import Cloud, cloud_of, largest_k, memory_of, move_draws
from ppl_backends.checks.predictive import ONE_DENSITY, elpd_data, no_rows
from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.marginal_likelihood.draws import read_draws
from ppl_backends.marginal_likelihood.necks import check_draws
from ppl_backends.numerics.weights import log_mean_exp, normalised_weights, smoothed_weights
from ppl_backends.options import checked, flag, integer, none, number
from ppl_backends.random import spawn_generators
from ppl_backends.smc.health import MEMORY_LEFT
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import Array, BaseTarget

PSIS, MATCHED, REFITTED = "PSIS", "moment matching", "refit"


@checked(k_threshold=none | number(above=0), max_iterations=integer(1), refit=flag, draws=integer(100))
def loo_moment_match(
    idata: Any,
    model: Any = None,
    *,
    data: Any = None,
    k_threshold: float | None = None,
    max_iterations: int = 30,
    refit: bool = True,
    draws: int = 2000,
    cores: int | None = None,
    random_seed: Any = None,
    **target_options: Any,
) -> Any:
    r"""Return leave-one-out cross-validation; repair bad importance weights by moment matching, then by refits.

    Parameters
    ----------
    idata : InferenceData, CmdStanMCMC or mapping
        Draws of the posterior, from any sampler; a mapping holds arrays ``(chain, draw, *shape)`` by name.
    model : pymc.Model, Stan program or Target, optional
        The PyMC model on the context stack by default. Its observations must be available one by one; a Stan program
        provides them by a generated quantity ``log_lik`` or by ``rows=``. They must be independent given the
        parameters.
    data : dict or path, optional
        Data of a Stan program.
    k_threshold : float, optional
        Pareto k above which a density is repaired; min(0.7, 1 − 1/log10(draws)) by default.
    max_iterations : int
        Largest number of transformations of the draws for one observation.
    refit : bool
        Whether to leave out an observation exactly if its k stays above the threshold: SMC moves its draws to the
        posterior without it.
    draws : int
        Largest number of draws that SMC moves.
    cores, random_seed
        As for :func:`~ppl_backends.sample_smc`.
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    arviz.ELPDData
        As from ``az.loo(..., pointwise=True)``; ``az.compare`` accepts it. The coordinates of its ``pareto_k`` say how
        each density was computed (``source``: ``"PSIS"``, ``"moment matching"`` or ``"refit"``) and what k was before
        (``k_before``), and have the Monte Carlo standard errors of each density (``mcse``) and of their sum
        (``mcse_elpd``). A refit has k = 0.

    Raises
    ------
    ModelError
        If the model does not provide its observations one by one, or the draws are not of the model.

    Warns
    -----
    SamplerWarning
        If the draws are not trustworthy, k stays above the threshold, moved draws did not mix, or there is one observation.

    References
    ----------
    Paananen, T., Piironen, J., Bürkner, P.-C. and Vehtari, A. (2021). Implicitly adaptive importance sampling. *Statistics
    and Computing* 31(16).

    Examples
    --------
    The last value is an outlier, which is improbable under the posterior without it:

    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 10)
    ...     _ = pm.Normal("y", mu, sigma, observed=np.array([0.1, -0.4, 0.5, 0.2, -0.3, 0.0, 9.0]))
    >>> idata = pb.sample_smc(model, draws=1000, chains=2, random_seed=1, progressbar=False)
    >>> loo = pb.loo_moment_match(idata, model, random_seed=1)
    >>> bool(loo.pareto_k.max() < 0.7), str(loo.pareto_k["source"].values[-1]) != "PSIS"
    (True, True)
    """
    target = as_target(model, data, cores=cores, **target_options)
    rows = Rows.of(target)
    found = read_draws(idata, target, model)
    check_rng, rows_rng = spawn_generators(random_seed, 2)
    convergence, _, reasons = check_draws(found, target, check_rng)
    cloud = cloud_of(found, convergence.effective)
    posterior = Posterior(cloud.x, found.log_density.ravel())
    log_likelihood = rows.table(cloud.x)
    n, limit = log_likelihood.shape[1], largest_k(len(cloud.x)) if k_threshold is None else k_threshold
    fits = [weigh(-log_likelihood[:, i], log_likelihood[:, i]) for i in range(n)]
    before, sources, memory = np.array([fit.k for fit in fits]), [PSIS] * n, 0.0
    for i, rng in zip(np.flatnonzero(before > limit), spawn_generators(rows_rng, n), strict=False):
        matched = match_moments(target, posterior, partial(rows, i=int(i)), fits[i], limit, max_iterations)
        if matched.k < fits[i].k:
            fits[i], sources[i] = matched, MATCHED
        if fits[i].k > limit and refit:
            refitted, left = leave_out(target, rows, int(i), cloud.thinned(draws), rng)
            fits[i], sources[i], memory = refitted, REFITTED, max(memory, left)
    _warn(reasons, np.array([fit.k for fit in fits]), limit, memory)
    coords = {"source": ("observation", sources), "k_before": ("observation", before)}
    pointwise = xr.DataArray([fit.elpd for fit in fits], dims="observation", coords={"observation": np.arange(n)})
    coords |= errors_of(fits, sources, convergence.effective)
    pareto_k = pointwise.copy(data=[fit.k for fit in fits]).assign_coords(coords)
    p = float(log_mean_exp(log_likelihood, axis=0).sum() - pointwise.sum())
    return elpd_data(pointwise, pareto_k, p, len(cloud.x), limit)


def _warn(reasons: list[str], k: Array, limit: float, memory: float) -> None:
    bad = int((k > limit).sum())
    if bad:
        reasons = [
            *reasons,
            f"Pareto k of {bad} of {len(k)} observations is above {limit:.2f} (largest {k.max():.2f}): set refit=True, or "
            "sample more draws",
        ]
    if len(k) == 1:
        one = "there is one observation, so its log density is the log evidence (pb.evidence has it with an error)"
        reasons = [*reasons, f"{one}, and se is NaN: {ONE_DENSITY}"]
    if memory > MEMORY_LEFT:
        said = f"draws moved to a posterior without a row did not mix (autocorrelation {memory:.2f}): increase draws"
        reasons = [*reasons, said]
    for reason in reasons:
        warnings.warn(f"loo_moment_match: {reason}", SamplerWarning, stacklevel=user_level())


class Fit(NamedTuple):
    """Log predictive density of one observation, the Pareto k of its weights, and the normalised weights.

    ``share`` ``(n,)`` is what each draw adds to the density, in units of it, beyond the mean. The error of the log density
    is about the root of the sum of squares, if draws are independent.
    """

    elpd: float
    k: float
    weight: Array
    share: Array


def weigh(log_ratio: Array, log_likelihood: Array) -> Fit:
    """Return the density of one observation under weighted draws, with smoothed weights."""
    smoothed, k = smoothed_weights(np.where(np.isnan(log_ratio), -np.inf, log_ratio))
    elpd, weight = float(logsumexp(smoothed + log_likelihood) - logsumexp(smoothed)), normalised_weights(smoothed)[0]
    return Fit(elpd, k, weight, weight * np.expm1(log_likelihood - elpd))


def errors_of(fits: list[Fit], sources: list[str], effective: float) -> dict[str, Any]:
    """Return coordinates with the Monte Carlo standard errors of the log densities ``mcse`` and of their sum ``mcse_elpd``.

    Draws are worth ``effective`` independent ones. Densities by weights of the same draws have dependent errors, so the
    shares of a draw in all of them are added first. Refits have errors of their own.
    """
    shared = [fit.share for fit, source in zip(fits, sources, strict=True) if source != REFITTED]
    inflation = len(shared[0]) / effective if shared else 1.0
    variance = np.array(
        [
            float(fit.share @ fit.share) * (1.0 if source == REFITTED else max(inflation, 1.0))
            for fit, source in zip(fits, sources, strict=True)
        ]
    )
    together = np.sum(shared, axis=0) if shared else np.zeros(1)
    refits = float(variance[[source == REFITTED for source in sources]].sum())
    total = float(together @ together) * max(inflation, 1.0) + refits
    return {"mcse": ("observation", np.sqrt(variance)), "mcse_elpd": np.sqrt(total)}


@dataclass(frozen=True)
class Rows:
    """Observations of a target one by one; ``alone`` if single ones can be evaluated, with or without gradients."""

    target: BaseTarget
    alone: bool
    has_gradient: bool

    @classmethod
    def of(cls, target: BaseTarget) -> Self:
        """Return the observations of a target; refuse a target that does not provide them."""
        if target.observations is None:
            raise ModelError(
                f"{target.label}: the observations are not available one by one: add log_lik to the generated quantities of "
                "a Stan program, or give rows="
            )
        if not target.observations.n:
            raise ModelError(f"{target.label}: there is no observation to leave out{no_rows(target)}")
        start, row = target.initial_points(1, np.random.default_rng(0)), np.zeros(1, dtype=np.intp)
        try:
            target.observations.log_likelihood(start, row)
        except ModelError:
            return cls(target, False, False)
        if target.observations.no_gradient or not target.has_gradient:
            return cls(target, True, False)
        try:
            target.observations.sum(start, row, gradient=True)
        except ModelError:
            return cls(target, True, False)
        return cls(target, True, True)

    def table(self, x: Array) -> Array:
        """Return the log likelihood of every observation ``(n_points, n)``."""
        assert self.target.observations is not None
        return self.target.observations.log_likelihood(x)

    def __call__(self, x: Array, i: int) -> Array:
        """Return the log likelihood of one observation ``(n_points,)``."""
        assert self.target.observations is not None
        if not self.alone:
            return self.table(x)[:, i]
        return self.target.observations.log_likelihood(x, np.array([i]))[:, 0]

    def gradient(self, x: Array, i: int) -> tuple[Array, Array]:
        """Return the log likelihood of one observation and its gradient ``(n_points, dim)``."""
        assert self.target.observations is not None
        return self.target.observations.sum(x, np.array([i]), gradient=True)


class Posterior(NamedTuple):
    """Draws ``(n, dim)`` with their log densities ``(n,)``."""

    x: Array
    log_density: Array


class Affine(NamedTuple):
    """The map x ↦ x Aᵀ + b of points in rows."""

    matrix: Array
    shift: Array

    def __call__(self, x: Array) -> Array:
        mapped: Array = x @ self.matrix.T + self.shift
        return mapped

    def inverse(self, x: Array) -> Array:
        """Return the points that the map sends to ``x``."""
        found: Array = np.asarray(np.linalg.solve(self.matrix, (x - self.shift).T).T, dtype=np.float64)
        return found

    @property
    def log_det(self) -> float:
        """Return log |det A|."""
        return float(np.linalg.slogdet(self.matrix)[1])


def match_moments(
    target: BaseTarget,
    posterior: Posterior,
    log_likelihood: Callable[[Array], Array],
    fit: Fit,
    limit: float,
    max_iterations: int,
) -> Fit:
    """Return the density of one observation from draws whose moments were matched (Paananen et al. 2021, Algorithm 2).

    Each transformation is kept if it reduces Pareto k: first the mean is matched, then marginal variances, then the
    covariance. Finally half of the draws are transformed and half are not; their density is that of the mixture.
    """
    dim = posterior.x.shape[1]
    total, x = Affine(np.eye(dim), np.zeros(dim)), posterior.x
    best, moved = fit, False
    for _ in range(max_iterations):
        if best.k <= limit:
            break
        for moments in (_mean, _variances, _covariance):
            tried = moments(x, best.weight)
            if tried is None:
                continue
            new = tried(x)
            here = log_likelihood(new)
            with np.errstate(invalid="ignore"):
                found = weigh(-here + target.log_density(new) - posterior.log_density, here)
            if found.k < best.k:
                total = Affine(tried.matrix @ total.matrix, tried.matrix @ total.shift + tried.shift)
                x, best, moved = new, found, True
                break
        else:
            break
    return _split(target, posterior, log_likelihood, total) if moved else fit


def _mean(x: Array, weight: Array) -> Affine:
    return Affine(np.eye(x.shape[1]), weight @ x - x.mean(axis=0))


def _variances(x: Array, weight: Array) -> Affine | None:
    mean, wanted = x.mean(axis=0), weight @ x
    scale = np.sqrt(weight @ (x - wanted) ** 2 / x.var(axis=0))
    if not (np.isfinite(scale) & (scale > 0)).all():
        return None
    return Affine(np.diag(scale), wanted - scale * mean)


def _covariance(x: Array, weight: Array) -> Affine | None:
    mean, wanted = x.mean(axis=0), weight @ x
    away = x - wanted
    try:
        new = np.linalg.cholesky((weight[:, None] * away).T @ away)
        old = np.linalg.cholesky(np.atleast_2d(np.cov(x.T, ddof=0)))
    except np.linalg.LinAlgError:
        return None
    matrix = np.linalg.solve(old.T, new.T).T  # new · old⁻¹
    return Affine(matrix, wanted - matrix @ mean)


def _split(target: BaseTarget, posterior: Posterior, log_likelihood: Callable[[Array], Array], total: Affine) -> Fit:
    """Return the density from draws of which every second one is transformed; the mixture covers both halves."""
    x = posterior.x.copy()
    x[::2] = total(x[::2])
    here = log_likelihood(x)
    with np.errstate(invalid="ignore"):
        density = target.log_density(x)
        mapped = target.log_density(total.inverse(x)) - total.log_det
        proposal = np.logaddexp(density, mapped)
        return weigh(np.where(np.isfinite(density), density - proposal - here, -np.inf), here)


def leave_out(target: BaseTarget, rows: Rows, i: int, cloud: Cloud, rng: np.random.Generator) -> tuple[Fit, float]:
    """Return the density of one observation from draws moved to the posterior without it, and their autocorrelation.

    The evidence of the path is the mean of 1/p(y_i | θ) over the posterior, which is 1/p(y_i | y_{−i}). It has a
    smaller error than the mean of p(y_i | θ) over the moved draws, because an outlier has a high density under few of
    them.
    """

    def change(x: Array, gradient: bool) -> tuple[Array, Array | None]:
        if not gradient:
            return -rows(x, i), None
        value, slope = rows.gradient(x, i)
        return -value, -slope

    run = move_draws(target, change, cloud, rng, rows.has_gradient)
    n = len(run.x)
    return Fit(-run.log_evidence, 0.0, np.full(n, 1 / n), np.array([run.lineage.variance**0.5])), memory_of(run)

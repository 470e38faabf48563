r"""Leave-future-out densities: every row of a series is predicted from those before it, in one run over the rows.

The run is iterated batch importance sampling (:mod:`~ppl_backends.smc.rows`). Its particles are the posterior of the
first t rows for every t; they are moved if the weights of the next rows become uneven. The mean weight of row t + 1 is
p(y_{t+1} | y_{1:t}), which Bürkner, Gabry & Vehtari (2020) approximate by importance weights between refits. The
density of M rows ahead is the product of M such densities: p(y_{t+1:t+M} | y_{1:t}) = ∏ⱼ p(y_{t+j} | y_{1:t+j−1}).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from ppl_backends.checks.moving import Cloud, largest_k, memory_of, move_draws
from ppl_backends.checks.predictive import ONE_DENSITY, elpd_data, no_rows
from ppl_backends.errors import ModelError, PriorSamplingError, SamplerWarning, user_level
from ppl_backends.numerics.weights import log_mean_exp, pareto_k
from ppl_backends.options import checked, integer, none
from ppl_backends.random import spawn_generators
from ppl_backends.results.inference_data import group, unconstrained_draws
from ppl_backends.smc.core import SMCState, Step
from ppl_backends.smc.health import MEMORY_LEFT
from ppl_backends.smc.ibis import RowsCall, row_settings
from ppl_backends.smc.routes import rows_kernel
from ppl_backends.smc.rows import RowsPath, observations_of, rows_have_gradients
from ppl_backends.smc.sample import sample_smc
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.first_rows import FirstRows
from ppl_backends.targets.protocol import Array, BaseTarget

SEQUENTIAL, REFITTED = "sequential", "refit"
_SHARE_OF_ROWS = 0.25  # share of the rows before the first prediction, by default


@dataclass(frozen=True)
class LeaveFutureOut:
    """Leave-future-out cross-validation.

    Attributes
    ----------
    elpd : float
        Sum of the log predictive densities of blocks of ``steps`` rows, each given all rows before the block.
    se : float
        Its standard error as an estimate for new series: √n times the sd of the summands.
    mcse : float
        Its Monte Carlo error, from the spread between chains.
    pointwise : xarray.Dataset
        By ``observation`` (the first of the rows predicted): ``log_score``, its Monte Carlo error ``mcse``, ``pareto_k`` of
        the weights, and ``source`` (``"sequential"`` or ``"refit"``).
    steps, min_observations : int
        As in the call.
    n_fits : int
        Number of posteriors that were computed: the run over the rows, a start for it if the prior is improper, and refits.
    idata : arviz.InferenceData or xarray.DataTree
        The run over the rows, which ends at the posterior of all of them.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> y = np.cumsum(np.random.default_rng(0).normal(size=20))
    >>> with pm.Model() as model:
    ...     phi, sigma = pm.Normal("phi", 0, 1), pm.HalfNormal("sigma", 1)
    ...     _ = pm.Normal("y", phi * y[:-1], sigma, observed=y[1:])
    >>> result = pb.lfo(model, draws=200, random_seed=1, progressbar=False)
    >>> result.elpd < 0, result.steps
    (True, 1)
    """

    elpd: float
    se: float
    mcse: float
    pointwise: xr.Dataset
    steps: int
    min_observations: int
    n_fits: int
    idata: Any

    def elpd_data(self) -> Any:
        """Return the densities as ArviZ's ``ELPDData``; ``az.compare`` compares it with others on the same rows."""
        posterior = group(self.idata, "posterior")
        n = posterior.sizes["chain"] * posterior.sizes["draw"]
        score = self.pointwise["log_score"]
        return elpd_data(score, self.pointwise["pareto_k"], float("nan"), n, largest_k(n))

    def __repr__(self) -> str:
        ahead = "one step" if self.steps == 1 else f"{self.steps} steps"
        fits = "1 fit" if self.n_fits == 1 else f"{self.n_fits} fits"
        return (
            f"LeaveFutureOut: elpd {self.elpd:.2f} (se {self.se:.2f}, Monte Carlo error {self.mcse:.3f}), {ahead} ahead from "
            f"{self.min_observations} observations, {self.pointwise.sizes['observation']} predictions, {fits}"
        )


@checked(min_observations=none | integer(0), steps=integer(1), max_refits=integer(0), draws=integer(40))
def lfo(
    model: Any = None,
    *,
    data: Any = None,
    min_observations: int | None = None,
    steps: int = 1,
    draws: int = 2000,
    chains: int = 4,
    max_refits: int = 2,
    cores: int | None = None,
    executor: Executor | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    **target_options: Any,
) -> LeaveFutureOut:
    r"""Return leave-future-out cross-validation of a time series: rows predicted from those before them.

    Parameters
    ----------
    model : pymc.Model, Stan program or Target, optional
        The PyMC model on the context stack by default. Its observations must be available one by one, in order of
        time. A Stan program provides them by ``log_lik[t]``, the density of row t given the rows before it and the
        parameters, or by ``rows=``.
    data : dict or path, optional
        Data of a Stan program.
    min_observations : int, optional
        Number of rows before the first prediction; a quarter of all by default.
    steps : int
        M of M-steps-ahead predictions: the joint density of M rows.
    draws, chains : int
        Particles per chain, and independent chains, whose spread is the Monte Carlo error.
    max_refits : int
        Largest number of refits. Rows whose weights have a Pareto k above min(0.7, 1 − 1/log10(draws · chains)) are
        refitted, those with the largest k first.
    cores, executor, random_seed, progressbar
        As for :func:`~ppl_backends.sample_smc`.
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    LeaveFutureOut

    Raises
    ------
    ModelError
        If the observations are not available one by one, or there are too few of them.

    Warns
    -----
    SamplerWarning
        If Pareto k of a row that was not refitted is above its limit, or moved draws did not mix.

    References
    ----------
    Bürkner, P.-C., Gabry, J. and Vehtari, A. (2020). Approximate leave-future-out cross-validation for Bayesian time series
    models. *Journal of Statistical Computation and Simulation* 90(14).

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> y = np.cumsum(np.random.default_rng(0).normal(size=20))
    >>> with pm.Model() as model:
    ...     phi, sigma = pm.Normal("phi", 0, 1), pm.HalfNormal("sigma", 1)
    ...     _ = pm.Normal("y", phi * y[:-1], sigma, observed=y[1:])
    >>> result = pb.lfo(model, draws=200, random_seed=1, progressbar=False)
    >>> result.pointwise.sizes["observation"], result.n_fits
    (14, 1)
    """
    target = as_target(model, data, cores=cores, **target_options)
    n = observations_of(target).n
    if not n:
        raise ModelError(f"{target.label}: there is no observation to predict{no_rows(target)}")
    first = int(np.ceil(_SHARE_OF_ROWS * n)) if min_observations is None else min_observations
    if first + steps > n:
        raise ModelError(
            f"min_observations={first}, steps={steps}: there {'is one observation' if n == 1 else f'are {n} observations'}; "
            f"expected at least {first + steps}{f': {ONE_DENSITY}' if n == 1 else ''}"
        )
    run_rng, *refit_rngs = spawn_generators(random_seed, 1 + max_refits)
    sizes = {"draws": draws, "chains": chains}
    idata = _run_over_rows(target, sizes, executor, progressbar, run_rng)
    scores = group(idata, "prequential")["log_score"].values.copy()  # (chain, observation); those of the run are kept
    k, source = _tails(idata, n), np.full(n, SEQUENTIAL, dtype=object)
    limit = largest_k(draws * chains)
    worst = [t for t in np.argsort(-k) if k[t] > limit and t >= first][:max_refits]
    for t, rng in zip(worst, refit_rngs, strict=False):
        scores[:, t], k[t], source[t] = _refit(target, int(t), sizes, executor, rng), 0.0, REFITTED
    _warn(k[first:], limit)
    ahead = _sums(scores[:, first:], steps)
    pointwise = _pointwise(ahead, k[first:], source[first:], first, steps)
    n_predicted = ahead.shape[1]
    elpd = pointwise["log_score"].values
    by_chain = ahead.sum(axis=1)
    return LeaveFutureOut(
        float(elpd.sum()),
        float((n_predicted * elpd.var()) ** 0.5) if n_predicted > 1 else float("nan"),
        float(by_chain.std(ddof=1) / chains**0.5) if chains > 1 else float("nan"),
        pointwise,
        steps,
        first,
        1 + len(worst),
        idata,
    )


class TailedRowsPath(RowsPath):
    """The path over rows, with Pareto k of every step's weights."""

    def records(self, log_evidence: float, n: int) -> dict[str, Any]:
        return {**super().records(log_evidence, n), "tails": Tails()}

    def stage_figures(self, runs: Sequence[SMCState]) -> dict[str, list[Sequence[float]]]:
        return {**super().stage_figures(runs), "pareto_k": [(np.nan, *run.records["tails"].k) for run in runs]}


@dataclass(frozen=True)
class Tails:
    """Pareto k of the weights of every step."""

    k: tuple[float, ...] = ()

    def after(self, step: Step) -> Tails:
        """Add a step."""
        return replace(self, k=(*self.k, pareto_k(step.log_weights)))


def _run_over_rows(
    target: BaseTarget, sizes: Mapping[str, int], executor: Executor | None, progressbar: bool, rng: np.random.Generator
) -> Any:
    """Return the run over all rows."""
    asked = {"log_likelihood": False, "log_prior": False}
    call = RowsCall(time.perf_counter(), row_settings("auto", 1, 100, None), executor, progressbar, asked)
    kernel = rows_kernel("auto", target)
    try:
        return call.sample(
            target, kernel, partial(TailedRowsPath, target), (sizes["draws"], sizes["chains"]), rng, None
        )
    except PriorSamplingError as error:
        raise ModelError(f"lfo starts from the prior, which has to be proper: {error}") from None


def _tails(idata: Any, n: int) -> Array:
    """Return for every row the largest Pareto k of the steps that added its block, over all chains."""
    stats = group(idata, "sample_stats")
    found = np.full(n, -np.inf)
    for rows, k in zip(stats["n_observations"].values, stats["pareto_k"].values, strict=True):
        known = np.isfinite(rows)
        reached = rows[known]
        for before, after, here in zip(reached[:-1], reached[1:], k[known][1:], strict=True):
            block = slice(int(np.floor(before)), int(np.ceil(after)))
            found[block] = np.fmax(found[block], here)
    return found


def _refit(
    target: BaseTarget, t: int, sizes: Mapping[str, int], executor: Executor | None, rng: np.random.Generator
) -> Array:
    """Return log p(y_t | y_{1:t−1}) by chain ``(chains,)`` from a posterior fitted to the rows before it."""
    rows = FirstRows(target, t, rows_have_gradients(target))
    idata = sample_smc(
        rows, draws=sizes["draws"], chains=sizes["chains"], executor=executor, random_seed=rng, progressbar=False
    )
    _, x = unconstrained_draws(idata, target)

    def row(x: Array, gradient: bool) -> tuple[Array, Array | None]:
        if gradient:
            return observations_of(target).sum(x, np.array([t]), gradient=True)
        return observations_of(target).log_likelihood(x, np.array([t]))[:, 0], None

    clouds = [Cloud(points, np.arange(len(points)), len(points)) for points in x]
    runs = [move_draws(rows, row, cloud, rng, rows.has_gradient) for cloud in clouds]
    left = max(memory_of(run) for run in runs)
    if left > MEMORY_LEFT:
        text = f"lfo: draws moved to a posterior with row {t} did not mix (autocorrelation {left:.2f}): increase draws"
        warnings.warn(text, SamplerWarning, stacklevel=user_level())
    return np.array([run.log_evidence for run in runs])


def _sums(scores: Array, steps: int) -> Array:
    """Return sums of ``steps`` consecutive scores ``(chain, n − steps + 1)``."""
    return np.lib.stride_tricks.sliding_window_view(scores, steps, axis=1).sum(axis=-1)


def _pointwise(ahead: Array, k: Array, source: Array, first: int, steps: int) -> xr.Dataset:
    """Return densities over all chains with their errors, indexed by the first predicted row."""
    chains, n = ahead.shape
    score = log_mean_exp(ahead, axis=0)
    error = np.exp(ahead - score).std(axis=0, ddof=1) / chains**0.5 if chains > 1 else np.full(n, np.nan)
    largest = np.lib.stride_tricks.sliding_window_view(k, steps).max(axis=-1)
    refitted = np.lib.stride_tricks.sliding_window_view(source == REFITTED, steps).any(axis=-1)
    return xr.Dataset(
        {
            "log_score": ("observation", score),
            "mcse": ("observation", error),
            "pareto_k": ("observation", largest),
            "source": ("observation", np.where(refitted, REFITTED, SEQUENTIAL)),
        },
        coords={"observation": np.arange(first, first + n)},
    )


def _warn(k: Array, limit: float) -> None:
    bad = int((k > limit).sum())
    if bad:
        warnings.warn(
            f"lfo: Pareto k of {bad} of {len(k)} predicted observations is above {limit:.2f} (largest {k.max():.2f}): "
            "increase max_refits or draws",
            SamplerWarning,
            stacklevel=user_level(),
        )

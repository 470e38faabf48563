"""``particle_filter``: likelihood and states of a state-space model at given parameters."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.special import logsumexp

from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.kernels.particle.narrow import narrow_proposal
from ppl_backends.kernels.particle.paths import drawn_paths, traced
from ppl_backends.numerics.arrays import Array
from ppl_backends.options import checked, choice, increasing, instance, integer, number
from ppl_backends.parallel import map_independent
from ppl_backends.random import spawn_generators
from ppl_backends.results.inference_data import as_inference_data, library_attrs
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import BaseTarget, named_point
from ppl_backends.targets.state_space.filter import METHODS, Filter, History, Seeds, draw_seeds
from ppl_backends.targets.state_space.target import axis_of_rows, later_labels

LOW_ESS, LOW_SHARE = 10.0, 0.02  # a row whose effective sample size is below both is a collapse
MOST_VARIANCE = 3.0  # largest variance of log L̂ without a warning
MOST_FACTOR = 20.0  # more particles by which the variance is expected to fall as one over their number
FEW_ANCESTORS = 10
# Particles, at least, of the filters in one computation. With fewer, the overhead of a row is longer than its computation.
GROUP_PARTICLES = 2**15
PATHS_A_JOB = 25


@checked(
    values=instance(Mapping, "a dict from the variables of the model to their values"),
    n_particles=integer(1),
    method=choice("auto", *METHODS),
    resample_below=number(at_least=0, at_most=1),
    forecast=integer(0),
    quantiles=increasing(above=0, at_most=1),
)
def particle_filter(
    model: Any = None,
    *,
    values: Mapping[str, Any],
    n_particles: int = 1000,
    method: str = "auto",
    draws: int = 100,
    chains: int = 8,
    resample_below: float = 0.5,
    forecast: int = 0,
    quantiles: Any = (0.05, 0.25, 0.5, 0.75, 0.95),
    data: Any = None,
    executor: Executor | None = None,
    random_seed: Any = None,
) -> Any:
    r"""Filter, smooth and forecast the states of a state-space model at given parameters, and estimate its likelihood.

    Parameters
    ----------
    model : pm.Model, target, path, optional
        A model with a state-space likelihood; the PyMC model on the context stack by default.
    values : dict of str to number or array
        The model's variables, in model space.
    n_particles : int
        Particles of each filter; a power of two for ``"sqmc"``.
    method : {"auto", "bootstrap", "guided", "auxiliary", "sqmc"}
        ``"auto"`` is guided if the model has a proposal, else bootstrap.
    draws : int
        Smoothed paths kept from each filter.
    chains : int
        Number of independent filters; the standard error of the likelihood comes from their spread.
    resample_below : float
        Filters resample if the effective sample size, as a share of the particles, is below this value: 0 never, 1 in
        every row.
    forecast : int
        Number of rows after the data whose states are forecast.
    quantiles : sequence of float
        Probabilities of the quantiles of filtered and forecast states.
    data : dict or path, optional
        Data of a Stan program.
    executor : concurrent.futures.Executor, optional
        Runs the filters elsewhere, for example in processes (not forked ones). A job has 25 draws of filters with at
        least 32,768 particles together, or of all filters. The result is the same to the last bit.
    random_seed : int, sequence of int or Generator, optional

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``posterior`` holds ``states`` (chain, draw, time), smoothed by backward sampling, or along ancestral lines if
        the model has no ``log_transition``. Its attributes are ``log_likelihood``, the log of the mean of the filters'
        unbiased estimates; its standard error ``log_likelihood_se``, which is infinite if one filter's log L̂ has a
        variance above 3; ``log_likelihood_variance``, the variance of one
        filter's log L̂; and ``warnings``. ``filtered`` holds ``mean``, ``sd`` and ``quantile`` of every row's state
        given the rows up to it, ``forecast`` the same of rows after the data, whose coordinates continue those of the
        data if these have equal steps, and are numbers of rows otherwise. ``sample_stats`` holds ``ess``,
        ``resampled`` and ``log_increment`` (chain, time).

    Raises
    ------
    ModelError
        If the model has no state-space likelihood, a value is missing, or no particle of any filter has positive
        weight; the message names the row.

    References
    ----------
    Gordon, Salmond & Smith (1993); Pitt & Shephard (1999); Godsill, Doucet & West (2004); Gerber & Chopin (2015).

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     rho = pm.Uniform("rho", -1, 1)
    ...     _ = pb.StateSpace("y", pb.state_space.linear_gaussian(), rho=rho, sigma_x=0.5, sigma_y=0.5, observed=[0.1, 0.4])
    >>> found = pb.particle_filter(model, values={"rho": 0.9}, n_particles=200, random_seed=1)
    >>> dict(found.posterior.sizes)
    {'chain': 8, 'draw': 100, 'time': 2}
    """
    started = time.perf_counter()
    target = as_target(model, data)
    if target.state_space is None:
        raise ModelError(f"{target.label}: no likelihood of a state-space model; declare one with pb.StateSpace")
    series = target.state_space
    point = named_point(target, values, "values")
    outside = [name for name, at in zip(target.names, point[0], strict=True) if not np.isfinite(at)]
    if outside:
        raise ModelError(
            f"values: {outside[0]} is not finite on the unconstrained space: the value is outside the prior's support"
        )
    filters = series.filter(method, resample_below)
    parameters = {name: np.repeat(value, chains, axis=0) for name, value in series.parameters_at(point).items()}
    filter_rng, path_rng, ahead_rng = spawn_generators(random_seed, 3)
    seeds = draw_seeds(filter_rng, chains), _path_seeds(path_rng, chains, draws)
    history, paths = _run(filters, parameters, n_particles, seeds, executor)
    likelihood = _likelihood(history, series, n_particles)
    narrow = narrow_proposal(filters, parameters)
    if narrow:
        likelihood = likelihood._replace(se=np.inf, alarms=[narrow])
    alarms = [*likelihood.alarms, *_collapses(history, filters, series.name)]
    if filters.model.log_transition is None:
        alarms += _few_ancestors(history)
    for alarm in alarms:
        warnings.warn(alarm, SamplerWarning, stacklevel=user_level())
    attrs = {
        **library_attrs(),
        "method": f"particle filter ({filters.method})",
        "accuracy": "approximate",
        "n_particles": n_particles,
        "log_likelihood": likelihood.log_mean,
        "log_likelihood_se": likelihood.se,
        "log_likelihood_variance": likelihood.variance,
        "smoothing": "ancestors" if filters.model.log_transition is None else "backward sampling",
        "warnings": "; ".join(alarms),
    }
    weights = np.exp(history.log_weights)
    ahead = _forecast(filters, parameters, history, forecast, ahead_rng)
    sets = {
        "posterior": xr.Dataset({"states": (("chain", "draw", "time", *_own(paths, 3)), paths)}),
        "sample_stats": _stats(history, weights),
        "filtered": _summary(history.x, weights, np.asarray(quantiles)),
    }
    if forecast:
        sets["forecast"] = _summary(ahead, np.broadcast_to(weights[-1:], ahead.shape[:3]), np.asarray(quantiles))
    attrs["sampling_time"] = time.perf_counter() - started
    return _inference_data(target, sets, attrs)


def _path_seeds(rng: np.random.Generator, chains: int, draws: int) -> Seeds:
    """Return a seed for every smoothed path ``(chains, draws)``."""
    return np.stack([draw_seeds(rng, chains) for _ in range(draws)], axis=1)


def _run(
    filters: Filter,
    parameters: Mapping[str, Array],
    n_particles: int,
    seeds: tuple[Seeds, Seeds],
    executor: Executor | None,
) -> tuple[History, Array]:
    """Return the history of all filters and their smoothed paths.

    The jobs of an executor are groups of filters, each with some of the paths: a job computes its filters from their
    seeds. The sizes of arrays have an effect on rounding, so the groups do not depend on the executor. All have one
    size, for which the last filter is repeated.
    """
    filters.state_shape(parameters)  # its warnings belong to this process
    of_filters, of_paths = seeds
    n, draws = of_paths.shape
    size = -(-n // max(1, min(n, n * n_particles // GROUP_PARTICLES)))
    groups = np.minimum(np.arange(-(-n // size) * size), n - 1).reshape(-1, size)
    width = draws if executor is None else PATHS_A_JOB
    jobs = [
        _Job(
            {name: x[group] for name, x in parameters.items()},
            of_filters[group],
            of_paths[group, first : first + width],
            first == 0,
        )
        for first in range(0, draws, width)
        for group in groups
    ]
    found = map_independent(partial(_filtered, filters, n_particles), jobs, executor)
    by_width = [found[k : k + len(groups)] for k in range(0, len(jobs), len(groups))]
    parts = zip(*(history for history, _ in by_width[0]), strict=True)
    history = History(*(np.concatenate(part, axis=1)[:, :n] for part in parts))
    return history, np.concatenate([np.concatenate([paths for _, paths in some])[:n] for some in by_width], axis=1)


class _Job(NamedTuple):
    """Filters, and some of their smoothed paths."""

    parameters: Mapping[str, Array]
    seeds: Seeds
    path_seeds: Seeds
    keeps_history: bool


def _filtered(filters: Filter, n_particles: int, job: _Job) -> tuple[Any, Array]:
    """Return the history of a job's filters, or None, and their smoothed paths ``(chains, draws, …)``.

    Paths are sampled backwards, or traced along ancestors if the model has no density of a transition.
    """
    history = filters.history(job.parameters, n_particles, job.seeds)
    if filters.model.log_transition is None:
        paths = [traced(history, each) for each in job.path_seeds.T]
    else:
        paths = [drawn_paths(filters, job.parameters, history, each) for each in job.path_seeds.T]
    return history if job.keeps_history else None, np.stack(paths, axis=1)


class _Likelihood(NamedTuple):
    """Log of the mean of the estimates, its standard error, the variance of one log estimate, and a warning text."""

    log_mean: float
    se: float
    variance: float
    alarms: list[str]


def _likelihood(history: History, series: Any, n_particles: int) -> _Likelihood:
    """Combine the filters' likelihoods, which are unbiased, unlike their logs."""
    name = series.name
    log_likelihood = history.increments.sum(axis=0)
    n = len(log_likelihood)
    alive = np.isfinite(log_likelihood)
    alarms = []
    if not alive.all():
        rows = [int(np.flatnonzero(~np.isfinite(history.increments[:, k]))[0]) for k in np.flatnonzero(~alive)]
        if not alive.any():
            said = series.zero_row(min(rows), "at every particle of every filter")
            raise ModelError(f"{said}; look at this row, and at the functions of the model at these values")
        alarms.append(
            f"{n - alive.sum()} of {n} filters have a likelihood of zero, first at row {min(rows)} of '{name}': raise "
            "n_particles, or use a proposal or an observation density with heavier tails"
        )
    log_mean = float(logsumexp(log_likelihood) - np.log(n))
    relative = np.exp(log_likelihood - log_mean)
    se = float(relative.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan
    variance = float(log_likelihood[alive].var(ddof=1)) if alive.sum() > 1 else np.nan
    if variance > 0:  # of normal logs, as those of long series; the spread of few likelihoods is mostly too small then
        se = max(se, float(np.sqrt(variance / alive.sum() + variance**2 / (2 * alive.sum() - 2))))
    if variance > MOST_VARIANCE:
        se = np.inf  # the largest of few estimates is most of their mean
        few = variance <= MOST_FACTOR
        more = f"raise n_particles to about {round(n_particles * variance)} for a variance of one"
        alarms.append(
            f"the log likelihood {log_mean:.1f} is too low by an unknown amount, because that of one filter has variance "
            f"{variance:.1f}: {more if few else 'use a proposal= or heavier tails, or compare with many more particles'}"
        )
    return _Likelihood(log_mean, se, variance, alarms)


def _ess(weights: Array) -> Array:
    """Return effective sample sizes ``(n_rows, n_theta)``."""
    return 1.0 / (weights**2).sum(axis=2)


def _collapses(history: History, filters: Filter, name: str) -> list[str]:
    """Return a warning text if few particles carry all weight."""
    ess = np.median(_ess(np.exp(history.log_weights)), axis=1)
    n_x = history.x.shape[2]
    t = int(ess.argmin())
    if ess[t] >= min(LOW_ESS, LOW_SHARE * n_x) or filters.missing[t]:
        return []
    better = "" if filters.method == "guided" else ", or give the model a proposal= and use method='guided'"
    return [
        f"the effective sample size falls to {ess[t]:.1f} of {n_x} particles at row {t} of '{name}': "
        f"increase n_particles{better}"
    ]


def _few_ancestors(history: History) -> list[str]:
    """Return a warning text if all ancestral paths begin in a few particles."""
    n_rows, n_theta, n_x = history.log_weights.shape
    place = np.broadcast_to(np.arange(n_x), (n_theta, n_x))
    for t in range(n_rows - 1, 0, -1):
        place = np.take_along_axis(history.ancestors[t], place, axis=1)
    distinct = int(np.median([len(np.unique(row)) for row in place]))
    if distinct >= min(FEW_ANCESTORS, n_x):
        return []
    return [
        f"smoothed states of the first row are {distinct} different particles of {n_x}: give the model log_transition=, "
        "from which states are sampled backwards"
    ]


def _forecast(
    filters: Filter, parameters: Mapping[str, Array], history: History, n_rows: int, rng: np.random.Generator
) -> Array:
    """Return states of rows after the data ``(n_rows, chains, n_x[, d])``; the rows themselves are missing."""
    if not n_rows:
        return history.x[:0]
    if filters.covariates:
        raise ModelError(
            "forecast= needs covariates of the rows after the data: append rows of NaN with their covariates"
        )
    longer = np.concatenate([filters.y, np.full((n_rows, *filters.y.shape[1:]), np.nan)])
    further = Filter(filters.model, longer, None, "bootstrap", resample_below=0.0)
    state = further.start(parameters, history.x.shape[2], draw_seeds(rng, history.x.shape[1]))
    state = type(state)(history.x[-1], history.log_weights[-1], state.log_likelihood, state.seeds)
    found = []
    for t in range(len(filters.y), len(longer)):
        state, _ = further.advance(parameters, state, t, 1)
        found.append(state.x)
        if not np.isfinite(state.x).all():
            raise ModelError(
                f"forecast={n_rows}: states of row {t} are not finite; a function that uses p.y_previous cannot go beyond "
                f"row {len(filters.y)}, because later rows have no previous row"
            )
    return np.stack(found)


def _own(states: Array, n_leading: int) -> tuple[str, ...]:
    return ("state",) if states.ndim > n_leading else ()


def _summary(x: Array, weights: Array, levels: Array) -> xr.Dataset:
    """Return mean, sd and quantiles of every row's states over all filters ``(time[, state])``."""
    n_rows = len(x)
    flat = np.moveaxis(x.reshape(n_rows, -1, *x.shape[3:]), 1, -1)
    w = (weights / x.shape[1]).reshape(n_rows, -1)
    w = w[:, None, :] if flat.ndim == 3 else w
    mean = (w * flat).sum(axis=-1)
    sd = np.sqrt((w * (flat - mean[..., None]) ** 2).sum(axis=-1))
    order = np.argsort(flat, axis=-1)
    ordered, below = np.take_along_axis(flat, order, -1), np.cumsum(np.take_along_axis(w + 0 * flat, order, -1), -1)
    place = [np.minimum((below < level).sum(axis=-1), flat.shape[-1] - 1) for level in levels]
    quantile = np.stack([np.take_along_axis(ordered, each[..., None], -1)[..., 0] for each in place], axis=-1)
    dims = ("time", *_own(x, 3))
    variables = {"mean": (dims, mean), "sd": (dims, sd), "quantile": ((*dims, "level"), quantile)}
    return xr.Dataset(variables, coords={"level": levels})


def _stats(history: History, weights: Array) -> xr.Dataset:
    dims = ("chain", "time")
    return xr.Dataset(
        {
            "ess": (dims, _ess(weights).T),
            "resampled": (dims, history.resampled.T),
            "log_increment": (dims, history.increments.T),
        }
    )


def _inference_data(target: BaseTarget, sets: dict[str, xr.Dataset], attrs: Mapping[str, Any]) -> Any:
    """Name the time axis as the data do, and add its coordinates."""
    series = target.state_space
    axis, labels = axis_of_rows(target)
    groups = {}
    for name, values in sets.items():
        index: dict[str, Any] = {
            str(dim): np.arange(length) for dim, length in values.sizes.items() if dim not in values.coords
        }
        index["time"] = later_labels(labels, values.sizes["time"]) if name == "forecast" else labels
        groups[name] = values.assign_coords(index).rename({"time": axis} if axis != "time" else {})
    groups["posterior"] = groups["posterior"].assign_attrs(attrs)
    own = {dim: np.asarray(target.coords[dim]) for dim in series.dims if dim in target.coords}
    observed = xr.Dataset({series.name: (series.dims, series.y)}, coords=own)
    return as_inference_data({**groups, "observed_data": observed})

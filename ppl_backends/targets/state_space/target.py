"""Targets whose likelihood is that of a state-space model: an integral over states, estimated or exact.

The prior, and other observed variables, are those of a PyMC model, a Stan program or functions. The state-space model
uses parameters in model space, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError, PriorSamplingError
from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.differences import central_differences
from ppl_backends.targets.digest import digest, digest_of_numbers, fixed_points
from ppl_backends.targets.observations import Observations
from ppl_backends.targets.protocol import BaseTarget, Evaluation, JointEvaluation, as_points, sanitize
from ppl_backends.targets.state_space.filter import Filter, draw_seeds
from ppl_backends.targets.state_space.model import StateSpaceModel
from ppl_backends.targets.wrapped import WrappedTarget

DEFAULT_PARTICLES = 100
N_DIGESTED, DIGEST_PARTICLES = 8, 4


def refusal(name: str) -> str:
    """Return why a method cannot evaluate the likelihood of a state-space model, and which methods can."""
    return (
        f"state-space variable '{name}': its likelihood is an integral over states and can only be estimated; use "
        "pb.sample_smc2, pb.sample_pmmh, pb.sample_particle_gibbs or pb.particle_filter"
    )


@dataclass(frozen=True)
class StateSpaceData:
    """A state-space model on its data.

    Attributes
    ----------
    name : str
        Name of the observed variable.
    model : StateSpaceModel
    y : ndarray (n_rows,) or (n_rows, k)
    parameters_at : callable
        Points ``(n, dim)`` of the target → name → ``(n, *shape)``.
    covariates : mapping of str to ndarray (n_rows, …)
    dims : tuple of str
        Names of the axes of ``y``; the first is time.
    labels : ndarray (n_rows,), optional
        Coordinates of the rows; by default those of the first axis in the target.
    columns : mapping of str to sequence, optional
        Coordinates of the other axes, if the target does not have them.
    """

    name: str
    model: StateSpaceModel
    y: Array
    parameters_at: Callable[[Array], dict[str, Array]]
    covariates: Mapping[str, Array] = field(default_factory=dict)
    dims: tuple[str, ...] = ()
    labels: Array | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    def filter(self, method: str = "auto", resample_below: float = 0.5) -> Filter:
        """Return the filter; ``"auto"`` is guided if the model has a proposal, else bootstrap."""
        if method == "auto":
            method = "bootstrap" if self.model.proposal is None else "guided"
        return Filter(self.model, self.y, self.covariates, method, resample_below)

    def zero_row(self, row: int, where: str = "at every particle") -> str:
        """Return that a row has density zero, with a reason if the row shows it."""
        partly = np.isnan(self.y[row]).any()
        reason = ", and it is NaN in part, which log_observation has to know" if partly else ""
        return f"row {row} of '{self.name}' has density zero {where} (NaN counts as zero){reason}"

    def changed(self, new: Mapping[str, Any], append: bool) -> StateSpaceData:
        """Return the model on other rows, or with rows appended; ``new`` names the variable and the covariates."""
        held = {self.name: self.y, **self.covariates}
        unknown = sorted(set(new) - set(held))
        if unknown:
            raise ModelError(
                f"{unknown[0]!r} is not among the data of state-space variable '{self.name}': {', '.join(held)}"
            )
        rows = {name: _as_rows(name, value, held[name]) for name, value in new.items()}
        if append:
            lacking = sorted(set(held) - set(rows))
            if lacking:
                raise ModelError(f"new rows of '{self.name}' lack {lacking[0]!r}")
            rows = {name: np.concatenate([held[name], value]) for name, value in rows.items()}
        rows = {**held, **rows}
        y = rows.pop(self.name)
        Filter(self.model, y, rows)  # checks lengths
        return replace(self, y=y, covariates=rows, labels=None if len(y) != len(self.y) else self.labels)


class StateSpaceTarget(WrappedTarget):
    """A target with the likelihood of a state-space model and other terms.

    Parameters
    ----------
    rest : BaseTarget
        All other terms.
    state_space : StateSpaceData
    n_particles : int
        Number of particles of :meth:`log_likelihood_estimate`.
    """

    has_split, is_prior, has_gradient, split_problem = True, False, False, None
    factors = likelihood_factors = None
    state_space: Any = None
    hessian, undefined, tempered = BaseTarget.hessian, BaseTarget.undefined, BaseTarget.tempered
    pointwise_log_likelihood = BaseTarget.pointwise_log_likelihood
    with_fixed_batch_size = BaseTarget.with_fixed_batch_size
    observed_data: Any = None
    coords: Any = None
    dims: Any = None

    def __init__(self, rest: BaseTarget, state_space: StateSpaceData, n_particles: int = DEFAULT_PARTICLES) -> None:
        super().__init__(rest)
        y, axes = state_space.y, list(state_space.dims)
        if not axes and not any("time" in used for used in (rest.coords, *rest.dims.values())):
            axes = ["time"]
        axes += [f"{state_space.name}_dim_{k}" for k in range(len(axes), y.ndim)]
        self.state_space, self.n_particles = replace(state_space, dims=tuple(axes)), n_particles
        self.observed_data = {**rest.observed_data, state_space.name: y}
        self.dims = {**rest.dims, state_space.name: axes}
        held: dict[str, Any] = {**rest.coords, **state_space.columns}
        if state_space.labels is not None:
            held[axes[0]] = state_space.labels
        if len(held.get(axes[0], ())) != len(y):
            held[axes[0]] = np.arange(len(y))
        self.coords = held

    @property
    def rest(self) -> BaseTarget:
        """Return all terms except the likelihood of the state-space model."""
        return self.target

    @property
    def likelihood_is_known(self) -> bool:  # type: ignore[override]
        """Return whether the likelihood is exact, not only estimated."""
        return self.state_space.model.linear_gaussian is not None

    @cached_property
    def observations(self) -> Observations | None:  # type: ignore[override]
        """Return the rows, each given those before it; None unless the likelihood is exact and the only one."""
        rest = self.target
        no_other = not rest.has_split or rest.is_prior or (rest.observations is not None and not rest.observations.n)
        return _ExactRows(self) if self.likelihood_is_known and no_other else None

    @cached_property
    def _filter(self) -> Filter:
        return self.state_space.filter()

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        """Return prior and likelihood of a linear Gaussian model; its gradient is by differences.

        Raises
        ------
        ModelError
            If the likelihood is not exact.
        """
        if not self.likelihood_is_known:
            raise ModelError(refusal(self.state_space.name))
        x = as_points(x, self.dim)
        own = self.target.evaluate(x, gradient)
        if not isinstance(own, Evaluation):
            own = Evaluation(own.log_density, np.zeros(len(x)), own.gradient, np.zeros_like(x) if gradient else None)
        value = sanitize(own.log_likelihood + self.increments(x).sum(axis=1))[0]
        if not gradient:
            return Evaluation(own.log_prior, value)
        slope = central_differences(lambda points: self.increments(points).sum(axis=1), x)
        assert own.log_likelihood_gradient is not None
        _, total = sanitize(value, slope + own.log_likelihood_gradient)
        return Evaluation(own.log_prior, value, own.log_prior_gradient, total)

    def evaluate_prior(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return the log prior ``(n,)`` and its gradient ``(n, dim)``, or None."""
        own = self.target.evaluate(x, gradient) if not self.target.has_split else None
        if own is not None:  # a density without a likelihood
            return own.log_density, own.gradient
        return self.target.evaluate_prior(x, gradient)

    def prior_target(self) -> BaseTarget | None:
        """Return the prior as a target: all other terms, if they have no likelihood."""
        rest = self.target
        return rest if rest.is_prior or not rest.has_split else rest.prior_target()

    def increments(self, x: Array) -> Array:
        """Return exact log densities of each row given those before it ``(n, n_rows)``."""
        from ppl_backends.targets.state_space.kalman import kalman_filter

        data, rows = self.state_space, self._filter.rows
        return kalman_filter(data.model, data.parameters_at(as_points(x, self.dim)), rows, len(data.y))[0]

    def own_log_likelihood(self, x: Array) -> Array:
        """Return the log likelihood of the other observed variables ``(n,)``."""
        own = self.target.evaluate(x)
        return own.log_likelihood if isinstance(own, Evaluation) else np.zeros(len(x))

    def log_likelihood_estimate(self, x: Array, rng: np.random.Generator) -> Array:
        """Return logs of independent unbiased estimates of the likelihood ``(n,)``, by a filter of ``n_particles``."""
        x = as_points(x, self.dim)
        parameters = self.state_space.parameters_at(x)
        estimate = self._filter.run(parameters, self.n_particles, draw_seeds(rng, len(x)))
        return self.own_log_likelihood(x) + estimate

    def with_particles(self, n_particles: int) -> Self:
        """Return the same target with another number of particles in its estimates."""
        return type(self)(self.target, self.state_space, n_particles)

    def explain(self, x: Array) -> str:
        """Return why the density is not finite at one point ``(dim,)``, and in which row if it is a row's."""
        x = as_points(x, self.dim)
        if not np.isfinite(self.target.log_density(x)).all():
            return self.target.explain(x[0])
        history = self._filter.history(
            self.state_space.parameters_at(x), self.n_particles, np.zeros(1, dtype=np.uint64)
        )
        zero = np.flatnonzero(~np.isfinite(history.increments[:, 0]))
        return self.state_space.zero_row(int(zero[0])) if zero.size else ""

    def digests(self) -> dict[str, str]:
        """Return digests of the other terms, of the data, and of filters at fixed points."""
        data = self.state_space
        try:
            x = self.sample_prior(N_DIGESTED, np.random.default_rng(8))
        except PriorSamplingError:
            x = fixed_points(self.dim)[:N_DIGESTED]
        seeds = draw_seeds(np.random.default_rng(8), N_DIGESTED)
        values = self._filter.run(data.parameters_at(x), DIGEST_PARTICLES, seeds)
        held = [data.y, *(part for item in sorted(data.covariates.items()) for part in item)]
        found = {"state space": digest_of_numbers(values), "rows": digest(*held)}
        return {**self.target.digests(), **found}

    def around(self, target: BaseTarget) -> Self:
        """Return the same likelihood with other terms."""
        return type(self)(target, self.state_space, self.n_particles)

    def with_data(self, new: Mapping[str, Any]) -> StateSpaceTarget:
        """Return the same target on other rows; ``new`` names the observed variable and covariates."""
        return type(self)(self.target, self.state_space.changed(new, append=False), self.n_particles)

    def append(self, new: Mapping[str, Any]) -> StateSpaceTarget:
        """Return the target with new rows of the observed variable, and of every covariate, appended.

        Coordinates of the new rows are given under the name of their axis; without them all rows are counted from 0.
        """
        series, rows = self.state_space, dict(new)
        axis = series.dims[0]
        labels = None if axis in series.covariates else rows.pop(axis, None)
        longer = series.changed(rows, append=True)
        if labels is not None:
            longer = replace(longer, labels=_joined(axis, self.coords[axis], labels, len(longer.y)))
        return type(self)(self.target, longer, self.n_particles)


class _ExactRows(Observations):
    """Rows of a linear Gaussian model, each given those before it."""

    no_gradient = "rows of a series depend on those before them"

    def __init__(self, target: StateSpaceTarget) -> None:
        self._target, self.n = target, len(target.state_space.y)

    def log_likelihood(self, x: Array, index: NDArray[np.integer] | None = None) -> Array:
        rows, values = self.checked(index, len(x)), self._target.increments(x)
        return values[:, rows] if rows.ndim == 1 else np.take_along_axis(values, rows, axis=1)


def as_numbers(what: str, value: Any) -> Array:
    """Return an array of numbers, with NaN where it is masked; ``what`` names it in errors."""
    try:
        given = np.ma.asarray(value)
    except ValueError:
        raise ModelError(f"{what} has rows of unequal lengths; expected (n,) or (n, k)") from None
    if given.dtype.kind not in "iufb":
        kind = given.dtype if isinstance(value, np.ndarray | Sequence) else type(value).__name__
        raise ModelError(f"{what} is of type {kind}; expected an array of numbers, NaN where missing")
    return np.asarray(np.ma.filled(given.astype(np.float64), np.nan))


def _as_rows(name: str, value: Any, held: Array) -> Array:
    """Return new values of a variable whose rows are to be like those that are ``held``."""
    rows = as_numbers(f"new {name!r}", value)
    if rows.ndim != held.ndim or rows.shape[1:] != held.shape[1:]:
        expected = f"({', '.join(['n', *map(str, held.shape[1:])])}{',' * (held.ndim == 1)})"
        raise ModelError(f"new {name!r} has shape {rows.shape}; expected {expected}")
    return rows


def _joined(axis: str, held: Any, labels: Any, n_rows: int) -> Array:
    """Return the coordinates of an axis with those of the new rows behind them."""
    import pandas as pd

    old, new = pd.Index(held), pd.Index(np.atleast_1d(labels))
    try:
        new = pd.DatetimeIndex(new) if isinstance(old, pd.DatetimeIndex) else new
    except (ValueError, TypeError):
        raise ModelError(f"new {axis!r} has {new[0]!r}, which is not a date as its coordinates are") from None
    if len(old) + len(new) != n_rows:
        raise ModelError(f"new {axis!r} has {len(new)} coordinates for {n_rows - len(old)} new rows")
    return np.asarray(old.append(new))


def axis_of_rows(target: BaseTarget) -> tuple[str, Array]:
    """Return the name of the axis of a target's rows, ``time`` where the data give none, and its coordinates."""
    series: StateSpaceData = target.state_space
    axis = series.dims[0]
    return axis, np.asarray(target.coords.get(axis, np.arange(len(series.y))))


def later_labels(labels: NDArray, n: int) -> NDArray:
    """Return coordinates of ``n`` rows after the data: those of equal steps go on, others are numbers of rows.

    Examples
    --------
    >>> later_labels(np.array([1990, 1992, 1994]), 2).tolist()
    [1996, 1998]
    >>> later_labels(np.array(["2024-01-01", "2024-02-01", "2024-03-01"], dtype="datetime64[D]"), 1).astype("datetime64[D]")
    array(['2024-04-01'], dtype='datetime64[D]')
    >>> later_labels(np.array([1990, 1992, 1993]), 2).tolist()
    [3, 4]
    """
    import pandas as pd

    numbers = np.arange(len(labels), len(labels) + n)
    if len(labels) < 3:
        return numbers
    index = pd.Index(labels)
    if isinstance(index, pd.DatetimeIndex):
        step = index.inferred_freq
        return numbers if step is None else np.asarray(pd.date_range(index[-1], periods=n + 1, freq=step)[1:])
    if index.dtype.kind not in "iuf":
        return numbers
    steps = np.diff(np.asarray(index))
    return labels[-1] + steps[0] * np.arange(1, n + 1) if np.allclose(steps, steps[0]) and steps[0] else numbers


def check_dims(name: str, y: Array, dims: Sequence[str], lengths: Mapping[str, int | None], where: str) -> None:
    """Refuse names of axes without coordinates, and names or coordinates that do not fit the data."""
    unknown = [each for each in dims if each not in lengths]
    if unknown:
        raise ModelError(f"'{name}': dims name {unknown[0]!r}, for which there are no coordinates: {where}")
    if dims and len(dims) != y.ndim:
        raise ModelError(
            f"'{name}': dims name {len(dims)} axes, and observed has {y.ndim} (shape {y.shape}): name every axis"
        )
    for axis, n in zip(dims, y.shape, strict=False):
        if lengths[axis] not in (None, n):
            raise ModelError(f"'{name}': {axis!r} has {lengths[axis]} coordinates, and observed {n} rows or columns")


class ParametersByName:
    """Parameters of a state-space model from the variables of a target, by their names in model space."""

    def __init__(self, target: BaseTarget, names: Mapping[str, str]) -> None:
        self.target, self.names = target, dict(names)

    def __call__(self, x: Array) -> dict[str, Array]:
        """Return parameters at points ``(n, dim)``."""
        values = self.target.constrain(x)
        lacking = [name for name in self.names.values() if name not in values]
        if lacking:
            raise ModelError(
                f"parameters= names {lacking[0]!r}, which is not a variable of the model: {', '.join(values)}"
            )
        return {parameter: np.asarray(values[name], dtype=np.float64) for parameter, name in self.names.items()}

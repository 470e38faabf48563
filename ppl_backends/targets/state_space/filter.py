"""Particle filters of many parameter values at once, compiled by JAX in float64.

A filter starts before the first row and advances over any stretch of rows; its result is a function of its seed. A
loop inside the compiled program counts rows, so that one program works for every stretch; the number of filters is
padded to few sizes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.population import Population
from ppl_backends.targets.blocks import partition
from ppl_backends.targets.jax_process import check_process, double_precision, jax_module
from ppl_backends.targets.state_space.model import StateSpaceModel

METHODS = ("bootstrap", "guided", "auxiliary", "sqmc")
BLOCK_PARTICLES = 2**17  # of all filters in one computation, so that their arrays fit in the cache
LEAST_ROWS = 32
RESERVED = ("y", "missing", "y_previous")

Values = Mapping[str, Array]
Seeds = NDArray[np.uint64]


@dataclass(frozen=True)
class FilterState(Population):
    """Filters after some row, one for every parameter value.

    Attributes
    ----------
    x : ndarray (n_theta, n_x) or (n_theta, n_x, d)
        States of the particles.
    log_weights : ndarray (n_theta, n_x)
        Normalised.
    log_likelihood : ndarray (n_theta,)
        Of all rows so far.
    seeds : ndarray (n_theta,) of uint64
    """

    log_weights: Array
    log_likelihood: Array
    seeds: Seeds


class History(NamedTuple):
    """Figures of filters row by row.

    Attributes
    ----------
    x : ndarray (n_rows, n_theta, n_x[, d])
    log_weights : ndarray (n_rows, n_theta, n_x)
    ancestors : ndarray (n_rows, n_theta, n_x)
        Index in the previous row.
    increments : ndarray (n_rows, n_theta)
    resampled : ndarray of bool (n_rows, n_theta)
    """

    x: Array
    log_weights: Array
    ancestors: NDArray[np.int32]
    increments: Array
    resampled: NDArray[np.bool_]


def draw_seeds(rng: np.random.Generator, n: int) -> Seeds:
    """Return ``n`` seeds of filters."""
    return rng.integers(0, 2**64, size=n, dtype=np.uint64)


class Filter:
    """Particle filters of a state-space model on its data.

    Parameters
    ----------
    model : StateSpaceModel
    y : ndarray (n_rows,) or (n_rows, k)
        A row of NaN is missing.
    covariates : mapping of str to ndarray (n_rows, …), optional
    method : {"bootstrap", "guided", "auxiliary", "sqmc"}
    resample_below : float
        Filters resample if the effective sample size, as a share of the particles, is below this value; 0 never, 1 always.
    """

    def __init__(
        self,
        model: StateSpaceModel,
        y: Array,
        covariates: Mapping[str, Array] | None = None,
        method: str = "bootstrap",
        resample_below: float = 0.5,
    ) -> None:
        if method not in METHODS:
            raise ModelError(f"method={method!r}: expected {', '.join(map(repr, METHODS))}")
        if method == "guided" and model.proposal is None:
            raise ModelError("method='guided' needs a model with proposal=; use method='bootstrap'")
        self.model, self.method, self.resample_below = model, method, float(resample_below)
        self.y = np.asarray(y, dtype=np.float64)
        if self.y.ndim not in (1, 2) or not len(self.y):
            raise ModelError(f"observed has shape {self.y.shape}; expected rows (n,) or (n, k), at least one")
        self.covariates = {name: np.asarray(value, dtype=np.float64) for name, value in (covariates or {}).items()}
        if np.isinf(self.y).any():
            raise ModelError(
                f"observed is infinite in row {np.argwhere(np.isinf(self.y))[0, 0]}; use NaN for missing entries"
            )
        for name, value in self.covariates.items():
            if name in RESERVED:
                raise ModelError(f"covariate {name!r}: the name is taken; rename it")
            if not np.isfinite(value).all():
                row = np.argwhere(~np.isfinite(value))[0, 0] if value.ndim else 0
                raise ModelError(
                    f"covariate {name!r} is not finite in row {row}; give it a value, even if the row's data are missing"
                )
            if len(value) != len(self.y):
                raise ModelError(f"covariate {name!r} has {len(value)} rows and the data have {len(self.y)}")
        self.missing = np.array(np.isnan(self.y).reshape(len(self.y), -1).all(axis=1))
        self.rows = self._padded_rows()
        self._checked = self._factors_checked = False

    @property
    def n_rows(self) -> int:
        """Return the number of rows of data."""
        return len(self.y)

    @property
    def checked_rows(self) -> list[int]:
        """Return the rows with a transition in which functions are checked: the second, the middle and the last."""
        last = self.n_rows - 1
        return sorted({1, (last + 1) // 2, last} - {0}) if last else []

    def start(self, parameters: Values, n_x: int, seeds: Seeds) -> FilterState:
        """Return filters before the first row; no state has been drawn."""
        n_theta = len(seeds)
        shape = (n_theta, n_x, *self.state_shape(parameters))
        equal = np.full((n_theta, n_x), -np.log(n_x))
        return FilterState(np.zeros(shape), equal, np.zeros(n_theta), np.asarray(seeds, dtype=np.uint64))

    def advance(
        self, parameters: Values, state: FilterState, t: int, n_steps: int = 1, seeds: Seeds | None = None
    ) -> tuple[FilterState, Array]:
        """Filter rows ``t … t + n_steps − 1``.

        Parameters
        ----------
        parameters : mapping of str to ndarray (n_theta, *shape)
        state : FilterState
            After row ``t − 1``.
        t, n_steps : int
        seeds : ndarray (n_theta,), optional
            Seeds of the randomness from here on; by default those of ``state``. Copies of a filter need separate seeds.

        Returns
        -------
        state : FilterState
        increments : ndarray (n_theta, n_steps)
            Of the log likelihood, row by row.
        """
        if t < 0 or n_steps < 0 or t + n_steps > self.n_rows:
            raise ModelError(f"rows {t} to {t + n_steps} are asked for; there are {self.n_rows}")
        seeds = state.seeds if seeds is None else np.asarray(seeds, dtype=np.uint64)
        self.state_shape(parameters)
        length = 1 if n_steps == 1 else len(self.rows["y"])
        program = _compiled("advance", self.rule("seeds"), length)
        carry = (state.x, state.log_weights, state.log_likelihood)
        x, log_weights, log_likelihood, increments = self._blocks(
            lambda block: program(block["p"], block["seeds"], self.rows, *block["carry"], t, t + n_steps),
            {"p": dict(parameters), "seeds": seeds, "carry": carry},
        )
        return FilterState(x, log_weights, log_likelihood, seeds), increments[:, :n_steps]

    def run(self, parameters: Values, n_x: int, seeds: Seeds, upto: int | None = None) -> Array:
        """Return log likelihoods ``(n_theta,)`` of the first ``upto`` rows (all by default)."""
        state = self.start(parameters, n_x, seeds)
        return self.advance(parameters, state, 0, self.n_rows if upto is None else upto)[0].log_likelihood

    def n_normals(self, n_x: int) -> int:
        """Return the number of standard normals that :meth:`run_with_normals` uses."""
        return self.n_rows * (n_x * self.model.n_normals + 1)

    def run_with_normals(self, parameters: Values, n_x: int, normals: Array, smooth: bool = True) -> Array:
        """Return log likelihoods ``(n_theta,)`` as functions of given standard normals ``(n_theta, n_normals(n_x))``.

        If it is ``smooth``, particles are sorted and resampled in every row, so that nearby parameters and normals
        have nearby likelihoods.
        """
        own = self.state_shape(parameters)
        n_theta = len(normals)
        if np.shape(normals) != (n_theta, self.n_normals(n_x)):
            raise ModelError(f"normals have shape {np.shape(normals)}; expected (n_theta, {self.n_normals(n_x)})")
        carry = (np.zeros((n_theta, n_x, *own)), np.zeros((n_theta, n_x)), np.zeros(n_theta))
        program = _compiled("advance", self.rule("normals", smooth), 1)

        def run(block: Any) -> Any:
            return program(block["p"], self._by_row(block["normals"]), self.rows, *block["carry"], 0, self.n_rows)

        return self._blocks(run, {"p": dict(parameters), "normals": np.asarray(normals), "carry": carry})[2]

    def history(self, parameters: Values, n_x: int, seeds: Seeds, normals: Array | None = None) -> History:
        """Return figures of filters with these seeds, or given normals, row by row; memory grows with the rows."""
        self.state_shape(parameters)
        with double_precision():
            program = _compiled("history", self.rule("seeds" if normals is None else "normals"), n_x)
            values = {name: np.asarray(value, dtype=np.float64) for name, value in parameters.items()}
            source = np.asarray(seeds, dtype=np.uint64) if normals is None else self._by_row(normals)
            found = program(values, source, self.rows)
            return History(*(np.asarray(part)[: self.n_rows] for part in found))

    def _by_row(self, normals: Array) -> Array:
        """Return normals ``(n_theta, n_normals)`` as ``(rows and their padding, n_theta, …)``."""
        by_row = np.moveaxis(normals.reshape(len(normals), self.n_rows, -1), 1, 0)
        padded = np.zeros((len(self.rows["y"]), *by_row.shape[1:]))
        padded[: self.n_rows] = by_row
        return padded

    def state_shape(self, parameters: Values) -> tuple[int, ...]:
        """Return ``()`` or ``(d,)``, the shape of one state, after a check that the model's functions fit the parameters."""
        shapes = tuple(sorted((name, np.shape(value)[1:]) for name, value in parameters.items()))
        reserved = {"y_previous", *self.covariates} & {name for name, _ in shapes}
        if reserved:
            raise ModelError(f"{reserved.pop()!r} is the name of a parameter and of a covariate: rename one")
        with double_precision():
            row_shapes = tuple((name, np.shape(value)) for name, value in self.rows.items())
            shape = _state_shape(self.rule("seeds"), shapes, row_shapes)
            if not self._checked:
                self._check(parameters)
        return shape

    def _check(self, parameters: Values) -> None:
        """Check functions once, in the second, the middle and the last row; warn where one reads beyond an array's end.

        They must act on each particle alone, and densities must be those of the draws. A declaration has no parameters
        yet and gives zeros, at which no densities are compared.
        """
        from ppl_backends.targets.state_space.covariances import check_covariances
        from ppl_backends.targets.state_space.densities import check_densities
        from ppl_backends.targets.state_space.elementwise import check_elementwise
        from ppl_backends.targets.state_space.factors import check_proposal
        from ppl_backends.targets.state_space.indices import index_beyond

        self._checked = True
        proposes, known = self.rule("seeds").proposes, not parameters or any(map(np.any, parameters.values()))
        rows = self.checked_rows or [0]
        check_elementwise(self.model, parameters, self.rows, rows if known else rows[:1], proposes)
        if known:
            check_covariances(self.model, parameters, self.rows, self.checked_rows)
            check_densities(self.model, parameters, self.rows, self.checked_rows)
            if proposes:
                check_proposal(self.model, parameters, self.rows, self.checked_rows)
        where = index_beyond(self.model, parameters, self.rows, self.n_rows)
        if where:
            text = (
                f"log_observation reads beyond the end of an array in {where}, where JAX takes the last element instead: "
                "check the data and the indices, or clip them"
            )
            warnings.warn(text, SamplerWarning, stacklevel=user_level())

    def check_factors(self, parameters: Values) -> None:
        """Check once, at two parameter values, that densities of states lack no factor that depends on them."""
        from ppl_backends.targets.state_space.factors import check_factors

        if not self._factors_checked:
            self._factors_checked = True
            with double_precision():
                check_factors(self.model, parameters, self.rows, self.checked_rows)

    def rule(self, stream: str, smooth: bool = False) -> Any:
        """Return everything but array shapes that the compiled filter depends on."""
        jax_module()
        from ppl_backends.targets.state_space.step import Rule

        return Rule(self.model, self.method, self.resample_below, stream, bool(self.missing.any()), smooth)

    def _padded_rows(self) -> dict[str, Array]:
        """Return rows padded with missing ones to a power of two, so that appended rows rarely need a new program."""
        length = max(LEAST_ROWS, 1 << (self.n_rows - 1).bit_length())

        def padded(rows: Any, fill: float) -> Any:
            full = np.full((length, *rows.shape[1:]), fill, dtype=rows.dtype)
            full[: len(rows)] = rows
            return full

        rows = {name: padded(value, 0.0) for name, value in self.covariates.items()}
        return {**rows, "y": padded(self.y, np.nan), "missing": padded(self.missing, True)}

    def _blocks(self, run: Any, inputs: dict[str, Any]) -> list[Array]:
        """Evaluate ``run`` in blocks of filters, padded to few sizes by repeating the last filter."""
        import jax

        n_theta, n_x = inputs["carry"][1].shape
        cap = max(1, BLOCK_PARTICLES // n_x)
        cap = 1 << (cap.bit_length() - 1)
        parts = []
        for block in partition(n_theta, cap):
            index = np.minimum(np.arange(block.start, block.start + block.padded), block.stop - 1)
            some = jax.tree.map(lambda value: np.asarray(value)[index], inputs)  # noqa: B023
            some["p"] = {name: value.astype(np.float64) for name, value in some["p"].items()}
            check_process()
            with double_precision():
                parts.append([np.asarray(part)[: block.stop - block.start] for part in run(some)])
        return [np.concatenate(part) for part in zip(*parts, strict=True)] if len(parts) > 1 else parts[0]


@lru_cache(maxsize=64)
def _state_shape(rule: Any, shapes: Any, row_shapes: Any) -> tuple[int, ...]:
    from ppl_backends.targets.state_space.step import check_shapes

    values = {name: np.zeros((1, *shape)) for name, shape in shapes}
    rows = {name: np.zeros(shape, dtype=bool if name == "missing" else np.float64) for name, shape in row_shapes}
    return check_shapes(rule, values, rows)


@lru_cache(maxsize=64)
def _compiled(kind: str, rule: Any, size: int) -> Any:
    """Return a compiled program: ``advance`` with that many increments, or ``history`` with that many particles."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from ppl_backends.targets.state_space.step import Carry, first_step, later_step

    def advance(values, source, rows, x, log_weights, log_likelihood, start, stop):
        shape = log_weights.shape

        def body(t, loop):
            carry, increments = loop
            step = lax.cond(
                t == 0,
                lambda: first_step(rule, values, source, rows, shape),
                lambda: later_step(rule, values, source, rows, t, carry),
            )
            kept = lax.dynamic_update_index_in_dim(increments, step.increment, jnp.minimum(t - start, size - 1), 0)
            return step.carry, kept

        first = (Carry(x, log_weights, log_likelihood), jnp.zeros((size, shape[0])))
        carry, increments = lax.fori_loop(start, stop, body, first)
        return (*carry, increments.T)

    def history(values, source, rows):
        n_theta = source.shape[0 if rule.stream == "seeds" else 1]
        first = first_step(rule, values, source, rows, (n_theta, size))

        def body(carry, t):
            step = later_step(rule, values, source, rows, t, carry)
            return step.carry, (step.carry.x, step.carry.log_weights, step.ancestors, step.increment, step.resampled)

        _, later = lax.scan(body, first.carry, jnp.arange(1, rows["y"].shape[0]))
        start = (first.carry.x, first.carry.log_weights, first.ancestors, first.increment, first.resampled)
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), start, later)

    return jax.jit(advance if kind == "advance" else history)

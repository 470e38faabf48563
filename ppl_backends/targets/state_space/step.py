"""One row of data in many filters at once: resample, propose, weight. Pure functions of JAX arrays.

With normalised weights W and states x of the previous row, a filter resamples if the effective sample size is low,
draws new states, and multiplies weights by g f/q. The increment of the log likelihood is the log of the sum of the new
weights; without resampling it includes the weights of the previous row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.state_space.model import Parameters, StateSpaceModel
from ppl_backends.targets.state_space.resampling import keeping_the_first, order_of, systematic
from ppl_backends.targets.state_space.streams import given, pseudo_random, sobol

_LOOKAHEAD_RANGE = 20.0  # so that a look ahead never excludes a particle

Rows = Mapping[str, Any]
"""Data of each row, by name: ``y``, ``missing``, covariates; leading axis over rows."""


@dataclass(frozen=True)
class Rule:
    """Everything but array shapes that a compiled filter depends on.

    Attributes
    ----------
    model : StateSpaceModel
    method : {"bootstrap", "guided", "auxiliary", "sqmc"}
    resample_below : float
        Filters resample if the effective sample size, as a share of the particles, is below this value.
    stream : {"seeds", "normals"}
    some_missing : bool
    smooth : bool
        Whether nearby normals must have nearby likelihoods.
    """

    model: StateSpaceModel
    method: str
    resample_below: float
    stream: str = "seeds"
    some_missing: bool = False
    smooth: bool = False

    @property
    def proposes(self) -> bool:
        """Return whether states are drawn from the model's proposal."""
        return self.model.proposal is not None and self.method != "bootstrap"

    @property
    def sorts(self) -> bool:
        """Return whether particles are sorted before resampling, which then happens at every row."""
        return self.method == "sqmc" or self.smooth

    def draw(self, source: Any, t: Any, n_x: int) -> tuple[Any, Any]:
        """Return normals and resampling offsets of row ``t``."""
        n = self.model.n_normals
        if self.stream == "normals":
            return given(source, t, n_x, n)
        return (sobol if self.method == "sqmc" else pseudo_random)(source, t, n_x, n)


class Carry(NamedTuple):
    """States ``(n_theta, n_x[, d])``, their normalised log weights ``(n_theta, n_x)``, the log likelihood ``(n_theta,)``."""

    x: Any
    log_weights: Any
    log_likelihood: Any


class Step(NamedTuple):
    """Result of a step: the filters, increments ``(n_theta,)``, ancestors ``(n_theta, n_x)``, and flags of resampling.

    ``log_g`` ``(n_theta, n_x)`` are the logs of the factors of the weights.
    """

    carry: Carry
    increment: Any
    ancestors: Any
    resampled: Any
    log_g: Any


class Kept(NamedTuple):
    """One row of paths around which filters are drawn, as particle 0 of each.

    Attributes
    ----------
    x : array (n_theta[, d])
    log_g : array (n_theta,)
        Log of the factor of the path's weight; used if states are drawn from a proposal.
    uniform : array (n_theta, 2)
        For resampling given it.
    """

    x: Any
    log_g: Any
    uniform: Any


def without_missing(rows: Rows) -> dict[str, Any]:
    """Return the rows as JAX's arrays, in which missing entries are zero."""
    return {name: jnp.asarray(np.nan_to_num(value)) for name, value in rows.items()}


def each_of_two(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the first two of the parameter values, or the only one, as arrays of one."""
    for i in range(min([2, *map(len, values.values())])):
        yield {name: jnp.asarray(value, dtype=jnp.float64)[i : i + 1] for name, value in values.items()}


def parameters_of(values: Mapping[str, Any], rows: Rows, t: Any, asked: set[str] | None = None) -> Parameters:
    """Return ``p`` of row ``t``: parameters with an axis for particles, covariates, the previous row."""
    with_axis = {name: value[:, None] for name, value in values.items()}
    row = {name: value[t][None, None] for name, value in rows.items() if name not in ("y", "missing")}
    before = jnp.where(t > 0, rows["y"][jnp.maximum(t - 1, 0)], jnp.nan)
    return Parameters(with_axis, {**row, "y_previous": before}, asked)


def observation(model: StateSpaceModel, p: Parameters, t: Any, x: Any, rows: Rows) -> Any:
    """Return the log density of row ``t`` ``(n_theta, n_x)``, zero if it is missing; NaN and +inf are not replaced."""
    value = model.log_observation(p, t, x, rows["y"][t])
    return jnp.where(rows["missing"][t], 0.0, jnp.broadcast_to(value, x.shape[:2]))


def normalise(log_weights: Any) -> tuple[Any, Any]:
    """Return normalised log weights and the log of their sum ``(n_theta,)``; −inf and equal weights if all are zero."""
    log_weights = jnp.where(log_weights < jnp.inf, log_weights, -jnp.inf)  # a NaN is no density
    largest = jnp.max(log_weights, axis=1, keepdims=True)
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    total = jnp.sum(jnp.exp(log_weights - largest), axis=1, keepdims=True)
    log_total = largest + jnp.log(total)
    equal = -jnp.log(log_weights.shape[1] * 1.0)
    return jnp.where(total > 0, log_weights - log_total, equal), log_total[:, 0]


def states(value: Any, n_theta: int, n_x: int) -> Any:
    """Return states of every particle, also if a function returned one for all."""
    value = jnp.asarray(value, dtype=jnp.float64)
    return jnp.broadcast_to(value, (n_theta, n_x, *value.shape[2:]))


def from_model(model: StateSpaceModel, p: Parameters, t: Any, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
    """Return states of row ``t`` from the model's transition, and log weights; ``x`` is None in row 0."""
    shape = z.shape[:2]
    new = states(model.initial(p, z) if x is None else model.transition(p, t, x, z), *shape)
    return new, jnp.broadcast_to(model.log_observation(p, t, new, y), shape)


def from_proposal(model: StateSpaceModel, p: Parameters, t: Any, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
    """Return the same by the model's proposal."""
    propose: Any = model.proposal
    new, log_q = propose(p, t, x, y, z)
    new = states(new, *z.shape[:2])
    density: Any = model.log_initial if x is None else model.log_transition
    before = density(p, new) if x is None else density(p, t, x, new)
    return new, before + jnp.broadcast_to(model.log_observation(p, t, new, y), z.shape[:2]) - log_q


def first_step(
    rule: Rule, values: Mapping[str, Any], source: Any, rows: Rows, shape: tuple[int, int], kept: Kept | None = None
) -> Step:
    """Draw the states of row 0 and weight them; if one is ``kept``, draw the others given it."""
    n_theta, n_x = shape
    z, _ = rule.draw(source, 0, n_x)
    p = parameters_of(values, rows, 0)
    x, log_g = _moved(rule, p, 0, None, rows, z, rule.proposes and rule.model.log_initial is not None)
    x, log_g = _with_kept(rule, p, 0, rows, x, log_g, kept)
    log_weights, increment = normalise(log_g - jnp.log(n_x * 1.0))
    ancestors = jnp.broadcast_to(jnp.arange(n_x, dtype=jnp.int32), shape)
    return Step(Carry(x, log_weights, increment), increment, ancestors, jnp.zeros(n_theta, bool), log_g)


def later_step(
    rule: Rule, values: Mapping[str, Any], source: Any, rows: Rows, t: Any, carry: Carry, kept: Kept | None = None
) -> Step:
    """Move particles from row ``t − 1`` to row ``t``, beside a ``kept`` state if there is one."""
    n_x = carry.log_weights.shape[1]
    z, offset = rule.draw(source, t, n_x)
    p = parameters_of(values, rows, t)
    ancestors, base, resampled = _resample(rule, p, t, carry, offset, rows, kept)
    index = ancestors if carry.x.ndim == 2 else ancestors[..., None]
    x = jnp.take_along_axis(carry.x, index, axis=1)
    new, log_g = _moved(rule, p, t, x, rows, z, rule.proposes)
    new, log_g = _with_kept(rule, p, t, rows, new, log_g, kept)
    log_weights, increment = normalise(base + log_g)
    return Step(Carry(new, log_weights, carry.log_likelihood + increment), increment, ancestors, resampled, log_g)


def _with_kept(rule: Rule, p: Parameters, t: Any, rows: Rows, x: Any, log_g: Any, kept: Kept | None) -> tuple[Any, Any]:
    """Put a kept state in place of particle 0."""
    if kept is None:
        return x, log_g
    own = kept.log_g if rule.proposes else observation(rule.model, p, t, kept.x[:, None], rows)[:, 0]
    return x.at[:, 0].set(kept.x), log_g.at[:, 0].set(own)


def _moved(rule: Rule, p: Parameters, t: Any, x: Any, rows: Rows, z: Any, guided: bool) -> tuple[Any, Any]:
    """Draw from the proposal, or from the model if the row of the proposal is missing."""

    def by_model(z: Any) -> tuple[Any, Any]:
        new, log_g = from_model(rule.model, p, t, x, rows["y"][t], z)
        return new, jnp.where(rows["missing"][t], 0.0, log_g)

    def by_proposal(z: Any) -> tuple[Any, Any]:
        return from_proposal(rule.model, p, t, x, rows["y"][t], z)

    if not guided:
        return by_model(z)
    if not rule.some_missing:
        return by_proposal(z)
    return jax.lax.cond(rows["missing"][t], by_model, by_proposal, z)


def _resample(
    rule: Rule, p: Parameters, t: Any, carry: Carry, offset: Any, rows: Rows, kept: Kept | None
) -> tuple[Any, Any, Any]:
    """Return ancestors, the log weights that they start with ``(n_theta, n_x)``, and which filters resampled."""
    n_theta, n_x = carry.log_weights.shape
    ahead = _look_ahead(rule.model, p, t, carry.x, rows) if rule.method == "auxiliary" else None
    log_weights, log_total = carry.log_weights, jnp.zeros(n_theta)
    if ahead is not None:
        log_weights, log_total = normalise(log_weights + ahead)
    weights = jnp.exp(log_weights)
    stay = jnp.broadcast_to(jnp.arange(n_x, dtype=jnp.int32), (n_theta, n_x))
    if rule.sorts:
        order = order_of(carry.x)
        drawn = systematic(jnp.take_along_axis(weights, order, axis=1), offset)
        ancestors = jnp.take_along_axis(order, drawn, axis=1).astype(jnp.int32)
        resampled = jnp.ones(n_theta, bool)
    else:
        resampled = 1.0 / jnp.sum(weights**2, axis=1) < rule.resample_below * n_x
        resampled = resampled | (rule.resample_below >= 1.0)
        draw = systematic if kept is None else partial(keeping_the_first, uniform=kept.uniform)
        drawn = jax.lax.cond(jnp.any(resampled), lambda: draw(weights, offset), lambda: stay)
        ancestors = jnp.where(resampled[:, None], drawn, stay)
    base = log_total[:, None] - jnp.log(n_x * 1.0)
    if ahead is not None:
        base = base - jnp.take_along_axis(ahead, ancestors, axis=1)
    return ancestors, jnp.where(resampled[:, None], base, carry.log_weights), resampled


def _look_ahead(model: StateSpaceModel, p: Parameters, t: Any, x: Any, rows: Rows) -> Any:
    """Return log g of row ``t`` at the state that each particle reaches with z = 0 ``(n_theta, n_x)``.

    It is within a range of its maximum over particles, because an excluded particle might have had weight.
    """
    n_theta, n_x = x.shape[:2]
    z = jnp.zeros((n_theta, n_x) if model.n_normals == 1 else (n_theta, n_x, model.n_normals))
    ahead = observation(model, p, t, states(model.transition(p, t, x, z), n_theta, n_x), rows)
    ahead = jnp.where(ahead < jnp.inf, ahead, -jnp.inf)
    largest = jnp.max(ahead, axis=1, keepdims=True)
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    return jnp.maximum(ahead, largest - _LOOKAHEAD_RANGE)


def check_shapes(rule: Rule, values: Mapping[str, Any], rows: Rows) -> tuple[int, ...]:
    """Return the shape of one state; check that every function of the model returns the right shape.

    Raises
    ------
    ModelError
        If a function returns a wrong shape; the message names both.
    """
    n_theta, n_x, asked = 3, 5, set[str]()
    model, abstract_rows = rule.model, {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in rows.items()}
    abstract = {k: jax.ShapeDtypeStruct((n_theta, *v.shape[1:]), jnp.float64) for k, v in values.items()}
    z = jax.ShapeDtypeStruct((n_theta, n_x) if model.n_normals == 1 else (n_theta, n_x, model.n_normals), jnp.float64)

    def shape(name: str, call: Callable, *args: Any) -> Any:
        try:
            at_row = lambda values, rows, *args: call(parameters_of(values, rows, 0, asked), *args)  # noqa: E731
            return jax.eval_shape(at_row, abstract, abstract_rows, *args)  # a row number among args has no value
        except ModelError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError) or "truth value" in reason:
                reason = "write it with jax.numpy, and jnp.where in place of if: JAX calls it with no values"
            raise ModelError(f"{name} of the state-space model failed: {type(error).__name__}: {reason}") from None

    def expect(name: str, found: Any, shape: tuple[int, ...], exactly: bool = False) -> None:
        try:
            fits = jnp.broadcast_shapes(found.shape, shape) == shape and len(found.shape) in (0, len(shape))
            fits = fits and (not exactly or len(found.shape) == len(shape))
        except (ValueError, AttributeError):
            fits = False
        if not fits:
            returned = f"shape {found.shape}" if isinstance(found, jax.ShapeDtypeStruct) else type(found).__name__
            raise ModelError(f"{name} returned {returned} for {n_theta} points and {n_x} particles; expected {shape}")

    first = shape("initial", model.initial, z)
    if not isinstance(first, jax.ShapeDtypeStruct) or len(first.shape) not in (2, 3):
        returned = f"shape {first.shape}" if isinstance(first, jax.ShapeDtypeStruct) else type(first).__name__
        raise ModelError(f"initial returned {returned}; expected states (n_theta, n_x) or (n_theta, n_x, d)")
    own = first.shape[2:]
    expect("initial", first, (n_theta, n_x, *own))
    x = jax.ShapeDtypeStruct((n_theta, n_x, *own), jnp.float64)
    y = jax.ShapeDtypeStruct(rows["y"].shape[1:], jnp.float64)
    scalar, vector = (n_theta, n_x), (n_theta, n_x, *own)
    expect("transition", shape("transition", model.transition, 1, x, z), vector)
    # One number for all particles would be one sum too many
    expect("log_observation", shape("log_observation", model.log_observation, 1, x, y), scalar, exactly=True)
    if model.log_transition is not None:
        expect("log_transition", shape("log_transition", model.log_transition, 1, x, x), scalar)
    if model.log_initial is not None:
        expect("log_initial", shape("log_initial", model.log_initial, x), scalar)
    if rule.proposes:
        propose: Any = model.proposal
        pair = shape("proposal", propose, 1, x, y, z)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ModelError("proposal of the state-space model must return the new states and their log density")
        expect("proposal", pair[0], vector)
        expect("the log density of proposal", pair[1], scalar)
    idle = [name for name in values if name not in asked] if rule.proposes or model.proposal is None else []
    if idle:
        raise ModelError(
            f"no function of the state-space model uses p.{idle[0]}: leave this parameter out, or rename it"
        )
    return own

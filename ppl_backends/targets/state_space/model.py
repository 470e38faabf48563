"""State-space models as functions of standard normals.

A state x_t follows x_0 = initial(p, z), x_t = transition(p, t, x_{t−1}, z) with z standard normal, and every row of
data y_t is observed through log_observation(p, t, x_t, y_t). Because normals are an argument instead of a generator,
quasi-Monte Carlo, replay from a seed and correlated estimates are possible with the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import cloudpickle

from ppl_backends.errors import ModelError
from ppl_backends.options import checked, function, integer, none


class Parameters:
    """Argument ``p`` of a model's functions: parameters, covariates of the row, and ``y_previous``, the previous row.

    Parameters
    ----------
    values : mapping of str to array
        Parameters ``(n_theta, 1, *shape)``.
    row : mapping of str to array
        Values that belong to the row of data.
    asked : set of str, optional
        Collects the names that functions use.
    """

    __slots__ = ("_asked", "_row", "_values")

    def __init__(self, values: Mapping[str, Any], row: Mapping[str, Any], asked: set[str] | None = None) -> None:
        self._values, self._row, self._asked = values, row, set() if asked is None else asked

    def __getattr__(self, name: str) -> Any:
        self._asked.add(name)
        for given in (self._values, self._row):
            if name in given:
                return given[name]
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join([*self._values, *self._row])
        raise ModelError(f"the state-space model uses p.{name}, which does not exist; known are {known}")

    def each(self, function: Callable[[Any], Any]) -> Any:
        """Return ``function`` of the parameters of every point, without an axis for particles, stacked ``(n_theta, …)``."""
        import jax

        row = {name: value[0, 0] if name != "y_previous" else value for name, value in self._row.items()}
        values = {name: value[:, 0] for name, value in self._values.items()}
        return jax.vmap(lambda point: function(Parameters(point, row, self._asked)))(values)


@dataclass(frozen=True)
class LinearGaussian:
    """The matrices of a linear Gaussian model, which give its exact likelihood.

    x_0 ~ N(m_0, P_0), x_t = A x_{t−1} + c + N(0, Q), y_t = H x_t + d + N(0, R).

    Attributes
    ----------
    matrices : callable
        ``p -> (m0, P0, A, c, Q, H, d, R)`` of one parameter value; numbers represent vectors and matrices of one entry.
    """

    matrices: Callable[[Any], tuple[Any, ...]]


@dataclass(frozen=True)
class StateSpaceModel:
    r"""A state-space model, given by functions of ``jax.numpy`` that act on whole arrays of particles.

    ``p`` has the parameters as attributes ``(n_theta, 1)``, or ``(n_theta, 1, k)`` for vectors; states are
    ``(n_theta, n_x)``, or ``(n_theta, n_x, d)`` for vectors; ``z`` are standard normals ``(n_theta, n_x)``, or
    ``(n_theta, n_x, n_normals)`` if ``n_normals`` is above one. Components are on the last axis, ``x[..., 0]``.
    ``t`` is the number of the row, from 0; ``y`` the row, a scalar or ``(k,)``. Covariates of the row and
    ``p.y_previous``, the previous row (NaN in the first), are attributes of ``p`` too.

    Parameters
    ----------
    initial : callable
        ``(p, z) -> x``, the state of the first row.
    transition : callable
        ``(p, t, x, z) -> x`` of row ``t`` from the state of row ``t − 1``.
    log_observation : callable
        ``(p, t, x, y) -> (n_theta, n_x)``, log density of the row. Missing rows (all NaN) are skipped.
    n_normals : int
        Number of standard normals per state.
    log_transition : callable, optional
        ``(p, t, x, new) -> (n_theta, n_x)``, log density of the state ``new`` of row ``t`` given ``x`` of the previous
        row. Backward sampling, guided filters and the step from states to parameters need it. It must be the density of
        what ``transition`` draws, which is checked; backward sampling alone needs no constants.
    log_initial : callable, optional
        ``(p, x) -> (n_theta, n_x)``, log density of the first state.
    proposal : callable, optional
        ``(p, t, x, y, z) -> (new, log_q)``, a state drawn given the row, and its log density; ``x`` is None in the
        first row, where it is only called if there is ``log_initial``. It needs ``log_transition``.
    linear_gaussian : LinearGaussian, optional
        Matrices that give the exact likelihood.

    Raises
    ------
    ModelError
        If an argument is not a function, or ``proposal`` comes without ``log_transition``.

    References
    ----------
    Chopin, N. and Papaspiliopoulos, O. (2020). An Introduction to Sequential Monte Carlo. Springer.

    Examples
    --------
    A random walk observed with noise:

    >>> import jax.numpy as jnp, ppl_backends as pb
    >>> walk = pb.StateSpaceModel(
    ...     initial=lambda p, z: z,
    ...     transition=lambda p, t, x, z: x + p.sigma * z,
    ...     log_observation=lambda p, t, x, y: -0.5 * (y - x) ** 2 - 0.5 * jnp.log(2 * jnp.pi),
    ... )
    >>> walk.n_normals
    1
    """

    initial: Callable[..., Any]
    transition: Callable[..., Any]
    log_observation: Callable[..., Any]
    n_normals: int = 1
    log_transition: Callable[..., Any] | None = None
    log_initial: Callable[..., Any] | None = None
    proposal: Callable[..., Any] | None = None
    linear_gaussian: LinearGaussian | None = None

    def __post_init__(self) -> None:
        _check(
            initial=self.initial,
            transition=self.transition,
            log_observation=self.log_observation,
            n_normals=self.n_normals,
            log_transition=self.log_transition,
            log_initial=self.log_initial,
            proposal=self.proposal,
        )
        if self.proposal is not None and self.log_transition is None:
            raise ModelError("proposal= needs log_transition=: weights divide the density of a state by the proposal's")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the functions by value, so that lambdas can be sent to other processes."""
        return _unpickled, (cloudpickle.dumps({field.name: getattr(self, field.name) for field in fields(self)}),)


@lru_cache(maxsize=16)  # all chains of a worker share one model, and its compiled programs
def _unpickled(recipe: bytes) -> StateSpaceModel:
    return StateSpaceModel(**cloudpickle.loads(recipe))


@checked(
    initial=function("a function (p, z) of parameters and normals"),
    transition=function("a function (p, t, x, z)"),
    log_observation=function("a function (p, t, x, y)"),
    n_normals=integer(1),
    log_transition=none | function("a function (p, t, x, new)"),
    log_initial=none | function("a function (p, x)"),
    proposal=none | function("a function (p, t, x, y, z)"),
)
def _check(
    *,
    initial: Any,
    transition: Any,
    log_observation: Any,
    n_normals: Any,
    log_transition: Any,
    log_initial: Any,
    proposal: Any,
) -> None:
    """Check the parts of a model."""

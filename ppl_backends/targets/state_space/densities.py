"""Whether ``log_transition`` and ``log_initial`` are the log densities of the states that a model draws.

Backward sampling, particle Gibbs and guided filters use both the draws and the densities, and nothing in their results
shows that the two differ, as with a variance in place of a standard deviation.

Draws with two labels are told apart by the density: those from two previous states, or draws as they are and draws with
one component moved by a map that keeps volume. The density gives every draw a probability π of the second label. If it
is right, up to a factor, the mean of (1 − π) g over draws of the second label is that of π g over those of the first,
for every function g. With g = 1 a wrong mean shows, with g = logit π a wrong scale, and with a component of the state
its absence from the density.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.state_space.model import Parameters, StateSpaceModel
from ppl_backends.targets.state_space.step import each_of_two, parameters_of, states, without_missing

DRAWS = 4096
# Of differences of means of bounded numbers; a normal has it once in 5·10⁸, and a check looks at about 100
LARGEST_Z = 6.0
LARGEST_LOGIT = 4.0
BOX = 0.9  # share of draws between the ends of the interval whose halves are exchanged
MOST_ZERO = 0.01  # share of draws of density zero, as rounding puts some on the edge of a support
FINEST = 1e-6  # standard deviation of a component relative to its size, below which rounding shows
SINGULAR = 1e-3  # singular value of the derivatives of states, in standard deviations, with respect to normals
STEP = 1e-4  # of normals, for these derivatives


@dataclass(frozen=True)
class Row:
    """Draws of states of one row for one parameter value, and their log densities; ``t`` is None in the first row.

    All arrays have ``DRAWS`` particles, so that JAX compiles each function once.
    """

    model: StateSpaceModel
    values: Any
    rows: Any
    t: int | None

    @property
    def name(self) -> str:
        """Return the name of the function of the density."""
        return "log_initial" if self.t is None else "log_transition"

    @property
    def p(self) -> Parameters:
        """Return the parameters of the row."""
        return parameters_of(self.values, self.rows, self.t or 0)

    def normals(self, rng: np.random.Generator) -> Array:
        """Return normals of all particles."""
        k = self.model.n_normals
        return rng.standard_normal((1, DRAWS) if k == 1 else (1, DRAWS, k))

    def drawn(self, rng: np.random.Generator, x: Array | None = None) -> Array:
        """Return states ``(1, DRAWS[, d])`` from one previous state ``(1, 1[, d])``."""
        return self.at(self.normals(rng), x)

    def at(self, z: Array, x: Array | None = None) -> Array:
        """Return the states that normals give."""
        given = (z,) if x is None else (repeated(x), z)
        return np.asarray(_compiled(self.model, x is None)[0](self.values, self.rows, self.t or 0, *given))

    def log_density(self, x: Array | None, new: Array) -> Array:
        """Return log densities ``(DRAWS,)`` of states, given one previous state."""
        given = (new,) if x is None else (repeated(x), new)
        return np.asarray(_compiled(self.model, x is None)[1](self.values, self.rows, self.t or 0, *given))


@lru_cache(maxsize=16)
def _compiled(model: StateSpaceModel, first: bool) -> tuple[Callable, Callable]:
    """Return the compiled draws and log densities of the first row, or of later ones."""

    def drawn(values: Any, rows: Any, t: Any, *given: Any) -> Any:
        p = parameters_of(values, rows, t)
        return states(model.initial(p, *given) if first else model.transition(p, t, *given), 1, DRAWS)

    def log_density(values: Any, rows: Any, t: Any, *given: Any) -> Any:
        p, density = parameters_of(values, rows, t), model.log_initial if first else model.log_transition
        assert density is not None
        value = density(p, *given) if first else density(p, t, *given)
        return jnp.broadcast_to(value, (1, DRAWS))[0]

    return jax.jit(drawn), jax.jit(log_density)


def repeated(x: Array) -> Any:
    """Return one state ``(1, 1[, d])`` as that of every particle."""
    return jnp.asarray(np.repeat(x, DRAWS, axis=1))


def check_densities(
    model: StateSpaceModel, values: Mapping[str, Array], rows: Mapping[str, Array], times: list[int]
) -> None:
    """Check in these rows, at the first two of the ``values``, that states have the densities that the model gives.

    Raises
    ------
    ModelError
        If they do not; the message names the function.
    """
    rng = np.random.default_rng(3)
    known = without_missing(rows)
    for one in each_of_two(values):
        first = Row(model, one, known, None)
        if model.log_initial is not None:
            _raise(first, _moved_faults(first, None, rng))
        for t in times if model.log_transition is not None else []:
            row = Row(model, one, known, t)
            x = first.drawn(rng)
            near = row.drawn(rng, x[:, :1])  # so near each other that their draws overlap
            _raise(row, _pair_faults(row, [(near[:, :1], near[:, 1:2]), (x[:, 1:2], x[:, 2:3])], rng))
            _raise(row, _moved_faults(row, x[:, :1], rng))


def _raise(row: Row, faults: Iterator[str]) -> None:
    """Raise an error of the first fault."""
    for fault in faults:
        draws, where = ("initial", "") if row.t is None else ("transition", f" in row {row.t}")
        raise ModelError(
            f"{row.name} of the state-space model is not the log density of what {draws} draws{where}: {fault}; look for a "
            "variance in place of a standard deviation, another mean, or a component or a factor that is left out"
        )


def _pair_faults(row: Row, pairs: list[tuple[Array, Array]], rng: np.random.Generator) -> Iterator[str]:
    """Yield what is wrong with the densities of draws from two previous states."""
    for a, b in pairs:
        draws = [row.drawn(rng, x) for x in (a, b)]
        if not np.isfinite([a, b]).all() or not all(map(is_plain, draws)):
            continue
        of_a, of_b = ([row.log_density(x, new) for x in (a, b)] for new in draws)
        yield from _zeros(of_a[0])
        yield from _zeros(of_b[1])
        logits = [_logit(*pair) for pair in (of_a, of_b)]
        both = [columns_of(new) for new in draws]
        centre, scale = np.median(np.concatenate(both), axis=0), np.concatenate(both).std(axis=0)
        features = [np.tanh((new - centre) / np.where(scale > 0, scale, 1.0)) for new in both]
        yield from _differs(logits, features, "from two previous states")


def _moved_faults(row: Row, x: Array | None, rng: np.random.Generator) -> Iterator[str]:
    """Yield what is wrong with the density of draws, one component of which is moved."""
    seen, still, moving = (row.drawn(rng, x) for _ in range(3))
    if not all(map(is_plain, (seen, still, moving))) or is_singular(row, x, seen, rng):
        return
    own = row.log_density(x, still)
    yield from _zeros(own)
    for k in range(columns_of(seen).shape[1]):
        there, back, box = _exchange(columns_of(seen)[:, k])
        draws = [still, _with_column(moving, k, there)]
        logits = [_logit(row.log_density(x, new), row.log_density(x, _with_column(new, k, back))) for new in draws]
        inside = [box(columns_of(new)[:, k]) for new in draws]
        features = [np.stack([np.where(np.isnan(u), 0.0, u), np.sign(np.nan_to_num(u))], axis=1) for u in inside]
        logits = [np.where(np.isnan(u), 0.0, logit) for u, logit in zip(inside, logits, strict=True)]
        what = "moved" if columns_of(seen).shape[1] == 1 else f"moved in component {k}"
        yield from _differs(logits, features, what)


def _zeros(own: Array) -> Iterator[str]:
    """Yield the share of draws whose own density is zero."""
    share = float(np.mean(own == -np.inf))
    if share > MOST_ZERO:
        yield f"it is zero at {100 * share:.0f} % of them"


def _logit(a: Array, b: Array) -> Array:
    """Return the logit of the probability of the second label, 0 where neither density is positive."""
    a, b = np.where(np.isnan(a), -np.inf, a), np.where(np.isnan(b), -np.inf, b)
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, b - a)


def _differs(logits: list[Array], features: list[Array], what: str) -> Iterator[str]:
    """Yield the largest difference of the means of π g and (1 − π) g in standard errors, if it is too large."""
    terms = []
    for sign, logit, feature in zip((1.0, -1.0), logits, features, strict=True):
        g = np.column_stack(
            [np.ones(len(logit)), np.clip(logit, -LARGEST_LOGIT, LARGEST_LOGIT) / LARGEST_LOGIT, feature]
        )
        terms.append(expit(sign * logit)[:, None] * g)
    a, b = terms
    error = np.sqrt((a.var(axis=0) + b.var(axis=0)) / len(a) + 1 / len(a) ** 2)
    z = float(np.max(np.abs(a.mean(axis=0) - b.mean(axis=0)) / error))
    if z > LARGEST_Z:
        yield f"of {2 * len(a)} draws {what}, it expects others, by {z:.0f} standard errors"


def columns_of(x: Array) -> Array:
    """Return states ``(1, n[, d])`` as ``(n, d)``."""
    return x.reshape(x.shape[1], -1)


def _with_column(x: Array, k: int, function: Callable[[Array], Array]) -> Array:
    """Return states with a function of one component in its place."""
    found = columns_of(x).copy()
    found[:, k] = function(found[:, k])
    return found.reshape(x.shape)


def is_plain(draws: Array) -> bool:
    """Return whether states are finite, and components that vary do so by more than rounding."""
    columns = columns_of(draws)
    if not np.isfinite(columns).all():
        return False
    spread = np.ptp(columns, axis=0)
    return bool(np.all((spread == 0) | (columns.std(axis=0) > FINEST * np.abs(columns).max(axis=0))))


def is_singular(row: Row, x: Array | None, draws: Array, rng: np.random.Generator) -> bool:
    """Return whether continuous components of the draws determine each other, so that none can be moved alone."""
    columns = columns_of(draws)
    free = [k for k in range(columns.shape[1]) if len(np.unique(columns[:, k])) == len(columns)]
    if len(free) < 2:
        return False
    z, slopes = row.normals(rng), []
    at = columns_of(row.at(z, x))[0, free]
    for j in range(row.model.n_normals):
        step = np.zeros(row.model.n_normals)
        step[j] = STEP
        slopes.append(columns_of(row.at(z + (step[0] if z.ndim == 2 else step), x))[0, free] - at)
    jacobian = np.array(slopes) / STEP / columns[:, free].std(axis=0)
    return bool(len(slopes) < len(free) or np.linalg.svd(jacobian)[1].min() < SINGULAR)


def _exchange(seen: Array) -> tuple[Callable, Callable, Callable]:
    """Return a map of a component that keeps volume and support, its inverse, and the place that it acts on.

    The halves of an interval in the middle of the draws are exchanged; values that many draws share take each other's
    places in turn. The place is between −1 and 1, and NaN where nothing is moved.
    """
    values, counts = np.unique(seen, return_counts=True)
    if counts.max() > 1:
        atoms = values[counts > 1]
        last = len(atoms) - 1

        def index(x: Array) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
            at = np.minimum(np.searchsorted(atoms, x), last)
            return at, atoms[at] == x

        def rolled(by: int) -> Callable[[Array], Array]:
            def move(x: Array) -> Array:
                at, is_atom = index(x)
                return np.where(is_atom, atoms[(at + by) % (last + 1)], x)

            return move

        def place_of_atom(x: Array) -> Array:
            at, is_atom = index(x)
            return np.where(is_atom & (last > 0), 2 * at / max(last, 1) - 1.0, np.nan)

        return rolled(1), rolled(-1), place_of_atom
    low, high = np.quantile(seen, [0.5 - BOX / 2, 0.5 + BOX / 2])
    middle = 0.5 * (low + high)

    def swap(x: Array) -> Array:
        half = middle - low
        moved = np.where(x < middle, x + half, x - half)
        return np.where((x >= low) & (x < high), moved, x)

    def place(x: Array) -> Array:
        return np.where((x >= low) & (x < high), (x - middle) / (middle - low), np.nan)

    return swap, swap, place

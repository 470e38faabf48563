"""Functions of arrays in ``jax.numpy`` as loops over particles for Numba, translated from JAX's trace.

JAX traces a function for one parameter value and one particle. Every entry of every array in the trace becomes a
variable of the generated program, so that slices, stacks and sums over components take no time. Expressions that do
not depend on the particle are computed before the loop. JAX compiles and runs nothing, and the result runs in forked
processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

MOST_LINES = 4000  # of a program; matrices of hundreds of entries are not suited to loops

ELEMENTWISE = {
    **{"add": "{} + {}", "add_any": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "pow": "{} ** {}", "neg": "-{}"},
    **{"eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}"},
    **{"and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "not": "not {}", "square": "{0} * {0}"},
    **{"max": "np.maximum({}, {})", "min": "np.minimum({}, {})", "rem": "np.fmod({}, {})", "abs": "abs({})"},
    **{"clamp": "np.minimum(np.maximum({1}, {0}), {2})", "is_finite": "np.isfinite({})", "rsqrt": "1.0 / np.sqrt({})"},
    **{
        "logistic": "1.0 / (1.0 + np.exp(-{}))",
        "erf": "math.erf({})",
        "erfc": "math.erfc({})",
        "lgamma": "math.lgamma({})",
    },
    **{
        name: f"np.{name}({{}})"
        for name in ("exp", "log", "log1p", "expm1", "sqrt", "sin", "cos", "tan", "tanh", "sign")
    },
    **{name: f"np.{name}({{}})" for name in ("floor", "ceil", "cbrt", "exp2", "sinh", "cosh")},
    **{"atan2": "np.arctan2({}, {})", "asin": "np.arcsin({})", "acos": "np.arccos({})", "atan": "np.arctan({})"},
}
COPIES = ("copy", "copy_p", "stop_gradient", "optimization_barrier")
CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call")
REDUCTIONS = {"reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "max", "reduce_min": "min"}
REDUCTIONS |= {"reduce_and": "and", "reduce_or": "or"}


class TranslationError(Exception):
    """Raised for an operation without a translation."""


class Term(NamedTuple):
    """A number of the program: its text, and whether it differs between particles."""

    text: str
    inner: bool


class Input(NamedTuple):
    """Argument of a function: the text of its entries, such as ``"x[i, {}]"``, its shape and type, and where it changes."""

    text: str
    shape: tuple[int, ...]
    inner: bool = False
    dtype: Any = np.float64

    @property
    def terms(self) -> NDArray[Any]:
        """Return the entries, as an array of terms."""
        found = np.empty(self.shape, dtype=object)
        for k in range(found.size):
            found.flat[k] = Term(self.text.format(k), self.inner)
        return found


def translated(name: str, function: Callable[..., Any], inputs: Any, outputs: Sequence[str]) -> Any:
    """Return a compiled loop ``(par, row, t, x, z, new, log_weight)`` that fills the ``outputs`` for every particle.

    Parameters
    ----------
    name : str
    function : callable
        Function of ``inputs`` that returns a tuple of arrays, one for each of the outputs; it is traced in float64.
    inputs : pytree of Input
    outputs : sequence of str
        Texts of their entries, such as ``"new[i, {}]"``.

    Raises
    ------
    TranslationError
        If the trace has an unknown operation.
    """
    import jax

    abstract = jax.tree.map(
        lambda given: jax.ShapeDtypeStruct(given.shape, given.dtype),
        inputs,
        is_leaf=lambda leaf: isinstance(leaf, Input),
    )
    closed = jax.make_jaxpr(lambda given: function(**given))(abstract)
    leaves = jax.tree.leaves(inputs, is_leaf=lambda leaf: isinstance(leaf, Input))
    writer = _Writer()
    found = writer.run(closed.jaxpr, closed.consts, [leaf.terms for leaf in leaves])
    lines = [f"def {name}(par, row, t, x, z, new, log_weight):", *(f"    {line}" for line in writer.before)]
    lines += ["    for i in range(log_weight.shape[0]):", *(f"        {line}" for line in writer.inside)]
    for text, value in zip(outputs, found, strict=True):
        lines += [f"        {text.format(k)} = {term.text}" for k, term in enumerate(value.flat)]
    namespace = {"np": np, "math": math}
    exec(compile("\n".join(lines), f"<{name} of a state-space model>", "exec"), namespace)
    return numba.njit(error_model="numpy", nogil=True)(namespace[name])


def _constant(value: Any) -> Term:
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return Term(repr(value.item() if isinstance(value, np.generic) else value), False)
    number = float(value)
    return Term(repr(number) if math.isfinite(number) else f"np.{number}".replace("np.-", "-np."), False)


def _terms(value: Any) -> NDArray[Any]:
    """Return an array of numbers as terms."""
    value = np.asarray(value)
    if value.size > MOST_LINES:
        raise TranslationError(f"a constant of {value.size} numbers")
    found = np.empty(value.shape, dtype=object)
    for k in range(value.size):
        found.flat[k] = _constant(value.flat[k])
    return found


class _Writer:
    """Lines of a program before the loop over particles and inside it; no line is written twice."""

    def __init__(self) -> None:
        self.before: list[str] = []
        self.inside: list[str] = []
        self._known: dict[str, Term] = {}

    def emit(self, template: str, *terms: Term) -> Term:
        """Write one operation."""
        text = template.format(*(term.text for term in terms))
        if text not in self._known:
            inner = any(term.inner for term in terms)
            term = Term(f"v{len(self._known)}", inner)
            (self.inside if inner else self.before).append(f"{term.text} = {text}")
            self._known[text] = term
            if len(self._known) > MOST_LINES:
                raise TranslationError(f"more than {MOST_LINES} operations on a particle")
        return self._known[text]

    def each(self, template: str, *arrays: Any) -> Any:
        """Write an operation for every entry."""
        given: Any = np.broadcast_arrays(*arrays)
        found = np.empty(given[0].shape, dtype=object)
        for k in np.ndindex(found.shape):
            found[k] = self.emit(template, *(array[k] for array in given))
        return found

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[NDArray[Any]]:
        """Write a trace, and return the terms of its results."""
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, map(_terms, consts), strict=True))
        known |= dict(zip(jaxpr.invars, arguments, strict=True))

        def read(variable: Any) -> Any:
            return _terms(variable.val) if type(variable).__name__ == "Literal" else known[variable]

        for equation in jaxpr.eqns:
            found = self._equation(equation, [read(variable) for variable in equation.invars])
            known |= dict(zip(equation.outvars, found, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _equation(self, equation: Any, given: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        if name in CALLS:
            inner = next(value for key, value in params.items() if key in ("jaxpr", "call_jaxpr"))
            closed = inner.consts if type(inner).__name__ == "ClosedJaxpr" else ()
            return self.run(inner.jaxpr if type(inner).__name__ == "ClosedJaxpr" else inner, closed, given)
        if name == "split":
            return list(np.split(given[0], np.cumsum(params["sizes"])[:-1], axis=params["axis"]))
        kinds = [variable.aval.dtype.kind for variable in equation.invars]
        return [np.asarray(self._value(name, params, given, kinds, equation.outvars[0].aval), dtype=object)]

    def _value(self, name: str, params: Any, given: list[Any], kinds: list[str], aval: Any) -> Any:
        """Return the terms of one operation with one result."""
        if name in ELEMENTWISE:
            return self.each(ELEMENTWISE[name], *given)
        if name == "div" and kinds[0] == "f":
            return self.each("{} / {}", *given)
        if name == "integer_pow":
            return self.each("{0} * {0}" if params["y"] == 2 else f"{{}} ** {params['y']}", *given)
        if name == "select_n" and len(given) == 3 and kinds[0] == "b":
            return self.each("({2} if {0} else {1})", *given)
        if name == "convert_element_type":
            return self._converted(given[0], kinds[0], aval.dtype.kind)
        if name in REDUCTIONS:
            return self._reduced(ELEMENTWISE[REDUCTIONS[name]], given[0], params["axes"])
        if name == "dot_general":
            return self._product(given[0], given[1], params["dimension_numbers"], aval.shape)
        return _moved(name, params, given, aval)

    def _converted(self, given: Any, old: str, new: str) -> Any:
        if old == new or (old in "iu" and new in "iu"):
            return given
        if new == "f":
            return self.each("(1.0 if {} else 0.0)" if old == "b" else "float({})", given)
        raise TranslationError(f"a conversion from {old} to {new}")

    def _reduced(self, template: str, given: Any, axes: Sequence[int]) -> Any:
        kept = [axis for axis in range(given.ndim) if axis not in axes]
        rows = np.transpose(given, (*kept, *axes)).reshape(*(given.shape[axis] for axis in kept), -1)
        parts = [rows[..., k] for k in range(rows.shape[-1])]
        return reduce(lambda a, b: self.each(template, a, b), parts)

    def _product(self, a: Any, b: Any, numbers: Any, shape: tuple[int, ...]) -> Any:
        (sum_a, sum_b), (batch_a, batch_b) = numbers
        free_a = [axis for axis in range(a.ndim) if axis not in (*sum_a, *batch_a)]
        free_b = [axis for axis in range(b.ndim) if axis not in (*sum_b, *batch_b)]
        n = int(np.prod([a.shape[axis] for axis in batch_a], dtype=int))
        k = int(np.prod([a.shape[axis] for axis in sum_a], dtype=int))
        left = np.transpose(a, (*batch_a, *free_a, *sum_a)).reshape(n, -1, 1, k)
        right = np.transpose(b, (*batch_b, *free_b, *sum_b)).reshape(n, 1, -1, k)
        return self._reduced("{} + {}", self.each("{} * {}", left, right), [3]).reshape(shape)


def _moved(name: str, params: Any, given: list[Any], aval: Any) -> Any:
    """Return the terms of an operation that only moves entries."""
    first: Any = given[0] if given else None
    if name in COPIES:
        return first
    if name in ("reshape", "squeeze", "expand_dims"):
        return first.reshape(aval.shape)
    if name == "broadcast_in_dim":
        shape = [1] * len(aval.shape)
        for axis, place in enumerate(params["broadcast_dimensions"]):
            shape[place] = first.shape[axis]
        return np.broadcast_to(first.reshape(shape), aval.shape)
    if name == "slice":
        strides = params["strides"] or [1] * first.ndim
        ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        return first[tuple(slice(*each) for each in ends)]
    if name == "concatenate":
        return np.concatenate(given, axis=params["dimension"])
    if name == "stack":
        return np.stack(given, axis=params["axis"])
    if name == "transpose":
        return np.transpose(first, params["permutation"])
    if name == "rev":
        return np.flip(first, params["dimensions"])
    if name == "iota":
        along = [-1 if axis == params["dimension"] else 1 for axis in range(len(aval.shape))]
        return _terms(
            np.broadcast_to(np.arange(aval.shape[params["dimension"]]).reshape(along), aval.shape).astype(aval.dtype)
        )
    raise TranslationError(f"the operation '{name}'")

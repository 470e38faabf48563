"""The rows of a PyMC model's data: log likelihoods of subsets at a cost that grows with the subset, without recompiling.

The elementwise log density of an observed variable is rebuilt on an index input. Everything that does not depend on
the parameters and runs over the rows (the observed values, the covariates, group labels, ``pm.Data`` or constants, and
anything computed from them) is replaced by its rows at the index; shapes equal to the number of rows become the length
of the index. Parameters with a value for each row (states, effects) are indexed where they meet such rows. The result is
then checked: at random points, random subsets must equal slices of the full pointwise log likelihood. A model whose rows
are dependent given the parameters (an observed random walk or Gaussian process) fails the check and is refused with the
reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor import subtensor
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape

from ppl_backends.errors import ModelError
from ppl_backends.targets.observations import Observations
from ppl_backends.targets.protocol import Array, as_points
from ppl_backends.targets.pymc.compile import compilers, first_backend
from ppl_backends.targets.pymc.graph import PYTHON_MODE, ModelGraph, ancestors, io_toposort, no_c_compiler, one_line
from ppl_backends.targets.pymc.rewrites import simplify

CHECK_ROWS = 40
CHECK_TOLERANCE = 1e-8
SHAPE_OPS = (pt.basic.Alloc, pt.basic.MakeVector)
Index = np.ndarray


class PyMCObservations(Observations):
    """The elements of all observed variables, one after the other, in data order."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._terms: list[RowTerm] | None = None

    @cached_property
    def n(self) -> int:  # type: ignore[override]
        """Return the number of observations."""
        return self._target._compiled.n_observations(self._target._data)

    def terms(self) -> list[RowTerm]:
        """Return the observed variables as rows."""
        if self._terms is None:
            self._target.check_indices()
            graph = self._target._compiled._dynamic
            with no_c_compiler():
                terms = [RowTerm(self._target, graph, name) for name in graph.observed]
            self._prove(terms)
            self._terms = terms
        return self._terms

    def _prove(self, terms: Sequence[RowTerm]) -> None:
        rng = np.random.default_rng(0)
        x = self._target._start() + rng.uniform(-1.0, 1.0, size=(2, self._target.dim))
        for term in terms:
            rows = rng.choice(term.n, size=min(term.n, CHECK_ROWS), replace=False)
            full = term.slice_of_full(x, rows)
            if not np.isfinite(full).all():
                x = self._target.initial_points(2, rng)
                full = term.slice_of_full(x, rows)
            fewer = max(1, len(rows) // 3)
            for index, wanted in ((rows, full), (rows[:fewer], full[:, : fewer * term.columns])):
                try:
                    found = term.evaluate("pointwise", x, index)[0]
                except Exception as error:
                    raise ModelError(f"{term.refusal} ({one_line(error)})") from None
                if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=CHECK_TOLERANCE, atol=1e-8):
                    raise ModelError(f"{term.refusal} (a subset's log likelihood is not that of its rows)")

    def log_likelihood(self, x: Array, index: Index | None = None) -> Array:
        x = as_points(x, self._target.dim)
        if index is None:
            values = self._target.pointwise_log_likelihood(x).values()
            return np.concatenate([value.reshape(len(value), -1) for value in values], axis=1)
        terms = self.terms()
        index = self.checked(index, len(x))
        if index.ndim == 2:
            return np.concatenate([self.log_likelihood(x[k : k + 1], index[k]) for k in range(len(x))])
        if len(terms) == 1 and terms[0].columns == 1:
            return terms[0].evaluate("pointwise", x, index)[0]
        found = np.empty((len(x), len(index)))
        for term, where, local in self._split(index):
            rows, columns = np.divmod(local, term.columns)
            value = term.evaluate("pointwise", x, rows)[0].reshape(len(x), len(rows), term.columns)
            found[:, where] = value[:, np.arange(len(rows)), columns]
        return found

    def sum(self, x: Array, index: Index | None = None, weights: Array | None = None, gradient: bool = False) -> Any:
        x = as_points(x, self._target.dim)
        if not gradient:
            return super().sum(x, index, weights)
        self.terms()
        index = self.checked(index, len(x))
        weights = np.ones(index.shape) if weights is None else np.broadcast_to(weights, index.shape).astype(np.float64)
        if index.ndim == 2:
            each = [self.sum(x[k : k + 1], index[k], weights[k], True) for k in range(len(x))]
            return np.concatenate([value for value, _ in each]), np.concatenate([slope for _, slope in each])
        total, slope = np.zeros(len(x)), np.zeros_like(x)
        for term, where, local in self._split(index):
            rows, columns = np.divmod(local, term.columns)
            spread = np.zeros((len(rows), term.columns))
            spread[np.arange(len(rows)), columns] = weights[where]
            value, own = term.evaluate("gradient", x, rows, spread)
            total += value
            slope += own
        return total, slope

    def log_prior_and_potentials(self, x: Array, gradient: bool = False) -> Any:
        prior, slope = self._target.evaluate_prior(as_points(x, self._target.dim), True)
        if self._target.has_potentials:
            extra, extra_slope = self._target.evaluate_potentials(x, True)
            prior, slope = prior + extra, slope + extra_slope
        return (prior, slope) if gradient else prior

    def check(self) -> None:
        self.terms()

    def _split(self, index: Index) -> list[tuple[RowTerm, Any, Index]]:
        """Return every variable with its positions in ``index`` and its element numbers."""
        terms = self.terms()
        if len(terms) == 1:
            return [(terms[0], slice(None), index)]
        ends = np.cumsum([0, *(term.n * term.columns for term in terms)])
        which = np.searchsorted(ends, index, side="right") - 1
        places = [np.flatnonzero(which == k) for k in range(len(terms))]
        return [(term, p, index[p] - ends[k]) for k, (term, p) in enumerate(zip(terms, places, strict=True)) if len(p)]


class RowTerm:
    """One observed variable's elementwise log density on an index of its rows."""

    def __init__(self, target: Any, graph: ModelGraph, name: str) -> None:
        self.name, self._target, self._dim = name, target, target.dim
        self.refusal = f"the observations of '{name}' cannot be taken in subsets: its rows depend on each other"
        elements = graph.observed[name]
        if elements.type.ndim == 0:
            size = np.size(target.observed_data[name])
            if size > 1:
                raise ModelError(f"{self.refusal} (one log density for all {size} values, as of a random walk)")
            elements = elements.reshape((1,))
        data = dict(zip(graph.data, target._data.values(), strict=True))
        [elements] = simplify([elements])
        parts, values = fixed_parts([elements], [graph.point], data)
        self._leaves = [part.type() for part in parts]  # constants among them cannot be inputs
        [elements] = clone_replace([elements], dict(zip(parts, self._leaves, strict=True)), rebuild_strict=False)
        self._full = pytensor.function(
            [graph.point, *self._leaves], elements, mode=PYTHON_MODE, on_unused_input="ignore"
        )
        self._values = [np.array(value, order="C") for value in values]
        shape = np.shape(self._full(np.asarray(target._start()), *self._values))
        self.n, self.columns = shape[0], int(np.prod(shape[1:], dtype=int))
        if any(value.dtype == bool and len(value) != self.n == value.sum() for value in values if value.ndim == 1):
            raise ModelError(
                f"the observations of '{name}' cannot be taken in subsets: some of its values are missing; drop their rows, "
                "which contain no information about the parameters"
            )
        self._index = pt.lvector("index")
        self._point = graph.point
        try:
            at_rows = on_index(elements, self._leaves, self._values, self._index, self.n, own_rows=True)
            self._subset = at_rows.get(elements, elements)
        except Exception as error:
            raise ModelError(f"{self.refusal} ({one_line(error)})") from None
        self._functions: dict[str, Callable[..., list[Array]]] = {}

    def slice_of_full(self, x: Array, rows: Index) -> Array:
        """Return the full pointwise log likelihood at ``rows``, to compare with a subset."""
        return np.array([np.reshape(self._full(point, *self._values), (self.n, -1))[rows].ravel() for point in x])

    def evaluate(self, kind: str, x: Array, rows: Index, weights: Array | None = None) -> list[Array]:
        """Return ``[pointwise (k, m·columns)]``, or for ``weights`` ``(m, columns)`` ``[sum (k,), gradient (k, dim)]``."""
        more = [] if weights is None else [weights]
        arguments = [np.array(x, order="C"), np.array(rows, dtype=np.int64), *more, *self._values]
        if kind not in self._functions:
            self._functions[kind] = self._compile(kind)
            with warnings.catch_warnings():  # Numba compiles at the first call
                warnings.filterwarnings("ignore", message=".*faster on contiguous arrays")
                outputs = self._functions[kind](*arguments)
        else:
            outputs = self._functions[kind](*arguments)
        if kind == "pointwise":
            value = np.asarray(outputs[0]).reshape(len(x), -1)
            return [np.where(np.isnan(value), -np.inf, value)]
        return [np.asarray(output) for output in outputs]

    def _compile(self, kind: str) -> Callable[..., list[Array]]:
        weights = pt.matrix("weights")
        subset = self._subset if self._subset.type.ndim == 1 else self._subset.reshape((self._index.shape[0], -1))
        columns = subset[:, None] if subset.type.ndim == 1 else subset

        def compiled(backend: str) -> Callable[..., list[Array]]:
            if kind == "pointwise":
                return compilers(backend).compile_batched(self._point, [self._index, *self._leaves], [subset])
            inputs = [self._index, weights, *self._leaves]
            return compilers(backend).compile_gradient(self._point, inputs, [(columns * weights).sum()])

        return first_backend(("numba", "c"), compiled, f"the log likelihood of subsets of '{self.name}'")[1]


def fixed_parts(
    outputs: Sequence[Variable], inputs: Sequence[Variable], data: Mapping[Variable, np.ndarray]
) -> tuple[list[Variable], list[np.ndarray]]:
    """Return the largest parts of graphs that do not depend on the inputs, as their leaves, with their values.

    Parts that are small constants are not replaced.
    """
    moving = set(inputs)
    frontier: dict[Variable, None] = {}
    nodes = io_toposort([], outputs)
    for node in nodes:
        if any(v in moving for v in node.inputs):
            moving.update(node.outputs)
    for node in nodes:
        if any(v in moving for v in node.outputs):
            for v in node.inputs:
                if v not in moving and getattr(v.type, "ndim", None) is not None:
                    frontier[v] = None
    leaves = [
        v for v in frontier if not (isinstance(v, Constant) and np.size(v.data) <= 1) and hasattr(v.type, "dtype")
    ]
    above = set(ancestors(leaves))
    known = [v for v in data if v in above]
    function = pytensor.function(known, leaves, mode=PYTHON_MODE, on_unused_input="ignore")
    return leaves, [np.asarray(value) for value in function(*[data[v] for v in known])]


def _rows(leaf: Variable, index: Variable) -> Variable:
    one = getattr(subtensor, "AdvancedSubtensor1", None)  # not in PyTensor 3
    return leaf[index] if one is None else one()(leaf, index)


def on_index(
    output: Variable,
    leaves: Sequence[Variable],
    values: Sequence[np.ndarray],
    index: Variable,
    n: int,
    own_rows: bool = False,
) -> dict[Variable, Variable]:
    """Return the variables of the graph of ``output`` at rows ``index`` of leaves that have ``n`` rows.

    With ``own_rows``, parameters that have a value for each row are indexed where they meet such leaves.
    """
    memo: dict[Variable, Variable] = {}
    lengths = set()
    for leaf, value in zip(leaves, values, strict=True):
        if value.ndim and n in value.shape:
            axis = value.shape.index(n)
            memo[leaf] = _rows(leaf, index) if axis == 0 else pt.take(leaf, index, axis=axis)
        elif value.ndim == 0 and value.dtype.kind in "iu" and int(value) == n:
            lengths.add(leaf)
    length = pt.constant(len(index.data)) if isinstance(index, Constant) else index.shape[0]
    known = set(leaves)
    for node in io_toposort(list(leaves), [output]):
        if any(v in known for v in node.outputs):
            continue
        inputs = [memo.get(v, v) for v in node.inputs]
        if isinstance(node.op, SpecifyShape):
            if node.inputs[0] in memo:
                memo[node.outputs[0]] = inputs[0]
            continue
        if isinstance(node.op, (*SHAPE_OPS, Reshape)):
            first = 0 if isinstance(node.op, pt.basic.MakeVector) else 1
            inputs = [*inputs[:first], *(_resized(v, n, length, lengths) for v in inputs[first:])]
        if all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
            continue
        if own_rows and isinstance(node.op, Elemwise):
            inputs = [
                _own_rows(v, node, index, n) if v is old else v for v, old in zip(inputs, node.inputs, strict=True)
            ]
        new = node.op.make_node(*inputs)
        memo.update(zip(node.outputs, new.outputs, strict=True))
    # No data are left in a density where all of them are zero
    if own_rows and output not in memo and output.type.shape[:1] == (n,):
        memo[output] = _rows(output, index)
    return memo


def _own_rows(part: Variable, node: Any, index: Variable, n: int) -> Variable:
    """Return an operand that has a value for each of the ``n`` rows, such as a state or an effect per row, at ``index``."""
    rows = part.type.ndim == node.outputs[0].type.ndim > 0 and part.type.shape[0] == n > 1
    return _rows(part, index) if rows else part


def _resized(shape: Variable, n: int, length: Variable, lengths: set[Variable]) -> Variable:
    """Return a shape input with ``n`` replaced by the length of the index."""
    if shape in lengths:
        return length
    if isinstance(shape, Constant) and np.any(np.asarray(shape.data) == n):
        if np.ndim(shape.data) == 0:
            return length
        return pt.stack([length if int(v) == n else pt.constant(int(v)) for v in shape.data]).astype("int64")
    return shape

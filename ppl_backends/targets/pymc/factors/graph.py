"""The log density of a model as its author wrote it: elementwise terms in the value variables, before rewrites.

In the graph as written every intermediate quantity is accessible, including linear predictors; the rewrites of a
compiler would have merged it into its neighbours. Everything here is interpreted by Python, over batches of points.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence, Set
from functools import cached_property, reduce
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.link.vm import VMLinker
from pytensor.scalar.basic import GE, GT, LE, LT, Add, Mul, Sub
from pytensor.tensor.basic import Alloc, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.math import All, Sum
from pytensor.tensor.shape import Shape, Shape_i

from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.circle import with_windows
from ppl_backends.targets.pymc.graph import (
    DataValues,
    ModelShapes,
    ancestors,
    free_variables,
    io_toposort,
    log_density_terms,
    named_tensor,
    no_c_compiler,
    observed_variables,
)
from ppl_backends.targets.pymc.masses import is_truncated_vector
from ppl_backends.targets.pymc.observations import fixed_parts, on_index

# As written: no rewrites, no compilation.
RAW_MODE = Mode(linker=VMLinker(use_cloop=False, c_thunks=False), optimizer=None)

BATCH_BYTES = 2**27
MANY_ROWS, SAMPLE_ROWS = 20_000, 2_000


class Term(NamedTuple):
    """A piece of the log density."""

    name: str  # the variable of the model that it belongs to
    prior_of: str | None  # the value variable whose prior it is; None for observed variables and Potentials
    value: Variable  # its elements, of any shape


class TermGraph:
    """Terms of the log density of a model as graphs of its value variables, with data as constants.

    ``late`` data are separate variables, whose values :meth:`load` replaces for one caller at a time, who holds the ``lock``.
    """

    def __init__(
        self,
        model: pm.Model,
        data: DataValues,
        shapes: ModelShapes,
        likelihood_only: bool = False,
        late: Sequence[Variable] = (),
    ) -> None:
        free, observed, potentials = free_variables(model), observed_variables(model), list(model.potentials)
        variables = observed if likelihood_only else [*free, *observed, *potentials]
        inputs = {
            model.rvs_to_values[rv]: named_tensor(name, model.rvs_to_values[rv].dtype, shape)
            for rv, (name, shape) in zip(free, shapes.value.items(), strict=True)
        }
        constants = {shared: pt.constant(value, dtype=shared.dtype) for shared, value in data.items()}
        self.late = {shared: pytensor.shared(np.array(data[shared]), shape=data[shared].shape) for shared in late}
        constants |= self.late
        self.lock, self._loaded = RLock(), dict(data)
        with no_c_compiler():
            terms = with_windows(model, variables, log_density_terms(model, variables))
            graphs = clone_replace(terms, replace={**inputs, **constants}, rebuild_strict=False)
            initial = model.initial_point(random_seed=1)
        start = [initial[name] for name in shapes.value]
        graphs = _without_sums_of_scalars(graphs, list(inputs.values()))
        settled = _settled(graphs, list(inputs.values()), start)
        graphs = _folded(settled, [*inputs.values(), *self.late.values()])
        self.values = {v.name: v for v in inputs.values()}
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes.value.values())])
        self.columns = {name: slice(a, b) for name, a, b in zip(self.values, ends, ends[1:], strict=False)}
        self.dim = int(ends[-1])
        self.start: Array = np.concatenate([np.ravel(initial[name]) for name in self.values]).astype(np.float64)
        pieces = [graphs[k : k + 1] for k in range(len(graphs))]
        pieces = [_summands(p[0]) if rv in potentials else p for rv, p in zip(variables, pieces, strict=True)]
        priors = {rv: model.rvs_to_values[rv].name for rv in free}
        self.truncated = frozenset(name for rv, name in priors.items() if is_truncated_vector(rv))
        self.terms = [
            Term(rv.name, priors.get(rv), piece) for rv, parts in zip(variables, pieces, strict=True) for piece in parts
        ]

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the lock, which each process has of its own."""
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=RLock())

    def load(self, data: DataValues) -> bool:
        """Set the values of the late data; return whether they differ from the previous ones."""
        changed = [v for v in self.late if data[v] is not self._loaded[v]]
        for v in changed:
            self.late[v].set_value(np.array(data[v], dtype=v.dtype))
        self._loaded = dict(data)
        return bool(changed)

    def reads_late(self, variables: Sequence[Variable]) -> bool:
        """Return whether any of the variables depends on late data."""
        return not set(self.late.values()).isdisjoint(ancestors(variables))

    def sampled(self, rng: np.random.Generator) -> tuple[TermGraph, dict[Variable, Variable]]:
        """Return the same graph with a sample of the rows of long terms, and the quantities that the sample's represent.

        A term with dependent rows is not sampled: the sample's values must be rows of the term.
        """
        terms, whole = list(self.terms), {}
        point = (self.start + 0.5 * rng.normal(size=self.dim))[None]
        for k, term in enumerate(self.terms):
            n = term.value.type.shape[0] if term.value.type.ndim else None
            if term.prior_of is not None or n is None or n < MANY_ROWS:
                continue
            leaves, values = fixed_parts([term.value], list(self.values.values()), {})
            rows = np.sort(rng.choice(n, size=SAMPLE_ROWS, replace=False))
            try:
                new = on_index(term.value, leaves, values, pt.constant(rows), n)
                value = new.get(term.value, term.value)
                [few], [all_rows] = (PointFunction(self, set(), [v])(point) for v in (value, term.value))
                alike = np.allclose(few, all_rows[:, rows], rtol=1e-8, atol=1e-8, equal_nan=True)
            except Exception:  # an operation that depends on the number of rows
                continue
            if alike:
                terms[k] = term._replace(value=value)
                whole.update({one: other for other, one in new.items()})
        if not whole:
            return self, {}
        sample = copy.copy(self)
        sample.terms = terms
        sample.__dict__.pop("nodes", None)
        return sample, whole

    @cached_property
    def nodes(self) -> list[Any]:
        """Return all operations, inputs first."""
        return list(io_toposort(list(self.values.values()), [term.value for term in self.terms]))

    def size(self, names: Set[str]) -> int:
        """Return the number of coordinates of the value variables ``names``."""
        return sum(self.columns[name].stop - self.columns[name].start for name in names)

    def coordinates(self, names: Set[str]) -> NDArray[np.intp]:
        """Return the coordinates of the value variables ``names`` in the ravelled point."""
        picked = [np.arange(c.start, c.stop) for name, c in self.columns.items() if name in names]
        return np.concatenate([np.empty(0, dtype=np.intp), *picked])

    def moving(self, held: Set[str]) -> set[Variable]:
        """Return all variables that depend on value variables outside ``held``."""
        moving = {v for name, v in self.values.items() if name not in held}
        for node in self.nodes:
            if any(v in moving for v in node.inputs):
                moving.update(node.outputs)
        return moving

    def depends(self, variables: Sequence[Variable], names: Set[str]) -> bool:
        """Return whether any of the variables depends on the value variables ``names``."""
        above = set(ancestors(variables))
        return any(self.values[name] in above for name in names)


class BatchedGraph:
    """Values of graphs at many settings of their inputs; ``batched`` ones vary and ``single`` ones are shared."""

    def __init__(self, batched: Sequence[Variable], single: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        stacked = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in batched]
        with no_c_compiler():
            alike = _with_elements_alike(outputs, batched)
            many = vectorize_graph(alike, replace=dict(zip(batched, stacked, strict=True))) if batched else []
            self._shared = [m.type.ndim == o.type.ndim for m, o in zip(many, outputs, strict=True)]
            self._function = pytensor.function([*stacked, *single], many, mode=RAW_MODE, on_unused_input="ignore")
        self._batched, self._single = list(batched), list(single)
        self._row_bytes: int | None = None  # of all outputs at one setting; known after the first

    def __call__(self, batched: Sequence[Array], single: Sequence[Array] = ()) -> list[Array]:
        """Return outputs ``(k, ...)`` at inputs ``(k, ...)`` of one value each in ``single``."""
        shared = [np.asarray(value, dtype=v.dtype) for value, v in zip(single, self._single, strict=True)]
        k, start = len(batched[0]), 0
        blocks: list[list[Array]] = []
        while start < k:
            stop = start + (1 if self._row_bytes is None else max(1, BATCH_BYTES // self._row_bytes))
            rows = [np.asarray(b[start:stop], dtype=v.dtype) for b, v in zip(batched, self._batched, strict=True)]
            with np.errstate(all="ignore"), no_c_compiler():
                values = [np.asarray(value) for value in self._function(*rows, *shared)]
            length = len(rows[0])
            blocks.append(
                [np.broadcast_to(v, (length, *v.shape)) if s else v for v, s in zip(values, self._shared, strict=True)]
            )
            self._row_bytes = max(8, 8 * sum(v[0].size for v in blocks[-1]))
            start = stop
        return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]


def _with_elements_alike(outputs: Sequence[Variable], batched: Sequence[Variable]) -> list[Variable]:
    """Return graphs in which all elements of a vector depend on the ``batched`` inputs, if any do.

    Otherwise PyTensor would fill each element into the shape of every other: n² operations for n steps of a loop.
    """
    moving, new = set(batched), dict[Variable, Variable]()
    for node in io_toposort(list(batched), list(outputs)):
        depends = [v in moving for v in node.inputs]
        if any(depends):
            moving.update(node.outputs)
        inputs = [new.get(v, v) for v in node.inputs]
        if isinstance(node.op, MakeVector) and any(depends):
            one = inputs[depends.index(True)]
            inputs = [v if yes else pt.second(one, v) for v, yes in zip(inputs, depends, strict=True)]
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            new.update(zip(node.outputs, node.op.make_node(*inputs).outputs, strict=True))
    return [new.get(output, output) for output in outputs]


def split_point(graph: TermGraph, x: Array, names: Sequence[str]) -> list[Array]:
    """Return the values ``(k, *shape)`` of the value variables ``names`` at points ``(k, dim)``."""
    return [x[:, graph.columns[name]].reshape(len(x), *graph.values[name].type.shape) for name in names]


class PointFunction:
    """Graphs at full points ``(k, dim)`` that share the coordinates of the value variables ``held``."""

    def __init__(self, graph: TermGraph, held: Set[str], outputs: Sequence[Variable]) -> None:
        self._graph = graph
        self._free = [name for name in graph.values if name not in held]
        self._held = [name for name in graph.values if name in held]
        free, fixed = ([graph.values[name] for name in names] for names in (self._free, self._held))
        self._evaluate = BatchedGraph(free, fixed, outputs)

    def __call__(self, x: Array) -> list[Array]:
        """Return outputs ``(k, ...)``; the fixed coordinates are those of the first point."""
        single = [value[0] for value in split_point(self._graph, x[:1], self._held)]
        return self._evaluate(split_point(self._graph, x, self._free), single)


def _folded(graphs: Sequence[Variable], inputs: Sequence[Variable]) -> list[Variable]:
    """Return graphs in which everything that does not depend on the inputs has been computed."""
    parts, values = fixed_parts(graphs, inputs, {})
    known = zip(parts, values, strict=True)
    computed = {part: pt.constant(value, dtype=part.dtype) for part, value in known if not isinstance(part, Constant)}
    return clone_replace(list(graphs), replace=computed, rebuild_strict=False)


def _summands(value: Variable) -> list[Variable]:
    """Return a scalar sum as its elements: sums of arrays become the arrays, sums of scalars several terms."""
    node = value.owner
    if value.type.ndim or node is None:
        return [value]
    if isinstance(node.op, Sum) and node.op.axis in (None, tuple(range(node.inputs[0].type.ndim))):
        return [node.inputs[0]]
    if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Add | Sub):
        first, *others = node.inputs
        if isinstance(node.op.scalar_op, Sub):
            others = [-other for other in others]
        return [part for summand in (first, *others) for part in _summands(summand)]
    return [value]


def _without_sums_of_scalars(graphs: Sequence[Variable], inputs: Sequence[Variable]) -> list[Variable]:
    """Return graphs with each sum or product of a scalar replaced by it: as ``pm.CAR`` writes one, NumPy refuses it."""
    sums = [n for n in io_toposort(list(inputs), graphs) if isinstance(n.op, CAReduce) and not n.inputs[0].type.ndim]
    return clone_replace(list(graphs), replace={n.outputs[0]: n.inputs[0] for n in sums}, rebuild_strict=False)


def _settled(graphs: Sequence[Variable], inputs: Sequence[Variable], start: Sequence[Array]) -> list[Variable]:
    """Return graphs whose shapes are constants and whose checks of parameters are switches of single elements.

    A check raises an error for its whole array: it would end a batch, and connect every element to every other. Arrays of
    copies of a value are products with ones: PyTensor would infer the length of every batch of them from the graph of the
    value, which takes seconds for a loop of many steps.
    """
    nodes = list(io_toposort(list(inputs), graphs))
    checks = {n: list(_comparisons(n.inputs[1:])) for n in nodes if isinstance(n.op, CheckParameterValue)}
    shapes = [n for n in nodes if isinstance(n.op, Shape | Shape_i)]
    copies = [n.outputs[0] for n in nodes if isinstance(n.op, Alloc)]
    asked = copies + [v for n, comparisons in checks.items() for v in (n.inputs[0], *comparisons)]
    with no_c_compiler(), np.errstate(all="ignore"):
        outputs = [n.outputs[0] for n in shapes] + [v.shape for v in asked]
        found = pytensor.function(list(inputs), _unchecked(outputs), mode=RAW_MODE, on_unused_input="ignore")(*start)
    lengths = iter(tuple(map(int, shape)) for shape in found[len(shapes) :])
    shape_of_copies = dict(zip(copies, lengths, strict=False))
    new: dict[Variable, Variable] = {
        n.outputs[0]: pt.constant(value, dtype=n.outputs[0].dtype) for n, value in zip(shapes, found, strict=False)
    }
    for node in nodes:
        if node.outputs[0] in new:
            continue
        replaced = [new.get(v, v) for v in node.inputs]
        if node in checks:
            value, shape = replaced[0], next(lengths)
            for comparison in checks[node]:
                if _within(next(lengths), shape) and value.dtype.startswith("float"):
                    value = pt.switch(new.get(comparison, comparison), value, -np.inf).astype(value.dtype)
            new[node.outputs[0]] = value
        elif node.outputs[0] in shape_of_copies:
            ones = np.ones(shape_of_copies[node.outputs[0]], dtype=replaced[0].dtype)
            new[node.outputs[0]] = replaced[0] * pt.constant(ones)
        elif _is_many(node):  # NumPy adds two at a time; PyTensor would loop over the elements in Python
            new[node.outputs[0]] = reduce(lambda a, b: node.op.make_node(a, b).outputs[0], replaced)
        elif any(a is not b for a, b in zip(replaced, node.inputs, strict=True)):
            new.update(zip(node.outputs, node.op.make_node(*replaced).outputs, strict=True))
    return [new.get(graph, graph) for graph in graphs]


def _is_many(node: Any) -> bool:
    """Return whether an operation is a sum or product of more than two."""
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Add | Mul) and len(node.inputs) > 2


def _comparisons(conditions: Sequence[Variable]) -> Iterator[Variable]:
    """Return the elementwise comparisons whose conjunctions are conditions; others, such as sums to one, are left out."""
    for condition in conditions:
        node = condition.owner
        if node is None:
            continue
        if isinstance(node.op, All | MakeVector | ScalarFromTensor | TensorFromScalar):
            yield from _comparisons(node.inputs)
        elif isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, GE | LE | GT | LT):
            yield condition


def _unchecked(graphs: Sequence[Variable]) -> list[Variable]:
    """Return graphs without their checks."""
    checks = [n for n in io_toposort([], graphs) if isinstance(n.op, CheckParameterValue)]
    return clone_replace(list(graphs), replace={n.outputs[0]: n.inputs[0] for n in checks}, rebuild_strict=False)


def _within(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Return whether an array of ``shape`` broadcasts to ``whole``."""
    return len(shape) <= len(whole) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(whole), strict=False))

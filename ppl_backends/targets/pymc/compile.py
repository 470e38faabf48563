"""Which graphs of a model are compiled, by which backend, and what happens when a backend cannot."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from threading import RLock
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pytensor.graph.basic import Variable

from ppl_backends.errors import BackendWarning, CompilationError, ModelError
from ppl_backends.targets.blocks import block_cap
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.digest import digest_of_graphs
from ppl_backends.targets.pymc.graph import (
    PYTHON_MODE,
    DataValues,
    ModelGraph,
    ModelShapes,
    build_graph,
    factorises,
    free_variables,
    io_toposort,
    no_c_compiler,
    observed_variables,
)
from ppl_backends.targets.pymc.rewrites import simplify

__all__ = ["BACKENDS", "CompiledFunction", "CompiledGraph", "DataArguments"]

BACKENDS = {"auto": ("jax", "numba", "c"), "jax": ("jax",), "numba": ("numba",), "c": ("c",)}


class DataArguments:
    """Values of the shared variables, as each backend takes them."""

    def __init__(self, data: DataValues) -> None:
        self._values = list(data.values())
        self._converted: dict[str, list[Any]] = {}

    def of(self, backend: str) -> list[Any]:
        """The values for ``backend``."""
        if backend not in self._converted:
            self._converted[backend] = [_compilers(backend).as_argument(value) for value in self._values]
        return self._converted[backend]


class CompiledFunction:
    """One batched function, compiled at its first call by the first backend that can run it.

    Parameters
    ----------
    kind : str
        What it computes; see :class:`CompiledGraph`.
    graph : CompiledGraph
    """

    def __init__(self, kind: str, graph: CompiledGraph) -> None:
        self._kind, self._graph = kind, graph
        self._function: Callable[..., Sequence[Array]] | None = None
        self._lock = RLock()
        self.backend = graph.backends[0]
        scale = graph.dim if kind.startswith("hessian") else 1
        self.cap = block_cap(scale * graph.row_bytes)

    def __call__(self, block: Array, data: DataArguments) -> Sequence[Array]:
        """Outputs at the rows of ``block``."""
        if self._function is None:
            with self._lock:
                if self._function is None:
                    return self._first_call(block, data)
        assert self._function is not None
        return self._function(block, *data.of(self.backend))

    def _first_call(self, block: Array, data: DataArguments) -> Sequence[Array]:
        """Compile and run; JAX fails for some operations only when it runs."""
        reasons = []
        for backend in self._graph.backends:
            if backend == "jax":
                _check_fork()
            try:
                with warnings.catch_warnings():
                    # Numba's advice on the code that PyTensor writes is of no use to whoever wrote the model.
                    warnings.filterwarnings("ignore", message=".*faster on contiguous arrays")
                    function = self._graph.compile(self._kind, _compilers(backend), static=backend == "jax")
                    outputs = function(block, *data.of(backend))
            except ModelError:
                raise
            except Exception as error:
                reasons.append(f"{backend}: {_one_line(error)}")
                continue
            self.backend, self._function = backend, function
            if reasons:
                self._graph.note_fallback(backend, reasons)
            return outputs
        raise CompilationError(f"the {self._kind} of the model cannot be compiled; {'; '.join(reasons)}")


class CompiledGraph:
    """The functions of a model for data of given shapes, each compiled at its first use.

    Kinds: ``value`` and ``gradient`` (log prior and log likelihood), ``prior`` and ``potentials`` (with gradients),
    ``hessian of the joint``, ``hessian of the likelihood``, ``pointwise``, ``terms`` (all elementwise terms), ``free terms``,
    ``constrain``, ``unconstrain``.
    """

    def __init__(self, model: pm.Model, data: DataValues, shapes: ModelShapes, backend: str) -> None:
        if backend not in BACKENDS:
            raise ModelError(f"backend={backend!r}: expected one of {', '.join(map(repr, BACKENDS))}")
        self.backends = BACKENDS[backend]
        self.dim = sum(int(np.prod(shape, dtype=int)) for shape in shapes.value.values())
        self.observed = [rv.name for rv in observed_variables(model)]
        self.constrained = [rv.name for rv in [*free_variables(model), *model.deterministics]]
        self.terms = [rv.name for rv in [*free_variables(model), *observed_variables(model), *model.potentials]]
        self._model, self._data, self._shapes = model, dict(data), shapes
        self._functions: dict[str, CompiledFunction] = {}
        self._noted = False
        self._lock = RLock()

    def function(self, kind: str) -> CompiledFunction:
        """The function of that kind."""
        with self._lock:
            if kind not in self._functions:
                self._functions[kind] = CompiledFunction(kind, self)
            return self._functions[kind]

    @cached_property
    def _static(self) -> ModelGraph:
        with no_c_compiler():
            return build_graph(self._model, self._data, self._shapes, static=True)

    @cached_property
    def _dynamic(self) -> ModelGraph:
        with no_c_compiler():
            return build_graph(self._model, self._data, self._shapes, static=False)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of the largest intermediate value of one point."""
        graph = self._static
        moving, largest = {graph.point}, self.dim
        for node in io_toposort([], [graph.log_prior, graph.log_likelihood]):
            if any(v in moving for v in node.inputs):
                moving.update(node.outputs)
                shapes: list[Any] = [getattr(v.type, "shape", (None,)) for v in node.outputs]
                largest = max([largest, *[int(np.prod(shape)) for shape in shapes if None not in shape]])
        return 8 * largest

    @cached_property
    def factorises(self) -> bool:
        """Whether the log density holds factorisations of matrices, or solves with them."""
        return factorises([self._static.log_prior, self._static.log_likelihood])

    def n_observations(self, data: DataValues) -> int:
        """Number of elements of the pointwise log likelihood."""
        graph = self._dynamic
        sizes = [term.size for term in graph.observed.values()]
        with no_c_compiler():
            function = pytensor.function([graph.point, *graph.data], sizes, mode=PYTHON_MODE, on_unused_input="ignore")
            return int(sum(function(np.zeros(self.dim), *data.values())))

    def digest(self) -> tuple[str, bool]:
        """Return the digest of the terms of the log density, and whether all that they compute is in it."""
        graph = self._static
        kinds = {"free": graph.free, "observed": graph.observed, "potential": graph.potentials}
        terms = {f"{kind} {name}": term for kind, named in kinds.items() for name, term in named.items()}
        return digest_of_graphs(terms, [graph.point, *graph.data])

    def serves(self, data: DataValues) -> bool:
        """Whether the functions can be called with these data: JAX compiles for fixed shapes."""
        same = all(np.shape(value) == np.shape(data[shared]) for shared, value in self._data.items())
        return same or "jax" not in self.backends

    def compile(self, kind: str, compilers: Any, static: bool) -> Callable[..., Sequence[Array]]:
        """The function of that kind by one backend."""
        graph = self._static if static else self._dynamic
        point = graph.constrained_point if kind == "unconstrain" else graph.point
        with no_c_compiler():
            outputs = simplify(_outputs(graph, kind))
        if kind.startswith("hessian"):
            return compilers.compile_hessian(point, graph.data, outputs[0])
        compile_kind = (
            compilers.compile_gradient if kind in ("gradient", "prior", "potentials") else compilers.compile_batched
        )
        return compile_kind(point, graph.data, outputs)

    def note_fallback(self, backend: str, reasons: Sequence[str]) -> None:
        """Warn, once, that a slower backend is in use."""
        if not self._noted:
            self._noted = True
            message = f"{self._model.name or 'the model'} is compiled with {backend} ({'; '.join(reasons)})"
            warnings.warn(message, BackendWarning, stacklevel=2)


def _outputs(graph: ModelGraph, kind: str) -> list[Variable]:
    """The graphs that a function computes."""
    if kind in ("value", "gradient"):
        return [graph.log_prior, graph.log_likelihood]
    if kind == "prior":
        return [graph.log_prior]
    if kind == "potentials":
        return [graph.log_potentials]
    if kind == "hessian of the joint":
        return [graph.log_prior + graph.log_likelihood]
    if kind == "hessian of the likelihood":
        return [graph.log_likelihood]
    if kind == "pointwise":
        return list(graph.observed.values())
    if kind == "terms":
        return [*graph.free.values(), *graph.observed.values(), *graph.potentials.values()]
    if kind == "free terms":
        return list(graph.free.values())
    if kind == "constrain":
        return list(graph.constrained.values())
    return [graph.unconstrained]


def _compilers(backend: str) -> Any:
    """The compilers of a backend; ImportError where its library is missing."""
    if backend == "jax":
        from ppl_backends.targets.pymc import jax_backend

        return jax_backend
    from ppl_backends.targets.pymc import pytensor_backend

    return pytensor_backend.NUMBA if backend == "numba" else pytensor_backend.C


def _check_fork() -> None:
    from ppl_backends.targets.pymc import jax_backend

    jax_backend.check_process()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."

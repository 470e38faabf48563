"""Compilation of a model's graphs: choice of the backend, and fallbacks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from threading import RLock
from typing import Any, TypeVar

import numpy as np
import pymc as pm
import pytensor
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Variable

from ppl_backends.errors import BackendWarning, CompilationError, ModelError, user_level
from ppl_backends.numerics.differences import STEP, central_differences
from ppl_backends.targets.blocks import block_cap, pad_rows
from ppl_backends.targets.jax_process import check_process
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.digest import digest_of_graphs, has_user_code
from ppl_backends.targets.pymc.graph import (
    PYTHON_MODE,
    DataValues,
    ModelGraph,
    ModelShapes,
    build_graph,
    factorises,
    free_variables,
    io_toposort,
    multiplies,
    no_c_compiler,
    observed_variables,
    one_line,
)
from ppl_backends.targets.pymc.indices import Indices
from ppl_backends.targets.pymc.rewrites import simplify

Made = TypeVar("Made")
ONE_SHAPE = 64  # rows of every block of a target with one compiled shape
# Operations. A loop over 60 time steps of a GARCH or ARMA model has 350; XLA compiles its values or gradients for three
# seconds, for each of ten sizes of batch, and its Hessian for 18. For 80 steps of a hidden Markov model, of 1,300, these are
# ten seconds and half a minute.
_LONG, _VERY_LONG = 300, 3000
_FEW_BYTES = 4096  # of a row, with which 64 rows take hardly longer than one
BACKENDS = {"auto": ("jax", "numba", "c"), "jax": ("jax",), "numba": ("numba",), "c": ("c",)}


class DataArguments:
    """Values of further arguments of a function, in the form of each backend."""

    indices_checked = False

    def __init__(self, values: Iterable[np.ndarray]) -> None:
        self.values = list(values)
        self._converted: dict[str, list[Any]] = {}

    def of(self, backend: str) -> list[Any]:
        """Return the values for ``backend``."""
        if backend not in self._converted:
            self._converted[backend] = [compilers(backend).as_argument(value) for value in self.values]
        return self._converted[backend]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_converted": {}}


class CompiledFunction:
    """One batched function, compiled at its first call by the first backend that can run it."""

    def __init__(self, kind: str, graph: CompiledGraph) -> None:
        self._kind, self._graph = kind, graph
        self._function: Callable[..., Sequence[Array]] | None = None
        self._lock = RLock()
        self.backend = graph.backends[0]
        scale = graph.dim if kind.startswith("hessian") else 1
        # One factorisation takes longer than a call does, so programs of one small block suffice.
        few = {"budget": 2**19, "fewest": 1, "largest": 64} if graph.factorises else {}
        self.cap = block_cap(scale * graph.row_bytes, **few)

    def __call__(self, block: Array, data: DataArguments) -> Sequence[Array]:
        """Return outputs at the rows of ``block``."""
        if self._function is None:
            with self._lock:
                if self._function is None:
                    return self._first_call(block, data)
        assert self._function is not None
        return self._function(block, *data.of(self.backend))

    def _first_call(self, block: Array, data: DataArguments) -> Sequence[Array]:
        """Compile and run; JAX fails for some operations only when it runs."""
        graph = self._graph

        def compiled(backend: str) -> tuple[Callable[..., Sequence[Array]], Sequence[Array]]:
            function = graph.compile(self._kind, compilers(backend), static=backend == "jax")
            outputs = function(block, *data.of(backend))
            if self._kind == "gradient" and backend == "jax" and graph.delicate:
                _check_gradient(lambda block: function(block, *data.of("jax")), block, outputs)
            return function, outputs

        if "jax" in graph.backends:
            check_process()
            graph.warn_if_very_long()
        self.backend, (function, outputs), reasons = first_backend(
            graph.backends, compiled, f"the {self._kind} of the model"
        )
        self._function = function
        if reasons:
            graph.note_fallback(self.backend, reasons)
        return outputs


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
        self.hessian_is_right: dict[str, bool] = {}  # by part, after the check
        self._noted = self._said_long = False
        self._lock = RLock()

    def function(self, kind: str) -> CompiledFunction:
        """Return the function of that kind."""
        with self._lock:
            if kind not in self._functions:
                self._functions[kind] = CompiledFunction(kind, self)
            return self._functions[kind]

    @cached_property
    def _static(self) -> ModelGraph:
        with no_c_compiler():
            return build_graph(self._model, self._data, self._shapes, static=True)

    @cached_property
    def _indices(self) -> Indices:
        return Indices(self._static)

    def check_indices(self, data: DataArguments) -> None:
        """Raise ModelError if the model selects elements that do not exist; JAX would take the nearest ones."""
        if not data.indices_checked:
            self._indices.check(data.values)
            data.indices_checked = True

    @cached_property
    def _dynamic(self) -> ModelGraph:
        with no_c_compiler():
            return build_graph(self._model, self._data, self._shapes, static=False)

    @cached_property
    def _simplified(self) -> list[Variable]:
        """Return the simplified log prior and log likelihood, which values and gradients share."""
        with no_c_compiler():
            return simplify([self._static.log_prior, self._static.log_likelihood])

    @cached_property
    def n_operations(self) -> int:
        """Return the number of operations of the log density, once simplified."""
        return len(io_toposort([], self._simplified))

    @property
    def is_long(self) -> bool:
        """Return whether a single program should be compiled: there are many operations, and rows cost little."""
        return self.can_have_one_shape and self.row_bytes <= _FEW_BYTES and self.n_operations > _LONG

    @cached_property
    def row_bytes(self) -> int:
        """Return the bytes of the largest intermediate value of one point."""
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
        """Return whether the log density contains factorisations of matrices, or solves with them."""
        return factorises([self._static.log_prior, self._static.log_likelihood])

    @cached_property
    def delicate(self) -> bool:
        """Return whether XLA needs care with the log density; see :mod:`~ppl_backends.targets.pymc.jax_programs`."""
        return self.factorises or multiplies(self._static.point, [self._static.log_prior, self._static.log_likelihood])

    @cached_property
    def differentiable(self) -> bool:
        """Return whether all operations have gradients; those that PyTensor and PyMC define do."""
        graph = self._static
        terms = [graph.log_prior, graph.log_likelihood]
        if not has_user_code(terms):
            return True
        try:
            with no_c_compiler():
                pytensor.grad(sum(terms), graph.point, disconnected_inputs="ignore")
        except (NotImplementedError, NullTypeGradError):
            return False
        return True

    def n_observations(self, data: DataValues) -> int:
        """Return the number of elements of the pointwise log likelihood."""
        graph = self._dynamic
        sizes = [term.size for term in graph.observed.values()]
        with no_c_compiler():
            function = pytensor.function([graph.point, *graph.data], sizes, mode=PYTHON_MODE, on_unused_input="ignore")
            return int(sum(function(np.zeros(self.dim), *data.values())))

    def digest(self) -> tuple[str, bool]:
        """Return the digest of the terms of the log density, and whether it covers everything that they compute."""
        graph = self._static
        kinds = {"free": graph.free, "observed": graph.observed, "potential": graph.potentials}
        terms = {f"{kind} {name}": term for kind, named in kinds.items() for name, term in named.items()}
        return digest_of_graphs(terms, [graph.point, *graph.data])

    def serves(self, data: DataValues) -> bool:
        """Return whether the functions can be called with these data; JAX compiles for fixed shapes."""
        same = all(np.shape(value) == np.shape(data[shared]) for shared, value in self._data.items())
        return same or "jax" not in self.backends

    def compile(self, kind: str, compilers: Any, static: bool) -> Callable[..., Sequence[Array]]:
        """Return the function of that kind by one backend."""
        graph = self._static if static else self._dynamic
        point = graph.constrained_point if kind == "unconstrain" else graph.point
        if static and kind in ("value", "gradient"):
            outputs = self._simplified
        else:
            with no_c_compiler():
                outputs = simplify(_OUTPUTS[kind](graph))
        if kind.startswith("hessian"):
            return compilers.compile_hessian(point, graph.data, outputs[0])
        if kind not in ("gradient", "prior", "potentials"):
            return compilers.compile_batched(point, graph.data, outputs)
        if self.differentiable:
            return compilers.compile_gradient(point, graph.data, outputs)
        return _with_differences(compilers.compile_batched(point, graph.data, outputs))

    @property
    def can_have_one_shape(self) -> bool:
        """Return whether the program of one size of block, of values and gradients, can serve all batches."""
        gradient = self.function("gradient")
        return gradient.backend == "jax" and gradient.cap >= ONE_SHAPE and self.differentiable

    def compiles_hessian(self, part: str) -> bool:
        """Return whether the Hessian is compiled; otherwise it is a difference of gradients."""
        return self.differentiable and not self.factorises and self.hessian_is_right.get(part, True)

    def check_hessian(
        self,
        part: str,
        x: Array,
        hessian: Array,
        compiled: Callable[[Array], Array],
        gradient: Callable[[Array], Array],
    ) -> bool:
        """Return whether compiled Hessians equal differences of gradients, checked once at the first of ``x``.

        Where they differ there, a point next to it decides: derivatives can be wrong at a single point, such as those of
        PyMC's beta density at α = 1, which the initial point often is.
        """
        if part not in self.hessian_is_right and np.isfinite(hessian[0]).all():
            error = derivative_error(gradient, x[0], hessian[0])
            if error > DISAGREEMENT:
                near = x + ASIDE * np.random.default_rng(0).standard_normal(x.shape[1]) * np.maximum(1.0, np.abs(x))
                found = compiled(near)[0]
                error = derivative_error(gradient, near[0], found) if np.isfinite(found).all() else error
            self.hessian_is_right[part] = error <= DISAGREEMENT
            if error > DISAGREEMENT:
                message = (
                    f"compiled Hessians of {self._model.name or 'the model'} differ from differences of gradients by "
                    f"{error:.2g} of their size, so differences of gradients are used instead"
                )
                warnings.warn(message, BackendWarning, stacklevel=user_level())
        return self.hessian_is_right.get(part, True)

    def warn_if_very_long(self) -> None:
        """Warn, once, that compiling takes minutes."""
        if self.n_operations > _VERY_LONG and not self._said_long:
            self._said_long = True
            message = (
                f"the log density of {self._model.name or 'the model'} has {self.n_operations} operations, which is typical "
                "of a loop in Python, and JAX may take many minutes to compile it: write the loop as pytensor.scan, or as "
                "operations on arrays"
            )
            warnings.warn(message, BackendWarning, stacklevel=user_level())

    def note_fallback(self, backend: str, reasons: Sequence[str]) -> None:
        """Warn, once, that a slower backend is in use."""
        if not self._noted:
            self._noted = True
            message = f"{self._model.name or 'the model'} is compiled with {backend} ({'; '.join(reasons)})"
            warnings.warn(message, BackendWarning, stacklevel=user_level())


def _with_differences(function: Callable[..., Sequence[Array]]) -> Callable[..., list[Array]]:
    """Return a function that also returns central differences of its outputs, where compiled gradients would be."""

    def call(block: Array, *data: Any) -> list[Array]:
        slopes = central_differences(lambda x: np.stack(function(x, *data), axis=-1), block)
        return [*function(block, *data), *np.moveaxis(slopes, -1, 0)]

    return call


def _check_gradient(function: Callable, block: Array, outputs: Sequence[Array]) -> None:
    """Raise an error if gradients contradict differences of values at the first point of ``block`` with finite ones."""

    def values(points: Array) -> Array:
        rows = len(block)
        parts = [sum(function(pad_rows(points[i : i + rows], rows))[:2]) for i in range(0, len(points), rows)]
        return np.concatenate(parts)[: len(points)]

    gradient = outputs[2] + outputs[3]
    finite = np.flatnonzero(np.isfinite(outputs[0] + outputs[1]) & np.isfinite(gradient).all(axis=1))
    if finite.size:
        error = derivative_error(values, block[finite[0]], gradient[finite[0]])
        if error > DISAGREEMENT:
            raise ArithmeticError(
                f"gradients differ from finite differences of the log density (relative error {error:.2g})"
            )


_OUTPUTS: dict[str, Callable[[ModelGraph], list[Variable]]] = {
    "value": lambda graph: [graph.log_prior, graph.log_likelihood],
    "gradient": lambda graph: [graph.log_prior, graph.log_likelihood],
    "prior": lambda graph: [graph.log_prior],
    "potentials": lambda graph: [graph.log_potentials],
    "hessian of the joint": lambda graph: [graph.log_prior + graph.log_likelihood],
    "hessian of the likelihood": lambda graph: [graph.log_likelihood],
    "pointwise": lambda graph: list(graph.observed.values()),
    "terms": lambda graph: [*graph.free.values(), *graph.observed.values(), *graph.potentials.values()],
    "free terms": lambda graph: list(graph.free.values()),
    "constrain": lambda graph: list(graph.constrained.values()),
    "unconstrain": lambda graph: [graph.unconstrained],
}
"""The graphs that a function of each kind computes."""


def first_backend(backends: Sequence[str], make: Callable[[str], Made], what: str) -> tuple[str, Made, list[str]]:
    """Return the first backend that can make something, its result, and why earlier ones could not."""
    reasons: list[str] = []
    for backend in backends:
        try:
            with warnings.catch_warnings():
                # Numba's advice on PyTensor's generated code does not help users.
                warnings.filterwarnings("ignore", message=".*faster on contiguous arrays")
                return backend, make(backend), reasons
        except ModelError:
            raise
        except Exception as error:
            reasons.append(f"{backend}: {one_line(error)}")
    raise CompilationError(f"{what} cannot be compiled; {'; '.join(reasons)}")


def compilers(backend: str) -> Any:
    """Return the compilers of a backend; raise ImportError if its library is missing."""
    if backend == "jax":
        from ppl_backends.targets.pymc import jax_backend

        return jax_backend
    from ppl_backends.targets.pymc import pytensor_backend

    return pytensor_backend.NUMBA if backend == "numba" else pytensor_backend.C


DISAGREEMENT = 0.01  # relative error above which a compiled derivative is not used
ASIDE = 0.01  # relative distance of a second point, where derivatives disagree at the first
N_DIRECTIONS = 4


def derivative_error(function: Callable[[Array], Array], x: Array, derivative: Array) -> float:
    """Return the relative error of a derivative ``(..., dim)`` at ``x`` ``(dim,)``, beyond the accuracy of differences.

    In random directions v, the derivative times v is compared with central differences of ``function``, of values or
    gradients at 16 points. Their accuracy is estimated by differences over twice the step and by the change of the
    slope along it, which is large at a kink. If anything is not finite, the error is 0.
    """
    directions = np.random.default_rng(0).standard_normal((N_DIRECTIONS, len(x))) * np.maximum(1.0, np.abs(x))
    step = STEP
    shifts = step * np.array([1.0, -1.0, 2.0, -2.0])[:, None, None] * directions  # (4, N_DIRECTIONS, dim)
    values = function(x + shifts.reshape(-1, len(x))).reshape(4, N_DIRECTIONS, -1)
    given = directions @ np.atleast_2d(derivative).T
    if not (np.isfinite(values).all() and np.isfinite(given).all()):
        return 0.0
    up, down, far_up, far_down = values
    near, far = (up - down) / (2 * step), (far_up - far_down) / (4 * step)
    kink = (far_up - up - down + far_down) / step  # slopes further on less slopes further back
    rounding = 100 * np.finfo(float).eps * np.abs(values).max() / step
    doubt = (10 * np.abs(near - far) + np.abs(kink)).max(axis=1) + rounding
    size = np.maximum(np.abs(near).max(axis=1), np.abs(given).max(axis=1))
    excess = np.abs(near - given).max(axis=1) - doubt
    return float(np.max(np.maximum(excess, 0.0) / np.maximum(size, 1e-300)))

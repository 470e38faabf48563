"""The prior of a PyMC model by variable, in model space: its log densities without Jacobians."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from ppl_backends.targets.blocks import block_cap, evaluate_in_blocks
from ppl_backends.targets.protocol import Array, PriorTerms, as_points, sanitize
from ppl_backends.targets.pymc.compile import DataArguments, compilers, first_backend
from ppl_backends.targets.pymc.graph import DataValues, ModelShapes, free_variables, graph_of_free, no_c_compiler
from ppl_backends.targets.pymc.rewrites import simplify


class PyMCPriorTerms(PriorTerms):
    """The log prior density of every free variable, compiled at the first use."""

    def __init__(self, model: pm.Model, data: DataValues, shapes: ModelShapes, backends: Sequence[str]) -> None:
        free = free_variables(model)
        self.names = tuple(rv.name for rv in free)
        self._backends, self._values = backends, [np.asarray(value) for value in data.values()]
        self._point, self._inputs, terms = graph_of_free(model, data, shapes)
        self._terms = pt.stack([pt.sum(term) for term in terms])
        self._weights = pt.vector("weights", dtype="float64", shape=(len(free),))
        self._functions: dict[str, tuple[str, Callable[..., Sequence[Array]]]] = {}
        self._cap = block_cap(8 * self._point.type.shape[0], largest=256)

    def values(self, x: Array) -> Array:
        [found] = self._call("values", x, [])
        return np.where(np.isnan(found), -np.inf, found)

    def sum(self, x: Array, weights: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        value, slope = self._call("sum", x, [np.asarray(weights, dtype=np.float64)])
        value, slope = sanitize(value, slope)  # type: ignore[assignment]
        return value, slope if gradient else None

    def _call(self, kind: str, x: Array, more: Sequence[Array]) -> list[Array]:
        """Return the outputs of a function at the rows of ``x``, in blocks of few sizes."""
        x = as_points(x, self._point.type.shape[0])
        if kind not in self._functions:
            output, inputs = (
                (self._terms, []) if kind == "values" else (pt.dot(self._weights, self._terms), [self._weights])
            )
            self._functions[kind] = self._compile(kind, output, [*inputs, *self._inputs])
        backend, function = self._functions[kind]
        arguments = DataArguments([*more, *self._values]).of(backend)
        return evaluate_in_blocks(lambda block: function(block, *arguments), x, self._cap, pad=backend == "jax")

    def _compile(
        self, kind: str, output: Variable, inputs: Sequence[Any]
    ) -> tuple[str, Callable[..., Sequence[Array]]]:
        def compiled(backend: str) -> Callable[..., Sequence[Array]]:
            library = compilers(backend)
            with no_c_compiler():
                outputs = simplify([output])
            make = library.compile_batched if kind == "values" else library.compile_gradient
            function = make(self._point, inputs, outputs)
            weights = [] if kind == "values" else [np.ones(len(self.names))]
            start = np.zeros((1, self._point.type.shape[0]))
            function(start, *DataArguments([*weights, *self._values]).of(backend))  # some only fail when they run
            return function

        return first_backend(self._backends, compiled, "the prior by variable")[:2]

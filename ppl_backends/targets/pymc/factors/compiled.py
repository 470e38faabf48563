"""Site functions that belong to no known family, compiled: scalars nodes × sites to log t, and its derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace

from ppl_backends.errors import CompilationError
from ppl_backends.targets.blocks import block_cap, evaluate_in_blocks
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc import jax_backend, pytensor_backend
from ppl_backends.targets.pymc.compile import BACKENDS
from ppl_backends.targets.pymc.factors.terms import Geometry, SiteTerm
from ppl_backends.targets.pymc.graph import ancestors, no_c_compiler
from ppl_backends.targets.pymc.rewrites import simplify

__all__ = ["CompiledSites", "SiteGraph"]

COMPILERS: dict[str, Any] = {"jax": jax_backend, "numba": pytensor_backend.NUMBA, "c": pytensor_backend.C}
LARGE = 16  # constants with more elements become arguments: compilers try to fold them


class SiteGraph:
    """The function of a term's sites as a graph of their scalars, whatever the hyper-parameters.

    Compiled at its first use by the first backend that can; a copy in another process compiles anew.

    Parameters
    ----------
    term : SiteTerm
    backend : {"auto", "jax", "numba", "c"}
    """

    def __init__(self, term: SiteTerm, backend: str = "auto") -> None:
        assert term.grouping is not None
        self.backends = BACKENDS[backend]
        n, m = term.n_sites, len(term.grouping.site_of_cut)
        self.scalars = pt.tensor("s", dtype="float64", shape=(n,))
        slope, intercept = (pt.tensor(name, dtype="float64", shape=(m,)) for name in ("slope", "intercept"))
        hyper = [term.graph.values[name] for name in term.held]
        u = self.scalars[np.maximum(term.grouping.site_of_cut, 0)] * slope + intercept
        ends = np.cumsum([0, *term.sizes])
        pieces = {
            v: u[a:b].reshape(shape).astype(v.dtype)
            for v, shape, a, b in zip(term.inputs, term.shapes, ends, ends[1:], strict=False)
        }
        with no_c_compiler():
            [elements] = clone_replace([term.value], replace=pieces, rebuild_strict=False)
            self.log_site = _by_site(elements, term.grouping.site_of_term, n)
        large = {v: v.type() for v in ancestors([self.log_site]) if isinstance(v, Constant) and _is_large_number(v)}
        [self.log_site] = clone_replace([self.log_site], replace=large)
        self.arguments: list[Variable] = [slope, intercept, *hyper, *large.values()]
        self.constants = [np.asarray(v.data) for v in large]
        self.cap = block_cap(8 * max(n, m), fewest=8, largest=64)
        self._compiled: dict[str, Any] = {}

    def function(self, kind: str) -> tuple[str, Any]:
        """The backend and the batched function of kind ``"value"`` or ``"gradient"`` (of the sum over sites)."""
        if kind not in self._compiled:
            reasons = []
            for backend in self.backends:
                try:
                    self._compiled[kind] = backend, self._compile(kind, backend)
                    break
                except Exception as error:  # a backend without some operation
                    reasons.append(f"{backend}: {' '.join(str(error).split())[:200]}")
            else:
                raise CompilationError(f"the sites cannot be compiled; {'; '.join(reasons)}")
        return self._compiled[kind]

    def _compile(self, kind: str, backend: str) -> Any:
        with no_c_compiler():
            [output] = simplify([self.log_site])
        library = COMPILERS[backend]
        if kind == "value":
            function = library.compile_batched(self.scalars, self.arguments, [output])
        else:
            function = library.compile_gradient(self.scalars, self.arguments, [pt.sum(output)])
        arguments = [library.as_argument(np.ones(v.type.shape, dtype=v.dtype)) for v in self.arguments]
        function(np.zeros((1, *self.scalars.type.shape)), *arguments)  # some fail only when they run
        return function

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": {}}


class CompiledSites:
    """Log t of all sites at given hyper-parameters; called with scalars ``(k, n)``.

    Parameters
    ----------
    graph : SiteGraph
    geometry : Geometry
    hyper : list of array
        Values of the hyper-parameters that the term was cut with.
    """

    def __init__(self, graph: SiteGraph, geometry: Geometry, hyper: Sequence[Array]) -> None:
        self.graph = graph
        values = [geometry.slope, geometry.intercept, *hyper, *graph.constants]
        self._values = [np.asarray(v, dtype=a.dtype) for v, a in zip(values, graph.arguments, strict=True)]
        self._converted: dict[str, list[Any]] = {}

    def __call__(self, s: Array) -> Array:
        """Log t ``(k, n)``."""
        return self._call("value", s)[0]

    def derivatives(self, s: Array) -> tuple[Array, Array]:
        """First derivative, and the second by central differences of it, each ``(k, n)``."""
        step = 1e-5 * np.maximum(1.0, np.abs(s))
        slope, up, down = np.split(self._call("gradient", np.concatenate([s, s + step, s - step]))[1], 3)
        return slope, (up - down) / (2 * step)

    def _call(self, kind: str, s: Array) -> list[Array]:
        backend, function = self.graph.function(kind)
        if backend not in self._converted:
            self._converted[backend] = [COMPILERS[backend].as_argument(value) for value in self._values]
        arguments = self._converted[backend]
        return evaluate_in_blocks(lambda block: function(block, *arguments), s, self.graph.cap)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_converted": {}}


def _by_site(elements: Variable, site: np.ndarray, n: int) -> Variable:
    flat = elements.ravel()
    if len(site) == n and np.array_equal(site, np.arange(n)):
        return flat
    read = np.flatnonzero(site >= 0)
    return pt.inc_subtensor(pt.zeros(n)[site[read]], flat[read])


def _is_large_number(constant: Constant) -> bool:
    return np.size(constant.data) > LARGE and getattr(constant.type, "dtype", "bool") != "bool"

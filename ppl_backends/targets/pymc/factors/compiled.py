"""Compiled site functions without a known family: scalars nodes × sites to log t."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace

from ppl_backends.targets.blocks import block_cap, pad_to_blocks
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.compile import BACKENDS, DataArguments, compilers, first_backend
from ppl_backends.targets.pymc.factors.terms import Geometry, SiteTerm
from ppl_backends.targets.pymc.graph import ancestors, no_c_compiler
from ppl_backends.targets.pymc.rewrites import simplify

LARGE = 16  # constants with more elements become arguments, because compilers try to fold constants
_SIZES = 32, 256  # rows of a block, at most
# Rows in all, and blocks of a call, from which blocks of the second size are worth their compilation
_MANY, _BLOCKS = 50_000, 4


class SiteGraph:
    """The function of a term's sites as a graph of their scalars, for any hyper-parameters.

    It is compiled at its first use by the first backend that can; a copy in another process compiles again.
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
        large = {
            v: v.type() for v in ancestors([self.log_site]) if isinstance(v, SharedVariable) or _is_large_number(v)
        }
        [self.log_site] = clone_replace([self.log_site], replace=large)
        self.arguments: list[Variable] = [slope, intercept, *hyper, *large.values()]
        self._large = list(large)
        self.rows, self._more_rows = (block_cap(8 * max(n, m), fewest=8, largest=rows) for rows in _SIZES)
        self._evaluated = 0
        self._compiled: tuple[str, Any] | None = None

    @property
    def constants(self) -> list[Array]:
        """Return the values of large constants, and the current ones of late data."""
        return [np.asarray(v.get_value() if isinstance(v, SharedVariable) else v.data) for v in self._large]

    def function(self) -> tuple[str, Any]:
        """Return the backend, and the batched function ``(scalars (rows, n), *arguments) -> [log t (rows, n)]``."""
        if self._compiled is None:
            self._compiled = first_backend(self.backends, self._compile, "the sites")[:2]
        return self._compiled

    def rows_of(self, n: int) -> int:
        """Return the rows of a block for ``n`` of them: more than at first, if many have been evaluated.

        Every size is compiled, which takes seconds.
        """
        self._evaluated += n
        return self._more_rows if self._evaluated > _MANY and n > _BLOCKS * self.rows else self.rows

    def _compile(self, backend: str) -> Any:
        library = compilers(backend)
        with no_c_compiler():
            outputs = simplify([self.log_site])
        function = library.compile_batched(self.scalars, self.arguments, outputs)
        arguments = [library.as_argument(np.ones(v.type.shape, dtype=v.dtype)) for v in self.arguments]
        function(np.zeros((self.rows, *self.scalars.type.shape)), *arguments)  # some only fail when they run
        return function

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}


class CompiledSites:
    """Log t of all sites at given hyper-parameters; called with scalars ``(k, n)``."""

    def __init__(self, graph: SiteGraph, geometry: Geometry, hyper: Sequence[Array]) -> None:
        self.graph = graph
        values = [geometry.slope, geometry.intercept, *hyper, *graph.constants]
        self._arguments = DataArguments(
            np.asarray(v, dtype=a.dtype) for v, a in zip(values, graph.arguments, strict=True)
        )

    def __call__(self, s: Array) -> Array:
        """Return log t ``(k, n)``, in blocks of one of two sizes for which the function is compiled."""
        backend, function = self.graph.function()
        arguments, rows = self._arguments.of(backend), self.graph.rows_of(len(s))
        blocks = pad_to_blocks(s, rows).reshape(-1, rows, s.shape[1])
        return np.concatenate([function(block, *arguments)[0] for block in blocks])[: len(s)]


def _by_site(elements: Variable, site: np.ndarray, n: int) -> Variable:
    flat = elements.ravel()
    if len(site) == n and np.array_equal(site, np.arange(n)):
        return flat
    read = np.flatnonzero(site >= 0)
    return pt.inc_subtensor(pt.zeros(n)[site[read]], flat[read])


def _is_large_number(constant: Variable) -> bool:
    if not isinstance(constant, Constant):
        return False
    return np.size(constant.data) > LARGE and getattr(constant.type, "dtype", "bool") != "bool"

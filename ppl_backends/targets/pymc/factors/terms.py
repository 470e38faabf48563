"""A term that depends on the parameters through one scalar at a time: its sites, their directions, their functions."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from scipy import sparse

from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.factors.graph import BatchedGraph, PointFunction, Term, TermGraph
from ppl_backends.targets.pymc.factors.grouping import Grouping, group
from ppl_backends.targets.pymc.factors.linear import AffineFunction

__all__ = ["Geometry", "SiteTerm"]

PARALLEL = 1e-8
TRIES = 8


class Geometry(NamedTuple):
    """The scalars sᵢ = aᵢᵀθ + bᵢ and the cut's elements uⱼ = cⱼ sᵢ + dⱼ at given hyper-parameters.

    Attributes
    ----------
    design : ndarray or CSR matrix (n_sites, d)
    offset : ndarray (n_sites,)
    slope, intercept : ndarray (m,)
    reference : ndarray (n_sites,) of int
        The element of the cut that sᵢ is.
    rank : int
        Largest rank of a site's rows; 1 where it is a site.
    """

    design: Any
    offset: Array
    slope: Array
    intercept: Array
    reference: NDArray[np.intp]
    rank: int


class SiteTerm:
    """The sites of one term, given a cut of it.

    Parameters
    ----------
    graph : TermGraph
    term : Term
    cut : list of Variable
    held : set of str
        Value variables that are given: hyper-parameters.
    rng : numpy.random.Generator
    sample : SiteTerm, optional
        What was found on a sample of the term's rows.

    Attributes
    ----------
    grouping : Grouping or None
        None where the cut's elements cannot be told apart.
    """

    def __init__(
        self,
        graph: TermGraph,
        term: Term,
        cut: Sequence[Variable],
        held: Set[str],
        rng: np.random.Generator,
        sample: SiteTerm | None = None,
    ) -> None:
        self.graph, self.term, self.cut, self.sample = graph, term, list(cut), sample
        self.held = [name for name in graph.values if name in held]
        self.inputs = [v.type() for v in self.cut]
        [self.value] = clone_replace([term.value], replace=dict(zip(self.cut, self.inputs, strict=True)))
        self._evaluate = BatchedGraph(self.inputs, [graph.values[name] for name in self.held], [self.value])
        self._cut_of = PointFunction(graph, held, self.cut)
        self.read = [name for name in self.held if graph.depends([self.value], {name})]
        self._moves_with_hyper = graph.depends(self.cut, held)
        self.held_coordinates = graph.coordinates(held)
        moving = np.setdiff1d(np.arange(graph.dim), self.held_coordinates)
        self._affine = AffineFunction(self.flat_cut, moving)
        self._fixed_geometry: Geometry | None = None
        known = sample is not None and sample.one_to_one
        point = graph.start[None] if known else self._valid_point(rng)
        self.shapes = [value.shape[1:] for value in self._cut_of(point)]
        n = int(np.prod(term.value.type.shape)) if known else 0
        if known and self.sizes == [n]:
            self.grouping: Grouping | None = Grouping(n, np.arange(n), np.arange(n))
        else:
            single, base = self.hyper(point[0]), [value[0] for value in self._cut_of(point)]
            self.grouping = group(lambda settings: self._elements(settings, single), base, rng)

    def hyper(self, x: Array) -> list[Array]:
        """Values of the given variables in the point ``x`` ``(dim,)``."""
        columns, values = self.graph.columns, self.graph.values
        return [x[columns[name]].reshape(values[name].type.shape) for name in self.held]

    def _elements(self, settings: Sequence[Array], single: Sequence[Array]) -> Array:
        """Elements of the term ``(k, n)``."""
        [value] = self._evaluate(settings, single)
        return value.reshape(len(value), -1)

    def _valid_point(self, rng: np.random.Generator) -> Array:
        """A point ``(1, dim)`` at which the term is finite, where one is found."""
        for scale in 0.5 ** np.arange(TRIES):
            x = (self.graph.start + scale * rng.normal(size=self.graph.dim))[None]
            value = self._elements(self._cut_of(x), self.hyper(x[0]))
            if np.isfinite(value).all():
                break
        return x

    @property
    def n_sites(self) -> int:
        """Number of sites."""
        assert self.grouping is not None
        return self.grouping.n_sites

    @property
    def one_to_one(self) -> bool:
        """Whether a site is an element of the term, and reads the element of the cut in its place."""
        return self.grouping is not None and self.grouping.one_to_one

    @cached_property
    def sizes(self) -> list[int]:
        """Number of elements of every quantity of the cut."""
        return [int(np.prod(shape, dtype=int)) for shape in self.shapes]

    def flat_cut(self, x: Array) -> Array:
        """All elements of the cut ``(k, m)`` at points ``(k, dim)`` that share the hyper-parameters."""
        return np.concatenate([value.reshape(len(x), -1) for value in self._cut_of(x)], axis=1)

    def geometry(self, x: Array) -> Geometry:
        """Directions and offsets given the hyper-parameters in the point ``x`` ``(dim,)``."""
        if self._fixed_geometry is not None:
            return self._fixed_geometry
        geometry = self._as_sites(*self._affine.at(x))
        if not self._moves_with_hyper:
            self._fixed_geometry = geometry
        return geometry

    def _as_sites(self, rows: Any, offsets: Array) -> Geometry:
        """Sites whose scalar is the element of their longest row; the other rows must be parallel to it."""
        assert self.grouping is not None
        site, n = self.grouping.site_of_cut, self.grouping.n_sites
        if self.one_to_one:
            return Geometry(rows, offsets, np.ones(n), np.zeros(n), site, 1)
        member = np.flatnonzero(site >= 0)
        length = _row_products(rows, rows)
        order = member[np.lexsort((-length[member], site[member]))]
        first = order[np.searchsorted(site[order], np.arange(n))]
        slope, intercept = np.zeros(rows.shape[0]), offsets.copy()
        slope[first], intercept[first] = 1.0, 0.0
        others = member[slope[member] == 0.0]
        leader = first[site[others]]
        norm = length[leader]
        with np.errstate(all="ignore"):
            slope[others] = np.where(norm > 0, _row_products(rows[others], rows[leader]) / norm, 0.0)
        intercept[others] = offsets[others] - slope[others] * offsets[leader]
        apart = np.sqrt(np.maximum(_row_distances(rows[others], rows[leader], slope[others]), 0.0))
        bad = site[others][apart > PARALLEL * np.sqrt(norm)]
        rank = 1
        for i in np.unique(bad)[:10]:
            block = rows[site == i]
            block = block.toarray() if sparse.issparse(block) else block
            rank = max(rank, int(np.linalg.matrix_rank(block, tol=PARALLEL * np.sqrt(length[first[i]]))))
        design = rows if len(first) == rows.shape[0] and np.array_equal(first, np.arange(n)) else rows[first]
        return Geometry(design, offsets[first], slope, intercept, first, max(rank, 2) if len(bad) else 1)

    def element_log_site(self, s: Array, x: Array, geometry: Geometry) -> Array:
        """Elements of the term ``(k, n)`` where the scalars of the sites are ``s`` ``(k, n_sites)``, as written."""
        assert self.grouping is not None
        site, u = self.grouping.site_of_cut, s
        if not self.one_to_one:
            u = np.where(site >= 0, s[:, site], 0.0) * geometry.slope + geometry.intercept
        pieces = np.split(u, np.cumsum(self.sizes)[:-1], axis=1)
        settings = [piece.reshape(len(s), *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        return self._elements(settings, self.hyper(x))

    def by_site(self, elements: Array) -> tuple[Array, Array]:
        """Sums over each site's elements ``(k, n_sites)``, and over the constant ones ``(k,)``."""
        assert self.grouping is not None
        site = self.grouping.site_of_term
        if len(site) == self.n_sites and np.array_equal(site, np.arange(self.n_sites)):
            return elements, np.zeros(len(elements))
        total = np.zeros((self.n_sites + 1, len(elements)))  # −1 is the last row
        with np.errstate(invalid="ignore"):
            np.add.at(total, site, elements.T)
        return total[:-1].T, total[-1]

    def log_site(self, s: Array, x: Array, geometry: Geometry) -> Array:
        """Log t ``(k, n_sites)`` as written."""
        return self.by_site(self.element_log_site(s, x, geometry))[0]

    def constant(self, x: Array, geometry: Geometry) -> float:
        """Sum of the elements that read no site."""
        assert self.grouping is not None
        if np.all(self.grouping.site_of_term >= 0):
            return 0.0
        return float(self.by_site(self.element_log_site(geometry.offset[None], x, geometry))[1][0])


def _row_products(left: Any, right: Any) -> Array:
    """Inner products of the rows of two matrices."""
    if sparse.issparse(left):
        return np.asarray(left.multiply(right).sum(axis=1), dtype=np.float64).ravel()
    return np.einsum("md,md->m", left, right)


def _row_distances(left: Any, right: Any, slope: Array) -> Array:
    """Squared lengths of the rows of ``left`` − slope · ``right``."""
    apart = left - (sparse.diags(slope) @ right if sparse.issparse(right) else slope[:, None] * right)
    return _row_products(apart, apart)

"""A term that depends on the parameters through one scalar at a time: its sites, their directions, their functions.

Perturbations find which elements of a cut each element of a term reads, and therefore which of them form one site.
Finite values are not sufficient: in a log-sum-exp a component of weight e⁻¹⁸⁰⁰ changes nothing. A NaN always
propagates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from ppl_backends.numerics.affine import AffineFunction
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.factors.graph import BatchedGraph, PointFunction, Term, TermGraph
from ppl_backends.targets.pymc.matching import sums_of_exponentials

PARALLEL = 1e-8
TRIES = 8


class Geometry(NamedTuple):
    """The scalars sᵢ = aᵢᵀθ + bᵢ and the cut's elements uⱼ = cⱼ sᵢ + dⱼ at given hyper-parameters."""

    design: Any  # (n_sites, d)
    offset: Array  # (n_sites,)
    slope: Array  # (m,)
    intercept: Array  # (m,)
    reference: NDArray[np.intp]  # (n_sites,) The element of the cut that sᵢ is
    rank: int  # largest rank of a site's rows; 1 for a valid site


class SiteTerm:
    """The sites of one term, given a cut of it."""

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
        """Return the values of the given variables in the point ``x`` ``(dim,)``."""
        columns, values = self.graph.columns, self.graph.values
        return [x[columns[name]].reshape(values[name].type.shape) for name in self.held]

    def _elements(self, settings: Sequence[Array], single: Sequence[Array]) -> Array:
        """Return the elements of the term ``(k, n)``."""
        [value] = self._evaluate(settings, single)
        return value.reshape(len(value), -1)

    def _valid_point(self, rng: np.random.Generator) -> Array:
        """Return a point ``(1, dim)`` at which the term is finite, if one is found."""
        for scale in 0.5 ** np.arange(TRIES):
            x = (self.graph.start + scale * rng.normal(size=self.graph.dim))[None]
            value = self._elements(self._cut_of(x), self.hyper(x[0]))
            if np.isfinite(value).all():
                break
        return x

    def renew(self) -> None:
        """Drop a geometry that depends on late data which have changed."""
        if self.graph.reads_late(self.cut):
            self._fixed_geometry = None

    @property
    def n_sites(self) -> int:
        """Return the number of sites."""
        assert self.grouping is not None
        return self.grouping.n_sites

    @property
    def one_to_one(self) -> bool:
        """Return whether each site is one element of the term and reads the element of the cut at the same position."""
        return self.grouping is not None and self.grouping.one_to_one

    @cached_property
    def log_sums(self) -> list[tuple[BatchedGraph, int]]:
        """Return the summands after exp and before log in the term, as functions of cut and given variables; and the axis."""
        given = [self.graph.values[name] for name in self.held]
        return [(BatchedGraph(self.inputs, given, [found]), axis) for found, axis in sums_of_exponentials(self.value)]

    @cached_property
    def sizes(self) -> list[int]:
        """Return the number of elements of every quantity of the cut."""
        return [int(np.prod(shape, dtype=int)) for shape in self.shapes]

    def flat_cut(self, x: Array) -> Array:
        """Return all elements of the cut ``(k, m)`` at points ``(k, dim)`` that share the hyper-parameters."""
        return np.concatenate([value.reshape(len(x), -1) for value in self._cut_of(x)], axis=1)

    def scalars(self, x: Array) -> Array:
        """Return the sites' scalars ``(k, n_sites)`` as written, at points ``(k, dim)`` that share the hyper-parameters."""
        return self.flat_cut(x)[:, self.geometry(x[0]).reference]

    def written(self, x: Array) -> Array:
        """Return the sites' values ``(k, n_sites)`` as written, at points ``(k, dim)`` that share the hyper-parameters."""
        [value] = PointFunction(self.graph, set(self.held), [self.term.value])(x)
        return self.by_site(value.reshape(len(x), -1))[0]

    def geometry(self, x: Array) -> Geometry:
        """Return directions and offsets given the hyper-parameters in the point ``x`` ``(dim,)``."""
        if self._fixed_geometry is not None:
            return self._fixed_geometry
        geometry = self._as_sites(*self._affine.at(x))
        if not self._moves_with_hyper:
            self._fixed_geometry = geometry
        return geometry

    def _as_sites(self, rows: Any, offsets: Array) -> Geometry:
        """Return sites whose scalar is the element of their longest row; the other rows must be parallel to it."""
        assert self.grouping is not None
        site, n = self.grouping.site_of_cut, self.grouping.n_sites
        if self.one_to_one:
            return Geometry(rows, offsets, np.ones(n), np.zeros(n), site, 1)
        member = np.flatnonzero(site >= 0)
        length = row_products(rows, rows)
        order = member[np.lexsort((-length[member], site[member]))]
        first = order[np.searchsorted(site[order], np.arange(n))]
        slope, intercept = np.zeros(rows.shape[0]), offsets.copy()
        slope[first], intercept[first] = 1.0, 0.0
        others = member[slope[member] == 0.0]
        leader = first[site[others]]
        norm = length[leader]
        with np.errstate(all="ignore"):
            slope[others] = np.where(norm > 0, row_products(rows[others], rows[leader]) / norm, 0.0)
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

    def settings(self, s: Array, geometry: Geometry) -> list[Array]:
        """Return the quantities of the cut for scalars ``s`` ``(k, n_sites)`` of the sites."""
        assert self.grouping is not None
        site, u = self.grouping.site_of_cut, s
        if not self.one_to_one:
            u = np.where(site >= 0, s[:, site], 0.0) * geometry.slope + geometry.intercept
        pieces = np.split(u, np.cumsum(self.sizes)[:-1], axis=1)
        return [piece.reshape(len(s), *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def element_log_site(self, s: Array, x: Array, geometry: Geometry) -> Array:
        """Return the term's elements ``(k, n)``, as written, for scalars ``s`` ``(k, n_sites)`` of the sites."""
        return self._elements(self.settings(s, geometry), self.hyper(x))

    def by_site(self, elements: Array) -> tuple[Array, Array]:
        """Return the sums over each site's elements ``(k, n_sites)``, and over the constant ones ``(k,)``."""
        assert self.grouping is not None
        site = self.grouping.site_of_term
        if len(site) == self.n_sites and np.array_equal(site, np.arange(self.n_sites)):
            return elements, np.zeros(len(elements))
        total = np.zeros((self.n_sites + 1, len(elements)))  # −1 is the last row
        with np.errstate(invalid="ignore"):
            np.add.at(total, site, elements.T)
        return total[:-1].T, total[-1]

    def log_site(self, s: Array, x: Array, geometry: Geometry) -> Array:
        """Return log t ``(k, n_sites)`` as written."""
        return self.by_site(self.element_log_site(s, x, geometry))[0]

    def constant(self, x: Array, geometry: Geometry) -> float:
        """Return the sum of the elements that belong to no site."""
        assert self.grouping is not None
        if np.all(self.grouping.site_of_term >= 0):
            return 0.0
        return float(self.by_site(self.element_log_site(geometry.offset[None], x, geometry))[1][0])


def row_products(left: Any, right: Any) -> Array:
    """Return the inner products of the rows of two matrices."""
    if sparse.issparse(left):
        return np.asarray(left.multiply(right).sum(axis=1), dtype=np.float64).ravel()
    return np.einsum("md,md->m", left, right)


def _row_distances(left: Any, right: Any, slope: Array) -> Array:
    """Return the squared lengths of the rows of ``left`` − slope · ``right``."""
    apart = left - (sparse.diags(slope) @ right if sparse.issparse(right) else slope[:, None] * right)
    return row_products(apart, apart)


PERTURBATIONS = (np.nan, 0.7, -3.0, 11.0)
MAX_ONE_BY_ONE = 3000  # cut elements that are perturbed one at a time
MAX_PERTURBED = 1_000_000  # numbers of all settings of one call

Indices = NDArray[np.intp]


class Grouping(NamedTuple):
    """Sites as connected groups of elements of the cut and of the term."""

    n_sites: int
    site_of_cut: Indices  # (m,) Site of every element of the cut; −1 where the term does not read it
    site_of_term: Indices  # (n,) Site of every element of the term; −1 where it is constant

    @property
    def one_to_one(self) -> bool:
        """Return whether every element of the cut is read by one element of the term, the one at the same position."""
        order = np.arange(self.n_sites)
        return np.array_equal(self.site_of_cut, order) and np.array_equal(self.site_of_term, order)


def group(evaluate: Callable[[list[Array]], Array], cut: Sequence[Array], rng: np.random.Generator) -> Grouping | None:
    """Return sites of one term; None if it has no elements, or if it is too large to find what each of them reads."""
    base = evaluate([value[None] for value in cut])
    reads = _reads(evaluate, cut, base, rng)
    if reads is None:
        return None
    n, starts = base.shape[1], np.cumsum([0, *(value.size for value in cut)])
    pairs, first = [(term, start + element) for (term, element), start in zip(reads, starts, strict=False)], starts[-1]
    if not n + first:
        return None
    term, element = (np.concatenate(part) for part in zip(*pairs, strict=True))
    edges = sparse.coo_matrix((np.ones(len(term)), (term, n + element)), shape=(n + first, n + first))
    _, component = connected_components(edges, directed=False)
    used = np.unique(component[term])
    site = np.full(component.max() + 1, -1)
    site[used] = np.arange(len(used))
    return Grouping(len(used), site[component[n:]], site[component[:n]])


def _reads(
    evaluate: Callable[[list[Array]], Array], cut: Sequence[Array], base: Array, rng: np.random.Generator
) -> list[tuple[Indices, Indices]] | None:
    """Return for every quantity of the cut pairs (element of the term, element of the quantity) that it reads.

    ``base`` ``(1, n)`` are the elements of the term at the values of the cut.
    """
    found: list[Any] = [None] * len(cut)
    for code_of in (_one_each, _by_first_axis):
        codes = {k: code for k in range(len(cut)) if found[k] is None and (code := code_of(cut[k])) is not None}
        changed = _changed(evaluate, cut, base, {k: _masks(code) for k, code in codes.items()}, rng)
        for k, code in codes.items():
            found[k] = _decoded(changed[k], code, cut[k].size)
    left = [k for k in range(len(cut)) if found[k] is None]
    if any(cut[k].size > MAX_ONE_BY_ONE for k in left):
        return None
    for k in left:
        [changed_by_each] = _changed(evaluate, cut, base, {k: np.eye(cut[k].size, dtype=bool)}, rng).values()
        element, term = np.nonzero(changed_by_each)
        found[k] = term, element
    return found


def _one_each(value: Array) -> Indices:
    """Return a number for every element of a quantity; elements of one number are perturbed together."""
    return np.arange(value.size)


def _by_first_axis(value: Array) -> Indices | None:
    """Return one number for all elements that share their first index; None if there is no other index."""
    return np.repeat(np.arange(value.shape[0]), value.size // value.shape[0]) if value.ndim > 1 else None


def _masks(code: Indices) -> NDArray[np.bool_]:
    """Return all elements, those whose number has each bit, and those whose number has not."""
    ones = (code >> np.arange(_bits(code))[:, None]) & 1 == 1
    return np.concatenate([np.ones((1, len(code)), dtype=bool), ones, ~ones])


def _bits(code: Indices) -> int:
    return max(1, int(code.max(initial=0)).bit_length())


def _decoded(changed: NDArray[np.bool_], code: Indices, size: int) -> tuple[Indices, Indices] | None:
    """Return pairs from the changes under :func:`_masks`; None if an element of the term reads several numbers."""
    bits = _bits(code)
    one, zero = changed[1 : bits + 1], changed[bits + 1 :]
    if np.any(one & zero):
        return None
    number = (one * (1 << np.arange(bits))[:, None]).sum(axis=0)
    readers = np.flatnonzero(changed[0])
    block = size // (int(code.max(initial=0)) + 1)
    members = number[readers][:, None] * block + np.arange(block)
    return np.repeat(readers, block), members.ravel()


def _changed(
    evaluate: Callable[[list[Array]], Array],
    cut: Sequence[Array],
    base: Array,
    masks: Mapping[int, NDArray[np.bool_]],
    rng: np.random.Generator,
) -> dict[int, NDArray[np.bool_]]:
    """Return the elements of the term that change with the masked elements of each quantity ``(n_masks, n)``.

    An evaluation of a long graph costs the same for one setting as for hundreds, so quantities are perturbed in one call.
    """
    size = base.shape[1] + sum(value.size for value in cut)
    most = max(1, MAX_PERTURBED // max(1, size))
    rows_before = np.cumsum([0, *(len(mask) for mask in masks.values())])[:-1]
    calls: dict[int, list[int]] = {}
    for k, before in zip(masks, rows_before, strict=True):
        calls.setdefault(int(before) // most, []).append(k)
    changed: dict[int, NDArray[np.bool_]] = {}
    for together in calls.values():
        edges = np.cumsum([0, *(len(masks[k]) for k in together)])
        found = np.zeros((edges[-1], base.shape[1]), dtype=bool)
        for shift in PERTURBATIONS:
            settings = [np.broadcast_to(value, (edges[-1], *value.shape)) for value in cut]
            for k, start, end in zip(together, edges, edges[1:], strict=False):
                moved = cut[k] + shift * (1 + 0.1 * rng.random(cut[k].shape))
                settings[k] = settings[k].copy()
                settings[k][start:end] = np.where(masks[k].reshape(len(masks[k]), *cut[k].shape), moved, cut[k])
            value = evaluate(settings)
            found |= ~((value == base) | (np.isnan(value) & np.isnan(base)))
        changed |= {k: found[start:end] for k, start, end in zip(together, edges, edges[1:], strict=False)}
    return changed

"""From a cut to sites: which elements of the cut each element of a term reads, and which of them go together.

Values alone do not tell: in a log-sum-exp a component of weight e⁻¹⁸⁰⁰ changes nothing. A NaN goes through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from ppl_backends.targets.protocol import Array

__all__ = ["Grouping", "group"]

PERTURBATIONS = (np.nan, 0.7, -3.0, 11.0)
MAX_ONE_BY_ONE = 3000  # cut elements that are followed one at a time

Indices = NDArray[np.intp]


class Grouping(NamedTuple):
    """Sites as connected groups of elements of the cut and of the term.

    Attributes
    ----------
    n_sites : int
    site_of_cut : ndarray (m,)
        Site of every element of the cut; −1 where the term does not read it.
    site_of_term : ndarray (n,)
        Site of every element of the term; −1 where it is constant.
    """

    n_sites: int
    site_of_cut: Indices
    site_of_term: Indices

    @property
    def one_to_one(self) -> bool:
        """Whether every element of the cut is read by one element of the term, the one in its place."""
        order = np.arange(self.n_sites)
        return np.array_equal(self.site_of_cut, order) and np.array_equal(self.site_of_term, order)


def group(evaluate: Callable[[list[Array]], Array], cut: Sequence[Array], rng: np.random.Generator) -> Grouping | None:
    """Sites of one term.

    Parameters
    ----------
    evaluate : callable
        Settings of the cut's quantities, each ``(k, *shape)``, to elements of the term ``(k, n)``.
    cut : list of array
        Values of the cut's quantities at some point.
    rng : numpy.random.Generator

    Returns
    -------
    Grouping or None
        None where too many elements would have to be followed one by one.
    """
    pairs, first, n = [], 0, evaluate([value[None] for value in cut]).shape[1]
    for k, value in enumerate(cut):
        reads = _reads(evaluate, cut, k, rng)
        if reads is None:
            return None
        pairs.append((reads[0], first + reads[1]))
        first += value.size
    term, element = (np.concatenate(part) for part in zip(*pairs, strict=True))
    edges = sparse.coo_matrix((np.ones(len(term)), (term, n + element)), shape=(n + first, n + first))
    _, component = connected_components(edges, directed=False)
    used = np.unique(component[term])
    site = np.full(component.max() + 1, -1)
    site[used] = np.arange(len(used))
    return Grouping(len(used), site[component[n:]], site[component[:n]])


def _reads(
    evaluate: Callable[[list[Array]], Array], cut: Sequence[Array], which: int, rng: np.random.Generator
) -> tuple[Indices, Indices] | None:
    """Pairs (element of the term, element of cut quantity ``which``) so that the one reads the other."""
    size, shape = cut[which].size, cut[which].shape
    elements = np.arange(size)
    codings = [elements]  # a number for every element; those of one number are perturbed together
    if len(shape) > 1:
        codings.append(np.repeat(np.arange(shape[0]), size // shape[0]))
    for code in codings:
        bits = max(1, int(code.max(initial=0)).bit_length())
        ones = [(code >> b) & 1 == 1 for b in range(bits)]
        changed = _changed(evaluate, cut, which, [np.ones(size, bool), *ones, *[~one for one in ones]], rng)
        one, zero = changed[1 : bits + 1], changed[bits + 1 :]
        if not np.any(one & zero):  # every element of the term reads elements of one number only
            number = (one * (1 << np.arange(bits))[:, None]).sum(axis=0)
            readers = np.flatnonzero(changed[0])
            if len(code) == len(np.unique(code)):
                return readers, number[readers]
            block = size // shape[0]
            members = number[readers][:, None] * block + np.arange(block)
            return np.repeat(readers, block), members.ravel()
    if size > MAX_ONE_BY_ONE:
        return None
    changed = _changed(evaluate, cut, which, list(np.eye(size, dtype=bool)), rng)
    element, term = np.nonzero(changed)
    return term, element


def _changed(
    evaluate: Callable[[list[Array]], Array],
    cut: Sequence[Array],
    which: int,
    masks: Sequence[NDArray[np.bool_]],
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Elements of the term that change with the masked elements of one quantity ``(len(masks), n)``."""
    base = evaluate([value[None] for value in cut])
    changed = np.zeros((len(masks), base.shape[1]), dtype=bool)
    stacked = np.stack(masks).reshape(len(masks), *cut[which].shape)
    for shift in PERTURBATIONS:
        settings = [np.broadcast_to(value, (len(masks), *value.shape)) for value in cut]
        moved = cut[which] + shift * (1 + 0.1 * rng.random(cut[which].shape))
        settings[which] = np.where(stacked, moved, cut[which])
        value = evaluate(settings)
        changed |= ~((value == base) | (np.isnan(value) & np.isnan(base)))
    return changed

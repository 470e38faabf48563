"""The space of models: candidates that are switched on and off, their columns, and the prior probability of each set.

A candidate is a column of the design, or a group of columns that belong together (the dummies of a factor). With
heredity a candidate may be on only if all its parents are (``"strong"``), or one of them (``"weak"``), as an
interaction and its main effects (Chipman 1996). A candidate whose parents allow it is *free*. A model with f free
candidates, k of them on, has prior probability 2^{−f} (``"uniform"``; 2^{−m} without heredity), or, if the probability
of being on is itself uniform, k!(f−k)!/(f+1)! (``"beta_binomial"``). Both sum to one over all models that heredity
allows, and both can be sampled, candidate by candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, logsumexp

from ppl_backends.errors import ModelError
from ppl_backends.targets.names import coordinates_of
from ppl_backends.targets.protocol import Array, Index

Bits = NDArray[np.bool_]
ModelPrior = str | Callable[[Bits], Any]

_MOST_SUMMED = 20  # candidates up to which the prior that a function gives is summed over all models
_BLOCK = 2**16  # models that are made at once


@dataclass(frozen=True)
class ModelSpace:
    """Candidates ``m`` over columns ``p``, in an order in which parents come before their children.

    Attributes
    ----------
    names : tuple of str
        Names of the candidates.
    members : ndarray (m, p) of bool
        The columns of each.
    always : ndarray (p,) of bool
        Columns that are in every model.
    parents : ndarray (m, m) of bool
        Row i holds the parents of candidate i.
    strong : bool
        Whether all parents must be on; otherwise one.
    prior : {"uniform", "beta_binomial"} or callable
        A function takes columns ``(n, p)`` and returns log probabilities ``(n,)``.
    """

    names: tuple[str, ...]
    members: Bits
    always: Bits
    parents: Bits
    strong: bool
    prior: ModelPrior

    @property
    def n_candidates(self) -> int:
        """Return the number of candidates."""
        return len(self.names)

    @property
    def is_plain(self) -> bool:
        """Return whether each candidate is one column and a model's prior probability depends only on its size."""
        return not callable(self.prior) and not self.parents.any() and bool((self.members.sum(axis=1) == 1).all())

    @property
    def log_prior_by_size(self) -> Array:
        """Return log prior probabilities of a model with k candidates on, k = 0, …, m, in a space without heredity."""
        return self._by_size(np.arange(self.n_candidates + 1), self.n_candidates)

    def columns(self, bits: Bits) -> Bits:
        """Return the columns ``(n, p)`` of models ``(n, m)``."""
        on: Bits = (bits.astype(np.float32) @ self.members.astype(np.float32) > 0) | self.always
        return on

    def free(self, bits: Bits) -> Bits:
        """Return which candidates the parents allow ``(n, m)``."""
        if not self.parents.any():
            return np.ones(bits.shape, dtype=bool)
        on = bits.astype(np.float32) @ self.parents.T.astype(np.float32)
        wanted = self.parents.sum(axis=1)
        return on >= (wanted if self.strong else np.minimum(wanted, 1))

    def log_start(self, bits: Bits) -> Array:
        """Return the log probability ``(n,)`` with which :meth:`sample` draws models; −inf if heredity forbids one."""
        free = self.free(bits)
        found = self._by_size(bits.sum(axis=1), free.sum(axis=1))
        return np.where((bits & ~free).any(axis=1), -np.inf, found)

    def log_prior(self, bits: Bits) -> Array:
        """Return the log prior probability ``(n,)``; with many candidates that of a function as it is given."""
        return self._given(bits) - self._log_total if callable(self.prior) else self.log_start(bits)

    @cached_property
    def _log_total(self) -> float:
        """Return the log sum of what a function gives to all models; zero where these are too many."""
        if self.n_candidates > _MOST_SUMMED:
            return 0.0
        total = float(logsumexp(self._given(self.all())))
        if total == -np.inf:
            raise ModelError("model_prior returns -inf for every model; at least one needs a finite log probability")
        return total

    def _given(self, bits: Bits) -> Array:
        """Return what a function gives as log probabilities ``(n,)``; −inf where heredity forbids a model."""
        assert callable(self.prior)
        start = self.log_start(bits)
        given = np.asarray(self.prior(self.columns(bits)), dtype=np.float64)
        if given.shape != start.shape or np.isnan(given).any() or np.any(given == np.inf):
            raise ModelError(f"model_prior must return finite log probabilities or -inf of shape {start.shape}")
        return np.where(start > -np.inf, given, -np.inf)

    def _by_size(self, k: Any, free: Any) -> Array:
        """Return the log probability of k on-candidates among the free ones."""
        if self._by_sizes:
            found: Array = betaln(k + 1.0, free - k + 1.0)
            return found
        return np.asarray(-np.log(2.0) * np.broadcast_to(np.asarray(free, dtype=np.float64), np.shape(k)))

    @property
    def _by_sizes(self) -> bool:
        """Return whether models are drawn with sizes that are equally probable; so a function finds models of any size."""
        return self.prior == "beta_binomial" or callable(self.prior)

    def sample(self, n: int, rng: np.random.Generator) -> Bits:
        """Draw models ``(n, m)`` from the prior, from the beta-binomial one if the prior is a function."""
        share = rng.random((n, 1)) if self._by_sizes else np.full((n, 1), 0.5)
        bits = rng.random((n, self.n_candidates)) < share
        if self.parents.any():
            for j in np.flatnonzero(self.parents.any(axis=1)):
                bits[:, j] &= self.free(bits)[:, j]
        return bits

    def all(self) -> Bits:
        """Return all models that heredity allows."""
        blocks = range(0, 2**self.n_candidates, _BLOCK)
        return np.concatenate([self._numbered(start, min(start + _BLOCK, 2**self.n_candidates)) for start in blocks])

    def _numbered(self, start: int, end: int) -> Bits:
        """Return those models that heredity allows, of the binary numbers from ``start`` to ``end``."""
        codes = np.arange(start, end, dtype=np.uint32)
        bits = ((codes[:, None] >> np.arange(self.n_candidates, dtype=np.uint32)) & 1).astype(bool)
        return bits[(~bits | self.free(bits)).all(axis=1)] if self.parents.any() else bits


def make_space(
    names: tuple[str, ...],
    always: Bits,
    groups: dict[str, list[str]] | None,
    heredity: Any,
    prior: ModelPrior,
) -> ModelSpace:
    """Return the space over columns ``names``, of which ``always`` are in every model.

    Raises
    ------
    ModelError
        If a name is unknown, a column is in two groups, or parents form a circle.
    """
    members, labels = _members(names, always, groups or {})
    parents, strong = _parents(names, labels, members, heredity)
    order = _parents_first(labels, parents)
    return ModelSpace(
        tuple(labels[i] for i in order), members[order], always, parents[np.ix_(order, order)], strong, prior
    )


def _members(names: tuple[str, ...], always: Bits, groups: dict[str, list[str]]) -> tuple[Bits, list[str]]:
    """Return the columns of each candidate, with groups at the position of their first column, and labels."""
    group_of: dict[int, str] = {}
    for label, columns in groups.items():
        if len(columns) == 0:
            raise ModelError(f"groups: {label!r} is empty; name its columns, or leave it out")
        for column in [columns] if isinstance(columns, str) else columns:
            found_here = places(names, column, f"groups: {label!r}")
            if always[found_here].all():
                raise ModelError(f"groups: {column!r} of {label!r} is in every model; leave it out of one of the two")
            for where in found_here:
                if where in group_of:
                    raise ModelError(f"groups: {column!r} is in {group_of[where]!r} and in {label!r}")
                group_of[where] = label
        if label in names and group_of.get(names.index(label)) != label:
            raise ModelError(f"groups: {label!r} is a column that is not in this group; give the group another name")
    found: dict[str, list[int]] = {}
    for j, name in enumerate(names):
        if not always[j]:
            found.setdefault(group_of.get(j, name), []).append(j)
    members = np.zeros((len(found), len(names)), dtype=bool)
    for i, columns_of in enumerate(found.values()):
        members[i, columns_of] = True
    return members, list(found)


def _parents(names: tuple[str, ...], labels: list[str], members: Bits, heredity: Any) -> tuple[Bits, bool]:
    """Return the parents of each candidate, and whether all of them are needed."""
    parents = np.zeros((len(labels), len(labels)), dtype=bool)
    if heredity is None:
        return parents, True
    column_of = {name: int(np.argmax(members[:, j])) if members[:, j].any() else -1 for j, name in enumerate(names)}
    candidate = column_of | {label: i for i, label in enumerate(labels)}  # −1 for columns in every model
    known = tuple(candidate)
    if isinstance(heredity, str):
        given = _products(names, labels, members, known, heredity)
    else:
        given = {child: [each] if isinstance(each, str) else list(each) for child, each in heredity.items()}
    for child, each in given.items():
        i = candidate[known[place(known, child, "heredity")]]
        if i < 0:
            raise ModelError(f"heredity: {child!r} is in every model; leave it out of one of the two")
        found = {candidate[known[place(known, parent, f"heredity: {child!r}")]] for parent in each}
        if isinstance(heredity, str):  # a group may contain a product and its factors
            found.discard(i)
        if heredity != "weak" or -1 not in found:  # one parent that is in every model is enough for "weak"
            parents[i, [parent for parent in found if parent >= 0]] = True
    return parents, heredity != "weak"


def _products(
    names: tuple[str, ...], labels: list[str], members: Bits, known: tuple[str, ...], heredity: str
) -> dict[str, list[str]]:
    """Return the parents of candidates that are products, by the names of their columns or by their own."""
    factors = {name: _factors(name) for name in known}
    single = {name for name in known if factors[name] == {name}}
    given = {}
    for label, row in zip(labels, members, strict=True):
        columns = [names[j] for j in np.flatnonzero(row) if names[j] not in single]
        own = [label] if label not in single else []
        if not columns and not own:
            continue
        product = next(
            (each for each in (columns, own) if each and all(factors[name] <= single for name in each)), None
        )
        if product is None:
            name = (columns or own)[0]
            missing = ", ".join(map(repr, sorted(factors[name] - single)))
            raise ModelError(
                f"heredity={heredity!r}: {missing}, of the product {name!r}, is not among the columns; add it, or name the "
                f"parents of all products, heredity={{{label!r}: [...]}}"
            )
        given[label] = [parent for name in product for parent in _largest(factors[name], factors)]
    if not given:
        raise ModelError(f"heredity={heredity!r}: no candidate is named as a product, like 'age:bmi'")
    return given


def _factors(name: str) -> frozenset[str]:
    """Return the factors of a product ``a:b``, which are ``x[a]`` and ``x[b]`` for ``x[a:b]``; else the name alone."""
    parts = name.split(":")
    if all(part.count("[") == part.count("]") for part in parts):
        return frozenset(parts)
    variable, _, inside = name.partition("[")
    each = inside[:-1].split(", ")
    where = next(axis for axis, label in enumerate(each) if ":" in label)
    return frozenset(
        f"{variable}[{', '.join([*each[:where], part, *each[where + 1 :]])}]" for part in each[where].split(":")
    )


def _largest(product: frozenset[str], factors: dict[str, frozenset[str]]) -> list[str]:
    """Return the names whose factors are some of a product's, without those that are factors of another such name."""
    inside = {name: each for name, each in factors.items() if each < product or product == each == {name}}
    return [name for name, each in inside.items() if not any(each < other for other in inside.values())]


def _parents_first(labels: list[str], parents: Bits) -> list[int]:
    order: list[int] = []
    while len(order) < len(labels):
        ready = [i for i in range(len(labels)) if i not in order and set(np.flatnonzero(parents[i])) <= set(order)]
        if not ready:
            left = next(labels[i] for i in count() if i not in order)
            raise ModelError(f"heredity: {left!r} is among its own ancestors")
        order += ready
    return order


def by_model(columns: Bits) -> Iterator[tuple[Bits, Index]]:
    """Yield each different row of ``columns``, and the rows that are equal to it."""
    unique, which, counts = np.unique(columns, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(which.ravel(), kind="stable")
    yield from zip(unique, np.split(order, np.cumsum(counts)[:-1]), strict=True)


def places(names: tuple[str, ...], name: Any, where: str) -> list[int]:
    """Return the indices of a name; of all elements if it is that of a vector of a model."""
    elements = [] if name in names or not isinstance(name, str) else coordinates_of(name, names)
    return elements or [place(names, name, where)]


def place(names: tuple[str, ...], name: Any, where: str) -> int:
    """Return the index of a name (or of an integer); raise ModelError if it is unknown."""
    if isinstance(name, int | np.integer) and 0 <= name < len(names):
        return int(name)
    if name not in names:
        shown = ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
        raise ModelError(f"{where}: {name!r} is not among {shown}")
    return names.index(name)

"""Exponential random graph models: p(y | θ) ∝ exp(θᵀs(y)) over the undirected graphs on n nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.simulators import ergm_kernels as kernels
from ppl_backends.simulators.equilibration import Equilibration, compare_starts
from ppl_backends.simulators.family import Array, ExponentialFamily

_TERMS = {"edges": kernels.EDGES, "kstar": kernels.KSTAR, "triangles": kernels.TRIANGLES, "gwesp": kernels.GWESP}
_MOVES = {"gibbs": kernels.GIBBS, "tnt": kernels.TNT}
_STARTS = {"empty": kernels.EMPTY, "complete": kernels.COMPLETE, "random": kernels.RANDOM}
_MOST_NODES_ENUMERATED = 7  # 2²¹ graphs
_FEWEST_REPLICATES = 32  # with which a gap of one standard deviation is above the noise


class ERGM(ExponentialFamily):
    """Draws of an exponential random graph model.

    A draw is the end of a Markov chain over graphs, which toggles one dyad at a time and occasionally chooses between
    the graph and its complement; or, with few nodes, exact by enumeration. Models with star or triangle terms often
    have two phases, a sparse and a dense one, between which toggles alone hardly ever move: keep ``complement`` on,
    and see :meth:`equilibration`.

    Parameters
    ----------
    n_nodes : int
    terms : sequence of str
        ``"edges"``; ``"kstar(k)"``, the number of k-stars; ``"triangles"``; ``"gwesp(decay)"``, geometrically weighted
        edgewise shared partners e^δ Σ_ties {1 − (1 − e^−δ)^shared}.
    moves : {"gibbs", "tnt", "enumerate"}
        ``"gibbs"`` draws a dyad given the rest; ``"tnt"`` (tie/no-tie; Morris, Handcock & Hunter 2008) proposes an
        existing tie half of the time, which mixes faster in sparse graphs; ``"enumerate"`` draws exactly, up to 7
        nodes.
    burn_in : int, optional
        Toggles before the first draw of a call; 30 per dyad by default.
    interval : int, optional
        Toggles between the draws of one call; 3 per dyad by default.
    complement : bool
        Choose between the graph and its complement once every n(n − 1)/2 toggles.
    start : {"empty", "complete", "random"} or array (n_nodes, n_nodes)
        Start of every chain. The observed network is a good choice; ``"random"``, each tie with probability ½, is a
        poor one if there are two phases, because it lies between them.

    Attributes
    ----------
    exact : bool
        True for ``moves="enumerate"``.

    Examples
    --------
    >>> import numpy as np
    >>> model = ERGM(5, ["edges", "triangles"], moves="enumerate")
    >>> model.simulate_statistics([-1.0, 0.3], 2, np.random.default_rng(0)).shape
    (2, 2)
    >>> bool(np.isclose(model.log_normalizer([-1.0, 0.0]), 10 * np.log1p(np.exp(-1.0))))
    True
    """

    def __init__(
        self,
        n_nodes: int,
        terms: Sequence[str] = ("edges",),
        *,
        moves: str = "gibbs",
        burn_in: int | None = None,
        interval: int | None = None,
        complement: bool = True,
        start: Any = "empty",
    ) -> None:
        if n_nodes < 2:
            raise ModelError(f"n_nodes={n_nodes}: a graph needs at least two nodes")
        if moves not in (*_MOVES, "enumerate"):
            raise ModelError(f"moves={moves!r}: expected 'gibbs', 'tnt' or 'enumerate'")
        self.n_nodes, self.moves, self.complement = int(n_nodes), moves, bool(complement)
        self.shape = (self.n_nodes, self.n_nodes)
        self.n_dyads = self.n_nodes * (self.n_nodes - 1) // 2
        parsed = [_parse(term) for term in ([terms] if isinstance(terms, str) else terms)]
        if not parsed:
            raise ModelError("terms is empty: name at least one, such as 'edges'")
        self.statistic_names = tuple(name for name, _, _ in parsed)
        self._kinds = np.array([kind for _, kind, _ in parsed], dtype=np.int64)
        self._term_parameters = np.array([parameter for _, _, parameter in parsed], dtype=np.float64)
        self.burn_in = 30 * self.n_dyads if burn_in is None else int(burn_in)
        self.interval = 3 * self.n_dyads if interval is None else int(interval)
        if self.burn_in < 1 or self.interval < 1:
            raise ModelError("burn_in and interval count toggles: both need to be at least 1")
        self._start, self._given = self._as_start(start)
        if moves == "enumerate" and self.n_nodes > _MOST_NODES_ENUMERATED:
            raise ModelError(f"moves='enumerate' is for up to {_MOST_NODES_ENUMERATED} nodes, not {self.n_nodes}")
        self.exact = moves == "enumerate"

    def simulate(self, theta: Any, n: int, rng: np.random.Generator) -> NDArray[np.int8]:
        """Return ``n`` adjacency matrices ``(n, n_nodes, n_nodes)``; with Markov chains, successive states of one chain."""
        if self.exact:
            return _graphs(self._draw(theta, n, rng), self.n_nodes)
        return self._run(theta, self._schedule(n), rng, keep=True)[1]

    def simulate_statistics(self, theta: Any, n: int, rng: np.random.Generator) -> Array:
        if self.exact:
            return self._enumeration.draw(self._parameters(theta), n, rng)
        return self._run(theta, self._schedule(n), rng)[0]

    def log_normalizer(self, theta: Any) -> float:
        """Return log Z(θ) by enumeration, for up to 7 nodes."""
        if self.n_nodes > _MOST_NODES_ENUMERATED:
            raise ModelError(f"log Z by enumeration is for up to {_MOST_NODES_ENUMERATED} nodes, not {self.n_nodes}")
        return self._enumeration.log_normalizer(self._parameters(theta))

    def equilibration(
        self, theta: Any, rng: np.random.Generator, *, burn_in: Sequence[int] | None = None, replicates: int = 200
    ) -> Equilibration:
        """Return whether chains from the empty graph, the complete graph and ``start`` agree.

        Parameters
        ----------
        theta : array (n_parameters,) or (m, n_parameters)
            Parameters of the comparison. Give draws of the posterior, including its tails, where a second phase is.
        rng : Generator
        burn_in : sequence of int, optional
            Toggles at which the starts are compared, beside the simulator's burn-in; by default ¼, ½, 1, 2 and 4 times it.
        replicates : int
            Chains per start, at least 32; fewer cannot tell two phases from noise.

        Returns
        -------
        Equilibration
        """
        if self.exact:
            raise ModelError("moves='enumerate' draws exactly: there is nothing to equilibrate")
        if replicates < _FEWEST_REPLICATES:
            raise ModelError(f"replicates={replicates}: at least {_FEWEST_REPLICATES} are needed")
        lengths = burn_in if burn_in is not None else [max(1, int(self.burn_in * f)) for f in (0.25, 0.5, 2, 4)]
        toggles = np.unique(np.array([*lengths, self.burn_in], dtype=np.int64))
        starts = {"empty": kernels.EMPTY, "complete": kernels.COMPLETE}
        if self._start == kernels.GIVEN:
            starts["start"] = kernels.GIVEN
        steps = np.diff(toggles, prepend=0)

        def run(start: str, point: Array) -> Array:
            return self._run(point, steps, rng, start=starts[start])[0]

        points = np.atleast_2d(np.asarray(theta, dtype=np.float64))
        return compare_starts(run, tuple(starts), points, toggles, self.burn_in, replicates, self.statistic_names)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _schedule(self, n: int) -> NDArray[np.int64]:
        return np.array([self.burn_in, *[self.interval] * (n - 1)], dtype=np.int64)

    def _run(
        self,
        theta: Any,
        toggles: NDArray[np.int64],
        rng: np.random.Generator,
        keep: bool = False,
        start: int | None = None,
    ) -> tuple[Array, NDArray[np.int8]]:
        """Return statistics, and graphs if ``keep``, after each of the ``toggles``."""
        out = np.empty((len(toggles), self.n_parameters))
        graphs = np.empty((len(toggles) if keep else 0, *self.shape), dtype=np.int8)
        kernels.chain(
            rng,
            self._parameters(theta),
            self._kinds,
            self._term_parameters,
            _MOVES[self.moves],
            self.n_dyads if self.complement else 0,
            self._start if start is None else start,
            self._given,
            toggles,
            graphs,
            keep,
            out,
        )
        return out, graphs

    @cached_property
    def _enumerated(self) -> Array:
        """Return statistics of every graph, in the order of their codes."""
        codes = np.arange(2**self.n_dyads)
        return np.concatenate([self._count(_graphs(part, self.n_nodes)) for part in np.array_split(codes, 64)])

    def _enumerate(self) -> Array:
        return self._enumerated

    def _draw(self, theta: Any, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return codes of ``n`` graphs, exactly."""
        energy = self._enumerated @ self._parameters(theta)
        cumulated = np.cumsum(np.exp(energy - energy.max()))
        return np.searchsorted(cumulated, rng.random(n) * cumulated[-1], side="right")

    def _as_start(self, start: Any) -> tuple[int, NDArray[np.int8]]:
        if isinstance(start, str):
            if start not in _STARTS:
                raise ModelError(f"start={start!r}: expected 'random', 'empty', 'complete' or an adjacency matrix")
            return _STARTS[start], np.zeros(self.shape, dtype=np.int8)
        given = np.asarray(start)
        if given.shape != self.shape:
            raise ModelError(f"start has shape {given.shape}; expected {self.shape}")
        self._check(given)
        return kernels.GIVEN, np.ascontiguousarray(given, dtype=np.int8)

    def _check(self, data: NDArray) -> None:
        if not np.isin(data, (0, 1)).all():
            raise ModelError("an adjacency matrix holds 0 and 1 only")
        if (data != np.swapaxes(data, -1, -2)).any() or np.diagonal(data, axis1=-2, axis2=-1).any():
            raise ModelError("the graph is undirected without loops: its adjacency matrix is symmetric, its diagonal 0")

    def _count(self, data: NDArray) -> Array:
        out = np.empty((len(data), self.n_parameters))
        for graph, row in zip(np.ascontiguousarray(data, dtype=np.int8), out, strict=True):
            degree = graph.sum(axis=0, dtype=np.int64)
            kernels.count_statistics(graph, degree, self._kinds, self._term_parameters, row)
        return out


def _parse(term: str) -> tuple[str, int, float]:
    """Return name, code and parameter of a term: ``("kstar(2)", 1, 2.0)``."""
    match = re.fullmatch(r"(\w+?)(?:\((\d+(?:\.\d+)?)\))?", str(term).replace(" ", ""))
    name, value = match.groups() if match else ("", None)
    needs_value = name in ("kstar", "gwesp")
    whole = name != "kstar" or ((value or "").isdigit() and int(value or 0) >= 1)
    if name not in _TERMS or needs_value != (value is not None) or not whole:
        raise ModelError(f"unknown term {term!r}: expected 'edges', 'kstar(k)', 'triangles' or 'gwesp(decay)'")
    return (f"{name}({value})" if needs_value else name), _TERMS[name], float(value or 0.0)


def _graphs(codes: NDArray[np.integer], n_nodes: int) -> NDArray[np.int8]:
    """Return adjacency matrices whose lower triangle, row by row, is the binary expansion of the codes."""
    rows, columns = np.tril_indices(n_nodes, -1)
    bits = (np.asarray(codes)[:, None] >> np.arange(len(rows))) & 1
    graphs = np.zeros((len(bits), n_nodes, n_nodes), dtype=np.int8)
    graphs[:, rows, columns] = graphs[:, columns, rows] = bits
    return graphs

"""The Ising and Potts models on a rectangular lattice."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array
from ppl_backends.simulators import lattice_kernels as kernels
from ppl_backends.simulators.family import ExponentialFamily

_MOST_COLOURS = 127  # of bytes
_MOST_STATES = 4096  # colourings of one row
_MOST_ENUMERATED = 2**16  # of the whole lattice
_LONGEST_PAST = 2**25  # random numbers


class _Lattice(ExponentialFamily):
    """Base of both models: colours 0, ..., q − 1, a coupling J between equal neighbours, and a field by colour."""

    _METHODS: ClassVar[tuple[str, ...]] = ("transfer", "swendsen_wang", "gibbs")
    _EXACT: ClassVar[tuple[str, ...]] = ("transfer", "cftp")

    def __init__(
        self, shape: tuple[int, int], n_colours: int, method: str, periodic: bool, burn_in: int, interval: int
    ) -> None:
        rows, columns = (int(length) for length in shape)
        if min(rows, columns) < 1 or rows * columns < 2:
            raise ModelError(f"shape={tuple(shape)}: expected (rows, columns) with at least two sites")
        if burn_in < 1 or interval < 1:
            raise ModelError("burn_in and interval count sweeps: both need to be at least 1")
        self.shape, self.periodic, self.n_colours = (rows, columns), bool(periodic), n_colours
        fits = n_colours ** min(rows, columns) <= _MOST_STATES and not periodic
        if method == "auto":
            method = "transfer" if fits else "swendsen_wang"
        if method not in self._METHODS:
            raise ModelError(f"method={method!r}: expected 'auto' or one of {', '.join(map(repr, self._METHODS))}")
        if method == "transfer" and not fits:
            raise ModelError(
                f"method='transfer' needs free boundaries and at most {_MOST_STATES} colourings of the narrow side"
            )
        self.method, self.burn_in, self.interval = method, int(burn_in), int(interval)
        self.exact = method in self._EXACT
        self._transfer = TransferMatrix(rows, columns, n_colours) if fits else None
        self._neighbours = _neighbours(rows, columns, periodic)

    def _terms(self, theta: Any) -> tuple[float, Array]:
        """Return coupling J and field ``(n_colours,)``."""
        raise NotImplementedError

    def _values(self, colours: NDArray) -> NDArray[np.int8]:
        """Return data in the user's coding of colours."""
        return colours.astype(np.int8)

    def simulate(self, theta: Any, n: int, rng: np.random.Generator) -> NDArray[np.int8]:
        """Return ``n`` configurations ``(n, rows, columns)``; with Markov chains, successive states of one chain."""
        coupling, field = self._terms(theta)
        if self._transfer is not None and self.method == "transfer":
            return self._values(self._transfer.draw(coupling, field, n, rng))
        sites = np.tile(field, (len(self._neighbours), 1))
        return self._values(self._run(coupling, sites, n, rng).reshape(n, *self.shape))

    def _run(self, coupling: float, field: Array, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return ``n`` states of a chain. Clusters are for couplings of at least zero, so sites move alone below it."""
        clusters = self.method == "swendsen_wang" and coupling >= 0
        move = kernels.swendsen_wang if clusters else kernels.gibbs
        out = np.empty((n, len(self._neighbours)), dtype=np.int64)
        x = rng.integers(0, self.n_colours, len(self._neighbours))
        for draw in range(n):
            move(rng, x, self.burn_in if draw == 0 else self.interval, coupling, field, self._neighbours)
            out[draw] = x
        return out

    def simulate_statistics(self, theta: Any, n: int, rng: np.random.Generator) -> Array:
        if self.exact and self.n_colours ** len(self._neighbours) <= _MOST_ENUMERATED:
            return self._enumeration.draw(self._parameters(theta), n, rng)
        return self._count(self.simulate(theta, n, rng))

    def _enumerate(self) -> Array:
        sites = len(self._neighbours)
        codes = np.arange(self.n_colours**sites)
        colours = codes[:, None] // self.n_colours ** np.arange(sites) % self.n_colours
        return self._count(self._values(colours).reshape(-1, *self.shape))

    def _log_z(self, theta: Any) -> tuple[float, float]:
        """Return coupling and log Z of the colouring."""
        if self._transfer is None:
            raise ModelError(
                f"log Z is for free boundaries and at most {_MOST_STATES} colourings of the narrow side of the lattice"
            )
        coupling, field = self._terms(theta)
        return coupling, self._transfer.messages(coupling, field)[1]

    def _pairs(self, data: NDArray) -> list[tuple[NDArray, NDArray]]:
        """Return both ends of all neighbouring pairs, in each direction."""
        ends = [(data[:, 1:], data[:, :-1]), (data[:, :, 1:], data[:, :, :-1])]
        if self.periodic:  # a side of length two has no second bond between its two sites
            rows, columns = self.shape
            ends += [(data[:, :1], data[:, -1:])] if rows > 2 else []
            ends += [(data[:, :, :1], data[:, :, -1:])] if columns > 2 else []
        return ends


class Ising(_Lattice):
    """Spins ±1 with p(y | θ) ∝ exp(β Σ_{i~j} y_i y_j + h Σ_i y_i) on a rectangular lattice.

    Parameters
    ----------
    shape : (int, int)
    field : bool
        Whether h is a second parameter; without it β is the only parameter.
    method : {"auto", "transfer", "cftp", "swendsen_wang", "gibbs"}
        ``"transfer"`` is exact, for free boundaries and a side of up to 12. ``"cftp"``, coupling from the past (Propp
        & Wilson 1996), is exact on any lattice; its run time grows exponentially with β, on large lattices from 0.44, and
        a draw that takes too long raises an error. β < 0 needs free boundaries or even sides. The other two are Markov
        chains; at β < 0, where Swendsen–Wang has no clusters, both sweep site by site. ``"auto"`` is ``"transfer"`` if
        possible, else ``"swendsen_wang"``.
    periodic : bool
    burn_in, interval : int
        Sweeps before the first draw of a call and between draws; for Markov chains.

    Examples
    --------
    >>> import numpy as np
    >>> model = Ising((6, 8))
    >>> model.exact, model.simulate([0.3], 2, np.random.default_rng(1)).shape
    (True, (2, 6, 8))
    """

    _METHODS = ("transfer", "cftp", "swendsen_wang", "gibbs")

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        field: bool = False,
        method: str = "auto",
        periodic: bool = False,
        burn_in: int = 100,
        interval: int = 10,
    ) -> None:
        super().__init__(shape, 2, method, periodic, burn_in, interval)
        self.statistic_names = ("interaction", "magnetisation") if field else ("interaction",)

    def _terms(self, theta: Any) -> tuple[float, Array]:
        theta = self._parameters(theta)
        h = theta[1] if len(theta) > 1 else 0.0
        return 2.0 * theta[0], np.array([-h, h])  # y_i y_j = 2·[equal] − 1

    def _values(self, colours: NDArray) -> NDArray[np.int8]:
        return (2 * colours - 1).astype(np.int8)

    def log_normalizer(self, theta: Any) -> float:
        """Return log Z(θ), for free boundaries and a side of up to 12."""
        coupling, log_z = self._log_z(theta)
        return log_z - 0.5 * coupling * (self._neighbours >= 0).sum() / 2

    def _run(self, coupling: float, field: Array, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if self.method != "cftp":
            return super()._run(coupling, field, n, rng)
        flipped = np.zeros(len(field), dtype=bool)
        if coupling < 0:  # with one of two sublattices flipped, neighbours attract
            flipped = np.indices(self.shape).sum(axis=0).reshape(-1) % 2 == 1
            if self.periodic and any(length % 2 and length > 2 for length in self.shape):
                raise ModelError("coupling from the past with a coupling below zero needs even sides")
            field = np.where(flipped[:, None], field[:, ::-1], field)
        draws = []
        for _ in range(n):
            drawn = _from_the_past(abs(coupling), field, self._neighbours, rng)
            if drawn is None:
                other = "swendsen_wang" if self._transfer is None else "transfer"
                raise ModelError(
                    f"coupling from the past has not ended at beta={coupling / 2:.3g}, which is too strong for this lattice: "
                    f"use method='{other}', or a prior without such values"
                )
            draws.append(drawn)
        return np.where(flipped, 1 - np.array(draws), draws)

    def _check(self, data: NDArray) -> None:
        if not np.isin(data, (-1, 1)).all():
            raise ModelError("spins are -1 or 1")

    def _count(self, data: NDArray) -> Array:
        data = data.astype(np.int64)
        interaction = sum((a * b).sum(axis=(1, 2)) for a, b in self._pairs(data))
        columns = [interaction, data.sum(axis=(1, 2))][: self.n_parameters]
        return np.stack(columns, axis=1).astype(np.float64)


class Potts(_Lattice):
    """Colours 0, ..., q − 1 with p(y | θ) ∝ exp(β #{i~j: y_i = y_j}) on a rectangular lattice.

    Parameters
    ----------
    shape : (int, int)
    n_colours : int
    method : {"auto", "transfer", "swendsen_wang", "gibbs"}
        ``"transfer"`` is exact, for free boundaries and at most 4,096 colourings of the narrow side; the others are
        Markov chains; at β < 0 both sweep site by site. ``"auto"`` is ``"transfer"`` if possible, else
        ``"swendsen_wang"``.
    periodic : bool
    burn_in, interval : int
        Sweeps before the first draw of a call and between draws; for Markov chains.

    Examples
    --------
    >>> import numpy as np
    >>> model = Potts((5, 5), 3)
    >>> model.simulate_statistics([0.5], 1, np.random.default_rng(1)).shape
    (1, 1)
    """

    statistic_names = ("equal pairs",)

    def __init__(
        self,
        shape: tuple[int, int],
        n_colours: int,
        *,
        method: str = "auto",
        periodic: bool = False,
        burn_in: int = 100,
        interval: int = 10,
    ) -> None:
        if not 2 <= n_colours <= _MOST_COLOURS:
            raise ModelError(f"n_colours={n_colours}: at least two are needed, and at most {_MOST_COLOURS}")
        super().__init__(shape, int(n_colours), method, periodic, burn_in, interval)

    def _terms(self, theta: Any) -> tuple[float, Array]:
        return float(self._parameters(theta)[0]), np.zeros(self.n_colours)

    def log_normalizer(self, theta: Any) -> float:
        """Return log Z(θ), for free boundaries and at most 4,096 colourings of the narrow side."""
        return self._log_z(theta)[1]

    def _check(self, data: NDArray) -> None:
        if not np.isin(data, np.arange(self.n_colours)).all():
            raise ModelError(f"colours are 0, ..., {self.n_colours - 1}")

    def _count(self, data: NDArray) -> Array:
        equal = sum((a == b).sum(axis=(1, 2)) for a, b in self._pairs(data))
        return np.asarray(equal, dtype=np.float64)[:, None]


def _neighbours(rows: int, columns: int, periodic: bool) -> NDArray[np.int64]:
    """Return a table ``(sites, 4)`` of neighbours, padded with -1; each pair occurs once from either end."""
    sites = np.arange(rows * columns).reshape(rows, columns)
    table = np.full((rows, columns, 4), -1, dtype=np.int64)
    table[1:, :, 0], table[:-1, :, 1] = sites[:-1], sites[1:]
    table[:, 1:, 2], table[:, :-1, 3] = sites[:, :-1], sites[:, 1:]
    if periodic and rows > 2:
        table[0, :, 0], table[-1, :, 1] = sites[-1], sites[0]
    if periodic and columns > 2:
        table[:, 0, 2], table[:, -1, 3] = sites[:, -1], sites[:, 0]
    return table.reshape(-1, 4)


def _from_the_past(
    coupling: float, field: Array, neighbours: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64] | None:
    """Draw exactly from a two-colour model with J ≥ 0, by monotone coupling from the past; None if it takes too long.

    Chains from all zeros and all ones start ever further back and use the same random numbers. If they meet by time
    zero, every chain from the infinite past would be in the same state. Each doubling extends the past and keeps the
    random numbers of the nearer past.
    """
    n = len(field)
    degree, ones = (neighbours >= 0).sum(axis=1, keepdims=True), np.arange(neighbours.shape[1] + 1)
    first = expit(field[:, :1] - field[:, 1:] - coupling * (2 * ones - degree))  # the probability of colour zero
    past = [rng.random((1, n))]  # blocks of sweeps, from the nearest to the furthest
    while True:
        low, high = np.zeros(n, dtype=np.int64), np.ones(n, dtype=np.int64)
        for block in reversed(past):
            kernels.coupled_heat_bath(low, high, block, first, neighbours)
        if (low == high).all():
            return low
        length = sum(len(block) for block in past)
        if length * n >= _LONGEST_PAST:
            return None
        past.append(rng.random((length, n)))


class TransferMatrix:
    """Exact draws and log Z of colourings of ``rows`` × ``columns`` sites with free boundaries, row by row.

    The rows form a Markov chain. A backward pass over its states, all colourings of one row (the narrow side), gives log Z; a
    forward pass draws. The matrix between two rows is a Kronecker product of one q × q matrix per column, so that both take
    time proportional to the number of states, not to its square.
    """

    def __init__(self, rows: int, columns: int, n_colours: int) -> None:
        self.turned = columns > rows
        self.rows, self.columns = (columns, rows) if self.turned else (rows, columns)
        self.n_colours = n_colours
        self.n_states = n_colours**self.columns
        codes = np.arange(self.n_states)
        self.colours = np.stack(
            [codes // n_colours ** (self.columns - 1 - c) % n_colours for c in range(self.columns)], axis=1
        )
        self.pairs = (self.colours[:, 1:] == self.colours[:, :-1]).sum(axis=1)

    def messages(self, coupling: float, field: Array) -> tuple[list[Array], float]:
        """Return weights of each row's states with the rows below summed out, and log Z; ``field`` is ``(n_colours,)``."""
        local = coupling * self.pairs + field[self.colours].sum(axis=1)
        local_weight, log_scale = np.exp(local - local.max()), float(local.max())
        weights, log_z = [], 0.0
        below, largest = np.ones(self.n_states), self.columns * max(coupling, 0.0)  # log of an entry between rows
        for row in range(self.rows):
            weight = local_weight * below
            total = weight.sum()
            weights.append(weight / total)
            log_z += log_scale + np.log(total) + (largest if row else 0.0)
            below = self._between(coupling, weight / total)
        return weights[::-1], log_z

    def draw(self, coupling: float, field: Array, n: int, rng: np.random.Generator) -> NDArray[np.int8]:
        """Return ``n`` exact draws ``(n, rows, columns)``."""
        weights, _ = self.messages(coupling, field)
        kernel = np.exp(coupling * np.eye(self.n_colours) - max(coupling, 0.0))
        out = np.empty((n, self.rows, self.columns), dtype=np.int8)
        law = np.broadcast_to(weights[0], (n, self.n_states))
        for row in range(self.rows):
            cumulated = np.cumsum(law, axis=1)
            state = (cumulated < rng.random((n, 1)) * cumulated[:, -1:]).sum(axis=1)
            out[:, row] = self.colours[np.minimum(state, self.n_states - 1)]
            if row + 1 < self.rows:
                step = np.ones((n, 1))
                for column in range(self.columns):  # the row's own row of the Kronecker product
                    step = (step[:, :, None] * kernel[out[:, row, column]][:, None, :]).reshape(n, -1)
                law = step * weights[row + 1]
        return np.swapaxes(out, 1, 2) if self.turned else out

    def _between(self, coupling: float, weight: Array) -> Array:
        """Return the matrix between two rows, divided by its largest entry, times a vector."""
        kernel = np.exp(coupling * np.eye(self.n_colours) - max(coupling, 0.0))
        cube = weight.reshape((self.n_colours,) * self.columns)
        for axis in range(self.columns):
            cube = np.moveaxis(np.tensordot(kernel, cube, axes=(1, axis)), 0, axis)
        return cube.reshape(-1)

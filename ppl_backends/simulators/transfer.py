"""Exact draws and log normalisers of colourings of narrow lattices, row by row.

With free boundaries the rows form a Markov chain. A backward pass over its states, all colourings of one row, gives log Z;
a forward pass draws. The matrix between two rows is a Kronecker product of one q × q matrix per column, so that both take
time proportional to the number of states, not to its square.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppl_backends.numerics.arrays import Array

__all__ = ["TransferMatrix"]


class TransferMatrix:
    """Colourings with ``n_colours`` colours of ``rows`` × ``columns`` sites, free boundaries.

    Parameters
    ----------
    rows, columns, n_colours : int
        The narrow side is taken as the columns.
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
        """Weights of each row's states with the rows below summed out, and log Z.

        Parameters
        ----------
        coupling : float
        field : ndarray (n_colours,)
            The same at every site.
        """
        local = coupling * self.pairs + field[self.colours].sum(axis=1)
        local_weight, log_scale = np.exp(local - local.max()), float(local.max())
        weights, log_z = [], 0.0
        below = np.ones(self.n_states)
        for _ in range(self.rows):
            weight = local_weight * below
            total = weight.sum()
            weights.append(weight / total)
            log_z += log_scale + np.log(total)
            below = self._between(coupling, weight / total)
        return weights[::-1], log_z

    def draw(self, coupling: float, field: Array, n: int, rng: np.random.Generator) -> NDArray[np.int8]:
        """``n`` exact draws ``(n, rows, columns)``."""
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
        """The matrix between two rows times a vector."""
        kernel = np.exp(coupling * np.eye(self.n_colours))
        cube = weight.reshape((self.n_colours,) * self.columns)
        for axis in range(self.columns):
            cube = np.moveaxis(np.tensordot(kernel, cube, axes=(1, axis)), 0, axis)
        return cube.reshape(-1)

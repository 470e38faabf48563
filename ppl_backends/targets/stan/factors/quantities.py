"""What a Stan program computes at many points, with some coordinates held."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.compiled import CompiledProgram
from ppl_backends.targets.stan.split import ProgramSplit
from ppl_backends.targets.stan.variables import collect

__all__ = ["BLOCK_BYTES", "TOLERANCE", "Quantities", "Refusal", "random_points"]

TOLERANCE = 1e-8
SCALES, POINTS = (0.1, 0.5, 2.0), 8  # of the random points that prove the factors
BLOCK_BYTES = 2**26


class Refusal(ModelError):
    """A program does not factorise because of one coordinate: what is said of it, and which one it is."""

    def __init__(self, message: str, coordinate: int) -> None:
        super().__init__(message)
        self.coordinate = coordinate

    def __reduce__(self) -> tuple[type[Refusal], tuple[str, int]]:
        return Refusal, (str(self), self.coordinate)


def random_points(dim: int, seed: int) -> Array:
    """Points ``(24, dim)`` near to and far from the origin."""
    rng = np.random.default_rng(seed)
    return np.concatenate([scale * rng.standard_normal((POINTS, dim)) for scale in SCALES])


class Quantities:
    """Log density, ``log_lik`` and other quantities as functions of the coordinates that are not held.

    Parameters
    ----------
    target : CompiledProgram
    split : ProgramSplit
    held : array of int
        Coordinates that are given; the points of all methods have the others only.
    at : array
        Their values.
    """

    def __init__(self, target: CompiledProgram, split: ProgramSplit, held: NDArray[np.integer], at: Array) -> None:
        self.target, self.split, self.label = target, split, target.label
        self._base = np.zeros(target.dim)
        self._base[held] = at
        self.free = np.setdiff1d(np.arange(target.dim), held)
        self.dim, self.names = len(self.free), tuple(target.names[j] for j in self.free)
        self.variables = {v.name: v for v in target.model.variables if v.columns.size and v.imaginary is None}
        if "log_lik" not in self.variables:
            raise ModelError(f"{self.label}: EP needs the generated quantity log_lik, one entry for each observation")
        self.n = self.variables["log_lik"].columns.size

    def point(self, theta: Array) -> Array:
        """Points with the coordinates that are held ``(k, target.dim)``."""
        x = np.repeat(self._base[None], len(theta), axis=0)
        x[:, self.free] = theta
        return x

    def values(self, theta: Array, *names: str) -> list[Array]:
        """Flat values ``(k, size)`` of quantities at points ``(k, dim)``, computed in blocks of points."""
        x, wanted, blocks = self.point(theta), [self.variables[name] for name in names], []
        width = sum(variable.columns.size for variable in self.variables.values())
        for block in np.array_split(x, max(1, 8 * width * len(x) // BLOCK_BYTES)):
            seeds = np.zeros(len(block), dtype=np.uint32)
            flat, _ = self.target.model.constrain(block, seeds, True, self.target.cores)
            collected = collect(flat, wanted)
            blocks.append([collected[name].reshape(len(block), -1) for name in names])
        return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]

    def log_density(self, theta: Array) -> Array:
        """The program's log density ``(k,)``."""
        return self.target.log_density(self.point(theta))

    def log_lik(self, theta: Array) -> Array:
        """``log_lik`` ``(k, n)``."""
        return self.values(theta, "log_lik")[0]

    def log_prior(self, theta: Array) -> Array:
        """What the density has beside ``log_lik`` ``(k,)``, from the prior alone where that needs no compilation."""
        part = self.split.free_prior
        if part is not None:
            return part.model.evaluate(self.point(theta), False, self.target.cores)[0]
        return self.log_density(theta) - self.log_lik(theta).sum(axis=1)

    @property
    def has_prior_gradient(self) -> bool:
        """Whether :meth:`prior_gradient` is there: the prior alone needs no compilation."""
        return self.split.free_prior is not None

    def prior_gradient(self, theta: Array) -> Array:
        """Gradient of the log prior ``(k, dim)``; zero where it is not finite."""
        part = self.split.free_prior
        assert part is not None
        slope = part.model.evaluate(self.point(theta), True, self.target.cores)[1]
        assert slope is not None
        return slope[:, self.free]

    def refuse(self, said: str, j: int) -> Refusal:
        """The error for a free coordinate that is in the way."""
        way_out = "so EP does not apply to this program; use fit_laplace or sample_smc"
        return Refusal(f"{self.label}: {said}, {way_out}", int(self.free[j]))

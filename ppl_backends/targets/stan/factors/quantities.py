"""Quantities of a Stan program at many points, with some coordinates held, and the choice of its linear predictor."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ppl_backends.errors import ModelError
from ppl_backends.numerics.affine import AffineFunction
from ppl_backends.targets.factors.finder import Refusal
from ppl_backends.targets.factors.proof import affine_error
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.compiled import CompiledProgram
from ppl_backends.targets.stan.split import ProgramSplit
from ppl_backends.targets.stan.variables import collect

TOLERANCE = 1e-8
SCALES, POINTS = (0.1, 0.5, 2.0), 8  # of the random points that check the factors
BLOCK_BYTES = 2**26


def random_points(dim: int, seed: int) -> Array:
    """Return points ``(24, dim)`` near to and far from the origin."""
    rng = np.random.default_rng(seed)
    return np.concatenate([scale * rng.standard_normal((POINTS, dim)) for scale in SCALES])


class Quantities:
    """Log density, ``log_lik`` and other quantities as functions of the coordinates that are not held."""

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
        """Return points with the coordinates that are held ``(k, target.dim)``."""
        x = np.repeat(self._base[None], len(theta), axis=0)
        x[:, self.free] = theta
        return x

    def values(self, theta: Array, *names: str) -> list[Array]:
        """Return flat values ``(k, size)`` of quantities at points ``(k, dim)``, computed in blocks of points."""
        x, wanted, blocks = self.point(theta), [self.variables[name] for name in names], []
        width = sum(variable.columns.size for variable in self.variables.values())
        for block in np.array_split(x, max(1, 8 * width * len(x) // BLOCK_BYTES)):
            seeds = np.zeros(len(block), dtype=np.uint32)
            flat, _ = self.target.model.constrain(block, seeds, True, self.target.cores)
            collected = collect(flat, wanted)
            blocks.append([collected[name].reshape(len(block), -1) for name in names])
        return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]

    def log_density(self, theta: Array) -> Array:
        """Return the program's log density ``(k,)``."""
        return self.target.log_density(self.point(theta))

    def log_lik(self, theta: Array) -> Array:
        """Return ``log_lik`` ``(k, n)``."""
        return self.values(theta, "log_lik")[0]

    def log_prior(self, theta: Array) -> Array:
        """Return the log density minus ``log_lik`` ``(k,)``; from the prior if that needs no compilation."""
        part = self.split.free_prior
        if part is not None:
            return part.model.evaluate(self.point(theta), False, self.target.cores)[0]
        return self.log_density(theta) - self.log_lik(theta).sum(axis=1)

    @property
    def has_prior_gradient(self) -> bool:
        """Return whether :meth:`prior_gradient` is available: the prior needs no compilation."""
        return self.split.free_prior is not None

    def prior_gradient(self, theta: Array) -> Array:
        """Return the gradient of the log prior ``(k, dim)``; zero if it is not finite."""
        part = self.split.free_prior
        assert part is not None
        slope = part.model.evaluate(self.point(theta), True, self.target.cores)[1]
        assert slope is not None
        return slope[:, self.free]

    def refuse(self, said: str, j: int) -> Refusal:
        """Return the error for a free coordinate that prevents the factors."""
        way_out = "so EP does not apply to this program; use fit_laplace or sample_smc"
        return Refusal(f"{self.label}: {said}, {way_out}", int(self.free[j]))


class Predictor(NamedTuple):
    """A quantity that is affine in the free coordinates: its name, ``(n, dim)`` rows and ``(n,)`` offsets."""

    name: str
    design: Array
    offset: Array


def find_predictor(program: Quantities, name: str | None) -> Predictor:
    """Return the named predictor, or the only quantity that qualifies; parameters if there is no other."""
    sized = [v for v in program.variables if v != "log_lik" and program.variables[v].columns.size == program.n]
    if name is not None:
        if name not in sized:
            raise ModelError(
                f"{program.label}: predictor={name!r} is not a quantity with {program.n} elements, as log_lik has; those "
                f"that are: {', '.join(sized) or 'none'}"
            )
        return _affine(program, name)
    parameters = {variable.name for variable in program.target.model.parameters}
    computed = [v for v in sized if v not in parameters]
    found, refusals = [], []
    for candidate in computed or sized:
        try:
            found.append(_affine(program, candidate))
        except ModelError as refusal:
            refusals.append(refusal)
    if found:
        first = found[0]
        if all(np.allclose(p.design, first.design) and np.allclose(p.offset, first.offset) for p in found):
            return first
        names = ", ".join(each.name for each in found)
        raise ModelError(
            f"{program.label}: which of {names} is the linear predictor? name it: predictor={first.name!r}"
        )
    if refusals:
        raise next((refusal for refusal in refusals if isinstance(refusal, Refusal)), refusals[0])
    raise ModelError(
        f"{program.label}: EP needs the linear predictor as a transformed parameter or generated quantity with "
        f"{program.n} elements, as log_lik has; add one and name it: predictor='eta'"
    )


def _affine(program: Quantities, name: str) -> Predictor:
    """Return a quantity as an affine function of the free coordinates, checked at random points."""

    def values(x: Array) -> Array:
        return program.values(x, name)[0]

    design, offset = AffineFunction(values, np.arange(program.dim)).at(np.zeros(program.dim))
    design = design.toarray() if sparse.issparse(design) else design
    x = random_points(program.dim, 0)
    written = values(x)
    if not affine_error(design, offset, x, written) <= 1:
        raise _not_affine(program, name, values, np.abs(written - (x @ design.T + offset)))
    if not np.abs(design).any():
        raise ModelError(f"{program.label}: {name} does not depend on the parameters")
    return Predictor(name, np.where(np.abs(design) < 1e-14 * (1 + np.abs(written).max()), 0.0, design), offset)


def _not_affine(program: Quantities, name: str, values: Callable[[Array], Array], error: Array) -> ModelError:
    """Return the refusal of a quantity, with the coordinate along which it is not affine, if there is one."""
    eye, base = np.eye(program.dim), 0.5 * np.random.default_rng(3).standard_normal((1, program.dim))
    found = values(np.concatenate([base, base + eye, base + 2 * eye]))
    once, twice = np.split(found[1:] - found[0], 2)
    bent = ~(np.abs(twice - 2 * once).max(axis=1) <= 1e-9 * (1 + np.abs(found).max()))
    if bent.any():
        j = int(np.argmax(bent))
        return program.refuse(f"{name} is not affine in {program.names[j]}", j)
    return ModelError(
        f"{program.label}: {name} is not affine in the unconstrained parameters together (differs by "
        f"{np.nanmax(error):.2g}), so EP does not apply to this program; use fit_laplace or sample_smc"
    )

"""The linear predictor among the quantities of a Stan program, and its design."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.factors.quantities import Quantities, Refusal, random_points

__all__ = ["Predictor", "find_predictor"]


class Predictor(NamedTuple):
    """A quantity that is affine in the free coordinates: its name, ``(n, dim)`` rows and ``(n,)`` offsets."""

    name: str
    design: Array
    offset: Array


def find_predictor(program: Quantities, name: str | None) -> Predictor:
    """The predictor named, or the only quantity that can be it; parameters are looked at where there is no other."""
    sized = [v for v in program.variables if v != "log_lik" and program.variables[v].columns.size == program.n]
    if name is not None:
        if name not in sized:
            raise ModelError(
                f"{program.label}: predictor={name!r} is no quantity with {program.n} elements, as log_lik has; those "
                f"that have: {', '.join(sized) or 'none'}"
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
    """A quantity as an affine function of the free coordinates, checked at random points."""
    dim, eye = program.dim, np.eye(program.dim)
    base = 0.5 * np.random.default_rng(3).standard_normal((1, dim))
    points = np.concatenate([np.zeros((1, dim)), eye, base, base + eye, base + 2 * eye])
    [values] = program.values(points, name)
    offset, design = values[0], values[1 : dim + 1] - values[0]
    once, twice = np.split(values[dim + 2 :] - values[dim + 1], 2)
    size = 1 + np.abs(values).max()
    bent = ~(np.abs(twice - 2 * once).max(axis=1) <= 1e-9 * size)
    if bent.any():
        j = int(np.argmax(bent))
        raise program.refuse(f"{name} is not affine in {program.names[j]}", j)
    x = random_points(dim, 0)
    [values] = program.values(x, name)
    error = np.abs(values - (x @ design + offset))
    if not (error <= 1e-9 * (size + np.abs(values))).all():
        raise ModelError(
            f"{program.label}: {name} is not affine in the unconstrained parameters together (differs by "
            f"{np.nanmax(error):.2g}), so EP does not apply to this program; use fit_laplace or sample_smc"
        )
    if not np.abs(design).any():
        raise ModelError(f"{program.label}: {name} does not depend on the parameters")
    return Predictor(name, np.where(np.abs(design) < 1e-14 * size, 0.0, design).T, offset)

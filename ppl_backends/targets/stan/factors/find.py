"""The factors of a Stan program, nominated by name and assembled as in :mod:`ppl_backends.targets.factors.finder`.

The program must name two of its quantities. A *predictor*, a transformed parameter or generated quantity with one
element for each observation, is affine in the unconstrained parameters. ``log_lik`` is the log likelihood of each
observation: points moved along θ give every site's function at any value of its predictor.

The density minus ``log_lik`` is the prior. Coordinates in which it is quadratic form the Gaussian part, which comes
from second differences. Any other coordinate must be independent of all others, and becomes a site along itself. A
coordinate that violates this, such as the log of a scale, is held as a hyper-parameter. At most six are held.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors import Factors
from ppl_backends.targets.factors.finder import (
    ConditionalFactors,
    GaussianPart,
    Refusal,
    SiteGroup,
    assemble,
    complete_gaussian,
    find_with_fewest_given,
)
from ppl_backends.targets.factors.proof import constant_and_error
from ppl_backends.targets.factors.recognise import Recognised, recognise
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.compiled import CompiledProgram
from ppl_backends.targets.stan.factors.quantities import (
    POINTS,
    TOLERANCE,
    Predictor,
    Quantities,
    find_predictor,
    random_points,
)
from ppl_backends.targets.stan.factors.sites import likelihood_sites, prove_sites
from ppl_backends.targets.stan.split import ProgramSplit

MOST_HELD = 6
ROUNDING = 1e-11  # of differences, relative to the values


def find_factors(target: CompiledProgram, split: ProgramSplit, predictor: str | None = None) -> Factors | StanFactors:
    """Return the factors of a Stan program with data, as a function of hyper-parameters if it has any."""
    refusals: list[ModelError] = []

    def analyse(held: frozenset[int]) -> tuple[StanFactors, Factors]:
        factors = StanFactors(target, split, predictor, np.array(sorted(held), dtype=int))
        return factors, factors.at(factors.start)

    def nominate(held: frozenset[int], refusal: Refusal) -> frozenset[int]:
        refusals.append(refusal)
        if len(held) == min(MOST_HELD, target.dim - 1):
            raise refusal
        return held | {refusal.coordinate}

    try:
        held, (factors, given) = find_with_fewest_given(analyse, nominate)
    except ModelError as error:
        raise [*refusals, error][0] from None
    return factors if held else given


class StanFactors(ConditionalFactors):
    """The factors of a Stan program given the coordinates ``held``; their constant includes the prior density of those."""

    def __init__(self, target: CompiledProgram, split: ProgramSplit, predictor: str | None, held: Any) -> None:
        super().__init__(target.names, np.sort(held), np.zeros(len(held)))
        self._target, self._split, self._predictor = target, split, predictor
        self._likelihood: tuple[Recognised, Array] | None = None

    def __repr__(self) -> str:
        return f"StanFactors({self._target.label!r}, given {', '.join(self.hyper_names)})"

    def _given(self, x: Array) -> Factors:
        program = Quantities(self._target, self._split, self.hyper_coordinates, x[self.hyper_coordinates])
        likelihood = self._sites_at(program, find_predictor(program, self._predictor))
        gaussian, prior_sites = read_prior(program)
        return _proved(program, assemble(gaussian, [likelihood, *prior_sites], names=program.names))

    def _sites_at(self, program: Quantities, found: Predictor) -> SiteGroup:
        """Return the sites of the likelihood; those of another φ if they are still valid."""
        if self._likelihood is not None:
            known, offset = self._likelihood
            sites = SiteGroup.of_known(known, found.design, found.offset - offset, True)
            with suppress(ModelError):
                prove_sites(program, found, sites)
                return sites
        known = likelihood_sites(program, found)
        sites = SiteGroup.of_known(known, found.design, np.zeros(program.n), True)
        prove_sites(program, found, sites)
        self._likelihood = known, found.offset
        return sites


def _proved(program: Quantities, factors: Factors) -> Factors:
    """Return the factors with their constant, if they equal the program's log density at random points."""
    points, gaussian = random_points(program.dim, 2), factors.prior
    if gaussian.proper:
        points = np.concatenate([points, gaussian.sample(2 * POINTS, np.random.default_rng(2))])
    constant, spread, error = constant_and_error(factors, points, program.log_density(points), TOLERANCE)
    if not error <= 1:
        raise ModelError(
            f"{program.label}: the factors found differ from the program's log density by up to {spread:.2g}, so EP does not "
            "apply to this program; use fit_laplace or sample_smc"
        )
    factors.log_constant = constant
    return factors


def read_prior(program: Quantities) -> tuple[GaussianPart, list[SiteGroup]]:
    """Return the Gaussian part, and sites along coordinates."""
    dim, origin = program.dim, program.log_prior(np.zeros((1, program.dim)))[0]
    if not np.isfinite(origin):
        raise ModelError(f"{program.label}: the prior is not finite at the origin of the unconstrained parameters")
    precision, slope = np.zeros((dim, dim)), np.zeros(dim)
    sites: dict[int, SiteGroup] = {}
    steps = np.array([_step(program, j, origin) for j in range(dim)])
    for j in range(dim):
        s = steps[j] * np.array([-2.0, -1.0, 1.0, 2.0])
        line = program.log_prior(s[:, None] * np.eye(dim)[j]) - origin
        second = (line[1] + line[2]) / steps[j] ** 2
        first = (line[2] - line[1]) / (2 * steps[j])
        size = 1 + np.abs(line) + abs(origin)
        if (np.abs(first * s + 0.5 * second * s**2 - line) <= TOLERANCE * size).all():
            flat = abs(second) * steps[j] ** 2 <= ROUNDING * size.max()
            precision[j, j], slope[j] = 0.0 if flat else -second, first
            continue
        known = recognise(lambda s, j=j: program.log_prior(s * np.eye(dim)[j])[:, None] - origin, 1)  # type: ignore[misc]
        if known is None:
            said = (
                f"the prior of {program.names[j]} is neither Gaussian nor of another known family along its coordinate"
            )
            raise program.refuse(said, j)
        sites[j] = SiteGroup.of_known(known, np.eye(dim)[j : j + 1], np.zeros(1), False)
    _couple(program, precision, steps, origin, set(sites))
    return complete_gaussian(origin, slope, precision), list(sites.values())


def _step(program: Quantities, j: int, origin: float) -> float:
    """Return a step along a coordinate over which the log prior changes by about one, or 1 if it is flat."""
    sizes = 10.0 ** np.arange(-4, 5)
    change = np.abs(
        program.log_prior(np.concatenate([sizes, -sizes])[:, None] * np.eye(program.dim)[j]) - origin
    ).reshape(2, -1)
    change = np.where(np.isfinite(change), change, np.inf).max(axis=0)
    large = np.flatnonzero(change > 0.1)
    return float(sizes[large[0]]) if len(large) else 1.0


def _couple(program: Quantities, precision: Array, steps: Array, origin: float, alone: set[int]) -> None:
    """Fill in the precision off the diagonal; entries of a coordinate with its own site must be zero."""
    mixed = (
        _mixed_by_gradients(program, steps) if program.has_prior_gradient else _mixed_by_values(program, steps, origin)
    )
    np.fill_diagonal(mixed, 0.0)
    for j, k in np.argwhere(np.triu(mixed)):
        if j in alone or k in alone:
            said = (
                f"the priors of {program.names[j]} and {program.names[k]} are neither Gaussian together nor independent"
            )
            raise program.refuse(said, int(k if k in alone else j))
    precision -= mixed


def _mixed_by_gradients(program: Quantities, steps: Array) -> Array:
    """Return mixed second derivatives ``(dim, dim)`` from one gradient per coordinate; zero within rounding."""
    at_zero, moved = np.split(program.prior_gradient(np.concatenate([np.zeros((1, program.dim)), np.diag(steps)])), [1])
    mixed = (moved - at_zero) / steps[:, None]
    size = ROUNDING * (1 + np.abs(moved).max(axis=1) + np.abs(at_zero).max()) / steps
    return np.where(np.abs(mixed) + np.abs(mixed.T) <= size[:, None] + size, 0.0, 0.5 * (mixed + mixed.T))


def _mixed_by_values(program: Quantities, steps: Array, origin: float) -> Array:
    """Return the same from differences of values, for each pair of coordinates."""
    dim = program.dim
    single = program.log_prior(np.diag(steps))
    mixed = np.zeros((dim, dim))
    for j in range(dim - 1):
        others = np.arange(j + 1, dim)
        points = np.diag(steps)[others]
        points[:, j] = steps[j]
        both = program.log_prior(points)
        found = both - single[others] - single[j] + origin
        found = np.where(np.abs(found) <= ROUNDING * (1 + np.abs(both) + abs(origin)), 0.0, found)
        mixed[j, others] = mixed[others, j] = found / (steps[j] * steps[others])
    return mixed

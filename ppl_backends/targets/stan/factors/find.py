"""The factors of a Stan program, read off what it computes: p(θ, y) = exp(c) · N(θ; m₀, Q₀⁻¹) · ∏ᵢ tᵢ(aᵢᵀθ + bᵢ).

The program has to name two of its quantities. A *predictor*, a transformed parameter or generated quantity with one
element for each observation, is affine in the unconstrained parameters: its values at the unit vectors are the design.
``log_lik`` holds the log likelihood of each observation: at points moved along θ it gives every site's function at any
value of its own predictor. A known family is recognised by its values; other sites are tabulated.

What the density has beside ``log_lik`` is the prior. Coordinates in which it is quadratic form the Gaussian part, read
off second differences. Any other coordinate has to be independent of all others, and becomes a site along itself.

A coordinate that is in the way of all this, such as the log of a scale, is held: a hyper-parameter φ, given which the
rest factorises. At most six are.

Nothing of this is taken on trust: at every φ the factors together have to equal the program's log density at random
points, to 1e-8 of its size, or the program is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors import Factors, ScaledSites, SiteFamily
from ppl_backends.targets.factors.finder import ConditionalFactors, SiteGroup, assemble
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.compiled import CompiledProgram
from ppl_backends.targets.stan.factors.predictor import Predictor, find_predictor
from ppl_backends.targets.stan.factors.prior import read_prior
from ppl_backends.targets.stan.factors.quantities import POINTS, TOLERANCE, Quantities, Refusal, random_points
from ppl_backends.targets.stan.factors.sites import likelihood_sites, prove_sites
from ppl_backends.targets.stan.split import ProgramSplit

__all__ = ["StanFactors", "find_factors"]

MOST_HELD = 6


def find_factors(target: CompiledProgram, split: ProgramSplit, predictor: str | None = None) -> Factors | StanFactors:
    """The factors of a Stan program with data, as a function of hyper-parameters where it has any.

    Parameters
    ----------
    target : CompiledProgram
    split : ProgramSplit
    predictor : str, optional
        The quantity that the observations see the parameters through; guessed where only one can be.

    Returns
    -------
    Factors or StanFactors

    Raises
    ------
    ModelError
        If the program has no ``log_lik`` or no predictor, or does not factorise; names the variable in the way.
    """
    held: list[int] = []
    first: Refusal | None = None
    while True:
        factors = StanFactors(target, split, predictor, np.array(held, dtype=int))
        try:
            given = factors.at(factors.start)
        except Refusal as refusal:
            first = first or refusal
            held.append(refusal.coordinate)
            if len(held) > min(MOST_HELD, target.dim - 1):
                raise first from None
        except ModelError as error:
            raise first or error from None
        else:
            return factors if held else given


class StanFactors(ConditionalFactors):
    """The factors of a Stan program given the coordinates ``held``; their constant holds the prior density of those."""

    def __init__(self, target: CompiledProgram, split: ProgramSplit, predictor: str | None, held: Any) -> None:
        super().__init__(target.names, np.sort(held), np.zeros(len(held)))
        self._target, self._split, self._predictor = target, split, predictor
        self._likelihood: tuple[SiteFamily, Array, Array, Array] | None = None

    def __repr__(self) -> str:
        return f"StanFactors({self._target.label!r}, given {', '.join(self.hyper_names)})"

    def _given(self, x: Array) -> Factors:
        program = Quantities(self._target, self._split, self.hyper_coordinates, x[self.hyper_coordinates])
        likelihood = self._sites_at(program, find_predictor(program, self._predictor))
        gaussian, prior_sites = read_prior(program)
        return _proved(program, assemble(gaussian, [likelihood, *prior_sites], names=program.names))

    def _sites_at(self, program: Quantities, found: Predictor) -> SiteGroup:
        """The sites of the likelihood: those of another φ where they still hold."""
        if self._likelihood is not None:
            family, scale, shift, offset = self._likelihood
            moved = found.design * scale[:, None], shift + scale * (found.offset - offset)
            try:
                prove_sites(program, found, family, *moved)
            except ModelError:
                pass
            else:
                return SiteGroup(moved[0], moved[1], family, True)
        sites, scale, shift, constant = likelihood_sites(program, found)
        family, scale = ScaledSites(sites, constant) if np.any(constant) else sites, np.broadcast_to(scale, program.n)
        design = found.design * scale[:, None]
        prove_sites(program, found, family, design, shift)
        self._likelihood = family, scale, shift, found.offset
        return SiteGroup(design, shift, family, True)


def _proved(program: Quantities, factors: Factors) -> Factors:
    """The factors with their constant, if they equal the program's log density at random points."""
    points, gaussian = random_points(program.dim, 2), factors.prior
    if gaussian.proper:
        points = np.concatenate([points, gaussian.sample(2 * POINTS, np.random.default_rng(2))])
    truth, found = program.log_density(points), factors.log_density(points)
    usable = np.isfinite(truth)
    gap = (truth - found)[usable]
    constant = float(np.median(gap)) if usable.any() else np.nan
    size = 1 + np.abs(truth[usable]) + np.abs(found[usable])
    if not (np.abs(gap - constant) <= TOLERANCE * size).all():
        raise ModelError(
            f"{program.label}: the factors found differ from the program's log density by up to "
            f"{np.nanmax(np.abs(gap - constant)):.2g}, so EP does not apply to this program; use fit_laplace or sample_smc"
        )
    factors.log_constant = constant
    return factors

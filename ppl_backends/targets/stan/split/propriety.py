"""Check whether the prior of a Stan program is proper, from its statements, without compilation.

A parameter with an unbounded range has a flat prior if no statement of the prior mentions it, or only densities of
other unbounded parameters given it do, such as those of group effects given their mean. Conversely, a prior is proper
if every parameter is bounded, or is once and as a whole the outcome of a density of the Stan library whose other
arguments are data and parameters already known to be proper. Other cases need an evaluation of the prior
(:mod:`ppl_backends.targets.propriety`).
"""

from __future__ import annotations

from typing import NamedTuple

from ppl_backends.targets.stan.split.dataflow import Term
from ppl_backends.targets.stan.split.derivation import LIKELIHOOD, Derivation

_BOUNDED = {"LowerUpper", "Simplex", "UnitVector", "Correlation", "CholeskyCorr", "StochasticRow", "StochasticColumn"}
_UNBOUNDED = {"Identity", "Lower", "Upper", "Ordered", "PositiveOrdered", "Covariance", "CholeskyCov"}
_UNBOUNDED |= {"Offset", "Multiplier", "OffsetMultiplier"}


class Propriety(NamedTuple):
    """The parameter along which a prior is improper, or None if it is proper.

    It is ``missing_data`` if it stands beside data in the outcome of a density of the likelihood. This density integrates to
    one over both, so the evidence is that of the data, although the parameter has no prior.
    """

    improper: str | None
    missing_data: bool = False


def stated_propriety(derivation: Derivation) -> Propriety | None:
    """Return whether a program's prior is proper by its statements; None if they do not determine it."""
    ranges = derivation.flow.parameter_ranges
    kept = _kept(derivation)
    once = {name for name, kind in ranges.items() if kind in _UNBOUNDED and _mentions(kept, name) == 1}
    restricted = frozenset[str]().union(*(_restricted(term, once) for term in kept))
    flat = [name for name, kind in ranges.items() if kind in _UNBOUNDED and name not in restricted]
    if flat:
        missing = _missing_data(derivation)
        without = [name for name in flat if name not in missing]
        return Propriety(without[0]) if without else Propriety(flat[0], missing_data=True)
    proper = {name for name, kind in ranges.items() if kind in _BOUNDED}
    waiting = [term for term in kept if term.flow.parameters]
    if len({term.outcome for term in waiting}) < len(waiting):
        return None
    while waiting:
        ready = [term for term in waiting if _follows(term, proper)]
        if not ready:
            return None
        proper.add(ready[0].outcome)
        waiting.remove(ready[0])
    return Propriety(None) if proper == set(ranges) else None


def _kept(derivation: Derivation) -> list[Term]:
    """Return the terms of the prior, without those that only normalise a truncation."""
    return [
        term
        for number, classes in derivation.classes.items()
        for position, (term, kind) in enumerate(zip(derivation.flow.terms[number], classes, strict=True))
        if kind != LIKELIHOOD and not (position and derivation.statements[number].kind == "tilde")
    ]


def _missing_data(derivation: Derivation) -> frozenset[str]:
    """Return the parameters that stand beside data in the outcome of a density of the likelihood, and behind no bar."""
    terms = [
        (term, kind)
        for number, classes in derivation.classes.items()
        for term, kind in zip(derivation.flow.terms[number], classes, strict=True)
    ]
    densities = [(density, kind) for term, kind in terms for density in term.flow.densities]
    beside = [
        d.variate_parameters for d, kind in densities if kind == LIKELIHOOD and d.variate_data and not d.cumulative
    ]
    behind = [d.parameters for d, _ in densities]
    return frozenset[str]().union(*beside) - frozenset[str]().union(*behind)


def _mentions(kept: list[Term], name: str) -> int:
    """Return the number of terms with a parameter in the outcome of a density, or outside of any density."""
    given = [
        frozenset[str]().union(*(d.parameters - d.variate_parameters for d in term.flow.densities)) for term in kept
    ]
    return sum(name in term.flow.parameters - behind for term, behind in zip(kept, given, strict=True))


def _restricted(term: Term, once: set[str]) -> frozenset[str]:
    """Return the parameters whose range a term restricts: all it depends on, except those on which a density is conditioned.

    The density of a parameter integrates to one (to the mass above a bound) for any values of these, unless other
    terms weight the same parameter.
    """
    if term.outcome not in once or len(term.flow.densities) != 1:
        return term.flow.parameters
    (density,) = term.flow.densities
    return density.variate_parameters


def _follows(term: Term, proper: set[str]) -> bool:
    """Return whether a term is the density of a whole parameter given proper ones."""
    if not term.outcome or term.loops or len(term.flow.densities) != 1:
        return False
    (density,) = term.flow.densities
    own = density.variate_parameters == {term.outcome} and not density.variate_data and not density.cumulative
    return own and density.parameters <= proper and term.flow.parameters <= proper | {term.outcome}

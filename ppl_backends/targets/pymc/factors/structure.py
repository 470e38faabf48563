"""Which variables have to be given, and what every term is then: constant, Gaussian, or sites of one scalar each."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.pymc.factors.affine import Labels, label
from ppl_backends.targets.pymc.factors.cuts import cuts
from ppl_backends.targets.pymc.factors.graph import Term, TermGraph
from ppl_backends.targets.pymc.factors.terms import SiteTerm

__all__ = ["MAX_HYPER", "Refusal", "Structure", "find_structure"]

MAX_HYPER = 6
MAX_CUTS = 6  # of one term that are tried


class Structure(NamedTuple):
    """A factorisation given the value variables ``held``.

    Attributes
    ----------
    held : frozenset of str
    constant, gaussian : list of Term
    sites : list of SiteTerm
    normal : list of SiteTerm
        Normal observations among the Gaussian terms.
    """

    held: frozenset[str]
    constant: list[Term]
    gaussian: list[Term]
    sites: list[SiteTerm]
    normal: list[SiteTerm]


class Refusal(NamedTuple):
    """The term that is in the way, what it depends on, and how many scalars at once one of its elements reads."""

    term: str
    variables: tuple[str, ...]
    rank: int

    def __str__(self) -> str:
        many = f"{self.rank} scalars at once" if self.rank else "more than one scalar at once"
        return f"the log density of '{self.term}' depends nonlinearly on {many}, of {', '.join(self.variables)}"


def find_structure(graph: TermGraph, rng: np.random.Generator, max_hyper: int = MAX_HYPER) -> Structure:
    """Return the factorisation with the fewest variables given, found on a sample of the rows where there are many."""
    sample, whole = graph.sampled(rng)
    found = _fewest_held(sample, rng, max_hyper)
    if sample is graph:
        return found
    term_of = {few.value: term for few, term in zip(sample.terms, graph.terms, strict=True)}

    def sites(each: list[SiteTerm]) -> list[SiteTerm]:
        return [
            one
            if term_of[one.term.value] is one.term
            else SiteTerm(graph, term_of[one.term.value], [whole.get(v, v) for v in one.cut], found.held, rng, one)
            for one in each
        ]

    constant, gaussian = ([term_of[term.value] for term in terms] for terms in (found.constant, found.gaussian))
    return Structure(found.held, constant, gaussian, sites(found.sites), sites(found.normal))


def _fewest_held(graph: TermGraph, rng: np.random.Generator, max_hyper: int) -> Structure:
    """The factorisation with the fewest variables given.

    If none need be given, that is it. Otherwise those of few coordinates are, and are let go again one after another,
    the largest first and those with a transform (scales, mostly) last, as long as the terms allow it.

    Raises
    ------
    ModelError
        Names the term in the way and the variables that it depends on.
    """
    found = _analyse(graph, frozenset(), rng)
    if isinstance(found, Structure):
        return found
    small = [name for name in graph.values if 0 < graph.size({name}) <= max_hyper]
    if not small:
        raise ModelError(f"no factors with one linear predictor each: {found}")
    transformed = [name for name in small if name not in {term.name for term in graph.terms}]
    refusal, best = found, None
    for held in dict.fromkeys([frozenset(transformed), frozenset(small)]):
        attempt = _analyse(graph, held, rng)
        if isinstance(attempt, Structure) or held == frozenset(graph.values):
            best = attempt
            break
        refusal = attempt
    if best is None:
        raise ModelError(f"no factors with one linear predictor each: {refusal}")
    for name in sorted(held, key=lambda name: (-graph.size({name}), name in transformed)):
        attempt = _analyse(graph, held - {name}, rng)
        if isinstance(attempt, Structure):
            best, held = attempt, held - {name}
    if not isinstance(best, Structure):
        raise ModelError(f"no factors with one linear predictor each: {found}")
    if graph.size(held) > max_hyper:
        raise ModelError(
            f"factors would depend on {graph.size(held)} hyper-parameters ({', '.join(sorted(held))}), more than "
            f"{max_hyper}: {found}"
        )
    return best


def _analyse(graph: TermGraph, held: frozenset[str], rng: np.random.Generator) -> Structure | Refusal:
    """What every term is if the variables ``held`` are given, or the first term that is in the way."""
    if held == frozenset(graph.values):
        return Refusal(graph.terms[-1].name, tuple(graph.values), 0)
    labels, moving = label(graph, held, rng), graph.moving(held)
    structure = Structure(held, [], [], [], [])
    quadratic = [term for term, yes in zip(graph.terms, labels.quadratic, strict=True) if yes]
    # The likelihood first: that is where most models are refused.
    for k in sorted(range(len(graph.terms)), key=lambda k: graph.terms[k].prior_of is not None):
        term = graph.terms[k]
        if term.value not in moving:
            structure.constant.append(term)
        elif labels.quadratic[k] and term.prior_of is not None:
            structure.gaussian.append(term)
        else:
            sites = _sites(graph, term, held, labels, rng)
            if isinstance(sites, SiteTerm):
                structure.sites.append(sites)
            elif labels.quadratic[k]:
                structure.gaussian.append(term)
            else:
                return sites
    return _with_gaussian_likelihood(structure, quadratic)


def _with_gaussian_likelihood(structure: Structure, quadratic: list[Term]) -> Structure:
    """Quadratic terms of the likelihood are sites where all sites are quadratic: EP is exact, and leaves each out.

    Beside other sites they join the Gaussian part: a site of negative precision could make their cavities improper.
    """
    normal = [sites for sites in structure.sites if any(sites.term.value is term.value for term in quadratic)]
    if len(normal) == len(structure.sites):
        return structure
    others = [sites for sites in structure.sites if sites not in normal]
    gaussian = [*structure.gaussian, *(sites.term for sites in normal)]
    return structure._replace(gaussian=gaussian, sites=others, normal=normal)


def _sites(
    graph: TermGraph, term: Term, held: Set[str], labels: Labels, rng: np.random.Generator
) -> SiteTerm | Refusal:
    """The sites of a term by the first of its cuts whose groups see one scalar each."""
    moving = graph.moving(held)
    leaves = {v for name, v in graph.values.items() if name not in held}
    hyper = graph.coordinates(held)
    rank, tried = 10**9, list(cuts(term.value, labels.affine, moving, leaves))
    for cut in tried[: MAX_CUTS - 1] + tried[MAX_CUTS - 1 :][-1:]:
        sites = SiteTerm(graph, term, cut, held, rng)
        if sites.grouping is None or not sites.grouping.n_sites:
            continue
        x = graph.start.copy()
        x[hyper] += rng.normal(size=len(hyper))
        found = sites.geometry(x).rank
        if found == 1:
            return sites
        rank = min(rank, found)
    names = tuple(name for name in graph.values if name not in held and graph.depends([term.value], {name}))
    return Refusal(term.name, names, 0 if rank == 10**9 else rank)

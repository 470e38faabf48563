"""Structure of terms: variables that must be given, and the resulting kind of every term: constant, Gaussian, or sites.

Differences at distances from .3 to 3e4 from the origin find which quantities are affine and which terms are quadratic.
They use the effect of an operation, not its name. A term is cut from the parameters at affine quantities through which
it exclusively depends on them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Set
from functools import partial
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Variable

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors.finder import Refusal, find_with_fewest_given
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.factors.graph import PointFunction, Term, TermGraph
from ppl_backends.targets.pymc.factors.terms import SiteTerm
from ppl_backends.targets.pymc.matching import sums_of_exponentials

MAX_HYPER = 6
MAX_CUTS = 6  # largest number of cuts of one term that are tried


class Structure(NamedTuple):
    """A factorisation given the value variables ``held``."""

    held: frozenset[str]
    constant: list[Term]
    gaussian: list[Term]
    sites: list[SiteTerm]
    normal: list[SiteTerm]  # normal observations among the Gaussian terms


def find_structure(graph: TermGraph, rng: np.random.Generator, max_hyper: int = MAX_HYPER) -> Structure:
    """Return the factorisation with the fewest given variables, found on a sample of the rows if there are many."""
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
    """Return the factorisation with the fewest given variables.

    If none need be given, that is the result. Otherwise variables with few coordinates are given first, and released
    again one after another, the largest first and those with a transform (mostly scales) last, as long as the terms
    allow it.
    """
    small = [name for name in graph.values if 0 < graph.size({name}) <= max_hyper]
    transformed = [name for name in small if name not in {term.name for term in graph.terms}]
    nominated = iter(dict.fromkeys([frozenset(transformed), frozenset(small)]) if small else ())
    refusals: list[Refusal] = []

    def nominate(held: frozenset[str], refusal: Refusal) -> frozenset[str]:
        refusals.append(refusal)
        following = next(nominated, None)
        if following is None:
            raise ModelError(f"no factors with one linear predictor each: {refusal}")
        return following

    held, found = find_with_fewest_given(
        lambda held: _analyse(graph, held, rng),
        nominate,
        lambda held: sorted(held, key=lambda name: (-graph.size({name}), name in transformed, small.index(name))),
    )
    if found is None:
        raise ModelError(f"no factors with one linear predictor each: {refusals[0]}")
    if held & graph.truncated:
        raise ModelError(
            f"EP would treat {', '.join(sorted(held & graph.truncated))}, coordinates of a truncated vector, as "
            "hyper-parameters, which is not accurate"
        )
    if graph.size(held) > max_hyper:
        raise ModelError(
            f"factors would depend on {graph.size(held)} hyper-parameters ({', '.join(sorted(held))}), more than "
            f"{max_hyper}: {refusals[0]}"
        )
    return found


def _analyse(graph: TermGraph, held: frozenset[str], rng: np.random.Generator) -> Structure | None:
    """Return the structure of every term given the variables ``held``; None if these are all variables."""
    if held == frozenset(graph.values):
        return None
    labels, moving = label(graph, held, rng), graph.moving(held)
    labels = labels._replace(quadratic=_without_mixtures(graph, labels.quadratic))
    structure = Structure(held, [], [], [], [])
    quadratic = [term for term, yes in zip(graph.terms, labels.quadratic, strict=True) if yes]
    # The likelihood first, because most models without factors fail there.
    for k in sorted(range(len(graph.terms)), key=lambda k: graph.terms[k].prior_of is not None):
        term = graph.terms[k]
        if term.value not in moving:
            structure.constant.append(term)
        elif labels.quadratic[k] and term.prior_of is not None:
            structure.gaussian.append(term)
        else:
            try:
                structure.sites.append(_sites(graph, term, held, labels, rng))
            except Refusal:
                if not labels.quadratic[k]:
                    raise
                structure.gaussian.append(term)
    return _with_gaussian_likelihood(structure, quadratic)


def _without_mixtures(graph: TermGraph, quadratic: list[bool]) -> list[bool]:
    """Return which terms are quadratic, without those that contain sums of exponentials.

    For a mixture of normals with narrow spikes, the evaluated points show only the slab.
    """
    sums = [any(True for _ in sums_of_exponentials(term.value)) for term in graph.terms]
    return [yes and not sums_up for yes, sums_up in zip(quadratic, sums, strict=True)]


def _with_gaussian_likelihood(structure: Structure, quadratic: list[Term]) -> Structure:
    """Make quadratic terms of the likelihood sites if all sites are quadratic: EP is then exact, and can leave each out.

    With other sites they join the Gaussian part, because a site of negative precision could make their cavities improper.
    """
    normal = [sites for sites in structure.sites if any(sites.term.value is term.value for term in quadratic)]
    if len(normal) == len(structure.sites):
        return structure
    others = [sites for sites in structure.sites if sites not in normal]
    gaussian = [*structure.gaussian, *(sites.term for sites in normal)]
    return structure._replace(gaussian=gaussian, sites=others, normal=normal)


def _sites(graph: TermGraph, term: Term, held: Set[str], labels: Labels, rng: np.random.Generator) -> SiteTerm:
    """Return the sites of a term by the first of its cuts whose groups depend on one scalar each."""
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
    names = (name for name in graph.values if name not in held and graph.depends([term.value], {name}))
    many = "more than one scalar at once" if rank == 10**9 else f"{rank} scalars at once"
    raise Refusal(f"the log density of '{term.name}' depends nonlinearly on {many}, of {', '.join(names)}")


def cuts(
    term: Variable, affine: Set[Variable], moving: Set[Variable], leaves: Set[Variable]
) -> Iterator[list[Variable]]:
    """Return cuts of one term, those of a single quantity first, nearest to the term first.

    The last one is the set of all affine quantities that a nonlinear operation reads. It is only tried if no single
    quantity works, because a branch of a switch that was not taken can hide its dependence.
    """
    order, _ = _walk(term, moving, lambda v: False)
    for candidate in order:
        if candidate in affine:
            reached, _ = _walk(term, moving, partial(operator.is_, candidate))
            if not any(v in leaves and v is not candidate for v in reached):
                yield [candidate]
    _, frontier = _walk(term, moving, lambda v: v in affine)
    if len(frontier) > 1:
        yield frontier


def _walk(
    term: Variable, moving: Set[Variable], stop: Callable[[Variable], bool]
) -> tuple[list[Variable], list[Variable]]:
    """Return the moving quantities from the term downwards, breadth first, and those at which the walk stopped."""
    seen, stopped, queue = {term: None}, [], [term]
    for variable in queue:  # grows during the loop
        if stop(variable):
            stopped.append(variable)
        elif variable.owner is not None:
            for above in variable.owner.inputs:
                if above in moving and above not in seen:
                    seen[above] = None
                    queue.append(above)
    return queue, stopped


SCALES = (0.3, 3.0, 30.0, 3e4)  # far out a normal density of any scale is clearly not a straight line
TOLERANCE = 1e-9


class Labels(NamedTuple):
    """Labels of affine and quadratic quantities."""

    affine: set[Variable]
    quadratic: list[bool]  # one for each term


def label(graph: TermGraph, held: Set[str], rng: np.random.Generator) -> Labels:
    """Return the affine quantities and quadratic terms, given random values of the variables ``held``."""
    moving = graph.moving(held)
    inputs = [v for name, v in graph.values.items() if name not in held]
    inner = [v for node in graph.nodes for v in node.outputs if v in moving and _is_float(v)]
    terms = [term.value for term in graph.terms]
    candidates = list(dict.fromkeys([*inputs, *inner]))
    evaluate = PointFunction(graph, held, [*candidates, *terms])
    still, fixed = np.zeros(graph.dim, bool), graph.coordinates(held)
    still[fixed] = True
    affine, quadratic = np.ones(len(candidates), bool), np.ones(len(terms), bool)
    for scale in SCALES:
        origin = np.where(still, graph.start + rng.normal(size=graph.dim), 0.0)
        p, q, r = np.where(still, 0.0, scale * rng.normal(size=(3, graph.dim)))
        steps = np.stack([0 * p, p, q, p + q, -2 * p, r - p, r, r + p, r + 2 * p])
        values = evaluate(origin + steps)
        with np.errstate(all="ignore"):
            affine &= [_is_affine(value[:5]) for value in values[: len(candidates)]]
            quadratic &= [_is_quadratic(value[5:].reshape(4, -1)) for value in values[len(candidates) :]]
    return Labels({v for v, yes in zip(candidates, affine, strict=True) if yes}, list(map(bool, quadratic)))


def _is_float(variable: Variable) -> bool:
    return str(getattr(variable.type, "dtype", "")).startswith("float")


def _is_affine(f: Array) -> bool:
    """Return whether second differences vanish, from finite values at 0, p, q, p + q and −2p."""
    if not np.isfinite(f).all():
        return False
    size = np.abs(f).sum(axis=0)
    tolerance = TOLERANCE * (size + size.max(initial=0.0) + 1e-30)
    mixed = np.abs(f[3] - f[1] - f[2] + f[0])
    straight = np.abs(f[4] + 2 * f[1] - 3 * f[0])
    return bool(np.all(mixed <= tolerance) and np.all(straight <= tolerance))


def _is_quadratic(f: Array) -> bool:
    """Return whether the third difference of the sum vanishes, from values at r − p, r, r + p and r + 2p."""
    total = f.sum(axis=1)
    third = total[3] - 3 * total[2] + 3 * total[1] - total[0]
    return bool(np.abs(third) <= TOLERANCE * np.abs(f).sum() + 1e-12)

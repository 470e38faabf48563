"""Separate the log density of a Stan program into log prior and log likelihood.

A Stan program is one sum of increments. Tempering from the prior, power posteriors and Gibbs posteriors need the prior
as a second density over the same parameters; the likelihood is the difference. In order of preference:

``prior_only``
    the program has an integer data variable of that name (the convention of brms): same library, with the flag set.
``no_observations``
    the same library on data without rows: the integers that count the observations are 0, and arrays of these sizes are
    empty, if the program allows it.
``lprior``, ``derived``
    a second program without the likelihood statements, which :mod:`ppl_backends.targets.stan.split.derivation` finds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.split.dataflow import Program
from ppl_backends.targets.stan.split.derivation import LIKELIHOOD, Derivation, derive, require_data
from ppl_backends.targets.stan.split.mir import variables


@dataclasses.dataclass(frozen=True)
class Split:
    """A way to evaluate the prior of a program."""

    route: str  # ``"prior_only"``, ``"no_observations"``, ``"lprior"`` or ``"derived"``; see the module docstring
    description: str  # one line for the user: what counts as prior and what as likelihood
    prior_data: dict[str, Any] | None = None  # data for the prior; None if they are the program's own
    prior_program: str | None = None  # text of the prior-only program; None if the same library is used
    likelihood_data: tuple[str, ...] = ()  # the observed data variables, sorted


def find_split(
    program: StanProgram,
    data: Mapping[str, Any],
    likelihood_data: Sequence[str] | None = None,
    exclude: Collection[str] = (),
) -> Split:
    """Find the split of a program into prior and likelihood."""
    require_data(program, likelihood_data)
    flag = program.info["inputs"].get("prior_only")
    if flag == {"type": "int", "dimensions": 0} and "prior_only" not in exclude:
        return _by_flag(program, data, likelihood_data)
    derived = derive(program, likelihood_data)
    observed = ", ".join(sorted(derived.observed))
    if "no_observations" not in exclude:
        counts = _removable_counts(derived)
        if counts:
            emptied = _emptied(derived.flow, data, counts)
            what = (
                f"prior evaluated on data without observations ({' = '.join(sorted(counts))} = 0); observed: {observed}"
            )
            return Split("no_observations", what, prior_data=emptied, likelihood_data=tuple(sorted(derived.observed)))
    route = "lprior" if "lprior" in derived.flow.accumulators else "derived"
    dropped = "; ".join(" ".join(statement.header.rstrip(";").split()) for statement, _ in derived.likelihood)
    what = f"likelihood derived from the program: {dropped}; observed: {observed}"
    return Split(route, what, prior_program=derived.prior_program(), likelihood_data=tuple(sorted(derived.observed)))


def _by_flag(program: StanProgram, data: Mapping[str, Any], likelihood_data: Sequence[str] | None) -> Split:
    """Return the route of the data flag; the observed data are only used in the checks."""
    try:
        observed = derive(program, likelihood_data).observed
    except ModelError:
        observed = frozenset(likelihood_data or ())
    what = "prior evaluated with the program's data flag prior_only = 1"
    if int(np.asarray(data.get("prior_only", 0))) != 0:
        what += " (as the data have it: the likelihood is left out)"
        observed = frozenset()
    return Split("prior_only", what, {**data, "prior_only": 1}, None, tuple(sorted(observed)))


def _removable_counts(derived: Derivation) -> frozenset[str]:
    """Return data integers that remove exactly the likelihood if they are 0; none if that is not certain."""
    flow = derived.flow
    named = {s[1] for name in derived.observed for s in flow.sizes[name] if s[0] == "Var" and s[1] in flow.kinds}
    counts = frozenset(named) - flow.size_flow.all_data - derived.observed
    emptied = frozenset(name for name, sizes in flow.sizes.items() if variables(sizes) & counts)
    gone = counts | emptied
    touched = flow.transformed_data.all_data.union(*(f.all_data for f in flow.parameter_flow.values()))
    if not counts or touched & gone or not all(_may_be_empty(check, counts, emptied) for check in flow.checks):
        return frozenset()
    if any(flow.kinds[name] == "STuple" or any(_not_plain(s, counts) for s in flow.sizes[name]) for name in emptied):
        return frozenset()
    for number, classes in derived.classes.items():
        for term, kind in zip(flow.terms[number], classes, strict=True):
            if kind != LIKELIHOOD and term.flow.all_data & gone and term.flow.parameters:
                return frozenset()
            outcome = frozenset[str]().union(*(density.variate_data for density in term.flow.densities))
            vanishes = term.loops & counts or (term.direct and term.vectorised and outcome and outcome <= emptied)
            truncation = derived.statements[number].kind == "tilde" and not term.direct
            if kind == LIKELIHOOD and not vanishes and not truncation:
                return frozenset()
    return counts


def _not_plain(size: Any, counts: frozenset[str]) -> bool:
    """Return whether a size is computed from a count, and is not the count itself."""
    return size[0] != "Var" and bool(variables(size) & counts)


def _may_be_empty(check: tuple[str, str, Any], counts: frozenset[str], emptied: frozenset[str]) -> bool:
    """Return whether a declared constraint on data is satisfied if the counts are 0."""
    name, kind, bound = check
    if name in counts:
        literal = bound is not None and bound[0] == "Lit"
        return literal and (int(bound[2]) <= 0 if kind == "Lower" else kind == "Upper" and int(bound[2]) >= 0)
    if name in emptied:
        return kind in ("Lower", "Upper", "LowerUpper")
    return not variables(bound) & (counts | emptied)


def _emptied(flow: Program, data: Mapping[str, Any], counts: frozenset[str]) -> dict[str, Any]:
    """Return the data with the counts set to 0 and arrays of these sizes emptied along those axes."""
    emptied: dict[str, Any] = {}
    for name, value in data.items():
        axes = [axis for axis, size in enumerate(flow.sizes.get(name, ())) if variables(size) & counts]
        if name in counts:
            emptied[name] = 0
        elif axes:
            array = np.asarray(value)
            emptied[name] = np.empty(
                [0 if axis in axes else length for axis, length in enumerate(array.shape)], array.dtype
            )
        else:
            emptied[name] = value
    return emptied

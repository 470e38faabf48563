"""The log density of a Stan program apart: log prior and log likelihood.

A Stan program is one sum of increments. Tempering from the prior, power posteriors and Gibbs posteriors need the prior
alone, as a second density over the same parameters; the likelihood is the difference. In order of preference:

``prior_only``
    the program has an integer data variable of that name (the convention of brms): same library, the flag set.
``no_observations``
    the same library on data with no rows: the integers that count the observations are set to 0 and what they size is
    emptied, where the program allows it.
``lprior``, ``derived``
    a second program without the likelihood statements. Which these are follows from the flow of data through the
    program (:mod:`ppl_backends.targets.stan.dataflow`):

    * *Observed* are the data that are the outcome of some density, the left of ``~`` or in front of the bar, with no
      parameter mixed in; a generated quantity ``log_lik`` says so too.
    * A density whose outcome holds observed data is likelihood. One whose outcome holds parameters alone is prior, and
      data behind its bar (``prior_sd``, coordinates of a Gaussian process) are hyper-parameters.
    * A formula without densities is likelihood if observed data flow into it, prior if no data do.
    * Whatever an accumulator called ``lprior`` collects is prior (the convention of priorsense).

    All else is ambiguous, and refused with the statement and the way out: ``likelihood_data=["y"]`` makes every
    statement into which ``y`` flows likelihood, and every other prior.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.stan.dataflow import Density, Program, Term, read_program
from ppl_backends.targets.stan.mir import variables
from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.statements import CANONICAL, Statement, mark, read_blocks, without

__all__ = ["FORMULA", "PRIOR", "Derivation", "Split", "derive", "find_split"]

LIKELIHOOD, PRIOR, FORMULA, CONSTANT = "likelihood", "prior", "formula without data", "constant"
REPEATED = "formula without data, once for each observation"


@dataclasses.dataclass(frozen=True)
class Split:
    """How the prior of a program is to be evaluated on its own.

    Attributes
    ----------
    route : str
        ``"prior_only"``, ``"no_observations"``, ``"lprior"`` or ``"derived"``; see the module docstring.
    description : str
        One line for the user: what was taken for the prior and what for the likelihood.
    prior_data : dict or None
        Data for the prior; None where they are the program's own.
    prior_program : str or None
        Text of the prior-only program; None where the same library serves.
    likelihood_data : tuple of str
        The observed data variables, sorted.
    """

    route: str
    description: str
    prior_data: dict[str, Any] | None = None
    prior_program: str | None = None
    likelihood_data: tuple[str, ...] = ()


def find_split(
    program: StanProgram,
    data: Mapping[str, Any],
    likelihood_data: Sequence[str] | None = None,
    exclude: Collection[str] = (),
) -> Split:
    """Tell the prior of a program from its likelihood.

    Parameters
    ----------
    program : StanProgram
    data : mapping
        The program's data.
    likelihood_data : sequence of str, optional
        The observed data variables, where the program alone does not tell.
    exclude : collection of str
        Routes not to take, since a check refused them.

    Returns
    -------
    Split

    Raises
    ------
    ModelError
        If the program is ambiguous; the message shows the statement and the way out.

    Examples
    --------
    >>> from ppl_backends.targets.stan.program import StanProgram
    >>> from ppl_backends.targets.stan.split import find_split
    >>> code = '''data { int<lower=0> N; vector[N] y; }
    ... parameters { real mu; }
    ... model { mu ~ normal(0, 1); y ~ normal(mu, 1); }'''
    >>> split = find_split(StanProgram("normal", code), {"N": 2, "y": [0.3, 1.2]})
    >>> split.route, split.likelihood_data, split.prior_data["N"]
    ('no_observations', ('y',), 0)
    """
    _require_data(program, likelihood_data)
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
    """The route of the data flag; which data are observed is a help for the checks only."""
    try:
        observed = derive(program, likelihood_data).observed
    except ModelError:
        observed = frozenset(likelihood_data or ())
    what = "prior evaluated with the program's data flag prior_only = 1"
    if int(np.asarray(data.get("prior_only", 0))) != 0:
        what += " (as the data have it: the likelihood is left out)"
        observed = frozenset()
    return Split("prior_only", what, {**data, "prior_only": 1}, None, tuple(sorted(observed)))


def derive(program: StanProgram, likelihood_data: Sequence[str] | None = None) -> Derivation:
    """The derivation of a program, made once: it asks stanc twice.

    Raises
    ------
    ModelError
        If the program is ambiguous.
    """
    _require_data(program, likelihood_data)
    return _derived(program, None if likelihood_data is None else tuple(likelihood_data))


def _require_data(program: StanProgram, likelihood_data: Sequence[str] | None) -> None:
    """Refuse names of the observed data that the program does not know."""
    unknown = sorted(set(likelihood_data or ()) - set(program.info["inputs"]))
    if unknown:
        names = ", ".join(program.info["inputs"])
        raise ModelError(
            f"{program.label}: likelihood_data names {unknown[0]!r}, which is not a data variable ({names})"
        )


@lru_cache(maxsize=16)
def _derived(program: StanProgram, likelihood_data: tuple[str, ...] | None) -> Derivation:
    return Derivation(program, likelihood_data)


class Derivation:
    """Which statements are likelihood, from the flow of data through the program."""

    def __init__(self, program: StanProgram, likelihood_data: Sequence[str] | None) -> None:
        self.label = program.label
        self.text = program.stanc(*CANONICAL).stdout
        self.blocks = read_blocks(self.text)
        marked = dataclasses.replace(program, code=mark(self.text, self.blocks), include_paths=())
        self.flow: Program = read_program(marked.stanc("--debug-mir").stdout)
        self.told = likelihood_data is not None
        self.statements = {s.number: s for block in self.blocks.values() for top in block.statements for s in top}
        self.observed = frozenset(likelihood_data) if likelihood_data is not None else self._find_observed()
        for name, flow in self.flow.parameter_flow.items():
            if flow.all_data & self.observed:
                raise ModelError(
                    f"{self.label}: the bounds or size of parameter {name} depend on observed data "
                    f"({', '.join(sorted(flow.all_data & self.observed))}), so its prior cannot be told apart; "
                    "start from initial='laplace', which needs no split"
                )
        self.classes = {number: self._classify(number) for number in sorted(self.flow.terms)}
        if not self.likelihood:
            raise ModelError(
                f"{self.label}: no statement has data as its outcome, so there is no likelihood to tell apart; "
                'if one is hidden in a formula, name its data: likelihood_data=["y"]'
            )

    @property
    def likelihood(self) -> list[tuple[Statement, list[str]]]:
        """The statements that hold a likelihood term, and the class of each of their terms."""
        return [(self.statements[n], classes) for n, classes in self.classes.items() if LIKELIHOOD in classes]

    def prior_program(self) -> str:
        """The text of the program without its likelihood."""
        removed, replaced = set(), {}
        for statement, classes in self.likelihood:
            whole = len(set(classes)) == 1 or len(classes) != len(statement.summands)
            pairs = [] if whole else zip(statement.summands, classes, strict=True)
            kept = [f"{sign} {text}" for (sign, text), kind in pairs if kind != LIKELIHOOD]
            if kept or (statement.summands and statement.kind == "declaration"):
                total = " ".join(kept).removeprefix("+ ") or "0"
                replaced[statement.number] = f"{statement.prefix} {total};"
            else:
                removed.add(statement.number)
        return without(self.text, self.blocks, removed, replaced)

    def _find_observed(self) -> frozenset[str]:
        """The data that are the outcome of a density."""
        flows = [
            term.flow
            for number, terms in self.flow.terms.items()
            for term in (terms[:1] if self.statements[number].kind == "tilde" else terms)  # not its truncation
        ]
        if self.flow.log_lik is not None:
            flows.append(self.flow.log_lik)
        densities = {density for flow in flows for density in flow.densities}
        pure = [
            d for d in densities if d.variate_data and not d.variate_parameters and (d.parameters or not d.cumulative)
        ]
        observed = frozenset[str]().union(*(self._proper(d.variate_data) or d.variate_data for d in pure))
        mixed = [self._proper(d.variate_data) for d in densities if d.variate_parameters]
        mixed = [names for names in mixed if names]
        if not observed and mixed:  # residuals, data filled up with parameters: the only candidates
            return frozenset.intersection(*mixed)
        return observed

    def _proper(self, names: frozenset[str]) -> frozenset[str]:
        """Data other than counts and sizes."""
        return names - self.flow.structural

    def _classify(self, number: int) -> list[str]:
        """The class of every term of a statement; one class for all where the statement cannot be taken apart."""
        statement, terms = self.statements[number], self.flow.terms[number]
        if self.flow.collected.get(number) == "lprior" and not self.told:
            return [PRIOR] * len(terms)
        if statement.kind == "tilde":  # the terms beside the density are its truncation
            kind = self._class_of(terms[0], statement)
            if kind == REPEATED and not self.told:
                raise self._repeated(statement, terms)
            return [kind] * len(terms)
        classes = [self._class_of(term, statement) for term in terms]
        if LIKELIHOOD in classes:  # log(w) + normal_lpdf(y[n] | ...) in a loop over n
            classes = [LIKELIHOOD if kind == REPEATED else kind for kind in classes]
        elif REPEATED in classes and not self.told:
            raise self._repeated(statement, terms)
        kinds = set(classes) - {CONSTANT}
        if LIKELIHOOD not in kinds or kinds == {LIKELIHOOD}:
            if LIKELIHOOD in kinds and any(term.called for term in terms):
                self._require_removable(statement)
            return [LIKELIHOOD] * len(terms) if LIKELIHOOD in kinds else classes
        likelihood = [term for term, kind in zip(terms, classes, strict=True) if kind == LIKELIHOOD]
        if kinds == {LIKELIHOOD, FORMULA} and not any(term.flow.densities for term in likelihood):
            return [LIKELIHOOD] * len(terms)  # one formula, such as -log(sigma) - 0.5 * square((y - mu) / sigma)
        if kinds == {LIKELIHOOD, PRIOR} and len(classes) == len(statement.summands) and not terms[0].called:
            return classes
        raise self._refusal(
            statement, "it holds prior and likelihood in one", "write them as separate statements of the model block"
        )

    def _require_removable(self, statement: Statement) -> None:
        """A call that adds to the target can be left out only if nothing else comes of it."""
        if statement.kind != "call":
            raise self._refusal(
                statement,
                "its _lp function adds likelihood to the target and returns a value",
                "write the function's likelihood statements in the model block",
            )

    def _class_of(self, term: Term, statement: Statement) -> str:
        """What one summand is: likelihood, prior, a formula into which no data flow, or a constant."""
        flow, observed = term.flow, self.observed
        if self.told and flow.all_data & observed:
            return LIKELIHOOD
        outcomes = {self._outcome(density) for density in flow.densities} - {CONSTANT}
        if self.told and (outcomes or not flow.parameters):
            return PRIOR if outcomes else CONSTANT
        if "unclear" in outcomes:
            raise self._refusal(statement, "data and parameters are mixed in its outcome", self._say(flow.data))
        if outcomes == {LIKELIHOOD, PRIOR}:
            raise self._refusal(
                statement, "densities of data and of parameters are not simply added in it", self._say(observed)
            )
        if outcomes == {LIKELIHOOD}:
            return LIKELIHOOD
        if outcomes == {PRIOR}:
            if flow.all_data & observed:
                names = ", ".join(sorted(flow.all_data & observed))
                raise self._refusal(
                    statement,
                    f"it is a density of parameters that depends on the observed {names}",
                    self._say(observed),
                )
            return PRIOR
        return self._class_of_formula(term, statement)

    def _outcome(self, density: Density) -> str:
        """What the outcome of a density says of it."""
        if density.variate_data & self.observed:
            return (
                LIKELIHOOD if density.parameters or density.variate_parameters or not density.cumulative else CONSTANT
            )
        if density.variate_parameters:
            return "unclear" if self._proper(density.variate_data) else PRIOR
        return CONSTANT

    def _class_of_formula(self, term: Term, statement: Statement) -> str:
        """A summand without a density that has an outcome."""
        flow = term.flow
        names = self._proper(flow.all_data)
        if flow.all_data & self.observed:
            return LIKELIHOOD
        if not flow.parameters:
            return CONSTANT
        if names and self.flow.log_lik is not None and not self.told:
            return LIKELIHOOD if names & self.flow.log_lik.all_data else PRIOR
        counts = self._counts() & flow.data
        if term.loops & self._counts() and not self._proper(flow.data):
            return REPEATED
        if (names or counts) and not self.told:
            raise self._refusal(
                statement, f"it is a formula of {', '.join(sorted(names or counts))}", self._say(names or counts)
            )
        return FORMULA

    def _counts(self) -> frozenset[str]:
        """Integers that size observed data and no parameters."""
        sizes = (variables(self.flow.sizes[name]) for name in self.observed)
        return frozenset[str]().union(*sizes) - self.flow.size_flow.all_data

    def _say(self, names: Collection[str]) -> str:
        """The ways out of an ambiguity over the data ``names``."""

        def told(listed: Collection[str]) -> str:
            return "likelihood_data=[" + (", ".join(f'"{name}"' for name in sorted(listed)[:4]) or '"y"') + "]"

        if self.observed and set(names) - self.observed:
            return f"{told(self.observed)} takes it for prior, {told(self.observed | set(names))} for likelihood"
        return f"name all observed data, for instance {told(names)}: what they flow into is then likelihood"

    def _repeated(self, statement: Statement, terms: Sequence[Term]) -> ModelError:
        counts = self._counts() & frozenset[str]().union(*(term.loops for term in terms))
        return self._refusal(statement, "it is added once for each observation, without its data", self._say(counts))

    def _refusal(self, statement: Statement, reason: str, way_out: str) -> ModelError:
        header = " ".join(statement.header.split())
        return ModelError(f"{self.label}: is `{header}` prior or likelihood? {reason}; {way_out}")


def _removable_counts(derived: Derivation) -> frozenset[str]:
    """The data integers that can be 0 so that exactly the likelihood vanishes; none where that is not certain."""
    flow = derived.flow
    named = {s[1] for name in derived.observed for s in flow.sizes[name] if s[0] == "Var" and s[1] in flow.kinds}
    counts = frozenset(named) - flow.size_flow.all_data - derived.observed
    emptied = frozenset(name for name, sizes in flow.sizes.items() if variables(sizes) & counts)
    gone = counts | emptied
    touched = flow.transformed_data.all_data.union(*(f.all_data for f in flow.parameter_flow.values()))
    if not counts or touched & gone or not all(_may_be_empty(flow, check, counts, emptied) for check in flow.checks):
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
    """Whether a size is computed from a count, and not the count itself."""
    return size[0] != "Var" and bool(variables(size) & counts)


def _may_be_empty(flow: Program, check: tuple[str, str, Any], counts: frozenset[str], emptied: frozenset[str]) -> bool:
    """Whether a declared constraint on data holds when the counts are 0."""
    name, kind, bound = check
    if name in counts:
        literal = bound is not None and bound[0] == "Lit"
        return literal and (int(bound[2]) <= 0 if kind == "Lower" else kind == "Upper" and int(bound[2]) >= 0)
    if name in emptied:
        return kind in ("Lower", "Upper", "LowerUpper")
    return not variables(bound) & (counts | emptied)


def _emptied(flow: Program, data: Mapping[str, Any], counts: frozenset[str]) -> dict[str, Any]:
    """The data with the counts set to 0 and what they size emptied along those axes."""
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

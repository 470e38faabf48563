"""Likelihood statements of a Stan program, from the flow of data through it.

* *Observed* are data that are the outcome of some density, the left of ``~`` or before the bar, without parameters
  mixed in; a generated quantity ``log_lik`` identifies them too.
* A density whose outcome contains observed data is likelihood. One whose outcome contains only parameters is prior, and data
  after its bar (``prior_sd``, coordinates of a Gaussian process) are hyper-parameters.
* A formula without densities is likelihood if observed data flow into it, and prior if no data do.
* Everything that an accumulator called ``lprior`` collects is prior (the convention of priorsense).

All other statements are ambiguous and raise an error with the statement and the remedy: ``likelihood_data=["y"]``
makes every statement into which ``y`` flows likelihood, and every other prior.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from functools import lru_cache

from ppl_backends.errors import ModelError
from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.split.dataflow import Density, Program, Term, read_program
from ppl_backends.targets.stan.split.mir import variables
from ppl_backends.targets.stan.split.statements import CANONICAL, Statement, mark, read_blocks, without

LIKELIHOOD, PRIOR, FORMULA, CONSTANT = "likelihood", "prior", "formula without data", "constant"
NO_LIKELIHOOD = "there is no likelihood"
REPEATED = "formula without data, once for each observation"


def derive(program: StanProgram, likelihood_data: Sequence[str] | None = None) -> Derivation:
    """Return the derivation of a program, cached because it calls stanc twice."""
    require_data(program, likelihood_data)
    return _derived(program, None if likelihood_data is None else tuple(likelihood_data))


def require_data(program: StanProgram, likelihood_data: Sequence[str] | None) -> None:
    """Raise ModelError for names of observed data that the program does not have."""
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
    """Likelihood statements, from the flow of data through the program."""

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
                    f"({', '.join(sorted(flow.all_data & self.observed))}), so its prior cannot be told apart"
                )
        self.classes = {number: self._classify(number) for number in sorted(self.flow.terms)}
        if not self.likelihood:
            raise ModelError(
                f"{self.label}: no statement has data as its outcome, so {NO_LIKELIHOOD} to tell apart; "
                'if one is hidden in a formula, name its data: likelihood_data=["y"]'
            )

    @property
    def likelihood(self) -> list[tuple[Statement, list[str]]]:
        """Return the statements that contain a likelihood term, and the class of each of their terms."""
        return [(self.statements[n], classes) for n, classes in self.classes.items() if LIKELIHOOD in classes]

    def prior_program(self) -> str:
        """Return the text of the program without its likelihood."""
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
        """Return the data that are the outcome of a density."""
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
        if not observed and mixed:  # residuals, data completed with parameters: the only candidates
            return frozenset.intersection(*mixed)
        return observed

    def _proper(self, names: frozenset[str]) -> frozenset[str]:
        """Return data other than counts and sizes."""
        return names - self.flow.structural

    def _classify(self, number: int) -> list[str]:
        """Return the class of every term; one for all if the statement cannot be separated."""
        statement, terms = self.statements[number], self.flow.terms[number]
        if self.flow.collected.get(number) == "lprior" and not self.told:
            return [PRIOR] * len(terms)
        if statement.kind == "tilde":  # the other terms are its truncation
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
            statement, "it contains prior and likelihood in one", "write them as separate statements of the model block"
        )

    def _require_removable(self, statement: Statement) -> None:
        """Raise ModelError unless the only effect of a call is its addition to the target, so that it can be removed."""
        if statement.kind != "call":
            raise self._refusal(
                statement,
                "its _lp function adds likelihood to the target and returns a value",
                "write the function's likelihood statements in the model block",
            )

    def _class_of(self, term: Term, statement: Statement) -> str:
        """Return the class of one summand: likelihood, prior, a formula without data, or a constant."""
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
        """Return the class of a density by its outcome."""
        if density.variate_data & self.observed:
            return (
                LIKELIHOOD if density.parameters or density.variate_parameters or not density.cumulative else CONSTANT
            )
        if density.variate_parameters:
            return "unclear" if self._proper(density.variate_data) else PRIOR
        return CONSTANT

    def _class_of_formula(self, term: Term, statement: Statement) -> str:
        """Return the class of a summand without a density that has an outcome."""
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
        """Return integers that are sizes of observed data and not of parameters."""
        sizes = (variables(self.flow.sizes[name]) for name in self.observed)
        return frozenset[str]().union(*sizes) - self.flow.size_flow.all_data

    def _say(self, names: Collection[str]) -> str:
        """Return the remedies for an ambiguity over the data ``names``."""

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

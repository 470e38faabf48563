"""The prior of a Stan program by variable: its prior statements are switched by data.

Every prior statement becomes ``if (pb_prior_terms[k]) { ... }``, the likelihood is left out, and the program is
compiled once. With all switches off only the Jacobians of the parameters remain; with one on, the difference is the
term of its variable, in model space. The sum of all terms is checked against the prior part of the density.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array
from ppl_backends.targets.protocol import PriorTerms, WholePrior
from ppl_backends.targets.stan.build import build_library
from ppl_backends.targets.stan.compiled import CompiledProgram
from ppl_backends.targets.stan.library import CompiledModel, open_model
from ppl_backends.targets.stan.split.derivation import LIKELIHOOD, Derivation, derive
from ppl_backends.targets.stan.split.statements import Statement, without

SWITCHES = "pb_prior_terms"
TRIED_POINTS, CHECK_POINTS, TOLERANCE = 100, 5, 1e-8


def prior_terms(compiled: CompiledProgram, prior: CompiledModel) -> PriorTerms:
    """Return the prior by variable, which compiles a program; as one term if its statements cannot be switched."""
    whole = WholeStanPrior(prior)
    if compiled.program is None:
        return whole
    try:
        terms = SwitchedPrior(compiled)
    except ModelError:
        return whole
    x = np.random.default_rng(0).uniform(-2.0, 2.0, size=(TRIED_POINTS, compiled.dim))
    known = whole.values(x)[:, 0]
    possible = np.flatnonzero(np.isfinite(known))[:CHECK_POINTS]  # the program may reject the others
    x, known = x[possible], known[possible]
    error = np.abs(terms.values(x).sum(axis=1) - known)
    same = len(x) > 0 and (error <= TOLERANCE * (1.0 + np.abs(known))).all()
    return terms if same else whole


class WholeStanPrior(PriorTerms):
    """The whole log prior density of the parameters in model space."""

    names = WholePrior.names

    def __init__(self, prior: CompiledModel) -> None:
        self._prior = prior

    def values(self, x: Array) -> Array:
        return self._prior.evaluate_without_jacobian(x, False)[0][:, None]

    def sum(self, x: Array, weights: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        value, slope = self._prior.evaluate_without_jacobian(x, gradient)
        return weights[0] * value, None if slope is None else weights[0] * slope


class SwitchedPrior(PriorTerms):
    """The log prior density by variable, from a program whose prior statements are switched by data."""

    def __init__(self, compiled: CompiledProgram) -> None:
        assert compiled.program is not None
        derivation = derive(compiled.program, compiled.likelihood_data)
        code, self.names = switched_program(derivation)
        program = dataclasses.replace(
            compiled.program, name=f"{compiled.program.name}_prior_terms", code=code, include_paths=()
        )
        library, self._cores = build_library(program), compiled.cores
        n = len(self.names)
        settings = np.concatenate([np.zeros((1, n), dtype=np.int64), np.eye(n, dtype=np.int64)])
        self._none, *self._each = (
            open_model(library, {**compiled.data, SWITCHES: setting}, compiled.label) for setting in settings
        )
        if self._none.names != compiled.model.names:
            raise ModelError(f"{compiled.label}: the prior alone has other coordinates than the program")

    def values(self, x: Array) -> Array:
        jacobians, _ = self._none.evaluate(x, False, self._cores)
        each = [model.evaluate(x, False, self._cores)[0] for model in self._each]
        return np.stack([_without(value, jacobians) for value in each], axis=1)

    def sum(self, x: Array, weights: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        jacobians, jacobian_slope = self._none.evaluate(x, gradient, self._cores)
        total, total_slope = np.zeros(len(x)), np.zeros_like(x)
        for weight, model in zip(weights, self._each, strict=True):
            if weight:
                value, slope = model.evaluate(x, gradient, self._cores)
                total += weight * _without(value, jacobians)
                if slope is not None and jacobian_slope is not None:
                    total_slope += weight * (slope - jacobian_slope)
        return total, total_slope if gradient else None


def _without(value: Array, jacobians: Array) -> Array:
    """Return log densities without the Jacobians; -inf where the program rejects a point in any case."""
    return np.subtract(value, jacobians, out=np.full_like(value, -np.inf), where=np.isfinite(jacobians))


def switched_program(derivation: Derivation) -> tuple[str, tuple[str, ...]]:
    """Return the text of the program with switched prior statements, and the variables that these belong to."""
    groups: dict[str, int] = {}
    removed, replaced = set(), dict[int, str]()
    for number, classes in derivation.classes.items():
        statement = derivation.statements[number]
        text = _without_likelihood(statement, classes)
        parameters = frozenset[str]().union(*(term.flow.parameters for term in derivation.flow.terms[number]))
        if not text:
            removed.add(number)
        elif parameters:
            outcomes = [d for term in derivation.flow.terms[number] for d in term.flow.densities]
            names = frozenset[str]().union(*(d.variate_parameters for d in outcomes)) or parameters
            place = groups.setdefault(", ".join(sorted(names)), len(groups) + 1)
            replaced[number] = _switched(statement, text, place, derivation.label)
    if not groups:
        raise ModelError(f"{derivation.label}: no prior statements")
    text = without(derivation.text, derivation.blocks, removed, replaced)
    declaration = f"array[{len(groups)}] int<lower=0, upper=1> {SWITCHES};"
    if "data" in derivation.blocks:
        opening = text.index("{", derivation.blocks["data"].start) + 1
        return f"{text[:opening]}\n  {declaration}{text[opening:]}", tuple(groups)
    start = derivation.blocks["functions"].end if "functions" in derivation.blocks else 0
    return f"{text[:start]}\ndata {{\n  {declaration}\n}}\n{text[start:]}", tuple(groups)


def _without_likelihood(statement: Statement, classes: Sequence[str]) -> str:
    """Return the text of a statement without its likelihood; empty if it is all likelihood."""
    if LIKELIHOOD not in classes:
        return statement.header
    if len(set(classes)) == 1 or len(classes) != len(statement.summands):
        return ""
    pairs = zip(statement.summands, classes, strict=True)
    kept = [f"{sign} {text}" for (sign, text), kind in pairs if kind != LIKELIHOOD]
    return f"{statement.prefix} {' '.join(kept).removeprefix('+ ')};" if kept else ""


def _switched(statement: Statement, text: str, place: int, label: str) -> str:
    """Return the text of a statement that is active if its switch is on."""
    if statement.kind == "declaration":
        value = text.removeprefix(statement.prefix).rstrip("; ")
        return f"{statement.prefix} {SWITCHES}[{place}] * ({value});"
    if statement.kind == "assignment" and not statement.prefix.rstrip().endswith("+="):
        raise ModelError(f"{label}: `{statement.header}` cannot be switched off")
    return f"if ({SWITCHES}[{place}]) {{ {text} }}"

"""The prior part of a Stan program, opened by the split's route and checked against the joint density."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array
from ppl_backends.targets.stan.build import build_library
from ppl_backends.targets.stan.compiled import CompiledProgram
from ppl_backends.targets.stan.data import to_arrays
from ppl_backends.targets.stan.library import CompiledModel, open_model
from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.split.derivation import NO_LIKELIHOOD, derive
from ppl_backends.targets.stan.split.propriety import Propriety, stated_propriety
from ppl_backends.targets.stan.split.routes import Split, find_split

CHECK_POINTS = 5
SECOND_PROGRAM = ("derived", "lprior")  # routes that compile a second program; there are no further routes after them


class PriorPart(NamedTuple):
    """The prior as a model, its source, and the split that it came from."""

    model: CompiledModel
    source: StanProgram | Path
    data: dict[str, Any]
    split: Split


def split_program(compiled: CompiledProgram, look: bool = True) -> ProgramSplit:
    """Return the split of a program into prior and likelihood; each part is computed on first use."""
    return ProgramSplit(compiled, look)


class ProgramSplit:
    """The prior of a program and its likelihood, separately; see :func:`split_program`."""

    def __init__(self, compiled: CompiledProgram, look: bool) -> None:
        self._compiled, self._look, self._lock = compiled, look, threading.RLock()

    def __reduce__(self) -> Any:
        return ProgramSplit, (self._compiled, self._look)

    @property
    def prior(self) -> PriorPart | None:
        """Return the prior part, which may compile a program; None if it is not known."""
        return self._prior_or_problem[0]

    @property
    def problem(self) -> str:
        """Return why prior and likelihood cannot be separated, and the remedy; empty if they can."""
        return self._prior_or_problem[1]

    @property
    def is_prior(self) -> bool:
        """Return whether the program has no likelihood."""
        return NO_LIKELIHOOD in self.problem

    @cached_property
    def _prior_or_problem(self) -> tuple[PriorPart | None, str]:
        compiled = self._compiled
        with self._lock:
            if not self._look:
                return None, "the prior was not searched for (prior=None)"
            if compiled.program is None and compiled.rows is None:
                return (
                    None,
                    f"{compiled.label}: a library has no program text that separates prior and likelihood; give rows=",
                )
            try:
                return self._find_prior(), ""
            except ModelError as error:
                if compiled.likelihood_data is not None:
                    raise
                return None, str(error)

    @property
    def free_prior(self) -> PriorPart | None:
        """Return the prior part if it is known or needs no compilation, else None."""
        program = self._compiled.program
        if "_prior_or_problem" not in self.__dict__ and program is not None:
            try:
                split = find_split(program, self._compiled.data, self._compiled.likelihood_data)
            except ModelError:
                return None
            if split.prior_program is not None:
                return None
        return self.prior

    @property
    def stated_propriety(self) -> Propriety | None:
        """Return whether the prior is proper, if the program's statements determine it, without compilation."""
        if self._compiled.program is None or not self._look:
            return None
        try:
            return stated_propriety(derive(self._compiled.program, self._compiled.likelihood_data))
        except ModelError:
            return None

    @cached_property
    def likelihood_data(self) -> tuple[str, ...]:
        """Return the data of the likelihood, if they are known."""
        compiled = self._compiled
        if compiled.likelihood_data is not None:
            return compiled.likelihood_data
        if compiled.program is None or not self._look:
            return ()
        try:
            return find_split(compiled.program, compiled.data).likelihood_data
        except ModelError:
            return ()

    def _find_prior(self) -> PriorPart:
        """Return the prior part by the first route whose result passes its check."""
        refused: set[str] = set()
        while True:
            split = self._next_route(refused)
            try:
                return _open(self._compiled, split)
            except ModelError:
                if split.route in SECOND_PROGRAM or split.route in refused or self._compiled.program is None:
                    raise
                refused.add(split.route)

    def _next_route(self, refused: set[str]) -> Split:
        compiled = self._compiled
        if compiled.rows is not None and "rows" not in refused:
            described = f"prior evaluated on no rows ({compiled.rows.count} = 0)"
            emptied = compiled.rows.select(compiled.data, np.empty(0, dtype=np.intp))
            return Split("rows", described, prior_data=emptied, likelihood_data=self.likelihood_data)
        assert compiled.program is not None
        return find_split(compiled.program, compiled.data, compiled.likelihood_data, exclude=refused)


def _open(compiled: CompiledProgram, split: Split) -> PriorPart:
    """Return the split's prior, compiled if it is a separate program, and checked."""
    source, library = compiled.source, compiled.library
    data = split.prior_data if split.prior_data is not None else compiled.data
    if split.prior_program is not None:
        assert compiled.program is not None
        source = dataclasses.replace(compiled.program, name=f"{compiled.program.name}_prior", code=split.prior_program)
        library = build_library(source)
    model = open_model(library, data, compiled.label)
    if model.names != compiled.model.names:
        raise ModelError(
            f"{compiled.label}: the prior alone has {model.dim} coordinates, the program has {compiled.dim}"
        )
    found = _check(compiled, split, model, library)
    described = dataclasses.replace(split, description=f"{split.description} ({found})")
    return PriorPart(model, source, data, described)


def _check(compiled: CompiledProgram, split: Split, prior: CompiledModel, library: Path) -> str:
    """Compare both densities at random points, on the data and on data with other observed values."""
    points = np.random.default_rng(0).uniform(-2.0, 2.0, size=(CHECK_POINTS, compiled.dim))
    changed = changed_data(compiled.data, split.likelihood_data)
    return check_split(
        _density(compiled.model),
        _density(prior),
        _density_on(compiled.library, changed, compiled.label),
        points,
        evaluate_prior_on_changed_data=(
            _density_on(library, changed, compiled.label) if split.prior_program is not None else None
        ),
        evaluate_log_lik=(lambda x: compiled.log_lik(x).reshape(len(x), -1).sum(axis=1))
        if compiled.has_log_lik
        else None,
        label=compiled.label,
    )


def _density(model: CompiledModel) -> Callable[[Array], Array]:
    return lambda x: model.evaluate(x, False, 1)[0]


def _density_on(library: Path, data: dict[str, Any] | None, label: str) -> Callable[[Array], Array] | None:
    """Return the density on changed data; None if there are none, or the program refuses them."""
    try:
        return None if data is None else _density(open_model(library, data, label))
    except ModelError:
        return None


LogDensity = Callable[[Array], Array]


def changed_data(data: Mapping[str, Any], likelihood_data: Sequence[str]) -> dict[str, Any] | None:
    """Return data whose observed values differ, for :func:`check_split`; None if nothing can be changed safely.

    The second half of every observed container is replaced by its first half, or if that changes nothing by its first
    row, so that bounds and types that are valid for all rows stay valid. Tuples are not changed.
    """
    changed = dict(data)
    for name in likelihood_data:
        values = to_arrays({name: data[name]}).get(name)
        if values is None or values.ndim == 0 or len(values) < 2:
            continue
        half = len(values) // 2
        halves = np.concatenate([values[: len(values) - half], values[:half]])
        if np.array_equal(halves, values):
            halves = np.repeat(values[:1], len(values), axis=0)
        if not np.array_equal(halves, values):
            changed[name] = halves
    return changed if any(changed[name] is not data[name] for name in likelihood_data) else None


def check_split(
    evaluate_full: LogDensity,
    evaluate_prior: LogDensity,
    evaluate_full_on_changed_data: LogDensity | None,
    points: Array,
    *,
    evaluate_prior_on_changed_data: LogDensity | None = None,
    evaluate_log_lik: LogDensity | None = None,
    label: str = "Stan program",
) -> str:
    """Check a split by evaluation at random points."""
    full, prior = np.asarray(evaluate_full(points)), np.asarray(evaluate_prior(points))
    usable = np.isfinite(full)
    if not usable.any():
        return "not checked: the joint density is zero at every point tried"
    if not np.isfinite(prior[usable]).all():
        raise ModelError(f"{label}: the prior part of the density is zero or undefined where the joint density is not")
    scale = 1e-9 * (1.0 + np.abs(full[usable]) + np.abs(prior[usable]))
    found = [f"checked at {usable.sum()} points"]
    if evaluate_prior_on_changed_data is not None:
        moved = np.abs(np.asarray(evaluate_prior_on_changed_data(points))[usable] - prior[usable])
        if not (moved <= scale).all():
            raise ModelError(f"{label}: the prior part changes with the observed data (by {np.nanmax(moved):.3g})")
        found.append("the prior does not depend on the observed values")
    if evaluate_full_on_changed_data is not None:
        changed = np.asarray(evaluate_full_on_changed_data(points))[usable]
        if (np.abs(changed - full[usable]) <= scale).all():
            raise ModelError(f"{label}: the joint density does not depend on the data that count as observed")
        if (np.abs(full[usable] - prior[usable]) <= scale).all():
            raise ModelError(f"{label}: the part that counts as the prior is the whole density")
        found.append("the likelihood does")
    if evaluate_log_lik is not None:
        gap = np.asarray(evaluate_log_lik(points))[usable] - (full[usable] - prior[usable])
        largest = float(np.abs(gap).max())
        same = bool((np.abs(gap) <= 10 * scale).all())
        found.append("it equals sum(log_lik)" if same else f"it differs from sum(log_lik) by up to {largest:.3g}")
    return "; ".join(found)

"""Opens the prior part of a Stan program, as the split says, and checks it against the joint density."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.build import build_library
from ppl_backends.targets.stan.library import CompiledModel, open_model
from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.split import Split, find_split
from ppl_backends.targets.stan.split_check import changed_data, check_split

if TYPE_CHECKING:
    from ppl_backends.targets.stan.target import StanTarget

__all__ = ["PriorPart", "find_prior"]

CHECK_POINTS = 5
SECOND_PROGRAM = ("derived", "lprior")  # routes that do not rest on special data, so that nothing is left after them


class PriorPart(NamedTuple):
    """The prior alone: a model, what it was made from, and the split that it came from."""

    model: CompiledModel
    source: StanProgram | Path
    data: dict[str, Any]
    split: Split


def find_prior(target: StanTarget) -> PriorPart:
    """The prior part of a target; each route to it that its check refuses gives way to the next.

    Raises
    ------
    ModelError
        If no route is left, or the program is ambiguous.
    """
    refused: set[str] = set()
    while True:
        split = _next_split(target, refused)
        try:
            return _open(target, split)
        except ModelError:
            if split.route in SECOND_PROGRAM or split.route in refused or target.program is None:
                raise
            refused.add(split.route)


def _next_split(target: StanTarget, refused: set[str]) -> Split:
    if target._rows is not None and "rows" not in refused:
        described = f"prior evaluated on no rows ({target._rows.count} = 0)"
        emptied = target._rows.select(target.data, np.empty(0, dtype=np.intp))
        return Split("rows", described, prior_data=emptied, likelihood_data=target._observed_names)
    assert target.program is not None
    return find_split(target.program, target.data, target._likelihood_data, exclude=refused)


def _open(target: StanTarget, split: Split) -> PriorPart:
    """The split's prior, compiled where it is a program of its own, and checked."""
    source: StanProgram | Path = target.program or target.library
    data = split.prior_data if split.prior_data is not None else target.data
    library = target.library
    if split.prior_program is not None:
        assert target.program is not None
        source = dataclasses.replace(target.program, name=f"{target.program.name}_prior", code=split.prior_program)
        library = build_library(source)
    model = open_model(library, data, target.label)
    if model.names != target._model.names:
        raise ModelError(f"{target.label}: the prior alone has {model.dim} coordinates, the program has {target.dim}")
    found = _check(target, split, model, library)
    described = dataclasses.replace(split, description=f"{split.description} ({found})")
    return PriorPart(model, source, data, described)


def _check(target: StanTarget, split: Split, prior: CompiledModel, library: Path) -> str:
    """Compare both densities at random points, on the data and on data with other observed values."""
    points = np.random.default_rng(0).uniform(-2.0, 2.0, size=(CHECK_POINTS, target.dim))
    changed = changed_data(target.data, split.likelihood_data)
    has_log_lik = any(variable.name == "log_lik" for variable in target._model.variables)
    return check_split(
        _density(target._model),
        _density(prior),
        _density_on(target.library, changed, target.label),
        points,
        evaluate_prior_on_changed_data=(
            _density_on(library, changed, target.label) if split.prior_program is not None else None
        ),
        evaluate_log_lik=(lambda x: target._log_lik(x).reshape(len(x), -1).sum(axis=1)) if has_log_lik else None,
        label=target.label,
    )


def _density(model: CompiledModel) -> Callable[[Array], Array]:
    return lambda x: model.evaluate(x, False, 1)[0]


def _density_on(library: Path, data: dict[str, Any] | None, label: str) -> Callable[[Array], Array] | None:
    """The density on changed data; None where there are none, or the program refuses them."""
    try:
        return None if data is None else _density(open_model(library, data, label))
    except ModelError:
        return None

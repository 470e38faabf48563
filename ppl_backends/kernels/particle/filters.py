"""The particle filter of a target, by name, and in the fastest form for a chain."""

from __future__ import annotations

from typing import Any

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import BaseTarget
from ppl_backends.targets.state_space.compiled import CompiledFilter
from ppl_backends.targets.state_space.filter import Filter, Values
from ppl_backends.targets.state_space.scalar import TranslationError


def filter_of(target: BaseTarget, method: str = "auto") -> Filter:
    """Return the filter of a target's series; ``"auto"`` is guided if the model has a proposal, else bootstrap.

    Raises
    ------
    ModelError
        If the target has no state-space model.
    """
    series: Any = target.full.state_space
    if series is None:
        raise ModelError(f"{target.full.label} has no state-space model: write pb.StateSpace or pb.with_state_space")
    return series.filter(method)


def compiled(particle_filter: Filter, parameters: Values) -> Filter | CompiledFilter:
    """Return the filter compiled by Numba, or unchanged if Numba cannot compile a function of its model."""
    try:
        return CompiledFilter(particle_filter, parameters)
    except TranslationError:
        return particle_filter

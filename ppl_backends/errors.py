"""Exceptions and warnings of the package: one line that says what, where and what to do."""

from __future__ import annotations

import inspect

__all__ = [
    "ApproximationWarning",
    "BackendWarning",
    "CheckpointError",
    "CompilationError",
    "FactorSearchError",
    "ModelError",
    "PPLBackendsWarning",
    "PriorSamplingError",
    "SamplerWarning",
    "WorkerError",
]


class ModelError(ValueError):
    """A model, or its data, that the method asked for cannot use."""


class PriorSamplingError(ModelError):
    """The prior cannot be drawn from (improper, or no sampler is known); start from a Gaussian instead."""


class FactorSearchError(ModelError):
    """A search for factors that ended in an error of its own: whether the model has any is not known."""


class CompilationError(ModelError):
    """A model that could not be translated or compiled; the message is the compiler's own."""


class CheckpointError(OSError):
    """A checkpoint that could not be written; the one before is still there."""


class WorkerError(RuntimeError):
    """A worker process that died."""


class PPLBackendsWarning(UserWarning):
    """Base of every warning the package emits."""


class ApproximationWarning(PPLBackendsWarning):
    """An approximation that did not converge, or that its own diagnostics distrust."""


class SamplerWarning(PPLBackendsWarning):
    """A run whose figures show that its result should not be trusted as it stands."""


class BackendWarning(PPLBackendsWarning):
    """A slower backend is used than the one asked for or expected."""


def user_level() -> int:
    """Return the ``stacklevel`` at which a warning of the caller points at the first line outside of the package."""
    level, frame = 1, inspect.currentframe()
    frame = None if frame is None else frame.f_back
    while frame is not None and str(frame.f_globals.get("__name__")).split(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    return level

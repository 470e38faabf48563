"""Exceptions and warnings of the package; each message is one line that says what is wrong, where and what to do."""

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
    """Raised if a method cannot use a model or its data.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> try:
    ...     pb.sample_smc(pb.FunctionTarget(1, lambda x: -0.5 * (x**2).sum(1)), draws="many")
    ... except pb.errors.ModelError as error:
    ...     print(str(error).split(":")[0])
    draws='many'
    """


class PriorSamplingError(ModelError):
    """Raised if the prior cannot be sampled (it is improper, or no sampler is known); start from a Gaussian instead.

    Examples
    --------
    >>> from ppl_backends.errors import ModelError, PriorSamplingError
    >>> issubclass(PriorSamplingError, ModelError)  # so that `except ModelError` catches it
    True
    """


class FactorSearchError(ModelError):
    """Raised if a search for factors fails with an error, so that it is unknown whether the model has factors.

    Examples
    --------
    >>> from ppl_backends.errors import FactorSearchError, ModelError
    >>> issubclass(FactorSearchError, ModelError)  # so that `except ModelError` catches it
    True
    """


class CompilationError(ModelError):
    """Raised if a model cannot be translated or compiled; the message is the compiler's.

    Examples
    --------
    >>> from ppl_backends.errors import CompilationError, ModelError
    >>> issubclass(CompilationError, ModelError)  # so that `except ModelError` catches it
    True
    """


class CheckpointError(OSError):
    """Raised if a checkpoint cannot be written; the previous checkpoint is kept.

    Examples
    --------
    >>> from ppl_backends.errors import CheckpointError
    >>> issubclass(CheckpointError, OSError)  # a full disk, a folder without write permission
    True
    """


class WorkerError(RuntimeError):
    """Raised if a worker process ends unexpectedly.

    Examples
    --------
    >>> from ppl_backends.errors import WorkerError
    >>> issubclass(WorkerError, RuntimeError)
    True
    """


class PPLBackendsWarning(UserWarning):
    """Base class of all warnings of the package.

    Examples
    --------
    >>> import warnings
    >>> from ppl_backends.errors import PPLBackendsWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", PPLBackendsWarning)  # in a pipeline: stop where a result is not to be trusted
    """


class ApproximationWarning(PPLBackendsWarning):
    """Emitted if an approximation did not converge, or its diagnostics show that it is not accurate.

    Examples
    --------
    >>> import warnings, numpy as np, ppl_backends as pb
    >>> from ppl_backends.errors import ApproximationWarning
    >>> def cauchy(x):
    ...     return -np.log1p(x[:, 0] ** 2), -2 * x / (1 + x**2)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     q = pb.fit_laplace(pb.FunctionTarget(1, cauchy))
    >>> [w.category is ApproximationWarning for w in caught], q.converged
    ([True], False)
    """


class SamplerWarning(PPLBackendsWarning):
    """Emitted if diagnostics of a run show that its result should not be trusted.

    Examples
    --------
    >>> import warnings, ppl_backends as pb
    >>> from ppl_backends.errors import SamplerWarning
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", SamplerWarning)  # an exception in place of a warning
    ...     idata = pb.sample_importance(target, random_seed=1)
    >>> int(idata.posterior.attrs["log_evidence_trusted"])
    1
    """


class BackendWarning(PPLBackendsWarning):
    """Emitted if a slower backend is used than the one asked for or expected.

    Examples
    --------
    >>> import warnings
    >>> from ppl_backends.errors import BackendWarning
    >>> warnings.filterwarnings("ignore", category=BackendWarning)  # results are the same, only slower
    """


def user_level() -> int:
    """Return the ``stacklevel`` with which the caller's warning points at the first line outside of the package."""
    level, frame = 1, inspect.currentframe()
    frame = None if frame is None else frame.f_back
    while frame is not None and str(frame.f_globals.get("__name__")).split(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    return level

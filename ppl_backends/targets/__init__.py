"""Models as targets: batched log densities on the unconstrained space."""

from typing import Any

from ppl_backends.targets.convert import as_target
from ppl_backends.targets.function import FunctionTarget
from ppl_backends.targets.observations import Observations
from ppl_backends.targets.protocol import BaseTarget, Evaluation, JointEvaluation, Target

__all__ = [
    "BaseTarget",
    "Evaluation",
    "FunctionTarget",
    "JointEvaluation",
    "Observations",
    "PyMCTarget",
    "Target",
    "as_target",
]


def __getattr__(name: str) -> Any:
    """Import PyMC only on access."""
    if name == "PyMCTarget":
        from ppl_backends.targets.pymc import PyMCTarget

        return PyMCTarget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

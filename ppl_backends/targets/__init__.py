"""Models become targets: batched log densities on the unconstrained space."""

from ppl_backends.targets.function import FunctionTarget
from ppl_backends.targets.protocol import BaseTarget, Evaluation, JointEvaluation, Target

__all__ = ["BaseTarget", "Evaluation", "FunctionTarget", "JointEvaluation", "Target"]

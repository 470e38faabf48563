"""Stan programs as targets: compiled in process, with data, for batched evaluation."""

from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.target import StanTarget, stan_target

__all__ = ["StanProgram", "StanTarget", "stan_target"]

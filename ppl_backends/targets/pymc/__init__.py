"""PyMC models as targets."""

from ppl_backends.targets.pymc.target import PyMCTarget

__all__ = ["PyMCTarget"]

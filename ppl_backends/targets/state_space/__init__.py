"""State-space models, their particle filters and their targets."""

from ppl_backends.targets.state_space.filter import Filter, FilterState
from ppl_backends.targets.state_space.model import LinearGaussian, StateSpaceModel

__all__ = ["Filter", "FilterState", "LinearGaussian", "StateSpaceModel"]

"""Changes of variables that straighten funnels and curved ridges, estimated from points of a density and its gradients."""

from ppl_backends.kernels.noncentring.change import NonCentring, non_centred
from ppl_backends.kernels.noncentring.fit import find_noncentring
from ppl_backends.kernels.noncentring.nested import AnyNonCentring, NestedNonCentring

__all__ = ["AnyNonCentring", "NestedNonCentring", "NonCentring", "find_noncentring", "non_centred"]

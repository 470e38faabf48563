"""Changes of variables that straighten funnels and curved ridges, estimated from points of a density and its gradients."""

from ppl_backends.kernels.noncentring.change import NonCentring, non_centred
from ppl_backends.kernels.noncentring.fit import find_noncentring

__all__ = ["NonCentring", "find_noncentring", "non_centred"]

"""Approximations of a posterior."""

from ppl_backends.approximations.gaussian import GaussianApproximation

__all__ = ["GaussianApproximation"]

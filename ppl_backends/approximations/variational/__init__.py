"""Gaussian variational inference with randomised quasi-Monte Carlo noise."""

from ppl_backends.approximations.variational.fit import fit_vi
from ppl_backends.approximations.variational.result import VariationalApproximation

__all__ = ["VariationalApproximation", "fit_vi"]

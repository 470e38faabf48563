"""Gaussian variational inference with randomised quasi-Monte Carlo noise."""

from ppl_backends.approximations.variational.fit import VariationalApproximation, fit_vi

__all__ = ["VariationalApproximation", "fit_vi"]

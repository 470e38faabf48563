"""Approximate Bayesian computation: posteriors and evidences of models that can be simulated but not evaluated."""

from ppl_backends.simulators.abc.sample import sample_abc

__all__ = ["sample_abc"]

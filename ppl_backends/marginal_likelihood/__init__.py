"""The evidence of a model from the draws of any Markov chain, by bridge sampling with densities fitted to the draws."""

from ppl_backends.marginal_likelihood.evidence import evidence
from ppl_backends.marginal_likelihood.result import Evidence

__all__ = ["Evidence", "evidence"]

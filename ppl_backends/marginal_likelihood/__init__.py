"""The evidence of a model from the draws of any Markov chain, by bridges to what is fitted to them."""

from ppl_backends.marginal_likelihood.evidence import evidence
from ppl_backends.marginal_likelihood.result import Evidence

__all__ = ["Evidence", "evidence"]

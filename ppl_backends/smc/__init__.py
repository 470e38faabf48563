"""Tempering sequential Monte Carlo."""

from ppl_backends.smc.sample import sample_smc

__all__ = ["sample_smc"]

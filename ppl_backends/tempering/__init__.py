"""Non-reversible parallel tempering of any model."""

from ppl_backends.tempering.sample import sample_tempering

__all__ = ["sample_tempering"]

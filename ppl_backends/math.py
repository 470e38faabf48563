"""Functions for PyTensor graphs, in models and Potentials."""

from ppl_backends.orthants.op import log_rectangle

__all__ = ["log_rectangle"]

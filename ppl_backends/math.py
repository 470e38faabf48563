"""Functions for PyTensor graphs, in models and Potentials."""

from ppl_backends.orthants.op import log_rectangle
from ppl_backends.orthants.panel import panel_cholesky

__all__ = ["log_rectangle", "panel_cholesky"]

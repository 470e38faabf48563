"""Importance sampling."""

from ppl_backends.importance.sampling import sample_importance

__all__ = ["sample_importance"]

"""Numerical methods on arrays, which know nothing of models."""

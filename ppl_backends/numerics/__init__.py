"""Numerical methods on arrays, independent of models."""

"""Kernels on parameters of state-space models whose states are sampled by particle filters."""

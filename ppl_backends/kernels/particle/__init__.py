"""Kernels on parameters of state-space models whose states are carried by particle filters."""

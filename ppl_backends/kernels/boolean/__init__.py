"""Kernels on {0, 1}^m."""

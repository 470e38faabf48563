"""Approximations and samplers for the compiled log density of PyMC and Stan models."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ppl-backends")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0.0.0"

"""Markov kernels, vectorised over points: SMC, MCMC and PyMC's step methods use the same implementation."""

"""Markov kernels, vectorised over points: one implementation serves SMC, MCMC and PyMC's step methods."""

"""MCMC on subsets of the observations."""

"""Markov chain Monte Carlo by any step method, without PyMC's loop."""

"""Approximations of a posterior."""

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.given import from_draws
from ppl_backends.approximations.laplace import fit_laplace
from ppl_backends.approximations.laplace_em import fit_laplace_em
from ppl_backends.approximations.mixture import MixtureApproximation

__all__ = ["GaussianApproximation", "MixtureApproximation", "fit_laplace", "fit_laplace_em", "from_draws"]

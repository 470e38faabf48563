"""Nested Laplace approximations: non-Gaussian marginals without sampling.

=================  ====================================================================================
``conditional``    improved Laplace marginals, all grid points in one batched Newton
``kernels``        its steps, compiled
``copula``         a joint distribution with these marginals
``latent``         latent variables given hyper-parameters, by sparse matrices
``integrated``     integration over hyper-parameters
``named``          hyper-parameters that the user names
``result``         what users get
``fit``            ``fit_inla``, what users call
=================  ====================================================================================
"""

from ppl_backends.approximations.inla.fit import fit_inla
from ppl_backends.approximations.inla.integrated import IntegratedLaplace
from ppl_backends.approximations.inla.result import INLAApproximation

__all__ = ["INLAApproximation", "IntegratedLaplace", "fit_inla"]

"""Nested Laplace approximations: marginals beyond Gaussian without sampling.

=================  ====================================================================================
``conditional``    improved Laplace marginals, all grid points in one batched Newton
``kernels``        its steps, compiled
``copula``         a joint distribution with these marginals
``result``         what users get
``fit``            ``fit_inla``, what users call
=================  ====================================================================================
"""

from ppl_backends.approximations.inla.fit import fit_inla
from ppl_backends.approximations.inla.result import INLAApproximation

__all__ = ["INLAApproximation", "fit_inla"]

"""The result of ``fit_inla``: non-Gaussian marginals, evidence and a joint distribution that can be sampled."""

from __future__ import annotations

from typing import Any

from ppl_backends.approximations.base import Approximation
from ppl_backends.approximations.inla.copula import GaussianCopula
from ppl_backends.approximations.marginals import Marginals, chosen
from ppl_backends.targets.protocol import Array


class WithMarginals(Approximation):
    """An approximation with the density of every coordinate."""

    def marginals(self, coordinates: Any = None) -> Marginals:
        """Return the marginal densities on their grids, of all coordinates or of some ``coordinates``, by name or number."""
        raise NotImplementedError

    @property
    def std(self) -> Array:
        """Return the marginal standard deviations ``(dim,)``, as ``sd``."""
        return self.sd

    def pdf(self, x: Any) -> Array:
        """Return marginal densities ``(m, dim)`` at points ``(m, dim)``, or at ``(m,)`` for every coordinate."""
        return self.marginals().pdf(x)

    def cdf(self, x: Any) -> Array:
        """Return marginal distribution functions ``(m, dim)`` at points ``(m, dim)``, or at ``(m,)`` for every coordinate."""
        return self.marginals().cdf(x)

    def quantile(self, probability: Any) -> Array:
        """Return marginal quantiles ``(dim,)``, or ``(m, dim)`` for ``probability`` ``(m,)``."""
        return self.marginals().quantile(probability)


class INLAApproximation(WithMarginals, GaussianCopula):
    """Improved Laplace marginals with the dependence of the Gaussian at the mode; see :func:`~ppl_backends.fit_inla`.

    Attributes
    ----------
    names : tuple of str
    mean, sd, std : ndarray (dim,)
        Moments of the marginals.
    cov : ndarray (dim, dim)
        Covariance from the marginal standard deviations and the correlations of the Gaussian.
    log_evidence, log_evidence_se : float
        Approximate, from 256 points of this distribution weighted by the posterior, with their Monte Carlo error.
    gaussian_at_mode : GaussianApproximation
        The Laplace approximation.
    converged : bool
    trouble : str
        The reason if it did not converge, with its figure.
    diagnostics : dict
        ``laplace_log_evidence``; ``grid_points``, the number of climbs to conditional modes; ``failed_share``, the
        share of them without a mode; ``edge``, the largest density at an end of a grid, relative to its peak;
        ``other_mode_share``; and from the 256 points those of :func:`~ppl_backends.fit_laplace`.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> q = pb.fit_inla(target)
    >>> bool(np.allclose(q.mean, 0, atol=0.01)), q.sd.round(2), q.converged
    (True, array([1., 1.]), True)
    """

    _marginals: Marginals

    @property
    def sd(self) -> Array:
        return self._marginals.sd

    def marginals(self, coordinates: Any = None) -> Marginals:
        at = chosen(coordinates, self.names)
        return Marginals(tuple(self.names[j] for j in at), *(part[at] for part in self._marginals[1:]))

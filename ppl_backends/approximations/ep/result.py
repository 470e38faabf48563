"""The result of EP: a Gaussian, its sites, leave-one-out densities and non-Gaussian marginals."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.ep.correction import pairs_of, sd_errors, second_order
from ppl_backends.approximations.ep.marginals import corrected_marginals, warn_if_large
from ppl_backends.approximations.ep.shards import EPSites
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.marginals import Marginals, chosen
from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import LOG_2PI, Gaussian
from ppl_backends.options import checked, integer
from ppl_backends.targets.factors.factorisation import Factors
from ppl_backends.targets.factors.families import NormalMixture
from ppl_backends.targets.factors.sites import Array, Fraction, plain


class LeaveOneOut(NamedTuple):
    """Log predictive densities of every observation given all others, log p(yᵢ | y₋ᵢ), from the cavities.

    Attributes
    ----------
    log_density : ndarray (n_obs,)
        ``-inf`` if the cavity is not proper. There are none of a model with rectangles, such as a multivariate probit.
    elpd : float
        Their sum, NaN if there are none.
    se : float
        Its standard error, √n times the standard deviation of the terms.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.approximations.ep import Factors, Logit
    >>> loo = pb.fit_ep(Factors(np.eye(2), 0.0, Logit([0, 1]), 0.0, 1.0)).loo
    >>> round(loo.elpd, 3), loo.log_density.shape
    (-1.386, (2,))
    """

    log_density: Array
    elpd: float
    se: float


class EPApproximation(GaussianApproximation):
    """The Gaussian of expectation propagation; see :func:`ppl_backends.approximations.ep.fit_ep`.

    Attributes
    ----------
    power : float or "student"
        η of power EP, the ``fraction`` of :func:`~ppl_backends.fit_ep`.
    factors : Factors or None
        None for sharded data, which are not kept.
    sites : EPSites
    loo : LeaveOneOut
    diagnostics : dict
        ``sweeps``, ``change`` (relative, of the site parameters, in the last sweep), ``damping``, ``failed_sites``,
        and ``interaction`` of sites with several modes. If single sites have a large share in the precision of their
        predictors, ``sd_error`` is the largest of :meth:`sd_errors`. If sites are not log-concave,
        ``conditional_sd_error`` is that of a correction given one predictor or coordinate at a time, ``share_error`` the
        largest correction of :meth:`component_shares`, and ``other_mode_share`` the mass of another mode that climbs find.
        If these are not small, ``weighted_sd_error``, ``weighted_shift`` (in standard deviations) and ``evidence_shift`` are
        errors by weighted points, which are worth ``effective_draws``.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.approximations.ep import Factors, Probit
    >>> q = pb.fit_ep(Factors(np.eye(2), 0.0, Probit([1.0, -1.0]), 0.0, 1.0))
    >>> q.mean.round(2), round(q.log_evidence, 2), q.loo.log_density.round(2)
    (array([ 0.56, -0.56]), -1.39, array([-0.69, -0.69]))
    """

    factors: Factors | None
    sites: EPSites
    loo: LeaveOneOut
    power: Fraction

    @checked(points=integer(9))
    def marginals(self, coordinates: Any = None, points: int = 25) -> Marginals:
        """Return marginal densities with corrections for the non-Gaussian shapes of the tilted distributions.

        Parameters
        ----------
        coordinates : sequence of int or str, optional
            Indices or names of the coordinates; all by default. The cost is one quadrature per site, coordinate and point.
        points : int
            Number of points of each coordinate at which the correction is computed; it is interpolated between them.

        Returns
        -------
        Marginals

        Warns
        -----
        ApproximationWarning
            If a correction is large, because it is of first order.
        """
        index = chosen(coordinates, self.names)
        found = unchecked_marginals(self, index, points)
        warn_if_large(found, self.mean[index], self.sd[index])
        return found

    def evidence_correction(self) -> float:
        """Return the second-order correction to add to ``log_evidence``; it removes most of EP's error if that is small.

        It uses the 1,000 sites whose tilted distributions are least Gaussian.
        """
        return second_order(pairs_of(self, self.sites, self._needed_factors("the correction"))).value

    def sd_errors(self) -> Array:
        """Return EP's estimate of its own error: exact standard deviations over EP's, minus one ``(dim,)``.

        It is of second order and accurate if it is small. At 10 % and more higher orders matter, and the error can be
        twice as large.
        """
        return sd_errors(self, self.sites, self._needed_factors("the error of standard deviations"))

    def component_shares(self) -> Array:
        """Return the probability of every component of the sites that are mixtures of normals ``(n_mixtures, k)``.

        For a spike and a slab along a coefficient they are the probabilities of exclusion and of inclusion. They come
        from the tilted distributions, and are as approximate as EP: if predictors are correlated, they are too near 0
        and 1, and :func:`fit_ep` warns that sites with several modes interact.

        Raises
        ------
        ModelError
            If there are no such sites, or their numbers of components differ.
        """
        found = []
        for family, columns, own in self._needed_factors("shares of components").sites.pieces(None):
            family = plain(family)
            if isinstance(family, NormalMixture):
                mean, variance = self.sites.cavity_mean[columns], self.sites.cavity_variance[columns]
                found.append(family.shares(mean, variance, own))
        if len({share.shape[1] for share in found}) != 1:
            raise ModelError(
                "shares of components need NormalMixture sites that all have the same number of components"
            )
        return np.concatenate(found)

    def _needed_factors(self, what: str) -> Factors:
        if self.factors is None:
            raise ModelError(
                f"{what} of sharded data needs the factors in memory; fit the same data by fit_ep(Factors(...))"
            )
        return self.factors

    def __repr__(self) -> str:
        return (
            f"EPApproximation(dim={self.dim}, n_sites={len(self.sites.tau)}, sweeps={int(self.diagnostics['sweeps'])}, "
            f"converged={self.converged}, log_evidence={self.log_evidence:.6g})"
        )


def leave_one_out(log_density: Array) -> LeaveOneOut:
    """Return the sum and standard error of pointwise log predictive densities."""
    n = len(log_density)
    finite = np.isfinite(log_density).all()
    se = float(np.sqrt(n * log_density.var(ddof=1))) if n > 1 and finite else float("inf")
    return LeaveOneOut(log_density, float(log_density.sum()) if n else float("nan"), se)


def leave_out_normal(design: Any, offset: Array, y: Array, sd: Array, q: Gaussian) -> Array:
    """Return log p(yᵢ | y₋ᵢ) of normal observations that the Gaussian part of ``q`` contains; ``-inf`` if improper."""
    spread = np.asarray(design @ (q.factor if q.factor.ndim == 2 else np.diag(q.factor)))
    mean, variance = np.asarray(design @ q.mean) + offset, np.einsum("nd,nd->n", spread, spread)
    with np.errstate(all="ignore"):
        without = 1 / (1 / variance - 1 / sd**2)
        residual = (y - mean) * sd**2 / (sd**2 - variance)  # y minus the mean without it
        total = without + sd**2
        value = -0.5 * (residual**2 / total + np.log(total) + LOG_2PI)
    blind = variance <= 0
    value[blind] = -0.5 * (((y - mean) / sd) ** 2 + LOG_2PI)[blind] - np.log(sd[blind])
    return np.where(blind | (variance < sd**2), value, -np.inf)


def unchecked_marginals(q: EPApproximation, index: Any, points: int) -> Marginals:
    """Return the corrected marginals of coordinates ``index`` of EP, however large the corrections are."""
    return corrected_marginals(q, q.sites, q._needed_factors("marginals"), q.names, index, points)

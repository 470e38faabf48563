"""EP given hyper-parameters, and integration over them.

Given φ, EP yields log p(y | φ), and with the prior of φ its log posterior up to a constant. Steps: climb to its mode
by the gradient of the evidence; compute the curvature there; place a design of φ around the mode; run EP at each, from
the neighbour's sites; mix the Gaussians by the posterior of φ. This is the scheme of INLA with EP in place of Laplace
(Rue, Martino & Chopin 2009, section 3; Rasmussen & Williams 2006, section 5.5 for the evidence of EP).

Every Gaussian of the mixture is over φ and θ jointly: φ has a normal kernel around its design point, and the mean of θ
moves with φ along the slope between neighbours. The kernels' centres are shrunk towards the mean, so that the kernels
do not inflate the spread of φ (West 1993; Liu & West 2001).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError
from scipy.special import logsumexp

from ppl_backends.approximations.ep.budget import PROGRAM, spend
from ppl_backends.approximations.ep.evidence import evidence_gradient
from ppl_backends.approximations.ep.marginals import mixed_marginals, warn_if_large
from ppl_backends.approximations.ep.result import EPApproximation, LeaveOneOut, leave_one_out, unchecked_marginals
from ppl_backends.approximations.hyper import (
    Design,
    HyperParameters,
    check_number,
    climb,
    design_around,
)
from ppl_backends.approximations.hyper_draws import draws_of_design
from ppl_backends.approximations.hyper_modes import STARTS, dispersed_by_density, judge_design
from ppl_backends.approximations.marginals import Marginals, chosen
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.approximations.verdict import Verdict
from ppl_backends.errors import ModelError
from ppl_backends.numerics.differences import central_differences
from ppl_backends.options import checked, integer
from ppl_backends.targets.factors import Factors
from ppl_backends.targets.protocol import Array, BaseTarget

Fit = Callable[[Factors, EPApproximation | None], EPApproximation]

SMALLEST_SHARE = 1e-6  # of the weights; nodes with less are left out of the mixture
LARGEST_UNCONVERGED = 0.01  # share of the weights
MOST_SWEEPS = 2000  # of runs that do not converge, after which no more are made if most do not


class Node(NamedTuple):
    """EP at one φ, with log p(y | φ) + log p(φ)."""

    phi: Array
    log_posterior: float
    fit: EPApproximation


class EPMixture(MixtureApproximation):
    """EP integrated over hyper-parameters: a mixture over all unconstrained coordinates.

    Attributes
    ----------
    hyper : HyperParameters
    loo : LeaveOneOut
        1/p(yᵢ | y₋ᵢ) is the posterior mean over φ of 1/p(yᵢ | y₋ᵢ, φ).
    at_mode : EPApproximation
        EP given the most probable φ.
    diagnostics : dict
        ``ep_runs``, ``design_points`` and ``effective_points`` of φ, ``unconverged_share`` (weight of EP runs that did not
        converge), ``other_mode_share`` and ``around_share`` (mass of φ at another mode and around the points), and
        ``edge`` (relative density where a lattice ends early, or share of points of a net without an approximation). Also
        those of ``at_mode``, and ``sd_error_away``, the largest error of a standard deviation at other points of φ.

    Examples
    --------
    >>> import pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     tau = pm.HalfNormal("tau", 1)
    ...     effect = pm.Normal("effect", 0, tau, shape=3)
    ...     y = pm.Poisson("y", pm.math.exp(effect), observed=[3, 1, 2])
    >>> q = pb.fit_ep(model)
    >>> type(q).__name__, q.hyper.names, q.at_mode.mean.shape
    ('EPMixture', ('tau_log__',), (3,))
    """

    overlapping = True

    hyper: HyperParameters
    loo: LeaveOneOut
    at_mode: EPApproximation

    _fits: list[EPApproximation]
    _latent: NDArray[np.integer]
    _hyper: NDArray[np.integer]

    @property
    def hyper_coordinates(self) -> NDArray[np.integer]:
        """Return the indices of the hyper-parameters among the coordinates."""
        return self._hyper

    def _draws(self, n: int, rng: np.random.Generator) -> Array:
        x = np.empty((n, self.dim))
        x[:, self._hyper], x[:, self._latent] = draws_of_design(self.hyper, lambda k: self._fits[k].sample, n, rng)
        return x

    @checked(points=integer(9))
    def marginals(self, coordinates: Any = None, points: int = 25) -> Marginals:
        """Return marginal densities: those of EP given φ, corrected beyond Gaussian, mixed over φ.

        Parameters
        ----------
        coordinates : sequence of int or str, optional
            Indices or names of the coordinates; all by default. The cost is one quadrature per site, coordinate, point and φ.
        points : int
            Number of points of each coordinate at which the correction is computed; it is interpolated between them.
        """
        parts = [partial(unchecked_marginals, fit, points=points) for fit in self._fits]
        index = chosen(coordinates, self.names)
        found = mixed_marginals(self, parts, self._latent, index)
        warn_if_large(found, self.mean[index], self.sd[index])
        return found

    def component_shares(self) -> Array:
        """Return EP's shares of the components of mixtures given φ, averaged over φ ``(n_mixtures, k)``."""
        shares = np.stack([fit.component_shares() for fit in self._fits])
        return np.tensordot(self.weights, shares, axes=1)


class _Posterior:
    """Log posterior of φ, with one EP run per point; None if there is no proper approximation."""

    def __init__(self, factors: Any, fit: Fit) -> None:
        self._factors, self._fit, self.names = factors, fit, tuple(factors.hyper_names)
        self.runs, self.converged_only = 0, False
        self._converged, self._lost_sweeps = 0, 0

    def node(self, phi: Array, start: EPApproximation | None = None) -> Node | None:
        """Run EP at ``phi``, from the sites of a neighbour if one is given; None also if most runs are in vain."""
        if self._lost_sweeps > MOST_SWEEPS and 2 * self._converged < self.runs:
            return None
        self.runs += 1
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                factors = self._given(phi)
                same = start is not None and len(start.sites.tau) == factors.n_sites
                fit = self._fit(factors, start if same else None)
        except (ModelError, LinAlgError, FloatingPointError):
            return None
        self._converged += fit.converged
        self._lost_sweeps += 0 if fit.converged else int(fit.diagnostics["sweeps"])
        if self.converged_only and not fit.converged:
            return None
        value = fit.log_evidence + self._factors.log_hyper_prior(phi)
        return Node(phi, float(value), fit) if np.isfinite(value) else None

    def _given(self, phi: Array) -> Any:
        """Return the factors given φ, and count the evaluations of a program that set up their sites."""
        factors = self._factors.at(phi)
        for family, *_ in factors.sites.pieces(None):
            if family.program_points:
                spend(family.n * family.program_points, family.n, PROGRAM)
        return factors

    def gradient(self, node: Node) -> Array | None:
        """Return the gradient of the log posterior at a node; None if EP did not converge."""
        if not node.fit.converged:
            return None

        def log_prior(points: Array) -> list[float]:
            return [self._factors.log_hyper_prior(phi) for phi in points]

        try:
            return (
                evidence_gradient(self._given, node.phi, node.fit) + central_differences(log_prior, node.phi[None])[0]
            )
        except (ModelError, LinAlgError):
            return None


def integrate(factors: Any, target: BaseTarget, fit: Fit) -> EPMixture:
    """Fit EP over θ and φ: ``fit`` is EP for given factors, from the sites of another fit or None."""
    check_number(target.label, factors.hyper_names)
    posterior = _Posterior(factors, fit)
    # Not exactly the start itself, which can be a saddle between two modes.
    mode = climb(posterior, np.asarray(factors.start, dtype=np.float64) + 0.1)
    return _mix(factors, target, posterior, mode, design_around(posterior, mode))


def _judge(factors: Any, posterior: _Posterior, mode: Node, design: Design, effective: float) -> Verdict:
    """Return whether the design covers the posterior of φ, by EP runs that converge."""
    posterior.converged_only = True
    starts = dispersed_by_density(factors.log_hyper_prior, factors.start, STARTS, np.random.default_rng(0))
    return judge_design(posterior, mode, design, effective, tuple(factors.hyper_names), starts)


def _mix(factors: Any, target: BaseTarget, posterior: _Posterior, mode: Node, design: Design) -> EPMixture:
    """Return joint Gaussians over φ and θ, mixed."""
    nodes, log_weights = design.nodes, design.log_weights
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    kept = np.flatnonzero(weights > SMALLEST_SHARE)
    nodes, weights = [nodes[k] for k in kept], weights[kept] / weights[kept].sum()
    phi, theta = np.stack([node.phi for node in nodes]), np.stack([node.fit.mean for node in nodes])
    means, covs = _joint(factors, target.dim, phi, theta, [node.fit.cov for node in nodes], weights, design.spread)
    unconverged = float(weights[[not node.fit.converged for node in nodes]].sum())
    effective = float(1 / (weights @ weights))
    names = tuple(factors.hyper_names)
    order = np.array([node.log_posterior for node in nodes])
    held_out = np.stack([node.fit.loo.log_density for node in nodes])
    loo = leave_one_out(-logsumexp(-held_out, axis=0, b=weights[:, None]))  # one over the mean of one over the density
    summary = (
        f"EP integrated over {', '.join(names)}: {len(nodes)} points of a {design.kind}, {effective:.1f} effective"
    )
    verdict = _judge(factors, posterior, mode, design, effective)
    trouble = verdict.trouble
    if unconverged > LARGEST_UNCONVERGED:
        trouble = f"{100 * unconverged:.3g} % of the weight is on EP runs that did not converge"
    return EPMixture(
        weights,
        means,
        covs,
        names=target.names,
        target=target,
        method="ep",
        converged=not trouble,
        trouble=trouble,
        log_evidence=design.log_evidence,
        diagnostics={
            "ep_runs": float(posterior.runs),
            "design_points": float(len(nodes)),
            "effective_points": effective,
            "unconverged_share": unconverged,
            **verdict.figures,
        },
        hyper=HyperParameters(names, mode.phi, phi, weights, order, summary, design.cell),
        loo=loo,
        at_mode=mode.fit,
        _fits=[node.fit for node in nodes],
        _latent=np.asarray(factors.coordinates),
        _hyper=np.asarray(factors.hyper_coordinates),
    )


def _joint(
    factors: Any, dim: int, phi: Array, theta: Array, covs: list[Array], weights: Array, spread: float
) -> tuple[Array, Array]:
    """Return means and covariances over all coordinates; ``spread`` is the kernels' sd relative to the posterior sd of φ."""
    hyper, latent = factors.hyper_coordinates, factors.coordinates
    centre = weights @ phi
    apart = phi - centre
    cov_phi = (weights * apart.T) @ apart
    cov_phi += 1e-10 * np.eye(len(centre)) * max(1e-6, float(np.trace(cov_phi)))
    slopes = _slopes(phi, theta, cov_phi, max(0.5, 2 * spread))  # (k, p, d)
    kernel = spread**2 * cov_phi
    pulled = centre + np.sqrt(1 - spread**2) * apart
    means, joint = np.empty((len(phi), dim)), np.zeros((len(phi), dim, dim))
    means[:, hyper] = pulled
    means[:, latent] = theta + np.einsum("kp,kpd->kd", pulled - phi, slopes)
    for k, cov in enumerate(covs):
        cross = kernel @ slopes[k]
        joint[k][np.ix_(hyper, hyper)] = kernel
        joint[k][np.ix_(hyper, latent)] = cross
        joint[k][np.ix_(latent, hyper)] = cross.T
        joint[k][np.ix_(latent, latent)] = cov + slopes[k].T @ cross
    return means, joint


def _slopes(phi: Array, theta: Array, cov_phi: Array, bandwidth: float) -> Array:
    """Return ∂E(θ)/∂φ at every point ``(k, p, d)``, by local linear regression on the other points."""
    root = np.linalg.cholesky(cov_phi)
    z = np.linalg.solve(root, phi.T).T
    steps: NDArray[np.float64] = z[None] - z[:, None]  # (k, j, p)
    distance = np.einsum("kjp,kjp->kj", steps, steps)
    near = np.exp(-0.5 * distance / bandwidth**2)
    gram = np.einsum("kj,kjp,kjq->kpq", near, steps, steps, optimize=True) + 1e-6 * np.eye(phi.shape[1])
    moved = theta[None] - theta[:, None]
    cross = np.einsum("kj,kjp,kjd->kpd", near, steps, moved, optimize=True)
    return np.linalg.solve(root.T[None], np.linalg.solve(gram, cross))

"""Non-Gaussian marginals, from the tilted distributions of EP.

With ε_i = (tᵢ/t̃ᵢ) scaled to mean one under q, the posterior is q ∏ εᵢ. Its marginal in θⱼ is q(θⱼ) E_q[∏ εᵢ | θⱼ],
which is approximated by q(θⱼ) ∏ E_q[εᵢ | θⱼ] (Cseke & Heskes 2011, Approximate marginals in latent Gaussian models,
section 4). Each expectation is one more tilted normaliser, because sᵢ given θⱼ is normal. With one coordinate the
result is exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from ppl_backends.approximations.ep.moments import tilted_moments
from ppl_backends.approximations.ep.shards import EPSites
from ppl_backends.approximations.marginals import Marginals
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.errors import ApproximationWarning, user_level
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.factors.factorisation import Factors
from ppl_backends.targets.factors.sites import Array

HALF_WIDTH = 7.0  # standard deviations
GRID = 401
BLOCK = 200_000  # conditional sites in one quadrature
CORRECTED_SHARE = 0.99  # of the weight of a mixture; the components with the smallest weights stay Gaussian

LARGEST_SHIFT, LARGEST_RATIO = 1.0, 2.0  # of a mean, in standard deviations, and of a standard deviation


def warn_if_large(marginals: Marginals, mean: Array, sd: Array) -> None:
    """Warn if the correction of a marginal is not small against EP's mean and sd, since it is of first order."""
    shift, ratio = np.abs(marginals.mean - mean) / sd, marginals.sd / sd
    size = np.maximum(shift / LARGEST_SHIFT, np.abs(np.log(ratio)) / np.log(LARGEST_RATIO))
    if not np.all(size <= 1.0):
        j = int(np.argmax(np.nan_to_num(size, nan=np.inf)))
        warnings.warn(
            f"EP: the correction of the marginal of {marginals.names[j]} moves its mean by {shift[j]:.2g} standard "
            f"deviations and multiplies its standard deviation by {ratio[j]:.2g}, and it is accurate only if "
            "it is small: check with sample_smc",
            ApproximationWarning,
            stacklevel=user_level(),
        )


def corrected_marginals(
    q: Gaussian, sites: EPSites, factors: Factors, names: Sequence[str], index: NDArray[np.integer], points: int
) -> Marginals:
    """Return marginals of the coordinates ``index`` of EP's Gaussian."""
    z = np.linspace(-HALF_WIDTH, HALF_WIDTH, points)
    fine = np.linspace(-HALF_WIDTH, HALF_WIDTH, GRID)
    mean, sd = q.mean[index], q.sd[index]
    rows = q.factor[index] @ q.factor.T if q.factor.ndim == 2 else np.diag(q.factor**2)[index]
    covariance = np.asarray(factors.design @ rows.T).T  # of θⱼ and sᵢ, (k, n)
    log_density = np.empty((len(index), GRID))
    for k in range(len(index)):
        correction = _log_correction(sites, factors, covariance[k] / sd[k], z)
        log_density[k] = -0.5 * fine**2 + CubicSpline(z, correction)(fine)
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    return _with_moments([names[j] for j in index], mean, sd, density)


def mixed_marginals(
    mixture: MixtureApproximation,
    parts: Sequence[Callable[[NDArray[np.integer]], Marginals]],
    latent_coordinates: NDArray[np.integer],
    index: NDArray[np.integer],
) -> Marginals:
    """Return the marginals of the coordinates ``index``: EP's corrected densities at every φ, mixed.

    The Gaussians of the mixture differ from those at φ by the kernels around the design, so the corrected densities
    are used in units of standard deviations. Hyper-parameters themselves keep their normal kernels.
    """
    z = np.linspace(-HALF_WIDTH, HALF_WIDTH, GRID)
    mean, sd = mixture.mean[index], mixture.sd[index]
    means, sds = mixture.means[:, index], mixture.component_sds()[:, index]
    place = {int(j): k for k, j in enumerate(latent_coordinates)}
    latent = np.array([k for k, j in enumerate(index) if int(j) in place], dtype=int)
    inner = np.array([place[int(index[k])] for k in latent], dtype=int)
    by_weight = np.argsort(-mixture.weights)
    heavy = set(by_weight[: 1 + np.searchsorted(np.cumsum(mixture.weights[by_weight]), CORRECTED_SHARE)].tolist())
    density = np.zeros((len(index), GRID))
    for k, weight in enumerate(mixture.weights):
        at = (mean[:, None] + sd[:, None] * z - means[k, :, None]) / sds[k, :, None]
        part = np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi)
        if k in heavy and len(latent):
            corrected = parts[k](inner)
            widths = (corrected.grid[:, -1] - corrected.grid[:, 0]) / (2 * HALF_WIDTH)  # standard deviations of EP
            for row, curve, width in zip(latent, corrected.density, widths, strict=True):
                part[row] = np.interp(at[row], z, curve * width, left=0.0, right=0.0)
        density += weight * part / sds[k, :, None]
    return _with_moments([mixture.names[j] for j in index], mean, sd, density)


def _with_moments(names: Sequence[str], mean: Array, sd: Array, density: Array) -> Marginals:
    """Return densities on the even grid of mean ± 7 sd, given up to constants: scaled, and with their moments."""
    return Marginals.of_densities(
        names, mean[:, None] + sd[:, None] * np.linspace(-HALF_WIDTH, HALF_WIDTH, GRID), density
    )


def _log_correction(sites: EPSites, factors: Factors, slope: Array, z: Array) -> Array:
    """Return Σᵢ log E_q[εᵢ | θⱼ = meanⱼ + sdⱼ z] ``(len(z),)``, up to a constant; ``slope`` is cov(θⱼ, sᵢ)/sdⱼ."""
    usable = np.flatnonzero(~sites.failed & (np.abs(slope) > 1e-9 * np.sqrt(sites.variance)))
    total = np.zeros(len(z))
    block = max(1, BLOCK // len(z))
    for at in (usable[k : k + block] for k in range(0, len(usable), block)):
        variance = np.maximum(sites.variance[at] - slope[at] ** 2, 1e-10 * sites.variance[at])
        terms = log_expectations(sites, factors, at, slope[at] * z[:, None], variance, sites.level[at])
        total += np.where(np.isfinite(terms), terms, terms.min(initial=-700.0, where=np.isfinite(terms))).sum(axis=1)
    return total - total.max()


@np.errstate(all="ignore")
def log_expectations(
    sites: EPSites,
    factors: Factors,
    at: NDArray[np.integer],
    centred: Array,
    variance: Array,
    level: NDArray[np.int8],
) -> Array:
    """Return log E[tᵢ/t̃ᵢ] ``(k, m)``, each up to a constant, where sᵢ is normal; NaN where it is not found.

    ``centred`` ``(k, m)`` are the means of sᵢ minus those under q, for the sites ``at`` ``(m,)``.
    """
    variance = np.broadcast_to(variance, centred.shape)
    # Divide by the Gaussian site: t̃ as a function of s about its mean under q.
    tau, pull = sites.tau[at], _site_slope(sites, factors, at)
    shrink = np.where(1 - tau * variance > 0, 1 - tau * variance, np.nan)
    cavity_mean = sites.mean[at] + (centred - pull * variance) / shrink
    log_ratio = (0.5 * tau * centred**2 - pull * centred + 0.5 * pull**2 * variance) / shrink - 0.5 * np.log(shrink)
    rows, levels = np.tile(at, len(centred)), np.tile(level, len(centred))
    cavity = cavity_mean.ravel(), (variance / shrink).ravel()
    guess = (sites.mean[at] + centred).ravel(), variance.ravel()
    found = tilted_moments(factors.sites, *cavity, *guess, levels, rows=rows).log_z
    return np.asarray(log_ratio + found.reshape(centred.shape))


def _site_slope(sites: EPSites, factors: Factors, at: NDArray[np.integer]) -> Array:
    """Return ν − τ·E_q(u): the slope of log t̃ at the mean of its predictor."""
    u = sites.mean - factors.offset - np.asarray(factors.design @ factors.prior.mean)
    return (sites.nu - sites.tau * u)[at]

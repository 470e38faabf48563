r"""Distance of a Gaussian approximation q from the posterior p, from a few hundred points of q.

With log weights w = log p(x, y) − log q(x) at points x of q, and r = ∇w in the coordinates where q is standard normal,
Stein's identity gives E_q[r] = Cov_q(z, w) and E_q[z rᵀ] = E_q[∇²w]. To first order in w these are the differences of
the means and of the precisions of p and q. They are averages for each coordinate and stay precise in many dimensions,
where importance weights are useless. Weighted means and variances estimate the same differences without the expansion,
with an error of √((1/efficiency − 1)/n), which is small if the weights are nearly even. The points are symmetric and
standardised, so a Gaussian posterior is judged without any noise.

Weights alone mislead in both directions. The index of their tail (Pareto k) is high in sixty dimensions when every
marginal is nearly right, and low if the mass lies beyond all points.

Stein, C. (1981). Estimation of the mean of a multivariate normal distribution. *Annals of Statistics* 9(6).
Vehtari, A. et al. (2024). Pareto smoothed importance sampling. *JMLR* 25(72).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.noise import standardised_noise
from ppl_backends.numerics.weights import effective_sample_size, log_mean_exp, normalised_weights, pareto_k, tail_share
from ppl_backends.targets.protocol import Array, BaseTarget

POINTS = 256
LARGEST_SHIFT = 0.2  # of a mean, in posterior standard deviations
SD_RANGE = (1 / 1.2, 1.2)  # of a posterior standard deviation over the Gaussian's: neither is a fifth too large
# To first order in w, a t with 5 degrees of freedom, which is 1.4 times as wide as the Gaussian at its mode, is 1.19
# times as wide.
LARGEST_FIRST_ORDER_RATIO = 1.15
LARGEST_EVIDENCE_SHIFT = 0.5  # nats
NOISES = 3.0  # standard errors of a weighted mean within which a Gaussian is accepted
LARGEST_OUTSIDE = 0.05  # share of points without density


class Verdict(NamedTuple):
    """Verdict on a Gaussian from its points: the fault (empty if there is none), and figures."""

    trouble: str
    figures: dict[str, float]


def figures_of_weights(log_weights: Array, dim: int) -> dict[str, float]:
    """Return diagnostics of an approximation q from log weights p/q ``(n,)`` at its points; at least one is finite.

    ``outside`` is the share of points without density, and ``distance`` is √(2 KL(q ‖ p) / dim): the error of the
    points in standard deviations, in root mean square over the coordinates.
    """
    inside = log_weights[np.isfinite(log_weights)]
    divergence = log_mean_exp(log_weights) - inside.mean()
    return {
        "pareto_k": pareto_k(log_weights),
        "tail_share": tail_share(log_weights),
        "importance_efficiency": effective_sample_size(log_weights) / len(log_weights),
        "outside": 1 - len(inside) / len(log_weights),
        "distance": float(np.sqrt(2 * max(0.0, divergence) / dim)),
    }


def evidence_seen(target: BaseTarget, q: Any) -> float:
    """Return the log evidence from 256 points of a Gaussian; it is small at a pole, or if widths are far off."""
    x = q.place(standardised_noise(POINTS, q.dim, np.random.default_rng(0)))
    with np.errstate(all="ignore"):
        log_weights = target.log_density(x) - q.log_density(x)
    return float(log_mean_exp(np.where(np.isnan(log_weights), -np.inf, log_weights)))


def judge_gaussian(target: BaseTarget, q: Any) -> Verdict:
    """Compare a dense Gaussian with the posterior at 256 of its points, the same in every call."""
    z = standardised_noise(POINTS, q.dim, np.random.default_rng(0))
    with np.errstate(all="ignore"):
        log_density, gradient = target.with_fixed_batch_size().log_density_and_gradient(q.place(z))
        log_weights = log_density - q.log_density(q.place(z))
    inside = np.isfinite(log_weights)
    if inside.sum() < 2:
        return Verdict("the density is zero at all of its points", {"distance": np.inf})
    figures = figures_of_weights(log_weights, q.dim)
    weights, log_mean = normalised_weights(log_weights)
    figures["evidence_shift"] = log_mean - q.log_evidence
    first = _first_order(q, z, np.where(inside[:, None], gradient, 0.0))
    noise = _noise_of_weights(figures["importance_efficiency"], POINTS)
    troubles = _off(first, q.names, 0.0, LARGEST_FIRST_ORDER_RATIO)
    troubles = troubles or _off(_weighted(q, q.place(z), weights), q.names, NOISES * noise, SD_RANGE[1])
    troubles = _with_mass(troubles, figures, noise)
    figures["mean_shift"] = float(np.abs(first.shift).max())
    figures["sd_ratio"] = float(first.ratio[np.argmax(np.abs(np.log(first.ratio)))])
    return Verdict(" and ".join(troubles), figures)


def judge_mixture(target: BaseTarget, q: Any) -> Verdict:
    """Compare a mixture with the posterior at 256 of its points, the same in every call, by weights alone."""
    rng = np.random.default_rng(0)
    u = rng.random((POINTS, q.dim))
    u[:, 0] = (np.arange(POINTS) + 0.5) / POINTS  # each component has its share of the points
    x = q.from_uniform(u)
    with np.errstate(all="ignore"):
        log_weights = target.with_fixed_batch_size().log_density(x) - q.log_density(x)
    if np.isfinite(log_weights).sum() < 2:
        return Verdict("the density is zero at all of its points", {"distance": np.inf})
    log_weights = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    figures = figures_of_weights(log_weights, q.dim)
    weights, log_mean = normalised_weights(log_weights)
    figures["evidence_shift"] = log_mean - q.log_evidence
    noise = _noise_of_weights(figures["importance_efficiency"], POINTS)
    troubles = _off(_weighted(q, x, weights), q.names, NOISES * noise, SD_RANGE[1])
    return Verdict(" and ".join(_with_mass(troubles, figures, noise)), figures)


def _with_mass(troubles: list[str], figures: dict[str, float], noise: float) -> list[str]:
    """Return what is off, with the evidence if nothing else is, and with points at which the density is zero."""
    if not troubles and abs(figures["evidence_shift"]) > LARGEST_EVIDENCE_SHIFT + NOISES * noise:
        troubles = [f"the log evidence is off by {abs(figures['evidence_shift']):.2g}"]
    if figures["outside"] > LARGEST_OUTSIDE:
        troubles = [*troubles, f"the density is zero at {figures['outside']:.0%} of its points"]
    return troubles


def judge_weights(q: Any, x: Array, log_weights: Array) -> str:
    """Return which moment of the posterior differs from the Gaussian's by weights p/q of its points ``(n, dim)``, or ""."""
    weights, _ = normalised_weights(log_weights)
    noise = _noise_of_weights(effective_sample_size(log_weights) / len(x), len(x))
    return " and ".join(_off(_weighted(q, x, weights), q.names, NOISES * noise, SD_RANGE[1]))


def weighted_along(q: Any, x: Array, log_weights: Array) -> tuple[Array, Array]:
    """Return shifts of means and ratios of deviations, posterior to Gaussian, by weights p/q of its points ``(n, dim)``."""
    return _weighted(q, x, normalised_weights(log_weights)[0])


def doubtful_coordinate(shift: Array, ratio: Array) -> int | None:
    """Return the coordinate whose moments weights p/q change most, if by a quarter of the limit; None if all change less.

    Few points are in heavy tails: weights can change the deviation along a t with 3 degrees of freedom by less than a tenth,
    where it is 1.4 times the Gaussian's.
    """
    change = np.maximum(np.abs(shift) / LARGEST_SHIFT, np.abs(ratio - 1) / (SD_RANGE[1] - 1))
    return int(np.argmax(change)) if change.max() > 0.25 else None


def judge_moments(shift: float, ratio: float, name: str) -> str:
    """Return which moment of one coordinate is off, "" for none; ``shift`` is in standard deviations of the Gaussian."""
    return " and ".join(_off(_Moments(np.array([shift]), np.array([ratio])), [name], 0.0, SD_RANGE[1]))


def _noise_of_weights(efficiency: float, points: int) -> float:
    """Return the standard error of a weighted mean, in standard deviations, beyond that of the points themselves."""
    return float(np.sqrt(max(0.0, 1 / efficiency - 1) / points))


class _Moments(NamedTuple):
    """Means of the posterior minus the Gaussian's, in its standard deviations, and ratios of deviations; ``(dim,)`` each."""

    shift: Array
    ratio: Array


def _first_order(q: Any, z: Array, gradient: Array) -> _Moments:
    """Estimate by Stein's identity, to first order in the log weights."""
    factor, sd = q.cholesky, q.sd
    slope = gradient @ factor + z
    shift = factor @ slope.mean(axis=0) / sd
    # diag(L E[z r'] L') / sd^2 is the decrease of the precision along each coordinate
    looser = np.einsum("nd,nd->d", z @ factor.T, slope @ factor.T) / len(z) / sd**2
    return _Moments(shift, 1 / np.sqrt(np.maximum(1 - looser, 1e-2)))


def _weighted(q: Any, points: Array, weights: Array) -> _Moments:
    """Estimate by importance sampling, against the same points without weights."""
    x = (points - q.mean) / q.sd
    mean = weights @ x
    return _Moments(mean - x.mean(axis=0), np.sqrt(weights @ (x - mean) ** 2) / x.std(axis=0))


def _off(moments: _Moments, names: Any, noise: float, largest_ratio: float) -> list[str]:
    """Return which mean and which standard deviation is off by more than the limit plus ``noise``, with the figure."""
    shift, ratio = moments
    said = []
    worst = int(np.argmax(np.abs(shift)))
    if not abs(shift[worst]) <= LARGEST_SHIFT + noise:
        far = (
            f"{abs(shift[worst]):.2g} standard deviations"
            if abs(shift[worst]) < 1
            else "more than a standard deviation"
        )
        said.append(f"the posterior mean of {names[worst]} is {far} from the Gaussian's")
    excess = np.maximum(ratio - largest_ratio, SD_RANGE[0] - ratio)
    worst = int(np.argmax(excess))
    if not excess[worst] <= noise:
        said.append(f"the standard deviation of {names[worst]} is {ratio[worst]:.2g} times the Gaussian's")
    return said

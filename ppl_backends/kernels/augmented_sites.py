"""Latent variables that make sites Gaussian: t(s) = ∫ exp(v s − ½ w s²) p(dω), with w and v functions of ω.

=====================  ======================================================  ================  ======================
sites                  latent variable given s                                 w                 v
=====================  ======================================================  ================  ======================
probit                 z ~ N(s, 1) on the side of y                            1                 z
binomial, logit link   ω ~ PG(trials, s)                                       ω                 y − trials/2
negative binomial      ω ~ PG(y + α, s − log α)                                ω                 (y − α)/2 + ω log α
Student t              λ ~ Gamma((ν + 1)/2, rate (ν + ((s − y)/σ)²)/2)         λ/σ²              λ y/σ²
Laplace                λ ~ inverse Gaussian, mean 1/(b |s − y|), shape 1/b²    λ                 λ y
mixture of normals     component k                                             1/σₖ²             μₖ/σₖ²
normal                 none                                                    1/σ²              y/σ²
=====================  ======================================================  ================  ======================

Albert and Chib (1993) for probit and Student sites, Polson, Scott and Windle (2013) for Pólya–Gamma variables. A power
of a binomial, negative binomial or normal site is of the same kind: trials, y, α and 1/σ² are multiplied by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri, ndtri_exp

from ppl_backends.errors import ModelError
from ppl_backends.kernels.streams import each
from ppl_backends.targets.factors import (
    Laplace,
    Logit,
    NegativeBinomial,
    Normal,
    NormalMixture,
    PoweredSites,
    Probit,
    ScaledSites,
    SiteFamily,
    StackedSites,
    StudentT,
)
from ppl_backends.targets.protocol import Array, Index

FAR = -30.0  # below it Φ is too small to be multiplied
SMALLEST = 1e-150  # distance from the kink of a Laplace site

Latents = tuple[Array, Array]
"""w and v, each ``(k, n)``."""


def normals_on_a_side(rng: Any, s: Array, sign: Array) -> Array:
    """Draw z ~ N(s, 1) with the sign given ``(k, n)``, by the inverse of the distribution function.

    Examples
    --------
    >>> import numpy as np
    >>> z = normals_on_a_side(np.random.default_rng(1), np.full((1, 4), -40.0), np.ones(4))
    >>> bool(((z > 0) & (z < 0.5)).all())
    True
    """
    side = sign * s
    u = 1.0 - rng.random(s.shape)  # in (0, 1]
    below = ndtri(u * ndtr(side))
    far = side < FAR
    if far.any():
        below[far] = ndtri_exp(np.log(u[far]) + log_ndtr(side[far]))
    return np.asarray(sign * (side - below))


def polya_gamma(rng: Any, shape: Array, s: Array) -> Array:
    """Draw PG(shape, s) variables ``(k, n)``."""
    draw, generators = polya_gamma_sampler(), each(rng, len(s))
    if generators[0] is generators[-1]:
        return np.asarray(draw(shape, s, random_state=generators[0]))
    return np.stack([draw(shape, row, random_state=own) for row, own in zip(s, generators, strict=True)])


def polya_gamma_sampler() -> Callable[..., Any]:
    """Return the sampler of the library ``polyagamma``."""
    try:
        from polyagamma import random_polyagamma
    except ImportError:
        raise ImportError("PolyaGamma needs polyagamma: pip install 'ppl-backends[polyagamma]'") from None
    sampler: Callable[..., Any] = random_polyagamma
    return sampler


def _logit(sites: Logit, rng: Any, s: Array, power: Array | float = 1.0) -> Latents:
    omega = polya_gamma(rng, power * sites.trials, s)
    return omega, np.broadcast_to(power * (sites.successes - 0.5 * sites.trials), s.shape)


def _negative_binomial(sites: NegativeBinomial, rng: Any, s: Array, power: Array | float = 1.0) -> Latents:
    shift = np.log(sites.alpha)
    omega = polya_gamma(rng, power * (sites.y + sites.alpha), s - shift)
    return omega, 0.5 * power * (sites.y - sites.alpha) + omega * shift


def _student(sites: StudentT, rng: Any, s: Array) -> Latents:
    gamma = rng.standard_gamma(0.5 * (sites.nu + 1), s.shape)
    weight = 2.0 * gamma / (sites.nu * sites.scale**2 + (s - sites.y) ** 2)
    return weight, weight * sites.y


def _laplace(sites: Laplace, rng: Any, s: Array) -> Latents:
    mean = 1.0 / (sites.scale * np.maximum(np.abs(s - sites.y), SMALLEST))
    chi_square = rng.standard_normal(s.shape) ** 2
    u = rng.random(s.shape)
    # Michael, Schucany & Haas (1976): the smaller root of their quadratic, in a form without cancellation, or mean²/it
    ratio = 0.5 * mean * sites.scale**2 * chi_square
    smaller = mean / (1.0 + ratio + np.sqrt(ratio * (2.0 + ratio)))
    weight = np.where(u * (mean + smaller) <= mean, smaller, mean * (mean / smaller))
    return weight, weight * sites.y


def _mixture(sites: NormalMixture, rng: Any, s: Array) -> Latents:
    share = sites.shares(s)
    u = rng.random(s.shape)[..., None]
    component = (u > np.cumsum(share, axis=-1)[..., :-1]).sum(axis=-1)
    rows = np.arange(sites.n)
    weight = sites.sds[rows, component] ** -2.0
    return weight, weight * sites.means[rows, component]


def _normal(sites: Normal, rng: Any, s: Array, power: Array | float = 1.0) -> Latents:
    weight = np.broadcast_to(power * sites.sd**-2.0, s.shape)
    return weight, weight * sites.y


AUGMENTED: dict[type[SiteFamily], Callable[[Any, Any, Array], Latents]] = {
    Probit: lambda sites, rng, s: (np.ones_like(s), normals_on_a_side(rng, s, sites.sign)),
    Logit: _logit,
    NegativeBinomial: _negative_binomial,
    StudentT: _student,
    Laplace: _laplace,
    NormalMixture: _mixture,
    Normal: _normal,
    PoweredSites: lambda sites, rng, s: POWERED[type(sites.family)](sites.family, rng, s, sites.power),
}
"""Families, and functions that draw their latent variables: ``(sites, rng, s) -> (w, v)``."""

POWERED: dict[type[SiteFamily], Callable[[Any, Any, Array, Array], Latents]] = {
    Logit: _logit,
    NegativeBinomial: _negative_binomial,
    Normal: _normal,
}
"""Families whose powers have latent variables too, with a further function of the power."""

CONSTANT_WEIGHTS = (Probit, Normal)


def constant_weights(sites: Any) -> Array | float:
    """Return w of sites of :data:`CONSTANT_WEIGHTS`, for which it is not drawn."""
    return 1.0 if isinstance(sites, Probit) else sites.sd**-2.0


def plain_families(sites: SiteFamily, rows: Index) -> list[tuple[SiteFamily, Index]]:
    """Return the families among the sites ``rows``, with the positions of their sites in ``rows``; ignore constants."""
    if isinstance(sites, StackedSites):
        found = []
        for family, columns, local in sites.pieces(rows):
            found += [(plain, columns[inner]) for plain, inner in plain_families(family, cast(Index, local))]
        return found
    if isinstance(sites, ScaledSites):
        return plain_families(sites.family, rows)
    if isinstance(sites, PoweredSites):
        return [(_to_power(family, sites.power[rows[c]]), c) for family, c in plain_families(sites.family, rows)]
    return [(sites.take(rows), np.arange(len(rows)))]


def _to_power(family: SiteFamily, power: Array) -> SiteFamily:
    """Return a plain family's sites to powers ``(n,)``, unchanged if all powers are one."""
    if isinstance(family, PoweredSites):
        return PoweredSites(family.family, family.power * power)
    return family if np.all(power == 1.0) else PoweredSites(family, power)


def refuse_others(families: list[tuple[SiteFamily, Index]], allowed: tuple[type[SiteFamily], ...], step: str) -> None:
    """Raise ModelError for sites without latent variables in a step."""
    for family, _ in families:
        if isinstance(family, PoweredSites):
            if type(family.family) not in POWERED:
                name = type(family.family).__name__
                raise ModelError(f"{step}: no latent variables for powers of {name} sites; use HMC")
            family = family.family
        if not isinstance(family, allowed):
            known = "PolyaGamma" if isinstance(family, Logit | NegativeBinomial) else None
            known = "AlbertChib" if isinstance(family, Probit) else known
            advice = f"use steps.{known}" if known else "use steps.HMC or pm.NUTS"
            raise ModelError(f"{step}: no latent variables for {type(family).__name__} sites; {advice}")

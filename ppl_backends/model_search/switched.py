"""A regression whose coefficients can be switched off: the factors of the full model, restricted to included coefficients.

p(θ, y) = exp(c) · N(θ; m₀, Q₀⁻¹) · ∏ᵢ tᵢ(aᵢ'θ + bᵢ). Switching θⱼ off means conditioning on θⱼ = 0 and removing its
prior: its column, its normal factor and the sites that depend only on it (a Cauchy prior) are removed with their
normalising constants. The integral of a prior's factors is computed if it is not one by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.integrate import quad

from ppl_backends.errors import ModelError
from ppl_backends.model_search.space import Bits
from ppl_backends.numerics.arrays import for_kernels
from ppl_backends.targets.factors import Factors, StudentT
from ppl_backends.targets.factors.sites import SiteFamily, plain
from ppl_backends.targets.protocol import Array, Index

_INTEGRAL_ERROR = 1e-6  # relative, of the integral of a prior


class Compiled(NamedTuple):
    """A regression in the form of compiled functions: the design transposed, and a row of the prior for each coefficient."""

    design: Array
    offset: Array
    y: Array
    extra: Array
    family: int
    prior: Array


@dataclass(frozen=True)
class Switched:
    """Factors with all coefficients, and the parts that belong to each of them.

    Attributes
    ----------
    factors : Factors
        Factors with a diagonal prior precision, which is zero if sites form the prior.
    own : tuple of ndarray of int
        The sites of each coefficient's prior.
    log_integral : ndarray (p,)
        Log of the integral of the factors of each coefficient's prior.
    """

    factors: Factors
    own: tuple[Index, ...]
    log_integral: Array

    def take(self, columns: Bits) -> Factors:
        """Return the factors of the model with ``columns`` ``(p,)``."""
        full, on = self.factors, np.flatnonzero(columns)
        sites, design, offset, observed = full.sites, full.design, full.offset, full.observed
        if not observed.all():
            rows = np.sort(np.concatenate([np.flatnonzero(observed), *(self.own[j] for j in on)]))
            sites, design, offset, observed = sites.take(rows), design[rows], offset[rows], observed[rows]
        precision = full.prior.precision[on]
        return Factors(
            design[:, on],
            offset,
            sites,
            full.prior.mean[on],
            precision,
            log_constant=full.log_constant + float(self.log_integral[~columns].sum()),
            observed=observed,
            names=[full.names[j] for j in on],
        )

    @cached_property
    def log_density_of_none(self) -> float:
        """Return the log density of the model without coefficients."""
        likelihood = self.factors.likelihood()
        constant = self.factors.log_constant + self.log_integral.sum()
        return float(constant + likelihood.log_site(likelihood.offset[None]).sum())

    def log_density(self, columns: Bits, theta: Array) -> Array:
        """Return log p(θ, y) ``(n,)`` of the model with ``columns`` ``(p,)``, at rows ``(n, k)``."""
        if not columns.any():
            return np.full(len(theta), self.log_density_of_none)
        return self.take(columns).log_density(theta)

    @cached_property
    def compiled(self) -> Compiled | None:
        """Return the regression in the form of compiled functions; None if its family or priors are not compiled."""
        likelihood = self.factors.likelihood()
        family = likelihood.sites.compiled()
        if family is None:
            return None
        rows = [self._prior_row(j) for j in range(self.factors.dim)]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            return None
        design = likelihood.design.toarray() if sparse.issparse(likelihood.design) else likelihood.design
        prior = np.array(known).reshape(-1, 4)
        design, offset, y, extra = map(for_kernels, (design.T, likelihood.offset, family.y, family.extra))
        return Compiled(design, offset, y, extra, family.family, prior)

    def _prior_row(self, j: int) -> tuple[float, float, float, float] | None:
        """Return mean, precision, scale and degrees of freedom of a coefficient's prior, if it is of a known kind."""
        prior, rows = self.factors.prior, self.own[j]
        if not len(rows):
            return (float(prior.mean[j]), float(prior.precision[j]), 1.0, 0.0)
        family = plain(self.factors.sites.take(rows))
        if len(rows) > 1 or prior.precision[j] != 0 or not isinstance(family, StudentT):
            return None
        slope, shift = _entry(self.factors, rows[0], j), float(self.factors.offset[rows[0]])
        location, scale = (float(family.y[0]) - shift) / slope, float(family.scale[0]) / abs(slope)
        return (location, 0.0, scale, float(family.nu[0]))

    @cached_property
    def log_constant(self) -> float:
        """Return the constant that compiled functions leave out of the log density; it is the same in all models."""
        from ppl_backends.targets.factors.compiled import site

        compiled, full = self.compiled, self.factors
        assert compiled is not None
        s = full.likelihood().offset
        left_out = full.likelihood().log_site(s[None])[0]
        family = compiled.family
        values = [site(family, *each)[0] for each in zip(s, compiled.y, compiled.extra, strict=True)]
        return float(full.log_constant + self.log_integral.sum() + left_out.sum() - np.sum(values))


def switched(factors: Factors, switchable: Bits) -> Switched:
    """Return the regression whose ``switchable`` coefficients ``(p,)`` can be switched off.

    Raises
    ------
    ModelError
        If a coefficient is correlated with others a priori, or its prior is improper.
    """
    prior = factors.prior
    if prior.precision.ndim == 2:
        factors = _with_diagonal_prior(factors)
        prior = factors.prior
    entries = sparse.csc_matrix(factors.design)[~factors.observed]
    rows = np.flatnonzero(~factors.observed)
    per_row = np.asarray((entries != 0).sum(axis=1)).ravel()
    own: list[Index] = []
    for j in range(factors.dim):
        seen = np.asarray(entries[:, [j]].toarray()).ravel() != 0
        if switchable[j] and np.any(seen & (per_row > 1)):
            raise ModelError(f"{factors.names[j]}: its prior depends on other parameters, so it cannot be switched off")
        own.append(rows[seen & (per_row == 1)])
    log_integral = np.zeros(factors.dim)
    for j in range(factors.dim):
        if len(own[j]):
            log_integral[j] = _log_integral(factors, own[j], j)
        elif prior.precision[j] == 0 and switchable[j]:
            raise ModelError(
                f"{factors.names[j]}: its prior is flat, so that evidences with and without it cannot be compared"
            )
    return Switched(factors, tuple(own), log_integral)


def _with_diagonal_prior(factors: Factors) -> Factors:
    """Return the factors with a diagonal prior precision; raise ModelError if it is not diagonal."""
    precision = factors.prior.precision
    off = np.abs(precision - np.diag(np.diagonal(precision)))
    off = off > 1e-10 * np.abs(precision).max()
    if off.any():
        j = int(np.argmax(off.any(axis=1)))
        raise ModelError(
            f"{factors.names[j]} and {factors.names[int(np.argmax(off[j]))]} are correlated a priori; "
            "independent priors are needed for switching"
        )
    return replace_prior(factors, factors.prior.mean, np.diagonal(precision))


def replace_prior(factors: Factors, mean: Array, precision: Array, log_constant: float | None = None) -> Factors:
    """Return the same factors with another Gaussian part, and another constant if one is given."""
    return Factors(
        factors.design,
        factors.offset,
        factors.sites,
        mean,
        precision,
        log_constant=factors.log_constant if log_constant is None else log_constant,
        observed=factors.observed,
        names=factors.names,
    )


def _log_integral(factors: Factors, rows: Index, j: int) -> float:
    """Return the log of the integral of the factors of one coefficient's prior."""
    family: SiteFamily = factors.sites.take(rows)
    slopes = np.array([_entry(factors, row, j) for row in rows])
    mean, precision = float(factors.prior.mean[j]), float(factors.prior.precision[j])

    def log_density(theta: float) -> float:
        value = float(family.log_site((slopes * theta + factors.offset[rows])[None]).sum())
        if precision > 0:
            value += 0.5 * (np.log(precision / (2 * np.pi)) - precision * (theta - mean) ** 2)
        return value

    # Over θ = tan(πu/2), for which the integrand is bounded even for Cauchy tails.
    def integrand(u: float) -> float:
        theta = np.tan(0.5 * np.pi * u)
        return float(np.exp(log_density(theta)) * 0.5 * np.pi * (1.0 + theta**2))

    total, error = quad(integrand, -1.0, 1.0, limit=500, points=[0.0])
    if not (np.isfinite(total) and total > 0 and error < _INTEGRAL_ERROR * total):
        raise ModelError(f"{factors.names[j]}: the integral of its prior was not found ({total:.3g} ± {error:.2g})")
    found = float(np.log(total))
    return 0.0 if abs(found) < _INTEGRAL_ERROR else found


def _entry(factors: Factors, row: int, j: int) -> float:
    return float(factors.design[row, j])

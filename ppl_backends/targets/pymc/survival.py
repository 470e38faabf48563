"""Quantiles of truncated distributions, computed in that tail where the probabilities are small and have all their digits.

Above the median a distribution function is near one, and a quantile at such a value has lost the tail: nine standard
deviations from the mean of a normal distribution no digit is left. There the survival function S is inverted instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.abstract import _icdf, _logcdf
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op

__all__ = ["truncated_normal_quantile", "truncated_quantile"]

FLAT = 1e-9  # of the mass of a tail: an interval with less has an even density
FEWEST = 1e-6  # mass on the right that a distribution function alone resolves
FAR = 5.0  # standard deviations from the mean, from where on logs of a normal tail are used
STEPS = 4  # of Newton's method

Function = Callable[[Variable], Variable]


class Tails(NamedTuple):
    """The distribution function, the survival function, and their inverses."""

    below: Function
    lower_quantile: Function
    above: Function
    upper_quantile: Function


def truncated_quantile(base: Op, u: Variable, inputs: Sequence[Variable]) -> Variable:
    """Return the quantile of a truncated distribution at ``u``; NaN where the bounds leave no mass that can be computed."""
    *own, lower, upper = inputs
    exact = _tails_of(base, own)
    tails = exact or _by_distribution_function(base, own)
    discrete = isinstance(base, _DISCRETE)
    outside = lower - 1 if discrete else lower  # a whole number has a mass itself
    left, right = ([mass(end) for end in (outside, upper)] for mass in (tails.below, tails.above))
    on_right = left[0] > 0.5
    of_tail = pt.switch(on_right, right[0], left[1])
    within = pt.switch(on_right, right[0] - right[1], left[1] - left[0])
    x = pt.switch(
        on_right,
        tails.upper_quantile(right[0] + u * (right[1] - right[0])),
        tails.lower_quantile(left[0] + u * (left[1] - left[0])),
    )
    if not discrete:
        x = pt.switch(within < FLAT * of_tail, lower + u * (upper - lower), x)
    known = of_tail > (0.0 if exact else pt.switch(on_right, FEWEST, 0.0))
    return pt.switch(known, pt.clip(x, lower, upper), np.nan)


def truncated_normal_quantile(u: Variable, mean: Variable, sd: Variable, lower: Variable, upper: Variable) -> Variable:
    """Return the quantile of a normal distribution between two bounds, however far in a tail they are."""
    a, b = (lower - mean) / sd, (upper - mean) / sd
    flip = a + b < 0
    low, high = pt.switch(flip, -b, a), pt.switch(flip, -a, b)  # the tail, if any, is on the right
    share = pt.switch(flip, 1 - u, u)
    above = [_normal_above(end) for end in (low, high)]
    near = _normal_quantile_above(above[0] + share * (above[1] - above[0]))
    tail = _in_tail(pt.maximum(low, FAR), pt.maximum(high, FAR), share)
    z = pt.clip(pt.switch(low < FAR, near, tail), low, high)
    return mean + sd * pt.switch(flip, -z, z)


def _in_tail(low: Variable, high: Variable, share: Variable) -> Variable:
    """Return z with log S(z) = log{S(low) − share · (S(low) − S(high))}, by Newton's method."""

    def log_above(z: Variable) -> Variable:
        return -0.5 * z**2 + pt.log(0.5 * pt.erfcx(z / np.sqrt(2.0)))

    ratio = pt.switch(pt.isinf(high), 0.0, pt.exp(log_above(pt.switch(pt.isinf(high), low, high)) - log_above(low)))
    drop = pt.log1p(share * (ratio - 1))
    z = pt.sqrt(low**2 - 2 * drop)
    for _ in range(STEPS):
        # log S(z) − log S(low) as a difference that loses no digits
        fallen = 0.5 * (low - z) * (low + z) + pt.log(pt.erfcx(z / np.sqrt(2.0)) / pt.erfcx(low / np.sqrt(2.0)))
        z += (fallen - drop) * np.sqrt(np.pi / 2) * pt.erfcx(z / np.sqrt(2.0))
    return z


def _tails_of(base: Op, own: Sequence[Variable]) -> Tails | None:
    """Return both tails of a distribution with all their digits, None if only its distribution function is known."""
    if type(base) not in _KNOWN:
        return None
    count, make = _KNOWN[type(base)]
    return make(_by_distribution_function(base, own), *own[len(own) - count :])


def _by_distribution_function(base: Op, own: Sequence[Variable]) -> Tails:
    def below(x: Variable) -> Variable:
        return pt.exp(_logcdf(base, x, *own))

    def quantile(p: Variable) -> Variable:
        return _icdf(base, p, *own)

    return Tails(below, quantile, lambda x: 1 - below(x), lambda p: quantile(1 - p))


def _symmetric(known: Tails, centre: Variable, scale: Variable) -> Tails:
    return known._replace(
        above=lambda x: known.below(2 * centre - x),
        upper_quantile=lambda p: 2 * centre - known.lower_quantile(p),
    )


def _cauchy(known: Tails, centre: Variable, scale: Variable) -> Tails:
    left = known._replace(
        below=lambda x: pt.arctan2(1.0, (centre - x) / scale) / np.pi,
        lower_quantile=lambda p: centre - scale / pt.tan(np.pi * p),
    )
    return _symmetric(left, centre, scale)


def _student(known: Tails, df: Variable, centre: Variable, scale: Variable) -> Tails:
    def below(x: Variable) -> Variable:
        z = (x - centre) / scale
        tail = 0.5 * pt.betainc(df / 2, 0.5, df / (df + z**2))
        return pt.switch(z < 0, tail, 1 - tail)

    return _symmetric(known._replace(below=below), centre, scale)


def _normal_above(z: Variable) -> Variable:
    return 0.5 * pt.erfc(z / np.sqrt(2.0))


def _normal_quantile_above(p: Variable) -> Variable:
    return np.sqrt(2.0) * pt.erfcinv(2 * p)


def _weibull(known: Tails, shape: Variable, scale: Variable) -> Tails:
    return Tails(
        lambda x: -pt.expm1(-((pt.maximum(x, 0) / scale) ** shape)),
        lambda p: scale * (-pt.log1p(-p)) ** (1 / shape),
        lambda x: pt.exp(-((pt.maximum(x, 0) / scale) ** shape)),
        lambda p: scale * (-pt.log(p)) ** (1 / shape),
    )


def _gamma(known: Tails, shape: Variable, scale: Variable) -> Tails:
    return known._replace(
        above=lambda x: pt.gammaincc(shape, pt.maximum(x, 0) / scale),
        upper_quantile=lambda p: scale * pt.gammainccinv(shape, p),
    )


def _inverse_gamma(known: Tails, shape: Variable, scale: Variable) -> Tails:
    return Tails(
        lambda x: pt.gammaincc(shape, scale / pt.maximum(x, 0)),
        lambda p: scale / pt.gammainccinv(shape, p),
        lambda x: pt.gammainc(shape, scale / pt.maximum(x, 0)),
        lambda p: scale / pt.gammaincinv(shape, p),
    )


def _beta(known: Tails, a: Variable, b: Variable) -> Tails:
    return known._replace(
        above=lambda x: pt.betainc(b, a, 1 - pt.clip(x, 0, 1)),
        upper_quantile=lambda p: 1 - pt.betaincinv(b, a, p),
    )


def _half_normal(known: Tails, start: Variable, scale: Variable) -> Tails:
    return Tails(
        lambda x: pt.erf(pt.maximum(x - start, 0) / (scale * np.sqrt(2.0))),
        lambda p: start + scale * np.sqrt(2.0) * pt.erfinv(p),
        lambda x: 2 * _normal_above(pt.maximum(x - start, 0) / scale),
        lambda p: start + scale * _normal_quantile_above(p / 2),
    )


def _half_cauchy(known: Tails, scale: Variable) -> Tails:
    return known._replace(
        above=lambda x: 2 / np.pi * pt.arctan2(scale, pt.maximum(x, 0)),
        upper_quantile=lambda p: scale / pt.tan(0.5 * np.pi * p),
    )


def _log_normal(known: Tails, mean: Variable, sd: Variable) -> Tails:
    def z(x: Variable) -> Variable:
        return (pt.log(pt.maximum(x, 0)) - mean) / sd

    return Tails(
        lambda x: _normal_above(-z(x)),
        lambda p: pt.exp(mean - sd * _normal_quantile_above(p)),
        lambda x: _normal_above(z(x)),
        lambda p: pt.exp(mean + sd * _normal_quantile_above(p)),
    )


def _pareto(known: Tails, shape: Variable, start: Variable) -> Tails:
    return known._replace(
        above=lambda x: pt.minimum(start / pt.maximum(x, start), 1) ** shape,
        upper_quantile=lambda p: start * p ** (-1 / shape),
    )


def _gumbel(known: Tails, mean: Variable, scale: Variable) -> Tails:
    return known._replace(
        above=lambda x: -pt.expm1(-pt.exp(-(x - mean) / scale)),
        upper_quantile=lambda p: mean - scale * pt.log(-pt.log1p(-p)),
    )


def _geometric(known: Tails, p: Variable) -> Tails:
    def above(x: Variable) -> Variable:
        return pt.exp(pt.maximum(pt.floor(x), 0) * pt.log1p(-p))

    def quantile(mass: Variable) -> Variable:
        return pt.floor(pt.log(mass) / pt.log1p(-p)) + 1

    return Tails(lambda x: 1 - above(x), lambda q: quantile(1 - q), above, quantile)


_DISCRETE = (pm.Geometric.rv_type, pm.DiscreteUniform.rv_type)
_KNOWN: dict[type, tuple[int, Callable[..., Tails]]] = {
    pm.Laplace.rv_type: (2, _symmetric),
    pm.Logistic.rv_type: (2, _symmetric),
    pm.Cauchy.rv_type: (2, _cauchy),
    pm.StudentT.rv_type: (3, _student),
    pm.Exponential.rv_type: (1, lambda known, mean: _weibull(known, pt.ones_like(mean), mean)),
    pm.Weibull.rv_type: (2, _weibull),
    pm.Gamma.rv_type: (2, _gamma),
    pm.InverseGamma.rv_type: (2, _inverse_gamma),
    pm.Beta.rv_type: (2, _beta),
    pm.HalfNormal.rv_type: (2, _half_normal),
    pm.HalfCauchy.rv_type: (1, _half_cauchy),
    pm.LogNormal.rv_type: (2, _log_normal),
    pm.Pareto.rv_type: (2, _pareto),
    pm.Gumbel.rv_type: (2, _gumbel),
    pm.Geometric.rv_type: (1, _geometric),
}

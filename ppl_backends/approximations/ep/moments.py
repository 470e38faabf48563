"""Moments of tilted distributions t(s)ᵖ·N(s; m, v), all sites in one vectorised call.

Sites with closed forms use them. For the others a Gauss–Hermite rule is centred at the current estimate of the tilted
mean and standard deviation, which at a fixed point of EP are those of the global approximation, and centred again if
that guess was poor. On request the rule is compared with one of twice as many nodes, and doubled for the sites at
which the two disagree. If no rule of the ladder is accurate (jumps, kinks, hard support, several modes), the site is
integrated by adaptive bisection with Gauss–Kronrod panels, over a window found by search.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import roots_hermitenorm

from ppl_backends.approximations.ep.budget import BISECTION, spend
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.targets.factors.sites import Array, Fraction, SiteFamily, TiltedMoments

LEVELS = (8, 32, 128, 256)
"""Nodes of the Gauss–Hermite ladder, each checked by twice as many; the level after the last is adaptive panels. Steps are by
factors of four, not two: on 200 sites each level costs more in calls than in nodes."""

PANELS = len(LEVELS)
TOLERANCE = 1e-6


class Tilted(NamedTuple):
    """Tilted moments ``(n,)`` of every site, NaN if an integral was not found, and the level of quadrature of each."""

    log_z: Array
    mean: Array
    variance: Array
    level: NDArray[np.int8]


def tilted_moments(
    sites: SiteFamily,
    mean: Array,
    variance: Array,
    guess_mean: Array,
    guess_variance: Array,
    level: NDArray[np.int8],
    fraction: Fraction = 1.0,
    check: bool = False,
    rows: NDArray[np.integer] | None = None,
) -> Tilted:
    """Return log normaliser, mean and variance of t(s)ᵖ·N(s; mean, variance) for every site, or for those of ``rows``.

    Every family computes the power p from ``fraction``. The guesses are approximate locations of the tilted
    distributions. ``check`` raises the levels of sites whose rule and the next one disagree.
    """
    result = Tilted(np.empty_like(mean), np.empty_like(mean), np.empty_like(mean), level.copy())
    for family, columns, own in sites.pieces(rows):
        cavity = mean[columns], variance[columns]
        power = family.fractions(fraction, own)
        closed = family.tilted(*cavity, power, own)
        if closed is None:
            guess = guess_mean[columns], guess_variance[columns]
            closed, result.level[columns] = _by_quadrature(
                family, own, cavity, guess, level[columns].copy(), power, check
            )
        for whole, part in zip(result[:3], closed, strict=True):
            whole[columns] = part
    return result


def _by_quadrature(
    family: SiteFamily,
    own: NDArray[np.integer] | None,
    cavity: tuple[Array, Array],
    guess: tuple[Array, Array],
    level: NDArray[np.int8],
    power: float,
    check: bool,
) -> tuple[TiltedMoments, NDArray[np.int8]]:
    """Return moments of one family at the level of each site; ``check`` raises the levels until two rules agree."""
    moments = TiltedMoments(*(np.full(len(level), np.nan) for _ in range(3)))
    pending = np.arange(len(level))
    while len(pending):
        for k in np.unique(level[pending]):
            at = pending[level[pending] == k]
            _store(moments, at, _at_level(int(k), family, own, cavity, guess, at, power))
        hermite = pending[level[pending] < PANELS]
        good = (moments.variance[hermite] > 0) & np.isfinite(moments.log_z[hermite])
        if check and len(hermite):
            finer = TiltedMoments(*(part.copy() for part in moments))
            for k in np.unique(level[hermite]):
                at = hermite[level[hermite] == k]
                here = (moments.mean, moments.variance)
                _store(finer, at, _at_level(int(k), family, own, cavity, here, at, power, refine=2))
            good &= _agree(moments, finer, cavity, hermite)
        pending = hermite[~good]
        level[pending] += 1
    return moments, level


def _store(moments: TiltedMoments, at: NDArray[np.integer], part: TiltedMoments) -> None:
    for whole, values in zip(moments, part, strict=True):
        whole[at] = values


def _agree(
    coarse: TiltedMoments, fine: TiltedMoments, cavity: tuple[Array, Array], at: NDArray[np.integer]
) -> NDArray[np.bool_]:
    """Return whether two rules agree, relative to the change that the site makes to its cavity."""
    mean, variance = cavity[0][at], cavity[1][at]
    with np.errstate(all="ignore"):
        tilted = fine.variance[at]
        change = np.abs(fine.mean[at] - mean) / np.sqrt(variance) + np.abs(tilted / variance - 1)
        error = np.abs(fine.mean[at] - coarse.mean[at]) / np.sqrt(tilted) + np.abs(coarse.variance[at] / tilted - 1)
        error_log_z = np.abs(fine.log_z[at] - coarse.log_z[at])
        agree = (error <= TOLERANCE * change + 1e-13) & (error_log_z <= TOLERANCE * np.minimum(1.0, change) + 1e-12)
    return agree


@cache
def _hermite(nodes: int) -> tuple[Array, Array, Array]:
    """Return nodes x, log weights so that Σ exp(log w) f(x) ≈ ∫ f(x) dx for f close to Gaussian, and rows 1, x, x²."""
    x, w = roots_hermitenorm(nodes)
    keep = w > 0
    x, w = x[keep], w[keep]
    return x[:, None], (np.log(w) + 0.5 * x**2)[:, None], np.stack([np.ones_like(x), x, x**2])


def _at_level(
    level: int,
    family: SiteFamily,
    own: NDArray[np.integer] | None,
    cavity: tuple[Array, Array],
    guess: tuple[Array, Array],
    at: NDArray[np.integer],
    power: float,
    refine: int = 1,
) -> TiltedMoments:
    """Return the moments of the sites ``at`` by the rule of one level, or one of ``refine`` times its nodes."""
    whole = len(at) == len(cavity[0])
    rows = own if whole else (at if own is None else own[at])
    mean, variance, centre, spread = (part[at] for part in (*cavity, *guess))
    if level >= PANELS:
        return panel_moments(family, rows if rows is not None else at, mean, variance, centre, spread, power)
    nodes = refine * LEVELS[level]
    found = _gauss_hermite(nodes, family, rows, mean, variance, centre, spread, power)
    for _ in range(6):
        with np.errstate(all="ignore"):
            off = (np.abs(found.mean - centre) > 0.5 * np.sqrt(spread)) | (
                np.abs(np.log(found.variance / spread)) > 0.7
            )
            poor = np.flatnonzero(off & (found.variance > 0) & np.isfinite(found.mean))
        if not len(poor):
            break
        centre, spread = centre.copy(), spread.copy()
        centre[poor], spread[poor] = found.mean[poor], found.variance[poor]
        sub = at[poor] if own is None else own[at[poor]]
        part = (nodes, family, sub, mean[poor], variance[poor], centre[poor], spread[poor], power)
        _store(found, poor, _gauss_hermite(*part))
    return found


def _gauss_hermite(
    nodes: int,
    family: SiteFamily,
    rows: NDArray[np.integer] | None,
    mean: Array,
    variance: Array,
    centre: Array,
    spread: Array,
    power: float,
) -> TiltedMoments:
    """Return one rule, importance-weighted from N(centre, spread) to the tilted density."""
    x, log_w, powers = _hermite(nodes)
    with np.errstate(all="ignore"):
        sd = np.sqrt(spread)
        s = centre + sd * x
        spend(s.size, len(mean))
        log_f = family.log_site(s, rows)
        if power != 1.0:
            log_f = power * log_f
        s -= mean
        s *= s
        s *= -0.5 / variance
        log_f = np.add(log_f, s, out=s)
        log_f += log_w
        top = log_f.max(axis=0)
        log_f -= top
        np.maximum(log_f, -200.0, out=log_f)  # numbers near underflow are slow
        f = np.exp(log_f, out=log_f)
        total, first, square = powers @ f
        first /= total
        second = square / total - first**2
        log_z = top + np.log(total) + 0.5 * (np.log(spread / variance) - LOG_2PI)
    return TiltedMoments(log_z, centre + sd * first, spread * second)


# Adaptive panels ------------------------------------------------------------------------------------------------------

# Gauss–Kronrod 7–15 pair on [−1, 1] (QUADPACK): the odd-numbered nodes are those of the 7-point Gauss rule.
_K = np.array(
    [
        0.991455371120812639206854697526329,
        0.949107912342758524526189684047851,
        0.864864423359769072789712788640926,
        0.741531185599394439863864773280788,
        0.586087235467691130294144004696738,
        0.405845151377397166906606412076961,
        0.207784955007898467600689403773245,
    ]
)
_WK = np.array(
    [
        0.022935322010529224963732008058970,
        0.063092092629978553290700663189204,
        0.104790010322250183839876322541518,
        0.140653259715525918745189590510238,
        0.169004726639267902826583426598550,
        0.190350578064785409913256402421014,
        0.204432940075298892414161999234649,
    ]
)
_WG = np.array(
    [0.129484966168869693270611432679082, 0.279705391489276667901467771423780, 0.381830050505118944950369775488975]
)
NODES = np.concatenate([-_K, [0.0], _K[::-1]])[:, None]
KRONROD = np.concatenate([_WK, [0.209482141084727828012999174891714], _WK[::-1]])[:, None]
GAUSS = np.zeros((15, 1))
GAUSS[1::2, 0] = np.concatenate([_WG, [0.417959183673469387755102040816327], _WG[::-1]])
# Values at −1 and 1 of the polynomial through the 15 nodes: only these show a jump beyond the outermost node.
END = np.linalg.solve(
    np.polynomial.legendre.legvander(NODES[:, 0], 14).T, np.polynomial.legendre.legvander([-1.0, 1.0], 14).T
)
END_GAP = 1 + NODES[0, 0]

WINDOW_NATS = 40.0
MAX_PANELS = 4000  # per site; an integrand that needs more is noise


def panel_moments(
    family: SiteFamily,
    rows: NDArray[np.integer],
    mean: Array,
    variance: Array,
    centre: Array,
    spread: Array,
    power: float,
) -> TiltedMoments:
    """Return tilted moments by bisecting the panels whose Gauss and Kronrod sums differ, for all sites at once."""

    def log_f(s: Array, site: NDArray[np.integer]) -> Array:
        spend(s.size, len(rows), BISECTION)
        with np.errstate(all="ignore"):
            value = power * family.log_site(s, rows[site]) - 0.5 * (s - mean[site]) ** 2 / variance[site]
        return np.where(np.isnan(value), -np.inf, value)

    n = len(rows)
    low, high, top, rough = _window(log_f, mean, variance, centre, spread)
    sums = np.zeros((3, n))
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    site = np.repeat(np.flatnonzero(np.isfinite(top)), 8)  # eight panels each, in units of the window: [−1, 1]
    left = np.tile(np.linspace(-1, 0.75, 8), len(site) // 8)
    width = np.full(len(site), 0.25)
    spent = np.zeros(n)
    while len(site):
        spent += np.bincount(site, minlength=n)
        if np.any(spent > MAX_PANELS):
            sums[0, spent > MAX_PANELS] = np.nan
            kept = spent[site] <= MAX_PANELS
            site, left, width = site[kept], left[kept], width[kept]
            continue
        x = left + 0.5 * width * (1 + np.concatenate([NODES, [[-1.0], [1.0]]]))
        with np.errstate(all="ignore"):
            f = np.exp(np.minimum(log_f(middle[site] + half[site] * x, site) - top[site], 300.0))
        x, f, ends = x[:15], f[:15], f[15:]
        part = np.stack([(KRONROD * f * x**k).sum(axis=0) * 0.5 * width for k in range(3)])
        error = np.abs(((KRONROD - GAUSS) * f).sum(axis=0)) + END_GAP * np.abs(END.T @ f - ends).sum(axis=0)
        error *= 0.5 * width
        split = (error > 1e-10 * rough[site]) & (width > 1e-11)
        for k in range(3):
            sums[k] += np.bincount(site[~split], part[k, ~split], minlength=n)
        site, left, width = (np.repeat(array[split], 2) for array in (site, left, width))
        width = 0.5 * width
        left[1::2] += width[1::2]
    with np.errstate(all="ignore"):
        first = sums[1] / sums[0]
        second = sums[2] / sums[0] - first**2
        log_z = top + np.log(sums[0] * half) - 0.5 * (np.log(variance) + LOG_2PI)
    return TiltedMoments(log_z, middle + half * first, np.where(second > 0, half**2 * second, np.nan))


def _window(
    log_f: Callable[..., Array], mean: Array, variance: Array, centre: Array, spread: Array
) -> tuple[Array, Array, Array, Array]:
    """Return for every site the interval where log f is within 40 nats of its maximum, that maximum, and a rough integral.

    A first search goes out geometrically from the cavity's mean and from the guess; an even grid is then cut to the
    relevant part until it no longer shrinks.
    """
    reach = 2.0 ** np.arange(-8.0, 11.0, 0.5)
    reach = np.concatenate([-reach[::-1], [0.0], reach])[:, None]
    site = np.arange(len(mean))
    s = np.concatenate([mean + np.sqrt(variance) * reach, centre + np.sqrt(spread) * reach])
    s.sort(axis=0)
    low, high, top = _cut(s, log_f(s, site))
    steps = np.linspace(0, 1, 65)[:, None]
    integral = np.ones(len(mean))
    for _ in range(60):
        s = low + (high - low) * steps
        value = log_f(s, site)
        new_low, new_high, top = _cut(s, value)
        with np.errstate(all="ignore"):
            integral = np.exp(value - top).mean(axis=0) * 2  # over [−1, 1]
        if not np.any((new_high - new_low) < 0.5 * (high - low)):
            break
        low, high = new_low, new_high
    return low, high, top, integral


def _cut(s: Array, value: Array) -> tuple[Array, Array, Array]:
    """Return the part of the grid within 40 nats of the maximum, plus one node on each side, and the maximum."""
    top = value.max(axis=0)
    inside = value >= top - WINDOW_NATS
    last = len(s) - 1
    first_in = np.maximum(inside.argmax(axis=0) - 1, 0)
    last_in = np.minimum(last - inside[::-1].argmax(axis=0) + 1, last)
    columns = np.arange(s.shape[1])
    return s[first_in, columns], s[last_in, columns], top

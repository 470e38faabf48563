"""Start of a run: draws of the start of the path, with their log normaliser if it is known.

A prior that can be sampled, and a Gaussian, give independent draws and are normalised. The prior of a Stan program is
only a density. A separate run samples it, from independent Cauchy variables (whose tails are at least as heavy as
those of any usual prior, so the weights are bounded) to the prior. The evidence of that run, or a bridge from its last
particles, is the log of the prior's normaliser, by which the program's evidence must be multiplied: log ½ for every
half-normal written as a normal with a lower bound, for example.

A likelihood may be zero on most of the prior: an inequality written as a Potential of minus infinity, a box, data that
only a few parameter values allow. No beta makes that step smaller, because every β > 0 has the same support. The start
is then the prior restricted to the support, by rejection: points are drawn until enough of them are inside. The share
of the draws that are inside estimates the integral of the restricted start, with the error of a binomial share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError, PriorSamplingError
from ppl_backends.importance.outside import share_undefined
from ppl_backends.numerics.population import concatenate
from ppl_backends.numerics.robust import ONE_SD
from ppl_backends.smc.core import Start
from ppl_backends.smc.evidence import LineageVariance
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.targets.propriety import improper_coordinate
from ppl_backends.targets.protocol import Array, BaseTarget

_SHARE, _FEWEST = 0.1, 100  # of the particles, or this number: points inside that suffice for a start
_MOST = 100  # draws per particle
_HOPELESS = 20  # points inside, below which no error bar is possible


class StartFigures(NamedTuple):
    """Figures of a start: the log integral of the path's base, with variance and degrees of freedom of its estimate.

    ``stages`` are those of the run that sampled it. ``undefined`` is the share of draws whose density is NaN or +inf.
    ``n_draws`` is larger than the number of particles if few draws are inside the support.
    """

    log_normalizer: float
    variance: float = 0.0
    df: float = 1.0
    stages: tuple[Any, ...] = ()
    undefined: float = 0.0
    n_draws: int = 0


@dataclass(frozen=True)
class IndependentCauchy:
    """Independent Cauchy coordinates, as an approximation from which a path can start."""

    location: Array
    scale: Array
    method: str = "independent Cauchy"
    representation: str = "independent"

    @property
    def dim(self) -> int:
        """Return the number of coordinates."""
        return len(self.location)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return draws ``(n, dim)``."""
        return self.location + self.scale * rng.standard_cauchy((n, self.dim))

    def log_density(self, x: Array) -> Array:
        """Return the log density ``(n,)``."""
        z = (x - self.location) / self.scale
        return -(np.log1p(z**2) + np.log(np.pi * self.scale)).sum(axis=1)

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the log density ``(n,)`` and gradient ``(n, dim)``."""
        z = (x - self.location) / self.scale
        return self.log_density(x), -2.0 * z / (1.0 + z**2) / self.scale


_GRID = np.sinh(np.linspace(-10.0, 10.0, 121))  # from -11013 to 11013, finest around zero
_NEAR, _VALLEY = 30.0, 1e6  # widths from the centre in which a slice has its first node, and fall that ends it
_CENTRES = 9
_SWEEPS = 2


def cauchy_around(target: BaseTarget) -> IndependentCauchy:
    """Return independent Cauchy variables with the medians and widths of a density's slices along the axes.

    Slices pass through several random points, and medians over these are used, because slices through a single point
    can be degenerate (a hierarchical prior has a pole where all members are equal). A second sweep uses points where
    the first found density.
    """
    rng = np.random.default_rng(0)  # the same start in every run
    location, scale = np.zeros(target.dim), np.ones(target.dim)
    for _ in range(_SWEEPS):
        centres = location + scale * rng.standard_normal((_CENTRES, target.dim))
        slices = np.array([_slices(target, centre, scale) for centre in centres])  # (centres, 2, dim)
        location, scale = np.median(slices, axis=0)
    return IndependentCauchy(location, scale)


def _slices(target: BaseTarget, centre: Array, scale: Array) -> tuple[Array, Array]:
    """Return medians and widths ``(dim,)`` of the density's slices through ``centre``; the given ones for empty slices."""
    nodes = centre[:, None] + scale[:, None] * _GRID  # (dim, grid)
    points = np.repeat(centre[None, :], nodes.size, axis=0)
    points[np.arange(nodes.size), np.repeat(np.arange(target.dim), len(_GRID))] = nodes.ravel()
    with np.errstate(all="ignore"):
        log_density = target.log_density(points).reshape(nodes.shape)
    median, width = centre.copy(), scale.copy()
    near = np.where(np.abs(_GRID) < _NEAR, log_density, -np.inf)
    for j in np.flatnonzero(np.isfinite(near).any(axis=1)):
        hill = _hill(log_density[j], int(np.argmax(near[j])))
        mass = np.exp(hill - hill.max()) * np.gradient(nodes[j])
        low, median[j], high = np.interp(ONE_SD, np.cumsum(mass) / mass.sum(), nodes[j])
        width[j] = max(0.5 * (high - low), 1e-8)
    return median, width


def _hill(log_density: Array, top: int) -> Array:
    """Return a slice that ends on both sides of node ``top`` where it has fallen by more than any sampler crosses.

    Beyond such a valley a density may be a number that rounding made: that of an inverse Wishart matrix is infinite
    where an entry of the matrix underflows.
    """
    hill = log_density.copy()
    for side in (hill[top:], hill[top::-1]):
        fall = np.maximum.accumulate(side) - side
        side[np.logical_or.accumulate((fall > _VALLEY) & np.isfinite(fall))] = -np.inf
    return hill


def check_proper(target: BaseTarget, advice: str = "use initial='laplace'") -> None:
    """Raise an error if a prior to be sampled is improper, and name the coordinate along which it does not decrease."""
    name = improper_coordinate(target)
    if name is not None:
        raise PriorSamplingError(f"{target.label}: the prior is improper along {name}; {advice}")


def start_inside(path: TemperingPath, n: int, rng: np.random.Generator, n_draws: int | None = None) -> Start:
    """Draw the start of a path, and draw more if few of its points are inside the support.

    A start that a separate run drew is kept. ``n_draws`` is the number of draws if a pilot run decided it. If no point
    is inside the support, the error names the reason.
    """
    start = path.start(n, rng)
    state, lineage = start.population, start.lineage or LineageVariance(n)
    found = np.flatnonzero(state.increment > -np.inf)
    zero = state.x[state.increment == -np.inf]
    undefined = share_undefined(path.target, zero) * len(zero) / n
    figures = start.figures or StartFigures(start.log_normalizer, lineage.variance, lineage.df)
    figures = figures._replace(undefined=undefined, n_draws=n)
    wanted = min(n, max(_FEWEST, int(_SHARE * n)))
    if figures.stages or (len(found) >= wanted if n_draws is None else n_draws == n):
        _check(path, state, len(found), n)
        return Start(state, start.log_normalizer, lineage, figures)
    kept, n_inside, drawn = [state.take(found)], len(found), n
    while drawn < n_draws if n_draws is not None else _goes_on(n_inside, wanted, drawn, n):
        more = path.start(n, rng).population
        kept.append(more.take(np.flatnonzero(more.increment > -np.inf)))
        n_inside, drawn = n_inside + len(kept[-1].x), drawn + n
    _check(path, state, n_inside, drawn)
    ancestors = min(n, n_inside)
    ancestor = np.arange(n) * ancestors // n
    lineage, share = LineageVariance(n), n_inside / drawn
    lineage.ancestor = ancestor
    lineage.contribution[:ancestors] = n * np.sqrt((1.0 - share) / (n_inside * ancestors))
    population = concatenate(kept).take(ancestor)
    return Start(population, start.log_normalizer + float(np.log(share)), lineage, figures._replace(n_draws=drawn))


def _check(path: TemperingPath, state: PathState, n_inside: int, n_draws: int) -> None:
    """Raise an error for a start with no point inside the support, and name the reason."""
    if n_inside:
        return
    said = path.target.explain(state.x[0])
    raise ModelError(
        f"{path.target.label}: the log density is -inf or NaN at all {n_draws} starting points "
        f"drawn from the {path.description}{said and f': {said}'}; check the data against the model's support"
    )


def _goes_on(n_inside: int, wanted: int, drawn: int, n: int) -> bool:
    """Return whether more draws are needed and likely to be enough."""
    return n_inside < wanted and drawn < _MOST * n and (n_inside + 1) * _MOST * n >= _HOPELESS * drawn

"""Draws of Gaussian and Student vectors inside a rectangle.

Exact draws: points under the minimax tilt have weights exp ψ that are bounded by their value at the saddle point, so
that accepting with probability exp(ψ − ψ*) gives independent draws; a share P / exp ψ* of the points is accepted
(Botev 2017). The radius of a Student vector is one more coordinate, tilted in the same way (Botev & L'Ecuyer 2015); ψ
is concave if there is at least one degree of freedom. If too few points are accepted, the draws are particles of
tilted SMC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.optimize import brentq, linprog, minimize_scalar
from scipy.special import gammaln, log_ndtr

from ppl_backends.errors import ModelError
from ppl_backends.numerics.weights import normalised_weights, systematic_resampling
from ppl_backends.options import checked, choice
from ppl_backends.orthants.intervals import Array, moments, quantile
from ppl_backends.orthants.moves import MOVES, move
from ppl_backends.orthants.ordering import Rectangle, order_rectangle
from ppl_backends.orthants.path import CoordinatePath, Particles, sequential
from ppl_backends.orthants.problem import GAUSSIAN, STRUCTURE, read_problems
from ppl_backends.orthants.student import radius_nodes
from ppl_backends.orthants.tilt import Tilt, saddle_point, weigh
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.results.inference_data import as_inference_data, library_attrs

CHUNK = 4096  # proposals at a time
MOST_COORDINATES = 2e8  # proposed in accept-reject before SMC replaces it
PARTICLES = 4096  # least number in a run of SMC
PILOTS = 512  # in a run for the share of one radius
SETTLING = 5  # final Gibbs sweeps over the draws
SLACK = 1e-6  # by which a weight may exceed the bound through rounding
NONE_INSIDE = "none of {n} particles is inside the rectangle: it is empty, or too small for draws by SMC"


@dataclass(frozen=True)
class TruncatedDraws:
    """Draws inside a rectangle.

    Attributes
    ----------
    draws : ndarray (draws, dim)
    exact : bool
        Whether they are independent and exactly distributed; otherwise they are particles of SMC.
    ess : float
        Effective sample size: the number of draws if they are exact, else that of the lineages of the particles.
    acceptance : float
        Share of accepted proposals; NaN for particles.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> inside = pb.sample_truncated(np.eye(2), lower=0.0, draws=100, random_seed=1)
    >>> inside.draws.shape, inside.exact, bool(inside.draws.min() >= 0)
    ((100, 2), True, True)
    """

    draws: Array = field(repr=False)
    exact: bool
    ess: float
    acceptance: float

    def to_inference_data(self) -> Any:
        """Return the draws as InferenceData, with one chain and the variable ``x``.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
        """
        attrs = library_attrs() | {
            "method": "truncated",
            "accuracy": "exact" if self.exact else "approximate",
            "ess": float(self.ess),
        }
        coords = {"chain": [0], "draw": np.arange(len(self.draws)), "x_dim_0": np.arange(self.draws.shape[1])}
        draws = xr.Dataset({"x": (tuple(coords), self.draws[None])}, coords=coords, attrs=attrs)
        return as_inference_data({"posterior": draws})


@checked(
    **GAUSSIAN,
    **STRUCTURE,
    method=choice("auto", "exact", "smc"),
)
def sample_truncated(
    cov: Any = None,
    lower: Any = None,
    upper: Any = None,
    *,
    cholesky: Any = None,
    loadings: Any = None,
    diagonal: Any = None,
    mean: Any = None,
    df: float | None = None,
    draws: int = 1000,
    method: str = "auto",
    random_seed: SeedLike = None,
) -> TruncatedDraws:
    """Draw from a Gaussian or Student vector restricted to a rectangle.

    Parameters
    ----------
    cov, lower, upper, cholesky, loadings, diagonal, mean, df
        As in :func:`ppl_backends.rectangle_probability`, for one rectangle.
    draws : int
    method : {"auto", "exact", "smc"}
        ``"exact"`` accepts and rejects, with unlimited run time. ``"smc"`` uses particles of tilted SMC, moved by
        Gibbs sweeps, which are approximate; for a Student vector, at a grid of radii. ``"auto"`` is exact if that
        needs less than about a minute, else SMC.
    random_seed : int, sequence of int, SeedSequence, Generator or None

    Raises
    ------
    ModelError
        If the rectangle has probability zero, or the bounds and covariance are invalid.

    Examples
    --------
    >>> import numpy as np
    >>> result = sample_truncated([[1.0, 0.8], [0.8, 1.0]], lower=[2.0, -1.0], upper=[3.0, 1.0], draws=500, random_seed=1)
    >>> result.draws.shape, result.exact, bool((result.draws >= [2, -1]).all() and (result.draws <= [3, 1]).all())
    ((500, 2), True, True)
    """
    problems, batch = read_problems(cov, lower, upper, cholesky, loadings, diagonal, mean)
    if batch:
        raise ModelError(f"sample_truncated draws inside one rectangle, not inside a batch of shape {batch}")
    problem = problems[0]
    if problem.trivial() == -np.inf:
        raise ModelError("the rectangle has probability zero: there is nothing to draw from")
    varying = np.flatnonzero(problem.variance > 0)
    centre = np.broadcast_to(0.0 if mean is None else mean, problem.dim)
    x = np.zeros((draws, problem.dim))
    exact, ess, acceptance = True, float(draws), 1.0
    if varying.size:
        rest = problem.keep(varying)
        rectangle = order_rectangle(rest.cov, rest.lower, rest.upper)
        if _is_empty(rectangle):
            raise ModelError("the rectangle has probability zero: there is nothing to draw from")
        df = None if df is None or np.isinf(df) else df
        rng = spawn_generators(random_seed, 1)[0]
        values, exact, ess, acceptance = _draw(rectangle, df, draws, method, rng)
        x[:, varying] = np.clip(values, rest.lower, rest.upper)
    return TruncatedDraws(x + centre, exact, ess, acceptance)


def _is_empty(rectangle: Rectangle) -> bool:
    """Return whether no point is inside; the rows of a singular covariance can contradict each other."""
    rows, lower, upper = rectangle.rows, rectangle.lower, rectangle.upper
    if not (lower < upper).all():
        return True
    if len(rows) == rectangle.rank:
        return False
    below, above = np.isfinite(lower), np.isfinite(upper)
    sides, limits = np.concatenate([-rows[below], rows[above]]), np.concatenate([-lower[below], upper[above]])
    return bool(linprog(np.zeros(rectangle.rank), sides, limits, bounds=(None, None)).status == 2)


def _draw(
    rectangle: Rectangle, df: float | None, draws: int, method: str, rng: np.random.Generator
) -> tuple[Array, bool, float, float]:
    """Return draws ``(draws, dim)``, whether they are exact, their effective sample size and the acceptance rate."""
    if method != "smc" and (df is None or df >= 1):
        proposal = _proposal(rectangle, df)
        found, tried = _accept(proposal, CHUNK, CHUNK, rng)
        rate = len(found) / tried
        affordable = rate * MOST_COORDINATES >= draws * rectangle.rank
        if proposal.tilt.converged and (affordable or method == "exact"):
            more, also = _accept(proposal, draws - len(found), None, rng)
            return np.concatenate([found, more])[:draws], True, float(draws), (len(found) + len(more)) / (tried + also)
        if method == "exact":
            raise ModelError("method='exact': the saddle point of the tilt was not found; use method='smc'")
    elif method == "exact":
        raise ModelError(
            f"method='exact': df={df:g} is below 1, for which no bound of the weights is known; use method='smc'"
        )
    x, ess = _particles(rectangle, draws, rng) if df is None else _student_particles(rectangle, df, draws, rng)
    return x, False, ess, np.nan


class _Proposal(NamedTuple):
    """A tilted distribution and the bound of its weights; of a Student vector, with the tilt η of the radius."""

    rectangle: Rectangle
    tilt: Tilt
    df: float | None
    eta: float
    log_bound: float


def _proposal(rectangle: Rectangle, df: float | None) -> _Proposal:
    """Return the proposal at the saddle point.

    For a Student vector the saddle point over the other coordinates is a concave function of the radius r = √u alone,
    and η is such that a normal with mean η, truncated to r > 0, has mean r.
    """
    if df is None:
        tilt = saddle_point(rectangle)
        return _Proposal(rectangle, tilt, None, 0.0, tilt.log_bound)

    def height(log_r: float) -> float:
        r = np.exp(log_r)
        eta = _radius_tilt(r)
        inner = saddle_point(rectangle.scaled(r / np.sqrt(df))).log_bound
        return inner + (df - 1) * log_r + 0.5 * eta**2 - r * eta + float(log_ndtr(eta))

    middle = 0.5 * np.log(df)
    found = minimize_scalar(lambda t: -height(t), bracket=(middle - 0.5, middle + 0.5), options={"xtol": 1e-9})
    r = float(np.exp(found.x))
    tilt = saddle_point(rectangle.scaled(r / np.sqrt(df)))
    constant = 0.5 * np.log(2 * np.pi) + (1 - 0.5 * df) * np.log(2.0) - gammaln(0.5 * df)
    return _Proposal(rectangle, tilt, df, _radius_tilt(r), constant - float(found.fun))


def _radius_tilt(r: float) -> float:
    """Return η such that a normal with mean η and unit variance, truncated to the positive numbers, has mean r."""

    def excess(eta: float) -> float:
        return eta + float(moments(np.array([-eta]), np.array([np.inf])).mean[0]) - r

    return float(brentq(excess, -2 / r - 2, r + 1, xtol=1e-13))


def _propose(proposal: _Proposal, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return ``n`` points ``(n, dim)`` and their log weights."""
    rectangle, tilt, df, eta, _ = proposal
    uniforms = rng.random((rectangle.rank, n))
    if df is None:
        z, log_weights = weigh(rectangle, tilt, uniforms)
        return (rectangle.loadings @ z).T, log_weights
    r = eta + quantile(rng.random(n), np.full(n, -eta), np.full(n, np.inf))[0]
    scale = r / np.sqrt(df)
    z, log_weights = weigh(rectangle, tilt, uniforms, scale)
    constant = 0.5 * np.log(2 * np.pi) + (1 - 0.5 * df) * np.log(2.0) - gammaln(0.5 * df)
    log_weights += constant + (df - 1) * np.log(r) + 0.5 * eta**2 - r * eta + log_ndtr(eta)
    return (rectangle.loadings @ z / scale).T, log_weights


def _accept(proposal: _Proposal, wanted: int, most: int | None, rng: np.random.Generator) -> tuple[Array, int]:
    """Return accepted points, at least as many as wanted unless ``most`` proposals end first, and the number of trials."""
    kept: list[Array] = [np.empty((0, len(proposal.rectangle.loadings)))]
    count, tried = 0, 0
    while count < wanted and (most is None or tried < most):
        x, log_weights = _propose(proposal, CHUNK, rng)
        excess = float(log_weights.max()) - proposal.log_bound
        if not excess <= SLACK:
            raise ModelError(
                f"rounding makes a weight {excess:.2g} larger than its bound, so draws by rejection are not exact: the "
                "rectangle is too far in a tail (log P near or below -1e9) for double precision"
            )
        kept.append(x[np.log(rng.random(CHUNK)) <= log_weights - proposal.log_bound])
        count, tried = count + len(kept[-1]), tried + CHUNK
    return np.concatenate(kept), tried


def _particles(rectangle: Rectangle, draws: int, rng: np.random.Generator) -> tuple[Array, float]:
    """Return particles ``(draws, dim)`` of one run of tilted SMC, resampled and moved, and the ESS of their lineages."""
    n = max(draws, PARTICLES)
    tilt = saddle_point(rectangle)
    end = _run(rectangle, tilt, n, rng)
    if end.log_p == -np.inf:
        raise ModelError(NONE_INSIDE.format(n=n))
    shares = np.bincount(end.lineage, end.weights)
    z = end.z[:, rng.permutation(systematic_resampling(end.weights, draws, rng))]
    move(rng, rectangle, tilt, rectangle.rank, z, MOVES["gibbs"], SETTLING)
    return (rectangle.loadings @ z).T, min(float(draws), 1 / float(shares @ shares))


def _run(rectangle: Rectangle, tilt: Tilt, n: int, rng: np.random.Generator) -> Particles:
    """Return the particles of one run of tilted SMC."""
    return sequential(CoordinatePath(rectangle, tilt, rng.random((rectangle.rank, n))), rng, MOVES["gibbs"])


def _student_particles(rectangle: Rectangle, df: float, draws: int, rng: np.random.Generator) -> tuple[Array, float]:
    """Return the same for a Student vector: particles at radii of a grid, in proportion to their shares of P."""
    radii, log_p = radius_nodes(df, lambda radius: saddle_point(rectangle.scaled(radius)).log_bound)
    pilots = [rectangle.scaled(float(radius)) for radius in radii]
    for i, scaled in enumerate(pilots):
        log_p[i] += _run(scaled, saddle_point(scaled), PILOTS, rng).log_p
    if (log_p == -np.inf).all():
        raise ModelError(NONE_INSIDE.format(n=PILOTS))
    counts = np.bincount(systematic_resampling(normalised_weights(log_p)[0], draws, rng), minlength=len(radii))
    x, ess = [], 0.0
    for radius, scaled, count in zip(radii, pilots, counts, strict=True):
        if count:
            part, size = _particles(scaled, int(count), rng)
            x.append(part / radius)
            ess += size
    return rng.permutation(np.concatenate(x)), ess

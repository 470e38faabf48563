"""The factors of a Stan program, read off what it computes: p(θ, y) = exp(c) · N(θ; m₀, Q₀⁻¹) · ∏ᵢ tᵢ(aᵢᵀθ + bᵢ).

The program has to name two of its quantities. A *predictor*, a transformed parameter or generated quantity with one
element for each observation, is affine in the unconstrained parameters: its values at the unit vectors are the design.
``log_lik`` holds the log likelihood of each observation: at points moved along θ it gives every site's function at any
value of its own predictor. A known family is recognised by its values; other sites are tabulated.

What the density has beside ``log_lik`` is the prior. Coordinates in which it is quadratic form the Gaussian part, read
off second differences. Any other coordinate has to be independent of all others, and becomes a site along itself.

Nothing of this is taken on trust: the factors together have to equal the program's log density at random points, to 1e-8
of its size, or the program is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors import Factors, GaussianPrior, ScaledSites, SiteFamily
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.variables import collect

if TYPE_CHECKING:
    from ppl_backends.targets.stan.target import StanTarget

__all__ = ["TabulatedSites", "find_factors"]

TOLERANCE = 1e-8
SCALES, POINTS = (0.1, 0.5, 2.0), 8  # of the random points that prove the factors
MOST_EVALUATIONS = 200_000  # of the program, where each site needs its own
BLOCK_BYTES, TABLE_BYTES = 2**26, 2**30
NARROWEST = 8.0  # how far a table has to reach either way
NEGLIGIBLE = 300.0  # log density below the highest at which the error of a table no longer matters
TABLE = np.sinh(np.linspace(-6.0, 6.0, 4001)) * 0.25  # from −50 to 50, finest around zero


class Predictor(NamedTuple):
    """A quantity of the program that is affine in the parameters: its name, ``(n, dim)`` rows and ``(n,)`` offsets."""

    name: str
    design: Array
    offset: Array


def find_factors(target: StanTarget, predictor: str | None = None) -> Factors:
    """The factors of a Stan program with data.

    Parameters
    ----------
    target : StanTarget
    predictor : str, optional
        The quantity that the observations see the parameters through; guessed where only one can be.

    Returns
    -------
    Factors

    Raises
    ------
    ModelError
        If the program has no ``log_lik`` or no predictor, or does not factorise; names the variable in the way.
    """
    program = _Quantities(target)
    found = _find_predictor(program, predictor)
    sites, scale, shift, constant = _likelihood_sites(program, found)
    designs = [found.design * np.reshape(scale, (-1, 1))]
    offsets = [shift]
    families: list[SiteFamily] = [ScaledSites(sites, constant) if np.any(constant) else sites]
    _prove_sites(program, found, families[0], designs[0], offsets[0])
    mean, precision, prior_sites = _prior(program)
    for coordinate, family, slope, intercept in prior_sites:
        row = np.zeros((1, target.dim))
        row[0, coordinate] = slope
        designs.append(row)
        offsets.append(np.atleast_1d(intercept))
        families.append(family)
    observed = np.arange(sites.n + len(prior_sites)) < sites.n
    factors = Factors(
        np.concatenate(designs),
        np.concatenate(offsets),
        families,
        mean,
        precision,
        observed=observed,
        names=target.names,
    )
    return _proved(target, factors)


class _Quantities:
    """The program's log density, ``log_lik`` and other quantities at many points."""

    def __init__(self, target: StanTarget) -> None:
        self.target, self.dim, self.label = target, target.dim, target.label
        self.variables = {v.name: v for v in target._model.variables if v.columns.size and v.imaginary is None}
        if "log_lik" not in self.variables:
            raise ModelError(f"{self.label}: EP needs the generated quantity log_lik, one entry for each observation")
        self.n = self.variables["log_lik"].columns.size

    def values(self, x: Array, *names: str) -> list[Array]:
        """Flat values ``(k, size)`` of quantities at points ``(k, dim)``, computed in blocks of points."""
        wanted, blocks = [self.variables[name] for name in names], []
        width = sum(variable.columns.size for variable in self.variables.values())
        for block in np.array_split(x, max(1, 8 * width * len(x) // BLOCK_BYTES)):
            seeds = np.zeros(len(block), dtype=np.uint32)
            flat, _ = self.target._model.constrain(block, seeds, True, self.target.cores)
            collected = collect(flat, wanted)
            blocks.append([collected[name].reshape(len(block), -1) for name in names])
        return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]

    def log_lik(self, x: Array) -> Array:
        """``log_lik`` ``(k, n)``."""
        return self.values(x, "log_lik")[0]

    def log_prior(self, x: Array) -> Array:
        """What the density has beside ``log_lik`` ``(k,)``, from the prior alone where that needs no compilation."""
        part = self.target.free_prior_part
        if part is not None:
            return part.model.evaluate(x, False, self.target.cores)[0]
        return self.target.log_density(x) - self.log_lik(x).sum(axis=1)


# -------------------------------------------------------------------------------------------------- predictor


def _find_predictor(program: _Quantities, name: str | None) -> Predictor:
    """The predictor named, or the only quantity that can be it."""
    parameters = set(program.target.parameter_names)
    candidates = [v for v in program.variables if v != "log_lik" and program.variables[v].columns.size == program.n]
    if name is not None:
        if name not in candidates:
            sizes = ", ".join(candidates) or "none"
            raise ModelError(
                f"{program.label}: predictor={name!r} is no quantity with {program.n} elements, as log_lik has; those "
                f"that have: {sizes}"
            )
        return _affine(program, name)
    found, refusals = [], []
    for candidate in candidates:
        try:
            found.append(_affine(program, candidate))
        except ModelError as refusal:
            refusals.append(str(refusal))
    others = [each for each in found if each.name not in parameters] or found
    same = all(
        np.allclose(each.design, others[0].design) and np.allclose(each.offset, others[0].offset) for each in others
    )
    if others and same:
        return others[0]
    if others:
        names = ", ".join(each.name for each in others)
        raise ModelError(
            f"{program.label}: which of {names} is the linear predictor? name it: predictor={others[0].name!r}"
        )
    if refusals:
        raise ModelError(refusals[0])
    raise ModelError(
        f"{program.label}: EP needs the linear predictor as a transformed parameter or generated quantity with "
        f"{program.n} elements, as log_lik has; add one and name it: predictor='eta'"
    )


def _affine(program: _Quantities, name: str) -> Predictor:
    """A quantity as an affine function of the unconstrained parameters, checked at random points."""
    eye = np.eye(program.dim)
    [values] = program.values(np.concatenate([np.zeros((1, program.dim)), eye, 2 * eye]), name)
    offset, (once, twice) = values[0], np.split(values[1:] - values[0], 2)
    size = 1 + np.abs(values).max()
    bent = ~(np.abs(twice - 2 * once).max(axis=1) <= 1e-9 * size)
    if bent.any():
        variable = program.target.names[int(np.argmax(bent))]
        raise ModelError(f"{program.label}: {name} is not affine in {variable}, so EP does not apply to this program")
    rng = np.random.default_rng(0)
    x = np.concatenate([scale * rng.standard_normal((POINTS, program.dim)) for scale in SCALES])
    [values] = program.values(x, name)
    error = np.abs(values - (x @ once + offset))
    if not (error <= 1e-9 * (size + np.abs(values))).all():
        raise ModelError(
            f"{program.label}: {name} is not affine in the unconstrained parameters together (differs by "
            f"{np.nanmax(error):.2g}), so EP does not apply to this program"
        )
    if not np.abs(once).any():
        raise ModelError(f"{program.label}: {name} does not depend on the parameters")
    return Predictor(name, np.where(np.abs(once) < 1e-14 * size, 0.0, once).T, offset)


# -------------------------------------------------------------------------------------------------- sites


def _likelihood_sites(program: _Quantities, found: Predictor) -> tuple[SiteFamily, Any, Array, Array]:
    """The sites as functions of scale · aᵀθ + shift, with a constant each."""
    from ppl_backends.targets.pymc.factors.recognise import recognise

    together, *_ = np.linalg.lstsq(found.design, np.ones(program.n), rcond=None)
    common = np.abs(found.design @ together - 1).max() < 1e-9  # all predictors move at once, as by an intercept
    evaluate: Callable[[Array], Array]
    if common:

        def evaluate(s: Array) -> Array:
            return program.log_lik(s[:, :1] * together)

    else:
        lengths = (found.design**2).sum(axis=1)
        if not (lengths > 0).all() or 50 * program.n > MOST_EVALUATIONS:
            raise ModelError(
                f"{program.label}: the sites of {found.name} cannot be evaluated one by one; there is no direction that "
                "moves all of them alike, such as an intercept"
            )
        directions = found.design / lengths[:, None]

        def evaluate(s: Array) -> Array:
            return np.stack([_diagonal(program, row[:, None] * directions) for row in s])

    known = recognise(evaluate, program.n)
    if known is not None:
        return known.family, known.scale, known.shift, np.broadcast_to(known.constant, (program.n,))
    if not common:
        raise ModelError(
            f"{program.label}: log_lik is of no known family in {found.name}, and no direction of the parameters, such as "
            "an intercept, moves all predictors alike, so that it cannot be tabulated; use fit_laplace or sample_smc"
        )
    if 40 * len(TABLE) * program.n > TABLE_BYTES:
        raise ModelError(f"{program.label}: {program.n} sites of no known family are too many to tabulate")
    table = evaluate(np.repeat(TABLE[:, None], program.n, axis=1))
    known_at = _finite_stretch(np.isfinite(table).all(axis=1))
    nodes, table = TABLE[known_at], table[known_at]
    if not len(nodes) or max(nodes[0], -nodes[-1]) > -NARROWEST:
        raise ModelError(
            f"{program.label}: log_lik is not finite where {found.name} is moved by {NARROWEST:g}; use fit_laplace or "
            "sample_smc"
        )
    between = np.repeat(0.5 * (nodes[1:] + nodes[:-1])[:, None], program.n, axis=1)
    sites, truth = TabulatedSites(nodes, table), evaluate(between)
    counts = truth > table.max(axis=0) - NEGLIGIBLE
    error = np.where(counts, np.abs(sites.log_site(between) - truth), 0.0)
    if not (error <= TOLERANCE * (1 + np.abs(truth))).all():
        raise ModelError(
            f"{program.label}: log_lik is no smooth function of {found.name} on ({nodes[0]:.0f}, {nodes[-1]:.0f}): "
            f"interpolation errs by {np.nanmax(error):.2g}; use fit_laplace or sample_smc"
        )
    return sites, 1.0, np.zeros(program.n), np.zeros(program.n)


def _finite_stretch(finite: Any) -> slice:
    """The nodes around zero, up to the first on each side at which some site is not finite."""
    middle, broken = len(finite) // 2, np.flatnonzero(~finite)
    if not finite[middle]:
        return slice(0, 0)
    before, after = broken[broken < middle], broken[broken > middle]
    return slice(int(before[-1]) + 1 if len(before) else 0, int(after[0]) if len(after) else len(finite))


def _diagonal(program: _Quantities, points: Array) -> Array:
    """``log_lik`` of observation i at point i."""
    rows = max(1, BLOCK_BYTES // (8 * program.n))
    blocks = [np.arange(k, min(k + rows, len(points))) for k in range(0, len(points), rows)]
    return np.concatenate([program.log_lik(points[b])[np.arange(len(b)), b] for b in blocks])


class TabulatedSites(SiteFamily):
    """Sites known at nodes: cubic splines between them, straight lines beyond.

    Parameters
    ----------
    nodes : array (k,), increasing
    values : array (k, n)
        Log t at the nodes.
    """

    def __init__(self, nodes: Array, values: Array) -> None:
        if not np.isfinite(values).all():
            raise ModelError(f"sites: not finite everywhere between {nodes[0]:g} and {nodes[-1]:g}")
        self.n, self._nodes = values.shape[1], nodes
        self._coefficients = np.ascontiguousarray(CubicSpline(nodes, values, axis=0).c)  # (4, k − 1, n)

    def take(self, rows: Any) -> SiteFamily:
        """The sites at ``rows`` as a family of their own."""
        taken = object.__new__(TabulatedSites)
        taken.n, taken._nodes, taken._coefficients = len(rows), self._nodes, self._coefficients[:, :, rows]
        return taken

    def _parts(self, s: Array, rows: Any) -> tuple[Array, Array, Array, Array]:
        """Value, slope and curvature at the nearest point of the table, and the distance to it."""
        inside = np.clip(s, self._nodes[0], self._nodes[-1])
        piece = np.clip(np.searchsorted(self._nodes, inside, side="right") - 1, 0, len(self._nodes) - 2)
        c = self._coefficients[:, piece, np.arange(self.n) if rows is None else rows]
        t = inside - self._nodes[piece]
        value = ((c[0] * t + c[1]) * t + c[2]) * t + c[3]
        return value, (3 * c[0] * t + 2 * c[1]) * t + c[2], 6 * c[0] * t + 2 * c[1], s - inside

    def log_site(self, s: Array, rows: Any = None) -> Array:
        """Log t, shaped as ``s``."""
        value, slope, _, beyond = self._parts(s, rows)
        return value + slope * beyond

    def derivatives(self, s: Array, rows: Any = None) -> tuple[Array, Array]:
        """First and second derivative of log t in s."""
        _, slope, curvature, beyond = self._parts(s, rows)
        return slope, np.where(beyond == 0, curvature, 0.0)


def _prove_sites(program: _Quantities, found: Predictor, family: SiteFamily, design: Array, offset: Array) -> None:
    """Compare the sites with ``log_lik`` at random points; names the variable that they see beside the predictor."""
    rng = np.random.default_rng(1)
    x = np.concatenate([scale * rng.standard_normal((POINTS, program.dim)) for scale in SCALES])

    def error(x: Array) -> float:
        truth = program.log_lik(x)
        gap = np.abs(family.log_site(x @ design.T + offset) - truth) / (TOLERANCE * (1 + np.abs(truth)))
        return float(np.max(gap[np.isfinite(truth)], initial=0.0))

    if error(x) <= 1:
        return
    for j in range(program.dim):
        if error(np.where(np.arange(program.dim) == j, x, 0.0)) > 1:
            variable = program.target.names[j]
            raise ModelError(
                f"{program.label}: log_lik depends on {variable} not through {found.name} alone, so EP does not apply to "
                "this program; use fit_laplace or sample_smc"
            )
    raise ModelError(
        f"{program.label}: log_lik is not a function of {found.name} alone, so EP does not apply to this program"
    )


# -------------------------------------------------------------------------------------------------- prior


def _prior(program: _Quantities) -> tuple[Array, Array, list[tuple[int, SiteFamily, float, Array]]]:
    """Mean and precision of the Gaussian part, and sites along coordinates: number, family, slope and intercept."""
    from ppl_backends.targets.pymc.factors.recognise import recognise

    dim, origin = program.dim, program.log_prior(np.zeros((1, program.dim)))[0]
    if not np.isfinite(origin):
        raise ModelError(f"{program.label}: the prior is not finite at the origin of the unconstrained parameters")
    precision, slope, sites = np.zeros((dim, dim)), np.zeros(dim), []
    steps = np.array([_step(program, j, origin) for j in range(dim)])
    for j in range(dim):
        s = steps[j] * np.array([-2.0, -1.0, 1.0, 2.0])
        line = program.log_prior(s[:, None] * np.eye(dim)[j]) - origin
        second = (line[1] + line[2]) / steps[j] ** 2
        first = (line[2] - line[1]) / (2 * steps[j])
        if (np.abs(first * s + 0.5 * second * s**2 - line) <= TOLERANCE * (1 + np.abs(line) + abs(origin))).all():
            precision[j, j], slope[j] = -second, first
            continue
        known = recognise(lambda s, j=j: program.log_prior(s * np.eye(dim)[j])[:, None] - origin, 1)  # type: ignore[misc]
        if known is None:
            raise ModelError(
                f"{program.label}: the prior of {program.target.names[j]} is neither Gaussian nor of another known family "
                "along its coordinate, so EP does not apply to this program; use fit_laplace or sample_smc"
            )
        family: SiteFamily = ScaledSites(known.family, known.constant) if np.any(known.constant) else known.family
        sites.append((j, family, float(np.ravel(known.scale)[0]), np.ravel(known.shift)))
    _mixed_differences(program, precision, slope, steps, origin, {j for j, *_ in sites})
    off_diagonal = precision - np.diag(np.diag(precision))
    mean = np.linalg.lstsq(precision, slope, rcond=None)[0]
    if not np.allclose(precision @ mean, slope, atol=1e-8 * (1 + np.abs(slope).max())):
        raise ModelError(
            f"{program.label}: the prior is an exponential along some direction, so EP does not apply to it"
        )
    return np.asarray(mean, dtype=np.float64), precision if np.any(off_diagonal) else np.diag(precision).copy(), sites


def _step(program: _Quantities, j: int, origin: float) -> float:
    """A step along a coordinate over which the log prior changes by about one, or 1 where it is flat."""
    sizes = 10.0 ** np.arange(-4, 5)
    change = np.abs(
        program.log_prior(np.concatenate([sizes, -sizes])[:, None] * np.eye(program.dim)[j]) - origin
    ).reshape(2, -1)
    change = np.where(np.isfinite(change), change, np.inf).max(axis=0)
    large = np.flatnonzero(change > 0.1)
    return float(sizes[large[0]]) if len(large) else 1.0


def _mixed_differences(
    program: _Quantities, precision: Array, slope: Array, steps: Array, origin: float, alone: set[int]
) -> None:
    """Fill in the precision off the diagonal; a coordinate with a site of its own must have nothing there."""
    dim = program.dim
    for j in range(dim):
        others = np.arange(j + 1, dim)
        if not len(others):
            continue
        points = np.zeros((len(others), 2, dim))
        points[np.arange(len(others)), :, others] = steps[others, None]
        points[:, 0, j] = steps[j]
        both, single = program.log_prior(points.reshape(-1, dim)).reshape(-1, 2).T
        own = program.log_prior(steps[j] * np.eye(dim)[j][None])[0]
        mixed = both - single - own + origin
        size = 1e-11 * (1 + np.abs(both) + abs(origin))
        mixed = np.where(np.abs(mixed) <= size, 0.0, mixed)
        precision[j, others] = precision[others, j] = -mixed / (steps[j] * steps[others])
        tied = [k for k in others[mixed != 0] if k in alone or j in alone]
        if tied:
            names = program.target.names
            raise ModelError(
                f"{program.label}: the priors of {names[j]} and {names[tied[0]]} are neither Gaussian together nor "
                "independent, so EP does not apply to this program; use fit_laplace or sample_smc"
            )


def _proved(target: StanTarget, factors: Factors) -> Factors:
    """The factors with their constant, if they equal the program's log density at random points."""
    rng = np.random.default_rng(2)
    x = [scale * rng.standard_normal((POINTS, target.dim)) for scale in SCALES]
    gaussian: GaussianPrior = factors.prior
    if gaussian.proper:
        x.append(gaussian.sample(2 * POINTS, rng))
    points = np.concatenate(x)
    truth, found = target.log_density(points), factors.log_density(points)
    usable = np.isfinite(truth)
    gap = (truth - found)[usable]
    constant = float(np.median(gap)) if usable.any() else np.nan
    size = 1 + np.abs(truth[usable]) + np.abs(found[usable])
    if not (np.abs(gap - constant) <= TOLERANCE * size).all():
        raise ModelError(
            f"{target.label}: the factors found differ from the program's log density by up to "
            f"{np.nanmax(np.abs(gap - constant)):.2g}, so EP does not apply to this program; use fit_laplace or sample_smc"
        )
    factors.log_constant = constant
    return factors

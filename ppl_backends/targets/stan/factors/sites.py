"""The sites of a Stan program: ``log_lik`` as a function of the predictor, of a known family or tabulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.interpolate import make_interp_spline
from scipy.special import factorial

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors import SiteFamily
from ppl_backends.targets.factors.finder import SiteGroup
from ppl_backends.targets.factors.proof import values_error
from ppl_backends.targets.factors.recognise import Recognised, recognise
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.factors.quantities import BLOCK_BYTES, TOLERANCE, Predictor, Quantities, random_points

MOST_EVALUATIONS = 200_000  # of the program, if each site needs its own
TABLE_BYTES = 2**30
NARROWEST = 8.0  # least half width of a table
NEGLIGIBLE = 300.0  # log density below the highest at which the error of a table is negligible
FEWEST, DOUBLINGS = 501, 3  # nodes of a table, which is refined until it interpolates accurately
TABLE = np.sinh(np.linspace(-6.0, 6.0, FEWEST)) * 0.25  # from −50 to 50, finest around zero


def likelihood_sites(program: Quantities, found: Predictor) -> Recognised:
    """Return the sites as functions of aᵀθ, the predictor without its offset."""
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
        return known
    if not common:
        raise ModelError(
            f"{program.label}: log_lik is of no known family in {found.name}, and no direction of the parameters, such as "
            "an intercept, moves all predictors alike, so that it cannot be tabulated; use fit_laplace or sample_smc"
        )
    sites = _tabulated(program, found, evaluate)
    return Recognised(sites, 1.0, np.zeros(program.n), np.zeros(program.n), lambda written: None)


def _tabulated(program: Quantities, found: Predictor, evaluate: Callable[[Array], Array]) -> TabulatedSites:
    """Return sites without a known family, interpolated with a checked error."""
    if 64 * 2**DOUBLINGS * FEWEST * program.n > TABLE_BYTES:
        raise ModelError(f"{program.label}: {program.n} sites of no known family are too many to tabulate")
    nodes, table = TABLE, evaluate(np.repeat(TABLE[:, None], program.n, axis=1))
    for _ in range(DOUBLINGS + 1):
        finite = _finite_stretch(nodes, np.isfinite(table).all(axis=1))
        nodes, table = nodes[finite], table[finite]
        if not len(nodes) or max(nodes[0], -nodes[-1]) > -NARROWEST:
            raise ModelError(
                f"{program.label}: log_lik is not finite where {found.name} is moved by {NARROWEST:g}; use fit_laplace or "
                "sample_smc"
            )
        between = 0.25 * np.sinh(0.5 * (np.arcsinh(4.0 * nodes[1:]) + np.arcsinh(4.0 * nodes[:-1])))
        points = np.repeat(between[:, None], program.n, axis=1)
        sites, truth = TabulatedSites(nodes, table), evaluate(points)
        counts = truth > table.max(axis=0) - NEGLIGIBLE
        error = np.where(counts, np.abs(sites.log_site(points) - truth), 0.0)
        if (error <= TOLERANCE * (1 + np.abs(truth))).all():
            return sites
        order = np.argsort(np.concatenate([nodes, between]))
        nodes, table = np.concatenate([nodes, between])[order], np.concatenate([table, truth])[order]
    raise ModelError(
        f"{program.label}: log_lik is no smooth function of {found.name} on ({nodes[0]:.0f}, {nodes[-1]:.0f}): "
        f"interpolation errs by {np.nanmax(error):.2g}; use fit_laplace or sample_smc"
    )


def _finite_stretch(nodes: Array, finite: Any) -> slice:
    """Return the nodes around zero, up to the first on each side at which some site is not finite."""
    middle, broken = int(np.argmin(np.abs(nodes))), np.flatnonzero(~finite)
    if not finite[middle]:
        return slice(0, 0)
    before, after = broken[broken < middle], broken[broken > middle]
    return slice(int(before[-1]) + 1 if len(before) else 0, int(after[0]) if len(after) else len(finite))


def _diagonal(program: Quantities, points: Array) -> Array:
    """Return ``log_lik`` of observation i at point i."""
    rows = max(1, BLOCK_BYTES // (8 * program.n))
    blocks = [np.arange(k, min(k + rows, len(points))) for k in range(0, len(points), rows)]
    return np.concatenate([program.log_lik(points[b])[np.arange(len(b)), b] for b in blocks])


class TabulatedSites(SiteFamily):
    """Sites given at nodes: quintic splines between them, straight lines beyond."""

    def __init__(self, nodes: Array, values: Array) -> None:
        if not np.isfinite(values).all():
            raise ModelError(f"sites: not finite everywhere between {nodes[0]:g} and {nodes[-1]:g}")
        spline = make_interp_spline(nodes, values, k=5)
        self.n, self._breaks = values.shape[1], np.unique(spline.t)
        self.program_points = 2 * len(nodes)  # half of them to check
        terms = [spline(self._breaks[:-1], nu=m) / factorial(m) for m in range(5, -1, -1)]
        self._coefficients = np.stack(terms)  # (6, pieces, n), of powers of the distance to the left break

    def take(self, rows: Any) -> SiteFamily:
        taken = object.__new__(TabulatedSites)
        taken.n, taken.program_points, taken._breaks = len(rows), self.program_points, self._breaks
        taken._coefficients = self._coefficients[:, :, rows]
        return taken

    def _parts(self, s: Array, rows: Any) -> tuple[Array, Array, Array, Array]:
        """Return value, slope and curvature at the nearest point of the table, and the distance to it."""
        inside = np.clip(s, self._breaks[0], self._breaks[-1])
        piece = np.clip(np.searchsorted(self._breaks, inside, side="right") - 1, 0, len(self._breaks) - 2)
        column = np.arange(self.n) if rows is None else rows
        t = inside - self._breaks[piece]
        value = slope = half_curvature = np.zeros_like(t)
        for coefficients in self._coefficients:  # Horner's scheme for a polynomial and its derivatives
            half_curvature = half_curvature * t + slope
            slope = slope * t + value
            value = value * t + coefficients[piece, column]
        return value, slope, 2 * half_curvature, s - inside

    def log_site(self, s: Array, rows: Any = None) -> Array:
        value, slope, _, beyond = self._parts(s, rows)
        return value + slope * beyond

    def derivatives(self, s: Array, rows: Any = None) -> tuple[Array, Array]:
        _, slope, curvature, beyond = self._parts(s, rows)
        return slope, np.where(beyond == 0, curvature, 0.0)


def prove_sites(program: Quantities, found: Predictor, sites: SiteGroup) -> None:
    """Compare the sites with ``log_lik`` at random points; an error names another variable on which they depend."""
    x = random_points(program.dim, 1)

    def error(x: Array) -> float:
        truth = program.log_lik(x)
        values = sites.family.log_site(x @ sites.design.T + sites.offset)
        return values_error(np.where(np.isfinite(truth), values, truth), truth, TOLERANCE)

    if error(x) <= 1:
        return
    for j, name in enumerate(program.names):
        if error(np.where(np.arange(program.dim) == j, x, 0.0)) > 1:
            raise program.refuse(f"log_lik depends on {name} not through {found.name} alone", j)
    raise ModelError(
        f"{program.label}: log_lik is not a function of {found.name} alone, so EP does not apply to this program; use "
        "fit_laplace or sample_smc"
    )

r"""The integral of a model's prior as written.

The free variables whose density does not integrate to one given its parents fall into groups that share no free
variable above them, and the integral is the product over the groups.

* If the integral m of each given its parents is known, that of a group is the mean of ∏ m over draws of the parents;
  it is exact if these are fixed. A variable on which another's m depends is drawn without its restriction, and
  counted.
* Otherwise bridge sampling estimates the integral of the density of the group and of the variables it depends on,
  between draws of it and a Student t fitted to other draws. If draws follow the density, any bridge function gives the
  same integral (Meng & Wong 1996). The geometric one is compared, and if the two differ the prior is not sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from scipy.special import logsumexp

from ppl_backends.errors import PriorSamplingError
from ppl_backends.numerics.bridge import bridge
from ppl_backends.numerics.student import Student
from ppl_backends.targets.integral import PriorIntegral, product
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.graph import DataValues, ModelShapes, ancestors, evaluate_graphs, free_variables
from ppl_backends.targets.pymc.masses import counted_mass, has_default_transform, log_mass
from ppl_backends.targets.pymc.priors import PriorDraws, PriorSampler, coordinates, joined_groups, prior_replacements

_BATCH, _MOST_DRAWS, _DRAWS_ONE_BY_ONE = 20_000, 500_000, 4_000
_PRECISE = 0.003  # standard error at which drawing ends
_BRIDGE_DRAWS = 10_000  # to fit the t, for the bridge, and of the t
_DISAGREEMENT = 4.0
_LARGEST_ERROR = 0.25  # of a bridge; above it, the error is unreliable too


class Masses(NamedTuple):
    """The free variables of a model by what is known about the integral of their density, given their parents."""

    known: dict[Variable, Variable]
    unknown: list[Variable]  # variables whose integral must be estimated


def prior_masses(model: pm.Model, shapes: ModelShapes) -> Masses:
    """Return the known integral of every free variable."""
    found = {rv: log_mass(model, rv, shapes.model[rv.name]) for rv in free_variables(model)}
    known = {rv: mass for rv, mass in found.items() if mass is not None and not isinstance(mass, float)}
    unknown = [rv for rv, mass in found.items() if mass is None]
    for rv in known:
        above_others = any(rv in ancestors([mass]) for other, mass in known.items() if other is not rv)
        if above_others and not has_default_transform(model, rv):
            known[rv] = counted_mass(model, rv, shapes.model[rv.name])
    return Masses(known, unknown)


def integrate_prior(
    model: pm.Model,
    data: DataValues,
    shapes: ModelShapes,
    masses: Masses,
    sampler: Callable[[], PriorSampler],
    free_terms: Callable[[Array], Mapping[str, Array]],
) -> PriorIntegral:
    """Return the log integral of the prior; the same in every call."""
    free = set(free_variables(model))
    if any(isinstance(rv.owner.op, FlatRV | HalfFlatRV) for rv in free):
        return PriorIntegral(float("nan"))
    reach = {rv: free & set(ancestors([mass])) for rv, mass in masses.known.items()}
    reach |= {rv: free & set(ancestors([rv])) for rv in masses.unknown}
    fixed = prior_replacements(model, data) if masses.known else {}
    parts: list[PriorIntegral] = []
    for group in joined_groups(reach):
        if any(rv in masses.unknown for rv in group):
            below = [v for v in free_variables(model) if any(v in ancestors([rv]) for rv in group)]
            parts.append(_by_bridge(below, shapes, sampler(), free_terms))
        else:
            mass = sum(masses.known[rv] for rv in group)
            exact = not any(reach[rv] for rv in group)
            parts.append(PriorIntegral(float(evaluate_graphs([mass], fixed)[0])) if exact else _by_draws(mass, fixed))
    return product(parts)


def _by_draws(log_weight: Variable, fixed: Mapping[Variable, Variable]) -> PriorIntegral:
    """Return log of the mean of a random weight, to a standard error of 0.003 if half a million draws suffice."""
    draw, rng = PriorDraws(clone_replace([log_weight], dict(fixed), rebuild_strict=False)), np.random.default_rng(0)
    batch, most = (_BATCH, _MOST_DRAWS) if draw.at_once else (_DRAWS_ONE_BY_ONE, _DRAWS_ONE_BY_ONE)
    log_weights = np.empty(0)
    while True:
        log_weights = np.concatenate([log_weights, draw(batch, rng)[0]])
        found = _log_mean(log_weights)
        if found.standard_error <= _PRECISE or len(log_weights) >= most:
            return found


def _log_mean(log_weights: Array) -> PriorIntegral:
    """Return the log mean of independent weights; a heavy fourth moment gives few degrees of freedom."""
    n, total = len(log_weights), logsumexp(log_weights)
    if not np.isfinite(total):
        return PriorIntegral(float("nan"), float("inf"), 1.0)
    deviation = np.exp(log_weights - total) - 1.0 / n
    square, fourth = float((deviation**2).sum()), float((deviation**4).sum())
    exact = square * n < 1e-20
    df = float("inf") if exact else 3.0 * square**2 / fourth
    return PriorIntegral(float(total - np.log(n)), 0.0 if exact else square**0.5, df)


def _by_bridge(
    variables: Sequence[Variable],
    shapes: ModelShapes,
    sampler: PriorSampler,
    free_terms: Callable[[Array], Mapping[str, Array]],
) -> PriorIntegral:
    """Return the integral of variables that include all their parents, by a bridge from draws of their density."""
    names = [rv.name for rv in variables]
    columns = np.concatenate([coordinates(shapes)[name].ravel() for name in names])
    said = f"the integral of the density of {', '.join(map(repr, names))}"
    n = _BRIDGE_DRAWS if sampler.at_once else _DRAWS_ONE_BY_ONE // 2
    if len(columns) ** 2 > 8 * n:
        raise PriorSamplingError(f"{said} has too many dimensions to be estimated: use initial='laplace'")

    def log_density(x: Array) -> Array:
        terms = free_terms(x)
        total = sum(np.asarray(terms[name]).reshape(len(x), -1).sum(axis=1) for name in names)
        return np.where(np.isnan(total), -np.inf, total)

    rng = np.random.default_rng(0)
    x = sampler(2 * n, rng)
    try:
        fitted = Student.fit(x[:n, columns])
    except np.linalg.LinAlgError:
        raise PriorSamplingError(
            f"{said} cannot be estimated, because its draws lie on a surface: use initial='laplace'"
        ) from None
    proposed = x[:n].copy()
    proposed[:, columns] = fitted.sample(n, rng)
    with np.errstate(all="ignore"):
        at_draws = log_density(x[n:]) - fitted.log_density(x[n:, columns])
        at_proposed = log_density(proposed) - fitted.log_density(proposed[:, columns])
    if not np.isfinite(at_draws).all() or not np.isfinite(at_proposed).any():
        raise PriorSamplingError(f"{said} is not positive at all draws of the prior: use initial='laplace'")
    found = bridge(at_draws, at_proposed, np.arange(n))
    other, error = _geometric_bridge(at_draws, at_proposed)
    difference = abs(found.log_evidence - other)
    if not found.variance**0.5 < _LARGEST_ERROR or difference > _DISAGREEMENT * np.hypot(error, found.variance**0.5):
        raise PriorSamplingError(
            f"{said} is {found.log_evidence:.3f} by one estimate and {other:.3f} by another (log scale, standard error "
            f"{np.hypot(error, found.variance**0.5):.3f}), so that draws of the prior may not follow it: "
            "use initial='laplace'"
        )
    return PriorIntegral(found.log_evidence, found.variance**0.5, found.df)


def _geometric_bridge(at_draws: Array, at_proposed: Array) -> tuple[float, float]:
    """Return log of E_q[√(γ/q)] / E_π[√(q/γ)] and its standard error."""
    above, below = _log_mean(0.5 * at_proposed), _log_mean(-0.5 * at_draws)
    return above.log_integral - below.log_integral, float(np.hypot(above.standard_error, below.standard_error))

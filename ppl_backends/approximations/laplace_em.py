"""Laplace's approximation with Student factors as scale mixtures of normals; EM finds their scales.

A Student factor t_ν(s; y, c) is N(s; y, 1/w) with a gamma-distributed precision w. Given w the posterior is a
regression with a normal prior, of which one Newton step gives the Gaussian N(m, V). Given this Gaussian, E w = (ν +
1)/(νc² + (s − y)² + v), with v the variance of s under it. The two updates alternate (Gelman, Jakulin, Pittau & Su
2008; Ridgway 2015, section 2.3.3). Without v they would climb to the mode; with v, a coefficient that the data hardly
determine is shrunk less.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.verdict import POINTS, judge_gaussian
from ppl_backends.errors import ApproximationWarning, ModelError, user_level
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.newton import Expansion, climb_concave
from ppl_backends.options import checked, integer, number
from ppl_backends.targets.factors import Factors, FactorsTarget, StudentT
from ppl_backends.targets.factors.design import as_design
from ppl_backends.targets.factors.sites import plain
from ppl_backends.targets.protocol import Array, BaseTarget, Index


@checked(tolerance=number(above=0), max_iterations=integer(1))
def fit_laplace_em(
    model: Any = None, *, data: Any = None, tolerance: float = 1e-6, max_iterations: int = 1000, **target_options: Any
) -> GaussianApproximation:
    """Fit a Gaussian to a regression with Student priors or Student noise; EM finds their scales.

    Parameters
    ----------
    model : pymc.Model, Stan model, Factors or target, optional
        A model with known factors, some of them Student, and without hyper-parameters; the PyMC model on the context
        stack by default.
    data : dict or path, optional
        Data of a Stan model.
    tolerance : float
        Largest last step, in standard deviations, and largest relative change of the scales.
    max_iterations : int
        Largest number of iterations; each is a Newton step and an update of the scales.
    **target_options
        Passed to :func:`ppl_backends.as_target`.

    Returns
    -------
    GaussianApproximation
        It has no evidence. ``converged`` is True if the iterations ended and 256 points show that the Gaussian can be
        used, as for :func:`fit_laplace`; ``diagnostics`` has their figures and ``iterations``.

    Raises
    ------
    ModelError
        If the model has no known factors, hyper-parameters, or no Student factor, or the scales do not make it proper.

    Warns
    -----
    ApproximationWarning
        If the iterations did not end, or 256 points show that the Gaussian differs from the posterior.

    References
    ----------
    Gelman, A., Jakulin, A., Pittau, M. G. and Su, Y.-S. (2008). A weakly informative default prior distribution for logistic
    and other regression models. *Annals of Applied Statistics* 2(4).

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.targets.factors import Factors, Logit, StudentT
    >>> X, prior = np.linspace(-2, 2, 60)[:, None], StudentT([0.0], 1.0, 2.5)
    >>> y = (np.arange(60) * 7 % 11 < 5 + 2 * X[:, 0]).astype(int)
    >>> factors = Factors([X, [[1.0]]], None, [Logit(y), prior], 0.0, 0.0)
    >>> fit_laplace_em(factors).mean.round(3)
    array([0.895])
    """
    factors, target = _factors_of(model, data, target_options)
    student = _student_rows(factors)
    if not len(student.rows):
        raise ModelError(f"{target.label}: no Student prior or noise among its factors; use fit_laplace")
    found = _iterate(factors, student, tolerance, max_iterations)
    q = GaussianApproximation(
        found.mean, cov=found.q.cov, names=target.names, target=target, method="laplace-em", converged=found.settled
    )
    verdict = judge_gaussian(target, q)
    trouble = f"by {POINTS} of its points {verdict.trouble}" if verdict.trouble else ""
    if not found.settled:
        trouble = f"not settled after {max_iterations} iterations; increase max_iterations"
    if trouble:
        warnings.warn(f"Laplace-EM of {target.label}: {trouble}", ApproximationWarning, stacklevel=user_level())
    figures = dict(verdict.figures) | {"iterations": float(found.iterations)}
    return q.replaced(converged=not trouble, trouble=trouble, diagnostics=figures)


class _Student(NamedTuple):
    """Student factors: their rows among the sites, and their parameters."""

    rows: Index
    y: Array
    nu: Array
    scale: Array

    def precision(self, square: Array) -> Array:
        """Return the mean precision of each, given the mean of (s − y)²."""
        return (self.nu + 1.0) / (self.nu * self.scale**2 + square)


class _Found(NamedTuple):
    """Result of the iterations."""

    mean: Array
    q: Gaussian
    iterations: int
    settled: bool


def _iterate(factors: Factors, student: _Student, tolerance: float, most: int) -> _Found:
    """Alternate Newton steps and updates of the scales."""
    x, design = np.array(factors.prior.mean), as_design(factors.design)
    weights = 1.0 / student.scale**2
    for done in range(1, most + 1):
        top = climb_concave(partial(_expanded, factors, student, weights), x, 0.0, 1)
        if top is None:
            raise ModelError("Laplace-EM: given the scales of its Student factors the posterior is not proper")
        x = top.x
        distance = factors.predictor(x[None])[0, student.rows] - student.y
        variance = design.row_variances(top.step.factor)[student.rows]
        last, weights = weights, student.precision(distance**2 + variance)
        settled = top.gain < 0.5 * tolerance**2 and float(np.abs(weights / last - 1.0).max()) < tolerance
        if settled or done == most:
            break
    assert top is not None
    return _Found(x + top.step.mean, top.step, done, settled)


def _expanded(factors: Factors, student: _Student, weights: Array, x: Array) -> Expansion:
    """Return the log posterior with normal factors of precision ``weights`` for the Student ones, and its derivatives."""
    s, centred = factors.predictor(x[None]), x - factors.prior.mean
    value = factors.log_site(s)[0]
    slope, second = (part[0] for part in factors.site_derivatives(s))
    curvature = np.maximum(-second, 0.0)  # convex parts count as flat
    distance, pull = s[0, student.rows] - student.y, factors.prior.apply(centred[None])[0]
    value[student.rows] = -0.5 * weights * distance**2
    slope[student.rows], curvature[student.rows] = -weights * distance, weights
    precision = factors.prior.add_to(as_design(factors.design).gram(curvature))
    gradient = np.asarray(factors.design.T @ slope) - pull
    return Expansion(float(value.sum()) - 0.5 * float(centred @ pull), gradient, precision)


def _student_rows(factors: Factors) -> _Student:
    """Return the Student factors of a model."""
    parts = []
    places = np.arange(factors.n_sites)
    for family, columns, _ in factors.sites.pieces(None):
        family = plain(family)
        if isinstance(family, StudentT):
            parts.append((places[columns], family.y, family.nu, family.scale))
    if not parts:
        return _Student(places[:0], *np.empty((3, 0)))
    return _Student(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _factors_of(model: Any, data: Any, options: dict[str, Any]) -> tuple[Factors, BaseTarget]:
    """Return the factors of a model without hyper-parameters, and its target."""
    from ppl_backends.targets.convert import as_target

    target = FactorsTarget(model) if isinstance(model, Factors) else as_target(model, data, **options)
    factors = target.factors
    if factors is None:
        raise ModelError(f"{target.label}: no factors with one linear predictor each are known; use fit_laplace")
    if len(factors.hyper_names):
        names = ", ".join(factors.hyper_names)
        raise ModelError(f"{target.label}: hyper-parameters ({names}) are not integrated over here; use fit_inla")
    return factors.at(), target

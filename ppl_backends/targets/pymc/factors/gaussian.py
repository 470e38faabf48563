"""The Gaussian part: the sum of all quadratic terms, read off its gradient at the origin and the unit vectors."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from ppl_backends.targets.factors import GaussianPrior
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.factors.graph import PointFunction, Term, TermGraph
from ppl_backends.targets.pymc.graph import no_c_compiler

__all__ = ["GaussianPart", "QuadraticTerms"]


class GaussianPart(NamedTuple):
    """exp(``log_constant`` + ``tilt``ᵀθ) · N(θ; mean, precision⁻¹), the Gaussian normalised on the range of its precision.

    Attributes
    ----------
    mean : ndarray (d,)
    precision : ndarray (d,) or (d, d)
    tilt : ndarray (d,) or None
        A slope in directions that the precision does not cover, where there is one.
    log_constant : float
    """

    mean: Array
    precision: Array
    tilt: Array | None
    log_constant: float


class QuadraticTerms:
    """The quadratic terms of a model.

    Parameters
    ----------
    graph : TermGraph
    terms : list of Term
    held : set of str
        Hyper-parameters.
    """

    def __init__(self, graph: TermGraph, terms: Sequence[Term], held: Set[str]) -> None:
        self.graph, self.terms = graph, list(terms)
        self.moving = np.setdiff1d(np.arange(graph.dim), graph.coordinates(held))
        inputs = [v for name, v in graph.values.items() if name not in held]
        with no_c_compiler():
            total = sum((pt.sum(term.value) for term in self.terms), start=pt.constant(0.0, dtype="float64"))
            gradient = pt.grad(total, inputs, disconnected_inputs="ignore") if self.terms else []
            flat = [pt.flatten(g) for g in gradient] or [pt.zeros(len(self.moving))]
            self._function = PointFunction(graph, held, [total, pt.concatenate(flat)])
        self._depends_on_hyper = graph.depends([term.value for term in self.terms], held)
        self._fixed: GaussianPart | None = None

    def value(self, x: Array) -> Array:
        """The sum of the terms ``(k,)`` at points ``(k, dim)`` that share the hyper-parameters."""
        return self._function(x)[0]

    def at(self, x: Array) -> GaussianPart:
        """The Gaussian given the hyper-parameters in the point ``x`` ``(dim,)``."""
        if self._fixed is not None:
            return self._fixed
        d = len(self.moving)
        points = np.tile(x, (d + 1, 1))
        points[:, self.moving] = 0.0
        points[1 + np.arange(d), self.moving] = 1.0
        value, gradient = self._function(points)
        slope, hessian = gradient[0], gradient[0] - gradient[1:]
        precision = 0.5 * (hessian + hessian.T)
        part = _complete(float(value[0]), slope, precision)
        if not self._depends_on_hyper:
            self._fixed = part
        return part


def _complete(value: float, slope: Array, precision: Array) -> GaussianPart:
    """From value, slope and curvature at the origin to mean and normaliser."""
    d = len(slope)
    diagonal = np.diagonal(precision).copy()
    if not np.any(precision - np.diag(diagonal)):
        precision = diagonal
        covered = diagonal > 0
        mean = np.where(covered, slope / np.where(covered, diagonal, 1.0), 0.0)
        remainder = np.where(covered, 0.0, slope)
    else:
        mean = _solve(precision, slope)
        remainder = slope - precision @ mean
    tilt = remainder if np.abs(remainder).max(initial=0.0) > 1e-9 * (1 + np.abs(slope).max(initial=0.0)) else None
    gaussian = GaussianPrior(mean, precision, d)
    log_constant = value - float(gaussian.log_density(np.zeros((1, d)))[0])
    return GaussianPart(mean, precision, tilt, log_constant)


def _solve(precision: Array, slope: Array) -> Array:
    try:
        return cho_solve(cho_factor(precision), slope)
    except LinAlgError:
        values, vectors = np.linalg.eigh(precision)
        kept = values > len(values) * np.finfo(float).eps * max(values[-1], 0.0)
        return vectors[:, kept] @ ((vectors[:, kept].T @ slope) / values[kept])

"""The Gaussian part: the sum of all quadratic terms, read off its gradient at the origin and the unit vectors."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
import pytensor.tensor as pt

from ppl_backends.targets.factors.finder import GaussianPart, complete_gaussian
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.factors.graph import PointFunction, Term, TermGraph
from ppl_backends.targets.pymc.graph import no_c_compiler

__all__ = ["QuadraticTerms"]


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
        part = complete_gaussian(float(value[0]), slope, precision)
        if not self._depends_on_hyper:
            self._fixed = part
        return part

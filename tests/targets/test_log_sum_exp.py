"""Sums of exponentials in logs: values and gradients by every backend, and the cost of their programs."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Variable
from scipy.special import logsumexp, softmax

import ppl_backends as pb
from ppl_backends.targets.pymc.rewrites import simplify
from ppl_backends.targets.pymc.stable_functions import Shift

try:
    from pytensor.graph.traversal import ancestors
except ImportError:  # PyTensor < 2.34
    from pytensor.graph.basic import ancestors

A = np.random.default_rng(0).normal(scale=30, size=(5, 3))


def _operations(graph: Variable, kind: type) -> int:
    nodes = {id(v.owner): v.owner for v in ancestors([graph]) if v.owner is not None}
    return sum(type(node.op) is kind for node in nodes.values())


@pytest.mark.parametrize(
    "backend", ["jax", pytest.param("numba", marks=pytest.mark.slow), pytest.param("c", marks=pytest.mark.slow)]
)
def test_values_and_gradients(backend):
    scale = 300.0  # beyond the range of exp
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=3)
        pm.Potential("rows", pm.math.logsumexp(scale * A * x, axis=1).sum())
        pm.Potential("whole", pt.logsumexp(A + x))
        pm.Potential("largest", pt.max(A + x) - pt.logsumexp(A + x, axis=0, keepdims=True).sum())
    points = np.random.default_rng(1).normal(size=(4, 3))
    found = pb.as_target(model, backend=backend).evaluate(points, gradient=True)
    for point, value, gradient in zip(points, found.log_likelihood, found.log_likelihood_gradient, strict=True):
        rows, sums = scale * A * point, A + point
        exact = logsumexp(rows, axis=1).sum() + logsumexp(sums) + sums.max() - logsumexp(sums, axis=0).sum()
        slope = (softmax(rows, axis=1) * scale * A).sum(axis=0) + softmax(sums).sum(axis=0) - 1.0
        slope[np.unravel_index(sums.argmax(), sums.shape)[1]] += 1.0
        assert value == pytest.approx(exact, rel=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-10, atol=1e-10)


def test_a_component_without_density_leaves_the_others():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        terms = pt.stack([pt.switch(x > 0, -x, -np.inf), -2.0 * x])
        pm.Potential("mixture", pm.math.logsumexp(terms))
    found = pb.as_target(model).evaluate(np.array([[1.0], [-1.0]]), gradient=True)
    np.testing.assert_allclose(found.log_likelihood, [np.logaddexp(-1, -2), 2.0], rtol=1e-12)


def test_a_sum_is_stabilised_once_and_not_differentiated_through_its_maximum():
    x = pt.matrix("x")
    for axis in (None, 0, 1):
        for keepdims in (False, True):
            [graph] = simplify([pt.sum(pt.logsumexp(x, axis=axis, keepdims=keepdims))])
            assert _operations(graph, Shift) <= 1  # PyTensor 3 has an operation for the whole
            assert _operations(graph, pt.math.Max) == 0


def test_a_mixture_of_normals_has_one_maximum_for_its_rows():
    y = np.random.default_rng(2).normal(size=20)
    with pm.Model() as model:
        w, mu = pm.Dirichlet("w", np.ones(3)), pm.Normal("mu", 0, 1, shape=3)
        likelihood = pm.NormalMixture("y", w=w, mu=mu, sigma=1.0, observed=y)
    [graph] = simplify([model.logp(vars=[likelihood])])
    rows = [v for v in ancestors([graph]) if v.owner is not None and isinstance(v.owner.op, pt.math.Max) and v.ndim]
    assert {type(v.owner.op) for v in rows} <= {Shift}
    assert len(rows) <= 1


@pytest.mark.parametrize("function", [pt.exp, pt.sigmoid, pt.softplus, pt.sqr, pt.abs])
def test_bounds_that_always_hold_are_not_compared(function):
    """XLA evaluates ``all`` of constants for every row while it compiles: a second for 100,000 rows."""
    x = pt.vector("x")
    for bound, holds in ((0, True), (0.5, False)):
        [graph] = simplify([pt.switch(pt.all(function(x) >= bound), x.sum(), -np.inf)])
        assert (_operations(graph, pt.math.All) == 0) == holds

"""PyMC models of many operations: one compiled program, and a warning where compiling takes minutes."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from ppl_backends.errors import BackendWarning
from ppl_backends.targets import PyMCTarget
from ppl_backends.targets.pymc.compile import ONE_SHAPE, CompiledFunction
from tests.targets.models import recursion


def growth(steps):
    """Return a model of logistic growth by Euler steps in a loop."""
    with pm.Model() as model:
        rate, level = pm.Normal("rate", 0.0, 1.0), pm.Normal("level", 0.5, 0.1)
        end = level
        for _ in range(steps):
            end = end + pt.exp(rate) / steps * end * (1.0 - end)
        pm.Normal("y", end, 0.1, observed=0.8)
    return model


def test_a_program_of_many_operations_is_compiled_once(monkeypatch):
    short = PyMCTarget(growth(20))
    assert not short._compiled.is_long
    monkeypatch.setattr("ppl_backends.targets.pymc.compile._LONG", 50)
    long, shapes = PyMCTarget(growth(20)), set()
    assert long._compiled.is_long
    call = CompiledFunction.__call__

    def counted(function, block, data):
        shapes.add((function._kind, block.shape))
        return call(function, block, data)

    monkeypatch.setattr(CompiledFunction, "__call__", counted)
    for n in (1, 3, 70):
        x = 0.3 * np.random.default_rng(n).normal(size=(n, 2))
        values, pairs, hessian = long.log_density(x), long.log_density_and_gradient(x), long.hessian(x[:2])
        assert not long.undefined(x).any()
        assert shapes == {("gradient", (ONE_SHAPE, 2))}
        np.testing.assert_allclose(values, short.log_density(x), rtol=1e-9)
        for got, expected in zip(pairs, short.log_density_and_gradient(x), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(hessian, short.hessian(x[:2]), rtol=1e-4, atol=1e-4)
        shapes.clear()


def test_a_loop_of_seventy_steps_is_a_long_program():
    assert PyMCTarget(recursion(70))._compiled.is_long


def test_ten_groups_are_no_long_program():
    with pm.Model() as model:
        for j in range(10):
            mean, scale = pm.Normal(f"mean {j}"), pm.HalfNormal(f"scale {j}")
            pm.Normal(f"y {j}", mean, scale, observed=np.arange(5.0))
    assert not PyMCTarget(model)._compiled.is_long


def test_a_program_that_takes_minutes_to_compile_is_announced(monkeypatch):
    monkeypatch.setattr("ppl_backends.targets.pymc.compile._VERY_LONG", 50)
    target = PyMCTarget(growth(20))
    with pytest.warns(BackendWarning, match="operations, which is typical of a loop in Python"):
        target.log_density(np.zeros((1, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target.log_density_and_gradient(np.zeros((1, 2)))

"""Sums and products of several variables in JAX: in pairs, without a stack of all of them."""

import jax
import numpy as np
import pytensor.tensor as pt
import pytest

from ppl_backends.targets.jax_process import double_precision
from ppl_backends.targets.pymc.jax_backend import _translate

COUNTS = np.array([[100], [120], [3]], dtype=np.int8)


@pytest.mark.parametrize("combined", [pt.mul, pt.add])
def test_several_variables_are_combined_in_pairs(combined):
    x, y = pt.vector("x"), pt.matrix("y")
    function = _translate([x, y], [combined(COUNTS, y, pt.exp(x), COUNTS)])
    a, b = np.random.default_rng(0).standard_normal(4), np.random.default_rng(1).standard_normal((3, 4))
    counts = COUNTS.astype(float)  # 100 × 100 is no number of eight bits
    known = counts * b * np.exp(a) * counts if combined is pt.mul else counts + b + np.exp(a) + counts
    with double_precision():
        np.testing.assert_allclose(function(a, b)[0], known, rtol=1e-14)
        program = str(jax.make_jaxpr(function)(a, b))
    assert "stack" not in program
    assert "concatenate" not in program

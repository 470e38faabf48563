"""Importing and using the package does not change PyTensor or JAX for other code."""

import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np, pymc as pm, jax
from pytensor.link.jax.dispatch import jax_funcify
from pytensor.link.numba.dispatch import numba_funcify

def tables():
    return [
        {kind: function for kind, function in table.registry.items() if not kind.__module__.startswith("ppl_backends")}
        for table in (jax_funcify, numba_funcify)
    ]

before, precision = tables(), jax.config.jax_enable_x64
import ppl_backends as pb

X = np.random.default_rng(0).normal(size=(6, 2))
with pm.Model() as model:
    beta = pm.Normal("beta", 0, 2, shape=2)
    sigma = pm.TruncatedNormal("sigma", 0, 1, lower=0.1)
    pm.Bernoulli("y", logit_p=X @ beta, observed=[0, 1, 1, 0, 1, 0])
    pm.Normal("z", X @ beta, sigma, observed=X[:, 0])
for backend in ("jax", "numba"):
    target = pb.as_target(model, backend=backend)
    target.evaluate(np.zeros((3, 3)), gradient=True)
    target.hessian(np.zeros((1, 3)))
    target.observations.sum(np.zeros((1, 3)), np.arange(2), gradient=True)
after = tables()
assert [set(table) for table in after] == [set(table) for table in before], "an operation was added"
assert all(new[kind] is old[kind] for old, new in zip(before, after) for kind in old), "a translation was replaced"
assert jax.config.jax_enable_x64 == precision
print("done")
"""


@pytest.mark.slow  # a fresh process that compiles
def test_the_translations_of_pytensor_s_own_operations_stay_as_they_are():
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert run.stdout.strip() == "done", run.stderr

"""Batched linear algebra on several threads must not deadlock."""

import subprocess
import sys

import pytest

PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np, pymc as pm
import ppl_backends as pb

inputs = np.linspace(0, 1, 20)[:, None]
with pm.Model() as model:
    scale = pm.HalfNormal("scale", 1.0)
    covariance = scale**2 * pm.math.exp(-((inputs - inputs.T) ** 2)) + 0.1 * np.eye(20)
    pm.MvNormal("y", np.zeros(20), covariance, observed=np.sin(6 * inputs[:, 0]))
target = pb.as_target(model, backend="jax", cores=2)
x = np.random.default_rng(1).standard_normal((700, 1))  # several blocks
with ThreadPoolExecutor(3) as pool:
    values = list(pool.map(lambda _: target.evaluate(x, gradient=True).log_likelihood, range(6)))
assert all(np.array_equal(value, values[0]) for value in values)
print("done")
"""


@pytest.mark.slow
def test_covariance_matrices_on_several_threads():
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert run.stdout.strip() == "done", run.stderr

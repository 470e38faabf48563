"""Gaussian processes and other models with factorisations: no deadlock, and derivatives that are right."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import linalg, optimize

import ppl_backends as pb
from ppl_backends.errors import BackendWarning
from ppl_backends.targets.pymc.compile import DISAGREEMENT, _check_gradient, derivative_error
from ppl_backends.targets.pymc.graph import factorises, multiplies
from ppl_backends.targets.pymc.jax_programs import FACTORISATIONS, INLINE_WORK, map_points, rewrite

INPUTS = np.linspace(0.0, 10.0, 80)
OUTPUTS = np.sin(INPUTS) + 0.3 * np.random.default_rng(0).normal(size=80)


def gaussian_process(n, kernel=pm.gp.cov.ExpQuad):
    with pm.Model() as model:
        length, eta, sigma = pm.HalfNormal("length", 2.0), pm.HalfNormal("eta", 2.0), pm.HalfNormal("sigma", 1.0)
        process = pm.gp.Marginal(cov_func=eta**2 * kernel(1, ls=length))
        process.marginal_likelihood("y", X=INPUTS[:n, None], y=OUTPUTS[:n], sigma=sigma)
    return model


def log_joint(x):
    """Return the log density of the process with 80 points, in NumPy."""
    length, eta, sigma = np.exp(x)
    distance = np.subtract.outer(INPUTS, INPUTS) / length
    covariance = eta**2 * np.exp(-0.5 * distance**2) + (sigma**2 + 1e-6) * np.eye(80)  # PyMC's jitter
    factor = linalg.cholesky(covariance, lower=True)
    z = linalg.solve_triangular(factor, OUTPUTS, lower=True)
    likelihood = -0.5 * z @ z - np.log(np.diag(factor)).sum() - 40 * np.log(2 * np.pi)
    scales = np.array([2.0, 2.0, 1.0])
    prior = np.log(2 / np.sqrt(2 * np.pi)) - np.log(scales) - 0.5 * (np.exp(x) / scales) ** 2 + x
    return likelihood + prior.sum()


def laplace_evidence():
    """Return Laplace's approximation of the evidence by differences of :func:`log_joint`."""
    mode = optimize.minimize(lambda x: -log_joint(x), np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9}).x
    h = 1e-3
    curvature = np.empty((3, 3))
    for i in range(3):
        for j in range(3):
            a, b = h * np.eye(3)[i], h * np.eye(3)[j]
            corners = log_joint(mode + a + b) - log_joint(mode + a - b) - log_joint(mode - a + b)
            curvature[i, j] = -(corners + log_joint(mode - a - b)) / (4 * h**2)
    return log_joint(mode) + 1.5 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(curvature)[1]


PROGRAM = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
from tests.targets.test_linear_algebra import gaussian_process
import ppl_backends as pb
q = pb.fit_laplace(gaussian_process(80), progressbar=False)
print(q.diagnostics["newton_decrement"], float(q.log_evidence))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen")
def test_laplace_on_a_gaussian_process_returns_and_is_right_on_two_cores():
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    decrement, evidence = map(float, run.stdout.split())
    assert decrement < 1e-3  # a mode; whether the Gaussian there is close enough to the posterior is not asked here
    assert np.isclose(evidence, laplace_evidence(), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "kernel"), [(21, pm.gp.cov.Matern52), (10, pm.gp.cov.Matern32)])
def test_gradients_of_a_kernel_are_those_of_its_log_density(n, kernel):
    # both were wrong by factors of hundreds with JAX 0.10.2 or 0.12
    target = pb.as_target(gaussian_process(n, kernel), backend="jax")
    x = np.random.default_rng(1).normal(size=(5, 3))
    gradient, step = target.log_density_and_gradient(x)[1], 1e-5 * np.eye(3)
    for j in range(3):
        difference = (target.log_density(x + step[j]) - target.log_density(x - step[j])) / 2e-5
        np.testing.assert_allclose(gradient[:, j], difference, rtol=1e-5, atol=1e-5)


# -- programs ----------------------------------------------------------------------------------------------------------


def everything(a):
    """Return factorisations of several kinds, in a loop and a branch as well, of one matrix."""
    s = a @ a.T + jnp.eye(len(a))

    def add(total, shift):
        factor = jnp.linalg.cholesky(s + shift * jnp.eye(len(a)))
        return total + jnp.log(jnp.diag(factor)).sum(), jax.scipy.linalg.solve_triangular(factor, a[0], lower=True)[-1]

    total, last = jax.lax.scan(add, 0.0, jnp.arange(1.0, 3.0))
    inverse = jax.lax.cond(total > 0, lambda: jnp.linalg.inv(s)[0, 0], lambda: 0.0)
    spectrum = jnp.linalg.eigh(s)[0].sum() + jnp.linalg.svd(a, compute_uv=False).sum()
    solved = jnp.linalg.solve(s, a[:, 0]).sum() + jnp.linalg.slogdet(s)[1] + jnp.diag(jnp.linalg.qr(s)[1]).sum()
    return total + last.sum() + inverse + spectrum + solved + jnp.clip(a, 0, 1).sum()


def batched_work(program):
    """The largest number of operations of a factorisation of several matrices, in a jaxpr and those inside it."""
    found = 0
    for equation in program.eqns:
        if equation.primitive.name in FACTORISATIONS:
            dimensions, cost = FACTORISATIONS[equation.primitive.name]
            shape = equation.invars[0].aval.shape
            batch = int(np.prod(shape[: len(shape) - dimensions]))
            largest = max(int(np.prod(v.aval.shape)) for v in equation.invars)
            found = max(found, cost * largest * max(shape[-dimensions:]) if batch > 1 else 0)
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                found = max(found, batched_work(inner))
    return found


@pytest.fixture(scope="module", autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("batch", [jax.vmap, map_points], ids=["at once", "in groups"])
def test_no_factorisation_of_a_large_batch_is_left(batch):
    block = np.random.default_rng(2).normal(size=(16, 20, 20))
    function = batch(lambda a: jax.value_and_grad(everything)(a))
    assert batched_work(jax.make_jaxpr(jax.vmap(jax.value_and_grad(everything)))(block).jaxpr) > INLINE_WORK
    assert batched_work(jax.make_jaxpr(rewrite(function))(block).jaxpr) < INLINE_WORK


@pytest.mark.slow
def test_a_rewritten_program_computes_the_same():
    block = np.random.default_rng(3).normal(size=(6, 20, 20))
    values, gradients = jax.jit(rewrite(jax.vmap(jax.value_and_grad(everything))))(block)
    for a, value, gradient in zip(block, values, gradients, strict=True):
        expected, slope = jax.value_and_grad(everything)(a)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-8, atol=1e-8)


def test_graphs_that_need_care_are_recognised():
    x, design = pt.vector("x", shape=(4,)), np.ones((4, 4))
    scan = pm.pytensorf.rewrite_pregrad(pt.linalg.det(pt.outer(x, x)))
    assert factorises([pt.linalg.cholesky(pt.diag(x))])
    assert factorises([pt.linalg.cholesky(pt.stack([pt.diag(x)] * 2)).sum()])
    assert factorises([scan])
    assert not factorises([pt.exp(design @ x)])
    assert multiplies(x, [pt.dot(pt.outer(x, x), x)])
    assert multiplies(x, [pt.matmul(pt.stack([pt.outer(x, x)] * 2), pt.outer(x, x))])
    assert not multiplies(x, [pt.exp(design @ x) * x])


# -- checks ------------------------------------------------------------------------------------------------------------


def regression():
    rng = np.random.default_rng(4)
    design = rng.normal(size=(50, 3))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 5.0, shape=3)
        pm.Bernoulli("y", logit_p=design @ beta, observed=rng.integers(0, 2, 50))
    return model


def test_a_wrong_compiled_hessian_is_found_and_replaced():
    right, wrong = pb.as_target(regression()), pb.as_target(regression())
    x = np.random.default_rng(5).normal(size=(2, 3))
    expected = right.hessian(x)  # no warning: a right one passes
    compiled = wrong._compiled.function("hessian of the joint")
    compiled(x, wrong._arguments)
    function = compiled._function
    compiled._function = lambda block, *data: [output + 0.1 * np.eye(3) * output for output in function(block, *data)]
    with pytest.warns(BackendWarning, match=r"differ from differences of gradients by 0\.\d"):
        np.testing.assert_allclose(wrong.hessian(x), expected, rtol=1e-6)
    np.testing.assert_allclose(wrong.hessian(x), expected, rtol=1e-6)  # and no second warning


def test_a_hessian_that_is_wrong_at_a_single_point_is_kept(recwarn):
    with pm.Model() as model:  # PyMC's beta density has a derivative of zero in α at α = 1
        k = pm.Pareto("k", 1.5, 1.0)
        pm.Beta("theta", 0.5 * k, 0.5 * k, shape=3)
    target, x = pb.as_target(model), np.random.default_rng(7).normal(size=(1, 4))
    target.hessian(np.zeros((1, 4)))  # α = 1
    assert not [str(w.message) for w in recwarn if w.category is BackendWarning]
    assert target._compiled.compiles_hessian("joint")
    differences = super(type(target), target).hessian(x)
    np.testing.assert_allclose(target.hessian(x), differences, rtol=1e-5, atol=1e-5)


def test_wrong_gradients_are_refused():
    x = np.random.default_rng(6).normal(size=(1, 3))

    def density(block, factor=1.0):
        return [-(block**2).sum(axis=1), np.zeros(len(block)), -2 * factor * block, np.zeros_like(block)]

    _check_gradient(density, x, density(x))
    with pytest.raises(
        ArithmeticError, match=r"gradients differ from finite differences of the log density \(relative error 0\.09"
    ):
        _check_gradient(density, x, density(x, 1.1))


@pytest.mark.parametrize(
    ("function", "derivative"),
    [
        (lambda x: np.abs(x).sum(axis=1), lambda x: np.sign(x)),
        (lambda x: np.maximum(x, 0.0).sum(axis=1), lambda x: 0.5 * (1 + np.sign(x))),
        (lambda x: 1e9 + np.sin(x).sum(axis=1), lambda x: np.cos(x)),
        (lambda x: np.where(x[:, 0] > 0, -np.inf, 0.0), lambda x: 0.0 * x),
    ],
    ids=["kink", "rectifier", "rounding", "edge"],
)
def test_kinks_and_rounding_are_not_taken_for_errors(function, derivative):
    for x in (np.zeros(3), np.ones(3), np.array([1e-7, -1.0, 50.0])):
        assert derivative_error(function, x, derivative(x)) < DISAGREEMENT

"""Probit likelihoods far out in the tails, in value, gradient and Hessian."""

import jax
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.integrate import quad
from scipy.special import erfcx, log_ndtr, ndtr

import ppl_backends as pb
from ppl_backends.targets.jax_process import double_precision
from ppl_backends.targets.pymc import PyMCTarget
from ppl_backends.targets.pymc.graph import PYTHON_MODE
from ppl_backends.targets.pymc.jax_backend import _translate
from ppl_backends.targets.pymc.matching import io_toposort
from ppl_backends.targets.pymc.stable_functions import log_interval as log_interval_of_graph
from ppl_backends.targets.pymc.stable_functions import log_ndtr as log_ndtr_of_graph

ETA = np.array([-800.0, -40, -12, -9, -1, 0, 1, 7, 8.5, 12, 40, 800])
Y = np.r_[np.ones(6), np.zeros(6)].astype(int)


def probabilities(eta, form):
    if form == "invprobit":
        return pm.math.invprobit(eta)
    return 0.5 * (1 + pm.math.erf(eta / np.sqrt(2))) if form == "erf" else 0.5 * pm.math.erfc(-eta / np.sqrt(2))


@pytest.mark.parametrize("form", ["invprobit", "erf", "erfc"])
def test_probit_holds_where_probabilities_round_to_zero_or_one(form):
    with pm.Model() as model:
        scale = pm.Normal("scale", 0, 1)
        pm.Bernoulli("y", p=probabilities(scale * ETA, form), observed=Y)
    target = pb.as_target(model)
    for x, h in ((1.0, 1e-5), (-1.0, 1e-5), (0.3, 1e-6)):
        exact, up, down = (log_ndtr((2 * Y - 1) * ETA * at).sum() for at in (x, x + h, x - h))
        evaluation = target.evaluate(np.array([[x]]), gradient=True)
        # invprobit holds √2 in single precision, which is good to 4e-8.
        assert evaluation.log_likelihood[0] == pytest.approx(exact, rel=1e-7)
        assert evaluation.log_likelihood_gradient[0, 0] == pytest.approx((up - down) / (2 * h), rel=1e-6)
        assert np.isfinite(target.hessian(np.array([[x]]))).all()


def scaled_tail(x, order):
    """Return a derivative of erfcx(x) = 2/sqrt(pi) * integral of exp(-t^2 - 2xt) over t > 0, by quadrature."""
    scale = 1 / max(2 * x, 1.0)
    integrand = lambda s: (-2 * s * scale) ** order * np.exp(-((s * scale) ** 2) - 2 * x * s * scale) * scale  # noqa: E731
    return 2 / np.sqrt(np.pi) * quad(integrand, 0, np.inf, epsabs=0, epsrel=1e-11, limit=200)[0]


@pytest.mark.parametrize("x", [-2.0, 0.3, 5.0, 9.99, 10.0, 10.01, 40.0, 1e4])
def test_erfcx_has_right_derivatives_on_both_sides_of_its_series(x):
    variable = pt.dscalar()
    with double_precision():
        function = _translate([variable], [pt.erfcx(variable)])
        found = [f(x) for f in (lambda x: function(x)[0], jax.grad(lambda x: function(x)[0]))]
        found.append(jax.hessian(lambda x: function(x)[0])(x))
    assert np.asarray(found) == pytest.approx([scaled_tail(x, order) for order in range(3)], rel=1e-9)


def test_second_derivatives_of_erfcx_are_a_short_program():
    # XLA compiled the derivatives of the terms of the series for 30 seconds in an ordered probit likelihood.
    variable = pt.dscalar()
    with double_precision():
        function = _translate([variable], [pt.erfcx(variable)])
        program = str(jax.make_jaxpr(jax.hessian(lambda x: function(x)[0]))(1.0))
    assert program.count(" = ") < 400


def test_logs_of_normal_distribution_functions_and_their_derivatives_are_precise_in_both_tails():
    # The ratio φ/Φ was a difference of logs, which rounding errors of x²/2 spoil on the left.
    x = np.r_[-1e6, -100.0, -14.2, -14.1, -5.0, -1e-9, 0.0, 1.0, 8.0, 15.0, 30.0]
    variable = pt.dscalar()
    with double_precision():
        function = _translate([variable], [log_ndtr_of_graph(variable)])
        value, slope, curvature = (
            np.array([f(at) for at in x])
            for f in (
                lambda x: function(x)[0],
                jax.grad(lambda x: function(x)[0]),
                jax.hessian(lambda x: function(x)[0]),
            )
        )
    right = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi) / ndtr(np.maximum(x, 0))
    ratio = np.where(x > 0, right, np.sqrt(2 / np.pi) / erfcx(-np.minimum(x, 0) / np.sqrt(2)))
    assert value == pytest.approx(log_ndtr(x), rel=1e-12)
    assert slope == pytest.approx(ratio, rel=1e-12)
    assert curvature[1:] == pytest.approx(-(ratio * (x + ratio))[1:], rel=1e-10)


def test_logs_of_normal_distribution_functions_use_one_error_function_and_one_logarithm():
    variable = pt.dscalar()
    with double_precision():
        function = _translate([variable], [log_ndtr_of_graph(variable)])
        program = str(jax.make_jaxpr(lambda x: function(x)[0])(1.0))
    assert [program.count(f" {name} ") for name in ("erfc", "log1p", "exp", "log")] == [1, 1, 1, 0]


EDGES = np.array(
    [(-1.0, 2.0), (-0.3, 0.1), (1.0, 1.1), (-1.1, -1.0), (8.0, 9.0), (-40.0, -39.0), (39, 40), (-900, 7), (-7, 900)]
)
ENDLESS = [(-np.inf, -3.0), (-np.inf, 50.0), (-3.0, np.inf), (40.0, np.inf), (-np.inf, np.inf)]


def exact_interval(lower, upper):
    """Return log(Φ(upper) − Φ(lower)) and its derivatives by upper and lower, by quadrature."""
    near = np.clip(0.0, lower, upper)  # where the density is largest
    ends = np.clip([lower, upper], near - 30, near + 30)
    parts = [quad(lambda t: np.exp(-(t - near) * (t + near) / 2), *part, epsabs=0, epsrel=1e-13, limit=200)[0]
             for part in ((ends[0], near), (near, ends[1])) if part[0] < part[1]]  # fmt: skip
    slopes = [0.0 if np.isinf(z) else np.exp(-(z - near) * (z + near) / 2) / sum(parts) for z in (upper, lower)]
    return [np.log(sum(parts)) - near**2 / 2 - np.log(2 * np.pi) / 2, slopes[0], -slopes[1]]


def test_logs_of_normal_probabilities_of_intervals_and_their_derivatives_are_precise():
    edges = np.r_[EDGES, ENDLESS]
    x, y = pt.dscalars(2)
    expected = np.array([exact_interval(*edge) for edge in edges])
    with double_precision():
        function = _translate([x, y], [log_interval_of_graph(x, y)])
        both = jax.vmap(jax.value_and_grad(lambda b, a: function(b, a)[0], (0, 1)))
        value, slopes = both(edges[:, 1], edges[:, 0])
        found = np.stack([value, *slopes], axis=1)
        curved = jax.hessian(lambda z: function(z[0], z[1])[0])(np.array([-1.0, -1.1]))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-15)
    _, up, down = exact_interval(-1.1, -1.0)
    exact = [[up - up**2, -up * down], [-up * down, 1.1 * down - down**2]]
    np.testing.assert_allclose(curved, exact, rtol=1e-10)


def of_intervals():
    """Return models with PyMC's logs of normal probabilities."""
    x = np.linspace(-2, 2, 30)
    category = np.arange(30) % 4
    for name in ("ordered", "censored", "truncated"):
        with pm.Model(name=name) as model:
            b = pm.Normal("b", 0, 1)
            sd = pm.HalfNormal("sd", 1)
            if name == "ordered":
                pm.OrderedProbit("y", eta=b * x, cutpoints=pt.stack([-1.0, -0.2, sd]), sigma=sd, observed=category)
            elif name == "censored":
                pm.Censored("y", pm.Normal.dist(b * x, sd), lower=-1, upper=1, observed=np.clip(x, -1, 1))
            else:
                pm.TruncatedNormal("y", b * x, sd, lower=-2.5, upper=3.0, observed=x)
        for backend in ("jax", "numba") if name == "ordered" else ("jax",):
            yield pytest.param(model, backend, id=f"{name}, {backend}")


@pytest.mark.parametrize(("model", "backend"), of_intervals())
def test_functions_of_normal_intervals_are_recognised(model, backend):
    target = PyMCTarget(model, backend=backend)
    points = np.random.default_rng(1).normal(size=(5, 2))
    density = model.compile_logp(mode=PYTHON_MODE)
    names = [variable.name for variable in model.value_vars]
    evaluation = target.evaluate(points, gradient=True)
    expected = [density(dict(zip(names, point, strict=True))) for point in points]
    np.testing.assert_allclose(evaluation.log_prior + evaluation.log_likelihood, expected, rtol=1e-8)
    slopes = model.compile_dlogp(mode=PYTHON_MODE)
    expected = [slopes(dict(zip(names, point, strict=True))) for point in points]
    found = evaluation.log_prior_gradient + evaluation.log_likelihood_gradient
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    used = {str(getattr(node.op, "scalar_op", "")) for node in io_toposort([], target._compiled._simplified)}
    assert "Erfcx" not in used, used

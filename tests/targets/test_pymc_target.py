import copy
import multiprocessing
import os
import pickle
import subprocess
import sys

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import as_op
from scipy import stats
from scipy.special import expit

import ppl_backends as pb
from ppl_backends.errors import BackendWarning, CompilationError, ModelError
from ppl_backends.targets import PyMCTarget
from ppl_backends.targets.power import with_power
from ppl_backends.targets.pymc.jax_backend import _with_large_constants
from tests.targets.models import every_transform, logistic_model, normal_model


def joint_of_pymc(target, x):
    """Return PyMC's own log density, interpreted, point by point."""
    logp = target.model.compile_logp(mode="FAST_COMPILE")
    values = []
    for row in x:
        point, start = {}, 0
        for name, shape in target._shapes.value.items():
            size = int(np.prod(shape))
            point[name] = row[start : start + size].reshape(shape)
            start += size
        values.append(logp(point))
    return np.array(values)


@pytest.fixture(scope="module")
def zoo():
    return PyMCTarget(every_transform())


@pytest.fixture(scope="module")
def zoo_points(zoo):
    return np.random.default_rng(1).normal(scale=0.3, size=(8, zoo.dim))


def test_names_are_flat_unique_and_of_the_unconstrained_space(zoo):
    assert len(zoo.names) == len(set(zoo.names)) == zoo.dim
    assert {"scale_log__", "interval_interval__", "unit_logodds__[1,0]", "simplex_simplex__[2]"} <= set(zoo.names)


def test_joint_is_pymcs(zoo, zoo_points):
    # PyMC computes the normalising constant of LKJ in float32
    np.testing.assert_allclose(zoo.log_density(zoo_points), joint_of_pymc(zoo, zoo_points), rtol=1e-8)


def test_gradients_are_differences_of_the_density(zoo, zoo_points):
    direction = np.random.default_rng(2).normal(size=zoo_points.shape)
    evaluation = zoo.evaluate(zoo_points, gradient=True)
    h = 1e-5
    up, down = zoo.evaluate(zoo_points + h * direction), zoo.evaluate(zoo_points - h * direction)
    for part in ("log_prior", "log_likelihood"):
        slope = (getattr(up, part) - getattr(down, part)) / (2 * h)
        along = (getattr(evaluation, f"{part}_gradient") * direction).sum(1)
        np.testing.assert_allclose(along, slope, rtol=1e-6, atol=1e-6)


def test_round_trip_through_model_space(zoo, zoo_points):
    values = zoo.constrain(zoo_points)
    assert values["doubled"].shape == (8, 3)
    np.testing.assert_allclose(values["simplex"].sum(1), 1)
    assert (np.diff(values["ordered"]) > 0).all()
    np.testing.assert_allclose(zoo.unconstrain(values), zoo_points, atol=1e-10)


@pytest.mark.slow
def test_prior_draws_obey_steins_identities(zoo):
    # E[grad log p] = 0 and E[x grad log p] = -1 hold for every density that vanishes at the ends: the first sees a
    # shift or a wrong dependence, the second a scale or a Jacobian. 60 statements at 5 standard errors fail by chance
    # in less than one seed of 10,000.
    n = 4000
    x = zoo.sample_prior(n, np.random.default_rng(3))
    gradient = zoo.evaluate(x, gradient=True).log_prior_gradient
    for score in (gradient, x * gradient + 1):
        error = score.std(0) / np.sqrt(n)
        assert (np.abs(score.mean(0)) < 5 * error).all(), dict(zip(zoo.names, score.mean(0) / error, strict=True))


def test_prior_and_likelihood_apart_against_closed_forms():
    target = PyMCTarget(normal_model())
    mu = np.array([[-1.0], [0.0], [2.0]])
    y = np.array([0.3, -1.2, 2.5])
    evaluation = target.evaluate(mu, gradient=True)
    np.testing.assert_allclose(evaluation.log_prior, stats.norm(0, 2).logpdf(mu[:, 0]))
    np.testing.assert_allclose(evaluation.log_likelihood, stats.norm(mu, 1).logpdf(y).sum(1))
    np.testing.assert_allclose(evaluation.log_prior_gradient, -mu / 4)
    np.testing.assert_allclose(evaluation.log_likelihood_gradient, (y - mu).sum(1, keepdims=True))
    np.testing.assert_allclose(target.hessian(mu)[:, 0, 0], -0.25 - 3)
    np.testing.assert_allclose(target.hessian(mu, "likelihood")[:, 0, 0], -3)
    np.testing.assert_allclose(target.pointwise_log_likelihood(mu)["y"], stats.norm(mu, 1).logpdf(y))
    assert target.log_prior_normalizer == 0.0


def test_constants_without_a_point_are_in_double_precision():
    y = np.linspace(0.5, 1.5, 1000)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 3)
        pm.Gamma("gamma", 100, 100, observed=y)
        pm.StudentT("student", 5, mu, lam=3.0, observed=y)
    evaluation = PyMCTarget(model).evaluate(np.zeros((1, 1)))
    expected = stats.gamma(100, scale=0.01).logpdf(y) + stats.t(5, scale=3**-0.5).logpdf(y)
    np.testing.assert_allclose(evaluation.log_prior, stats.norm(0, 3).logpdf(0), rtol=1e-14)
    np.testing.assert_allclose(evaluation.log_likelihood, expected.sum(), rtol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 3, 33, 1000])
def test_batches_of_any_size_are_single_evaluations(n):
    target = PyMCTarget(logistic_model(), cores=2)
    x = np.random.default_rng(0).normal(size=(n, target.dim))
    value, gradient = target.log_density_and_gradient(x)
    assert value.shape == (n,)
    assert gradient.shape == x.shape
    for i in range(0, n, max(1, n // 5)):
        one_value, one_gradient = target.log_density_and_gradient(x[i])
        np.testing.assert_allclose(value[i], one_value[0], rtol=1e-12)
        np.testing.assert_allclose(gradient[i], one_gradient[0], rtol=1e-10, atol=1e-12)


def test_one_shape_is_the_same_density_by_one_program():
    target = PyMCTarget(logistic_model())
    one, half = target.with_fixed_batch_size(), with_power(target, 0.5).with_fixed_batch_size()
    for n in (0, 1, 3, 64, 200):
        x = np.random.default_rng(n).normal(size=(n, target.dim))
        expected = target.log_density_and_gradient(x)
        for got in (one.log_density_and_gradient(x), (one.log_density(x), one.evaluate(x).gradient)):
            np.testing.assert_allclose(got[0], expected[0], rtol=1e-12)
            np.testing.assert_allclose(got[1], expected[1], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(half.log_density(x), with_power(target, 0.5).log_density(x), rtol=1e-12)
    np.testing.assert_allclose(one.hessian(x[:2]), target.hessian(x[:2]), rtol=1e-5, atol=1e-6)
    assert PyMCTarget(logistic_model(), backend="c").with_fixed_batch_size()._one_shape is False


def test_the_number_of_threads_does_not_change_a_bit():
    model = logistic_model(n=2000)
    x = np.random.default_rng(0).normal(size=(700, 3))
    results = [PyMCTarget(model, cores=cores).evaluate(x, gradient=True) for cores in (1, 2, 3)]
    for other in results[1:]:
        for got, expected in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("backend", ["jax", "numba", "c"])
def test_logistic_likelihoods_hold_far_out(backend):
    with pm.Model() as model:
        eta = pm.Normal("eta", 0, 100)
        pm.Bernoulli("y", logit_p=pt.stack([eta, -eta]), observed=[1, 0])
    eta = np.array([-800.0, -40.0, -1.0, 0.0, 1e-3, 17.0, 40.0, 800.0])[:, None]
    target = PyMCTarget(model, backend=backend)
    evaluation = target.evaluate(eta, gradient=True)
    np.testing.assert_allclose(evaluation.log_likelihood, -2 * np.logaddexp(0, -eta[:, 0]), rtol=1e-12)
    np.testing.assert_allclose(evaluation.log_likelihood_gradient, 2 * expit(-eta), rtol=1e-12, atol=1e-300)
    if backend == "jax":
        hessian = target.hessian(eta, "likelihood")
        np.testing.assert_allclose(hessian[:, 0], -2 * expit(eta) * expit(-eta), rtol=1e-12, atol=1e-16)


def test_points_outside_have_density_zero_and_spoil_nothing():
    with pm.Model() as model:
        scale = pm.Normal("scale", 0, 1)
        pm.Normal("y", 0, scale, observed=[1.0])
    target = PyMCTarget(model)
    value, gradient = target.log_density_and_gradient([[-1.0], [1.0], [np.nan]])
    np.testing.assert_allclose(value, [-np.inf, 2 * stats.norm.logpdf(1), -np.inf])
    assert np.isfinite(gradient).all()
    assert target.evaluate([[-1.0]], gradient=True).log_likelihood_gradient == 0


# -- backends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numba", pytest.param("c", marks=pytest.mark.slow)])
def test_backends_agree(backend):
    model = logistic_model(shared=True)
    x = np.random.default_rng(0).normal(size=(70, 3))
    with model:
        pm.Potential("tilt", 0.3 * model["beta"].sum())
    expected, target = PyMCTarget(model, backend="jax"), PyMCTarget(model, backend=backend, cores=2)
    got = target.evaluate(x, gradient=True)
    for one, other in zip(got, expected.evaluate(x, gradient=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(target.hessian(x[:2]), expected.hessian(x[:2]), atol=1e-7)
    more = target.with_data({"design": np.ones((4, 3)), "y_obs": [1, 0, 0, 1]})
    eta = x.sum(1)
    np.testing.assert_allclose(
        more.evaluate(x, gradient=True).log_likelihood - 0.3 * eta,
        -2 * np.logaddexp(0, -eta) - 2 * np.logaddexp(0, eta),
        atol=1e-10,
    )
    assert more._compiled is target._compiled
    assert more.observations.n == 4


class NoJax(pt.Op):
    """x squared, in Python alone."""

    __props__ = ()
    itypes, otypes = [pt.dscalar], [pt.dscalar]

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0] ** 2)

    def L_op(self, inputs, outputs, gradients):
        return [2 * inputs[0] * gradients[0]]


def model_without_jax():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        pm.Potential("square", -NoJax()(x))
    return model


@as_op(itypes=[pt.dvector], otypes=[pt.dvector])
def totals(x):
    return np.array([x[0] + x[1], x[0] - x[1], x[0]])


def test_an_operation_without_a_gradient_leaves_values_and_differences():
    x = np.random.default_rng(6).standard_normal((5, 3))
    targets = []
    for function in (totals, lambda a: pt.stack([a[0] + a[1], a[0] - a[1], a[0]])):
        with pm.Model() as model:
            a, s = pm.Normal("a", shape=2), pm.HalfNormal("s")
            pm.Normal("y", function(a), s + 0.5, observed=[1.0, 2.0, 3.0])
        targets.append(PyMCTarget(model))
    black, clear = targets
    assert (black.has_gradient, clear.has_gradient) == (False, True)
    with pytest.warns(BackendWarning, match="FromFunctionOp"):
        value, gradient = black.log_density_and_gradient(x)
    expected, slope = clear.log_density_and_gradient(x)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, slope, atol=1e-6)
    np.testing.assert_allclose(black.hessian(x), clear.hessian(x), atol=1e-3)


def test_an_operation_without_jax_falls_back_with_one_warning():
    target = PyMCTarget(model_without_jax())
    with pytest.warns(BackendWarning, match=r"jax: .*NoJax"):
        value = target.log_density([[2.0], [1.0]])
    _, gradient = target.log_density_and_gradient([[2.0]])  # warnings are errors: the note comes once
    assert gradient == -6
    np.testing.assert_allclose(value, stats.norm.logpdf([2, 1]) - [4, 1])


def test_a_backend_that_was_asked_for_does_not_fall_back():
    with pytest.raises(CompilationError, match=r"jax: .*NoJax"):
        PyMCTarget(model_without_jax(), backend="jax").log_density([[2.0]])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_jax_refuses_to_run_in_a_forked_child():
    script = """
import os
import pymc as pm
from ppl_backends.targets import PyMCTarget
from ppl_backends.targets.power import with_power
with pm.Model() as model:
    pm.Normal("x")
target = PyMCTarget(model)
target.log_density([[0.0]])
read, write = os.pipe()
if os.fork() == 0:
    try:
        target.log_density([[0.0]])
        message = "ran"
    except RuntimeError as error:
        message = str(error)
    os.write(write, message.encode())
    os._exit(0)
message = os.read(read, 1000).decode()
assert "spawn" in message and "backend='numba'" in message, message
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)


# -- copies and data ---------------------------------------------------------------------------------------------------


def density_at_one(target):
    return target.log_density(np.ones((2, target.dim)))


def test_pickles_as_a_recipe_that_a_spawned_process_compiles():
    target = PyMCTarget(logistic_model(shared=True), cores=1).with_data({"y_obs": np.ones(60, dtype=int)})
    expected = density_at_one(target)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(density_at_one, (target,)), expected)
    assert copy.deepcopy(target) is target
    again = pickle.loads(pickle.dumps(target))
    assert (again.names, again.backend, again.cores) == (target.names, target.backend, target.cores)


def test_new_data_of_the_same_shape_compile_nothing():
    model = logistic_model(shared=True)
    target = PyMCTarget(model)
    x = np.random.default_rng(0).normal(size=(5, 3))
    target.log_density(x)
    flipped = target.with_data({"y_obs": 1 - target.observed_data["y"]})
    assert flipped._compiled is target._compiled
    design = target.constant_data["design"]
    negative = target.with_data({"design": -design})
    np.testing.assert_allclose(flipped.evaluate(x).log_likelihood, negative.evaluate(x).log_likelihood)
    assert model["y_obs"].get_value().sum() == target.observed_data["y"].sum()


def test_new_data_of_another_shape():
    target = PyMCTarget(logistic_model(shared=True))
    x = np.zeros((1, 3))
    longer = target.with_data({"design": np.ones((100, 3)), "y_obs": np.ones(100)})
    assert longer.observations.n == 100
    assert len(longer.coords["row"]) == 100
    np.testing.assert_allclose(longer.evaluate(x).log_likelihood, -100 * np.log(2))


def test_data_are_checked():
    target = PyMCTarget(logistic_model(shared=True))
    with pytest.raises(ModelError, match=r"'y' is not a pm.Data container"):
        target.with_data({"y": np.ones(60)})
    with pytest.raises(ModelError, match="'y_obs' has 2 dimensions; expected 1"):
        target.with_data({"y_obs": np.ones((60, 1))})
    with pytest.raises(ModelError, match="'y_obs' is not of integers"):
        target.with_data({"y_obs": np.full(60, 0.5)})
    with pytest.raises(ModelError, match="'design' have one row, and other data have more"):
        target.with_data({"design": np.ones((1, 3))})
    with pytest.raises(ModelError, match="which does not fit its data of shape"):
        target.append({"design": np.ones((2, 2)), "y_obs": np.ones(2)})
    with pytest.raises(ModelError, match="expected numbers"):
        target.with_data({"y_obs": np.full(60, "1")})


def test_coords_dims_and_data_as_arviz_takes_them():
    target = PyMCTarget(logistic_model(shared=True))
    assert list(target.coords["predictor"]) == ["x0", "x1", "x2"]
    assert target.dims["beta"] == ["predictor"]
    assert target.dims["odds"] == ["predictor"]
    assert set(target.constant_data) == {"design"}
    assert target.observed_data["y"].shape == (60,)


def test_observations_are_in_data_order_over_all_variables():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("a", mu, 1, observed=[[1.0, 2.0], [3.0, 4.0]])
        pm.Poisson("b", pm.math.exp(mu), observed=[5, 6, 7])
    target = PyMCTarget(model)
    mu = np.array([[0.1], [0.7]])
    expected = np.hstack([stats.norm(mu, 1).logpdf([1, 2, 3, 4]), stats.poisson(np.exp(mu)).logpmf([5, 6, 7])])
    assert target.observations.n == 7
    np.testing.assert_allclose(target.observations.log_likelihood(mu), expected)
    np.testing.assert_allclose(target.observations.log_likelihood(mu, np.array([6, 0])), expected[:, [6, 0]])
    own = np.array([[1, 1], [4, 0]])
    np.testing.assert_allclose(target.observations.log_likelihood(mu, own), np.take_along_axis(expected, own, 1))


# -- starting points ---------------------------------------------------------------------------------------------------


def test_initial_points_are_dispersed_and_of_positive_density(zoo):
    x = zoo.initial_points(8, np.random.default_rng(0))
    assert np.isfinite(zoo.log_density(x)).all()
    assert (x.std(0) > 0.05).all()
    np.testing.assert_array_equal(x, zoo.initial_points(8, np.random.default_rng(0)))


def test_data_outside_the_support_are_named():
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        pm.Normal("fine", rate, 1, observed=[1.0, 2.0])
        pm.Exponential("waiting", rate, observed=[1.0, -1.0, 2.0])
        pm.Normal("regressed", rate * np.array([1.0, np.nan]), 1, observed=[1.0, 2.0])
    target = PyMCTarget(model)
    with pytest.raises(
        ModelError,
        match=r"observed variable 'waiting' is -inf at element 1 \(1 of 3\), where the observed value is -1.0",
    ) as raised:
        target.initial_points(3, np.random.default_rng(0))
    assert "\n" not in str(raised.value)
    explained = target.explain(np.zeros(1))
    assert "fine" not in explained
    assert "'regressed' is nan at element 1 (1 of 2), where a covariate may be NaN or infinite" in explained


@pytest.mark.parametrize("fit", [pb.fit_laplace, pb.fit_ep, pb.fit_inla])
@pytest.mark.parametrize(
    ("where", "said"), [("y", "the observed value is inf: leave"), ("x", "a covariate may be NaN or inf")]
)
def test_infinite_data_are_named_by_all_fits(fit, where, said):
    data = {"x": np.linspace(-1, 1, 20), "y": np.linspace(0, 1, 20) ** 2}
    data[where][7] = np.inf
    with pm.Model() as model:
        slope, sigma = pm.Normal("slope", 0, 2), pm.HalfNormal("sigma", 1)
        pm.Normal("y", slope * data["x"], sigma, observed=data["y"])
    with pytest.raises(ModelError, match=rf"'y' is -?\w+ at element 7 \(1 of 20\), where {said}") as raised:
        fit(model, progressbar=False)
    assert "\n" not in str(raised.value)


def test_large_constants_are_arguments_of_the_program():
    """A design of 120,000 numbers is not part of what XLA compiles; values and derivatives are those of least squares."""
    rng = np.random.default_rng(3)
    design, y = rng.normal(size=(60_000, 2)), rng.normal(size=60_000)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", pm.math.dot(design, beta), 1, observed=y)
    target, x = PyMCTarget(model), rng.normal(size=(3, 2))
    residuals = y - x @ design.T
    found = target.evaluate(x, gradient=True)
    truth = -0.5 * (residuals**2).sum(axis=1) - 30_000 * np.log(2 * np.pi)
    np.testing.assert_allclose(found.log_likelihood, truth, rtol=1e-12)
    np.testing.assert_allclose(found.log_likelihood_gradient, residuals @ design, rtol=1e-9)
    np.testing.assert_allclose(target.hessian(x), np.tile(-design.T @ design - np.eye(2), (3, 1, 1)), rtol=1e-9)
    _, _, constants = _with_large_constants([model.logp()])
    assert [constant.shape for constant in constants] == [design.shape]


@pytest.mark.parametrize("backend", ["jax", "numba"])
@pytest.mark.parametrize("in_data", [True, False])
def test_indices_out_of_bounds_are_refused(backend, in_data):
    """JAX takes the nearest element in their place, so that groups counted from 1 gave a posterior of another model."""

    def model_of(groups):
        with pm.Model() as model:
            index = pm.Data("g", groups) if in_data else groups
            level = pm.Normal("a", 0, 1, shape=3)
            pm.Normal("y", 2.0 * level[index] + level[index % 3], 1, observed=np.zeros(len(groups)))
        return model

    right = PyMCTarget(model_of(np.array([0, 1, 2, -3])), backend=backend)
    x = np.ones((1, 3))
    np.testing.assert_allclose(right.log_density(x), joint_of_pymc(right, x))
    for wrong in (3, -4):
        with pytest.raises(ModelError, match=f"'y' selects an element.* index {wrong} is out of bounds .* size 3"):
            PyMCTarget(model_of(np.array([0, 1, 2, wrong])), backend=backend).log_density(x)
    if in_data:
        with pytest.raises(ModelError, match="by the data 'g'"):
            right.with_data({"g": [0, 1, 2, 3]}).log_density(x)


def _set(level, groups):
    return pt.set_subtensor(level[groups[-1]], 2.0)


def _added(level, groups):
    return pt.inc_subtensor(level[groups], np.ones(4))


def _looped(step, *sequences, also=()):
    initial = pt.zeros((), dtype="float64")
    found = pytensor.scan(step, sequences=list(sequences), outputs_info=[initial], non_sequences=list(also))
    return found[0] if isinstance(found, tuple | list) else found


def _read_in_a_loop(level, groups):
    return _looped(lambda group, before, level: 0.5 * before + level[group], groups, also=[level])[1:]


def _counted_in_a_loop(level, groups):
    def step(t, before, level, groups):
        return 0.5 * before + level[groups[t] - 1]

    return _looped(step, pt.arange(4), also=[level, groups + 1])[1:]


def _set_in_a_loop(level, groups):
    def step(pair, before, level):
        return 0.5 * before + pt.set_subtensor(level[pair], np.zeros(2)).sum()

    return _looped(step, pt.stack([groups, groups], axis=1), also=[level])[1:]


@pytest.mark.parametrize("mean", [_set, _added, _read_in_a_loop, _counted_in_a_loop, _set_in_a_loop])
def test_elements_that_are_set_or_read_in_loops_are_checked_too(mean):
    """JAX sets no element in place of one that does not exist, and takes the nearest in a loop."""

    def model_of(groups):
        with pm.Model() as model:
            index = pm.Data("g", groups)
            pm.Normal("y", mean(pm.Normal("a", 0, 1, shape=3), index), 1, observed=np.zeros(3))
        return model

    right, x = PyMCTarget(model_of([0, 1, 2, -3])), np.arange(3.0)[None]
    np.testing.assert_allclose(right.log_density(x), joint_of_pymc(right, x))
    for wrong in (3, -4):
        with pytest.raises(ModelError, match=r"'y' selects an element .*by the data 'g'.* is out of bounds .* size 3"):
            right.with_data({"g": [0, 1, 2, wrong]}).log_density(x)

"""Targets with a state-space likelihood: from a pm.Model, from functions, on new rows, pickled, refused."""

import pickle

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import group
from ppl_backends.targets.state_space.target import axis_of_rows
from tests.state_space.models import LG_POINT, VOLATILITY, data, kalman, repeated
from tests.statistics import t_bound

Y = data("linear_gaussian", 12)


@pytest.fixture(scope="module")
def model():
    with pm.Model(coords={"day": np.arange(3, 15)}) as model:
        rho = pm.Uniform("rho", -1, 1)
        sigma_x = pm.Exponential("sigma_x", 1)
        sigma_y = pm.Exponential("sigma_y", 1)
        pb.StateSpace(
            "y", pb.state_space.linear_gaussian(), rho=rho, sigma_x=sigma_x, sigma_y=sigma_y, observed=Y, dims="day"
        )
    return model


@pytest.fixture(scope="module")
def target(model):
    return pb.as_target(model)


def points(target, n=5):
    return np.random.default_rng(2).normal(size=(n, target.dim))


def test_the_likelihood_of_a_linear_gaussian_model_is_exact(target):
    x = points(target)
    values = target.constrain(x)
    expected = [kalman(Y, *(values[name][i] for name in ("rho", "sigma_x", "sigma_y")))[0] for i in range(len(x))]
    evaluation = target.evaluate(x, gradient=True)
    np.testing.assert_allclose(evaluation.log_likelihood, expected, rtol=1e-9)
    step = np.array([0.0, 1e-5, 0.0])
    slope = (target.log_density(x + step) - target.log_density(x - step)) / 2e-5
    np.testing.assert_allclose(target.log_density_and_gradient(x)[1][:, 1], slope, rtol=1e-4, atol=1e-5)


def test_estimates_of_the_likelihood_are_unbiased(target):
    x = np.tile(target.unconstrain(repeated(LG_POINT, 1)), (1000, 1))
    ratio = np.exp(
        target.log_likelihood_estimate(x, np.random.default_rng(1)) - target.evaluate(x[:1]).log_likelihood[0]
    )
    assert abs(ratio.mean() - 1) < t_bound(999) * ratio.std(ddof=1) / np.sqrt(1000)


def test_the_target_knows_rows_and_their_coordinates(target):
    np.testing.assert_array_equal(target.observed_data["y"], Y)
    assert target.dims["y"] == ["day"]
    assert list(target.coords["day"]) == list(range(3, 15))
    assert target.state_space.filter().method == "guided"
    assert pb.as_target(pb.FunctionTarget(1, lambda x: (-(x**2).sum(1), -2 * x))).state_space is None


def test_new_rows(target):
    x = points(target)
    longer = target.append({"y": [0.3, np.nan]})
    np.testing.assert_array_equal(longer.observed_data["y"], [*Y, 0.3, np.nan])
    np.testing.assert_allclose(longer.with_data({"y": Y}).log_density(x), target.log_density(x), rtol=1e-12)
    assert (longer.log_density(x) != target.log_density(x)).all()
    with pytest.raises(ModelError, match=r"'z' is not among the data of state-space variable 'y'"):
        target.append({"z": [0.3]})
    with pytest.raises(ModelError, match=r"new 'y' has shape \(1, 1\); expected \(n,\)"):
        target.append({"y": [[0.3]]})
    with pytest.raises(ModelError, match="new 'y' is of type <U1; expected an array of numbers"):
        target.append({"y": ["a"]})


def test_masked_rows_are_missing():
    with pm.Model() as model:
        masked = np.ma.masked_array([0.1, 7.0, 0.3], mask=[False, True, False])
        pb.StateSpace(
            "y", pb.state_space.linear_gaussian(), observed=masked, rho=pm.Uniform("rho"), sigma_x=1.0, sigma_y=1.0
        )
    np.testing.assert_array_equal(pb.as_target(model).observed_data["y"], [0.1, np.nan, 0.3])


def test_the_axis_of_rows_is_that_of_the_data_or_time(target):
    assert axis_of_rows(target)[0] == "day"
    prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    level = pb.state_space.linear_gaussian(lambda p: (p.m[0], 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0))
    made = pb.with_state_space(prior, level, parameters={"m": "x"}, observed=[0.1, 0.2])
    assert axis_of_rows(made)[0] == "time"
    assert made.dims["y"] == ["time"]
    prior.coords = {"time": np.arange(5)}
    assert axis_of_rows(pb.with_state_space(prior, level, parameters={"m": "x"}, observed=[0.1, 0.2]))[0] == "y_dim_0"


def test_rows_beside_any_prior_have_names_and_coordinates():
    prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    level = pb.state_space.linear_gaussian(lambda p: (p.m[0], 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0))
    days = np.array(["2024-05-01", "2024-05-02", "2024-05-03"], dtype="datetime64[D]")

    def made(**axes):
        return pb.with_state_space(prior, level, parameters={"m": "x"}, observed=[0.1, 0.2, 0.3], **axes)

    axis, labels = axis_of_rows(made(dims="day", coords={"day": days}))
    assert axis == "day"
    np.testing.assert_array_equal(labels, days)
    assert axis_of_rows(made(coords={"time": days}))[0] == "time"
    with pytest.raises(ModelError, match="coords has 'week', which is not among dims: day"):
        made(dims="day", coords={"week": days})
    with pytest.raises(ModelError, match="dims name 2 axes, and observed has 1"):
        made(dims=("day", "sensor"))


def test_new_rows_bring_their_coordinates():
    days = np.array(["2024-05-01", "2024-05-02", "2024-05-06"], dtype="datetime64[ns]")
    with pm.Model(coords={"day": days[:2]}) as model:
        rho = pm.Uniform("rho")
        pb.StateSpace(
            "y", pb.state_space.linear_gaussian(), rho=rho, sigma_x=1.0, sigma_y=1.0, observed=[0.1, 0.2], dims="day"
        )
    made = pb.as_target(model)
    axis, labels = axis_of_rows(made.append({"y": [0.3], "day": ["2024-05-06"]}))
    assert axis == "day"
    np.testing.assert_array_equal(labels, days)
    np.testing.assert_array_equal(axis_of_rows(made.append({"y": [0.3]}))[1], [0, 1, 2])
    with pytest.raises(ModelError, match="new 'day' has 1 coordinates for 2 new rows"):
        made.append({"y": [0.3, 0.4], "day": days[2:]})
    with pytest.raises(ModelError, match="new 'day' has 'soon', which is not a date"):
        made.append({"y": [0.3], "day": ["soon"]})


def test_a_target_pickles_with_its_rows(target):
    longer = target.append({"y": [0.3]})
    x = points(target, 2)
    other = pickle.loads(pickle.dumps(longer))
    np.testing.assert_allclose(other.log_density(x), longer.log_density(x), rtol=1e-12)
    assert other.digests() == longer.digests() != target.digests()


def test_a_prior_from_functions_agrees_with_the_model(target):
    names = ["rho", "sigma_x", "sigma_y"]
    other = pb.with_state_space(
        target.rest, pb.state_space.linear_gaussian(), parameters={n: n for n in names}, observed=Y
    )
    x = points(target)
    np.testing.assert_allclose(other.log_density(x), target.log_density(x), rtol=1e-12)
    with pytest.raises(ModelError, match="names 'sigma', which is not a variable of the model"):
        pb.with_state_space(target.rest, pb.state_space.linear_gaussian(), parameters={"rho": "sigma"}, observed=Y)


@pytest.mark.filterwarnings("ignore:Numba will use object mode")  # PyTensor 3 compiles with Numba by default
def test_a_likelihood_that_is_only_estimated_is_refused_by_name():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        pb.StateSpace("returns", VOLATILITY, mu=mu, rho=0.95, sigma=0.3, observed=[0.1, -0.4])
    target = pb.as_target(model)
    with pytest.raises(ModelError, match="'returns': its likelihood is an integral over states"):
        target.log_density(np.zeros((1, 1)))
    with pytest.raises(ModelError, match="'returns': its likelihood is an integral over states"):
        pb.fit_laplace(model)
    with model, pytest.raises(ModelError, match="'returns': its likelihood is an integral over states"):
        pm.sample(1, step=pm.Metropolis(), tune=0, chains=1, progressbar=False, compute_convergence_checks=False)
    assert np.isfinite(target.log_likelihood_estimate(np.zeros((3, 1)), np.random.default_rng(0))).all()


def test_prior_draws_have_no_data(model):
    with model, pytest.raises(ModelError, match=r"'y' cannot be drawn.*var_names="):
        pm.sample_prior_predictive(3)
    with model:
        assert pm.sample_prior_predictive(3, var_names=["rho"]).prior["rho"].shape == (1, 3)


def test_a_row_of_zero_density_is_named():
    prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    walk = pb.StateSpaceModel(
        initial=lambda p, z: z,
        transition=lambda p, t, x, z: x + z,
        log_observation=lambda p, t, x, y: jnp.where(y > 5, -jnp.inf, -0.5 * (y - x) ** 2),
    )
    target = pb.with_state_space(prior, walk, parameters={}, observed=[0.0, 9.0, 0.0])
    assert target.log_likelihood_estimate(np.zeros((2, 1)), np.random.default_rng(0)).tolist() == [-np.inf, -np.inf]
    assert target.explain(np.zeros(1)) == "row 1 of 'y' has density zero at every particle (NaN counts as zero)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"observed": None}, "'y': observed= is missing"),
        ({"observed": ["a"]}, "observed is of type"),
        ({"observed": np.zeros((2, 2, 2))}, r"observed has shape \(2, 2, 2\)"),
        ({"observed": [0.0, 1.0], "covariates": {"u": [1.0]}}, "covariate 'u' has 1 rows and the data have 2"),
        ({"observed": [[0.0], [1.0, 2.0]]}, "observed has rows of unequal lengths"),
        ({"observed": [0.0], "covariates": {"u": ["a"]}}, "covariate 'u' is of type <U1"),
        ({"observed": [0.0], "covariates": [1.0]}, "covariates is of type list; expected a dict"),
        ({"model": "walk", "observed": [0.0]}, "expected a pb.StateSpaceModel, not str"),
        ({"observed": [0.0, np.inf]}, "observed is infinite in row 1; use NaN for missing entries"),
        ({"observed": [0.0, 1.0], "covariates": {"u": [1.0, np.nan]}}, "covariate 'u' is not finite in row 1"),
        ({"observed": [0.0], "covariates": {"y_previous": [1.0]}}, "covariate 'y_previous': the name is taken"),
        ({"observed": [0.0], "phi": 0.1}, r"no function of the state-space model uses p\.phi"),
        ({"observed": [0.0], "covariate": {"u": [1.0]}}, "'y': covariate=dict is not a variable or number"),
        ({"observed": [0.0], "dims": "day"}, "'y': dims name 'day', for which there are no coordinates"),
        ({"observed": [0.0], "dims": "week"}, "'y': 'week' has 3 coordinates, and observed 1 rows or columns"),
        ({"observed": [0.0] * 3, "dims": ("week", "week")}, "'y': dims name 2 axes, and observed has 1"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(given, message):
    ssm = given.pop("model", VOLATILITY)
    with pm.Model(coords={"week": range(3)}), pytest.raises(ModelError, match=message):
        pb.StateSpace("y", ssm, mu=0.0, rho=0.5, sigma=1.0, **given)


@pytest.mark.parametrize(
    ("log_observation", "message"),
    [
        (
            lambda p, t, x, y: -((y - x / p.scale) ** 2),
            r"uses p\.scale, which does not exist; known are sigma, y_previous",
        ),
        (lambda p, t, x, y: (-((y - x) ** 2)).sum(), r"log_observation returned shape \(\) .* expected \(3, 5\)"),
        (lambda p, t, x, y: -np.square(np.asarray(y - x)), "write it with jax.numpy"),
        (lambda p, t, x, y: x if y > 0 else -x, r"jnp\.where in place of if"),
    ],
)
def test_functions_that_do_not_fit_are_refused_where_the_model_is_declared(log_observation, message):
    walk = pb.StateSpaceModel(lambda p, z: z, lambda p, t, x, z: x + p.sigma * z, log_observation)
    with pm.Model(), pytest.raises(ModelError, match=message):
        pb.StateSpace("y", walk, sigma=1.0, observed=[0.0])


@pytest.mark.slow
def test_rows_of_an_exact_likelihood_are_let_in_one_by_one(model, target):
    x = points(target)
    np.testing.assert_allclose(target.observations.sum(x), target.evaluate(x).log_likelihood, rtol=1e-12)
    each = np.array([[0, 3], [2, 1], [5, 5], [1, 0], [11, 4]])
    expected = np.take_along_axis(target.increments(x), each, axis=1)
    np.testing.assert_array_equal(target.observations.log_likelihood(x, each), expected)
    options = {"draws": 500, "chains": 2, "random_seed": 3, "progressbar": False}
    rows, whole = (run(model, **options).posterior.attrs for run in (pb.sample_ibis, pb.sample_smc))
    error = np.hypot(rows["log_evidence_se"], whole["log_evidence_se"])
    assert error < 0.2
    assert abs(rows["log_evidence"] - whole["log_evidence"]) < 4 * error


@pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")  # two hundred draws are few
def test_particles_of_a_series_mix_in_few_moves():
    with pm.Model() as model:
        scales = {name: pm.Exponential(name, 1) for name in ("sigma_x", "sigma_y")}
        series = pb.state_space.linear_gaussian()
        pb.StateSpace("y", series, rho=pm.Uniform("rho", -1, 1), **scales, observed=data("linear_gaussian"))
    idata = pb.sample_ibis(model, draws=200, chains=1, random_seed=1, progressbar=False)
    stages, attrs = group(idata, "sample_stats"), group(idata, "posterior").attrs
    assert stages["n_moves"].max() < 50  # 94 to 100 with proposals from a Gaussian
    assert np.nanmax(stages["correlation"]) < 0.15
    assert abs(attrs["log_evidence"] + 117.720) < 4 * attrs["log_evidence_se"]


def test_rows_are_refused_where_they_are_not_all_or_not_exact():
    with pm.Model() as model:
        rho = pm.Uniform("rho", -1, 1)
        pb.StateSpace("y", pb.state_space.linear_gaussian(), rho=rho, sigma_x=0.5, sigma_y=0.5, observed=[0.1, 0.3])
        pm.Normal("other", rho, 1.0, observed=0.2)
    with pytest.raises(ModelError, match=r"use pb\.sample_smc2"):
        pb.sample_ibis(model, draws=10, progressbar=False)


def test_two_state_space_variables_are_refused():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        for name in ("y", "z"):
            pb.StateSpace(name, VOLATILITY, mu=mu, rho=0.5, sigma=1.0, observed=[0.0])
    with pytest.raises(ModelError, match="'y', 'z' are all"):
        pb.as_target(model)

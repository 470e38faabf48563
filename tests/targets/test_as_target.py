import subprocess
import sys

import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.targets import BaseTarget, FunctionTarget, PyMCTarget
from tests.targets.models import logistic_model, normal_model


def test_importing_the_package_imports_neither_pymc_nor_jax():
    check = "import sys, ppl_backends as pb; pb.as_target; sys.exit(bool({'pymc', 'jax'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-W", "ignore", "-c", check], check=True)


def test_a_model_and_the_model_on_the_context_stack():
    with normal_model() as model:
        assert pb.as_target().model is model
    assert isinstance(pb.as_target(model), PyMCTarget)
    assert pb.as_target(model, cores=1).cores == 1


def test_no_model_at_all():
    with pytest.raises(ModelError, match="no model: pass one"):
        pb.as_target()


def test_an_integer_names_the_habit():
    with pytest.raises(ModelError, match=r"model=2000 is an integer.*as_target\(model\)"):
        pb.as_target(2000)


@pytest.mark.parametrize("model", ["model.txt", object(), 1.5, {"a": 1}])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(ModelError, match="model"):
        pb.as_target(model)


def test_options_of_pymc_models():
    with pytest.raises(ModelError, match="unknown option 'predictor'"):
        pb.as_target(normal_model(), predictor="eta")
    with pytest.raises(ModelError, match="backend='gpu'"):
        pb.as_target(normal_model(), backend="gpu")
    with pytest.raises(ModelError, match="backend='jax' is for PyMC models"):
        pb.as_target("parameters { real x; } model { x ~ normal(0, 1); }", backend="jax")


def test_data_of_a_pymc_model_fill_its_containers():
    model = logistic_model(shared=True)
    target = pb.as_target(model, {"y_obs": np.ones(60, dtype=int)})
    assert target.observed_data["y"].sum() == 60
    with pytest.raises(ModelError, match=r"'outcome' is not a pm.Data container"):
        pb.as_target(model, {"outcome": np.ones(60)})
    with pytest.raises(ModelError, match="expected a dict"):
        pb.as_target(model, np.ones(60))


def test_a_target_passes_through():
    target = FunctionTarget(1, lambda x: (-0.5 * x[:, 0] ** 2, -x))
    assert pb.as_target(target) is target
    with pytest.raises(ModelError, match="already holds its data"):
        pb.as_target(target, {"y": 1})


class DensityOnly:
    dim = 2

    def log_density(self, x):
        return np.where(x[:, 0] < 3, -0.5 * (x**2).sum(1) - np.exp(x[:, 0]), np.nan)


class WithMembers(DensityOnly):
    names = ("a", "b")

    def log_density_and_gradient(self, x):
        gradient = -x.copy()
        gradient[:, 0] -= np.exp(x[:, 0])
        return self.log_density(x), gradient

    def constrain(self, x, rng=None):
        return {"c": x[:, 0] + x[:, 1]}


def test_a_third_partys_density_is_completed():
    target = pb.as_target(DensityOnly())
    assert isinstance(target, BaseTarget)
    assert target.names == ("x[0]", "x[1]")
    x = np.array([[0.5, -1.0], [4.0, 0.0]])
    value, gradient = target.log_density_and_gradient(x)
    assert value[1] == -np.inf
    # central differences of step h err by h^2 f'''/6 + eps/h, with h = eps^(1/3): 1e-10
    np.testing.assert_allclose(gradient, [[-0.5 - np.exp(0.5), 1.0], [0.0, 0.0]], atol=1e-8)
    assert set(target.constrain(x)) == {"x"}


def test_members_of_a_third_partys_target_are_used():
    target = pb.as_target(WithMembers())
    assert target.names == ("a", "b")
    x = np.array([[0.5, -1.0]])
    np.testing.assert_array_equal(target.log_density_and_gradient(x)[1], WithMembers().log_density_and_gradient(x)[1])
    assert target.constrain(x)["c"] == -0.5
    np.testing.assert_allclose(target.hessian(x)[0], np.diag([-1 - np.exp(0.5), -1]), atol=1e-6)


def test_names_of_a_third_partys_target_must_be_one_each():
    class Wrong(DensityOnly):
        names = ("a", "a")

    with pytest.raises(ModelError, match="different names"):
        pb.as_target(Wrong())
    with pytest.raises(ModelError, match="different names"):
        pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x), names=["a"])


def test_a_bambi_model():
    bambi = pytest.importorskip("bambi")
    import pandas as pd

    rng = np.random.default_rng(0)
    data = pd.DataFrame({"x": rng.normal(size=20), "y": rng.normal(size=20)})
    target = pb.as_target(bambi.Model("y ~ x", data))
    assert target.dim == 3
    point = rng.normal(size=(2, 3))
    expected = [
        target.model.compile_logp(mode="FAST_COMPILE")({v.name: row[i] for i, v in enumerate(target.model.value_vars)})
        for row in point
    ]
    order = [target.names.index(v.name) for v in target.model.value_vars]
    np.testing.assert_allclose(target.log_density(point[:, np.argsort(order)]), expected)


def test_stan_goes_to_the_stan_target(tmp_path):
    with pytest.raises(ModelError, match="missing"):
        pb.as_target(tmp_path / "missing.stan", {"n": 1})


def test_deepcopy_of_the_model_context_is_left_alone():
    with pm.Model() as model:
        pm.Normal("x")
        target = pb.as_target(model)
    assert target.model is model


@pytest.mark.parametrize(
    "found", [lambda x: -0.5 * (x**2).sum(1), lambda x: (-0.5 * x**2, -x), lambda x: (x[:, 0], x[:, 0])]
)
def test_functions_that_return_something_else(found):
    with pytest.raises(ModelError, match=r"log_likelihood returned .* expected a tuple of values and gradients"):
        FunctionTarget(2, found).log_density(np.zeros((3, 2)))

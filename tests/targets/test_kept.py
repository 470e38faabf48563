"""A model keeps its target while the model does not change."""

import gc
import pickle
import weakref

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb


@pytest.fixture
def model():
    slopes = np.array([1.0, 2.0, 3.0])
    with pm.Model(coords={"row": [0, 1, 2]}) as model:
        x = pm.Data("x", slopes, dims="row")
        mu = pm.Normal("mu")
        pm.Normal("y", mu * x + np.zeros(3), 1.0, observed=slopes, dims="row")
    model.slopes = slopes
    return model


def test_second_call_gets_the_same_target(model):
    assert pb.as_target(model) is pb.as_target(model)
    assert pb.as_target(model, backend="numba") is not pb.as_target(model)


def test_new_data_make_a_new_target(model):
    before = pb.as_target(model)
    value = before.log_density(np.zeros((1, 1)))
    with model:
        pm.set_data({"x": [0.0, 0.0, 1.0]})
    after = pb.as_target(model)
    assert after is not before
    one = np.ones((1, 1))
    assert after.log_density(one) - value == pytest.approx(-0.5 + 0.5 * (9 - 4))
    assert before.log_density(one) - value == pytest.approx(-0.5 + 0.5 * 14)


def test_array_changed_in_place_makes_a_new_target():
    offset = np.array([1.0, 3.0])
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu + offset, 1.0, observed=[0.0, 0.0])
    first = pb.as_target(model)
    value = first.log_density(np.zeros((1, 1)))
    offset[0] = 2.0
    second = pb.as_target(model)
    assert second is not first
    assert second.log_density(np.zeros((1, 1))) - value == pytest.approx(-1.5)


def test_new_variable_makes_a_new_target(model):
    before = pb.as_target(model)
    with model:
        pm.Potential("penalty", -3.0 * model["mu"] ** 2)
    assert pb.as_target(model) is not before
    with model:
        pm.Deterministic("square", model["mu"] ** 2)
    assert "square" in pb.as_target(model).constrain(np.ones((1, 1)))


def test_new_coordinates_make_a_new_target(model):
    before = pb.as_target(model)
    with model:
        pm.set_data({"x": model.slopes}, coords={"row": ["a", "b", "c"]})
    assert list(pb.as_target(model).coords["row"]) == ["a", "b", "c"]
    assert pb.as_target(model) is not before


def test_copies_of_a_model_have_no_target(model):
    target = pb.as_target(model)
    copy = pickle.loads(cloudpickle.dumps(model))
    assert copy._ppl_backends_targets == {}
    assert type(copy._ppl_backends_targets) is dict
    one = np.ones((1, 1))
    assert pb.as_target(copy).log_density(one) == pytest.approx(target.log_density(one), rel=1e-14)


def test_model_and_target_are_freed_together():
    with pm.Model() as model:
        pm.Normal("mu")
    target = weakref.ref(pb.as_target(model))
    owner = weakref.ref(model)
    del model
    gc.collect()
    assert owner() is None
    assert target() is None

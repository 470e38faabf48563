"""``pb.bambi.fit``: names, dims, coords and predictions are those of Bambi's own fit."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.marginal_likelihood.bambi_draws import sampled_draws
from ppl_backends.results.inference_data import group

bmb = pytest.importorskip("bambi")

from tests.hosts.bambi_models import MODELS, linear  # noqa: E402

QUIET = {"progressbar": False, "random_seed": 1}
CHEAP = {"method": "laplace", "draws": 20, "compute_convergence_checks": False, **QUIET}
FAST = ("linear", "bernoulli")
SLOW = ("group_slopes", "categorical", "distributional", "gamma")


def bambis_own(model, draws=200):
    """Return draws of Bambi's NUTS."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(draws=draws, tune=300, chains=2, cores=1, inference_method="pymc", **QUIET)


def assert_same_shape(ours, theirs):
    """Names in their order, dims, kinds of numbers and coords of two posteriors."""
    assert list(ours.data_vars) == list(theirs.data_vars)
    for name in theirs.data_vars:
        assert ours[name].dims == theirs[name].dims, name
        assert ours[name].dtype == theirs[name].dtype, name
        for dim in set(theirs[name].dims) - {"chain", "draw"}:
            np.testing.assert_array_equal(ours[dim].values, theirs[dim].values)


def assert_same_means(ours, theirs, ess):
    """Means within five standard errors of what ``ess`` draws of NUTS and many of ours give."""
    for name in theirs.data_vars:
        both = [posterior[name].mean(("chain", "draw")).values for posterior in (ours, theirs)]
        sd = theirs[name].std(("chain", "draw")).values
        np.testing.assert_allclose((both[0] - both[1]) / sd, 0, atol=5 / ess**0.5, err_msg=name)


def predictions(model, idata, **options):
    """Parameters of the response and draws of it, as Bambi predicts them; None where this Bambi itself cannot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both = model.predict(idata, kind="response", inplace=False, **options)
    return group(both, "posterior"), group(both, "posterior_predictive")


def check(kind, method):
    model = MODELS[kind]()
    theirs = bambis_own(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = pb.bambi.fit(model, method=method, draws=400, chains=4, **QUIET)
    assert_same_shape(group(ours, "posterior"), group(theirs, "posterior"))
    assert_same_means(group(ours, "posterior"), group(theirs, "posterior"), 60)
    assert group(ours, "posterior").attrs["modeling_interface"] == "bambi"
    try:
        expected = predictions(model, theirs)
    except ValueError:
        pytest.skip("the installed Bambi cannot predict from its own fit of this model")
    found = predictions(model, ours)
    assert_same_shape(found[0], expected[0])
    assert_same_means(found[0], expected[0], 60)
    assert_same_shape(found[1], expected[1])
    new = predictions(model, ours, data=model.data.iloc[:5])
    assert 5 in new[1].sizes.values()


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAST)
def test_names_dims_and_predictions_are_bambis(kind):
    check(kind, "importance")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLOW)
def test_names_dims_and_predictions_of_more_models_are_bambis(kind):
    check(kind, "smc")


class Study(bmb.Model):
    """A model of a library that is built on Bambi, by inheritance."""


@pytest.fixture(scope="module")
def model():
    return linear()


def test_subclasses_and_holders_of_a_model(model):
    study = Study("y ~ x", model.data)
    kept = []
    holder = SimpleNamespace(model=study, restore_traces=kept.append, _clean_posterior_group=lambda dt: None)
    one, other = (pb.bambi.fit(each, **CHEAP) for each in (study, holder))
    assert set(group(one, "posterior").data_vars) == {"sigma", "Intercept", "x"}
    np.testing.assert_array_equal(group(one, "posterior")["x"], group(other, "posterior")["x"])
    assert kept == [other]


def test_parameters_of_the_response_are_kept_on_request(model):
    idata = pb.bambi.fit(model, include_response_params=True, idata_kwargs={"log_likelihood": True}, **CHEAP)
    posterior = group(idata, "posterior")
    assert posterior["mu"].dims == ("chain", "draw", "__obs__")
    assert group(idata, "log_likelihood")["y"].shape == (4, 20, 60)
    X = np.column_stack([np.ones(60), model.data["x"], model.data["z"]])
    plain = X @ [float(posterior[name].isel(chain=0, draw=0)) for name in ("Intercept", "x", "z")]
    levels = np.asarray(model.data["c"])[:, None] == posterior["x:c"]["x:c_dim"].values
    c = model.data["x"].values[:, None] * levels
    np.testing.assert_allclose(
        posterior["mu"].isel(chain=0, draw=0), plain + c @ posterior["x:c"].isel(chain=0, draw=0).values
    )


def test_bad_calls():
    with pytest.raises(ModelError, match=r"expected a bambi\.Model"):
        pb.bambi.fit("y ~ x")
    with pytest.raises(ModelError, match="expected 'smc', 'ibis'"):
        pb.bambi.fit(linear(), method="nuts")


@pytest.mark.parametrize(
    "kind",
    [
        "linear",
        pytest.param("group_slopes", marks=pytest.mark.slow),
        pytest.param("categorical", marks=pytest.mark.slow),
    ],
)
def test_processed_draws_are_taken_back_to_the_sampled_parameters(kind):
    """Intercepts of centred predictors and the offsets of group effects, from what Bambi makes of the same draws."""
    model = MODELS[kind]()
    model.build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)  # any draws will do
        raw = pb.pymc.sample(model.backend.model, method="laplace", draws=20, **QUIET)
        processed = pb.bambi.fit(model, method="laplace", draws=20, **QUIET)
    assert sampled_draws(raw, model) is raw
    raw, found = group(raw, "posterior"), group(sampled_draws(processed, model), "posterior")
    free = [variable.name for variable in model.backend.model.free_RVs]
    assert set(free) <= set(found.data_vars)
    for name in free:
        np.testing.assert_allclose(found[name].values, raw[name].values, rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.slow
def test_the_evidence_from_bambis_draws_is_that_of_the_model():
    model = linear()
    exact = group(pb.sample_importance(model, **QUIET), "posterior").attrs
    found = pb.evidence(bambis_own(model, draws=500), model, random_seed=1)
    assert found.trusted
    assert abs(found.log_evidence - exact["log_evidence"]) < 4 * np.hypot(
        found.log_evidence_se, exact["log_evidence_se"]
    )

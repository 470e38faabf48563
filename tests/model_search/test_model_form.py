"""Coefficients of PyMC models: the same search as that of the design, and models that are refused."""

import json
import re
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import nbinom, norm

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import ModelError, SamplerWarning

HEART = load_binary_regression("heart")
X, Y = HEART.X[:, 1:6], HEART.y


def select(model=None, **options):
    return pb.select_variables(model, random_seed=1, progressbar=False, **options)


@pytest.mark.parametrize("prior", ["normal", "cauchy"])
def test_a_model_is_searched_as_its_design_is(prior):
    with pm.Model(coords={"predictor": list(HEART.names[1:6])}):
        if prior == "normal":
            level, slopes = pm.Normal("level", 0, 20), pm.Normal("beta", 0, 5, dims="predictor")
        else:
            level, slopes = pm.Cauchy("level", 0, 10), pm.Cauchy("beta", 0, 2.5, dims="predictor")
        pm.Bernoulli("y", logit_p=level + X @ slopes, observed=Y)
        idata = select(select={"beta": True})
    design = select(X=X, y=Y, prior=None if prior == "normal" else "cauchy", evidence="ep")
    found = idata.selection["inclusion"]
    np.testing.assert_allclose(found, design.selection["inclusion"], atol=1e-4)
    assert found.dims == ("predictor",)
    assert found["predictor"].values.tolist() == list(HEART.names[1:6])
    assert idata.posterior.attrs["log_evidence"] == pytest.approx(design.posterior.attrs["log_evidence"], abs=1e-3)
    assert idata.posterior["gamma"].dims == ("chain", "draw", "predictor")
    assert not idata.posterior["beta"].values[idata.posterior["gamma"].values == 0].any()
    assert np.all(idata.posterior["level"] != 0)


def test_masks_and_several_variables():
    with pm.Model():
        level, first, second = pm.Normal("level", 0, 20), pm.Normal("a", 0, 5, shape=3), pm.Normal("b", 0, 5, shape=2)
        pm.Bernoulli("y", logit_p=level + X[:, :3] @ first + X[:, 3:] @ second, observed=Y)
        idata = select(select={"a": np.array([True, False, True]), "b": True})
    design = select(X=X, y=Y, always=["x1"])
    group = idata.selection
    both = np.concatenate([group["a_inclusion"], group["b_inclusion"]])
    np.testing.assert_allclose(both, design.selection["inclusion"], atol=1e-4)
    assert group["a_inclusion"][1] == 1
    assert {"a_gamma", "b_gamma"} <= set(idata.posterior)


def test_a_variable_is_a_group_of_its_elements():
    with pm.Model():
        level, first, second = pm.Normal("level", 0, 20), pm.Normal("a", 0, 5, shape=3), pm.Normal("b", 0, 5, shape=2)
        pm.Bernoulli("y", logit_p=level + X[:, :3] @ first + X[:, 3:] @ second, observed=Y)
        whole = select(select={"a": True, "b": True}, groups={"second": "b"})
        listed = select(select={"a": True, "b": True}, groups={"second": ["b[0]", "b[1]"]})
        with pytest.raises(ModelError, match="groups: 'second': 'c' is not among 'level', 'a"):
            select(select={"b": True}, groups={"second": ["c"]})
    assert whole.selection["b_inclusion"][0] == whole.selection["b_inclusion"][1]
    np.testing.assert_array_equal(whole.selection["b_inclusion"], listed.selection["b_inclusion"])


def test_elements_are_named_by_numbers_or_by_labels():
    design = np.column_stack([X[:, :3], X[:, 0] * X[:, 1]])
    with pm.Model(coords={"predictor": ["age", "sex", "pain", "age:sex"]}):
        level, slopes = pm.Normal("level", 0, 20), pm.Normal("beta", 0, 5, dims="predictor")
        pm.Bernoulli("y", logit_p=level + design @ slopes, observed=Y)
        both = [
            select(select={"beta": True}, groups={"two": two}, heredity={"beta[age:sex]": ["two"]})
            for two in (["beta[age]", "beta[1]"], ["beta[0]", "beta[sex]"])
        ]
        hereditary = select(select={"beta": True}, heredity="strong")
        with pytest.raises(ModelError, match=r"heredity: 'beta\[old\]' is not among 'level', 'beta\[age\]'"):
            select(select={"beta": True}, heredity={"beta[old]": ["beta[age]"]})
    for each in both:
        gamma = each.posterior["gamma"].values.reshape(-1, 4).astype(bool)
        np.testing.assert_array_equal(gamma[:, 0], gamma[:, 1])
        assert (gamma[:, 0] | ~gamma[:, 3]).all()
        np.testing.assert_array_equal(each.selection["inclusion"], both[0].selection["inclusion"])
    gamma = hereditary.posterior["gamma"].values.reshape(-1, 4).astype(bool)
    assert gamma[:, 3].any()
    assert (gamma[:, :2].all(axis=1) | ~gamma[:, 3]).all()


def test_labels_that_could_be_numbers_are_not_used():
    with pm.Model(coords={"predictor": [1, 2, 0]}):
        slopes = pm.Normal("beta", 0, 5, dims="predictor")
        pm.Bernoulli("y", logit_p=X[:, :3] @ slopes, observed=Y)
        idata = select(select={"beta": True}, groups={"first": ["beta[0]", "beta[1]"]})
    inclusion = idata.selection["inclusion"].values
    assert inclusion[0] == inclusion[1] != inclusion[2]


@pytest.mark.parametrize("sd", [2.0, 1e4])
def test_a_normal_likelihood_of_known_scale_in_closed_form(sd):
    rng = np.random.default_rng(2)
    design = rng.standard_normal((40, 3))
    response = design[:, 0] - 0.5 * design[:, 1] + 0.8 * rng.standard_normal(40)
    with pm.Model():
        beta = pm.Normal("beta", 0.3, sd, shape=3)
        pm.Normal("y", design @ beta, 0.8, observed=response)
        idata = select(select={"beta": True})
    bits = np.array(np.meshgrid(*[[0, 1]] * 3)).reshape(3, -1).T.astype(bool)
    logs = []
    for on in bits:
        columns, left = design[:, on], response - design[:, on].sum(axis=1) * 0.3
        precision = columns.T @ columns / 0.64 + np.eye(on.sum()) / sd**2
        shift = columns.T @ left / 0.64
        log_ratio = 0.5 * (shift @ np.linalg.solve(precision, shift) - np.linalg.slogdet(precision)[1])
        logs.append(norm.logpdf(left, 0, 0.8).sum() + log_ratio - on.sum() * np.log(sd))
    np.testing.assert_allclose(idata.selection["inclusion"], np.exp(logs - logsumexp(logs)) @ bits, atol=1e-6)
    assert idata.posterior.attrs["log_evidence"] == pytest.approx(logsumexp(logs) - 3 * np.log(2), abs=1e-5)


def test_a_laplace_prior_beside_a_normal_likelihood():
    rng = np.random.default_rng(3)
    x = rng.standard_normal(20)
    response = 0.6 * x + rng.standard_normal(20)
    with pm.Model():
        beta = pm.Laplace("beta", 0, 1, shape=1)
        pm.Normal("y", x * beta[0], 1.0, observed=response)
        idata = select(select={"beta": True})
    without = norm.logpdf(response).sum()
    ratio, _ = quad(
        lambda b: np.exp(norm.logpdf(response - x * b).sum() - without) * 0.5 * np.exp(-abs(b)), -5, 5, points=[0]
    )
    assert float(idata.selection["inclusion"][0]) == pytest.approx(ratio / (1 + ratio), abs=0.002)
    assert idata.posterior.attrs["log_evidence"] == pytest.approx(without + np.log((1 + ratio) / 2), abs=0.005)


def test_likelihoods_that_are_not_compiled_have_errors_and_estimates():
    """A negative binomial likelihood with an offset and a Laplace prior, by quadrature; also for a space of one model."""
    rng = np.random.default_rng(3)
    x, exposure = rng.standard_normal((2, 25))
    counts = rng.poisson(np.exp(0.3 * x + exposure))
    with pm.Model() as model:
        beta = pm.Laplace("beta", 0, 1, shape=1)
        pm.NegativeBinomial("y", mu=pm.math.exp(x * beta[0] + exposure), alpha=2.0, observed=counts)

    def log_density(b):
        mu = np.exp(x * b + exposure)
        return nbinom.logpmf(counts, 2.0, 2.0 / (2.0 + mu)).sum()

    with_it, without = (
        np.log(quad(lambda b: np.exp(log_density(b) - abs(b)) / 2, -6, 6, points=[0])[0]),
        log_density(0.0),
    )
    inclusion = 1 / (1 + np.exp(without - with_it))
    for evidence, most in (("ep", 0.05), ("importance_ep", 0.01)):
        idata = select(model=model, select={"beta": True}, evidence=evidence, points=1024)
        error, error_of_log = float(idata.selection["inclusion_se"][0]), idata.posterior.attrs["log_evidence_se"]
        assert abs(float(idata.selection["inclusion"][0]) - inclusion) < 4 * error
        assert (
            abs(idata.posterior.attrs["log_evidence"] - np.logaddexp(with_it, without) + np.log(2)) < 4 * error_of_log
        )
        assert 0 < error < most
    one = select(model=model, select={"beta": False}).posterior.attrs
    assert abs(one["log_evidence"] - with_it) < 4 * one["log_evidence_se"] < 0.1


def test_what_cannot_be_switched_is_refused_by_name():
    with pm.Model():
        scale = pm.HalfNormal("scale")
        beta = pm.Normal("beta", 0, scale, shape=5)
        pm.Bernoulli("y", logit_p=X @ beta, observed=Y)
        with pytest.raises(ModelError, match=r"hyper-parameters .*scale"):
            select(select={"beta": True})
        with pytest.raises(ModelError, match="'gamma' is not among the variables"):
            select(select={"gamma": True})
        with pytest.raises(ModelError, match="names no variable"):
            select(select={})
        with pytest.raises(ModelError, match="'scale' is transformed"):
            select(select={"scale": True})
        with pytest.raises(ModelError, match=r"a boolean mask of shape \(5,\)"):
            select(select={"beta": [True, False]})
        with pytest.raises(ModelError, match="prior is an option for a design"):
            select(select={"beta": True}, prior=1.0)
    with pm.Model():
        beta = pm.MvNormal("beta", np.zeros(2), np.array([[1.0, 0.5], [0.5, 1.0]]))
        pm.Bernoulli("y", logit_p=X[:, :2] @ beta, observed=Y)
        with pytest.raises(ModelError, match="are correlated a priori"):
            select(select={"beta": True})


@pytest.mark.slow
@pytest.mark.stan
def test_a_stan_program_is_searched_as_its_design_is():
    pytest.importorskip("httpstan", reason="needs stanc, from the stan extra")
    folder = Path(__file__).parents[2] / "stan_models"
    data = json.loads((folder / "logit_gaussian.data.json").read_text())
    options = {"random_seed": 1, "progressbar": False}
    mask = np.arange(data["P"]) > 0
    found = pb.select_variables(folder / "logit_gaussian.stan", data=data, select={"beta": mask}, **options)
    design = pb.select_variables(X=np.array(data["X"]), y=np.array(data["y"]), prior=data["prior_scale"], **options)
    np.testing.assert_allclose(found.selection["inclusion"], design.selection["inclusion"], atol=1e-6)
    assert found.posterior.attrs["log_evidence"] == pytest.approx(design.posterior.attrs["log_evidence"], abs=1e-6)


def test_models_whose_ep_did_not_converge_are_counted_and_not_trusted():
    """Half of the rows have the opposite slope, so that Student sites make a posterior with several modes."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((24, 2))
    y = X[:, 0] * np.where(rng.random(24) < 0.5, 6, -6) + 0.1 * rng.standard_normal(24)

    def searched(columns):
        with pm.Model():
            beta = pm.Normal("b", 0, 0.5, shape=len(columns))
            pm.StudentT("y", nu=1.5, mu=X[:, columns] @ beta, sigma=0.2, observed=y)
            return select(select={"b": True}, evidence="ep", draws=100).posterior.attrs

    with pytest.warns(SamplerWarning) as caught:
        attrs = searched([1])
    said = r"EP did not converge for 1 of 2 models, which have \S+ % of .* with b\[0\]"
    assert any(re.search(said, str(each.message)) for each in caught)
    assert attrs["unconverged_models"] == 1
    assert attrs["unconverged_probability"] > 0.01
    assert not attrs["log_evidence_trusted"]
    assert "did not converge" in attrs["warnings"]


@pytest.mark.parametrize(("evidence", "who"), [("ep", "EP"), ("importance_ep", "importance sampling")])
def test_modes_that_ep_misses_are_not_trusted(evidence, who):
    """The mode with 98 % of the mass of two models is far from the mode at which EP converges."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((24, 2))
    y = X[:, 0] * np.where(rng.random(24) < 0.5, 6, -6) + 0.1 * rng.standard_normal(24)
    with pm.Model():
        beta = pm.Normal("b", 0, 5, shape=2)
        pm.StudentT("y", nu=1.5, mu=X @ beta, sigma=0.2, observed=y)
        with pytest.warns(SamplerWarning) as caught:
            attrs = select(select={"b": True}, evidence=evidence, draws=100).posterior.attrs
    said = rf"{who} misses modes of \d of 4 models, .* nats of the log evidence"
    assert any(re.search(said, str(each.message)) for each in caught)
    assert not attrs["log_evidence_trusted"]

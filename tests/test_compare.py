"""Model comparison: probabilities and their errors, labels, refusals, the picture."""

from dataclasses import replace
from types import SimpleNamespace

import arviz
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import ppl_backends as pb
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.marginal_likelihood import Evidence
from ppl_backends.results.inference_data import as_inference_data, group, is_inference_data
from ppl_backends.targets import FunctionTarget
from tests.toys import conjugate_gaussian, gamma_poisson

QUIET = {"random_seed": 1, "progressbar": False}


class Known:
    """A result with figures of our choosing."""

    method = "by hand"
    converged = True

    def __init__(self, log_evidence, **about):
        self.log_evidence = float(log_evidence)
        vars(self).update(about)


def bound(elbo, se):
    result = Known(np.nan, elbo=elbo, elbo_se=se)
    return result


@pytest.fixture(scope="module")
def draws():
    """Return two models of the same kind with evidences that are known."""
    return {
        seed: pb.sample_importance(conjugate_gaussian(3, seed).target, draws=256, chains=4, **QUIET) for seed in (0, 1)
    }


def test_probabilities_of_draws(draws):
    table = pb.compare_evidence({"a": draws[0], "b": draws[1]})
    exact = np.array([conjugate_gaussian(3, seed).log_evidence for seed in (0, 1)])
    np.testing.assert_allclose(table.loc[["a", "b"], "log_evidence"], exact, atol=1e-3)
    np.testing.assert_allclose(table.loc["a", "probability"], 1 / (1 + np.exp(exact[1] - exact[0])), atol=1e-3)
    assert set(table["kind"]) == {"evidence"}
    assert table["trusted"].all()
    assert table["probability"].sum() == pytest.approx(1)
    assert table["log_evidence"].is_monotonic_decreasing


@pytest.mark.filterwarnings("error")
def test_results_are_recognised_without_a_warning_of_arviz():
    """ArviZ 1.3 warns, by a class of FutureWarning, where its InferenceData is looked up."""
    assert arviz.__version__
    found = as_inference_data({"posterior": xr.Dataset({"x": (("chain", "draw"), np.zeros((2, 4)))})})
    assert is_inference_data(found)
    assert not is_inference_data({})


def test_models_of_different_data_are_named():
    rows = np.array([1.0, 2.0, 3.0])
    one, same, other = (
        Evidence(-1.0, 0.1, np.inf, True, "bridge", (), observed_data={"y": y})
        for y in (rows, rows[::-1, None].astype(np.float32), rows[:2])
    )
    table = pb.compare_evidence({"one": one, "same": same})
    assert not table.attrs["warnings"]
    with pytest.warns(ApproximationWarning, match="one and other have different observed data in 'y'"):
        pb.compare_evidence({"one": one, "other": other})
    known = pb.compare_evidence({"one": one, "unknown": replace(other, observed_data={})})
    assert not known.attrs["warnings"]


def test_a_bridged_evidence_takes_the_error_of_its_priors_integral_along(draws):
    posterior = group(draws[0], "posterior")
    about = {
        "log_evidence": -10.0,
        "initial": "prior",
        "log_evidence_se": 0.03,
        "log_prior_normalizer": -2.0,
        "log_prior_normalizer_se": 0.04,
    }
    errors = []
    for method in ("tempering", "bridge sampling"):
        result = as_inference_data({"posterior": posterior.assign_attrs(about, log_evidence_method=method)})
        table = pb.compare_evidence({"a": result, "b": draws[1]})
        assert table.loc["a", "log_evidence"] == pytest.approx(-8.0)
        errors.append(table.loc["a", "se"])
    np.testing.assert_allclose(errors, [0.03, 0.05])


def test_a_table_prints_with_all_of_its_columns(monkeypatch):
    table = pb.compare_evidence(
        {"a model with a long name": Known(-1234.5678, log_evidence_se=0.00123), "b": Known(-1236)}
    )
    for width in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        assert all(column in repr(table) for column in table.columns)
        assert max(map(len, repr(table).splitlines())) <= width
    assert "-1234.57" in str(table)
    assert "0.0012" in str(table)
    assert type(table.head(1)).__name__ == "DataFrame"


def test_error_of_probabilities_is_the_delta_method_for_small_errors():
    table = pb.compare_evidence({"a": bound(-10, 0.02), "b": bound(-10.5, 0.03), "c": bound(-12, 0.01)})
    p, s = table["probability"].to_numpy(), table["se"].to_numpy()
    jacobian = np.diag(p) - np.outer(p, p)
    np.testing.assert_allclose(table["probability_se"], np.sqrt((jacobian**2) @ s**2), rtol=0.05)


def test_unknown_errors_stay_unknown():
    table = pb.compare_evidence({"a": Known(-10), "b": Known(-11)})
    assert table["probability_se"].isna().all()
    assert table.loc["a", "probability"] == pytest.approx(1 / (1 + np.exp(-1)))
    assert (table["kind"] == "approximate evidence").all()


def test_prior_probabilities():
    table = pb.compare_evidence({"a": Known(0), "b": Known(0)}, prior_probabilities={"a": 3, "b": 1})
    assert table.loc["a", "probability"] == pytest.approx(0.75)
    with pytest.raises(ModelError, match="expected"):
        pb.compare_evidence({"a": Known(0)}, prior_probabilities={"b": 1})


def test_kinds_are_labelled_and_mixing_is_flagged(draws):
    target = gamma_poisson().target
    q = pb.fit_vi(target, **QUIET).replaced(pareto_k=0.3)
    laplace = pb.fit_laplace(target, progressbar=False)
    with pytest.warns(ApproximationWarning, match="compared with each other"):
        table = pb.compare_evidence({"vi": q, "laplace": laplace, "draws": draws[0]})
    assert list(table.loc[["vi", "laplace", "draws"], "kind"]) == ["lower bound", "approximate evidence", "evidence"]
    again = pb.compare_evidence({"vi": q.to_inference_data(draws=10, random_seed=1)})
    assert again.loc["vi", "kind"] == "lower bound"
    assert again.loc["vi", "log_evidence"] == q.elbo
    assert again.loc["vi", "se"] == q.elbo_se
    assert table.loc["vi", "log_evidence"] == q.elbo


def test_doubtful_figures_are_flagged():
    with pytest.warns(ApproximationWarning, match="a did not pass"):
        table = pb.compare_evidence({"a": Known(-1, converged=False), "b": Known(-2)})
    assert list(table["trusted"]) == [False, True]
    assert list(table["checks"]) == ["failed", "passed"]


def test_results_without_a_verdict_are_unknown_and_not_trusted(draws):
    posterior = group(draws[0], "posterior")
    about = {"log_evidence": -10.0, "log_evidence_se": 0.1, "method": "another package"}
    other = as_inference_data({"posterior": xr.Dataset(posterior.data_vars).assign_attrs(about)})
    with pytest.warns(ApproximationWarning, match="results of other have no verdict of their method"):
        table = pb.compare_evidence({"own": draws[1], "other": other})
    assert table["checks"].to_dict() == {"own": "passed", "other": "unknown"}
    assert table["trusted"].to_dict() == {"own": True, "other": False}
    assert repr(table).count("unknown") == 1
    with pytest.warns(ApproximationWarning, match="results of third have no verdict of their method"):
        assert list(pb.compare_evidence({"third": SimpleNamespace(log_evidence=-20.0)})["checks"]) == ["unknown"]


def test_normalisers_of_priors_are_taken_out():
    target = FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    target.log_prior_normalizer = np.log(0.5)
    table = pb.compare_evidence({"a": Known(-1, target=target), "b": Known(-1)})
    assert table.loc["a", "difference"] == 0
    assert table.loc["b", "difference"] == pytest.approx(np.log(0.5))


def test_improper_priors_are_refused():
    flat = FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x), lambda x: (np.zeros(len(x)), np.zeros_like(x)))
    with pytest.raises(ModelError, match="model 'flat': its evidence is known up to a constant"):
        pb.compare_evidence({"flat": pb.fit_laplace(flat, progressbar=False)})
    with pytest.raises(ModelError, match="up to a constant"):
        pb.compare_evidence({"flat": pb.sample_importance(flat, draws=64, chains=2, **QUIET)})


@pytest.mark.parametrize("results", [{}, [1, 2], {"a": 3}, {"a": Known(np.nan)}])
def test_wrong_results_are_refused(results):
    with pytest.raises(ModelError):
        pb.compare_evidence(results)


def test_picture():
    with pytest.warns(ApproximationWarning):
        table = pb.compare_evidence({"a": bound(-10, 0.3), "b": Known(-9, converged=False), "c": Known(-20)})
    axes = pb.plot_evidence(table)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a", "c"]
    plt.close(axes.figure)


def test_evidences_from_draws_models_and_pairs():
    known = conjugate_gaussian(3)
    factor = np.linalg.cholesky(np.linalg.inv(-known.target.hessian(known.mean[None])[0]))
    drawn = {"x": known.mean + np.random.default_rng(0).standard_normal((4, 200, 3)) @ factor.T}
    found = pb.evidence(drawn, known.target, random_seed=1)
    table = pb.compare_evidence({"a": found, "b": (drawn, known.target), "c": known.target}, random_seed=2)
    np.testing.assert_allclose(table["log_evidence"], known.log_evidence, atol=0.1)
    assert (table["kind"] == "evidence").all()
    assert table["trusted"].all()
    assert table.loc["a", "method"] == found.method
    assert table.loc["a", "se"] == found.log_evidence_se
    with pytest.raises(ModelError, match="up to a constant"):
        pb.compare_evidence({"a": replace(found, note="up to a constant: the prior is improper along x[0]")})

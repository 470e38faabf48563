"""``select_variables`` by enumeration: published and brute-force probabilities, names, groups and heredity."""

import tracemalloc

import numpy as np
import pytest
from scipy.special import betaln, expit, logsumexp

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.model_search.enumeration import enumerate_models
from ppl_backends.model_search.evidences.linear import LinearEvidence
from ppl_backends.model_search.space import make_space

PIMA = load_binary_regression("pima")
PROBIT = [1.0, 0.93436, 1.0, 0.03034, 0.04374, 0.99721, 0.92833, 0.23163]
LOGIT = [1.0, 0.94212, 1.0, 0.05257, 0.06904, 0.99735, 0.98689, 0.27440]


def select(**options):
    return pb.select_variables(random_seed=1, progressbar=False, **options)


@pytest.mark.parametrize(
    ("link", "inclusion", "log_evidence"), [("probit", PROBIT, -260.1776), ("logit", LOGIT, -256.9505)]
)
def test_pima_against_enumeration_with_long_importance_runs(link, inclusion, log_evidence):
    idata = select(X=PIMA.X, y=PIMA.y, link=link)
    np.testing.assert_allclose(idata.selection["inclusion"], inclusion, atol=1e-4)
    assert idata.posterior.attrs["log_evidence"] == pytest.approx(log_evidence, abs=0.005)  # EP's own error
    assert idata.posterior.attrs["evidence"] == "ep"
    assert idata.posterior.attrs["accuracy"] == "approximate"
    error = idata.selection["inclusion_se"].values  # of the check, whose models are drawn
    assert np.all(np.abs(idata.selection["inclusion"].values - inclusion) < error + 1e-5)
    assert error.max() < 0.01
    drawn = idata.posterior["gamma"].values.reshape(-1, 8)
    np.testing.assert_allclose(drawn.mean(axis=0), inclusion, atol=1e-3)  # systematic draws
    assert not idata.posterior["beta"].values[idata.posterior["gamma"].values == 0].any()


def test_estimated_evidences_certify_the_fast_ones():
    idata = select(X=PIMA.X, y=PIMA.y, link="probit", evidence="importance_laplace", points=1024)
    error = idata.selection["inclusion_se"].values
    assert np.all(np.abs(idata.selection["inclusion"].values - PROBIT) < 5 * error + 1e-5)
    assert 0 < error.max() < 1e-3
    assert abs(idata.posterior.attrs["log_evidence"] + 260.1776) < 5 * idata.posterior.attrs["log_evidence_se"] + 1e-4
    assert idata.posterior.attrs["accuracy"] == "exact"


def test_errors_of_approximate_evidences_are_part_of_the_standard_errors():
    """Laplace's evidences of 30 rows are off by some tenths, which is too little for a warning."""
    rng = np.random.default_rng(5)
    design = rng.standard_normal((30, 5))
    y = rng.random(30) < 1 / (1 + np.exp(-3 * design[:, 0] + 2 * design[:, 1]))
    fast = select(X=design, y=y, evidence="laplace")
    exact = select(X=design, y=y, evidence="importance_ep", points=4096)
    attrs, truth = fast.posterior.attrs, exact.posterior.attrs
    assert attrs["log_evidence_trusted"]
    off = abs(attrs["log_evidence"] - truth["log_evidence"])
    assert 0.1 < off < 2 * attrs["log_evidence_se"]
    off = np.abs(fast.selection["inclusion"].values - exact.selection["inclusion"].values)
    assert off.max() > 0.005
    error = np.hypot(fast.selection["inclusion_se"].values, exact.selection["inclusion_se"].values)
    assert np.all(off < 3 * error + 1e-3)
    assert np.all(fast.selection["inclusion_se"].values < 0.1)


def test_a_candidate_in_none_of_the_checked_models_has_an_error():
    """Six rows of one class have a wide posterior; its prior makes their dummy so rare that no checked model has it."""
    rng = np.random.default_rng(3)
    design = rng.standard_normal((120, 4))
    design[:, 3] = np.arange(120) < 6
    y = (rng.random(120) < expit(design[:, 0])) | (design[:, 3] > 0)
    options = {"X": design, "y": y, "prior": "cauchy", "model_prior": lambda columns: -7.0 * columns[:, -1]}
    fast = select(evidence="laplace", **options)
    exact = select(evidence="importance_laplace", points=4096, **options)
    off = float(exact.selection["inclusion"][3] - fast.selection["inclusion"][3])
    assert off > 0.003
    error = float(fast.selection["inclusion_se"][3])
    assert off < 2 * error
    assert error < 0.02
    assert fast.posterior.attrs["warnings"] == ""


@pytest.mark.parametrize("evidence", ["laplace", "ep"])
def test_candidates_that_are_all_in_some_checked_models_and_out_of_others(evidence):
    """Then there is no neighbour to check; one column twice is in one half of the models each time."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(40)
    y = rng.random(40) < expit(0.5 + x)
    for design in (x[:, None], np.column_stack([x, x])):
        fast = select(X=design, y=y, evidence=evidence)
        exact = select(X=design, y=y, evidence="importance_ep", points=4096)
        error = 5 * np.hypot(fast.selection["inclusion_se"], exact.selection["inclusion_se"])
        assert np.all(np.abs(fast.selection["inclusion"] - exact.selection["inclusion"]) < error)
        assert np.ptp(fast.selection["inclusion"].values) < 1e-6


def test_approximate_evidences_that_estimates_contradict_are_flagged():
    """Classes that are separated have wide posteriors, which Cauchy priors do not bound."""
    rng = np.random.default_rng(11)
    design = rng.standard_normal((60, 3))
    options = {"X": design, "y": design[:, 0] > 0.1, "evidence": "laplace"}
    usual = select(**options).posterior.attrs
    assert usual["warnings"] == ""
    assert usual["inclusion_change"] < 0.03
    with pytest.warns(SamplerWarning, match=r"unbiased estimates for \d+ drawn models change the .*: use evidence="):
        wide = select(prior="cauchy", **options).posterior.attrs
    assert wide["log_evidence_shift"] > 1
    assert not wide["log_evidence_trusted"]


def test_estimates_that_are_too_noisy_to_certify_evidences_say_so():
    """With nearly as many columns as rows, separated, 512 weighted points say little about a model's evidence."""
    rng = np.random.default_rng(1)
    design = rng.standard_normal((25, 20))
    options = {"prior": 5.0, "evidence": "laplace", "method": "smc", "draws": 200, "chains": 2}
    with pytest.warns(SamplerWarning, match=r"too noisy .*: their error in the inclusion of x\d+ is .* \(limit"):
        found = select(X=design, y=design[:, 0] > 0, **options).posterior.attrs
    assert not found["log_evidence_trusted"]


RNG = np.random.default_rng(11)
RNG_WIDE = np.random.default_rng(12)
X = RNG.standard_normal((90, 5))
Y = X[:, 0] + X[:, 0] * X[:, 1] + 0.4 * X[:, 3] + RNG.standard_normal(90)


def brute_force(design, keep, log_prior):
    """Return inclusions and log mean evidence over all models that ``keep`` allows."""
    bits = make_space(
        tuple(map(str, range(design.shape[1]))), np.zeros(design.shape[1], bool), None, None, "uniform"
    ).all()
    bits = bits[[keep(row) for row in bits]]
    logs = LinearEvidence(design, Y, "g").compute(bits, None) + [log_prior(row) for row in bits]
    return np.exp(logs - logsumexp(logs)) @ bits, logsumexp(logs)


@pytest.mark.parametrize("model_prior", ["uniform", "beta_binomial", "function"])
def test_priors_of_models(model_prior):
    log_prior = {
        "uniform": lambda row: -5 * np.log(2),
        "beta_binomial": lambda row: betaln(1 + row.sum(), 6 - row.sum()),
        "function": lambda row: row.sum() * np.log(0.2) + (5 - row.sum()) * np.log(0.8),
    }
    given = model_prior
    if model_prior == "function":
        given = lambda columns: np.array([log_prior["function"](row[1:]) for row in columns])  # noqa: E731
    idata = select(X=X, y=Y, family="gaussian", model_prior=given)
    inclusion, total = brute_force(X, lambda row: True, log_prior[model_prior])
    np.testing.assert_allclose(idata.selection["inclusion"], inclusion, atol=1e-10)
    assert idata.posterior.attrs["log_evidence"] == pytest.approx(total)
    assert "relative" in idata.posterior.attrs["log_evidence_note"]


def test_groups_are_in_or_out_together():
    idata = select(X=X, y=Y, family="gaussian", groups={"both": ["x1", "x2"]})
    inclusion, total = brute_force(X, lambda row: row[1] == row[2], lambda row: -4 * np.log(2))
    np.testing.assert_allclose(idata.selection["inclusion"], inclusion, atol=1e-10)
    assert idata.posterior.attrs["log_evidence"] == pytest.approx(total)


@pytest.mark.parametrize("heredity", ["strong", "weak", {"a:b": ["a", "b"]}])
def test_products_need_their_parents(heredity):
    pandas = pytest.importorskip("pandas")
    design = np.column_stack([X[:, :3], X[:, 0] * X[:, 1]])
    frame = pandas.DataFrame(design[:, [3, 0, 1, 2]], columns=["a:b", "a", "b", "c"])
    idata = select(X=frame, y=Y, family="gaussian", heredity=heredity)
    parents = any if heredity == "weak" else all

    def log_prior(row):  # every candidate that may be in is in with probability one half
        return -(3 + parents(row[:2])) * np.log(2)

    inclusion, total = brute_force(design, lambda row: not row[3] or parents(row[:2]), log_prior)
    found = idata.selection["inclusion"]
    assert found["predictor"].values.tolist() == ["a:b", "a", "b", "c"]
    np.testing.assert_allclose(found, inclusion[[3, 0, 1, 2]], atol=1e-10)
    assert idata.posterior.attrs["log_evidence"] == pytest.approx(total)


def test_parents_may_be_in_groups_in_every_model_or_products():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(dict(zip("abc", X.T[:3], strict=True)))
    for name in ("a:c", "b:c", "a:b:c"):
        frame[name] = frame[name.split(":")].prod(axis=1)

    def models(heredity="strong", **options):
        found = select(X=frame, y=Y, family="gaussian", heredity=heredity, **options)
        return found.selection["model_gamma"].values.astype(bool)

    both = models(groups={"both": ["a", "b"]})
    assert len(both) == 3 + 5  # without a parent of products; with both
    assert both[both[:, 3:].any(axis=1)][:, :3].all()
    assert both[both[:, 5]][:, :5].all()
    assert len(models(groups={"products": ["a:c", "b:c", "a:b:c"]})) == 8 + 1
    named = {"a:c": ["a", "c"], "b:c": ["b"], "a:b:c": ["a:c", "b:c"]}
    assert len(models(always=["c"])) == len(models(named, always=["c"]))
    weak = models("weak", always=["c"])
    assert (weak[:, 3] & ~weak[:, 0]).any()
    by_number = models(None, groups={"two": [0, 1]})
    np.testing.assert_array_equal(by_number[:, 0], by_number[:, 1])
    frame = frame.drop(columns="c")
    with pytest.raises(ModelError, match="'c', of the product 'a:c', is not among the columns"):
        models()


@pytest.mark.parametrize("always", [["x3"], [3], [False, False, False, True, False]])
def test_columns_that_are_always_in(always):
    idata = select(X=X, y=Y, family="gaussian", always=always)
    inclusion, _ = brute_force(X, lambda row: row[3], lambda row: -4 * np.log(2))
    np.testing.assert_allclose(idata.selection["inclusion"], inclusion, atol=1e-10)


@pytest.mark.parametrize("method", ["auto", "smc"])
@pytest.mark.parametrize("design", [X, X[:, :0]], ids=["always", "intercept"])
def test_a_space_of_one_model(method, design):
    idata = select(X=design, y=Y, family="gaussian", always=range(design.shape[1]), method=method, draws=20)
    assert idata.posterior["gamma"].values.all()
    np.testing.assert_array_equal(idata.selection["inclusion"], 1.0)
    on = np.ones((1, 6), bool) if design.size else np.ones((1, 1), bool)
    expected = LinearEvidence(np.column_stack([np.ones(90), design]), Y, "g").compute(on, None)[0]
    assert idata.posterior.attrs["log_evidence"] == pytest.approx(expected)


def test_a_function_need_not_be_normalised_and_may_forbid_models():
    def at_most_two(columns):
        return np.where(columns.sum(axis=1) <= 3, 7.0, -np.inf)  # the intercept is one of them

    exact = select(X=X, y=Y, family="gaussian", model_prior=at_most_two)
    run = select(X=X, y=Y, family="gaussian", model_prior=at_most_two, method="smc")
    gap = run.posterior.attrs["log_evidence"] - exact.posterior.attrs["log_evidence"]
    assert abs(gap) < 4 * run.posterior.attrs["log_evidence_se"]
    np.testing.assert_allclose(run.selection["inclusion"], exact.selection["inclusion"], atol=0.02)


def test_at_most_two_of_thirty():
    wide = RNG_WIDE.standard_normal((60, 30))
    y = wide[:, 2] + RNG_WIDE.standard_normal(60) * 2.0
    bits = np.zeros((466, 31), bool)
    bits[:, 0] = True
    first, second = np.triu_indices(30, 1)
    bits[np.arange(30), np.arange(30) + 1] = True
    bits[np.arange(30, 465), first + 1] = bits[np.arange(30, 465), second + 1] = True
    logs = LinearEvidence(np.column_stack([np.ones(60), wide]), y, "g").compute(bits, None)
    run = select(X=wide, y=y, family="gaussian", chains=2, model_prior=lambda on: np.where(on.sum(1) <= 3, 0, -np.inf))
    error = run.posterior.attrs["log_evidence"] - logsumexp(logs)
    assert abs(error) < 4 * run.posterior.attrs["log_evidence_se"]
    np.testing.assert_allclose(run.selection["inclusion"], (np.exp(logs - logsumexp(logs)) @ bits)[1:], atol=0.03)


@pytest.mark.parametrize("prior", ["g", "hyper-g"])
def test_a_constant_column_is_the_intercept(prior):
    with_one = select(X=np.column_stack([X, 2 * np.ones(90)]), y=Y, family="gaussian", prior=prior)
    without = select(X=X, y=Y, family="gaussian", prior=prior)
    np.testing.assert_allclose(with_one.selection["inclusion"][:5], without.selection["inclusion"])
    assert with_one.selection["inclusion"][5] == 1
    assert "intercept" not in with_one.posterior
    average = without.posterior.mean(("chain", "draw"))
    assert float(average["intercept"]) == pytest.approx(2 * float(with_one.posterior["beta"][..., 5].mean()), abs=0.02)
    assert float(average["sigma"]) == pytest.approx(2.0**0.5, abs=0.2)  # the product is noise to it


def test_models_are_listed_by_probability():
    idata = select(X=X, y=Y, family="gaussian")
    probability = idata.selection["model_probability"].values
    assert np.all(np.diff(probability) <= 0)
    assert probability.sum() == pytest.approx(1.0)
    listed = idata.selection["model_gamma"].values
    np.testing.assert_allclose(probability @ listed, idata.selection["inclusion"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"always": ["x9"]}, "always: 'x9' is not among"),
        ({"groups": {"g": ["x1"], "h": ["x1"]}}, "'x1' is in 'g' and in 'h'"),
        ({"heredity": "strong"}, "no candidate is named as a product"),
        ({"heredity": {"x1": ["x2"], "x2": ["x1"]}}, "among its own ancestors"),
        ({"prior": 3.0}, "expected 'g' or 'hyper-g'"),
        ({"evidence": "laplace"}, "with a g-prior the evidence is exact"),
        ({"link": "logit"}, "link='logit' is not known for family='gaussian'"),
        ({"family": "binomial"}, r"coded 0/1 or -1/\+1; other outcomes need family='gaussian' or 'poisson'"),
        ({"family": "binomial", "y": Y > 0, "prior": [1.0]}, "prior has shape"),
        ({"X": X[:0], "y": Y[:0]}, "it has no rows"),
        ({"X": np.column_stack([X, np.zeros(len(X))])}, "is zero in all rows"),
        ({"y": np.where(Y > 0, "yes", "no")}, "y has values that are not numbers; code classes as 0 and 1"),
        ({"y": Y[:5]}, r"y has shape \(5,\); expected"),
        ({"groups": {"g": []}}, "'g' is empty"),
        ({"groups": {"x2": ["x0", "x1"]}}, "'x2' is a column that is not in this group"),
        (
            {"X": np.tile(X, 9)[:, :25], "method": "enumerate"},
            r"2\^25 models are too many, because 2\^24 take 1.6 GB; use method='smc'",
        ),
        (
            {"X": np.eye(3)[np.arange(90) % 3], "groups": {"g": [0, 1, 2]}},
            "no model can contain 'g'; leave a column out",
        ),
        ({"X": X[:, [0, 0, 1]], "always": [0, 1]}, "that every model contains are linearly dependent"),
        ({"groups": {"g": ["x1", "x2"]}, "always": ["x1"]}, "'x1' of 'g' is in every model"),
        ({"model_prior": lambda on: np.full(len(on), -np.inf)}, "returns -inf for every model"),
        ({"X": np.tile(X[:6], 12), "y": Y[:6], "method": "smc"}, "columns are dependent in all 2000 models"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ModelError, match=message):
        select(**({"X": X, "y": Y, "family": "gaussian"} | options))


def test_results_survive_a_file(tmp_path):
    idata = select(X=X, y=Y, family="gaussian", draws=50)
    idata.to_netcdf(tmp_path / "selected.nc")


def test_estimates_without_a_known_error_are_not_trusted():
    with pytest.warns(SamplerWarning, match="a standard error of nan.*: increase points"):
        idata = select(X=PIMA.X[:, :4], y=PIMA.y, evidence="importance_laplace", points=1)
    assert not idata.posterior.attrs["log_evidence_trusted"]
    assert idata.posterior.attrs["accuracy"] == "approximate"


def test_enumeration_keeps_within_its_memory():
    names = tuple(f"x{j}" for j in range(17))
    space = make_space(names, np.zeros(17, dtype=bool), None, {"x16": ["x0", "x1"]}, "uniform")
    rng = np.random.default_rng(0)
    slope = rng.standard_normal(17)
    tracemalloc.start()
    found = enumerate_models(space, lambda columns, rng: columns @ slope, rng)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 160 * 2**17  # bytes; 300 if all models are made and averaged at once
    each = np.log1p(np.exp(slope)) - np.log(2)  # log mean evidence over a candidate that is on or off
    both = np.exp(slope[:2].sum()) / 4  # the last candidate is free if the first two are on
    three = np.exp(each[:2].sum()) + both * np.expm1(each[16])
    assert found.total == pytest.approx(each[2:16].sum() + np.log(three))
    np.testing.assert_allclose(found.inclusion[2:16], expit(slope[2:16]))
    assert found.inclusion[16] == pytest.approx(both * np.exp(slope[16]) / 2 / three)

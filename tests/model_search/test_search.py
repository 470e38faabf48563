"""SMC over models against their enumeration; the warnings of a run that has not converged."""

import numpy as np
import pytest
from scipy.stats import chisquare

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import SamplerWarning
from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.laplace import LaplaceEvidence
from ppl_backends.model_search.evidences.linear import LinearEvidence
from ppl_backends.model_search.forms import design_form
from ppl_backends.model_search.path import ModelPath
from ppl_backends.model_search.sampler import begin_search, finish_search
from ppl_backends.model_search.space import make_space
from ppl_backends.model_search.surrogate import find_surrogate
from ppl_backends.smc.sampler import Watcher
from tests.statistics import normal_bound

RNG = np.random.default_rng(21)
X = RNG.standard_normal((60, 6))
X[:, 1] += X[:, 0]
Y = 0.5 * X[:, 0] - 0.3 * X[:, 3] + RNG.standard_normal(60)
PIMA = load_binary_regression("pima")


def select(**options):
    return pb.select_variables(progressbar=False, **({"random_seed": 1} | options))


def listed(found):
    group = found.selection
    return group["model_gamma"].values.astype(np.int8), group["model_log_evidence"].values


def assert_agrees(found, exact, slack=0.0):
    difference = np.abs(found.selection["inclusion"] - exact.selection["inclusion"]).values
    assert np.all(difference <= 4 * found.selection["inclusion_se"].values + slack)
    error = found.posterior.attrs["log_evidence_se"]
    assert abs(found.posterior.attrs["log_evidence"] - exact.posterior.attrs["log_evidence"]) < 4 * error + slack
    if not slack:
        first, second = (dict(zip(map(bytes, each), logs, strict=True)) for each, logs in map(listed, (found, exact)))
        np.testing.assert_allclose([second[model] for model in first], list(first.values()), atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model_prior": "beta_binomial", "prior": "hyper-g"},
        {"groups": {"both": ["x1", "x2"]}},
        {"heredity": {"x5": ["x0", "x3"]}},
        {"model_prior": lambda columns: 0.5 * columns[:, 1:].sum(axis=1) - 6 * np.log1p(np.exp(0.5))},
    ],
    ids=["uniform", "beta_binomial", "groups", "heredity", "function"],
)
def test_smc_agrees_with_enumeration(options):
    exact = select(X=X, y=Y, family="gaussian", **options)
    found = select(X=X, y=Y, family="gaussian", method="smc", **options)
    assert_agrees(found, exact)
    assert found.posterior.attrs["method"] == "SMC over models"
    assert np.nanmax(found.sample_stats["beta"].values[0]) == 1.0
    assert {"ess", "n_moves", "accept_rate", "log_marginal_likelihood", "lp", "ancestor"} <= set(found.sample_stats)


@pytest.mark.parametrize("evidence", ["laplace", "importance_laplace"])
def test_binary_regression_and_one_point_per_model(evidence):
    exact = select(X=PIMA.X, y=PIMA.y, link="probit", evidence="laplace")
    found = select(X=PIMA.X, y=PIMA.y, link="probit", evidence=evidence, points=1, method="smc")
    assert_agrees(found, exact, slack=0.006 if evidence != "laplace" else 0.0)  # Laplace's own error


class Redrawn(Evidence):
    """Estimates of one evidence with a noise of one; shared between particles, they are no estimates of their own."""

    exact, deterministic, name = True, False, "noisy"

    def __init__(self, shared):
        super().__init__()
        self.shared, self.known = shared, {}

    def compute(self, columns, rng):
        fresh = rng.normal(-0.5, 1.0, len(columns))
        if not self.shared:
            return fresh
        return np.array([self.known.setdefault(row.tobytes(), each) for row, each in zip(columns, fresh, strict=True)])


@pytest.mark.parametrize("shared", [False, True])
def test_estimates_stay_with_their_particles(shared):
    from ppl_backends.model_search.sampler import run_search

    space = make_space(tuple("abc"), np.zeros(3, dtype=bool), None, None, "uniform")
    codes = [
        run_search(space, Redrawn(shared), 400, np.random.default_rng([7, seed])).population.x @ [1, 2, 4]
        for seed in range(1 if shared else 20)
    ]
    counts = np.bincount(np.concatenate(codes), minlength=8)
    # All models are equally probable; a cache gives each one noise for good.
    assert (chisquare(counts / (1 if shared else 3)).pvalue < 1e-5) == shared


def test_compiled_steps_have_the_distribution_of_the_models():
    space = make_space(tuple(map(str, range(6))), np.zeros(6, dtype=bool), None, None, "beta_binomial")
    evidence, rng, beta = LinearEvidence(X, Y, "g"), np.random.default_rng(2), 0.7
    bits = space.all()
    density = np.exp(space.log_prior(bits) + beta * evidence(space.columns(bits), rng))
    density /= density.sum()
    n = 20_000
    start = bits[rng.choice(64, n, p=density)]
    walked, share = evidence.walk(start, space, 25, beta, rng)
    counts = np.bincount(walked @ 2 ** np.arange(6), minlength=64)
    kept = density * n > 5
    expected = np.append(density[kept], density[~kept].sum()) * n
    assert chisquare(np.append(counts[kept], counts[~kept].sum()), expected).pvalue > 1e-5
    error = share.std(axis=0) / n**0.5
    assert np.all(np.abs(share.mean(axis=0) - density @ bits) < normal_bound() * error)
    assert not np.array_equal(walked, start)


def gaussian_surrogate(seed=0):
    form = design_form(X, Y > 0, "binomial", "logit", None, None)
    space = make_space(form.names, form.always, None, None, "beta_binomial")
    laplace = LaplaceEvidence(form.regression)
    return space, laplace, find_surrogate(space, laplace, np.random.default_rng(seed))


def test_walks_under_a_surrogate_have_the_distribution_of_its_evidences():
    space, _, surrogate = gaussian_surrogate()
    rng, beta, n, bits = np.random.default_rng(3), 0.8, 20_000, space.all()
    columns = space.columns(bits)
    density = np.exp(space.log_prior(bits) + beta * (surrogate(columns, rng) - surrogate.level))
    density /= density.sum()
    start = columns[rng.choice(64, n, p=density)]
    walked, share = surrogate.walk(start, space, 25, beta, rng)
    error = share.std(axis=0) / n**0.5
    assert np.all(np.abs(share.mean(axis=0) - density @ columns)[1:] < normal_bound() * error[1:])
    assert (walked != start).mean() > 0.03
    counts = np.bincount(walked[:, 1:] @ 2 ** np.arange(6), minlength=64)
    kept = density * n > 5
    expected = np.append(density[kept], density[~kept].sum()) * n
    assert chisquare(np.append(counts[kept], counts[~kept].sum()), expected).pvalue > 1e-5


def test_a_surrogate_is_near_to_its_evidence():
    space, laplace, surrogate = gaussian_surrogate()
    bits, rng = space.all(), np.random.default_rng(0)
    exact = laplace(space.columns(bits), rng)
    density = np.exp(space.log_prior(bits) + exact)
    density /= density.sum()
    gap = exact - surrogate(space.columns(bits), rng)
    assert abs(density @ gap) < 0.1
    assert density @ gap**2 < 0.1**2
    assert density @ (exact - density @ exact) ** 2 > 10 * density @ gap**2


@pytest.mark.parametrize("decided", [True, False], ids=["by the evidence", "by the surrogate"])
def test_a_poor_surrogate_does_not_show(decided):
    """Without the second decision a search has the posterior of its surrogate."""
    space, laplace, surrogate = gaussian_surrogate()
    poor = surrogate.corrected(np.array([0.0, -1.0, 1.0, 1.5, -2.0, 0.5, -0.5]), 1.0)
    bits, rng = space.all(), np.random.default_rng(4)
    density = np.exp(space.log_prior(bits) + laplace(space.columns(bits), rng))
    evidence = laplace if decided else poor
    begun = [begin_search(poor, space, evidence, 1000, np.random.default_rng([5, seed])) for seed in range(8)]
    runs = [finish_search(run, space, evidence, 1000, Watcher(None)) for run in begun]
    inclusion = np.array([run.population.share.mean(axis=0) for run in runs])
    logs = np.array([run.log_evidence for run in runs])
    z = (inclusion.mean(axis=0) - density @ bits / density.sum()) / (inclusion.std(axis=0, ddof=1) / 8**0.5)
    assert (np.abs(z).max() < 6) == decided  # Student's t with seven degrees of freedom
    if decided:
        assert abs(logs.mean() - np.log(density.sum())) < 6 * logs.std(ddof=1) / 8**0.5


def test_long_walks_keep_their_evidences():
    space = make_space(tuple(map(str, range(6))), np.zeros(6, dtype=bool), None, None, "uniform")
    collinear = np.column_stack([X[:, :5], X[:, 0] + 1e-4 * X[:, 5]])
    evidence, rng = LinearEvidence(collinear, Y, "g"), np.random.default_rng(3)
    bits = space.all()
    density = np.exp(evidence(bits, rng))
    _, share = evidence.walk(space.sample(50, rng), space, 20_000, 1.0, rng)
    np.testing.assert_allclose(share.mean(axis=0), density @ bits / density.sum(), atol=0.02)


def test_a_path_knows_which_models_are_forbidden():
    space = make_space(("a", "b", "a:b"), np.zeros(3, dtype=bool), None, "strong", "uniform")
    path = ModelPath(space, LinearEvidence(X[:, :3], Y, "g"))
    state = path.at(np.array([[1, 0, 1], [1, 1, 1]], dtype=bool), 1.0, np.random.default_rng(0))
    assert np.isneginf(state.log_density[0])
    assert np.isfinite(state.log_density[1])


def test_runs_that_disagree_warn():
    """Two sets of columns that explain the same, between which few particles find no way."""
    rng = np.random.default_rng(5)
    latent = rng.standard_normal((200, 10))
    mixing = np.linalg.qr(rng.standard_normal((10, 10)))[0]
    design = np.column_stack([latent, latent @ mixing + 1e-2 * rng.standard_normal((200, 10))])
    response = latent.sum(axis=1) + 0.2 * rng.standard_normal(200)
    with pytest.warns(SamplerWarning, match="have a standard deviation of"):
        found = select(X=design, y=response, family="gaussian", method="smc", draws=20)
    assert not found.posterior.attrs["log_evidence_trusted"]
    assert found.posterior.attrs["accuracy"] == "approximate"


def test_the_same_seed_gives_the_same_search():
    first, second = (select(X=X, y=Y, family="gaussian", method="smc", draws=100, random_seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.posterior["gamma"], second.posterior["gamma"])
    np.testing.assert_array_equal(first.posterior["beta"], second.posterior["beta"])

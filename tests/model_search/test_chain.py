"""``pb.steps.ModelSearch`` in ``pm.sample`` against enumeration, and what it refuses."""

import arviz as az
import numpy as np
import pytest
from scipy import stats
from scipy.special import betaln

pm = pytest.importorskip("pymc")

import ppl_backends as pb  # noqa: E402
from ppl_backends.errors import ModelError  # noqa: E402
from ppl_backends.model_search.evidences.laplace import ImportanceEvidence, LaplaceEvidence  # noqa: E402
from ppl_backends.model_search.forms import design_form  # noqa: E402

RNG = np.random.default_rng(8)
X = RNG.standard_normal((60, 4))
X[:, 1] += X[:, 0]
Y = (0.8 * X[:, 0] + 0.5 * X[:, 3] + RNG.standard_normal(60) > 0).astype(int)
P = 0.3  # prior probability of an indicator


def make_model(predictor=lambda level, gamma, beta: level + X @ (gamma * beta)):
    with pm.Model(coords={"predictor": list("abcd")}) as model:
        level = pm.Normal("level", 0.5, 2.0)
        gamma = pm.Bernoulli("gamma", P, dims="predictor")
        beta = pm.Normal("beta", 0.2, 1.5, dims="predictor")
        pm.Bernoulli("y", logit_p=predictor(level, gamma, beta), observed=Y)
    return model


def run(model, draws=800, **options):
    step = pb.steps.ModelSearch({"gamma": "beta"}, model=model, **options)
    return pm.sample(
        draws,
        tune=0,
        step=step,
        chains=2,
        cores=1,
        random_seed=3,
        progressbar=False,
        compute_convergence_checks=False,
        model=model,
    )


def slab_model():
    with pm.Model(coords={"predictor": list("abcd")}) as model:
        level = pm.Normal("level", 0.5, 2.0)
        beta = pm.Normal("beta", 0.2, 1.5, dims="predictor")
        pm.Bernoulli("y", logit_p=level + X @ beta, observed=Y)
    return model


def enumerated():
    """Return the search over all models by long importance runs."""
    return pb.select_variables(
        slab_model(),
        select={"beta": True},
        model_prior=lambda columns: columns[:, 1:] @ np.full(4, np.log(P / (1 - P))) + 4 * np.log(1 - P),
        evidence="importance_laplace",
        points=4096,
        random_seed=1,
        progressbar=False,
    )


def z_scores(draws, expected):
    """Return how many standard errors the means of draws ``(chain, draw, ...)`` are off."""
    n = np.array([az.ess(draws[..., j]) for j in range(draws.shape[-1])], dtype=float)
    return (draws.mean(axis=(0, 1)) - expected) / (draws.std(axis=(0, 1)) / np.sqrt(n))


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.mark.slow  # chains of PyMC
def test_the_step_draws_the_joint_posterior(model):
    idata = run(model, points=2)
    gamma, beta = (idata.posterior[name].values.astype(float) for name in ("gamma", "beta"))
    averaged = enumerated()
    assert np.abs(z_scores(gamma, averaged.selection["inclusion"].values)).max() < 4
    off = beta[gamma == 0]  # has its prior
    assert abs(off.mean() - 0.2) < 4 * 1.5 / len(off) ** 0.5
    assert abs(off.std() - 1.5) < 4 * 1.5 / (2 * len(off)) ** 0.5
    expected = averaged.posterior["beta"].values.mean(axis=(0, 1))
    assert np.abs(z_scores(gamma * beta, expected)).max() < 5
    assert set(idata.sample_stats["size"].values.ravel()) <= set(range(5))


@pytest.mark.slow
def test_evidences_without_their_constants_are_noticed(model, monkeypatch):
    draw = ImportanceEvidence.draw

    def twin(self, columns, rng):
        found, theta = draw(self, columns, rng)
        return found + columns.sum(), theta

    monkeypatch.setattr(ImportanceEvidence, "draw", twin)
    idata = run(model, points=2)
    gamma = idata.posterior["gamma"].values.astype(float)
    assert np.abs(z_scores(gamma, enumerated().selection["inclusion"].values)).max() > 6


@pytest.mark.parametrize("evidence", ["laplace", pytest.param("ep", marks=pytest.mark.slow)])
def test_computed_evidences_are_approximate(model, evidence):
    idata = run(model, draws=20, evidence=evidence)
    assert idata.sample_stats["approximate"].values.all()


LINEAR_Y = 0.5 + 0.7 * X[:, 0] + 0.35 * X[:, 3] + np.random.default_rng(4).standard_normal(60)


def linear_model_with_scales():
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1.0)
        share = pm.Beta("share", 1.0, 2.0)
        level = pm.Normal("level", 0, 2)
        gamma = pm.Bernoulli("gamma", share, shape=4)
        beta = pm.Normal("beta", 0, tau, shape=4)
        pm.Normal("y", level + X @ (gamma * beta), 1.0, observed=LINEAR_Y)
    return model


def linear_posterior():
    """Return inclusions and the means of the scale and of the share, by sums over models and a grid of scales."""
    log_tau = np.linspace(-6, 2, 200)
    bits = (np.arange(16)[:, None] >> np.arange(4)) & 1
    logs = np.empty((16, 200))
    for k, on in enumerate(bits):
        gram = X[:, on > 0] @ X[:, on > 0].T
        for i, tau in enumerate(np.exp(log_tau)):
            prior = stats.halfnorm.logpdf(tau) + log_tau[i] + betaln(1 + on.sum(), 6 - on.sum())
            covariance = np.eye(60) + 4.0 + tau**2 * gram
            logs[k, i] = prior + stats.multivariate_normal.logpdf(LINEAR_Y, np.zeros(60), covariance)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    share = (1 + bits.sum(axis=1)) / 7
    return weights.sum(axis=1) @ bits, weights.sum(axis=0) @ np.exp(log_tau), weights.sum(axis=1) @ share


@pytest.mark.slow
def test_scales_and_the_probability_of_an_indicator_are_left_to_other_steps():
    with linear_model_with_scales() as model:
        steps = [pb.steps.ModelSearch({"gamma": "beta"}, points=2), pm.Slice([model["tau"], model["share"]])]
        options = {"chains": 2, "cores": 1, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
        posterior = pm.sample(1500, tune=200, step=steps, **options).posterior
    inclusion, tau, share = linear_posterior()
    for name, truth in (("gamma", inclusion), ("tau", [tau]), ("share", [share])):
        draws = posterior[name].values.astype(float).reshape(2, 1500, -1)
        varies = np.asarray(truth) < 0.999
        assert np.abs(z_scores(draws[..., varies], np.asarray(truth)[varies])).max() < 4


def inverses(method, n=4000):
    """Return evidences times the inverses of estimates at draws of a posterior, from two points each."""
    form = design_form(np.array([[-0.5], [0.3], [1.0]]), np.array([0, 1, 1]), "binomial", "logit", None, None)
    evidence = ImportanceEvidence(LaplaceEvidence(form.regression), 2)
    columns, rng = np.ones(2, dtype=bool), np.random.default_rng(0)
    line = np.stack(np.meshgrid(np.linspace(-60, 90, 401), np.linspace(-25, 30, 401), indexing="ij"), axis=-1)
    theta = line.reshape(-1, 2)
    log_density = form.regression.take(columns).log_density(theta)
    mass = np.exp(log_density - log_density.max())
    log_evidence = log_density.max() + np.log(mass.sum() * 0.375 * 0.1375)
    drawn = theta[rng.choice(len(theta), size=n, p=mass / mass.sum())]
    return np.exp([log_evidence - method(evidence, columns, each, rng) for each in drawn])


def test_an_estimate_around_a_draw_of_the_posterior_has_its_law():
    """The mean of the inverse is then that of the evidence; that of an estimate of its own is larger."""
    found = inverses(ImportanceEvidence.around)
    assert abs(found.mean() - 1) < 4 * found.std() / len(found) ** 0.5
    fresh = inverses(lambda evidence, columns, theta, rng: evidence.draw(columns, rng)[0])
    assert fresh.mean() - 1 > 6 * fresh.std() / len(fresh) ** 0.5


def test_what_does_not_fit_is_refused(model):
    with pytest.raises(ModelError, match="'delta' is not among the free variables"):
        pb.steps.ModelSearch({"delta": "beta"}, model=model)
    with pytest.raises(ModelError, match="'beta' is the coefficient of several indicators"):
        pb.steps.ModelSearch({"gamma": "beta", "alpha": "beta"}, model=model)
    with pytest.raises(ModelError, match="shape"):
        pb.steps.ModelSearch({"gamma": "level"}, model=model)
    with pytest.raises(ModelError, match="is still part of the likelihood"):
        pb.steps.ModelSearch({"gamma": "beta"}, model=make_model(lambda level, g, b: level + X @ ((0.5 + 0.5 * g) * b)))
    with pytest.raises(ModelError, match="make it inside a model"):
        pb.steps.ModelSearch({"gamma": "beta"})


@pytest.mark.slow  # compiles a step
def test_every_coefficient_may_have_an_indicator():
    with pm.Model() as model:
        gamma = pm.Bernoulli("gamma", P, shape=2)
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", X[:, [0, 3]] @ (gamma * beta), 2.0, observed=X[:, 2])
    step = pb.steps.ModelSearch({"gamma": "beta"}, model=model)
    assert step is not None  # the check compares the log density of the model without coefficients too

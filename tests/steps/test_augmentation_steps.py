"""Gibbs steps in ``pm.sample`` and ``sample_mcmc``: reference posteriors, priors with variables of other steps, errors."""

import sys

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy.special import log_expit, log_ndtr

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import group
from tests.statistics import assert_mean_is, batches

QUIET = {"progressbar": False, "random_seed": 1, "compute_convergence_checks": False}
X, Y = np.array([-1.5, -0.4, 0.3, 0.8, 1.4, 2.2, -0.9]), np.array([0, 1, 0, 1, 1, 1, 0])
STEPS = {"probit": pb.steps.AlbertChib, "logit": pb.steps.PolyaGamma}

# Pima with normal priors of sd 20 and 5, by importance sampling.
PIMA = {
    "probit": (
        [-0.5942, 0.4704, 1.2768, -0.1106, 0.0997, 0.6598, 0.4536, 0.3486],
        [0.0692, 0.1623, 0.1470, 0.1472, 0.1792, 0.1831, 0.1341, 0.1711],
    ),
    "logit": (
        [-1.0045, 0.8228, 2.2329, -0.1916, 0.1522, 1.1549, 0.9182, 0.5783],
        [0.1242, 0.2923, 0.2659, 0.2566, 0.3113, 0.3236, 0.2527, 0.3044],
    ),
}


def observe(link, eta, y):
    """Add binary outcomes to the model on the context stack."""
    p = pm.math.invprobit(eta) if link == "probit" else pm.math.sigmoid(eta)
    pm.Bernoulli("y", p=p, observed=y)


@pytest.mark.parametrize("link", STEPS)
def test_pima_has_its_reference_moments(link):
    data, (mean, sd) = load_binary_regression("pima"), map(np.array, PIMA[link])
    with pm.Model():
        beta = pm.Normal("beta", 0, np.r_[20.0, np.full(7, 5.0)], shape=8)
        observe(link, data.X @ beta, data.y)
        idata = pm.sample(step=STEPS[link](), draws=2000, tune=50, chains=1, cores=1, **QUIET)
    z = (group(idata, "posterior")["beta"].values[0] - mean) / sd
    rounding = 1e-4 / sd.min()
    assert_mean_is(batches(z), np.zeros(8), rounding)
    assert_mean_is(batches(z**2), np.ones(8), rounding)
    assert (group(idata, "sample_stats")["approximate"] == 0).all()


def joint_on_grid(link):
    """Return means and second moments of (beta, tau, alpha) under the hierarchical model below, by quadrature."""
    log_cdf = log_ndtr if link == "probit" else log_expit
    tau = (np.arange(120)[:, None, None] + 0.5) / 24
    alpha = np.linspace(-2.0, 4.0, 61)[None, :, None]
    noise = np.linspace(-6.0, 6.0, 61)[None, None, :]
    beta = 0.5 + tau * noise
    log_density = -0.5 * tau**2 - 0.5 * (alpha - 1.0) ** 2 / 0.25 - 0.5 * noise**2
    for x, y in zip(X, Y, strict=True):
        log_density = log_density + log_cdf((2 * y - 1) * (alpha + x * beta - 0.7))
    mass = np.exp(log_density - log_density.max())
    mass /= mass.sum()
    parts = [np.broadcast_to(part, mass.shape) for part in (beta, tau, alpha)]
    return np.array([(mass * p).sum() for p in parts]), np.array([(mass * p**2).sum() for p in parts])


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [False, True], ids=["together", "in blocks"])
@pytest.mark.parametrize("link", STEPS)
def test_prior_scale_moves_by_another_step(link, blocks):
    first, second = joint_on_grid(link)
    with pm.Model():
        tau = pm.HalfNormal("tau", 1.0)
        alpha = pm.Normal("alpha", 1.0, 0.5)
        beta = pm.Normal("beta", 0.5, tau)
        observe(link, alpha + X * beta - 0.7, Y)
        mine = [STEPS[link]([alpha]), STEPS[link]([beta])] if blocks else [STEPS[link]([alpha, beta])]
        idata = pm.sample(step=[*mine, pm.NUTS([tau])], draws=3000, tune=500, chains=1, cores=1, **QUIET)
    drawn = np.stack([group(idata, "posterior")[name].values[0] for name in ("beta", "tau", "alpha")], axis=1)
    assert_mean_is(batches(drawn), first, 0.001)
    assert_mean_is(batches(drawn**2), second, 0.003)


def test_batch_of_chains_is_exact_and_is_the_chains_by_themselves():
    with pm.Model() as model:
        beta = pm.Cauchy("beta", 0, 2.5, shape=2)
        observe("logit", beta[0] + X * beta[1], Y)
    options = {"step": pb.steps.PolyaGamma(), "draws": 500, "tune": 20, "progressbar": False}
    starts = np.array([[0.0, 0.0], [1.0, -1.0]])
    idata = pb.sample_mcmc(model, chains=2, initvals=starts, random_seed=3, **options)
    again = pb.sample_mcmc(model, chains=2, initvals=starts, random_seed=3, cores=1, **options)
    np.testing.assert_array_equal(group(idata, "posterior")["beta"], group(again, "posterior")["beta"])
    assert group(idata, "posterior").attrs["accuracy"] == "exact"


def logistic_model():
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1.0)
        beta = pm.Normal("beta", 0.0, tau, shape=2)
        observe("logit", beta[0] + X * beta[1], Y)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda model: pb.steps.AlbertChib(["beta"], model=model),
            "AlbertChib: no latent .* Logit sites; use steps.Poly",
        ),
        (lambda model: pb.steps.PolyaGamma(model=model), "'tau_log__' .* is not Gaussian; .* in vars, among beta"),
        (
            lambda model: pb.steps.AlbertChib().bind(pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))),
            "has no known factors; use steps.HMC",
        ),
        (lambda model: pb.steps.AlbertChib(scale_move="no", model=model), "scale_move='no'"),
    ],
)
def test_wrong_use(make, message):
    with pytest.raises(ModelError, match=message):
        make(logistic_model())


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "polyagamma", None)
    with pytest.raises(ImportError, match=r"pip install 'ppl-backends\[polyagamma\]'"):
        pb.steps.PolyaGamma()


def test_a_step_whose_coefficients_have_a_scale_leaves_for_other_processes():
    """``pm.sample(mp_ctx="spawn")`` pickles steps; the factors of a model with hyper-parameters had a lock."""
    groups = np.arange(40) % 4
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1)
        effects = pm.Normal("effects", 0, scale, shape=4)
        pm.Bernoulli("y", p=pm.math.invprobit(effects[groups]), observed=np.arange(40) % 3 == 0)
        step = pb.steps.AlbertChib([effects])
    moved = []
    for each in (step, cloudpickle.loads(cloudpickle.dumps(step))):
        each.set_rng(np.random.default_rng(1))
        moved.append(each.step(model.initial_point())[0]["effects"])
    np.testing.assert_array_equal(*moved)

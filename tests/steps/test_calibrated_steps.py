"""Calibrated steps in ``pm.sample`` and ``sample_mcmc``: known posteriors, blocks, workers, pickling, honest stats."""

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.results.inference_data import group
from tests.toys import conjugate_gaussian, gamma_poisson

STEPS = [pb.steps.RandomWalk, pb.steps.MALA, pb.steps.HMC, pb.steps.Independent]
QUIET = {"progressbar": False, "random_seed": 1}


def effective(draws):
    """Return ESS of the mean and of the square, the smaller one: tolerances come from it."""
    import arviz as az

    return min(float(az.ess(draws)), float(az.ess((draws - draws.mean()) ** 2)))


def check_moments(draws, mean, sd, sigmas=4.5):
    ess = effective(draws)
    assert ess > 50
    assert abs(draws.mean() - mean) < sigmas * sd / np.sqrt(ess)
    assert abs(draws.std() - sd) < sigmas * sd * 1.3 / np.sqrt(ess)


@pytest.mark.parametrize("kind", STEPS)
def test_skewed_and_correlated_targets_have_their_moments(kind):
    for known in (gamma_poisson(), conjugate_gaussian(3)):
        idata = pb.sample_mcmc(known.target, step=kind(), draws=2500, tune=400, chains=2, **QUIET)
        x = group(idata, "posterior")["x"].values
        for j in range(known.target.dim):
            check_moments(x[..., j], known.mean[j], known.sd[j])
        assert (group(idata, "sample_stats")["approximate"] == 0).all()
        assert idata["posterior"].attrs["accuracy"] == "exact"


Z = np.random.default_rng(3).normal(size=40)
Y = 1 + 2 * Z + 0.5 * np.random.default_rng(4).normal(size=40)


@pytest.fixture(scope="module")
def line():
    with pm.Model() as model:
        a = pm.Normal("a", 0, 3)
        b = pm.Normal("b", 0, 3)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", a + b * Z, sigma, observed=Y)
        step = pb.steps.HMC()  # kept, so that all tests share what it compiled
    yield model
    assert step.name == "hmc"


@pytest.fixture(scope="module")
def reference():
    """Means and sds by quadrature over sigma, given which a and b are Gaussian."""
    design, sigma = np.column_stack([np.ones(40), Z]), np.linspace(0.2, 1.5, 1000)
    mass, moments = np.empty(1000), np.empty((1000, 2, 3))
    for k, s in enumerate(sigma):
        mass[k] = (
            stats.multivariate_normal.logpdf(Y, np.zeros(40), 9 * design @ design.T + s**2 * np.eye(40)) - s**2 / 8
        )
        cov = np.linalg.inv(design.T @ design / s**2 + np.eye(2) / 9)
        mean = np.r_[cov @ design.T @ Y / s**2, s]
        moments[k] = mean, mean**2 + np.r_[np.diag(cov), 0]
    mean, square = np.tensordot(np.exp(mass - mass.max()) / np.exp(mass - mass.max()).sum(), moments, 1)
    return dict(zip(("a", "b", "sigma"), zip(mean, np.sqrt(square - mean**2), strict=True), strict=True))


def test_steps_of_one_model_share_their_target_until_its_data_change():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        y = pm.Data("y", [0.5, 1.5])
        pm.Normal("obs", mu, 1, observed=y)
        first, second = pb.steps.Independent(), pb.steps.RandomWalk()
        assert first.target is second.target
        pm.set_data({"y": [3.0, 5.0]})
        assert pb.steps.Independent().target is not first.target
    assert model is first.target.model


def compare(idata, reference):
    for name, (mean, sd) in reference.items():
        check_moments(group(idata, "posterior")[name].values, mean, sd)


@pytest.mark.slow
def test_pymc_shows_the_name_of_a_step_and_copies_keep_it(line):
    with line:
        step = pb.steps.RandomWalk()
    assert type(step).__name__ == "RandomWalk"
    assert type(cloudpickle.loads(cloudpickle.dumps(step))) is type(step)


def test_blocks_mix_with_nuts_in_two_forked_workers(line, reference):
    with line:
        step = [pb.steps.RandomWalk([line["a"], "b"]), pm.NUTS([line["sigma"]])]
        idata = pm.sample(step=step, draws=1500, tune=500, chains=2, cores=2, compute_convergence_checks=False, **QUIET)
    compare(idata, reference)


@pytest.mark.slow
def test_independent_blocks_given_each_other_are_exact(line, reference):
    with line:
        step = [pb.steps.Independent(["a"]), pb.steps.Independent(["b", "sigma"])]
        idata = pm.sample(step=step, draws=2000, tune=10, chains=2, cores=1, compute_convergence_checks=False, **QUIET)
    compare(idata, reference)
    stats = group(idata, "sample_stats")
    assert (stats["approximate"] == 0).all()
    assert float(stats["accept"].mean()) > 0.5


def test_initvals_are_kept_and_the_default_start_is_a_draw_of_q(line):
    def first(**options):
        with line:
            step = pb.steps.RandomWalk(scale=1e-6)
            idata = pm.sample(
                step=step, draws=2, tune=0, chains=1, cores=1, compute_convergence_checks=False, **QUIET, **options
            )
        return float(group(idata, "posterior")["a"][0, 0])

    assert abs(first(initvals={"a": -7.0}) + 7.0) < 1e-3
    assert 0.5 < first() < 1.5  # PyMC's own start is 0


@pytest.mark.filterwarnings("ignore:.*R-hat")  # a short run
def test_result_goes_to_disk_and_is_the_same_in_threads_and_after_pickling(line, tmp_path):
    with line:
        step = pb.steps.HMC()
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    options = {"draws": 30, "tune": 20, "chains": 2, **QUIET}
    first = pb.sample_mcmc(line, step=step, **options)
    second = pb.sample_mcmc(line, step=copy, cores=2, **options)
    np.testing.assert_array_equal(group(first, "posterior")["a"], group(second, "posterior")["a"])
    first.to_netcdf(str(tmp_path / "run.nc"))


@pytest.mark.filterwarnings("ignore:.*R-hat")  # a short run
def test_an_interrupt_returns_what_there_is():
    target = conjugate_gaussian(2).target
    calls = 0

    class Interrupted(pb.FunctionTarget):
        def log_density(self, x):
            nonlocal calls
            calls += 1
            if calls == 200:
                raise KeyboardInterrupt
            return target.log_density(x)

    q = pb.fit_laplace(target, progressbar=False)
    stopping = Interrupted(2, target._log_likelihood, target._log_prior)
    with pytest.warns(UserWarning, match="interrupted"):
        idata = pb.sample_mcmc(
            stopping, step=pb.steps.RandomWalk(approximation=q), draws=500, tune=10, chains=2, **QUIET
        )
    assert 100 < group(idata, "posterior").sizes["draw"] < 200


def test_wrong_use_is_explained(line):
    target, outside = conjugate_gaussian(2).target, pb.steps.RandomWalk()
    with pytest.raises(ModelError, match="is a class"):
        pb.sample_mcmc(target, step=pb.steps.HMC)
    with pytest.raises(ModelError, match="expected one of"):
        pb.sample_mcmc(target, step="hmc")
    with pytest.raises(ModelError, match="3 chains"):
        pb.sample_mcmc(target, step=pb.steps.HMC(), chains=3, initvals=np.zeros((2, 2)))
    with pytest.raises(ModelError, match="draws"):
        pb.sample_mcmc(target, step=pb.steps.HMC(), draws=0)
    with pytest.raises(ModelError, match="above 0 and below 1"):
        pb.steps.HMC(target_accept=1.5)
    with line, pytest.raises(ModelError, match="only some variables"):
        pb.sample_mcmc(step=pb.steps.RandomWalk(["a"]), draws=2)
    with pm.Model() as model:
        pm.Poisson("k", 3)
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=[0.0])
    with model, pytest.raises(ModelError, match="discrete"):
        pb.steps.RandomWalk()
    for wrong, message in (
        ("nu", "'nu' is not a free variable of the model; these are k, mu"),
        ("y", "'y' is not a free variable"),
        (model["y"], "'y' is not a free variable"),
        (2000, "2000 is not a free variable"),
        (model, "pass it as model="),
        ([], "vars is empty"),
    ):
        with model, pytest.raises(ModelError, match=message):
            pb.steps.RandomWalk(wrong)
    with model, pytest.raises(ValueError, match="RandomWalk made outside of a model"):
        pm.sample(step=outside, draws=1, tune=0, chains=1, progressbar=False)
    with pytest.raises(
        ModelError, match=r"^RandomWalk\(vars=\['nu'\]\): vars are variables of a PyMC model, for pm.sample"
    ):
        pb.steps.RandomWalk(["nu"])
    q = pb.GaussianApproximation(np.zeros(3), np.eye(3))
    with pytest.raises(ModelError, match="has 3 coordinates"):
        pb.sample_mcmc(target, step=pb.steps.SubsampledMetropolis(approximation=q), draws=2)


@pytest.mark.slow
def test_hmc_does_not_start_where_the_joint_density_has_no_bound():
    """A climb ends at k → ∞ where all shares are equal, and chains that started there never moved."""
    with pm.Model() as model:
        mu, k = pm.Beta("mu", 1.0, 1.0), pm.Pareto("k", 1.5, 1.0)
        theta = pm.Beta("theta", mu * k, (1 - mu) * k, shape=4)
        pm.Binomial("y", 8, theta, observed=[0, 1, 4, 2])
    with pytest.warns(ApproximationWarning, match="starts and scales come from variational inference instead"):
        idata = pb.sample_mcmc(model, draws=1000, tune=300, chains=2, random_seed=1, progressbar=False)
    x = idata.posterior["mu"].values
    assert np.ptp(x, axis=1).min() > 0.1
    assert abs(x.mean() - 0.2965) < 0.05  # by quadrature; its sd is 0.124

"""Sub-sampling steps in ``pm.sample``: beside NUTS, in forked workers, on whole models and blocks, to disk and back."""

import warnings

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import ppl_backends as pb
from ppl_backends.approximations.ep import Factors, FactorsTarget, Logit
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.subsampling.rows import BlockRows, ObservedRows, SiteRows
from ppl_backends.results.inference_data import group

pytestmark = pytest.mark.slow  # PyMC 6 compiles subsets for minutes

S = pb.steps
QUIET = {"progressbar": False, "random_seed": 1}
SAMPLE = {**QUIET, "compute_convergence_checks": False, "chains": 2, "cores": 2}


def quietly(make, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)
        return make(*args, **options)


def compare(idata, reference, name):
    """Means within 5 and sds within 6 of their Monte Carlo errors."""
    ours, theirs = (group(i, "posterior")[name].values for i in (idata, reference))
    ours, theirs = ours.reshape(*ours.shape[:2], -1), theirs.reshape(*theirs.shape[:2], -1)
    for j in range(ours.shape[2]):
        a, b = ours[..., j], theirs[..., j]
        error = b.std() * np.sqrt(1 / float(az.ess(a)) + 1 / float(az.ess(b)))
        assert abs(a.mean() - b.mean()) < 5 * error
        assert abs(a.std() - b.std()) < 6 * error


@pytest.fixture(scope="module")
def logistic():
    rng = np.random.default_rng(0)
    design = np.c_[np.ones(2000), rng.normal(size=(2000, 2))]
    y = (rng.random(2000) < 1 / (1 + np.exp(-design @ np.array([-0.5, 1.0, 0.3])))).astype(int)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        beta = pm.Normal("beta", 0, tau, shape=3)
        pm.Bernoulli("y", logit_p=pm.math.dot(pm.Data("design", design), beta), observed=y)
        keep = S.HMC()  # the tests share what is compiled
    yield model
    assert keep.name == "hmc"


@pytest.fixture(scope="module")
def reference(logistic):
    with logistic:
        return pb.sample_mcmc(step=S.HMC(), draws=1500, tune=300, chains=2, **QUIET)


@pytest.mark.parametrize(
    "make",
    [
        lambda: S.SubsampledMetropolis(["beta"], steps=8),
        lambda: S.ScalableMetropolis(["beta"], steps=8),
    ],
    ids=["control variates", "scalable"],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")  # NUTS while it tunes
def test_blocks_beside_nuts_in_two_workers(logistic, reference, make):
    with logistic:
        step = quietly(make)
        assert isinstance(step.algorithm.rows, BlockRows)
        assert isinstance(step.algorithm.rows.whole, SiteRows)
        idata = pm.sample(step=[step, pm.NUTS([logistic["tau"]])], draws=600, tune=200, **SAMPLE)
    compare(idata, reference, "beta")
    compare(idata, reference, "tau")


def test_a_block_of_a_large_model_says_what_the_other_steps_cost():
    rng = np.random.default_rng(2)
    x = rng.normal(size=12_000)
    with pm.Model():
        tau = pm.HalfNormal("tau", 1)
        beta = pm.Normal("beta", 0, tau)
        pm.Normal("y", beta * x, 1, observed=x + rng.normal(size=len(x)))
        with pytest.warns(
            SamplerWarning, match="does not move tau_log__, and PyMC's own step for them evaluates all 12,000 rows"
        ):
            S.ScalableMetropolis(["beta"])
        with warnings.catch_warnings():
            warnings.simplefilter("error", SamplerWarning)
            S.ScalableMetropolis()


@pytest.mark.filterwarnings("ignore:.*R-hat")  # a short run
def test_a_whole_model_goes_through_summary_disk_and_pickle(logistic, reference, tmp_path):
    with logistic:
        step = S.ScalableMetropolis()
        idata = pm.sample(step=step, draws=1000, tune=50, **SAMPLE)
    compare(idata, reference, "beta")
    stats = group(idata, "sample_stats")
    assert (stats["approximate"] == 0).all()
    assert len(az.summary(idata)) == 4
    idata.to_netcdf(str(tmp_path / "run.nc"))
    first = pb.sample_mcmc(logistic, step=step, draws=30, tune=0, chains=2, **QUIET)
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    second = pb.sample_mcmc(logistic, step=copy, draws=30, tune=0, chains=2, cores=2, **QUIET)
    np.testing.assert_array_equal(group(first, "posterior")["beta"], group(second, "posterior")["beta"])


def test_rows_of_any_kind_have_control_variates():
    rng = np.random.default_rng(1)
    z = rng.normal(size=500)
    y = 0.5 + z + 0.4 * rng.standard_t(5, size=500)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        pm.StudentT("y", nu=5, mu=b[0] + b[1] * z, sigma=sigma, observed=y)
        with pytest.warns(SamplerWarning, match="is approximate: e"):
            step = S.SubsampledMetropolis(steps=6)
        assert isinstance(step.algorithm.rows, ObservedRows)
        idata = pb.sample_mcmc(step=step, draws=1000, tune=10, chains=2, **QUIET)
        reference = pb.sample_mcmc(step=S.RandomWalk(), draws=5000, tune=10, chains=1, **QUIET)
        with pytest.raises(ModelError, match="no bounds are known"):
            S.ScalableMetropolis()
    for name in ("b", "sigma"):
        compare(idata, reference, name)
    assert group(idata, "posterior").attrs["accuracy"] == "approximate"
    assert model is step.target.model


def test_models_without_rows_or_a_mode_are_refused():
    with pm.Model():
        sigma = pm.HalfNormal("sigma", 1)
        pm.GaussianRandomWalk("y", sigma=sigma, init_dist=pm.Normal.dist(0, 1), observed=np.zeros(8))
        with pytest.raises(ModelError, match="'y' cannot be taken in subsets: its rows depend on each other"):
            S.SubsampledMetropolis()
    with pm.Model():
        pm.Normal("mu")
        with pytest.raises(ModelError, match="no rows of observations"):
            S.SubsampledMetropolis()
    x = np.linspace(-1, 1, 30)
    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC says that it imputes
        b = pm.Normal("b")
        pm.Normal("y", b * pt.as_tensor(x), 1, observed=np.where(x > 0.9, np.nan, x))
        step = S.SubsampledMetropolis()
    # Missing values are coordinates, whose density is the prior's; the rows are those that were observed.
    rows, target = step.algorithm.kernel.rows, step.target
    assert (rows.n, target.dim) == (28, 3)
    points = np.random.default_rng(0).normal(size=(5, 3))
    whole = [rows.full_difference(points[0], x) + rows.log_prior_and_potentials(x) for x in points]
    np.testing.assert_allclose(np.ptp(target.log_density(points) - whole), 0, atol=1e-9)
    with pm.Model():
        effects = pm.Normal("effects", 0, pm.HalfNormal("scale", 1), shape=4)
        pm.Bernoulli("y", logit_p=effects[np.arange(40) % 4], observed=np.arange(40) % 3 == 0)
        with pytest.raises(
            ModelError, match="as with the scale of a hierarchy: give another approximation=, such as 'ep'"
        ):
            pb.sample_mcmc(step=S.SubsampledMetropolis(), draws=5, tune=5, chains=1, **QUIET)
        with pytest.warns(SamplerWarning, match="is approximate"):
            idata = pb.sample_mcmc(step=S.SubsampledMetropolis(approximation="ep"), draws=5, tune=5, chains=1, **QUIET)
        assert idata.posterior.effects.shape == (1, 5, 4)
    with pm.Model():
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=pm.Minibatch(np.zeros(50), batch_size=10), total_size=50)
        with pytest.raises(ModelError, match=r"total_size|Minibatch"):
            S.SubsampledMetropolis()


def test_more_rows_than_the_model_has_are_not_advised():
    rng = np.random.default_rng(0)
    design, y = np.c_[np.ones(500), rng.normal(size=500)], rng.integers(0, 2, 500)
    target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, 10.0))
    far = pb.GaussianApproximation(np.array([3.0, 3.0]), np.eye(2))
    with pytest.warns(SamplerWarning) as said:
        pb.sample_mcmc(target, step=S.SubsampledMetropolis(approximation=far), draws=30, tune=30, chains=2, **QUIET)
    [message] = [str(each.message) for each in said if "the estimated log likelihood has variance" in str(each.message)]
    assert "one: the model has 500, so give another approximation=, such as 'ep', or a step on all data" in message

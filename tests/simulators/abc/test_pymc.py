"""``pm.Simulator`` means in ``sample_abc`` what it means in PyMC."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.simulators.abc.kernels import log_kernel
from ppl_backends.simulators.abc.problem import make_problem
from ppl_backends.targets.pymc.simulator import simulators_of
from tests.simulators.abc.toys import NOISE, conjugate_answer
from tests.statistics import normal_bound

QUIET = {"progressbar": False, "random_seed": 1}
DATA = np.array([0.3, -1.2, 0.8, 2.0, 0.1])


def normal(rng, loc, scale, size):
    return rng.normal(loc, scale, size=size)


def scalar_only(rng, loc, scale, size):
    return np.array([rng.normal(loc.item(), scale.item()) for _ in range(size[0])])


def model_of(fn=normal, observed=DATA, **options):
    with pm.Model() as model:
        loc, scale = pm.Normal("loc", 0, 1), pm.HalfNormal("scale", 1)
        pm.Simulator("y", fn, loc, scale, observed=observed, **options)
    return model


def halved(epsilon, observed, simulated):
    return -np.abs(observed - simulated).sum() / (2 * epsilon)


VARIANTS = {
    "gaussian": {"epsilon": 0.5},
    "laplace": {"distance": "laplace", "epsilon": 0.5},
    "sort": {"sum_stat": "sort", "epsilon": 0.5},
    "mean": {"sum_stat": "mean", "epsilon": 0.5},
    "median": {"sum_stat": "median", "epsilon": 0.5},
    "callable summary": {"sum_stat": lambda y: np.array([y.mean(), y.std()]), "epsilon": 0.5},
    "symbolic summary": {"sum_stat": lambda y: pt.stack([pt.max(y), pt.min(y)]), "epsilon": 0.5},
    "vector epsilon": {"epsilon": np.array([0.5, 1.0, 2.0, 0.3, 0.7])},
    "callable distance": {"distance": halved, "epsilon": 0.5},
    "symbolic distance": {"distance": lambda e, o, s: -(pt.abs((o - s) / e) ** 1.5), "epsilon": 0.5},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_kernels_are_those_of_pymc(name):
    model = model_of(**VARIANTS[name])
    problem = make_problem(model)
    [rv] = simulators_of(model)
    op, simulated = rv.owner.op, np.array([0.5, 0.2, -1.0, 1.4, 0.9])
    value = op.distance(op.epsilon, op.sum_stat(pt.as_tensor(DATA)), op.sum_stat(pt.as_tensor(simulated)))
    [discrepancy] = problem.experiment.discrepancies
    distance = discrepancy(simulated[None])
    if problem.experiment.joint == "energy":
        distance = distance * problem.experiment.unit
    np.testing.assert_allclose(log_kernel(problem.kernel, distance, problem.epsilon), np.sum(value.eval()), rtol=1e-10)


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.03])
def test_conjugate_normal(epsilon):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        pm.Simulator(
            "y", lambda rng, loc, size: rng.normal(loc, NOISE, size=size), theta, observed=[1.0], epsilon=epsilon
        )
    idata = pb.sample_abc(model, **QUIET)
    mean, sd, log_evidence = conjugate_answer(epsilon)
    attrs, estimates = idata.posterior.attrs, idata["estimates"]
    assert attrs["epsilon"] == epsilon
    assert attrs["kernel"] == "gaussian"
    assert attrs["batched"] == 1
    assert abs(attrs["log_evidence"] - log_evidence) < normal_bound(2) * attrs["log_evidence_se"]
    assert abs(estimates["theta_mean"] - mean) < normal_bound(2) * estimates["theta_mean_se"]
    assert abs(estimates["theta_sd"] / sd - 1) < 0.05
    assert idata["observed_data"]["y"].values == [1.0]
    assert idata["posterior_predictive"]["y"].shape == (4, 2000, 1)


def test_functions_of_scalars_give_what_batched_ones_give():
    small = {**QUIET, "draws": 256, "chains": 2, "pilot_points": 256, "data_sets": 2}
    fast, slow = (pb.sample_abc(model_of(fn, epsilon=1.0), **small).posterior.attrs for fn in (normal, scalar_only))
    assert (fast["batched"], slow["batched"]) == (1, 0)
    error = np.hypot(fast["log_evidence_se"], slow["log_evidence_se"])
    assert abs(fast["log_evidence"] - slow["log_evidence"]) < normal_bound() * error


def test_errors_name_the_parameters():
    def fails(rng, loc, scale, size):
        raise OverflowError("too large")

    with pytest.raises(ModelError, match=r"simulator 'y' failed at loc=.*, scale=.*: OverflowError: too large"):
        pb.sample_abc(model_of(fails, epsilon=1.0), **QUIET)


def test_vectors_and_matrices_of_parameters():
    def matrix(rng, mean, factor, size):
        shape = np.shape(mean) if not size else (*size, np.shape(mean)[-1])
        return mean + np.einsum("...ij,...j->...i", factor, rng.standard_normal(shape))

    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 1, shape=2)
        pm.Simulator(
            "y", matrix, mean, np.array([[0.5, 0.0], [0.2, 0.4]]), signature="(d),(d,d)->(d)", epsilon=0.3,
            observed=np.array([0.5, -0.5]),
        )  # fmt: skip
    idata = pb.sample_abc(model, **QUIET)
    noise = np.array([[0.25, 0.1], [0.1, 0.2]]) + 0.09 * np.eye(2)
    cov = np.linalg.inv(np.eye(2) + np.linalg.inv(noise))
    exact = cov @ np.linalg.solve(noise, [0.5, -0.5])
    estimates = idata["estimates"]
    assert (np.abs(estimates["mean_mean"] - exact) < normal_bound(2) * estimates["mean_mean_se"]).all()
    np.testing.assert_allclose(estimates["mean_sd"], np.sqrt(np.diag(cov)), rtol=0.05)


def two_simulators(likelihood=False):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        fn = lambda rng, loc, size: rng.normal(loc, NOISE, size=size)  # noqa: E731
        pm.Simulator("a", fn, theta, observed=[1.0], epsilon=0.2)
        if likelihood:
            pm.Normal("b", theta, 0.5, observed=[0.4])
        else:
            pm.Simulator("b", fn, theta, observed=[0.4], epsilon=0.5)
    return model


def exact_of_two(noise_a, noise_b, kernels):
    """Mean and log evidence of two observations of θ with Gaussian noise; the kernels' densities have no constants."""
    precision = 1 + 1 / noise_a + 1 / noise_b
    mean = (1.0 / noise_a + 0.4 / noise_b) / precision
    cov = np.ones((2, 2)) + np.diag([noise_a, noise_b])
    y = np.array([1.0, 0.4])
    density = -0.5 * (y @ np.linalg.solve(cov, y) + np.linalg.slogdet(2 * np.pi * cov)[1])
    return mean, density + sum(0.5 * np.log(2 * np.pi * e**2) for e in kernels)


@pytest.mark.parametrize("likelihood", [False, True])
def test_several_simulators_and_likelihoods_beside_them(likelihood):
    idata = pb.sample_abc(two_simulators(likelihood), **QUIET)
    noise_b = 0.25 if likelihood else NOISE**2 + 0.25
    mean, log_evidence = exact_of_two(NOISE**2 + 0.04, noise_b, [0.2] if likelihood else [0.2, 0.5])
    attrs, estimates = idata.posterior.attrs, idata["estimates"]
    assert abs(attrs["log_evidence"] - log_evidence) < normal_bound(2) * attrs["log_evidence_se"]
    assert abs(estimates["theta_mean"] - mean) < normal_bound(2) * estimates["theta_mean_se"]


def test_tolerances_by_name():
    idata = pb.sample_abc(two_simulators(), epsilon={"a": 0.3, "b": 0.4}, **QUIET)
    _, log_evidence = exact_of_two(NOISE**2 + 0.09, NOISE**2 + 0.16, [0.3, 0.4])
    assert abs(idata.posterior.attrs["log_evidence"] - log_evidence) < 4 * idata.posterior.attrs["log_evidence_se"]
    with pytest.raises(ModelError, match=r"epsilon= names \['c'\]"):
        pb.sample_abc(two_simulators(), epsilon={"c": 0.3}, **QUIET)


def test_hierarchical_priors_and_data_containers():
    with pm.Model() as model:
        y = pm.Data("data", np.array([1.0, 2.0, 3.0]))
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        theta = pm.Normal("theta", mu, tau, shape=3)
        pm.Simulator("y", normal, theta, 0.5, observed=y, epsilon=1.0)
    idata = pb.sample_abc(model, data={"data": np.array([3.0, 4.0, 5.0])}, **QUIET)
    assert (idata["observed_data"]["y"].values == [3.0, 4.0, 5.0]).all()
    assert 2.0 < idata.posterior["mu"].mean() < 4.0
    assert set(idata.posterior) == {"mu", "tau", "theta"}


def test_priors_without_inverse_cdf_use_a_fitted_mixture():
    with pm.Model() as model:
        angle = pm.VonMises("angle", 0.5, 2.0)
        pm.Simulator("y", normal, angle, 0.3, observed=[0.9], epsilon=0.2)
    idata = pb.sample_abc(model, **QUIET)
    grid = np.linspace(-np.pi, np.pi, 4001)
    noise = 0.09 + 0.04
    density = np.exp(pm.logp(pm.VonMises.dist(0.5, 2.0), grid).eval() - 0.5 * (grid - 0.9) ** 2 / noise)
    total = density.sum() * (grid[1] - grid[0])
    log_evidence = np.log(total * 0.2 / np.sqrt(noise))
    attrs = idata.posterior.attrs
    assert abs(idata["estimates"]["angle_mean"] - (grid * density).sum() / density.sum()) < 0.02
    assert abs(attrs["log_evidence"] - log_evidence) < 0.05


def test_what_does_not_fit_is_refused():
    with pm.Model() as model:
        pm.Normal("x")
    with pytest.raises(ModelError, match=r"the model has no pm\.Simulator"):
        pb.sample_abc(model, **QUIET)
    with pytest.raises(ModelError, match="summary= is an option for simulate="):
        pb.sample_abc(model_of(epsilon=1.0), summary="mean", **QUIET)
    with pytest.raises(ModelError, match="kernel= needs a distance"):
        pb.sample_abc(model_of(distance=halved), kernel="uniform", **QUIET)
    with pytest.raises(ModelError, match="it needs kernel='uniform'"):
        pb.sample_abc(model_of(epsilon=1.0), hits=3, **QUIET)

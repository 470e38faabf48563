"""The protocol of ``BaseTarget`` on every kind of target: members agree with each other."""

import contextlib
from functools import cache
from pathlib import Path

import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.approximations.variational.annealing import TemperedJoint
from ppl_backends.approximations.variational.schedules import SubsetTarget
from ppl_backends.errors import ModelError
from ppl_backends.gibbs.priors import GaussianPriorTarget
from ppl_backends.numerics.differences import central_differences, difference_hessian
from ppl_backends.targets.conditional import ConditionalTarget
from ppl_backends.targets.factors import Factors, Logit, Normal
from ppl_backends.targets.protocol import BaseTarget
from ppl_backends.targets.wrapped import WrappedTarget

PROGRAMS = Path(__file__).parents[1] / "stan" / "programs"
RNG = np.random.default_rng(3)
DESIGN = RNG.normal(size=(12, 3))
OUTCOME = (RNG.random(12) < 0.5).astype(float)


@cache
def pymc_target():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, [1.0, 2.0, 1.5])
        pm.Bernoulli("y", logit_p=DESIGN @ beta, observed=OUTCOME)
        pm.Potential("penalty", -0.1 * (beta**2).sum())
    return pb.as_target(model, backend="numba")


def function_target(split=True):
    def log_likelihood(x):
        return -((x - 0.3) ** 4).sum(1), -4 * (x - 0.3) ** 3

    def log_prior(x):
        return -0.5 * (x**2).sum(1), -x

    return pb.FunctionTarget(3, log_likelihood, log_prior if split else None, lambda n, rng: rng.normal(size=(n, 3)))


class Foreign:
    """A user's object: a joint density, rows, and nothing else."""

    dim = 3

    class Rows:
        n = 4

        def log_likelihood(self, x, index=None):
            return -((x[:, :1] - np.arange(4.0)) ** 2)[:, np.arange(4) if index is None else index]

    observations = Rows()

    def log_density(self, x):
        return -((x[:, :1] - np.arange(4.0)) ** 2).sum(1) - 0.5 * (x**2).sum(1)


def gaussian_factors():
    return pb.as_target(Factors(DESIGN, 0.0, Normal(OUTCOME), 0.0, 1.0))


def unnormalized():
    return pb.Unnormalized(
        log_unnormalized=lambda x, data: data @ x,
        simulate=lambda x, n, rng: rng.normal(size=(n, 3)),
        observed=np.zeros(3),
        prior=function_target(),
    )


def stan_target():
    data = {"N": 12, "D": 3, "X": DESIGN, "y": OUTCOME.astype(int)}
    return pb.as_target(str(PROGRAMS / "regression.stan"), data, rows={"N": ["X", "y"]}, cores=1)


def gibbs():
    signs = np.where(OUTCOME > 0, 1.0, -1.0)
    return pb.gibbs.GibbsPosterior((0.0, 1.0), "logistic", DESIGN, signs, learning_rate=12.0)


KINDS = {
    "PyMC": pymc_target,
    "Stan": stan_target,
    "function": function_target,
    "joint function": lambda: function_target(split=False),
    "foreign": lambda: pb.as_target(Foreign()),
    "factors": lambda: pb.as_target(Factors(DESIGN, 0.0, Logit(OUTCOME), 0.0, 1.0, log_constant=1.5)),
    "Gibbs": gibbs,
    "Gaussian prior": lambda: GaussianPriorTarget(0.0, 2.0, 3),
    "unnormalised": unnormalized,
    "power of PyMC": lambda: pb.with_power(pymc_target(), 0.4),
    "power of PyMC and its Potentials": lambda: pb.with_power(pymc_target(), 0.4, power_potentials=True),
    "power of a power": lambda: pb.with_power(pb.with_power(pymc_target(), 0.5, power_potentials=True), 0.5),
    "power of factors": lambda: pb.with_power(gaussian_factors(), 0.4),
    "block of PyMC": lambda: ConditionalTarget(pymc_target(), [2, 0], [0.1, 0.2, 0.3]),
    "joint to a power": lambda: TemperedJoint(function_target(split=False), 0.3),
    "some rows of PyMC": lambda: SubsetTarget(pymc_target(), np.arange(5)),
}


@pytest.fixture(params=[pytest.param(k, marks=pytest.mark.stan) if k == "Stan" else k for k in KINDS], scope="module")
def target(request):
    return KINDS[request.param]()


@pytest.fixture
def x(target):
    return 0.5 * np.random.default_rng(1).normal(size=(4, target.dim))


def has_density(target):
    try:
        target.log_density(np.zeros((1, target.dim)))
    except ModelError:
        return False
    return True


def public(kind):
    return {name for name in vars(kind) if not name.startswith("_")} | set(kind.__annotations__)


def test_every_member_is_declared(target):
    for name in public(BaseTarget):
        with contextlib.suppress(ModelError):  # a clear refusal
            getattr(target, name)
    assert len(target.names) == target.dim


def test_wrapped_targets_delegate_every_member_but_those_that_follow_from_others():
    follow = {"log_density", "log_density_and_gradient", "full", "free", "others", "point", "set_others", "embed"}
    follow |= {"check_possible"}  # asks for initial points
    absent = {
        "latent_gaussian",
        "log_concave",
    }  # no wrapper has a sparse form of what it changes, or says that it has one mode
    assert public(BaseTarget) - set(vars(WrappedTarget)) == follow | absent


def test_parts_and_gradients_are_those_of_the_density(target, x):
    if not has_density(target):
        return
    value, gradient = target.log_density_and_gradient(x)
    np.testing.assert_allclose(target.log_density(x), value, rtol=1e-12)
    np.testing.assert_allclose(target.log_density(x[:1]), value[:1], rtol=1e-12)
    np.testing.assert_allclose(gradient, central_differences(target.log_density, x), rtol=1e-6, atol=1e-6)
    parts = target.evaluate(x, gradient=True)
    assert (parts.log_prior is not None) == target.has_split == (target.split_problem is None)
    if target.has_split:
        np.testing.assert_allclose(parts.log_prior + parts.log_likelihood, value, rtol=1e-10)
        prior, slope = target.evaluate_prior(x, gradient=True)
        np.testing.assert_allclose(prior, parts.log_prior, rtol=1e-10)
        np.testing.assert_allclose(slope, parts.log_prior_gradient, rtol=1e-10, atol=1e-12)
    else:
        with pytest.raises(ModelError):
            target.evaluate_prior(x)
    assert not target.undefined(x).any()


@pytest.mark.parametrize("part", ["joint", "likelihood"])
def test_hessians_are_differences_of_gradients(target, x, part):
    if not has_density(target) or (part == "likelihood" and not target.has_split):
        return

    def gradient(points):
        found = target.evaluate(points, gradient=True)
        return found.gradient if part == "joint" else found.log_likelihood_gradient

    np.testing.assert_allclose(target.hessian(x, part), difference_hessian(gradient, x), rtol=1e-3, atol=1e-4)


def test_the_full_target_has_the_same_density_at_embedded_points(target, x):
    assert target.full.full is target.full
    np.testing.assert_array_equal(target.embed(x)[:, target.free], x)
    if has_density(target):
        np.testing.assert_allclose(target.full.log_density(target.embed(x)), target.log_density(x), rtol=1e-12)


def test_model_space_and_back(target, x):
    np.testing.assert_allclose(target.unconstrain(target.constrain(x)), x, atol=1e-10)


def test_sums_over_rows_are_sums_of_rows(target, x):
    rows = None if not has_density(target) else target.observations
    if rows is None:
        return
    assert rows.log_likelihood(x).shape == (len(x), rows.n)
    index, weights = np.array([rows.n - 1, 0, 1]), np.array([1.0, 0.5, 2.0])
    some = rows.log_likelihood(x, index)
    np.testing.assert_allclose(some, rows.log_likelihood(x)[:, index], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(rows.sum(x, index, weights), some @ weights, rtol=1e-8, atol=1e-8)
    rows.check()
    if rows.no_gradient:
        with pytest.raises(ModelError):
            rows.sum(x, index, weights, gradient=True)
        return
    value, slope = rows.sum(x, index, weights, gradient=True)
    np.testing.assert_allclose(value, some @ weights, rtol=1e-8, atol=1e-8)
    differences = central_differences(lambda points: rows.sum(points, index, weights), x)
    np.testing.assert_allclose(slope, differences, rtol=1e-5, atol=1e-6)
    scores, hessian = rows.score_and_hessian(x[0])
    every = np.arange(rows.n)
    np.testing.assert_allclose(scores.sum(axis=0), rows.sum(x[:1], every, gradient=True)[1][0], rtol=1e-5, atol=1e-6)
    whole = difference_hessian(lambda points: rows.sum(points, every, gradient=True)[1], x[:1])[0]
    np.testing.assert_allclose(hessian, whole, rtol=1e-4, atol=1e-5)


def test_rows_and_what_is_beside_them_make_up_the_density(target, x):
    rows = None if not has_density(target) else target.observations
    if rows is None:
        return
    try:
        beside, slope = rows.log_prior_and_potentials(x, gradient=True)
    except ModelError:
        return
    value, gradient = target.log_density_and_gradient(x)
    rest, rest_slope = rows.sum(x, np.arange(rows.n), gradient=True)
    np.testing.assert_allclose(beside + rest, value, rtol=1e-8)
    if target.has_split:
        parts = target.evaluate_prior(x)[0] + target.evaluate_potentials(x)[0]
        np.testing.assert_allclose(parts, beside, rtol=1e-8)
    np.testing.assert_allclose(slope + rest_slope, gradient, rtol=1e-6, atol=1e-8)


def test_factors_are_the_density(target, x):
    try:
        factors = target.factors
    except ModelError:
        return
    if isinstance(factors, Factors):
        np.testing.assert_allclose(factors.log_density(x), target.log_density(x), rtol=1e-7)


def test_sites_of_the_likelihood_are_the_rows(target, x):
    sites = target.likelihood_factors
    if sites is not None:
        found, rows = sites.log_site(sites.predictor(x)), target.observations
        np.testing.assert_allclose(found.sum(1), rows.log_likelihood(x).sum(1), rtol=1e-7)


def test_a_target_tells_itself_from_others(target):
    if has_density(target):
        assert target.digests() == target.digests()
        assert target.digests() != function_target(split=not target.has_split).digests()


def test_the_prior_is_sampled_or_refused(target):
    try:
        draws = target.sample_prior(3, np.random.default_rng(2))
    except ModelError:
        return
    assert draws.shape == (3, target.dim)

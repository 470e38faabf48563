"""Names and objects that are accepted as an approximation."""

import numpy as np
import pymc as pm
import pytest

from ppl_backends.approximations import GaussianApproximation
from ppl_backends.approximations.ep import Factors, FactorsTarget, Logit
from ppl_backends.approximations.ep.budget import BudgetSpentError
from ppl_backends.approximations.ep.fit import fixed_point
from ppl_backends.approximations.resolve import CALLS_OF_A_START, _ep_where_it_works, resolve_approximation
from ppl_backends.errors import ModelError
from ppl_backends.targets import FunctionTarget, as_target

TARGET = FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))


@pytest.mark.parametrize("name", ["auto", "laplace"])
def test_names(name):
    np.testing.assert_allclose(resolve_approximation(TARGET, name).cov, np.eye(2), atol=1e-8)


def test_objects():
    q = GaussianApproximation(np.zeros(2), np.eye(2))
    assert resolve_approximation(TARGET, q) is q

    class Moments:
        mean, cov = np.zeros(2), np.eye(2)

    assert resolve_approximation(TARGET, Moments()).log_density(np.zeros((1, 2))) == pytest.approx(-np.log(2 * np.pi))


@pytest.mark.parametrize("wrong", ["pathfinder", 3, GaussianApproximation([0.0], [[1.0]])])
def test_what_is_refused(wrong):
    with pytest.raises(ModelError, match="approximation"):
        resolve_approximation(TARGET, wrong)


@pytest.mark.parametrize("name", ["auto", "laplace", "vi"])
def test_an_improper_posterior_has_no_approximation(name):
    def difference(x):  # says nothing about the level
        pull = x[:, 1] - x[:, 0]
        return -0.5 * pull**2, np.column_stack([pull, -pull])

    with pytest.raises(ModelError, match="the posterior is improper"):
        resolve_approximation(FunctionTarget(2, difference), name, random_seed=1)


def test_an_improper_posterior_is_refused_with_a_given_approximation():
    x = np.linspace(-1, 1, 10)
    separated = FactorsTarget(Factors(np.column_stack([np.ones(10), x]), None, Logit(x > 0), 0.0, 0.0))
    with pytest.raises(ModelError, match="the posterior is improper"):
        resolve_approximation(separated, GaussianApproximation([0.0, 5.0], np.eye(2)))


def change_point():
    """Counts with a change at an unknown time: sites with jumps, which EP integrates by panels, given two rates."""
    t, y = np.arange(30), np.random.default_rng(2).poisson(np.where(np.arange(30) < 12, 4.0, 1.5))
    with pm.Model() as model:
        change = pm.Uniform("change", 0, 30)
        before, after = pm.Exponential("before", 0.3), pm.Exponential("after", 0.3)
        pm.Poisson("y", pm.math.where(t < change, before, after), observed=y)
    return model


@pytest.mark.slow
def test_a_start_for_which_ep_takes_too_many_evaluations_is_from_laplace():
    """Evaluations are counted, so that the choice depends on no clock."""
    target = as_target(change_point())
    with pytest.raises(BudgetSpentError):
        fixed_point(target, CALLS_OF_A_START)
    assert _ep_where_it_works(target) is None


@pytest.mark.slow
@pytest.mark.stan
def test_a_start_for_which_a_program_tabulates_sites_again_and_again_is_from_laplace():
    """Student observations with unknown scale and degrees of freedom need hundreds of tables, one for each pair."""
    code = """data { int N; vector[N] x, y; } parameters { real a, b; real<lower=0> s; real<lower=1> nu; }
    model { a ~ normal(0, 5); b ~ normal(0, 5); s ~ cauchy(0, 2); nu ~ gamma(2, 0.1); y ~ student_t(nu, a + b * x, s); }
    generated quantities { vector[N] eta = a + b * x; vector[N] log_lik;
      for (n in 1:N) log_lik[n] = student_t_lpdf(y[n] | nu, eta[n], s); }"""
    rng = np.random.default_rng(3)
    x = rng.normal(size=40)
    target = as_target(code, {"N": 40, "x": x, "y": 1 + 2 * x + rng.standard_t(3, 40)})
    assert target.factors.hyper_names == ("s", "nu")
    with pytest.raises(BudgetSpentError):
        fixed_point(target, CALLS_OF_A_START)
    assert _ep_where_it_works(target) is None


def test_hierarchies_are_far_within_the_budget_of_a_start():
    rng = np.random.default_rng(0)
    group, y = np.arange(40) % 8, rng.poisson(2.0, 40)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1)
        effect = pm.Normal("effect", 0, scale, shape=8)
        pm.Poisson("y", pm.math.exp(effect[group]), observed=y)
    assert fixed_point(as_target(model), CALLS_OF_A_START / 3).converged

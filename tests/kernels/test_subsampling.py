"""Sub-sampling algorithms: exact ones leave the posterior invariant, approximate ones' error shrinks with their precision."""

import warnings
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
import scipy.stats

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.subsampling.control import (
    ControlVariateMetropolis,
    SequentialMetropolis,
    UniformMetropolis,
    choose_subset_size,
)
from ppl_backends.kernels.subsampling.exact import RowSampler, Scalable, Tuna
from ppl_backends.kernels.subsampling.informed import Informed, curvature_variance
from ppl_backends.kernels.subsampling.kernel import RowsAlgorithm
from ppl_backends.kernels.subsampling.rows import (
    FunctionLogPrior,
    QuadraticLogPrior,
    SiteRows,
    _sites_of,
    quadratic_where_exact,
)
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.results.inference_data import group
from ppl_backends.steps import check_acceptance
from ppl_backends.targets.factors import Factors, FactorsTarget, Logit, Normal, Poisson, Probit
from ppl_backends.targets.factors import compiled as sites
from tests.statistics import assert_chain_is_right

QUIET = {"progressbar": False, "random_seed": 1}
PRIOR_SD = 1.5
FALSE_FAILURE = 1e-5


def logistic(n, seed=0, scale=1.0, dim=2):
    rng = np.random.default_rng(seed)
    design = np.c_[np.ones(n), scale * rng.standard_t(4, size=(n, dim - 1))]
    theta = rng.normal(size=dim)
    y = (rng.random(n) < 1 / (1 + np.exp(-design @ theta))).astype(int)
    return design, y


def rows_of(design, y, rest=None):
    dim = design.shape[1]
    rest = rest or QuadraticLogPrior(0.0, np.zeros(dim), -np.eye(dim) / PRIOR_SD**2)
    return SiteRows(design, 0.0, y, 1.0, sites.LOGIT, rest)


class OpaquePrior:
    """The same Gaussian prior as functions of points see it, so that nothing is compiled."""

    def __call__(self, x, gradient=False):
        value = -0.5 * (x**2).sum(axis=1) / PRIOR_SD**2
        return (value, -x / PRIOR_SD**2) if gradient else value


def test_a_prior_is_taken_as_quadratic_only_if_it_is_so_near_its_location_too():
    def normal(x, gradient=False):
        value = -0.5 * ((x - 5000) ** 2 / 9).sum(axis=1)
        return (value, -(x - 5000) / 9) if gradient else value

    def student(x, gradient=False):  # of the second coordinate: its third derivative at zero is below the tolerance
        u = x[:, 1] - 5000
        value = -0.5 * (x[:, 0] / 0.01) ** 2 - 2 * np.log1p(u**2 / 300)
        return (value, np.c_[-x[:, 0] / 0.01**2, -4 * u / (300 + u**2)]) if gradient else value

    assert isinstance(quadratic_where_exact(normal, 2), QuadraticLogPrior)
    assert isinstance(quadratic_where_exact(student, 2), FunctionLogPrior)


def grid_moments(rows):
    """Return the posterior means and sds in two dimensions by quadrature."""
    z = np.linspace(-7, 7, 121)
    points = rows.expansion_point.mean + np.stack(np.meshgrid(z, z), -1).reshape(-1, 2) @ rows.expansion_point.factor.T
    s = points @ rows.design.T
    log_p = (s * rows.y - np.logaddexp(0, s)).sum(axis=1) + np.array([rows.log_prior_and_potentials(x) for x in points])
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ points
    return mean, np.sqrt(p @ (points - mean) ** 2)


def chain(kernel, draws, seed=0, start=None):
    rng, algorithm = np.random.default_rng(seed), RowsAlgorithm(kernel)
    state = algorithm.start(algorithm.initial_point(rng) if start is None else start, rng)
    x, accept = np.empty((draws, algorithm.dim)), 0.0
    for k in range(draws):
        state, stats = algorithm.step(state, rng, False)
        assert stats.keys() == algorithm.stats.keys()
        x[k] = state.x[0]
        accept += stats["accept"][0] / draws
    return x, accept


# -- exact algorithms ---------------------------------------------------------------------------------------------------


def after_steps(make, replicates, steps):
    """Draws of the prior moved by a kernel for data that they generate: still the prior, and still matched to the data."""
    rng = np.random.default_rng(3)
    found = np.empty((replicates, 2))
    for k in range(replicates):
        theta = PRIOR_SD * rng.normal(size=2)
        design = np.c_[np.ones(12), 2 * rng.normal(size=12)]
        y = (rng.random(12) < 1 / (1 + np.exp(-design @ theta))).astype(float)
        algorithm = RowsAlgorithm(make(rows_of(design, y)))
        state = algorithm.start(theta, rng)
        for _ in range(steps):
            state, _ = algorithm.step(state, rng, False)
        found[k] = state.x[0]
    return found


def p_values(found):
    each = [scipy.stats.kstest(found[:, j] / PRIOR_SD, "norm").pvalue for j in range(2)]
    return min(*each, scipy.stats.kstest((found**2).sum(axis=1) / PRIOR_SD**2, "chi2", args=(2,)).pvalue)


class WithoutRows(Scalable):
    """Broken: trusts the control variates, as if the bounds on what they leave were zero."""

    def __init__(self, rows, **options):
        super().__init__(rows, **options)
        self.near = self.far = RowSampler(1e-12 * self.far.bounds)


class WithoutPrior(Tuna):
    """Broken: leaves out the prior."""

    def at(self, x):
        return replace(super().at(x), known=np.zeros(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "broken"),
    [
        (lambda rows: Scalable(rows, steps=10), lambda rows: WithoutRows(rows, steps=10)),
        (
            lambda rows: Scalable(rows, independent=True, steps=10),
            lambda rows: WithoutRows(rows, independent=True, steps=10),
        ),
        (lambda rows: Tuna(rows, chi=0.1, scale=1.0), lambda rows: WithoutPrior(rows, chi=0.1, scale=1.0)),
    ],
    ids=["scalable", "scalable-independent", "tuna"],
)
def test_exact_steps_leave_prior_times_likelihood_invariant_and_broken_twins_do_not(make, broken):
    assert p_values(after_steps(make, 1500, 4)) > FALSE_FAILURE
    assert p_values(after_steps(broken, 1500, 8)) < FALSE_FAILURE


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize(
    "make",
    [lambda rows, **options: ControlVariateMetropolis(rows, 60, **options), Scalable],
    ids=["control variates", "scalable"],
)
def test_a_compiled_run_equals_single_steps_and_leaves_nothing_stale(make, independent):
    """The same random numbers in the same order: points, subsets and estimates agree up to rounding."""
    rows = rows_of(*logistic(400, seed=4))
    kernel = make(rows, independent=independent, steps=30)
    first, second = np.random.default_rng(1), np.random.default_rng(1)
    x = rows.expansion_point.sample(1, np.random.default_rng(2))
    together, alone = kernel.start(x, first), kernel.start(x, second)
    together, info = kernel.run(first, together)
    for _ in range(30):
        alone = kernel.single(second, alone)[0]
    assert info.accepted[0]
    for name, value in vars(alone).items():
        if value is not None:
            np.testing.assert_allclose(getattr(together, name), value, rtol=1e-6, atol=1e-8)
    assert first.random() == second.random()


@pytest.mark.parametrize("compiled", [True, False])
def test_scalable_metropolis_has_the_moments_of_a_skewed_posterior(compiled):
    rows = rows_of(*logistic(40, seed=2), rest=None if compiled else FunctionLogPrior(OpaquePrior()))
    assert (rows.compiled() is not None) == compiled
    mean, sd = grid_moments(rows)
    x, _ = chain(Scalable(rows, steps=40 if compiled else 10), 4000 if compiled else 3000)
    assert_chain_is_right(x, mean, sd)


def test_bounds_hold_for_every_family():
    rng = np.random.default_rng(5)
    design, y = logistic(30)
    rest = QuadraticLogPrior(0.0, np.zeros(2), -np.eye(2))
    for family, outcome in ((sites.LOGIT, y), (sites.PROBIT, 2 * y - 1), (sites.NORMAL, rng.normal(size=30))):
        rows = SiteRows(design, 0.1, outcome, 1.0, family, rest)
        index, bounds, near = np.arange(30), rows.third_order_bounds(), rows.third_order_bounds(2.0)
        assert (near <= bounds).all()
        for _ in range(50):
            z = rng.standard_t(2, size=2)
            size = np.linalg.norm(z)
            x = rows.expansion_point.mean + rows.expansion_point.factor @ z
            assert (np.abs(rows.residuals(x, index)) <= (near if size <= 2 else bounds) * size**3 + 1e-9).all()
    with pytest.raises(ModelError, match="no bound"):
        SiteRows(design, 0.0, y, 1.0, sites.POISSON, rest).third_order_bounds()
    logit = rows_of(design, y)
    x, new = rng.normal(size=(2, 2))
    drop = np.abs(logit.differences(x, new, np.arange(30)))
    assert (drop <= logit.lipschitz() * np.linalg.norm(x - new) + 1e-12).all()


# -- approximate algorithms ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("independent", [False, True])
def test_control_variates_have_the_posterior_in_both_forms(independent):
    design, y = logistic(400, seed=4)
    for rest, draws in ((None, 2500), (FunctionLogPrior(OpaquePrior()), 600)):
        rows = rows_of(design, y, rest)
        mean, sd = grid_moments(rows)
        x, _ = chain(ControlVariateMetropolis(rows, 60, independent=independent, steps=20), draws)
        assert_chain_is_right(x, mean, sd)


def test_errors_shrink_with_the_size_of_subsets():
    rows, rng = rows_of(*logistic(3000, seed=6)), np.random.default_rng(0)
    points = np.array([rows.expansion_point.sample(1, rng)[0] for _ in range(60)])

    def error(kernel):
        estimated, exact = RowsAlgorithm(kernel).acceptance_pairs(points, np.random.default_rng(1))
        return float(np.abs(estimated - exact).mean())

    for make in (
        lambda m: ControlVariateMetropolis(rows, m),
        lambda m: UniformMetropolis(rows, m),
        lambda m: Informed(rows, m, spread=np.inf, rng=np.random.default_rng(2)),
    ):
        small, large = error(make(20)), error(make(1500))
        assert large < 0.6 * small
    tests = [error(SequentialMetropolis(rows, 50, tolerance=tolerance)) for tolerance in (0.45, 0.001)]
    assert tests[1] <= tests[0]


def test_posteriors_of_uniform_and_informed_subsets_are_as_wide_as_theory_says():
    rows = rows_of(*logistic(4000, seed=7))
    sd = np.sqrt(np.diag(rows.expansion_point.factor @ rows.expansion_point.factor.T))
    rng = np.random.default_rng(0)
    ratios = {}
    for name, options in {
        "uniform": {"spread": np.inf, "swaps": 100},
        "informed": {"spread": 0.3, "swaps": 20},
        "corrected": {"spread": np.inf, "swaps": 20, "correction": "gradient"},
    }.items():
        kernel = Informed(rows, 400, rng=rng, **options)
        x, _ = chain(kernel, 8000)
        ratios[name] = float((x.std(axis=0) / sd).mean()), kernel.inflation
    assert 1.5 < ratios["uniform"][0] < 1.2 * ratios["uniform"][1]  # less than √(1 + N/n): subsets move under θ
    assert abs(ratios["informed"][0] - ratios["informed"][1]) < 0.12
    assert abs(ratios["corrected"][0] - 1) < 0.1


def test_subset_size_follows_the_difficulty_and_swaps_keep_their_books():
    rng = np.random.default_rng(0)
    hard, easy = rows_of(*logistic(100, seed=8, scale=3.0)), rows_of(*logistic(10_000, seed=8))
    assert choose_subset_size(hard, rng)[1] > choose_subset_size(easy, rng)[1]
    kernel = Informed(easy, 200, spread=0.3, rng=rng)
    algorithm = RowsAlgorithm(kernel)
    state = algorithm.start(easy.expansion_point.mean, rng)
    for _ in range(50):
        state, stats = algorithm.step(state, rng, False)
    [subset], [member], [z] = state.population.subset, state.population.member, state.population.z
    assert len(set(subset)) == 200
    assert member.sum() == 200
    assert member[subset].all()
    np.testing.assert_allclose(z, kernel._summaries[subset].mean(axis=0, dtype=float), atol=1e-8)
    assert stats["distinct_rows"] == state.population.seen.sum()
    assert stats["z_norm"] < 0.1 * algorithm.attributes["z_norm_uniform"]


def test_subsets_grow_where_few_rows_hold_the_information():
    rng = np.random.default_rng(0)
    x, rest = rng.normal(size=2000), QuadraticLogPrior(0.0, np.zeros(1), -np.eye(1))
    normal = SiteRows(x[:, None], 0.0, rng.normal(size=2000), 1.0, sites.NORMAL, rest)
    wanted = np.var(2000 * x**2 / (1 + (x**2).sum()))
    assert curvature_variance(normal, rng) == pytest.approx(wanted, rel=1e-6)
    sizes = {}
    for name, intercept in (("even", 0.0), ("rare", -4.0)):
        design = np.c_[np.ones(20_000), 1.5 * rng.normal(size=(20_000, 1))]
        y = (rng.random(20_000) < 1 / (1 + np.exp(-design @ [intercept, 1.0]))).astype(int)
        target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, 1.0))
        with pytest.warns(SamplerWarning, match="is approximate"):
            attributes = pb.steps.InformedSubsampling(correction="gradient").bind(target).attributes
        assert attributes["hessian_error"] < 0.09
        sizes[name] = attributes["subset_size"]
    assert sizes["rare"] > 2 * sizes["even"]


def test_hmc_agrees_with_quadrature():
    rows = rows_of(*logistic(300, seed=9))
    target_mean, sd = grid_moments(rows)
    design, y = rows.design, rows.y.astype(int)
    target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, PRIOR_SD**-2))
    with pytest.warns(SamplerWarning, match="is approximate"):
        idata = pb.sample_mcmc(target, step=pb.steps.SubsampledHMC(subset=60), draws=2500, tune=300, chains=1, **QUIET)
    x = next(iter(group(idata, "posterior").data_vars.values())).values.reshape(2500, 2)
    assert_chain_is_right(x, target_mean, sd)
    assert idata["posterior"].attrs["accuracy"] == "approximate"
    assert (group(idata, "sample_stats")["approximate"] == 1).all()


# -- through sample_mcmc ------------------------------------------------------------------------------------------------


def test_a_step_whose_expansion_is_of_no_use_says_so():
    design, y = logistic(20, seed=8, scale=8.0)
    target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, PRIOR_SD**-2))
    for make in (pb.steps.SubsampledMetropolis, pb.steps.SubsampledHMC):
        with pytest.warns(SamplerWarning) as found:
            make().bind(target)
        messages = [str(warning.message) for warning in found]
        assert any("or a step on all data if the posterior is far from Gaussian" in message for message in messages)
        assert any("is approximate" in message for message in messages)


@pytest.mark.filterwarnings("ignore:.*R-hat")  # a short run
def test_a_run_is_checked_against_exact_acceptance():
    design, y = logistic(2000, seed=10)
    target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, 1.0))
    found = {}
    for estimator in ("control_variates", "uniform"):
        step = pb.steps.SubsampledMetropolis(estimator=estimator, subset=100)
        with pytest.warns(SamplerWarning, match="is approximate"):
            idata = pb.sample_mcmc(target, step=step, draws=100, tune=10, chains=2, **QUIET)
        with pytest.warns(SamplerWarning, match="is approximate"):
            found[estimator] = check_acceptance(target, idata, step=step, states=40, random_seed=0)
    assert found["control_variates"]["mean_absolute_error"] < 0.02
    assert found["uniform"]["mean_absolute_error"] > 0.1
    assert found["uniform"]["mean_absolute_error_se"] < 0.1


def test_every_family_is_found_in_factors_and_wrong_use_is_explained():
    design, y = logistic(200)
    step = pb.steps.ScalableMetropolis()
    for family in (Logit(y), Probit(y), Normal(y, 1.0)):
        target = FactorsTarget(Factors(design, 0.0, family, 0.0, 1.0))
        idata = pb.sample_mcmc(target, step=step, draws=2000, tune=0, chains=1, **QUIET)
        assert idata["posterior"].attrs["accuracy"] == "exact"
    poisson = FactorsTarget(Factors(design, 0.0, Poisson(y), 0.0, 1.0))
    with pytest.raises(ModelError, match="no bound"):
        pb.sample_mcmc(poisson, step=step, **QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)
        pb.sample_mcmc(poisson, step=pb.steps.SubsampledMetropolis(), draws=20, tune=0, chains=1, **QUIET)
    with pytest.raises(ModelError, match="no rows of observations"):
        pb.sample_mcmc(pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x)), step=step, **QUIET)
    target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, 1.0))
    with pytest.raises(ModelError, match="has 200 observations"):
        pb.sample_mcmc(target, step=pb.steps.InformedSubsampling(subset=500), **QUIET)
    for wrong in ({"estimator": "magic"}, {"subset": 1}, {"steps": 0}, {"tolerance": 0.7}):
        with pytest.raises(ModelError, match="expected"):
            pb.steps.SubsampledMetropolis(**wrong)


OUTCOMES = {
    "logit": lambda eta, y: pm.Bernoulli("y", logit_p=eta, observed=y),
    "probit": lambda eta, y: pm.Bernoulli("y", p=pm.math.invprobit(eta), observed=y),
    "poisson": lambda eta, y: pm.Poisson("y", pm.math.exp(eta), observed=2 * y),
    "large numbers": lambda eta, y: pm.Normal("y", eta, 2e6, observed=1e6 * y),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_rows_of_a_model_are_the_sites_of_its_likelihood_whatever_its_prior(name):
    design, y = logistic(300)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", shape=8)  # too many to be given in EP
        beta = pm.Normal("beta", 0, tau[:2])
        OUTCOMES[name](design @ beta, y)
    target = pb.as_target(model)
    design, offset, (family, y, extra) = _sites_of(target, 300)
    point = Gaussian.from_covariance(np.full(10, 0.1), 0.01 * np.eye(10))
    rows = SiteRows(design, offset, y, extra, family, QuadraticLogPrior(0.0, np.zeros(10), -np.eye(10)), point)
    x, new = point.mean, point.mean + 0.05 * np.random.default_rng(1).normal(size=10)
    here, there = target.observations.log_likelihood(np.array([x, new]))
    np.testing.assert_allclose(rows.differences(x, new, np.arange(300)), there - here, atol=1e-13, rtol=1e-8)
    family = _sites_of(pb.with_power(target, 0.5), 300)
    assert (family is None) == (name == "probit")  # a power of Φ is no Φ of other data
    if family is not None:
        half = SiteRows(
            design,
            offset,
            family[2].y,
            family[2].extra,
            family[2].family,
            QuadraticLogPrior(0.0, np.zeros(10), -np.eye(10)),
            point,
        )
        np.testing.assert_allclose(
            half.differences(x, new, np.arange(300)), 0.5 * (there - here), atol=1e-13, rtol=1e-8
        )

"""Power scaling against conjugate posteriors."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.checks.distances import compare
from ppl_backends.checks.moving import Cloud, move_draws, units_after
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.results.inference_data import group

Y = np.array([1.0, 2.0, 4.0])


def conjugate(prior_power=1.0, likelihood_power=1.0):
    """Return the mean and sd of the posterior of a N(0, 1) prior and N(θ, 1) data under powers."""
    precision = prior_power + likelihood_power * len(Y)
    return likelihood_power * Y.sum() / precision, precision**-0.5


@pytest.fixture(scope="module")
def target():
    return pb.FunctionTarget(
        1,
        lambda x: (-0.5 * ((Y - x) ** 2).sum(axis=1), Y.sum() - len(Y) * x),
        lambda x: (-0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi), -x),
        sample_prior=lambda n, rng: rng.standard_normal((n, 1)),
        names=["theta"],
    )


@pytest.fixture(scope="module")
def draws():
    mean, sd = conjugate()
    return {"x": mean + sd * np.random.default_rng(0).standard_normal((4, 1000, 1))}


@pytest.mark.parametrize("method", ["weights", "moves"])
def test_posteriors_under_powers_are_the_conjugate_ones(target, draws, method):
    result = pb.sensitivity(draws, target, method=method, random_seed=1)
    assert (result.sources["source"] == method).all()
    for component in ("prior", "likelihood"):
        for power in (0.8, 1.0, 1.25):
            figures = result.moments.sel(component=component, power=power).isel(quantity=0)
            truth = conjugate(**{f"{component}_power": power})
            for value, error, known in zip(
                (figures["mean"], figures["sd"]), (figures["mean_se"], figures["sd_se"]), truth, strict=True
            ):
                assert abs(value - known) < 4.5 * error
                assert error < 0.03


@pytest.mark.parametrize("seed", range(3))
def test_uneven_weights_are_not_relied_on_for_a_small_pareto_k(seed):
    """The posterior N(10, 1/2) of a N(0, 1) prior and one N(θ, 1) observation of 20: log weights have an sd of 1.4."""
    target = pb.FunctionTarget(
        1, lambda x: (-0.5 * (20 - x[:, 0]) ** 2, 20 - x), lambda x: (-0.5 * x[:, 0] ** 2, -x), names=["theta"]
    )
    posterior = {"x": 10 + 0.5**0.5 * np.random.default_rng(seed).standard_normal((2, 500, 1))}
    result = pb.sensitivity(posterior, target, powers=(0.8, 1.25), random_seed=1)
    assert (result.sources["source"] == "moves").all()
    for power in (0.8, 1.25):
        figures = result.moments.sel(component="prior", power=power).isel(quantity=0)
        assert abs(figures["mean"] - 20 / (1 + power)) < 4.5 * figures["mean_se"]
        assert abs(figures["sd"] - (1 + power) ** -0.5) < 4.5 * figures["sd_se"]


def test_weights_with_a_heavy_tail_are_not_exact(target, draws):
    few = {"x": draws["x"][:, :100]}
    with pytest.warns(SamplerWarning, match="Pareto k of the weights of the power 0.05 of the likelihood is"):
        result = pb.sensitivity(few, target, powers=(0.05,), method="weights", random_seed=1)
    accuracy = {
        name: group(result.posterior(name, 0.05, random_seed=1), "posterior").attrs["accuracy"]
        for name in ("prior", "likelihood")
    }
    assert accuracy == {"prior": "exact", "likelihood": "approximate"}
    with pytest.raises(ModelError, match="expected one that is not 1"):
        pb.sensitivity(draws, target, powers=(1.0,))


def ratio_of_error_to_its_bar(replicates=12, dim=40, ancestors=False):
    """Return the root mean squares of (estimate − truth) / error bar, of means and of sds of moved draws."""
    y, found = np.linspace(-2, 2, dim), []
    target = pb.FunctionTarget(
        dim, lambda x: (-((y - x) ** 2).sum(axis=1) / 2, y - x), lambda x: (-(x**2).sum(axis=1) / 2, -x)
    )

    def change(x, gradient):
        return -((y - x) ** 2).sum(axis=1) / 8, (y - x) / 4

    for seed in range(replicates):
        rng = np.random.default_rng(seed)
        x = y / 2 + rng.standard_normal((1000, dim)) / 2**0.5
        cloud = Cloud(x, np.arange(1000) // 10, 100)
        run = move_draws(target, change, cloud, rng)
        unit = run.lineage.ancestor if ancestors else units_after(run, 100)
        figures = compare((run.x, np.full(1000, 1e-3), unit), {}, 100, 100, rng)
        off = figures.mean[None] - 1.25 * y / 2.25, figures.sd[None] - 2.25**-0.5
        found.append([off[0] / figures.mean_se[None], off[1] / figures.sd_se[None]])
    return np.sqrt((np.array(found) ** 2).mean(axis=(0, 2)))


def test_error_bars_of_moved_draws_are_their_errors():
    """There are 480 figures: the sd of the ratio is 0.035, and 0.01 of it is the noise of the bars."""
    of_mean, of_sd = ratio_of_error_to_its_bar()
    assert 0.86 < of_mean < 1.2
    assert 0.86 < of_sd < 1.2


def test_error_bars_by_ancestors_would_be_far_too_wide():
    of_mean, _ = ratio_of_error_to_its_bar(replicates=3, ancestors=True)
    assert of_mean < 0.75


def test_the_table_says_that_prior_and_data_disagree(target, draws):
    result = pb.sensitivity(draws, target, random_seed=1)
    assert result["diagnosis"].iloc[0] == "potential prior-data conflict"
    assert {"prior", "prior_se", "likelihood", "likelihood_se"} <= set(result.table.columns)
    again = pb.sensitivity(draws, target, method="moves", random_seed=1)
    for name in ("prior", "likelihood"):
        error = np.hypot(result[f"{name}_se"], again[f"{name}_se"])
        assert (abs(result[name] - again[name]) < 4.5 * error).all()
    posterior = result.posterior("prior", 0.8, random_seed=1)["posterior"]
    assert posterior.sizes["draw"] == 2000
    with pytest.raises(ModelError, match="expected one of"):
        result.posterior("prior", 0.5)


def test_a_distance_of_samples_of_one_distribution_is_noise():
    rng = np.random.default_rng(0)
    unit = np.arange(2000) // 10
    one, other = (
        (rng.standard_normal((2000, 1)), np.full(2000, 1 / 2000), unit),
        (rng.standard_normal((2000, 1)), np.full(2000, 1 / 2000), unit),
    )
    shifted = (other[0] + 0.5, *other[1:])
    overflown = (np.where(unit[:, None] == 3, np.inf, other[0]), *other[1:])
    with np.errstate(invalid="ignore"):
        found = compare(one, {"same": other, "shifted": shifted, "overflown": overflown}, 200, 100, rng)
    assert np.isnan(found.distance["overflown"][0])
    assert found.distance["same"][0] < 4 * found.distance_se["same"][0]
    assert found.distance["shifted"][0] > 5 * found.distance_se["shifted"][0]


def test_priors_of_single_variables_have_no_jacobian():
    import pymc as pm
    from scipy import stats

    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5.0), pm.HalfNormal("tau", 2.0)
        pm.Normal("y", mu, tau, observed=Y)
    target = pb.as_target(model)
    x = target.initial_points(4, np.random.default_rng(0))
    at = target.constrain(x)
    known = np.stack([stats.norm.logpdf(at["mu"], 0, 5), stats.halfnorm.logpdf(at["tau"], 0, 2)], axis=1)
    assert target.prior_terms.names == ("mu", "tau")
    np.testing.assert_allclose(target.prior_terms.values(x), known, atol=1e-6)
    value, slope = target.prior_terms.sum(x, np.array([2.0, 3.0]), True)
    np.testing.assert_allclose(value, known @ [2, 3], atol=1e-6)
    np.testing.assert_allclose(slope[:, 0], -2 * at["mu"] / 25, atol=1e-6)
    np.testing.assert_allclose(slope[:, 1], -3 * at["tau"] ** 2 / 4, atol=1e-6)
    idata = pb.sample_smc(target, draws=200, chains=2, random_seed=1, progressbar=False)
    result = pb.sensitivity(idata, model, random_seed=1)
    assert {"prior[mu]", "prior[tau]"} <= set(result.table.columns)
    with pytest.raises(ModelError, match="prior_variables: 'nu'"):
        pb.sensitivity(idata, model, prior_variables=["nu"])
    with pytest.raises(ModelError, match="var_names: 'nu'"):
        pb.sensitivity(idata, model, var_names="nu")
    for wrong in (("prior", 2.0, "mu"), ("prior", 0.8, "nu")):
        with pytest.raises(ModelError, match="expected one of"):
            result.values(*wrong)
    with pytest.raises(ModelError, match="draws=0"):
        result.posterior("prior", 0.8, draws=0)


@pytest.mark.slow
@pytest.mark.stan
def test_priors_of_a_stan_program_by_variable():
    from scipy import stats

    code = """data { int N; vector[N] y; } parameters { real mu; real<lower=0> tau; }
    model { mu ~ normal(0, 5); tau ~ cauchy(0, 2); y ~ normal(mu, tau); }"""
    target = pb.as_target(code, {"N": 3, "y": Y.tolist()})
    x = target.initial_points(4, np.random.default_rng(0))
    at = target.parameters(x)
    known = np.stack([stats.norm.logpdf(at["mu"], 0, 5), stats.cauchy.logpdf(at["tau"], 0, 2)], axis=1)
    assert target.prior_terms.names == ("mu", "tau")
    np.testing.assert_allclose(target.prior_terms.values(x), known, atol=1e-9)


@pytest.mark.slow
@pytest.mark.stan
@pytest.mark.filterwarnings("error:invalid value:RuntimeWarning")
def test_priors_by_variable_of_a_stan_program_that_rejects_points():
    from scipy import stats

    code = """data { int N; vector[N] y; } parameters { real a; real b; }
    model { if (a + b > 1) reject("large"); a ~ normal(0, 5); b ~ cauchy(0, 2); y ~ normal(a, 1); }"""
    target = pb.as_target(code, {"N": 3, "y": Y.tolist()})
    x = np.array([[-0.5, 0.2], [1.5, 1.0]])
    known = [[stats.norm.logpdf(-0.5, 0, 5), stats.cauchy.logpdf(0.2, 0, 2)], [-np.inf, -np.inf]]
    assert target.prior_terms.names == ("a", "b")
    np.testing.assert_allclose(target.prior_terms.values(x), known, atol=1e-9)

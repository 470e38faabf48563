"""Uses of a kept ladder: other powers, other priors, the integral along the path."""

import arviz as az
import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.results.inference_data import group
from tests.toys import conjugate_gaussian, gamma_poisson

COUNTS = np.array([3, 0, 1, 2])
OPTIONS = {"draws": 1000, "chains": 4, "random_seed": 2, "progressbar": False, "keep_ladder": True}


@pytest.fixture(scope="module")
def idata():
    return pb.sample_smc(gamma_poisson(COUNTS).target, **OPTIONS)


def exact_evidence(power, a=1.5, b=0.5):
    shape, rate = a + power * COUNTS.sum(), b + power * len(COUNTS)
    return a * np.log(b) - gammaln(a) + gammaln(shape) - shape * np.log(rate) - power * gammaln(COUNTS + 1).sum()


def test_the_ladder_is_kept_from_the_prior_to_the_posterior_and_saved(idata, tmp_path):
    ladder = group(idata, "ladder")
    assert ladder["x"].dims == ("chain", "stage", "particle", "unconstrained_parameter")
    assert (ladder["beta"].isel(stage=0) == 0).all()
    assert float(ladder["beta"].max()) == 1.0
    assert ladder.sizes["stage"] == group(idata, "sample_stats").sizes["stage"] + 1
    idata.to_netcdf(str(tmp_path / "result.nc"))
    again = group(az.from_netcdf(str(tmp_path / "result.nc")), "ladder")
    np.testing.assert_array_equal(again["increment"], ladder["increment"])


@pytest.mark.parametrize("power", [0.0, 0.1, 0.5, 1.0, 1.2])
def test_another_power_has_the_closed_form(idata, power):
    new = pb.reweight(idata, power=power)
    assert new.pareto_k < 0.7
    error = group(idata, "posterior").attrs["log_evidence_se"]
    assert abs(new.log_evidence - exact_evidence(power)) < 5 * np.hypot(error, new.ess**-0.5)
    shape, rate = 1.5 + power * COUNTS.sum(), 0.5 + power * len(COUNTS)
    # Lineages correlate the particles: allow for half of them.
    assert abs(new.mean(np.exp(new.x))[0] - shape / rate) < 5 * np.sqrt(2 * shape / new.ess) / rate
    drawn = np.exp(new.sample(4000, np.random.default_rng(0)))
    assert drawn.mean() == pytest.approx(shape / rate, abs=5 * np.sqrt(shape / 1000) / rate)


def test_another_prior_has_the_closed_form(idata):
    """Gamma(3, 1) in place of Gamma(1.5, 0.5)."""
    known = gamma_poisson(COUNTS).target

    def log_prior(x):
        return (3.0 * x - np.exp(x))[:, 0] - gammaln(3.0), 3.0 - np.exp(x)

    other = pb.FunctionTarget(1, known._log_likelihood, log_prior)
    new = pb.reweight(idata, model=other)
    assert abs(new.log_evidence - exact_evidence(1.0, a=3.0, b=1.0)) < 0.1
    assert new.mean(np.exp(new.x))[0] == pytest.approx(9 / 5, abs=0.1)
    half = pb.reweight(idata, model=other, power=0.5)
    assert abs(half.log_evidence - exact_evidence(0.5, a=3.0, b=1.0)) < 0.1


def test_a_prior_far_away_is_not_relied_on(idata):
    far = pb.FunctionTarget(1, lambda x: (-0.5 * (x[:, 0] - 30) ** 2 / 0.01, -(x - 30) / 0.01))
    with pytest.warns(SamplerWarning, match="Pareto k"):
        pb.reweight(idata, model=far)


def test_the_integral_along_the_path_is_the_evidence(idata):
    curve = pb.thermodynamic_integration(idata)
    np.testing.assert_allclose(
        curve["log_evidence"].isel(stage=-1), group(idata, "sample_stats")["log_evidence_path_sampling"], rtol=1e-10
    )
    beta, total = curve["beta"].values, curve["log_evidence"].values
    error = 2 * group(idata, "posterior").attrs["log_evidence_tempering_se"]  # of one chain of four
    assert (np.abs(total - np.vectorize(exact_evidence)(beta)) < 5 * error).all()
    assert (np.diff(curve["increment_mean"].mean("chain")) > 0).all()  # the mean log likelihood grows with its power


def test_weighted_points_outside_of_the_support_count_as_zero():
    def cut(x):
        return np.where(x[:, 0] > -1, 0.0, -np.inf), 0 * x

    def prior(x):
        return -0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi), -x

    target = pb.FunctionTarget(1, cut, prior, sample_prior=lambda n, rng: rng.standard_normal((n, 1)))
    idata = pb.sample_smc(target, **OPTIONS | {"draws": 200})
    stats = group(idata, "sample_stats")
    assert stats["n_moves"].max() == 0
    curve = pb.thermodynamic_integration(idata)["log_evidence"].isel(stage=-1)
    np.testing.assert_allclose(curve, stats["log_evidence_single_run"], rtol=1e-10)


def test_a_run_without_its_ladder_says_how_to_keep_it():
    idata = pb.sample_smc(gamma_poisson().target, draws=200, chains=2, random_seed=1, progressbar=False)
    with pytest.raises(ModelError, match="keep_ladder=True"):
        pb.reweight(idata, power=0.5)
    with pytest.raises(ModelError, match="power="):
        pb.reweight(idata)


def test_a_power_needs_a_run_from_the_prior():
    known = conjugate_gaussian()
    q = pb.GaussianApproximation(known.mean + 0.5 * known.sd, np.diag((1.5 * known.sd) ** 2))
    idata = pb.sample_smc(known.target, initial=q, **OPTIONS)
    with pytest.raises(ModelError, match="from the prior"):
        pb.reweight(idata, power=0.5)
    new = pb.reweight(idata, model=known.target)
    assert abs(new.log_evidence - known.log_evidence) < 0.1


def test_one_importance_step_keeps_its_weights():
    known = conjugate_gaussian()
    exact = pb.fit_laplace(known.target)
    idata = pb.sample_smc(known.target, initial=exact, **OPTIONS)
    assert logsumexp(pb.reweight(idata, model=known.target).log_weight) == pytest.approx(0.0, abs=1e-9)
    assert pb.reweight(idata, model=known.target).log_evidence == pytest.approx(known.log_evidence, abs=1e-5)

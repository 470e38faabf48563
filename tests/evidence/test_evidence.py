"""The evidence from draws: known answers, error bars, verdicts, and inputs that are refused."""

import warnings

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats
from scipy.special import gammaln

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.marginal_likelihood.draws import Draws
from ppl_backends.marginal_likelihood.fitted_ratio import FittedRatio
from ppl_backends.marginal_likelihood.proposals import FITS
from ppl_backends.results.inference_data import as_inference_data
from ppl_backends.targets import FunctionTarget
from tests.statistics import normal_bound
from tests.toys import bimodal, conjugate_gaussian, funnel, gamma_poisson

METHODS = ["bridge", "warp3", "importance", "smc", "auto"]


def gaussian_draws(known, draws, rng, chains=4):
    """Return exact draws of the posterior of ``conjugate_gaussian``."""
    factor = np.linalg.cholesky(np.linalg.inv(-known.target.hessian(known.mean[None])[0]))
    return known.mean + rng.standard_normal((chains, draws, len(known.mean))) @ factor.T


def autoregressive(known, draws, rng, correlation, chains=4):
    """Return draws whose whitened coordinates are autoregressive: a thinned random walk, say."""
    factor = np.linalg.cholesky(np.linalg.inv(-known.target.hessian(known.mean[None])[0]))
    noise = rng.standard_normal((draws, chains, len(known.mean)))
    z = np.empty_like(noise)
    z[0] = noise[0]
    for t in range(1, draws):
        z[t] = correlation * z[t - 1] + np.sqrt(1 - correlation**2) * noise[t]
    return known.mean + np.swapaxes(z, 0, 1) @ factor.T


def skewed_draws(draws, rng, chains=4):
    """Return exact draws of the posterior of ``gamma_poisson``."""
    return np.log(rng.gamma(1.5 + 6, 1 / 4.5, size=(chains, draws, 1)))


def quietly(*args, **options):
    """Return an evidence, whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)
        return pb.evidence(*args, **options)


def is_right(found, truth):
    return abs(found.log_evidence - truth) < normal_bound() * found.log_evidence_se + 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_evidence_of_a_gaussian(method):
    known = conjugate_gaussian(4)
    found = pb.evidence(
        {"x": gaussian_draws(known, 500, np.random.default_rng(0))}, known.target, method=method, random_seed=1
    )
    assert found.trusted
    assert is_right(found, known.log_evidence)
    assert found.log_evidence_se < (0.1 if method == "smc" else 0.02)
    assert found.method == ("importance" if method == "auto" else method)
    assert found.log_evidence_df > 4


@pytest.mark.parametrize("proposal", ["gaussian", "student", "mixture", "hierarchical"])
def test_every_proposal_gives_the_evidence_of_skewed_counts(proposal):
    known = gamma_poisson()
    draws = {"x": skewed_draws(500, np.random.default_rng(0))}
    found = pb.evidence(draws, known.target, method="bridge", proposal=proposal, random_seed=1)
    assert found.trusted
    assert found.proposal == proposal
    assert is_right(found, known.log_evidence)
    assert found.log_evidence_se < 0.02


def test_fifty_coefficients():
    known = conjugate_gaussian(50)
    found = pb.evidence(
        {"x": gaussian_draws(known, 1000, np.random.default_rng(2))}, known.target, method="bridge", random_seed=1
    )
    assert found.trusted
    assert is_right(found, known.log_evidence)
    assert found.log_evidence_se < 0.05


def test_student_tails():
    dim, df = 5, 3.0
    constant = gammaln((df + dim) / 2) - gammaln(df / 2) - dim / 2 * np.log(df * np.pi)

    def density(x):
        square = (x**2).sum(axis=1)
        return constant - (df + dim) / 2 * np.log1p(square / df), -(df + dim) * x / (df + square)[:, None]

    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 1000, dim)) / np.sqrt(rng.chisquare(df, (4, 1000, 1)) / df)
    found = pb.evidence({"x": x}, FunctionTarget(dim, density), method="bridge", random_seed=1)
    assert found.trusted
    assert found.proposal == "student"
    assert is_right(found, 0.0)
    assert found.log_evidence_se < 0.02


def test_a_funnel_takes_a_hierarchy():
    rng = np.random.default_rng(4)
    v = 3 * rng.standard_normal((4, 1000, 1))
    x = np.concatenate([v, np.exp(v / 2) * rng.standard_normal((4, 1000, 5))], axis=2)
    found = pb.evidence({"x": x}, funnel(5), random_seed=1)
    assert found.proposal == "hierarchical"
    assert found.trusted
    assert is_right(found, 0.0)
    assert found.log_evidence_se < 0.02


@pytest.mark.slow
def test_smc_takes_over_where_bridges_fail():
    """Forty coordinates with two modes each: no density fitted overlaps with 2⁴⁰ modes."""
    dim, rng = 40, np.random.default_rng(17)

    def density(x):
        right, left = -2.0 * (x - 1.5) ** 2, -2.0 * (x + 1.5) ** 2
        value = np.logaddexp(right, left)
        share = np.exp(right - value)
        slope = -4.0 * (share * (x - 1.5) + (1 - share) * (x + 1.5))
        return (value - 0.5 * np.log(2 * np.pi)).sum(axis=1), slope

    x = 1.5 * rng.choice([-1, 1], size=(4, 1000, dim)) + 0.5 * rng.standard_normal((4, 1000, dim))
    target = FunctionTarget(dim, density)
    assert not quietly({"x": x}, target, method="bridge", random_seed=1).trusted
    found = quietly({"x": x}, target, random_seed=1)
    assert found.method == "smc"
    assert "SMC takes over" in found.choice
    assert is_right(found, 0.0)


def test_two_modes_that_every_chain_visits():
    known, rng = bimodal(separation=4.0), np.random.default_rng(5)
    centres, spread, share = mode_figures(known)
    where = rng.random((4, 1000)) < share
    x = np.where(where[..., None], centres[0], centres[1]) + spread * rng.standard_normal((4, 1000, 2))
    found = pb.evidence({"x": x}, known.target, method="bridge", random_seed=1)
    assert found.proposal == "mixture"
    assert found.trusted
    assert is_right(found, known.log_evidence)


def mode_figures(known):
    """Return centres and sd of the two modes of ``bimodal``, and the mass of the first."""
    shrink = 9 / (9 + 0.49)
    return (4 * shrink, -4 * shrink), 0.7 * np.sqrt(shrink), 0.5 * (1 + known.mean[0] / (4 * shrink))


def test_a_mode_with_too_few_points_for_a_covariance():
    known, rng = conjugate_gaussian(10), np.random.default_rng(33)
    x = gaussian_draws(known, 500, rng)
    x[0, :250] = 1000.0 + x[0, np.arange(250) % 5]  # five points, repeated
    with pytest.warns(SamplerWarning):
        found = pb.evidence({"x": x}, known.target, proposal="mixture", random_seed=1)
    assert not found.trusted


def test_draws_of_the_prior_find_a_mode_without_draws():
    known, rng = bimodal(separation=4.0), np.random.default_rng(7)
    centres, spread, share = mode_figures(known)
    x = centres[0] + spread * rng.standard_normal((4, 1000, 2))
    with pytest.warns(SamplerWarning, match="draws of the prior find .* in a region without draws"):
        found = pb.evidence({"x": x}, known.target, method="bridge", random_seed=1)
    assert not found.trusted
    assert found.log_evidence_se < 0.01  # the bridge knows nothing of it
    assert found.diagnostics["missed_share"] == pytest.approx((1 - share) / share, rel=0.7)


@pytest.mark.parametrize(("centre", "scale", "dim"), [(0.0, 1.0, 2), (-20.0, 1.0, 30), (3.0, 0.01, 5)])
def test_climbs_find_a_mode_without_draws_or_prior(centre, scale, dim):
    """Half of the mass is six standard deviations from all draws; the scale and the place are not those of a prior."""
    away = np.r_[3.0, np.zeros(dim - 1)]
    constant = np.log(0.5) - 0.5 * dim * np.log(2 * np.pi) - dim * np.log(scale)

    def density(x):
        z = (x - centre) / scale
        logs = np.stack([constant - 0.5 * ((z - side * away) ** 2).sum(axis=1) for side in (-1, 1)])
        value = np.logaddexp(*logs)
        right = np.exp(logs[1] - value)[:, None]
        return value, (away * (2 * right - 1) - z) / scale

    z = np.random.default_rng(31).standard_normal((4, 1000, dim)) - away
    with pytest.warns(SamplerWarning, match="a mode with about [45]. % of the posterior"):
        found = pb.evidence({"x": centre + scale * z}, FunctionTarget(dim, density), random_seed=1)
    assert not found.trusted
    signs = np.random.default_rng(32).choice([0.0, 2.0], (4, 1000, 1))
    assert quietly({"x": centre + scale * (z + signs * away)}, FunctionTarget(dim, density), random_seed=1).trusted


@pytest.mark.parametrize("method", METHODS)
def test_chains_in_different_modes_are_never_trusted(method):
    known, rng = bimodal(separation=4.0), np.random.default_rng(6)
    centres, spread, _ = mode_figures(known)
    x = np.array([centres[0], centres[0], centres[1], centres[1]])[:, None, None] + spread * rng.standard_normal(
        (4, 500, 2)
    )
    with pytest.warns(SamplerWarning, match="the chains disagree: R-hat"):
        found = pb.evidence({"x": x}, known.target, method=method, random_seed=1)
    assert not found.trusted


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.9, -0.5])
def test_intervals_cover_whatever_the_autocorrelation(correlation):
    """Over 60 sets nominal 95 % intervals hold at least 86.5 %, three standard errors less."""
    known, inside, ratio = conjugate_gaussian(3), [], []
    for seed in range(60):
        x = autoregressive(known, 1000, np.random.default_rng([7, seed]), correlation)
        found = quietly({"x": x}, known.target, method="bridge", proposal="gaussian", random_seed=seed)
        inside.append(found.interval()[0] < known.log_evidence < found.interval()[1])
        ratio.append((found.log_evidence - known.log_evidence) / found.log_evidence_se)
    assert np.mean(inside) >= 0.865
    assert 0.65 < np.std(ratio) < 1.35


def test_a_slower_chain_has_a_larger_error():
    known = gamma_poisson()
    rng = np.random.default_rng(8)
    errors = []
    for correlation in (0.0, 0.95):
        z = np.empty((1000, 4))
        z[0] = rng.standard_normal(4)
        for t in range(1, 1000):
            z[t] = correlation * z[t - 1] + np.sqrt(1 - correlation**2) * rng.standard_normal(4)
        x = np.log(stats.gamma.ppf(stats.norm.cdf(z.T), 7.5, scale=1 / 4.5))[..., None]
        errors.append(
            quietly({"x": x}, known.target, method="bridge", proposal="gaussian", random_seed=1).log_evidence_se
        )
    assert errors[1] > 1.5 * errors[0]


def test_few_effective_draws_are_not_trusted():
    known = conjugate_gaussian(3)
    x = autoregressive(known, 200, np.random.default_rng(9), 0.98)
    found = quietly({"x": x}, known.target, random_seed=1)
    assert not found.trusted
    assert any("below 100: sample more draws" in reason or "disagree" in reason for reason in found.reasons)


def with_stats(x, **columns):
    """Return InferenceData with a posterior and sample_stats."""
    posterior = xr.Dataset({"x": (("chain", "draw", "x_dim_0"), x)})
    stats_group = xr.Dataset({name: (("chain", "draw"), value) for name, value in columns.items()})
    return as_inference_data({"posterior": posterior, "sample_stats": stats_group})


def test_divergences_are_counted_and_many_are_held_against_it():
    known = conjugate_gaussian(3)
    x = gaussian_draws(known, 500, np.random.default_rng(10))
    diverging = np.zeros((4, 500), dtype=bool)
    diverging[0, :3] = True
    found = pb.evidence(with_stats(x, diverging=diverging), known.target, random_seed=1)
    assert found.trusted
    assert found.diagnostics["n_divergent"] == 3
    diverging[1, :40] = True
    with pytest.warns(SamplerWarning, match="43 of 2000 draws end a divergent trajectory"):
        assert not pb.evidence(with_stats(x, diverging=diverging), known.target, random_seed=1).trusted


def test_draws_of_other_data_are_recognised_by_the_log_densities_of_the_sampler():
    known, other = conjugate_gaussian(3), conjugate_gaussian(3, seed=1)
    x = gaussian_draws(known, 500, np.random.default_rng(11))
    lp = known.target.log_density(x.reshape(-1, 3)).reshape(4, 500)
    assert pb.evidence(with_stats(x, lp=lp + 7.0), known.target, random_seed=1).trusted  # constants that Stan drops
    with pytest.warns(SamplerWarning, match="may be of another model or other data"):
        pb.evidence(with_stats(x, lp=lp), other.target, random_seed=1)


def test_draws_of_another_density_are_recognised_by_the_proposal_alone():
    known = conjugate_gaussian(3)
    x = gaussian_draws(known, 1000, np.random.default_rng(12))
    wide = known.mean + 1.5 * (x - known.mean)
    found = quietly({"x": wide}, known.target, method="bridge", random_seed=1)
    assert not found.trusted
    assert any("do not follow this density" in reason for reason in found.reasons)


def test_plain_draws_of_another_density_are_recognised_by_moves():
    """Here a bridge is off by 0.14 and 0.69, and weights of the fitted density have too heavy a tail to show it."""
    rng = np.random.default_rng(17)
    factor = np.linalg.cholesky([[1.0, 0.5], [0.5, 1.0]])
    target = FunctionTarget(
        2, lambda x: (-0.5 * (np.linalg.solve(factor, x.T) ** 2).sum(axis=0), -_solve_twice(factor, x))
    )
    right = rng.standard_normal((4, 1000, 2)) @ factor.T
    half = np.where(right[..., :1] > 0, right, -right)
    without_correlation = rng.standard_normal((4, 1000, 2))
    for x, wrong in ((right, False), (half, True), (without_correlation, True)):
        found = quietly({"x": x}, target, method="bridge", random_seed=1)
        assert any("raise the log density of the draws" in reason for reason in found.reasons) == wrong
        assert (found.diagnostics["drift"] > 4) == wrong
        assert is_right(found, np.log(2 * np.pi) + 0.5 * np.log(0.75)) != wrong


def _solve_twice(factor, x):
    return np.linalg.solve(factor.T, np.linalg.solve(factor, x.T)).T


def test_shapes_that_mislead():
    known = conjugate_gaussian(3)
    x = gaussian_draws(known, 100, np.random.default_rng(18))
    plain = pb.evidence({"x": x}, known.target, method="bridge", random_seed=1)
    posterior = xr.Dataset({"x": (("chain", "draw", "x_dim_0"), x)})
    for draws in (posterior, as_inference_data({"posterior": posterior.transpose("draw", "chain", ...)})):
        assert pb.evidence(draws, known.target, method="bridge", random_seed=1) == plain
    one = as_inference_data({"posterior": posterior.isel(chain=0)})
    with pytest.raises(ModelError, match="no dimension chain: expected chain and draw"):
        pb.evidence(one, known.target)
    with pytest.warns(SamplerWarning, match="1 of 4 chains repeat the draws of another"):
        pb.evidence({"x": x[[0, 1, 2, 0]]}, known.target, method="bridge", random_seed=1)
    mine = pb.sample_importance(known.target, draws=200, random_seed=1, progressbar=False)
    with pytest.raises(ModelError, match="missing"):  # of as many coordinates, with other names
        pb.evidence(mine, gamma_model())


def gamma_model():
    """Return a model of three coordinates."""
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        pm.Gamma("rate", 2, 1, shape=3)
    return model


def half_line(x):
    """Return an exponential variable, of density zero below zero; its log is no coordinate here."""
    return np.where(x[:, 0] > 0, -x[:, 0], -np.inf), -np.ones_like(x)


def test_draws_outside_the_support():
    target, rng = FunctionTarget(1, half_line), np.random.default_rng(13)
    x = rng.exponential(size=(4, 500, 1))
    x[0, 7] = -1.0
    found = quietly({"x": x}, target, method="bridge", random_seed=1)
    assert found.diagnostics["n_repaired"] == 1
    x[:, ::20] = -1.0
    with pytest.warns(SamplerWarning, match="not finite at 101 of 2000 draws"):
        pb.evidence({"x": x}, target, method="bridge", random_seed=1)
    with pytest.raises(ModelError, match="not finite at 2000 of 2000 draws"):
        pb.evidence({"x": -(x**2) - 1}, target)


def test_a_draw_that_is_nan_is_not_trusted():
    """A draw beyond the support may be rounding; a draw that is NaN is no draw."""
    target = FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(axis=1), -x))
    x = np.random.default_rng(13).standard_normal((4, 500, 2))
    x[0, 7, 1] = np.nan
    with pytest.warns(SamplerWarning, match="1 of 2000 draws are NaN, which no sampler returns"):
        found = pb.evidence({"x": x}, target, random_seed=1)
    assert not found.trusted
    assert abs(found.log_evidence - np.log(2 * np.pi)) < 0.01


def test_a_density_that_is_nan_among_the_draws():
    def density(x):
        value = -0.5 * (x**2).sum(axis=1)
        return np.where(x[:, 0] > 1.5, np.nan, value), -x

    rng = np.random.default_rng(14)
    x = rng.standard_normal((4, 600, 2))
    x[..., 0] = np.where(x[..., 0] > 1.5, -x[..., 0], x[..., 0])
    found = quietly({"x": x}, FunctionTarget(2, density), method="bridge", random_seed=1)
    assert not found.trusted
    assert any("NaN or +inf" in reason for reason in found.reasons)


def test_what_cannot_be_used_is_refused():
    known = conjugate_gaussian(3)
    x = gaussian_draws(known, 100, np.random.default_rng(15))
    one_chain, most = x.copy(), x.copy()
    one_chain[2], most[:, 20:, 1] = np.nan, np.nan
    for source, said in (
        ({"x": one_chain}, "not finite at any draw of chain 2"),
        ({"x": most}, r"at 320 of 400 draws; x\[1\] is NaN"),
        ({"x": np.zeros((4, 100, 3))}, "do not vary"),
        ({"x": x[:, :20]}, "20 draws a chain: expected at least 40"),
        ({"x": x[..., :2]}, "3"),
        ({"x": x, "y": x[:2]}, "chains and draws"),
        ([1, 2], "expected InferenceData, a CmdStanMCMC, or a dict"),
        (as_inference_data({"prior": xr.Dataset({"x": ("i", [1.0])})}), "no group posterior"),
    ):
        with pytest.raises(ModelError, match=said):
            pb.evidence(source, known.target)
    with pytest.raises(ModelError, match="method='magic'"):
        pb.evidence({"x": x}, known.target, method="magic")
    with pytest.raises(ModelError, match="this method takes 'gaussian' or 'student'"):
        pb.evidence({"x": x}, known.target, method="warp3", proposal="mixture")
    with pm.Model() as model:
        pm.Normal("level")
    with pytest.raises(ModelError, match=r"values of 'level' are of type .*: expected numbers"):
        pb.evidence({"level": np.full((4, 100), "high")}, model)


def test_it_reads_well_and_repeats():
    known = conjugate_gaussian(3)
    draws = {"x": gaussian_draws(known, 200, np.random.default_rng(16))}
    one, two = (pb.evidence(draws, known.target, method="bridge", random_seed=3) for _ in range(2))
    assert one == two
    assert repr(one).startswith(f"log evidence {known.log_evidence:.1f}"[:16])
    assert "by bridge, trusted" in repr(one)
    assert one.interval()[0] < one.log_evidence < one.interval()[1]


def test_our_own_results_serve():
    known = conjugate_gaussian(3)
    idata = pb.sample_smc(known.target, draws=1000, chains=3, random_seed=1, progressbar=False)
    found = pb.evidence(idata, known.target, method="bridge", random_seed=1)
    assert found.trusted
    assert is_right(found, known.log_evidence)
    sampled = pb.sample_mcmc(known.target, draws=500, tune=300, chains=4, random_seed=1, progressbar=False)
    assert is_right(pb.evidence(sampled, known.target, random_seed=1), known.log_evidence)


def test_a_chain_that_never_moved_is_flagged():
    known = conjugate_gaussian(4)
    factor = np.linalg.cholesky(np.linalg.inv(-known.target.hessian(known.mean[None])[0]))
    x = known.mean + np.random.default_rng(0).standard_normal((4, 500, 4)) @ factor.T
    x[2] = known.mean + 30 * factor.sum(axis=1)
    with pytest.warns(SamplerWarning, match="not trusted|cannot be trusted|chains disagree"):
        found = pb.evidence({"x": x}, known.target, method="bridge", random_seed=1)
    assert not found.trusted
    assert any("chains disagree" in reason for reason in found.reasons)
    assert "large_energy_errors" not in found.diagnostics


def bent_tail(kept, rng, width=0.2, at=2.5):
    """u has Gumbel's distribution; v given u is N(m(u), width²), with m zero up to ``at`` and a slope of one from there.

    Of the draws beyond ``at``, 8 % of the posterior, only a share is ``kept``.
    """

    def density(x):
        u, v = x.T
        residual = (v - np.logaddexp(0, 4 * (u - at)) / 4) / width
        slope = np.exp(-u) - 1 + residual / width / (1 + np.exp(-4 * (u - at)))
        value = -u - np.exp(-u) - 0.5 * residual**2 - np.log(width * np.sqrt(2 * np.pi))
        return value, np.column_stack([slope, -residual / width])

    u = -np.log(rng.exponential(size=(4, 2000)))
    few = (u < at) | (rng.random(u.shape) < kept)
    u = np.stack([row[chosen][:1000] for row, chosen in zip(u, few, strict=True)])
    v = np.logaddexp(0, 4 * (u - at)) / 4 + width * rng.standard_normal(u.shape)
    return FunctionTarget(2, density), np.stack([u, v], axis=2)


@pytest.mark.parametrize("kept", [1.0, 0.6])
def test_draws_with_too_little_of_a_tail_that_the_proposal_does_not_cover(kept):
    """Without moves the mean of these errors is -0.023 for the second, with standard errors of 0.005."""
    errors, sizes = [], []
    for seed in range(4):
        target, x = bent_tail(kept, np.random.default_rng(seed))
        found = quietly({"x": x}, target, random_seed=seed)
        assert found.trusted or kept < 1.0
        assert found.diagnostics["uncovered"] > 0.01
        errors.append(found.log_evidence)
        sizes.append(found.log_evidence_se)
    assert np.abs(np.mean(errors)) < 3 * np.linalg.norm(sizes) / len(sizes)
    assert max(sizes) < 0.02


def test_the_error_of_a_fit_in_many_coordinates_leaves_nothing_uncovered():
    known, rng = conjugate_gaussian(50), np.random.default_rng(3)
    x = gaussian_draws(known, 1000, rng)
    draws = Draws(x, known.target.log_density(x.reshape(-1, 50)).reshape(4, -1), None, 0, 0, np.nan)
    assert FittedRatio(draws, FITS["gaussian"]).uncovered(rng) < 0.01


def test_draws_that_miss_a_neck_are_recognised_without_a_record_of_divergences():
    """A sampler with one step is kept out of the neck of a funnel; exact draws, as plain too, are trusted."""
    rng = np.random.default_rng(3)
    v = 3 * rng.standard_normal((4, 800, 1))
    exact = np.concatenate([v, np.exp(v / 2) * rng.standard_normal((4, 800, 3))], axis=2)
    target = funnel(3)
    draws = exact.reshape(-1, 4)
    draws = draws[draws[:, 0] > -3.0][:2400].reshape(4, 600, 4)
    found = quietly({"x": draws}, target, method="bridge", random_seed=1)
    assert not found.trusted
    assert any("the draws miss a part of the posterior where `x[0]` is small" in reason for reason in found.reasons)
    assert found.diagnostics["neck_growth"] > 5
    assert "neck_growth" not in pb.evidence({"x": exact[:, :, :1]}, _normal(3.0), random_seed=1).diagnostics
    sound = pb.evidence({"x": exact}, target, method="bridge", random_seed=1)
    assert sound.diagnostics["neck_growth"] < 3
    assert is_right(sound, 0.0)


def _normal(sd):
    return FunctionTarget(1, lambda x: (-0.5 * x[:, 0] ** 2 / sd**2, -x / sd**2))

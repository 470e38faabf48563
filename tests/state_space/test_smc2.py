"""SMC²: exact evidence and posterior with small filters that grow on the way, and twins that are not."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.kernels.particle.filters import filter_of
from ppl_backends.kernels.table import make_kernel
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.results.inference_data import group
from ppl_backends.smc.core import Resampled
from ppl_backends.smc.filters import FilterParticles, FilterPath, Growth, is_exchange
from ppl_backends.smc.health import MEMORY_LEFT
from ppl_backends.smc.ibis import run_ibis
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.regeneration import RegeneratingMoves
from ppl_backends.smc.sampler import Settings
from ppl_backends.smc.schedule import make_schedule
from tests.state_space.models import data
from tests.state_space.toys import LOG_2PI, MODEL, Y, log_evidence, log_likelihood, posterior, series, target
from tests.statistics import assert_mean_is

EXACT = log_evidence()
LOG_4 = np.log(4.0)
MEAN, SD, _ = posterior()
SETTINGS = Settings(schedule=make_schedule("ess", 0.5), moves=MoveSettings(2, 2))
pytestmark = pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")
EAGER = Growth(first=4, variance=0.3, above=1.0, most=8)


def run(seed, path=FilterPath, growth=EAGER, n=64, y=Y, regenerates=""):
    made = path(target(y), PriorPath(target(y).rest), filter_of(target(y)), growth, regenerates)
    return run_ibis(made, make_kernel("random_walk"), n, np.random.default_rng([9, seed]), None, SETTINGS)


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("growth", "gibbs", "partial")]


@pytest.mark.parametrize("regenerates", ["", *SLOW])
def test_the_evidence_is_unbiased_while_filters_grow(regenerates):
    runs = [run(seed, regenerates=regenerates) for seed in range(16)]
    assert_mean_is(np.exp([each.log_evidence - EXACT for each in runs]), 1.0)
    sizes = [each.records["filters"].n_particles for each in runs]
    assert np.mean([len(set(each)) > 1 for each in sizes]) > 0.9
    z = [(each.x[:, 0] - MEAN) / SD for each in runs]
    assert_mean_is([[each.mean(), (each**2).mean()] for each in z], [0.0, 1.0], 0.05)


def through_an_exchange(counted):
    """Estimates of the likelihood of five rows at one μ, relative to it: filters of two particles, then of one."""
    y, rng, schedule = Y[:5], np.random.default_rng(6), make_schedule("ess", 1e-9)
    path = FilterPath(target(y), PriorPath(target(y).rest), filter_of(target(y)), Growth(first=2))
    population, total = path.density(path.all_of(0))(np.full((20000, 1), MEAN), rng), 0.0
    for rows, size in ((3, 2), (3, 1), (5, 1)):
        path.n, population = rows, replace(population, wanted=size)
        stage, log_weights = path.next(population, None, schedule)
        total = total + (log_weights if counted or not is_exchange(stage) else 0.0)
        population = path.extend(population, stage, rng)
    return np.exp(total - log_likelihood(MEAN, y))


def test_the_weights_of_an_exchange_count():
    assert_mean_is(through_an_exchange(counted=True), 1.0)
    with pytest.raises(AssertionError):
        assert_mean_is(through_an_exchange(counted=False), 1.0)


class StalePaths(FilterPath):
    """A path that takes paths out of filters as they were before the last row."""

    def paths_of(self, population, rng):
        found = super().paths_of(replace(population, stop=population.stop - 1), rng)
        for values in found:
            values[:, population.stop - 1] = values[:, population.stop - 2]
        return found


def particles_of_rows(path, rows, y, size, n=4000):
    """Return a path over rows, and particles whose filters have seen some rows, with their weights L̂ / L."""
    made = path(target(y), PriorPath(target(y).rest), filter_of(target(y)), Growth(first=size), "gibbs")
    x = np.random.default_rng(6).normal(MEAN, SD, (n, 1))
    population = made.density(made.all_of(rows))(x, np.random.default_rng(7))
    return made, population, np.exp(population.filter.log_likelihood - log_likelihoods(x[:, 0], y[:rows]))


def predictions(path):
    """Estimates of the rows behind the third, relative to their likelihood, by filters around paths out of those of three."""
    y = Y[:5]
    made, population, weights = particles_of_rows(path, 3, y, 32, n=16_000)
    rng, x = np.random.default_rng(8), population.x
    population = made.regenerated(replace(population, wanted=2), made.paths_of(population, rng), rng)
    _, increments = made.filter.advance(made.parameters_at(x), population.filter, 3, len(y) - 3)
    exact = log_likelihoods(x[:, 0], y) - log_likelihoods(x[:, 0], y[:3])
    return weights * np.exp(increments.sum(axis=1) - exact)


def log_likelihoods(mu, y):
    return np.array([log_likelihood(each, y) for each in mu])


@pytest.mark.slow
def test_filters_around_paths_predict_without_bias_and_others_do_not():
    assert_mean_is(predictions(FilterPath), 1.0)
    with pytest.raises(AssertionError):
        assert_mean_is(predictions(StalePaths), 1.0)


def after_a_sweep(path, n=4000):
    """Weights of particles of three rows, and with these the moments of the parameter after a sweep of particle Gibbs."""
    y, rng = Y[:5], np.random.default_rng(11)
    mean, sd, _ = posterior(y[:3])
    growth = Growth(8, above=np.inf)
    made = path(target(y), PriorPath(target(y).rest), filter_of(target(y)), growth, "gibbs")
    x, stage = rng.normal(mean, sd, (n, 1)), made.all_of(3)
    population = made.density(stage)(x, rng)
    weights = np.exp(population.filter.log_likelihood - log_likelihoods(x[:, 0], y[:3]))
    drawn = Resampled(population, weights, np.arange(n), population, stage)
    moved = RegeneratingMoves(None, MoveSettings(1, 1), "gibbs")(drawn, made, None, rng)
    z = (moved.population.x[:, 0] - mean) / sd
    return np.stack([weights, weights * z, weights * z**2], axis=1)


@pytest.mark.slow
def test_parameters_move_given_the_path_of_all_rows_and_not_a_stale_one():
    assert_mean_is(after_a_sweep(FilterPath), [1.0, 0.0, 1.0])
    with pytest.raises(AssertionError):
        assert_mean_is(after_a_sweep(StalePaths), [1.0, 0.0, 1.0])


@pytest.mark.slow
def test_after_an_outlier_an_exchange_loses_the_particles():
    """For this reason larger filters are drawn around paths where possible."""
    y = Y[:5].copy()
    y[2] = 3.5
    made, population, weights = particles_of_rows(FilterPath, 3, y, 4)
    drawn = population.take(systematic_resampling(weights / weights.sum(), len(weights), np.random.default_rng(1)))
    _, log_weights = made._exchange(replace(drawn, wanted=64))
    exchanged = np.exp(log_weights)
    assert exchanged.sum() ** 2 / (exchanged**2).sum() < 0.05 * len(weights)
    assert "log estimates of 4 particles have variance" in made.causes([SimpleNamespace(population=drawn)])[0]
    assert not made.causes([SimpleNamespace(population=replace(drawn, n_particles=512))])


def filters_belong_to_their_points(regenerates=""):
    """Whether filters that are computed again from the seeds of the particles have the estimates that these carry."""
    made = FilterPath(target(), PriorPath(target().rest), filter_of(target()), EAGER, regenerates)
    done = run_ibis(made, make_kernel("random_walk"), 64, np.random.default_rng(3), None, SETTINGS).population
    again = made._replayed(done.x, len(Y), done.n_particles, done.filter.seeds, done.kept)
    return np.allclose(again, done.filter.log_likelihood, rtol=1e-8)


def test_particles_are_resampled_with_their_filters(monkeypatch):
    assert filters_belong_to_their_points()
    take = FilterParticles.take
    monkeypatch.setattr(FilterParticles, "take", lambda self, index: replace(take(self, index), filter=self.filter))
    assert not filters_belong_to_their_points()


def measured(monkeypatch=None):
    """Variance that log estimates are measured to have, one θ in twenty far off; that at the others; and that across θ."""
    made, population, _ = particles_of_rows(FilterPath, len(Y), Y, 16, n=800)
    typical = made.measured(population, np.random.default_rng(1)).variance
    x = np.where(np.arange(800)[:, None] % 20 == 4, 12.0, population.x)
    estimates = made.density(made.all_of(len(Y)))(x, np.random.default_rng(7)).filter.log_likelihood
    if monkeypatch is not None:
        monkeypatch.setattr(np, "median", np.mean)
    return made.measured(replace(population, x=x), np.random.default_rng(1)).variance, typical, estimates.var()


def test_the_variance_of_filters_is_that_at_typical_parameters(monkeypatch):
    """The measure is not the mean over θ, which failing filters dominate, nor the spread of the estimates across θ."""
    found, typical, across = measured()
    assert abs(np.log(found / typical)) < 0.5
    assert across > 10 * typical
    assert measured(monkeypatch)[0] > 10 * typical


class Selected(FilterPath):
    """A path that compares fresh filters with those that the particles carry, which selection made large."""

    def _filters(self, x, rows, n_particles, seeds):
        found = super()._filters(x, rows, n_particles, seeds)
        if self.carried is not None:
            half = len(self.carried) // 2
            compared = np.concatenate([self.carried[: 2 * half : 2], found.log_likelihood[half:]])
            return replace(found, log_likelihood=compared)
        return found

    carried = None


def test_estimates_that_particles_carry_are_too_large_to_be_compared_with():
    """Particles are drawn by the estimates of their filters, so these estimates exceed fresh ones by about their variance."""
    found = {}
    for path in (FilterPath, Selected):
        made, population, weights = particles_of_rows(path, len(Y), Y, 4, n=4000)
        index = systematic_resampling(weights / weights.sum(), len(weights), np.random.default_rng(1))
        drawn = population.take(index)
        if path is Selected:
            made.carried = drawn.filter.log_likelihood
        found[path] = made.measured(drawn, np.random.default_rng(2)).variance
    x = np.repeat(drawn.x[::20], 64, axis=0)  # copies of a particle are neighbours
    values = filter_of(target()).run(
        {"mu": x[:, 0]}, 4, np.random.default_rng(3).integers(0, 2**63, len(x), dtype=np.uint64)
    )
    exact = np.median(values.reshape(200, 64).var(axis=1, ddof=1))
    assert abs(np.log(found[FilterPath] / exact)) < 0.25
    assert found[Selected] > 1.5 * found[FilterPath]


@pytest.mark.parametrize(
    ("outlier", "regenerates", "message"),
    [
        (6.0, "", r"filters of 32 particles were exchanged .* row 5, .* variance \d+\.\d, .* or n_particles=64"),
        pytest.param(6.0, "growth", "", marks=pytest.mark.slow),
        (0.0, "", ""),
    ],
)
def test_an_exchange_of_noisy_filters_is_told(outlier, regenerates, message):
    y = np.where((np.arange(len(Y)) == 4) & (outlier > 0), outlier, Y)
    growth = Growth(first=32, most=64)
    made = FilterPath(target(y), PriorPath(target(y).rest), filter_of(target(y)), growth, regenerates)
    run = run_ibis(made, make_kernel("random_walk"), 64, np.random.default_rng(1), None, SETTINGS)
    told = made.reasons([run])
    assert len(told) == bool(message)
    assert re.search(message, "".join(told))


def smc2(y=Y, **options):
    return pb.sample_smc2(target(y), **{"draws": 64, "chains": 2, "random_seed": 4, "progressbar": False} | options)


@pytest.fixture(scope="module")
def idata():
    return smc2(n_particles=16)


def test_scores_add_up_to_the_evidence_and_stages_say_how_large_filters_were(idata):
    stats, scores = group(idata, "sample_stats"), group(idata, "prequential")["log_score"]
    np.testing.assert_allclose(scores.sum("observation"), stats["log_evidence_single_run"])
    assert abs(group(idata, "posterior").attrs["log_evidence"] - EXACT) < 1.0
    assert set(stats["n_particles"].values[np.isfinite(stats["n_particles"].values)]) == {16.0}


def test_an_executor_gives_the_same_bits(idata):
    with ThreadPoolExecutor(2) as pool:
        again = smc2(n_particles=16, executor=pool)
    assert np.array_equal(group(again, "posterior")["x"], group(idata, "posterior")["x"])
    assert group(again, "posterior").attrs["log_evidence"] == group(idata, "posterior").attrs["log_evidence"]


def test_new_rows_go_on_with_the_filters_that_there_are(idata):
    longer = series(len(Y) + 6)
    updated = pb.update_smc(smc2(longer[: len(Y)], n_particles=16), target(longer), random_seed=2, progressbar=False)
    attrs = group(updated, "posterior").attrs
    assert attrs["n_observations"] == len(longer)
    exact = log_evidence(longer) - log_evidence(longer[: len(Y)])
    assert abs(attrs["log_evidence_new"] - exact) < 5 * attrs["log_evidence_new_se"]
    assert group(updated, "prequential").sizes["observation"] == len(longer)


def test_another_series_is_not_gone_on_with(idata):
    with pytest.raises(ModelError, match="are not those of the result"):
        pb.update_smc(idata, target(np.append(Y + 1.0, 0.0)), random_seed=2, progressbar=False)


def test_a_row_that_is_hard_is_let_in_by_degrees():
    y = Y.copy()
    y[0] = 4.5
    done = run(0, growth=Growth(first=64, above=np.inf), y=y, n=100)
    rows = np.array(done.records["rows"].rows)
    assert ((rows > 0) & (rows < 1)).any()
    assert abs(done.log_evidence - log_evidence(y)) < 5 * done.lineage.variance**0.5 + 0.5


class GrowsByAcceptance(FilterPath):
    """A path that doubles its filters where fewer than a fifth of the moves are accepted."""

    def moves(self, kernel, settings):
        inner = super().moves(kernel, settings)

        def moved(drawn, path, tuning, rng):
            done = inner(drawn, path, tuning, rng)
            size = done.population.n_particles
            wanted = 2 * size if done.summary.acceptance < 0.2 else size
            return done._replace(population=replace(done.population, wanted=min(wanted, path.growth.most)))

        return moved


class LongJumps(type(make_kernel("random_walk"))):
    """Steps far too long, whatever was accepted."""

    target_acceptance = 0.02

    def initial_scale(self, dim):
        return 30.0


@pytest.mark.slow
def test_filters_do_not_grow_where_proposals_are_bad():
    """Few moves are accepted, and larger filters do not help, so a rule that uses the rate never stops."""
    growth, sizes = Growth(first=32, most=512), {}
    for path in (FilterPath, GrowsByAcceptance):
        made = path(target(), PriorPath(target().rest), filter_of(target()), growth)
        done = run_ibis(made, LongJumps(), 64, np.random.default_rng(1), None, SETTINGS)
        assert np.mean([stage.moves.acceptance for stage in done.stages if stage.moves]) < 0.2
        sizes[path] = done.records["filters"].n_particles[-1]
    assert sizes[FilterPath] == 32
    assert sizes[GrowsByAcceptance] >= 8 * 32


def test_growth_asks_for_what_gives_the_variance_wanted():
    growth = Growth(variance=1.0, above=1.5)
    assert growth.wanted(32, 1.4) == 32
    assert growth.wanted(32, 3.0) == 96
    assert growth.wanted(32, np.inf) == 512
    assert growth.wanted(32, np.nan) == 32


def test_filters_shrink_to_what_gives_the_variance_wanted_only_where_that_takes_no_weights():
    growth = Growth(variance=1.0)
    assert growth.wanted(1536, 0.146, without_weights=True) == 256
    assert growth.wanted(1536, 0.146) == 1536
    assert growth.wanted(256, 0.3, without_weights=True) == 256
    assert growth.wanted(64, 0.01, without_weights=True) == growth.first
    assert growth.wanted(32, 0.01, without_weights=True) == 32
    made, population, _ = particles_of_rows(FilterPath, 3, Y[:5], 512, n=64)
    made.growth = Growth(first=4)
    assert made.measured(population, np.random.default_rng(1)).wanted < 512 / 4
    made.regenerates = ""
    assert made.measured(population, np.random.default_rng(1)).wanted == 512


def from_pymc():
    with pm.Model() as model:
        pb.StateSpace("y", MODEL, mu=pm.Normal("mu"), observed=Y)
    return model


def from_a_density():
    """Return a prior that is only a density, as that of a Stan program is: it is drawn by a run of tempering."""
    prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x[:, 0] ** 2 + LOG_2PI), -x))
    level = replace(
        MODEL, log_observation=lambda p, t, x, y: -0.5 * (((y - p.mu[..., 0] - x) / 0.5) ** 2 + LOG_2PI - LOG_4)
    )
    return pb.with_state_space(prior, level, parameters={"mu": "x"}, observed=Y)


@pytest.mark.parametrize("model", [from_pymc, from_a_density])
def test_models_of_all_kinds_of_priors_have_the_exact_evidence(model):
    idata = pb.sample_smc2(model(), draws=200, chains=2, n_particles=64, random_seed=4, progressbar=False)
    attrs = group(idata, "posterior").attrs
    assert attrs["log_evidence_se"] < 0.25
    assert abs(attrs["log_evidence"] - EXACT) < 4 * attrs["log_evidence_se"]


@pytest.mark.slow
def test_filters_are_computed_again_whatever_they_were_drawn_around():
    made, population, _ = particles_of_rows(FilterPath, 3, Y[:5], 4, n=6)
    rng = np.random.default_rng(2)
    around_paths = made.regenerated(population, made.paths_of(population, rng), rng)
    stage, _ = made.next(replace(around_paths, x=population.x), None, make_schedule("ess", 1e-9))
    grown = made.extend(around_paths, stage, rng)
    fresh = made.density(stage._replace(first=5, stop=5, beta=1.0, block=None))(population.x, rng)
    mixed = grown.where(np.arange(6) < 3, replace(fresh, n_particles=grown.n_particles))
    assert set(mixed.kept.rows) == {0, 3}
    again = made._replayed(mixed.x, 5, 4, mixed.filter.seeds, mixed.kept)
    np.testing.assert_allclose(again, mixed.filter.log_likelihood, rtol=1e-9)


@pytest.mark.slow
def test_particles_of_a_run_with_defaults_mix():
    with pm.Model() as model:
        scales = {name: pm.Exponential(name, 1) for name in ("sigma_x", "sigma_y")}
        rows = data("linear_gaussian")
        pb.StateSpace("y", pb.state_space.linear_gaussian(), rho=pm.Uniform("rho", -1, 1), **scales, observed=rows)
    idata = pb.sample_smc2(model, chains=2, random_seed=300, progressbar=False)
    left = group(idata, "sample_stats")["correlation"].values
    assert np.mean(left[np.isfinite(left)] > MEMORY_LEFT) < 0.2  # 0.3 with at most ten moves

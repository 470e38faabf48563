"""Shorter steps distinguish a neck that the draws miss from a narrow place that they reach."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.tuning import Uneven, acceptance_tuning
from ppl_backends.results.inference_data import group
from ppl_backends.smc.core import Resampled
from ppl_backends.smc.evidence import LineageVariance
from ppl_backends.smc.moves import MoveSettings, MoveSummary, UntilMixed
from ppl_backends.smc.necks import advice_for_neck
from ppl_backends.smc.path import BridgePath, Power, PriorPath
from ppl_backends.smc.records import SMCResult, Stage
from ppl_backends.smc.sampler import run_tempering
from ppl_backends.smc.schedule import Schedule
from ppl_backends.smc.short_steps import move_with_short_steps, prior_depends_on
from ppl_backends.smc.start import StartFigures
from ppl_backends.targets import FunctionTarget
from tests.toys import funnel, wide_regression

N = 2000


def run_of(x, target=None, scale=0.15):
    """Return a run that ended in the points ``x`` of a funnel, with the step that runs come to there, and the path."""
    start = pb.GaussianApproximation(np.zeros(x.shape[1]), np.diag(np.r_[9.0, np.full(x.shape[1] - 1, 4.0)]))
    path = BridgePath(funnel(5) if target is None else target, start).for_moves(uses_gradient=True)
    state = path.evaluate(x, 1.0, True)
    moves = MoveSummary(1, 1.0, scale, 0.0, 1.0, 0.0, 0.0)
    stage = Stage(1.0, 0.0, N, x.mean(axis=0), x.std(axis=0), N, moves, 0.0)
    rng = np.random.default_rng(0)
    run = SMCResult(state, rng, LineageVariance(N), 0.0, StartFigures(0.0), stages=(stage,))
    return path, run


def exact_draws(seed, least=-np.inf):
    """Return points of Neal's funnel whose log scale v/2 has v above ``least``."""
    rng = np.random.default_rng(seed)
    v = 3.0 * rng.standard_normal(3 * N)
    v = v[v > least][:N]
    return np.column_stack([v, np.exp(v / 2)[:, None] * rng.standard_normal((N, 5))])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_exact_draws_stay_where_they_are(seed):
    found, _ = move_with_short_steps(*_arguments(exact_draws(seed)), np.random.default_rng(seed))
    assert found.shift < 4.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_draws_without_the_neck_go_into_it(seed):
    found, _ = move_with_short_steps(*_arguments(exact_draws(seed, least=-4.0)), np.random.default_rng(seed))
    assert found.shift > 4.0
    assert (found.coordinate, found.upwards) == (0, False)


def test_advice_is_to_write_a_model_non_centred_only_if_a_prior_depends_on_the_scale():
    """Both targets are y = u s + noise at heart, with log s in coordinate 0; in one u s has the prior N(0, s²)."""

    def centred(x):
        log_prior = -0.5 * x[:, 0] ** 2 - x[:, 0] - 0.5 * x[:, 1] ** 2 * np.exp(-2 * x[:, 0])
        slope = np.stack([-x[:, 0] - 1 + x[:, 1] ** 2 * np.exp(-2 * x[:, 0]), -x[:, 1] * np.exp(-2 * x[:, 0])], axis=1)
        return log_prior, slope

    def non_centred(x):
        return -0.5 * (x**2).sum(axis=1), -x

    def likelihood(x):
        residual = 1.0 - x[:, 1] * np.exp(x[:, 0])
        return -0.5 * residual**2, residual[:, None] * np.stack([x[:, 1], np.ones(len(x))], axis=1) * np.exp(x[:, :1])

    x = np.random.default_rng(0).standard_normal((200, 2))
    for log_prior, expected, advice in (
        (centred, True, "write the variables"),
        (non_centred, False, "no prior depends"),
    ):
        target = pb.FunctionTarget(2, likelihood, log_prior, lambda n, rng: rng.standard_normal((n, 2)))
        assert prior_depends_on(target, x, 0) is expected
        assert advice_for_neck("s", expected).startswith(advice)
    assert prior_depends_on(pb.FunctionTarget(2, likelihood), x, 0)  # the prior is not known


def test_advice_for_a_scale_on_which_no_prior_depends_covers_the_noise_of_a_likelihood():
    """Errors in predictors: y ~ N(b x, s²) with x latent narrows x as s falls, and s multiplies nothing."""

    def likelihood(x):
        residual = (1.0 - x[:, 1]) * np.exp(-x[:, 0])
        return -0.5 * residual**2 - x[:, 0], np.stack([residual**2 - 1.0, residual * np.exp(-x[:, 0])], axis=1)

    target = pb.FunctionTarget(
        2, likelihood, lambda x: (-0.5 * (x**2).sum(axis=1), -x), lambda n, rng: rng.standard_normal((n, 2))
    )
    depends = prior_depends_on(target, np.random.default_rng(0).standard_normal((200, 2)), 0)
    assert "a scale of observations" in advice_for_neck("s", depends)


@pytest.mark.parametrize(("least", "goes_in"), [(-1.0, True), (-np.inf, False)])
def test_a_neck_opposite_to_the_energy_errors_is_found(least, goes_in):
    """Non-centred eight schools, where the data have large scales centred: errors are on that side."""
    target, draws = schools_and_draws(np.random.default_rng(1), least)
    path, run = run_of(draws, target, 0.87)
    found, _ = move_with_short_steps(path, Hmc(), [run], np.random.default_rng(1))
    if goes_in:
        assert found.shift > 2.5
        assert (found.coordinate, found.upwards) == (1, False)
    else:
        assert found.shift < 4.0


def schools_and_draws(rng, least):
    """Return the density of mu, u = log tau and theta, and exact points of its part where u is above ``least``."""
    y, sd = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def density(x):
        mu, tau, theta = x[:, :1], np.exp(x[:, 1:2]), x[:, 2:]
        z, left = (theta - mu) / tau, (y - theta) / sd
        value = (
            -0.5 * ((z**2).sum(1) + (left**2).sum(1) + mu[:, 0] ** 2 / 25) - 7 * x[:, 1] - np.log(25 + tau[:, 0] ** 2)
        )
        slopes = [
            (z / tau).sum(1, keepdims=True) - mu / 25,
            (z**2).sum(1, keepdims=True) - 7 - 2 * tau**2 / (25 + tau**2),
        ]
        return value, np.hstack([*slopes, left / sd - z / tau])

    u = np.linspace(-9.0, 5.0, 4001)
    variance = np.exp(2 * u)[:, None] + sd**2
    precision, shift = (1 / variance).sum(1) + 1 / 25, (y / variance).sum(1)
    log_p = u - np.log(25 + np.exp(2 * u)) - 0.5 * ((y**2 / variance + np.log(variance)).sum(1) - shift**2 / precision)
    p = np.exp(log_p - 0.5 * np.log(precision)) * (u > least)
    row = rng.choice(len(u), N, p=p / p.sum())
    mu = shift[row] / precision[row] + rng.standard_normal(N) / precision[row] ** 0.5
    narrow = 1 / sd**2 + np.exp(-2 * u[row])[:, None]
    theta = (y / sd**2 + mu[:, None] * np.exp(-2 * u[row])[:, None]) / narrow
    return FunctionTarget(10, density), np.column_stack([mu, u[row], theta + rng.standard_normal((N, 8)) / narrow**0.5])


def _arguments(x):
    path, run = run_of(x)
    return path, Hmc(), [run]


@pytest.mark.slow
def test_a_hierarchy_in_which_some_trajectories_diverge_is_trusted():
    """Student's t with ten groups, non-centred where the data would have it centred: all evidences agree."""
    rng = np.random.default_rng(4)
    group_of = np.repeat(np.arange(10), 18)
    y = (1 + 0.8 * rng.standard_normal(10))[group_of] + 0.7 * rng.standard_t(4, size=180)
    with pm.Model() as model:
        mu, tau, sigma = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2), pm.HalfNormal("sigma", 2)
        nu, z = pm.Gamma("nu", 2, 0.1), pm.Normal("z", 0, 1, shape=10)
        pm.StudentT("y", nu=nu, mu=mu + tau * z[group_of], sigma=sigma, observed=y)
    target = pb.as_target(model)
    attrs = group(pb.sample_smc(target, random_seed=0, progressbar=False), "posterior").attrs
    assert attrs["log_evidence_trusted"] == 1, attrs["warnings"]
    assert abs(attrs["log_evidence"] + 279.03) < 5 * attrs["log_evidence_se"]


def test_steps_are_uneven_where_they_are_too_long_in_places():
    """A quarter of the particles takes a quarter of the step; not in a Gaussian, where none is too long."""
    steps = Uneven(0.8).draw(100_000, np.random.default_rng(0))
    assert np.unique(steps).tolist() == [0.2, 0.8]
    assert np.mean(steps == 0.2) == pytest.approx(0.25, abs=0.006)
    start = pb.GaussianApproximation(np.zeros(6), np.eye(6))
    normal = pb.FunctionTarget(
        6,
        lambda x: (-0.5 * (x**2).sum(axis=1), -x),
        lambda x: (np.zeros(len(x)), np.zeros_like(x)),
        lambda n, rng: rng.standard_normal((n, 6)),
    )
    path, rng = BridgePath(normal, start), np.random.default_rng(1)
    path = path.for_moves(True)
    state, everyone = path.evaluate(start.sample(400, rng), 1.0, True), np.arange(400)
    drawn = Resampled(state, np.full(400, 1 / 400), everyone, state, Power(1.0, 1.0))
    used = UntilMixed(Hmc(), MoveSettings(12, 12))(drawn, path, acceptance_tuning(Hmc(), 1.0, 6), rng).decided
    assert not any(isinstance(scale, Uneven) for scale in used.scales)


@pytest.mark.slow
def test_wide_priors_do_not_leave_particles_behind():
    """With one step for all the log evidence is low by 0.11 ± 0.02: hardly any enter the narrow part of the funnel."""
    target, truth = wide_regression()
    errors = [
        run_tempering(
            PriorPath(target),
            Hmc(),
            2000,
            np.random.default_rng([99, k]),
            schedule=Schedule(fraction=0.9),
            len_chain=20,
        ).log_evidence
        - truth
        for k in range(12)
    ]
    assert abs(np.mean(errors)) < 0.06


@pytest.mark.slow
def test_a_chain_without_the_change_of_variables_of_the_others_is_no_reason():
    """The particles of one chain are too few to find it, and 6 % of trajectories diverge without it, with short steps too."""
    y = np.random.default_rng(7).normal(0, 1, 400)
    with pm.Model() as model:
        mu, s = pm.Normal("mu", 0, 5), pm.HalfNormal("s", 3)
        pm.Truncated("y", pm.Normal.dist(mu, s), lower=1.2, upper=None, observed=y[y > 1.2][:30])
    grid, step = np.linspace(-25, 15, 1001), np.linspace(-4, 3, 701)
    points = np.stack(np.meshgrid(grid, step, indexing="ij"), axis=-1).reshape(-1, 2)
    truth = logsumexp(pb.as_target(model).log_density(points)) + np.log((grid[1] - grid[0]) * (step[1] - step[0]))
    attrs = group(pb.sample_smc(model, random_seed=1, progressbar=False), "posterior").attrs
    assert attrs["log_evidence_trusted"] == 1, attrs["warnings"]
    assert abs(attrs["log_evidence"] - truth) < 4 * attrs["log_evidence_se"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ppl_backends.errors.PPLBackendsWarning")
def test_the_neck_of_a_factor_model_is_reached():
    """One error scale tends to zero where the factor explains its item exactly.

    Log evidences were 0.05 to 0.07 too low, by 4 to 8 standard errors, the sd of the log scale a third too small, and all of
    it trusted. The evidence is from importance sampling with the factor integrated out, the sd of 0.88 from NUTS.
    """
    rng = np.random.default_rng(31)
    factor = rng.normal(size=10)
    items = factor[:, None] * [1.0, 0.8, 0.6, 0.3] + rng.normal(size=(10, 4)) * [0.5, 0.6, 0.7, 0.5]
    with pm.Model() as model:
        loading, score = pm.HalfNormal("loading", 1, shape=1), pm.Normal("score", 0, 1, shape=10)
        pm.Normal("y", score[:, None] * loading, pm.HalfNormal("error", 1, shape=4), observed=items)
    for seed in (1, 2):
        found = group(pb.sample_smc(model, draws=1000, random_seed=seed, progressbar=False), "posterior")
        assert abs(found.attrs["log_evidence"] + 46.274) < 4 * found.attrs["log_evidence_se"] < 0.1
        assert 0.72 < float(np.log(found["error"][..., 3]).std()) < 1.0

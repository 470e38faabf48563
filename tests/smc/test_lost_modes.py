"""The verdict sees a mode that all particles have left on the way, and a mode that is not lost is not reported."""

import numpy as np
import pytest
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.approximations import missed_modes
from ppl_backends.approximations.densest import Densest
from ppl_backends.approximations.lost_mode import LostMode, lost_mode_reason
from ppl_backends.approximations.unlike import unlike
from ppl_backends.errors import SamplerWarning
from ppl_backends.importance import sampling
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.smc import lost_modes, outcome
from ppl_backends.smc.lost_modes import find_lost_mode
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.records import Visited
from ppl_backends.tempering.verdict import Visits

pytestmark = pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")

CENTRES, WEIGHTS, SD = (4.0, -4.0), np.log([0.3, 0.7]), 1.2


def two_modes(dim=10, location=1.0, spread=5.0):
    """0.3 N(4, 1.2² I) + 0.7 N(−4, 1.2² I) from N(1, 5 I): the heavier mode is far out in the prior, and separates late."""

    def joint(x):
        parts = np.stack(
            [
                weight - 0.5 * ((x - centre) ** 2).sum(axis=1) / SD**2 - 0.5 * dim * np.log(2 * np.pi * SD**2)
                for weight, centre in zip(WEIGHTS, CENTRES, strict=True)
            ]
        )
        value = logsumexp(parts, axis=0)
        slope = sum(np.exp(p - value)[:, None] * (c - x) / SD**2 for p, c in zip(parts, CENTRES, strict=True))
        return value, slope

    def prior(x):
        value = -0.5 * ((x - location) ** 2).sum(axis=1) / spread - 0.5 * dim * np.log(2 * np.pi * spread)
        return value, -(x - location) / spread

    def likelihood(x):
        (value, slope), (base, base_slope) = joint(x), prior(x)
        return value - base, slope - base_slope

    def draw(n, rng):
        return location + np.sqrt(spread) * rng.standard_normal((n, dim))

    return pb.FunctionTarget(dim, likelihood, prior, sample_prior=draw)


def run(target, seed, **options):
    return pb.sample_smc(target, draws=1000, chains=4, random_seed=seed, progressbar=False, **options)


def wrong_and_trusted(target, seeds, **options):
    """Return whether runs were wrong though trusted, and what they warned of."""
    found, said = [], []
    for seed in seeds:
        attrs = run(target, seed, **options).posterior.attrs
        wrong = abs(attrs["log_evidence"]) > 4 * attrs["log_evidence_se"] + 0.02
        found.append(wrong and bool(attrs["log_evidence_trusted"]))
        said.append(attrs["warnings"])
    return found, said


def test_no_run_that_lost_a_mode_is_trusted():
    found, said = wrong_and_trusted(two_modes(), range(2), len_chain=10)  # which is not run again
    assert not any(found)
    assert any("holds no draw" in one for one in said)


def test_a_lost_mode_is_put_right_by_a_run_from_all_modes():
    attrs = run(two_modes(), 0).posterior.attrs
    assert attrs["initial"].startswith("modes of a run from prior")
    assert attrs["log_evidence_trusted"] == 1
    assert abs(attrs["log_evidence"]) < 4 * attrs["log_evidence_se"] + 0.005


def test_a_run_from_all_modes_that_is_too_coarse_is_made_again(monkeypatch):
    judged = []

    def only_the_second(figures):
        judged.append(figures)
        return len(judged) == 2

    monkeypatch.setattr("ppl_backends.smc.outcome.is_too_coarse", only_the_second)
    monkeypatch.setattr("ppl_backends.smc.outcome.shows_coarse_ladder", lambda figures: True)
    attrs = run(two_modes(), 0).posterior.attrs
    assert attrs["initial"].startswith("modes of a run from prior")
    assert attrs["run_again"] == 1
    assert abs(attrs["log_evidence"]) < 4 * attrs["log_evidence_se"] + 0.005


def spike(dim, width, offset):
    """Return 0.1 N(0, I) + 0.9 N(offset, width² I) from N(0, 3² I): behind a phase transition."""

    def parts(x):
        centred, near = -0.5 * (x**2).sum(axis=1), (x - offset) / width
        slab = np.log(0.1) + centred - 0.5 * dim * np.log(2 * np.pi)
        spike = np.log(0.9) - 0.5 * (near**2).sum(axis=1) - 0.5 * dim * np.log(2 * np.pi * width**2)
        return slab, spike, near

    def likelihood(x):
        slab, spike, near = parts(x)
        total = np.logaddexp(slab, spike)
        share = np.exp(spike - total)[:, None]
        base, slope = prior(x)
        return total - base, -share * near / width - (1 - share) * x - slope

    def prior(x):
        return -0.5 * (x**2).sum(axis=1) / 9 - 0.5 * dim * np.log(18 * np.pi), -x / 9

    return pb.FunctionTarget(dim, likelihood, prior, lambda n, rng: 3 * rng.standard_normal((n, dim)))


def share_in_spike(idata, width, offset):
    x = idata.posterior["x"].values
    return (((x - offset) ** 2).sum(-1) < 4 * width**2 * (x.shape[-1] + 4)).mean()


@pytest.mark.parametrize(("dim", "width", "offset"), [(2, 0.01, 0.0), (5, 0.05, 0.5), (10, 0.1, 0.31)])
def test_a_spike_with_most_of_the_mass_is_found(dim, width, offset):
    """Without the search its log evidence is 2.3 low, and trusted."""
    idata = run(spike(dim, width, offset), 3)
    attrs = idata.posterior.attrs
    wrong = abs(attrs["log_evidence"]) > 4 * attrs["log_evidence_se"] + 0.02
    assert not (wrong and attrs["log_evidence_trusted"])
    if offset:
        assert attrs["log_evidence_trusted"] == 1
        assert abs(share_in_spike(idata, width, offset) - 0.9) < 0.03


def lost_from(target, x, visited):
    """Return the mode that is found from a visited point besides particles, none of which is cooled."""
    density = target.log_density
    last = Visits(x, density(x), Visited.of(visited, density(visited)))
    return find_lost_mode(PriorPath(target), [last], np.log(0.1), 100, np.random.default_rng(0), 0.0)


@pytest.mark.parametrize(("dim", "width", "offset"), [(2, 0.01, 0.3), (5, 0.05, 0.5), (20, 0.1, 0.31)])
def test_a_spike_is_found_from_a_point_less_dense_because_of_it_than_the_slab_is(monkeypatch, dim, width, offset):
    """The spike has a tenth of the density there, but its gradient is larger."""
    target, rng = spike(dim, width, offset), np.random.default_rng(1)
    towards = rng.standard_normal(dim)
    towards /= np.linalg.norm(towards)
    ratio = np.log(90) - dim * np.log(width) + 0.5 * dim * offset**2  # at this distance it has a tenth
    visited = (offset + np.sqrt(2 * ratio) * width * towards)[None]
    slab = rng.standard_normal((4000, dim))
    slab = slab[((slab - offset) ** 2).sum(axis=1) > 4 * ratio * width**2]
    lost = lost_from(target, slab, visited)
    assert lost.share == pytest.approx(0.9, abs=0.02)
    monkeypatch.setattr(lost_modes, "_STEEPEST", 0)  # the broken twin
    assert lost_from(target, slab, visited) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_spike_is_found_from_points_at_which_it_has_a_millionth_of_the_density(seed):
    """Correlations of the wide mode are 0.9; no cooled particle enters the narrow one, which is spherical."""
    dim, width, rng = 20, 0.03, np.random.default_rng(seed)
    cov = 0.9 + 0.1 * np.eye(dim)
    precision, log_det = np.linalg.inv(cov), np.linalg.slogdet(cov)[1]
    centre = np.linalg.cholesky(cov) @ np.random.default_rng(7).choice([-0.31, 0.31], dim)

    def likelihood(x):
        slope, near = x @ precision, (x - centre) / width
        logs = np.stack(
            [
                np.log(0.1) - 0.5 * (x * slope).sum(axis=1) - 0.5 * log_det,
                np.log(0.9) - 0.5 * (near**2).sum(axis=1) - dim * np.log(width),
            ]
        )
        total = np.logaddexp(*logs)
        share = np.exp(logs - total)[..., None]
        return total, -share[0] * slope - share[1] * near / width

    def prior(x):  # is not drawn from
        return np.full(len(x), -0.5 * dim * np.log(2 * np.pi)), np.zeros_like(x)

    target = pb.FunctionTarget(dim, likelihood, prior)
    x = rng.multivariate_normal(np.zeros(dim), cov, 4000)
    last = Visits(x, target.log_density(x), Visited.of(x[:1], target.log_density(x[:1])))
    lost = find_lost_mode(PriorPath(target), [last], np.log(0.1), 400, rng, 1.4e5)
    assert lost.share == pytest.approx(0.9, abs=0.02)


def test_a_spike_that_some_of_the_particles_entered_is_lost(monkeypatch):
    """It holds 5 % of them and 90 % of the mass. More than one in a hundred is as dense as they are."""
    target, rng = spike(3, 0.03, 1.0), np.random.default_rng(2)
    x = rng.standard_normal((2000, 3))
    x[:100] = 1.0 + 0.03 * x[:100]
    lost = lost_from(target, x, x[1000:1002])
    assert lost.share == pytest.approx(0.9, abs=0.03)
    assert lost.held == pytest.approx(0.05, abs=0.01)
    monkeypatch.setattr(lost_modes, "_highest", lambda held, last, _: last[:0])  # the broken twin
    assert lost_from(target, x, x[1000:1002]) is None


def test_moves_keep_the_points_where_the_gradient_is_least_like_a_gaussian():
    """Of 100,000 points a few are near the spike, and the densest of them are not; a Gaussian's own points are all alike."""
    target, rng = spike(5, 0.05, 0.5), np.random.default_rng(4)
    x = rng.standard_normal((100_000, 5))
    centre = 0.5 + 0.32 * np.eye(5)[:1]
    x = np.concatenate([x[((x - 0.5) ** 2).sum(axis=1) > 0.2], centre])
    seen = Densest(Gaussian(np.zeros(5), np.eye(5)))
    density, gradient = target.log_density_and_gradient(x)
    for rows in np.array_split(np.arange(len(x)), 20):
        seen.see(x[rows], density[rows])
        seen.see_gradients(x[rows], density[rows], gradient[rows])
    at = (seen.x == centre).all(axis=1)
    assert not at[:8].any()
    assert at[8]  # the first of the second kind
    assert unlike(Gaussian(np.zeros(5), np.eye(5)), x, -x)[0].max() < 1e-20


@pytest.mark.parametrize("integral", [-8.0, 3.0])
def test_a_spike_is_found_whatever_the_prior_as_written_integrates_to(integral):
    """One step from the prior reaches the wide mode; its weights are those of the normalised prior."""
    posterior = spike(5, 0.05, 0.4)

    def prior(x):
        return integral - 0.5 * (x**2).sum(axis=1) - 2.5 * np.log(2 * np.pi), -x

    def likelihood(x):
        (value, slope), (base, base_slope) = posterior.log_density_and_gradient(x), prior(x)
        return value - base + integral, slope - base_slope

    target = pb.FunctionTarget(5, likelihood, prior, lambda n, rng: rng.standard_normal((n, 5)))
    target.log_prior_normalizer = integral
    attrs = run(target, 1).posterior.attrs
    assert attrs["log_evidence_trusted"] == 1
    assert abs(attrs["log_evidence"] - integral) < 4 * attrs["log_evidence_se"] + 0.005


def by_importance(target, seed, **options):
    return pb.sample_importance(target, draws=1000, random_seed=seed, progressbar=False, **options)


def from_auto(target, seed):
    return run(target, seed, initial="auto")


@pytest.mark.parametrize("method", [by_importance, from_auto])
@pytest.mark.parametrize(("dim", "width", "offset"), [(5, 0.05, 0.4), (6, 0.07, 0.4)])
def test_a_spike_that_draws_of_the_wide_mode_miss_is_found(method, dim, width, offset):
    idata = method(spike(dim, width, offset), 1)
    attrs = idata.posterior.attrs
    assert attrs["log_evidence_trusted"] == 1
    assert abs(attrs["log_evidence"]) < 4 * attrs["log_evidence_se"] + 0.005
    assert abs(share_in_spike(idata, width, offset) - 0.9) < 0.03
    assert "narrow modes" in attrs.get("approximation", "narrow modes")


@pytest.mark.parametrize(("method", "module"), [(by_importance, sampling), (from_auto, outcome)])
def test_without_that_search_the_spike_is_missed_and_nothing_said(monkeypatch, method, module):
    """The broken twin."""
    monkeypatch.setattr(module, "find_missed_mode", lambda *_: None)
    attrs = method(spike(5, 0.05, 0.4), 1).posterior.attrs
    assert attrs["log_evidence"] == pytest.approx(np.log(0.1), abs=0.02)
    assert attrs["log_evidence_trusted"] == 1


def test_a_spike_that_one_draw_in_a_hundred_thousand_meets_is_found(monkeypatch):
    """The spike is as far from the centre as a draw at a quarter of the scale; there are a million draws of all scales."""
    monkeypatch.setattr(missed_modes, "_ALL_ROUNDS", 128)
    attrs = by_importance(spike(10, 0.05, 0.31), 1).posterior.attrs
    assert attrs["log_evidence_trusted"] == 1
    assert abs(attrs["log_evidence"]) < 4 * attrs["log_evidence_se"] + 0.005


@pytest.mark.parametrize("seed", range(3))
def test_a_spike_is_found_from_the_gradients_of_draws_that_miss_it(monkeypatch, seed):
    """One draw in 700,000 meets the spike, and there are 131,072; the broken twin looks at no gradients."""
    monkeypatch.setattr(missed_modes, "_SECONDS", np.inf)
    monkeypatch.setattr(missed_modes, "_LARGEST_OF_ALL", 2**17)
    attrs = by_importance(spike(20, 0.05, 0.2), seed).posterior.attrs
    assert attrs["log_evidence_trusted"] == 1
    assert abs(attrs["log_evidence"]) < 4 * attrs["log_evidence_se"] + 0.005
    if seed == 0:
        monkeypatch.setattr(missed_modes, "_ahead_of_steepest", lambda target, *_: np.empty((0, 20)))
        attrs = by_importance(spike(20, 0.05, 0.2), seed).posterior.attrs
        assert attrs["log_evidence"] == pytest.approx(np.log(0.1), abs=0.02)


def test_a_wide_mode_around_a_narrow_one_is_found(monkeypatch):
    """All climbs end in the spike, and the rest has no maximum of its own; the broken twin misses a tenth, and is trusted."""
    target = spike(20, 0.1, 0.2)
    target = pb.FunctionTarget(20, target.log_density_and_gradient)  # of whose prior nothing is known
    attrs = by_importance(target, 1).posterior.attrs
    assert attrs["log_evidence_trusted"] == 1
    assert abs(attrs["log_evidence"]) < 4 * attrs["log_evidence_se"] + 0.005
    monkeypatch.setattr(missed_modes, "mass_around", lambda *_: None)
    attrs = by_importance(target, 1).posterior.attrs
    assert attrs["log_evidence"] == pytest.approx(np.log(0.9), abs=0.02)
    assert attrs["log_evidence_trusted"] == 1


def test_the_draws_double_while_a_second_is_not_over(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(missed_modes, "_SECONDS", 1.0)
    monkeypatch.setattr(missed_modes.time, "process_time", lambda: 0.0)
    assert list(missed_modes._rounds(100, 12800)) == [1600, 1600, 3200, 6400]
    assert list(missed_modes._rounds(100, 0)) == [0]
    assert sum(missed_modes._rounds(2**14, 2**20)) == 2**20
    monkeypatch.setattr(missed_modes.time, "process_time", lambda: 0.3 * next(clock))
    assert list(missed_modes._rounds(100, 12800)) == [1600, 1600]  # 0.3 s, then 0.6 s, of which twice is too much


def test_importance_sampling_from_a_named_approximation_says_that_a_spike_is_missed():
    """What is named is used as it is."""
    with pytest.warns(SamplerWarning, match=r"90 % .* holds no draw \(approximation='auto' adds such modes\)"):
        attrs = by_importance(spike(5, 0.05, 0.4), 1, approximation="laplace").posterior.attrs
    assert attrs["log_evidence_trusted"] == 0


@pytest.mark.parametrize("method", [by_importance, from_auto])
def test_no_narrow_mode_is_made_up(method):
    """A Gaussian, and a skewed density that a Gaussian is a fair start for."""
    flat = pb.FunctionTarget(3, lambda x: (-0.5 * (x**2).sum(axis=1), -x))
    skewed = pb.FunctionTarget(3, lambda x: ((4 * x - 4 * np.exp(x)).sum(axis=1), 4 - 4 * np.exp(x)))
    for target in (flat, skewed):
        attrs = method(target, 0).posterior.attrs
        assert attrs["log_evidence_trusted"] == 1
        assert "narrow" not in attrs.get("approximation", "") + attrs.get("initial", "")


def test_without_the_search_such_runs_are_trusted(monkeypatch):
    """The broken twin: nothing else in a run tells of the mode."""
    monkeypatch.setattr(outcome, "find_lost_mode", lambda *_: None)
    found, _ = wrong_and_trusted(two_modes(), range(2))
    assert any(found)


def test_the_share_and_the_place_of_the_mode_are_said():
    with pytest.warns(
        SamplerWarning, match=r"a mode with about (6[5-9]|7[0-5]) % of the posterior, at `x\[\d\]` = -4 "
    ):
        run(two_modes(), 0, len_chain=10)


@pytest.mark.parametrize("target", [two_modes(1, 0.0, 20.0), two_modes(2, 0.0, 20.0)], ids=["line", "plane"])
def test_modes_that_hold_draws_are_not_called_lost(target):
    for seed in range(3):
        attrs = run(target, seed).posterior.attrs
        assert "holds no draw" not in attrs["warnings"]
        assert abs(attrs["log_evidence"]) < 5 * attrs["log_evidence_se"] + 0.02


def test_a_mode_of_no_account_is_not_a_reason(monkeypatch):
    """With 0.1 % of the mass elsewhere the answer is right to the third digit."""
    monkeypatch.setattr("tests.smc.test_lost_modes.WEIGHTS", np.log([0.9995, 0.0005]))
    attrs = run(two_modes(), 0).posterior.attrs
    assert "holds no draw" not in attrs["warnings"]


@pytest.mark.parametrize(("each", "is_lost"), [(5, False), (1, True)])
def test_a_mode_with_few_lineages_by_chance_is_not_called_lost(monkeypatch, each, is_lost):
    """It has 4 % of the mass and 1.5 % of 2,000 particles: 6 of 400 lineages, 2.6 errors below 16, or 30 of 2,000."""
    monkeypatch.setattr("tests.smc.test_lost_modes.WEIGHTS", np.log([0.04, 0.96]))
    target, rng = two_modes(2), np.random.default_rng(0)
    x = np.repeat([4.0, -4.0], [30, 1970])[:, None] + SD * rng.standard_normal((2000, 2))
    density = target.log_density(x)
    last = Visits(x, density, Visited.of(x[:30], density[:30]))
    lost = find_lost_mode(PriorPath(target), [last], 0.0, 100, rng, 1e5, np.arange(2000) // each)
    assert (lost is not None) == is_lost


@pytest.mark.parametrize(("held", "words"), [(0.0, "holds no draw:"), (0.005, "holds 0.5 % of the draws:")])
def test_a_reason_names_the_share_of_the_draws(held, words):
    assert words in lost_mode_reason(LostMode(0.02, np.zeros(1), 0, held, None))


def test_a_reason_says_that_few_points_decide_a_share_that_may_be_right():
    said = lost_mode_reason(LostMode(0.02, np.zeros(1), 0, 0.0183, None))
    assert "about 2 % of the posterior" in said
    assert "holds 1.83 % of the draws, which few independent points decide:" in said

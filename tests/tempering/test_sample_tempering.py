"""``sample_tempering``: known evidences and shares, invariance of a scan, and what it says of runs that cannot be trusted."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from ppl_backends import FunctionTarget, sample_tempering
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.results.inference_data import group
from ppl_backends.smc.by_mode import ModeEvidences
from ppl_backends.smc.evidence import EvidenceEstimate
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.sampler import SampledPriorPath
from ppl_backends.tempering import scan as scans
from ppl_backends.tempering.barrier import Barrier, first_betas
from ppl_backends.tempering.evidence import log_ratios, stepping_stones
from ppl_backends.tempering.replicas import at_points, calibrated, kernels_of
from ppl_backends.tempering.run import Run, begin, run_ensemble
from ppl_backends.tempering.sample import _evidence
from ppl_backends.tempering.scan import Ensemble, Plan, Record, round_lengths, scan
from ppl_backends.tempering.verdict import _of_evidence

LOG_2PI = np.log(2 * np.pi)


def normal(x, mean, sd):
    """Log density ``(n,)`` of N(mean, sd² I) and its gradient."""
    z = (x - mean) / sd
    return -0.5 * (z**2).sum(1) - x.shape[1] * (np.log(sd) + 0.5 * LOG_2PI), -z / sd


class Conjugate:
    """N(0, 2²) prior and one observation of N(x, 1) in every coordinate; picklable."""

    def __init__(self, dim, shift):
        self.dim, self.shift = dim, shift

    def likelihood(self, x):
        return normal(x, self.shift, 1.0)

    def prior(self, x):
        return normal(x, 0.0, 2.0)

    def draw(self, n, rng):
        return 2.0 * rng.standard_normal((n, self.dim))

    @property
    def log_evidence(self):
        return float(stats.norm(0, 5**0.5).logpdf(self.shift)) * self.dim

    def target(self, gradient=True):
        target = FunctionTarget(self.dim, self.likelihood, self.prior, self.draw)
        target.has_gradient = gradient
        return target


def two_modes(dim, distance=5.0):
    """Return 0.3 N(−c, I) + 0.7 N(c, I) as the posterior, from the prior N(0, 5² I)."""
    centre = np.full(dim, distance / dim**0.5)

    def prior(x):
        return normal(x, 0.0, 5.0)

    def likelihood(x):
        (a, slope_a), (b, slope_b), (base, slope) = normal(x, -centre, 1.0), normal(x, centre, 1.0), prior(x)
        total = np.logaddexp(np.log(0.3) + a, np.log(0.7) + b)
        share = np.exp(np.log(0.3) + a - total)[:, None]
        return total - base, share * slope_a + (1 - share) * slope_b - slope

    return FunctionTarget(dim, likelihood, prior, lambda n, rng: 5.0 * rng.standard_normal((n, dim)))


def run(target, **options):
    idata = sample_tempering(target, progressbar=False, **options)
    return idata, group(idata, "posterior").attrs


@pytest.mark.parametrize("kernel", ["hmc", "barker", "mala", "random_walk", "mixed"])
def test_moments_and_evidence_of_a_conjugate_model(kernel):
    case = Conjugate(2, 3.0)
    idata, attrs = run(case.target(), draws=400, tune=250, kernel=kernel, random_seed=3)
    x = group(idata, "posterior")["x"].values.reshape(-1, 2)
    assert attrs["log_evidence_trusted"] == 1, attrs["warnings"]
    assert abs(attrs["log_evidence"] - case.log_evidence) < 4.5 * attrs["log_evidence_se"]
    assert attrs["log_evidence_se"] < 0.25
    assert np.abs(x.mean(0) - 2.4).max() < 0.15
    assert np.abs(x.std(0) - 0.8**0.5).max() < 0.12


@pytest.mark.slow
def test_errors_of_the_evidence_are_those_that_are_reported():
    """z of twelve seeds; that their squares average above 3 has probability 1e-5 under Student's t."""
    case, z = Conjugate(1, 2.0), []
    for seed in range(12):
        _, attrs = run(case.target(), draws=250, tune=100, chains=2, kernel="random_walk", random_seed=seed)
        z.append((attrs["log_evidence"] - case.log_evidence) / attrs["log_evidence_se"])
    assert np.mean(np.square(z)) < 3.0
    assert np.std(z) > 0.3


def test_shares_of_two_modes_and_the_figures_of_temperatures():
    idata, attrs = run(two_modes(2), draws=1200, tune=300, random_seed=5)
    x, sample_stats = group(idata, "posterior")["x"].values, group(idata, "sample_stats")
    assert attrs["log_evidence_trusted"] == 1, attrs["warnings"]
    assert attrs["log_evidence_method"] == "bridge sampling by mode"
    assert attrs["log_evidence_se"] < attrs["log_evidence_stones_se"]
    assert abs(attrs["log_evidence_stones"]) < 4.5 * attrs["log_evidence_stones_se"]
    assert abs((x.sum(-1) < 0).mean() - 0.3) < 0.02
    assert (x.sum(-1) < 0).mean() == pytest.approx(min(attrs["mode_shares"]), abs=2 / x.shape[1])
    assert abs(attrs["log_evidence"]) < 4.5 * attrs["log_evidence_se"]
    betas = sample_stats["beta"].values
    assert betas[0] == 0
    assert betas[-1] == 1
    assert (np.diff(betas) > 0).all()
    swaps = sample_stats["swap_acceptance"].values[:, :-1].mean(0)
    assert np.ptp(swaps) < 0.2  # rejection rates are equalised
    assert len(betas) == pytest.approx(2 * attrs["communication_barrier"] + 1, abs=2)
    assert int(sample_stats["round_trips"].sum()) == attrs["round_trips"] == int(sample_stats["round_trip"].sum())
    assert 0.4 < attrs["round_trips"] / attrs["expected_round_trips"] < 1.3
    assert sample_stats["cumulative_barrier"].values[-1] == pytest.approx(attrs["communication_barrier"], abs=0.01)
    assert (sample_stats["local_barrier"].values >= 0).all()


def test_bridges_that_contradict_the_stepping_stones_are_named(monkeypatch):
    wrong = ModeEvidences(EvidenceEstimate(5.0, 0.01, 100.0, False, np.nan), np.ones(1), np.zeros(1), [])
    monkeypatch.setattr("ppl_backends.tempering.sample._by_mode", lambda path, run, rng: wrong)
    with pytest.warns(SamplerWarning, match="bridges in every mode give a log evidence of 5.000"):
        _, attrs = run(Conjugate(2, 1.0).target(), draws=600, tune=200, random_seed=2)
    assert attrs["log_evidence_method"] == "stepping stones"
    assert attrs["log_evidence_trusted"] == 0


def test_a_reference_from_an_approximation_gives_the_same_evidence():
    case = Conjugate(3, 4.0)
    idata, attrs = run(case.target(), draws=300, tune=100, initial="laplace", random_seed=1)
    assert attrs["initial"] == "laplace"
    assert abs(attrs["log_evidence"] - case.log_evidence) < 4.5 * attrs["log_evidence_se"] + 1e-9
    assert group(idata, "sample_stats")["beta"].size == 5  # the fewest


class Powers:
    """N(0, 1) reference and increment −3x²/2: N(0, 1/(1 + 3β)) at every β, drawn exactly."""

    betas = np.array([0.0, 0.2, 0.5, 1.0])

    def ensemble(self, chains, rng):
        def quadratic(x):
            return -1.5 * (x**2).sum(1), -3.0 * x

        target = FunctionTarget(1, quadratic, lambda x: normal(x, 0.0, 1.0), lambda n, rng: rng.standard_normal((n, 1)))
        path = PriorPath(target).for_moves(True)
        betas = np.tile(self.betas, chains)
        x = rng.standard_normal((len(betas), 1)) / np.sqrt(1 + 3 * betas)[:, None]
        explorer = calibrated(path, kernels_of("hmc"), [np.linspace(-1, 1, 50)[:, None]] * 4)
        index = np.tile(np.arange(4), (chains, 1))
        return Ensemble(at_points(path, x, betas), self.betas, explorer, index, np.zeros_like(index))

    def p_values(self, ensemble):
        x = ensemble.replicas.x.reshape(ensemble.chains, 4) * np.sqrt(1 + 3 * self.betas)
        own = [stats.kstest(x[:, level], "norm").pvalue for level in range(4)]
        # Neighbours are independent: the sum of two squares is exponential, as the sum of two swapped ones has to be.
        pairs = [stats.kstest((x[:, k] ** 2 + x[:, k + 1] ** 2) / 2, "expon").pvalue for k in range(3)]
        return np.array(own + pairs)


def test_a_scan_leaves_all_temperatures_invariant():
    rng, case = np.random.default_rng(1), Powers()
    ensemble = case.ensemble(4000, rng)
    for _ in range(4):
        ensemble, figures = scan(ensemble, rng, tune=False)
    assert case.p_values(ensemble).min() > 1e-4
    assert figures.rejection.mean() > 0.05


def test_a_swap_that_leaves_out_the_likelihood_is_found_out(monkeypatch):
    monkeypatch.setattr(scans, "log_swap_ratio", lambda betas, increment: np.zeros_like(increment[:, 1:]))
    monkeypatch.setattr(scans, "_explore", lambda ensemble, rng, tune: (ensemble, np.ones(4), None, np.nan))
    rng, case = np.random.default_rng(1), Powers()
    ensemble = case.ensemble(4000, rng)
    for _ in range(4):
        ensemble, _ = scan(ensemble, rng, tune=False)
    assert case.p_values(ensemble).min() < 1e-6


def test_swaps_are_the_even_ones_and_the_odd_ones_in_turn():
    rng, case = np.random.default_rng(2), Powers()
    before = case.ensemble(2000, rng)
    after, _ = scan(before, rng, tune=False)
    assert not (after.replica[:, 1] == 2).any()
    assert (after.replica[:, 1] == 0).any()
    then, _ = scan(before._replace(time=1), rng, tune=False)
    assert (then.replica[:, 1] == 2).any()
    assert not (then.replica[:, 1] == 0).any()


def test_the_barrier_of_a_gaussian_and_its_equal_steps():
    betas, rates = first_betas(0.01, 6), np.array([0.1, 0.3, 0.2, 0.2, 0.5, 0.1])
    barrier = Barrier(betas, rates)
    assert barrier.total == pytest.approx(1.4)
    assert barrier.cumulative[-1] == pytest.approx(1.4)
    assert barrier.round_trip_rate == pytest.approx(1 / (2 + 2 * (rates / (1 - rates)).sum()))
    equal = barrier.equalised(7)
    height = barrier._interpolant(barrier._place(equal))
    np.testing.assert_allclose(np.diff(height), 0.2, atol=0.01)
    assert barrier.wanted_intervals() == 4
    assert first_betas(0.01, 1).tolist() == [0.0, 1.0]


def test_rounds_double_and_add_up():
    assert round_lengths(1000) == [32, 64, 129, 258, 517]
    assert sum(round_lengths(7)) == 7
    assert round_lengths(0) == []


def test_round_trips_that_began_in_an_earlier_round_count():
    ensemble = Ensemble(None, np.array([0.0, 0.5, 1.0]), None, np.array([[2, 0, 1]]), np.array([[1, 2, 0]]))
    # replicas 2, 0 and 1 are at the three temperatures, and the second temperature is copied
    assert scans._kept_ends(ensemble, np.array([0, 1, 1, 2])).tolist() == [[0, 1, 0, 2]]


def test_stepping_stones_of_exact_draws():
    rng, betas = np.random.default_rng(4), np.linspace(0, 1, 6)
    x = rng.standard_normal((4, 2000, 6)) / np.sqrt(1 + 3 * betas)
    stones = stepping_stones(betas, -1.5 * x**2)
    evidence = stones.combined
    assert abs(evidence.log_evidence + np.log(2)) < 4.5 * evidence.standard_error
    assert 0.003 < evidence.standard_error < 0.01
    assert abs(stones.gap[0]) < 4 * stones.gap[1]


def _same(a, b):
    return np.array_equal(group(a, "posterior")["x"].values, group(b, "posterior")["x"].values)


def test_log_likelihoods_that_are_huge_in_the_prior_leave_the_evidence_right():
    def likelihood(x):
        value = -np.exp(-20 * x[:, 0])
        return value, -20 * value[:, None]

    exact = quad(lambda x: stats.norm.pdf(x, 0, 5) * np.exp(-np.exp(-20 * x)), -1, 40, points=(0, 1))[0]
    target = FunctionTarget(
        1, likelihood, lambda x: normal(x, 0.0, 5.0), lambda n, rng: 5 * rng.standard_normal((n, 1))
    )
    attrs = group(sample_tempering(target, draws=300, tune=150, random_seed=1, progressbar=False), "posterior").attrs
    assert abs(attrs["log_evidence"] - np.log(exact)) < 4 * attrs["log_evidence_se"] < 0.2
    assert attrs["log_evidence_trusted"]


def test_cores_and_executors_change_nothing():
    case, how = Conjugate(2, 1.0), {"draws": 100, "tune": 50, "chains": 2, "random_seed": 7, "progressbar": False}
    one = sample_tempering(case.target(), cores=1, **how)
    assert _same(one, sample_tempering(case.target(), cores=2, **how))
    with ThreadPoolExecutor(1) as pool:
        assert _same(one, sample_tempering(case.target(), executor=pool, **how))


def test_zero_density_on_a_part_of_the_prior_is_a_part_of_the_evidence():
    def half(x):
        return np.where(x[:, 0] > 0, 0.0, -np.inf), np.zeros_like(x)

    target = FunctionTarget(2, half, lambda x: normal(x, 0.0, 1.0), lambda n, rng: rng.standard_normal((n, 2)))
    idata, attrs = run(target, draws=400, tune=100, random_seed=2)
    assert abs(attrs["log_evidence"] - np.log(0.5)) < 4.5 * attrs["log_evidence_se"]
    assert 0.005 < attrs["log_evidence_se"] < 0.1
    assert (group(idata, "posterior")["x"].values[..., 0] > 0).all()
    assert attrs["log_evidence_trusted"] == 1


def test_zero_density_on_a_part_of_a_prior_that_a_run_samples_is_a_part_of_the_evidence():
    def half(x):
        return np.where(x[:, 0] > 0, 0.0, -np.inf), np.zeros_like(x)

    prior = FunctionTarget(1, lambda x: normal(x, 0.0, 1.0))
    path = SampledPriorPath(FunctionTarget(1, half, prior.log_density_and_gradient), prior, Hmc()).for_moves(True)
    made = run_ensemble(path, "hmc", 2, 20, 20, Plan(4, 1), np.random.default_rng(1))
    found = _evidence(path, made, stepping_stones(made.betas, made.increment))
    assert abs(found.log_evidence - np.log(0.5)) < 4.5 * found.standard_error
    assert found.standard_error < 0.2


def test_a_density_that_is_not_a_number_near_the_posterior_is_named():
    def broken(x):
        value, slope = normal(x, 0.0, 1.0)
        return np.where(x[:, 0] < 0.5, value, np.nan), slope

    target = FunctionTarget(1, broken, lambda x: normal(x, 0.0, 2.0), lambda n, rng: 2 * rng.standard_normal((n, 1)))
    with pytest.warns(SamplerWarning, match="met a log density that is NaN or"):
        _, attrs = run(target, draws=200, tune=50, random_seed=1)
    assert attrs["log_evidence_trusted"] == 0
    assert attrs["accuracy"] == "approximate"


def test_too_few_temperatures_are_named():
    with pytest.warns(SamplerWarning, match=r"% of the swaps between beta = .* are accepted"):
        run(two_modes(20), draws=60, tune=30, chains=2, temperatures=2, random_seed=1)


def test_few_round_trips_are_named():
    with pytest.warns(SamplerWarning, match=r"\d+ round trips between the reference and the posterior in 30 draws"):
        run(two_modes(10), draws=30, tune=60, chains=2, random_seed=1)


def test_draws_without_tuning_are_named():
    with pytest.warns(SamplerWarning, match="0 scans of tuning, fewer than 20, leave draws of the reference"):
        _, attrs = run(Conjugate(2, 1.0).target(), draws=200, tune=0, random_seed=1)
    assert attrs["log_evidence_trusted"] == 0


def test_an_interrupted_run_returns_its_draws():
    class Stops(Conjugate):
        calls = 0

        def likelihood(self, x):
            self.calls += 1
            if self.calls == 900:
                raise KeyboardInterrupt
            return super().likelihood(x)

    with pytest.warns(SamplerWarning, match=r"interrupted: \d+ of 5000 draws are returned"):
        idata, attrs = run(Stops(1, 1.0).target(), draws=5000, tune=50, chains=2, kernel="random_walk", random_seed=1)
    assert attrs["complete"] == 0
    assert 2 <= group(idata, "posterior").sizes["draw"] < 5000


def test_options_out_of_range_are_refused_in_one_line():
    target = Conjugate(1, 0.0).target()
    with pytest.raises(ModelError, match="temperatures=1: expected"):
        sample_tempering(target, temperatures=1)
    with pytest.raises(ModelError, match="kernel='nuts'"):
        sample_tempering(target, kernel="nuts")
    with pytest.raises(ModelError, match="draws=1: expected an integer of at least 2"):  # both halves are looked at
        sample_tempering(target, draws=1)


def test_moves_are_measured_without_the_swaps():
    """A kernel that does not move leaves a correlation of one in V, however many swaps are accepted."""
    path = PriorPath(Conjugate(1, 0.0).target()).for_moves(False)
    rng = np.random.default_rng(1)
    ensemble, *_ = begin(path, "random_walk", 4, Plan(3, 1), rng)
    steps = tuple(step._replace(log_average=np.full(4, -30.0)) for step in ensemble.explorer.steps)
    still = replace(ensemble.explorer, steps=steps)
    ensemble, record = ensemble._replace(explorer=still), Record.of(ensemble, 40)
    for _ in range(40):
        ensemble, figures = scan(ensemble, rng, tune=False)
        record.add(ensemble, figures)
    assert np.mean([figures.rejection for figures in record.figures]) < 0.8
    assert record.correlation() == pytest.approx(1.0, abs=1e-6)


def test_a_run_keeps_what_it_is_asked_for():
    case = Conjugate(1, 0.0)
    path = PriorPath(case.target()).for_moves(False)
    made = run_ensemble(path, "random_walk", 2, 20, 0, Plan(5, 2), np.random.default_rng(1))
    assert isinstance(made, Run)
    assert made.complete
    assert made.moves == 2
    assert made.x.shape == (2, 20, 1)
    assert made.increment.shape == (2, 20, 6)
    assert replace(at_points(path, np.zeros((1, 1)), np.ones(1)), beta=np.zeros(1)).log_density[0] == pytest.approx(
        normal(np.zeros((1, 1)), 0.0, 2.0)[0][0]
    )


def test_the_reference_is_drawn_for_many_scans_at_once():
    calls = []

    def draws(n, rng):
        calls.append(n)
        return rng.standard_normal((n, 1))

    def near_one(x):
        return -0.5 * (x[:, 0] - 1.0) ** 2, 1.0 - x

    target = FunctionTarget(1, near_one, lambda x: (stats.norm.logpdf(x[:, 0]), -x), draws)
    sample_tempering(target, draws=300, tune=100, chains=2, random_seed=1, progressbar=False)
    assert len(calls) < 15


def test_an_evidence_without_a_finite_error_is_not_trusted():
    stones = stepping_stones(np.array([0.0, 1.0]), np.zeros((2, 1, 2)))  # a single scan shows no variance
    found = SimpleNamespace(evidence=stones.combined, stones=stones)
    assert _of_evidence(found) == ["the log evidence has no finite standard error: increase tune and draws"]


def test_ratios_of_states_without_likelihood_are_found():
    """Two states below, one of likelihood zero, and two above: the mean of s(-1000 - c) / 2 is that of s(c), at c = -500."""
    below, above = np.array([[[-np.inf], [-1000.0]]]), np.zeros((1, 2, 1))
    np.testing.assert_allclose(log_ratios(below, above), [[-500.0 - 0.5 * np.log(2)]], atol=1e-6)

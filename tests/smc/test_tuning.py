"""Kernels tuned by the particles they move: same posteriors, and sensible steps."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.kernels.protocol import KernelInfo
from ppl_backends.kernels.table import make_kernel
from ppl_backends.kernels.tuning import BuchholzPretuning, FearnheadTaylor, StepParameters, make_tuning
from ppl_backends.results.inference_data import group
from tests.toys import conjugate_gaussian, gamma_poisson

KNOWN = {"gaussian": conjugate_gaussian(), "skewed": gamma_poisson()}


def outcome(energy_error, squared_jump):
    acceptance = np.exp(-np.maximum(energy_error, 0))
    return KernelInfo(acceptance, acceptance > 0.5, squared_jump, np.ones(len(acceptance)), -energy_error)


def test_the_trial_finds_the_step_at_which_nine_in_ten_are_accepted():
    """|ΔE| = 0.8 ε² up to noise: ε* = √(|log 0.9| / 0.8)."""
    rng = np.random.default_rng(0)
    tuning = BuchholzPretuning(StepParameters(np.ones(1), np.ones(1, dtype=int)), 1.0, 25, 0.9)

    def trial(tried):
        noise = rng.exponential(1 / np.log(2), len(tried.scale))  # of median one
        return outcome(0.8 * tried.scale**2 * noise, tried.n_steps * tried.scale**2)

    for _ in range(3):
        tuning = tuning.prepare(trial, 4000, rng)
    assert tuning.largest == pytest.approx(np.sqrt(-np.log(0.9) / 0.8), rel=0.05)
    assert tuning.pairs.scale.max() < 1.06 * tuning.largest


def test_the_longest_trajectory_grows_while_long_ones_pay_and_shrinks_while_they_do_not():
    rng = np.random.default_rng(0)
    for power, compare in ((3.0, np.greater), (-1.0, np.less)):
        tuning = BuchholzPretuning(StepParameters(np.ones(1), np.ones(1, dtype=int)), 1.0, 25, 0.9)
        for _ in range(3):
            tuning = tuning.prepare(lambda tried, k=power: outcome(0 * tried.scale, tried.n_steps**k), 2000, rng)
        assert compare(tuning.longest, 25)


def test_a_trial_with_no_finite_energy_halves_the_step():
    tuning = BuchholzPretuning(StepParameters(np.ones(1), np.ones(1, dtype=int)), 1.0, 25, 0.9)
    after = tuning.prepare(lambda tried: outcome(np.full(50, np.inf), np.ones(50)), 50, np.random.default_rng(0))
    assert after.largest == 0.5


def test_pairs_that_did_well_are_carried_on():
    rng = np.random.default_rng(0)
    pairs = StepParameters(np.repeat([0.1, 0.9], 500), np.repeat([3, 9], 500))
    tuning = FearnheadTaylor(pairs, np.ones(1000), 200)
    tuning = tuning.learn(outcome(np.zeros(1000), np.repeat([0.0, 1.0], 500)), first=True)
    carried = tuning.prepare(lambda tried: None, 1000, rng).pairs
    assert carried.scale == pytest.approx(0.9, abs=0.1)
    assert set(carried.n_steps) == {8, 9, 10}


@pytest.mark.parametrize(("jumps", "share"), [((1.0, 3.0), 0.75), ((1.0, 1.0), 0.5), ((5.0, 0.0), 0.25)])
def test_kinds_of_proposals_take_turns_in_proportion_to_their_jumps(jumps, share):
    tuning, turns = make_tuning("acceptance", make_kernel("mixed"), 50, 4, np.random.default_rng(0)), []
    for _ in range(100):
        turns.append(tuning.parameters())
        accepted = 0.5 if turns[-1].part else 0.1
        jump = np.full(50, jumps[turns[-1].part] / accepted)
        info = KernelInfo(np.full(50, accepted), np.ones(50, bool), jump, np.ones(50), np.log(np.full(50, accepted)))
        tuning = tuning.learn(info, first=False)
    assert np.mean([turn.part for turn in turns[20:]]) == pytest.approx(share, abs=0.03)
    walk, independent = (next(turn.scale for turn in turns[::-1] if turn.part == part) for part in (0, 1))
    assert walk < 2.38 / np.sqrt(4)  # too few accepted, and too many at the largest scale
    assert independent == 1.0


# The second pass makes as many moves as the first one found enough, at its luck: now and then they are a few short.
@pytest.mark.filterwarnings("ignore:tempering SMC")
def test_tunings_by_name():
    options = {"draws": 3000, "chains": 2, "len_chain": 5, "random_seed": 1, "progressbar": False}
    for tuning in ("ft", "pr"):
        idata = pb.sample_smc(KNOWN["skewed"].target, tuning=tuning, unbiased=True, **options)
        attrs = group(idata, "posterior").attrs
        assert attrs["tuning"] == tuning
        assert abs(attrs["log_evidence"] - KNOWN["skewed"].log_evidence) < 5 * attrs["log_evidence_se"]
    with pytest.raises(ModelError, match="tuning='guess'"):
        pb.sample_smc(KNOWN["skewed"].target, tuning="guess", **options)


@pytest.mark.parametrize(
    ("tuning", "kernel"), [("acceptance", "hmc"), pytest.param("pr", "hmc", marks=pytest.mark.slow), ("ft", "mala")]
)
def test_a_diagonal_metric_gives_the_same_evidence(tuning, kernel):
    tuning = tuning if tuning == "acceptance" else pb.FirstPairs(tuning, 1.0, 20)
    options = {"draws": 1000, "chains": 4, "random_seed": 2, "progressbar": False, "kernel": kernel}
    idata = pb.sample_smc(KNOWN["gaussian"].target, metric="diagonal", tuning=tuning, **options)
    attrs = group(idata, "posterior").attrs
    assert attrs["metric"] == "diagonal"
    assert abs(attrs["log_evidence"] - KNOWN["gaussian"].log_evidence) < 5 * attrs["log_evidence_se"]


def test_first_pairs_are_uniform_up_to_what_is_asked_for():
    """The mean of n uniforms on (0, 0.1) has the error 0.1 / √(12 n)."""
    rng, n, first = np.random.default_rng(0), 5000, pb.FirstPairs("ft", 0.1, 100)
    pairs = make_tuning(first, make_kernel("hmc"), n, 3, rng).pairs
    assert pairs.scale.mean() == pytest.approx(0.05, abs=5 * 0.1 / np.sqrt(12 * n))
    assert pairs.scale.max() < 0.1
    assert pairs.n_steps.min() == 1
    assert pairs.n_steps.max() == 100
    assert make_tuning(first, make_kernel("mala"), n, 3, rng).pairs.n_steps.max() == 1
    for wrong in (pb.FirstPairs("acceptance", 0.1, 100), pb.FirstPairs("pr", 0.0, 100), pb.FirstPairs("pr", 0.1, 0)):
        with pytest.raises(ModelError, match="FirstPairs"):
            make_tuning(wrong, make_kernel("hmc"), n, 3, rng)

"""Waste-free chains, schedules by conditional ESS or given, and runs whose evidence is unbiased."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.kernels.table import make_kernel
from ppl_backends.results.inference_data import group
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.sampler import run_tempering
from ppl_backends.smc.schedule import make_schedule, next_beta
from tests.toys import bimodal, conjugate_gaussian, gamma_poisson

KNOWN = {"gaussian": conjugate_gaussian(), "skewed": gamma_poisson(), "bimodal": bimodal()}
VARIANTS = {
    "waste-free": {"len_chain": 10},
    "cess": {"schedule": make_schedule("cess", 0.9)},
    "given": {"schedule": make_schedule(np.geomspace(0.003, 1, 12), 0.5), "moves": MoveSettings(1, 20)},
    "unbiased": {"unbiased": True},
    "unbiased waste-free": {"unbiased": True, "len_chain": 10},
}


def run(known, seed, n=1000, kernel="hmc", **options):
    return run_tempering(PriorPath(known.target), make_kernel(kernel), n, np.random.default_rng([9, seed]), **options)


def test_waste_free_keeps_every_state_of_every_chain():
    done = run(KNOWN["gaussian"], 0, n=600, len_chain=20)
    assert done.x.shape == (600, 5)
    assert done.stages[0].moves.n_moves == 19
    chains = done.x.reshape(30, 20, 5)
    assert len(np.unique(chains[:, :, 0])) > 300
    # An ancestor is that of the whole chain.
    assert (done.lineage.ancestor.reshape(30, 20) == done.lineage.ancestor.reshape(30, 20)[:, :1]).all()


def test_a_length_that_does_not_divide_the_draws_leaves_some_states_out():
    done = run(KNOWN["gaussian"], 0, n=500, len_chain=7)
    assert done.x.shape == (500, 5)
    assert abs(done.log_evidence - KNOWN["gaussian"].log_evidence) < 6 * done.lineage.variance**0.5


def test_chains_that_remember_are_made_longer_and_thinned():
    """A random walk on a correlated Gaussian takes more than four moves to lose its autocorrelation."""
    done = run(KNOWN["gaussian"], 0, n=2000, len_chain=5, kernel="random_walk", moves=MoveSettings(1, 300))
    n_moves = np.array([stage.moves.n_moves for stage in done.stages])
    assert n_moves.max() > 4
    assert set(n_moves % 4) == {0}
    assert done.x.shape == (2000, 5)


def test_conditional_ess_climbs_without_resampling_at_every_step():
    done = run(KNOWN["gaussian"], 0, schedule=make_schedule("cess", 0.95), keep_ladder=True)
    sizes = np.array([stage.ess for stage in done.stages])
    assert (sizes > 0.45 * 1000).all()
    weighted = [rung.log_weight.any() for rung in done.ladder]
    assert any(weighted)
    assert not weighted[-1]


def test_conditional_ess_of_equal_weights_is_the_ess():
    increment = np.random.default_rng(0).gamma(0.5, size=500) * 10
    assert next_beta(increment, 0.2, 0.5, np.full(500, 1 / 500)) == next_beta(increment, 0.2, 0.5)


def test_given_exponents_are_visited():
    done = run(KNOWN["gaussian"], 0, schedule=make_schedule((0.01, 0.2), 0.5))
    assert [stage.beta for stage in done.stages] == [0.01, 0.2, 1.0]


@pytest.mark.slow
def test_frozen_runs_have_an_unbiased_evidence_where_adaptive_ones_need_not():
    """Mean of Ẑ/Z over replicates of few particles; the runs are skewed, so the error is that of the replicates."""
    known = gamma_poisson()
    ratios = {}
    for unbiased in (True, False):
        runs = [run(known, seed, n=20, kernel="random_walk", unbiased=unbiased) for seed in range(300)]
        ratios[unbiased] = np.exp([each.log_evidence - known.log_evidence for each in runs])
    error = ratios[True].std(ddof=1) / 300**0.5
    assert error < 0.05
    assert abs(ratios[True].mean() - 1) < 4.5 * error
    assert np.isfinite(ratios[False]).all()


def test_the_second_run_follows_the_first_to_the_letter():
    done = run(KNOWN["gaussian"], 0, n=200, unbiased=True)
    assert not done.records["plan"].pilot
    assert [stage.beta for stage in done.stages] == list(done.records["plan"].moves)
    assert [stage.moves.n_moves for stage in done.stages] == [
        len(moves.scales) for moves in done.records["plan"].moves.values()
    ]


def test_variants_by_name(tmp_path):
    options = {"draws": 1000, "chains": 2, "random_seed": 1, "progressbar": False}
    target = KNOWN["gaussian"].target
    for variant in ({"len_chain": 10}, {"schedule": "cess", "ess_threshold": 0.9}, {"unbiased": True}):
        idata = pb.sample_smc(target, **variant, checkpoint=tmp_path / f"{len(str(variant))}", **options)
        again = pb.sample_smc(target, **variant, checkpoint=tmp_path / f"{len(str(variant))}", **options)
        np.testing.assert_array_equal(group(idata, "posterior")["x"], group(again, "posterior")["x"])
        attrs = group(idata, "posterior").attrs
        assert abs(attrs["log_evidence"] - KNOWN["gaussian"].log_evidence) < 5 * attrs["log_evidence_se"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"len_chain": 1}, "len_chain=1"),
        ({"len_chain": 60}, "len_chain=60"),
        ({"schedule": "slow"}, "schedule='slow'"),
        ({"schedule": [0.5, 0.2]}, r"schedule=\[0.5, 0.2\]"),
        ({"schedule": [0.5, 1.2]}, "increasing numbers above 0 and at most 1"),
    ],
)
def test_bad_variants_are_named(options, message):
    with pytest.raises(ModelError, match=message):
        pb.sample_smc(KNOWN["gaussian"].target, draws=100, chains=1, progressbar=False, **options)


def test_states_of_the_last_stage_are_thinned_if_they_correlate_and_the_run_is_long():
    """They are the result, and their moves are few beside those of the earlier stages. Short trajectories correlate."""

    def last(n_stages, length, most=100):
        kernel, schedule = make_kernel("hmc"), make_schedule(np.linspace(0, 1, n_stages + 1)[1:], 0.5)
        kernel.length *= length
        path, options = PriorPath(KNOWN["gaussian"].target), {"schedule": schedule, "moves": MoveSettings(1, most)}
        done = run_tempering(path, kernel, 600, np.random.default_rng(1), len_chain=20, **options)
        assert done.x.shape == (600, 5)
        return done.stages[-1].moves.n_moves

    assert last(25, 1.0) == last(8, 0.7) == last(25, 0.7, most=20) == 19
    assert last(9, 0.7) == 2 * 19
    assert last(25, 0.5) == 4 * 19

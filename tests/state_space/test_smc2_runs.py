"""Runs of SMC² that are killed, out of time, spread over workers, or read from a file: the same bits."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import arviz as az
import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.results.inference_data import group
from ppl_backends.targets.factors import Logit
from tests.state_space.toys import Y, log_evidence, series, target

pytestmark = pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")
OPTIONS = {"draws": 40, "chains": 2, "n_particles": 8, "max_moves": 4, "random_seed": 4, "progressbar": False}


def smc2(y=Y, **options):
    return pb.sample_smc2(target(y), **(OPTIONS | options))


def same(one, other):
    for name in ("posterior", "unconstrained_posterior", "prequential"):
        for variable in group(one, name).data_vars:
            np.testing.assert_array_equal(group(one, name)[variable], group(other, name)[variable], err_msg=variable)
    assert group(one, "posterior").attrs["log_evidence"] == group(other, "posterior").attrs["log_evidence"]


@pytest.fixture(scope="module")
def whole():
    return smc2()


SCRIPT = """
import sys
from tests.state_space.test_smc2_runs import smc2
smc2(checkpoint=sys.argv[1])
"""


def test_a_killed_run_resumes_to_the_same_bits(tmp_path, whole):
    path, second = tmp_path / "run", tmp_path / "run.chain1"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)])
    deadline = time.monotonic() + 120
    while not second.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    assert process.wait() in (-signal.SIGKILL, 0)
    assert second.exists()
    same(smc2(checkpoint=path), whole)


@pytest.mark.parametrize("moves", ["auto", pytest.param("gibbs", marks=pytest.mark.slow)])
def test_every_block_can_be_gone_on_from(tmp_path, moves):
    """A run that is out of time after each block, taken up again and again."""
    complete = [False]
    while not complete[-1]:
        left = smc2(checkpoint=tmp_path / "run", max_time=1e-9, moves=moves)
        complete.append(group(left, "posterior").attrs["complete"])
    assert len(complete) > 3
    same(left, smc2(moves=moves))


def volatility(y=Y):
    with pm.Model() as model:
        pb.StateSpace("y", pb.state_space.stochastic_volatility(), mu=pm.Normal("mu"), rho=0.9, sigma=0.3, observed=y)
    return model


@pytest.mark.slow
def test_checkpoints_of_other_filters_or_rows_are_refused(tmp_path):
    options = OPTIONS | {"checkpoint": tmp_path / "run", "max_time": 1e-9}
    pb.sample_smc2(volatility(), **options)
    with pytest.raises(ModelError, match="n_particles differ"):
        pb.sample_smc2(volatility(), **(options | {"n_particles": 12}))
    with pytest.raises(ModelError, match="state space, rows differ"):
        pb.sample_smc2(volatility(Y + 1e-9), **options)


def test_ibis_has_checkpoints_too(tmp_path):
    rng = np.random.default_rng(0)
    model = pb.Factors(
        rng.normal(size=(20, 2)), 0.0, Logit(rng.integers(0, 2, 20)), prior_mean=0.0, prior_precision=0.25
    )
    options = {"draws": 50, "chains": 2, "random_seed": 3, "progressbar": False}
    pb.sample_ibis(model, checkpoint=tmp_path / "run", max_time=1e-9, **options)
    same(pb.sample_ibis(model, checkpoint=tmp_path / "run", **options), pb.sample_ibis(model, **options))


def test_a_run_that_is_out_of_time_keeps_the_rows_that_it_let_in(recwarn):
    left = smc2(max_time=1e-9)
    attrs, scores = group(left, "posterior").attrs, group(left, "prequential")["log_score"].values
    assert any(issubclass(warning.category, SamplerWarning) for warning in recwarn)
    assert attrs["complete"] == 0
    assert 1 <= attrs["n_observations"] < len(Y)
    rest = pb.update_smc(left, target(), random_seed=1, progressbar=False)
    assert group(rest, "posterior").attrs["n_observations"] == len(Y)
    assert scores.shape[1] < group(rest, "prequential").sizes["observation"] == len(Y)


@pytest.mark.parametrize("moves", ["auto", pytest.param("gibbs", marks=pytest.mark.slow)])
def test_rows_are_let_in_by_a_result_that_was_on_disk(tmp_path, moves):
    longer = series(len(Y) + 6)
    before = smc2(longer[: len(Y)], moves=moves)
    before.to_netcdf(str(tmp_path / "result.nc"))
    read = az.from_netcdf(str(tmp_path / "result.nc"))
    new = [pb.update_smc(each, target(longer), random_seed=2, progressbar=False) for each in (before, read)]
    same(*new)
    attrs = group(new[0], "posterior").attrs
    exact = log_evidence(longer) - log_evidence(longer[: len(Y)])
    assert abs(attrs["log_evidence_new"] - exact) < 5 * attrs["log_evidence_new_se"]


@pytest.mark.slow
def test_spawned_workers_give_the_same_bits():
    options = OPTIONS | {"chains": 3}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        over = pb.sample_smc2(volatility(), executor=pool, **options)
    same(over, pb.sample_smc2(volatility(), **options))

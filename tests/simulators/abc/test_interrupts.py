"""Ctrl-C, by a real signal: inside a stage that can be kept, inside one that cannot, and before any result exists."""

import os
import signal

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from tests.simulators.abc.toys import box, log_ball, mixture

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends itself a signal")

OPTIONS = {
    "observed": np.zeros(2),
    "chains": 2,
    "draws": 512,
    "pilot_points": 512,
    "random_seed": 1,
    "progressbar": False,
}


@pytest.fixture(autouse=True)
def _signals_are_heard():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class PressesCtrlC:
    """The mixture, which presses Ctrl-C after a number of data sets."""

    def __init__(self, after):
        self.left = after

    def __call__(self, parameters, rng):
        before, self.left = self.left, self.left - len(parameters["x"])
        if self.left <= 0 < before:
            os.kill(os.getpid(), signal.SIGINT)
        return mixture(parameters, rng)


@pytest.mark.parametrize("method", ["sequential", "smc"])
def test_what_is_there_is_kept(method):
    simulate = PressesCtrlC(8000)
    with pytest.warns(SamplerWarning, match="Ctrl-C"):
        idata = pb.sample_abc(box(2), simulate=simulate, epsilon=0.01, method=method, **OPTIONS)
    attrs = idata.posterior.attrs
    assert attrs["ended_by"] in ("interrupted", "interrupted by Ctrl-C")
    assert 0.01 < attrs["epsilon"] < 10
    assert idata.posterior.sizes["draw"] == 512
    assert attrs["log_evidence_trusted"] == 0
    assert attrs["log_evidence_unbiased"] == 0
    assert abs(attrs["log_evidence"] - log_ball(attrs["epsilon"], 2)) < 0.5
    assert np.linalg.norm(idata.posterior["x"].values, axis=-1).max() < attrs["epsilon"] + 2


def test_the_last_stage_keeps_the_blocks_that_are_done(monkeypatch):
    monkeypatch.setattr("ppl_backends.simulators.abc.stages.SIMULATIONS_A_BLOCK", 256)
    options = {"epsilon": 2.0, "method": "importance", "data_sets": 4, **OPTIONS}
    with pytest.warns(SamplerWarning, match="so far are returned"):
        idata = pb.sample_abc(box(2), simulate=PressesCtrlC(2000), **options)
    attrs = idata.posterior.attrs
    assert attrs["log_evidence_unbiased"] == 1
    assert attrs["simulations"] < 4 * 1024
    assert abs(attrs["log_evidence"] - log_ball(2.0, 2)) < 4 * attrs["log_evidence_se"]


@pytest.mark.parametrize("method", ["sequential", "smc"])
def test_before_the_first_stage_it_travels_on(method):
    with pytest.raises(KeyboardInterrupt):
        pb.sample_abc(box(2), simulate=PressesCtrlC(1), epsilon=0.01, method=method, **OPTIONS)

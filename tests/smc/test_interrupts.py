"""Ctrl-C while chains run in spawned workers: a signal to the whole process group, as a terminal sends it."""

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import parent_process
from pathlib import Path

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.results.inference_data import group
from ppl_backends.targets import FunctionTarget
from tests.toys import conjugate_gaussian

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends a signal to a process group")

OPTIONS = {"draws": 200, "chains": 3, "random_seed": 4, "progressbar": False}
LONGEST = 120  # seconds

# A job in the background of a shell ignores Ctrl-C, and so would everything that it starts.
SCRIPT = """
import json, signal, sys, warnings
signal.signal(signal.SIGINT, signal.default_int_handler)
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import ppl_backends as pb
from ppl_backends import parallel
from ppl_backends.results.inference_data import group
from tests.smc.test_interrupts import OPTIONS, Held
method, marker, checkpoint, stall = sys.argv[1:5]
parallel._GRACE = 0.1 if stall else 60.0  # seconds, of which a slow machine may need more than two
with warnings.catch_warnings(record=True) as said, ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
    warnings.simplefilter("always")
    if method == "smc":
        idata = pb.sample_smc(Held(marker, stall=stall), executor=pool, checkpoint=checkpoint or None, **OPTIONS)
    else:
        idata = pb.sample_mcmc(Held(marker, mark=60, hold=1), step=pb.steps.RandomWalk(), executor=pool, tune=10, **OPTIONS)
posterior = group(idata, "posterior")
attrs = {name: posterior.attrs[name] for name in ("complete", "accuracy")}
first = posterior["x"].values[0].tolist()
print(json.dumps({"sizes": dict(posterior.sizes), "said": [str(w.message) for w in said], "first": first} | attrs))
"""


class Held(FunctionTarget):
    """The conjugate Gaussian, which leaves a byte in a file at call ``mark`` of a job, and then waits for the signal.

    It waits once the file has ``hold`` bytes. Once a file of a chain of checkpoint ``stall`` exists, it hears no signal for
    some seconds after the signal, as in long compiled code.
    """

    def __init__(self, marker, mark=10, hold=3, stall=""):
        known = conjugate_gaussian(3)
        vars(self).update(vars(known.target))
        self.marker, self.mark, self.hold, self.stall, self.known, self.calls = marker, mark, hold, stall, known, 0

    def __reduce__(self):
        return Held, (self.marker, self.mark, self.hold, self.stall)

    def evaluate(self, x, gradient=False):
        if parent_process() is None:  # searches after the run
            return self.known.target.evaluate(x, gradient)
        if self.calls == self.mark:
            with open(self.marker, "a") as file:
                file.write("x")
        self.calls += 1
        if self.stall and chains_on_disk(self.stall):
            before = signal.signal(signal.SIGINT, lambda *_: None)
            while not Path(self.marker).with_name("sent").exists():
                time.sleep(0.01)
            time.sleep(4.0)
            signal.signal(signal.SIGINT, before)
            raise KeyboardInterrupt
        if not self.stall and self.calls > self.mark and bytes_in(self.marker) >= self.hold:
            time.sleep(LONGEST)
        return self.known.target.evaluate(x, gradient)


def interrupted(method, folder, begun, checkpoint="", stall=""):
    """Return what a run leaves after Ctrl-C, sent as a terminal sends it, once ``begun(folder)``."""
    command = [sys.executable, "-c", SCRIPT, method, str(folder / "marker"), checkpoint, stall]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while not begun(folder) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        (folder / "sent").touch()
        output, errors = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def chains_on_disk(checkpoint):
    return list(Path(checkpoint).parent.glob(f"{Path(checkpoint).name}.chain?"))


def bytes_in(marker):
    return Path(marker).stat().st_size if Path(marker).exists() else 0


def test_ctrl_c_keeps_the_chains_that_workers_finished(tmp_path):
    left = interrupted("smc", tmp_path, lambda folder: bytes_in(folder / "marker") >= 3)
    assert left["sizes"]["chain"] in (1, 2)
    assert left["sizes"]["draw"] == OPTIONS["draws"]
    assert left["complete"] == 0
    # Nothing shows what a chain misses that finished alone
    assert left["accuracy"] == ("exact" if left["sizes"]["chain"] == 2 else "approximate")
    assert "interrupted: " in left["said"][0]
    whole = group(pb.sample_smc(conjugate_gaussian(3).target, **OPTIONS), "posterior")["x"].values
    assert any(np.array_equal(left["first"], chain) for chain in whole)


@pytest.mark.slow
def test_ctrl_c_keeps_the_draws_of_chains_that_a_worker_moves_as_one_batch(tmp_path):
    left = interrupted("mcmc", tmp_path, lambda folder: bytes_in(folder / "marker") >= 1)
    assert left["sizes"]["chain"] == OPTIONS["chains"]
    assert 0 < left["sizes"]["draw"] < OPTIONS["draws"]
    assert left["complete"] == 0
    assert left["accuracy"] == "approximate"
    assert "interrupted: " in left["said"][0]


@pytest.mark.slow
def test_ctrl_c_takes_from_the_disk_what_a_worker_did_not_hand_in(tmp_path):
    checkpoint = str(tmp_path / "run")
    left = interrupted("smc", tmp_path, lambda _: chains_on_disk(checkpoint), checkpoint, stall=checkpoint)
    assert left["sizes"]["draw"] == OPTIONS["draws"]
    assert left["complete"] == 0
    assert left["accuracy"] == "approximate"
    assert "interrupted: all chains stopped before beta = 1" in left["said"][0]
    resumed = pb.sample_smc(conjugate_gaussian(3).target, checkpoint=tmp_path / "run", **OPTIONS)
    whole = pb.sample_smc(conjugate_gaussian(3).target, **OPTIONS)
    np.testing.assert_array_equal(group(resumed, "posterior")["x"], group(whole, "posterior")["x"])

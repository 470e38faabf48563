"""Settings of the whole suite, doctests included; they must stand before NumPy, JAX and PyTensor are first imported."""

import os
import re
from functools import cache
from pathlib import Path

for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(pool, "1")  # worker processes are the parallelism here
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time goes into compiling programs that other tests, workers and subprocesses compile too.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

import pytest
from hypothesis import HealthCheck, settings

from ppl_backends.approximations import missed_modes

# Compilation falls into the first example, so that no deadline fits; derandomised, so that a failure repeats.
settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


# Rooms that compute with NumPy, SciPy and Numba, and know a model only as a target.
NUMERICAL = {
    *("approximations", "ep", "gibbs", "importance", "kernels", "mean_field", "model_search", "numerics", "orthants"),
    *("simulators", "sklearn", "smc", "tempering"),
}
STACK = re.compile(r"pymc|\bpm\.|pytensor|jax|arviz|\baz\.|bambi|\bstan\b|stan_|_stan", re.IGNORECASE)


@cache
def is_numerical(file):
    """Return whether a test file is in one of these rooms and names nothing of the stack of PyMC, JAX, ArviZ and Stan."""
    rooms = file.relative_to(Path(__file__).parent).parts if file.is_relative_to(Path(__file__).parent) else ()
    return not NUMERICAL.isdisjoint(rooms) and not STACK.search(file.read_text(encoding="utf-8"))


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items):
    for item in items:
        if is_numerical(item.path):
            item.add_marker("numerical")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker one stretch of the tests, of which idle ones steal: programs of a file are compiled once."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.fixture(autouse=True)
def few_draws_look_for_narrow_modes(monkeypatch):
    """Limit the search for narrow modes in tests of other things; importance sampling would take ten times as long."""
    monkeypatch.setattr(missed_modes, "_ALL_ROUNDS", 16)

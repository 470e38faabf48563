"""Settings of the whole suite, doctests included; they must stand before NumPy, JAX and PyTensor are first imported."""

import os
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


@pytest.fixture(autouse=True)
def few_draws_look_for_narrow_modes(monkeypatch):
    """Limit the search for narrow modes in tests of other things; importance sampling would take ten times as long."""
    monkeypatch.setattr(missed_modes, "_ALL_ROUNDS", 16)

"""Programs compiled once for all tests of this folder; the cache makes every later run instant."""

from pathlib import Path

import numpy as np
import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def regression_data():
    rng = np.random.default_rng(11)
    X = rng.normal(size=(60, 3))
    y = (rng.random(60) < 1 / (1 + np.exp(-X @ [1.0, -0.5, 0.2]))).astype(int)
    return {"N": 60, "D": 3, "X": X, "y": y}


@pytest.fixture(scope="session")
def regression(regression_data):
    """Return logistic regression: its data are rows, and it has ``log_lik``."""
    from ppl_backends.targets.stan import stan_target

    return stan_target(PROGRAMS / "regression.stan", regression_data, rows={"N": ["X", "y"]}, cores=2)


@pytest.fixture(scope="session")
def language_data():
    return {
        "N": 3,
        "y": [1.0, 2.0, 3.0],
        "K": 0,
        "nothing": np.zeros((0, 2)),
        "pair": (0.5, [1, 2]),
        "shift": 1 + 2j,
        "nested": [(1.5, [1.0, 2.0]), (2.0, [3.0, 4.0])],
    }


@pytest.fixture(scope="session")
def language(language_data):
    """Return tuples, complex numbers, empty variables, an include, ``reduce_sum``, ``profile`` and ``print``."""
    from ppl_backends.targets.stan import stan_target

    return stan_target(PROGRAMS / "language.stan", language_data)


@pytest.fixture(scope="session")
def rejecting():
    """Return a program that throws on half of its points."""
    from ppl_backends.targets.stan import stan_target

    return stan_target(PROGRAMS / "rejecting.stan", {"N": 0, "row": [], "M": 0, "sizing": []}, cores=2)

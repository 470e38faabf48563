"""The data sets: shapes and coding, the scalings, and a figure that only the right design and coding give."""

import numpy as np
import pytest

from ppl_backends.datasets import BINARY_REGRESSIONS, load_binary_regression, load_finpines
from ppl_backends.errors import ModelError

# Rows, columns with the intercept, and how many y are 1; Chopin & Ridgway (2017) give the first two of most sets.
SIZES = {
    "pima": (532, 8, 177),
    "breast_wisconsin": (683, 10, 239),
    "plasma": (32, 3, 6),
    "heart": (270, 14, 120),
    "australian": (690, 15, 307),
    "glass": (214, 10, 70),
    "dna": (3186, 181, 767),
    "ionosphere": (351, 34, 225),  # one of its 34 columns does not vary
    "musk_raw": (476, 167, 207),
    "sonar": (208, 61, 97),
    "musk": (476, 95, 207),
    "german_credit": (1000, 25, 700),
    "breast_cancer": (569, 31, 357),
}


@pytest.mark.parametrize("name", BINARY_REGRESSIONS)
def test_form(name):
    X, y, names, description = load_binary_regression(name)
    assert (*X.shape, y.sum()) == SIZES[name]
    assert (X[:, 0] == 1).all()
    assert set(np.unique(y)) == {0, 1}
    assert names[0] == "intercept"
    assert len(set(names)) == X.shape[1]
    assert description
    assert np.isfinite(X).all()
    assert np.abs(X[:, 1:].mean(axis=0)).max() < 1e-10


@pytest.mark.parametrize("name", BINARY_REGRESSIONS)
def test_gelman_scaling(name):
    X = load_binary_regression(name, scaling="gelman").X[:, 1:]
    binary = np.array([len(np.unique(column.round(10))) == 2 for column in X.T])
    np.testing.assert_allclose(np.ptp(X[:, binary], axis=0), 1.0)
    np.testing.assert_allclose(X[:, ~binary].std(axis=0), 0.5)


def test_unit_and_raw_scaling():
    raw, unit = (load_binary_regression("pima", scaling=scaling).X for scaling in ("raw", "unit"))
    assert raw[0].tolist() == [1, 5, 86, 68, 28, 30.2, 0.364, 24]
    np.testing.assert_allclose(unit[:, 1:].std(axis=0), 1.0)
    np.testing.assert_allclose(np.corrcoef(raw[:, 3], unit[:, 3])[0, 1], 1.0)


def test_positive_label():
    assert load_binary_regression("dna", positive="ie").y.sum() == 765


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("iris",), "unknown data set 'iris'"),
        (("pima", "robust"), "scaling='robust'"),
        (("glass", None, "silicon"), "positive='silicon'.*WinF"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ModelError, match=message):
        load_binary_regression(*arguments)


def test_laplace_evidence_of_sonar():
    """Log evidence by Laplace, N(0, I) prior: -111.43 where the predictors and the coding of y are right."""
    X, y, *_ = load_binary_regression("sonar")
    sign, beta = 2 * y - 1, np.zeros(X.shape[1])
    for _ in range(30):  # Newton
        p = 1 / (1 + np.exp(sign * (X @ beta)))
        hessian = (X.T * (p * (1 - p))) @ X + np.eye(X.shape[1])
        beta += np.linalg.solve(hessian, X.T @ (sign * p) - beta)
    log_joint = -np.logaddexp(0, -sign * (X @ beta)).sum() - 0.5 * beta @ beta
    assert log_joint - 0.5 * np.linalg.slogdet(hessian)[1] == pytest.approx(-111.43, abs=0.01)


def test_finpines():
    points = load_finpines()
    assert points.shape == (126, 2)
    assert points.min() >= 0
    assert points.max() <= 1

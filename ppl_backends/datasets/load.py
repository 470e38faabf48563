"""Read the data files of this package and bring binary regressions to one form: intercept first, labels 0 and 1."""

from __future__ import annotations

import csv
import gzip
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError

__all__ = [
    "BINARY_REGRESSIONS",
    "BinaryRegression",
    "load_binary_regression",
    "load_finpines",
    "load_florentine",
    "load_tuberculosis",
]


class BinaryRegression(NamedTuple):
    """A design matrix and its binary responses.

    Attributes
    ----------
    X : ndarray (n, p)
        The first column is the intercept, all ones.
    y : ndarray of int (n,)
        0 or 1.
    names : tuple of str
        Column names of ``X``, ``"intercept"`` first.
    description : str
        A description of the data, of the meaning of ``y = 1``, and of the scaling of the predictors.

    Examples
    --------
    >>> from ppl_backends.datasets import load_binary_regression
    >>> data = load_binary_regression("pima")
    >>> data.X.shape, data.names[0]
    ((532, 8), 'intercept')
    """

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    names: tuple[str, ...]
    description: str


class _Source(NamedTuple):
    """Contents of a file: the label that means y = 1, whether it is z-scored with an intercept, and a description."""

    positive: str
    prepared: bool
    description: str


_SOURCES = {
    "pima": _Source("Yes", False, "diabetes among Pima women"),
    "breast_wisconsin": _Source("malignant", False, "breast biopsies, original Wisconsin set"),
    "plasma": _Source("ESR > 20", False, "erythrocyte sedimentation rate against two plasma proteins"),
    "heart": _Source("2", False, "heart disease, Statlog"),
    "australian": _Source("1", False, "credit approval, Statlog Australian"),
    "glass": _Source("WinF", False, "type of glass from its composition"),
    "dna": _Source("ei", False, "splice junctions in DNA"),
    "ionosphere": _Source("good", False, "radar returns from the ionosphere"),
    "musk_raw": _Source("1", False, "musk molecules, version 1, all 166 covariates"),
    "sonar": _Source("1.0", True, "sonar returns from metal or rock"),
    "musk": _Source("1.0", True, "musk molecules, version 1, the 94 least collinear covariates"),
    "german_credit": _Source("1.0", True, "credit risk, Statlog German"),
    "breast_cancer": _Source("1", True, "breast masses, diagnostic Wisconsin set"),
}
BINARY_REGRESSIONS = tuple(_SOURCES)
_SCALINGS = ("gelman", "unit", "raw")


def load_binary_regression(name: str, scaling: str | None = None, positive: str | None = None) -> BinaryRegression:
    """Return a binary regression data set with an intercept as its first column.

    Columns that do not vary are dropped, because they duplicate the intercept.

    Parameters
    ----------
    name : str
        One of :data:`BINARY_REGRESSIONS`.
    scaling : {"gelman", "unit", "raw"}, optional
        ``"gelman"``: predictors have mean 0; those with two values range 1, the others standard deviation 0.5
        (Gelman et al. 2008, as Chopin & Ridgway 2017 apply it). ``"unit"``: mean 0 and standard deviation 1. ``"raw"``:
        the file's own values. The default is ``"gelman"`` for sets in natural units and ``"raw"`` for sets that are already
        z-scored (sonar, musk, german_credit, breast_cancer).
        Standard deviations divide by n, so ``"gelman"`` is half the z-scores.
    positive : str, optional
        The label that becomes ``y = 1`` if the file has more than two (glass, dna); every other label is 0.

    Returns
    -------
    BinaryRegression

    Raises
    ------
    ModelError
        If the name, the scaling or the label is not known.

    References
    ----------
    A. Gelman, A. Jakulin, M. G. Pittau, Y.-S. Su (2008). A weakly informative default prior distribution for
    logistic and other regression models. Annals of Applied Statistics 2(4).

    N. Chopin, J. Ridgway (2017). Leave Pima Indians alone: binary regression as a benchmark for Bayesian
    computation. Statistical Science 32(1).

    Examples
    --------
    >>> X, y, *_ = load_binary_regression("pima")
    >>> X[:, 1:].std(axis=0).round(3).tolist()
    [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    >>> sonar, half = (load_binary_regression("sonar", scaling=how).X for how in ("raw", "gelman"))
    >>> bool(np.allclose(half[:, 1:], sonar[:, 1:] / 2))
    True
    """
    if name not in _SOURCES:
        raise ModelError(f"unknown data set {name!r}; choose one of {', '.join(BINARY_REGRESSIONS)}")
    source = _SOURCES[name]
    if scaling is None:
        scaling = "raw" if source.prepared else "gelman"
    if scaling not in _SCALINGS:
        raise ModelError(f"scaling={scaling!r}: expected one of {', '.join(map(repr, _SCALINGS))}")
    header, rows = _read(name)
    labels = np.array([row[-1] for row in rows])
    positive = source.positive if positive is None else positive
    if positive not in labels:
        raise ModelError(f"positive={positive!r}: {name} has the labels {', '.join(sorted(set(labels.tolist())))}")

    values = np.array([row[:-1] for row in rows], dtype=np.float64)
    varies = np.ptp(values, axis=0) > 0
    predictors = _scale(values[:, varies], scaling)
    prefix = "x" if source.prepared else ""
    names = ("intercept", *(prefix + column for column, keep in zip(header[:-1], varies, strict=True) if keep))
    description = f"{source.description}; y = 1: {header[-1]} is {positive}; predictors: {scaling} scaling"
    X = np.column_stack([np.ones(len(predictors)), predictors])
    return BinaryRegression(X, (labels == positive).astype(np.int64), names, description)


def load_finpines() -> NDArray[np.float64]:
    """Return positions ``(126, 2)`` of Finnish pine saplings in the unit square, for log-Gaussian Cox processes.

    Examples
    --------
    >>> load_finpines().shape
    (126, 2)
    """
    _, rows = _read("finpines")
    return np.array([row[1:] for row in rows], dtype=np.float64)


def load_florentine() -> NDArray[np.int8]:
    """Return business ties among 16 Florentine families, a symmetric matrix of 0 and 1, for random graph models.

    Families come in alphabetical order, from Acciaiuoli to Tornabuoni.

    Examples
    --------
    >>> network = load_florentine()
    >>> network.shape, int(network.sum()) // 2
    ((16, 16), 15)
    """
    _, rows = _read("florentine")
    return np.array([row[1:] for row in rows], dtype=np.int8)


def load_tuberculosis() -> NDArray[np.int64]:
    """Return sizes of clusters of one genotype among 473 tuberculosis patients, and the number of each ``(10, 2)``.

    Examples
    --------
    >>> size, clusters = load_tuberculosis().T
    >>> int(size @ clusters), int(clusters.sum())
    (473, 326)
    """
    _, rows = _read("tuberculosis")
    return np.array(rows, dtype=np.int64)


def _scale(values: NDArray[np.float64], scaling: str) -> NDArray[np.float64]:
    """Centre the columns and scale them as asked for; see :func:`load_binary_regression`."""
    if scaling == "raw":
        return values
    scale = values.std(axis=0)
    if scaling == "gelman":
        low, high = values.min(axis=0), values.max(axis=0)
        binary = ((values == low) | (values == high)).all(axis=0)
        scale = np.where(binary, high - low, 2 * scale)
    return (values - values.mean(axis=0)) / scale


def _read(name: str) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a compressed table of this package."""
    packed = (files("ppl_backends.datasets") / "data" / f"{name}.csv.gz").read_bytes()
    header, *rows = csv.reader(gzip.decompress(packed).decode().splitlines())
    return header, rows

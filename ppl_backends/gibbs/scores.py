"""Nonlinear scores: a Gaussian process as the prior of the scores of rows, and their prediction at new rows.

The scores s of n rows have the prior N(0, K), K the matrix of a kernel. With K = UΛU' they are s = Φθ, Φ = UΛ^½ and θ
~ N(0, I). This is a linear score of *features* Φ, so every method applies. At new rows the features are k(x,
X)UΛ^{−½}, and the remaining variance of a new score is k(x, x) minus the square of its features.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from ppl_backends.approximations.given import as_approximation
from ppl_backends.errors import ModelError
from ppl_backends.gibbs.posterior import GibbsPosterior, TuningRecord
from ppl_backends.numerics.arrays import as_floats
from ppl_backends.options import checked, number
from ppl_backends.targets.factors.sites import Array

_NEGLIGIBLE = 1e-10  # variance of a feature, relative to the largest
_BLOCK = 128  # rows in a block of a kernel's matrix, computed for its diagonal
_ASYMMETRY = 1e-8  # relative, of a kernel's matrix


class Scores(NamedTuple):
    """Mean and standard deviation of scores at rows ``(n,)``.

    Attributes
    ----------
    mean, sd : ndarray (n,)

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import Scores
    >>> Scores(mean=np.array([0.2, -1.0]), sd=np.array([0.5, 0.4])).sd
    array([0.5, 0.4])
    """

    mean: Array
    sd: Array


class GaussianProcess:
    """A Gaussian process as the prior of scores, given at the rows of a training set.

    Parameters
    ----------
    X : array (n, p)
        Rows, with columns on a common scale. Run time is O(n³).
    length_scale : float or array (p,)
        ℓ of the squared exponential kernel, a² exp(−‖x − x'‖²/(2ℓ²)).
    amplitude : float
        a. The 0–1 loss and the AUC do not depend on it.
    kernel : callable, optional
        Another kernel: a function of rows ``(n, p)`` and ``(m, p)`` that returns the matrix ``(n, m)``, as in scikit-learn.

    Attributes
    ----------
    training : ndarray (n, r)
        Features of the rows.

    References
    ----------
    Ridgway, J., Alquier, P., Chopin, N. and Liang, F. (2014). PAC-Bayesian AUC classification and scoring. *NIPS* 27.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import GaussianProcess, fit_pair_ep
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, size=(60, 1))
    >>> y = np.where(np.abs(X[:, 0]) < 1, 1.0, -1.0)
    >>> process = GaussianProcess(X)
    >>> fit = fit_pair_ep(process.posterior("auc", y, learning_rate=20.0))
    >>> mean = process.scores(fit, [[0.0], [1.8]]).mean
    >>> bool(mean[0] > mean[1])
    True
    """

    @checked(amplitude=number(above=0))
    def __init__(
        self,
        X: Any,
        *,
        length_scale: Any = 1.0,
        amplitude: float = 1.0,
        kernel: Callable[[Array, Array], Any] | None = None,
    ) -> None:
        self.X = _rows(X)
        scale = as_floats("length_scale", length_scale)
        if scale.shape not in ((), (self.X.shape[1],)) or not np.all(scale > 0) or not np.isfinite(scale).all():
            raise ModelError(
                f"length_scale={length_scale!r}: expected a positive number, or one for each of {self.X.shape[1]} columns"
            )
        self.kernel = kernel if kernel is not None else partial(_squared_exponential, scale, amplitude)
        matrix = self._matrix(self.X, self.X)
        if not np.allclose(matrix, matrix.T, rtol=0, atol=_ASYMMETRY * np.abs(matrix).max()):
            raise ModelError("kernel gives a matrix of the rows that is not symmetric")
        values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
        if not values[-1] > 0:
            raise ModelError("kernel gives a matrix of the rows that has no positive eigenvalue")
        kept = values > _NEGLIGIBLE * values[-1]
        self._root = vectors[:, kept] / np.sqrt(values[kept])
        self.training = vectors[:, kept] * np.sqrt(values[kept])

    def posterior(self, loss: Any, y: Any, *, learning_rate: float) -> GibbsPosterior:
        """Return the Gibbs posterior of the features' coefficients, N(0, I) a priori; its scores are those of the rows.

        ``loss``, ``y`` and ``learning_rate`` are those of :class:`GibbsPosterior`.
        The features depend on the rows, so certificates are not valid.
        """
        found = GibbsPosterior((0.0, 1.0), loss, self.training, y, learning_rate=learning_rate)
        return found._tuned(TuningRecord("prior", "features of the rows", None))

    def features(self, X: Any) -> Array:
        """Return the features ``(n, r)`` of new rows."""
        rows = _rows(X)
        if rows.shape[1] != self.X.shape[1]:
            raise ModelError(f"X has {rows.shape[1]} columns; the rows of the process have {self.X.shape[1]}")
        return self._matrix(rows, self.X) @ self._root

    def scores(self, fit: Any, X: Any) -> Scores:
        """Return the scores at new rows under an approximation of :meth:`posterior`.

        Parameters
        ----------
        fit : Approximation
            Result of :func:`~ppl_backends.gibbs.fit_pair_ep`, :func:`~ppl_backends.fit_gibbs_vi` or
            :func:`~ppl_backends.fit_ep`.
        X : array (n, p)
            Rows.

        Returns
        -------
        Scores
        """
        rows, q = _rows(X), as_approximation(fit).gaussian
        if q.dim != self._root.shape[1]:
            raise ModelError(
                f"scores: the fit has {q.dim} coefficients; the process has {self._root.shape[1]} features"
            )
        features = self.features(rows)
        blocks = np.array_split(rows, -(-len(rows) // _BLOCK))
        own = np.concatenate([np.diagonal(self._matrix(block, block)) for block in blocks])
        left = np.maximum(own - (features**2).sum(axis=1), 0.0)
        spread = features @ (q.factor if q.factor.ndim == 2 else np.diag(q.factor))
        return Scores(features @ q.mean, np.sqrt((spread**2).sum(axis=1) + left))

    def _matrix(self, a: Array, b: Array) -> Array:
        matrix = np.asarray(self.kernel(a, b), dtype=np.float64)
        if matrix.shape != (len(a), len(b)) or not np.isfinite(matrix).all():
            raise ModelError(f"kernel: expected finite values of shape {(len(a), len(b))}, got shape {matrix.shape}")
        return matrix


def _squared_exponential(length_scale: Array, amplitude: float, a: Array, b: Array) -> Array:
    matrix: Array = amplitude**2 * np.exp(-0.5 * cdist(a / length_scale, b / length_scale, "sqeuclidean"))
    return matrix


def _rows(X: Any) -> Array:
    rows = as_floats("X", X)
    if rows.ndim != 2 or 0 in rows.shape or not np.isfinite(rows).all():
        raise ModelError(f"X has shape {rows.shape}; expected (n, p), with finite values")
    return rows

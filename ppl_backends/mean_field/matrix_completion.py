r"""Matrix completion by mean-field coordinate ascent, with an estimate of the rank.

    Y_ij = offset + u_iᵀ v_j + ε_ij,  ε_ij ~ N(0, 1/β),   u_ik, v_jk ~ N(0, γ_k),   γ_k ~ InvGamma(a, b),   β ~ Gamma(c, d)

(Lim & Teh 2007; Alquier, Ridgway & Chopin 2016, section 6). The posterior is approximated by a product over the rows
of U, the rows of V, the scales γ_k and β. All updates are exact: Gaussian, inverse-gamma and gamma. The means of a
component that the data do not need converge to zero. The component is then removed, and the number of remaining
components is the rank. The bound increases with every sweep, except for sweeps that remove components, after which it
is that of the smaller model.

Between sweeps both sides are rotated and scaled together, which does not change the fit and maximises the bound over
such changes; without it, sweeps converge slowly if the noise is small (Luttinen & Ilin 2010).

The sums Σ_j E[v_j v_jᵀ] over the observed columns of every row are one product of a sparse matrix with the K(K + 1)/2
distinct second moments, and all rows' systems are solved in one batched call: there is no loop over rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds
from scipy.special import digamma, gammaln, ndtri

from ppl_backends.errors import ModelError
from ppl_backends.mean_field.ascent import best_of, warn_unconverged
from ppl_backends.mean_field.entries import Entries, read_entries
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.options import checked, instance, integer, none, number
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.targets.protocol import Array

NOISE_PRIOR = 1e-3  # shape and (in units of the data's variance) rate of β's gamma prior
NEGLIGIBLE = 1e-4  # share of the variance of the observed entries below which components do not count towards the rank
VANISHED = 1e-6  # share of that variance below which components are removed from the sweeps


class MatrixFactors:
    """The approximate posterior of a completed matrix; see :func:`fit_matrix_completion`.

    Attributes
    ----------
    rows, columns : ndarray (m₁, K), (m₂, K)
        Means of U and V.
    rows_cov, columns_cov : ndarray (m₁, K, K), (m₂, K, K)
        Covariances of their rows.
    offset : float
    scales : ndarray (K,)
        1 / E[1/γ_k].
    noise_sd : float
        E[β]^(−1/2).
    rank : int
        Number of components that explain more than 10⁻⁴ of the variance of the entries.
    shares : ndarray (K,)
        Variance that each component explains, as a share of that of the observed entries.
    elbo : float
        Lower bound of the log evidence.
    trace : ndarray (sweeps,)
        The bound after each sweep; it never decreases while the number of components is constant.
    restarts : ndarray
        Final bound of every start.
    converged : bool

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.mean_field import fit_matrix_completion
    >>> rng = np.random.default_rng(1)
    >>> table = rng.normal(size=(8, 1)) @ rng.normal(size=(1, 6))
    >>> rows, columns = np.divmod(np.arange(48), 6)
    >>> fit = fit_matrix_completion(rows, columns, table[rows, columns], max_rank=2, random_seed=1, progressbar=False)
    >>> fit.rows.shape, fit.columns.shape
    ((8, 1), (6, 1))
    """

    method = "mean-field coordinate ascent"
    elbo_se = 0.0
    accuracy = "approximate"

    def __init__(self, state: _State, trace: Array, restarts: Array, converged: bool) -> None:
        self.rows, self.columns = state.sides[0].mean, state.sides[1].mean
        self.rows_cov, self.columns_cov = state.sides[0].cov, state.sides[1].cov
        self.offset = state.data.offset
        self.scales, self.noise_sd = 1 / state.inverse_scale, float(state.noise_precision**-0.5)
        self.trace, self.restarts, self.converged = trace, restarts, converged
        self.elbo = float(trace[-1])
        self.shares = state.shares()
        self.rank = int((self.shares > NEGLIGIBLE).sum())

    def predict(self, i: Any, j: Any) -> Array:
        """Return posterior means of the entries (``i``, ``j``)."""
        return self.offset + np.einsum("nk,nk->n", self.rows[i], self.columns[j])

    def predictive_sd(self, i: Any, j: Any, noise: bool = True) -> Array:
        """Return standard deviations of the entries (``i``, ``j``): of new observations, or without ``noise`` of u_iᵀ v_j."""
        u, v, su, sv = self.rows[i], self.columns[j], self.rows_cov[i], self.columns_cov[j]
        variance = np.einsum("nk,nkl,nl->n", u, sv, u) + np.einsum("nk,nkl,nl->n", v, su, v)
        variance += np.einsum("nkl,nkl->n", su, sv)
        return np.sqrt(variance + (self.noise_sd**2 if noise else 0.0))

    @checked(probability=number(above=0, below=1))
    def interval(self, i: Any, j: Any, probability: float = 0.95, noise: bool = True) -> tuple[Array, Array]:
        """Return central intervals of ``probability`` for entries (``i``, ``j``), or without ``noise`` for u_iᵀ v_j."""
        half = ndtri(0.5 + 0.5 * probability) * self.predictive_sd(i, j, noise)
        mean = self.predict(i, j)
        return mean - half, mean + half

    def placed(self, rows: Any, columns: Any, shape: tuple[int, int]) -> MatrixFactors:
        """Return the factors at ``rows`` and ``columns`` of a larger matrix of a ``shape``, which is zero elsewhere."""
        found = copy.copy(self)
        for name, size, place in (("rows", shape[0], rows), ("columns", shape[1], columns)):
            for which in (name, f"{name}_cov"):
                old = getattr(self, which)
                new = np.zeros((size, *old.shape[1:]))
                new[place] = old
                setattr(found, which, new)
        return found

    def __repr__(self) -> str:
        return (
            f"MatrixFactors(shape=({len(self.rows)}, {len(self.columns)}), rank={self.rank}, "
            f"noise_sd={self.noise_sd:.4g}, elbo={self.elbo:.6g}, converged={self.converged})"
        )


@checked(
    max_rank=integer(1),
    scale_shape=number(above=0),
    scale_rate=none | number(above=0),
    noise_sd=none | number(above=0),
    initial=none | instance(MatrixFactors, "factors of an earlier fit"),
    restarts=integer(1),
    tolerance=number(above=0),
    max_sweeps=integer(1),
)
def fit_matrix_completion(
    rows: Any,
    columns: Any,
    values: Any,
    *,
    weights: Any = None,
    shape: tuple[int, int] | None = None,
    max_rank: int = 20,
    scale_shape: float = 1.0,
    scale_rate: float | None = None,
    noise_sd: float | None = None,
    initial: MatrixFactors | None = None,
    restarts: int = 1,
    tolerance: float = 1e-7,
    max_sweeps: int = 500,
    random_seed: SeedLike = None,
    progressbar: bool = True,
) -> MatrixFactors:
    """Complete a matrix from some of its entries, given as triplets.

    Parameters
    ----------
    rows, columns : array of int (n,)
    values : array (n,)
    weights : array (n,), optional
        Positive weights of the entries' log densities; a whole number is as many observations of the same value. With weights
        an entry may be given more than once, as several observations of it.
    shape : (int, int), optional
        By default the smallest shape that contains the indices.
    max_rank : int
        K, the initial number of components.
    scale_shape, scale_rate : float
        a and b of the inverse-gamma prior of the components' scales γ_k. The larger the rate, the more components
        vanish; by default it is the largest that theory allows, var(Y) / (2 m log(2 K m)) with m the larger side.
    noise_sd : float, optional
        Known standard deviation of the noise; estimated by default.
    initial : MatrixFactors, optional
        Factors to start from, of the same shape (see ``MatrixFactors.placed``). Components up to ``max_rank`` are added from
        what they leave unexplained.
    restarts : int
        The first start is ``initial`` or spectral, the others are random; the highest bound is kept.
    tolerance : float
        Relative increase of the bound at which to stop.
    max_sweeps : int
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    MatrixFactors

    Raises
    ------
    ModelError
        If the triplets have different lengths, repeat an entry without weights, lie outside of ``shape`` or are not
        finite, or if weights are not positive.

    Warns
    -----
    ApproximationWarning
        If the bound still increased in the last sweep.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 40))
    >>> i, j = np.nonzero(rng.random((60, 40)) < 0.4)
    >>> noisy = truth[i, j] + 0.1 * rng.normal(size=len(i))
    >>> fit = fit_matrix_completion(i, j, noisy, max_rank=6, random_seed=1, progressbar=False)
    >>> fit.rank, bool(np.sqrt(np.mean((fit.predict(i, j) - truth[i, j]) ** 2)) < 0.1)
    (2, True)
    """
    data = read_entries(rows, columns, values, shape, weights)
    if initial is not None and (len(initial.rows), len(initial.columns)) != data.entries.shape:
        given = (len(initial.rows), len(initial.columns))
        raise ModelError(
            f"initial is of shape {given}; expected {data.entries.shape}, as the matrix: use initial.placed(...)"
        )
    if max_rank > min(data.entries.shape):
        raise ModelError(f"max_rank={max_rank}: expected at most the shorter side, {min(data.entries.shape)}")
    largest = max(data.entries.shape)
    rate = data.variance / (2 * largest * np.log(2 * max_rank * largest)) if scale_rate is None else scale_rate
    prior = _Prior(float(scale_shape), float(rate), noise_sd)
    rngs = spawn_generators(random_seed, restarts)

    def starts() -> Iterator[_State]:
        for start, rng in enumerate(rngs):
            yield _State(data, prior, max_rank, rng, spectral=start == 0, initial=None if start else initial)

    run, bounds = best_of("Matrix completion", starts(), restarts, tolerance, max_sweeps, progressbar)
    warn_unconverged("matrix completion", run)
    return MatrixFactors(run.state, run.trace, bounds, run.converged)


class _Prior(NamedTuple):
    shape: float
    rate: float
    noise_sd: float | None


class _Side:
    """The rows of U, or of V: independent Gaussians."""

    def __init__(self, data: Entries, mean: Array) -> None:
        self.data, self.mean = data, mean
        m, k = mean.shape
        self.cov = np.zeros((m, k, k))
        self.lower = np.tril_indices(k)
        self.log_determinants = np.zeros(m)
        self.gram = np.zeros((m, k, k))

    def second_moments(self) -> Array:
        """Return E[u uᵀ] ``(m, K, K)``."""
        return self.cov + self.mean[:, :, None] * self.mean[:, None, :]

    def update(self, other: _Side, noise_precision: float, inverse_scale: Array) -> None:
        """Update every row to its exact Gaussian given the other side."""
        k = len(inverse_scale)
        moments = other.second_moments()[:, self.lower[0], self.lower[1]]
        sums = self.data.pattern @ moments  # (m, K(K+1)/2)
        self.gram = np.empty_like(self.cov)
        self.gram[:, self.lower[0], self.lower[1]] = sums
        self.gram[:, self.lower[1], self.lower[0]] = sums
        precision = noise_precision * self.gram
        precision[:, np.arange(k), np.arange(k)] += inverse_scale
        root_inverse = np.linalg.inv(np.linalg.cholesky(precision))
        self.cov = np.swapaxes(root_inverse, 1, 2) @ root_inverse
        self.log_determinants = 2 * np.log(np.diagonal(root_inverse, axis1=1, axis2=2)).sum(axis=1)
        right = noise_precision * (self.data.weighted @ other.mean)
        self.mean = np.einsum("mkl,ml->mk", self.cov, right)

    def total(self) -> Array:
        """Return Σ E[u uᵀ] over rows ``(K, K)``."""
        return self.mean.T @ self.mean + self.cov.sum(axis=0)

    def transform(self, rotation: Any) -> None:
        """Replace every u by Rᵀu."""
        self.mean = self.mean @ rotation
        self.cov = rotation.T @ self.cov @ rotation
        self.log_determinants = self.log_determinants + 2 * np.linalg.slogdet(rotation)[1]

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Keep only the components ``kept``; log determinants are then those of the marginal Gaussians."""
        self.mean, self.cov, self.gram = (
            self.mean[:, kept],
            self.cov[:, kept][:, :, kept],
            self.gram[:, kept][:, :, kept],
        )
        self.lower = np.tril_indices(self.mean.shape[1])
        self.log_determinants = np.linalg.slogdet(self.cov)[1]

    def energy(self) -> Array:
        """Return Σ E[u_k²] over rows ``(K,)``."""
        return (self.mean**2).sum(axis=0) + np.einsum("mkk->k", self.cov)

    def entropy(self) -> float:
        """Return the entropy of all rows together."""
        m, k = self.mean.shape
        return 0.5 * float(self.log_determinants.sum()) + 0.5 * m * k * (1 + LOG_2PI)


class _State:
    """All factors of the approximation."""

    def __init__(
        self,
        data: Entries,
        prior: _Prior,
        k: int,
        rng: np.random.Generator,
        spectral: bool,
        initial: MatrixFactors | None = None,
    ) -> None:
        self.data, self.prior, self.n, self.k = data, prior, data.n, k
        size = sum(data.entries.shape)
        self.scale_shape = prior.shape + 0.5 * size
        self.noise_shape = NOISE_PRIOR + 0.5 * self.n
        u, v = _start(data, k, rng, spectral) if initial is None else _start_from(initial, data, k, rng)
        self.k = u.shape[1]
        self.sides = (_Side(data, u), _Side(data.transposed, v))
        self.scale_rate = np.full(self.k, self.scale_shape * np.sqrt(data.variance / self.k))
        self.noise_rate = self.noise_shape * 0.5 * data.variance
        if initial is not None:
            known = len(initial.scales)
            self.sides[0].cov[:, :known, :known] = initial.rows_cov
            self.sides[1].cov[:, :known, :known] = initial.columns_cov
            self.scale_rate[:known] = self.scale_shape * initial.scales
            self.noise_rate = self.noise_shape * initial.noise_sd**2
        if prior.noise_sd is not None:
            self.noise_rate = self.noise_shape * prior.noise_sd**2

    @property
    def inverse_scale(self) -> Array:
        """Return E[1/γ_k] ``(K,)``."""
        return self.scale_shape / self.scale_rate

    @property
    def noise_precision(self) -> float:
        """Return E[β]."""
        return self.noise_shape / self.noise_rate

    def sweep(self) -> float:
        """Update U, V, their common rotation, the scales and the noise, in this order."""
        u, v = self.sides
        u.update(v, self.noise_precision, self.inverse_scale)
        v.update(u, self.noise_precision, self.inverse_scale)
        self._rotate()
        self.scale_rate = self.prior.rate + 0.5 * (u.energy() + v.energy())
        self._prune()
        squares = self._expected_squares()
        if self.prior.noise_sd is None:
            self.noise_rate = NOISE_PRIOR * self.data.variance + 0.5 * squares
        return self._bound(squares)

    def shares(self) -> Array:
        """Return the variance of fitted entries by component, as a share of that of the observed entries."""
        second = [(side.mean**2).sum(axis=0) / len(side.mean) for side in self.sides]
        return second[0] * second[1] / self.data.variance

    def _rotate(self) -> None:
        """Replace u by Rᵀu and v by R⁻¹v, which does not change the fit, with the R of highest bound."""
        u, v = self.sides
        weight = self.prior.shape + 0.5 * (len(u.mean) + len(v.mean))
        difference = len(u.mean) - len(v.mean)
        rotation = _best_rotation(u.total(), v.total(), difference, weight, self.prior.rate)
        u.transform(rotation)
        v.transform(np.linalg.inv(rotation).T)
        v.gram = rotation.T @ v.gram @ rotation  # sums over U's moments

    def _prune(self) -> None:
        """Remove components whose means are zero; their scales would otherwise converge slowly to the prior's."""
        kept = self.shares() > VANISHED
        if kept.all() or not kept.any():
            return
        for side in self.sides:
            side.keep(kept)
        self.scale_rate, self.k = self.scale_rate[kept], int(kept.sum())

    def _expected_squares(self) -> float:
        """Return Σ w E[(y − u·v)²] over the observations; ``gram`` of V holds the sums over U's current moments."""
        u, v = self.sides
        fitted = _fitted(self.data.entries, u.mean, v.mean)
        weight = self.data.pattern.data
        spread = np.einsum("mkl,mkl->", v.second_moments(), v.gram) - float(weight @ fitted**2)
        return float(weight @ (self.data.entries.data - fitted) ** 2 + spread + self.data.scatter)

    def _bound(self, squares: float) -> float:
        """Return the evidence lower bound after a sweep."""
        u, v = self.sides
        size = len(u.mean) + len(v.mean)
        log_scale = np.log(self.scale_rate) - digamma(self.scale_shape)  # E log γ
        inverse = self.inverse_scale
        if self.prior.noise_sd is None:
            log_noise = digamma(self.noise_shape) - np.log(self.noise_rate)  # E log β
            of_noise = _gamma_terms(
                NOISE_PRIOR, NOISE_PRIOR * self.data.variance, self.noise_shape, self.noise_rate, log_noise
            )
        else:
            log_noise, of_noise = -2 * np.log(self.prior.noise_sd), 0.0
        value = 0.5 * self.n * (log_noise - LOG_2PI) - 0.5 * self.noise_precision * squares
        value += -0.5 * size * (self.k * LOG_2PI + log_scale.sum()) - 0.5 * float(inverse @ (u.energy() + v.energy()))
        # 1/γ is gamma with the same shape and rate: the Jacobians of prior and entropy cancel
        of_scales = _gamma_terms(self.prior.shape, self.prior.rate, self.scale_shape, self.scale_rate, -log_scale)
        return float(value + np.sum(of_scales) + of_noise + u.entropy() + v.entropy())


def _best_rotation(of_u: Array, of_v: Array, difference: int, weight: float, rate: float) -> Array:
    """Return the matrix R of highest bound with the scales at their optimum; the scales' prior rate b is ignored.

    The bound is, up to a constant, (m₁ − m₂) log abs det R − w Σₖ log(b + ½(RᵀAR)ₖₖ + ½(R⁻¹BR⁻ᵀ)ₖₖ), where A and B are
    the sums of second moments of the two sides. For b = 0 Hadamard's inequality gives the R that makes both diagonal
    and equal, times c with log c = ½ artanh((m₁ − m₂) / 2w). The identity is kept if that R is not better.
    """
    root = np.linalg.cholesky(of_u)
    squares, vectors = np.linalg.eigh(root.T @ of_v @ root)
    scale = np.exp(0.5 * np.arctanh(difference / (2 * weight)))
    rotation = scale * np.linalg.solve(root.T, vectors * squares**0.25)

    def bound(r: Array) -> float:
        inverse = np.linalg.inv(r)
        inside = rate + 0.5 * np.diagonal(r.T @ of_u @ r + inverse @ of_v @ inverse.T)
        return float(difference * np.linalg.slogdet(r)[1] - weight * np.log(inside).sum())

    unchanged: Array = np.eye(len(of_u))
    return rotation if bound(rotation) > bound(unchanged) else unchanged


def _gamma_terms(shape: float, rate: float, q_shape: float, q_rate: Any, expected_log: Any) -> Any:
    """Return E_q[log p − log q] for gamma p and q."""
    prior = shape * np.log(rate) - gammaln(shape) + (shape - 1) * expected_log - rate * q_shape / q_rate
    own = q_shape * np.log(q_rate) - gammaln(q_shape) + (q_shape - 1) * expected_log - q_shape
    return prior - own


def _fitted(entries: sparse.csr_matrix, u: Array, v: Array) -> Array:
    """Return u_i·v_j at the observed entries, in their order ``(n,)``."""
    i = np.repeat(np.arange(len(u)), np.diff(entries.indptr))
    return np.einsum("nk,nk->n", u[i], v[entries.indices])


def _start(data: Entries, k: int, rng: np.random.Generator, spectral: bool) -> tuple[Array, Array]:
    """Return factors from the singular vectors of the matrix with zeros for what is missing, or random ones."""
    m1, m2 = data.entries.shape
    if spectral and k < min(m1, m2):
        left, singular, right = svds(data.entries, k=k, v0=rng.standard_normal(min(m1, m2)))
        root = np.sqrt(np.maximum(singular, 1e-12) * m1 * m2 / data.entries.nnz)
        return left * root, right.T * root
    sd = (data.variance / k) ** 0.25
    return sd * rng.standard_normal((m1, k)), sd * rng.standard_normal((m2, k))


def _start_from(initial: MatrixFactors, data: Entries, k: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return earlier factors, with components up to ``k`` from the singular vectors of what they leave unexplained."""
    more = k - initial.rows.shape[1]
    if more <= 0:
        return initial.rows, initial.columns
    left = data.entries.copy()
    left.data = left.data - _fitted(data.entries, initial.rows, initial.columns)
    u, v = _start(data._replace(entries=left), more, rng, spectral=True)
    return np.hstack([initial.rows, u]), np.hstack([initial.columns, v])

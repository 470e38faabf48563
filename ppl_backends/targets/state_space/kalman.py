"""The exact likelihood of linear Gaussian models, at many parameter values at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.targets.jax_process import double_precision
from ppl_backends.targets.state_space.model import Parameters, StateSpaceModel


def kalman_filter(
    model: StateSpaceModel, values: Mapping[str, Array], rows: Mapping[str, Array], n_rows: int
) -> tuple[Array, Array, Array]:
    """Return log densities of each row given those before ``(n, n_rows)``, filtered means and covariances.

    Missing entries of a row are left out. Means are ``(n, n_rows, d)``, covariances ``(n, n_rows, d, d)``.
    """
    with double_precision():
        points = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
        found = _program(model)(points, dict(rows))
        return tuple(np.asarray(part)[:, :n_rows] for part in found)  # type: ignore[return-value]


@lru_cache(maxsize=16)
def _program(model: StateSpaceModel) -> Any:
    """Return the compiled filter of a model."""
    assert model.linear_gaussian is not None
    matrices = model.linear_gaussian.matrices

    def one(values: Any, rows: Any) -> Any:
        covariates = {name: value for name, value in rows.items() if name not in ("y", "missing")}

        def at(t: Any) -> tuple[Any, ...]:
            p = Parameters(values, {name: value[t] for name, value in covariates.items()})
            m0, p0, a, c, q, h, d, r = (jnp.asarray(part, dtype=jnp.float64) for part in matrices(p))
            square = [jnp.atleast_2d(part) for part in (p0, a, q, h, r)]
            return (
                jnp.atleast_1d(m0),
                square[0],
                square[1],
                jnp.atleast_1d(c),
                *square[2:4],
                jnp.atleast_1d(d),
                square[4],
            )

        def body(carry: Any, t: Any) -> Any:
            mean, cov = carry
            m0, p0, a, c, q, h, d, r = at(t)
            mean = jnp.where(t == 0, m0, a @ mean + c)
            cov = jnp.where(t == 0, p0, a @ cov @ a.T + q)
            mean, cov, log_density = _update(mean, cov, h, d, r, jnp.atleast_1d(rows["y"][t]))
            return (mean, cov), (log_density, mean, cov)

        m0, p0, *_ = at(0)
        return jax.lax.scan(body, (m0, p0), jnp.arange(rows["y"].shape[0]))[1]

    return jax.jit(jax.vmap(one, in_axes=(0, None)))


def _update(mean: Any, cov: Any, h: Any, d: Any, r: Any, y: Any) -> tuple[Any, Any, Any]:
    """Return mean and covariance given a row, and its log density; NaN entries are ignored."""
    seen = ~jnp.isnan(y)
    h = jnp.where(seen[:, None], h, 0.0)
    r = jnp.where(seen[:, None] & seen[None, :], r, jnp.eye(len(y)))
    residual = jnp.where(seen, y - h @ mean - d, 0.0)
    root = jnp.linalg.cholesky(h @ cov @ h.T + r)
    gain = jax.scipy.linalg.cho_solve((root, True), h @ cov).T
    white = jax.scipy.linalg.solve_triangular(root, residual, lower=True)
    log_density = -0.5 * (white @ white + jnp.sum(seen) * LOG_2PI) - jnp.sum(jnp.log(jnp.diagonal(root)))
    cov = cov - gain @ h @ cov
    return mean + gain @ residual, 0.5 * (cov + cov.T), log_density

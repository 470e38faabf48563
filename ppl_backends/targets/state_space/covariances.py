"""Whether the covariances of a linear Gaussian model have the Cholesky factors from which its filters draw states."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.state_space.model import StateSpaceModel
from ppl_backends.targets.state_space.step import each_of_two, observation, parameters_of, states, without_missing


def check_covariances(
    model: StateSpaceModel, values: Mapping[str, Array], rows: Mapping[str, Array], times: list[int]
) -> None:
    """Check in these rows, at the first two of the ``values``, that a singular covariance does not make states NaN.

    The exact likelihood takes singular covariances, as do models that draw states without a Cholesky factor.

    Raises
    ------
    ModelError
        If states or densities of rows are NaN, and a covariance has no factor; the message names it.
    """
    if model.linear_gaussian is None:
        return
    for one in each_of_two(values):
        for t in times or [0]:
            finite, factored = map(np.asarray, _compiled(model)(one, without_missing(rows), t))
            for name, is_finite, has_factor in zip(("P0", "Q", "R"), finite, factored, strict=True):
                if not is_finite and not has_factor:
                    raise ModelError(
                        f"linear_gaussian: {name} is singular in row {0 if name == 'P0' else t}, and particle filters need "
                        "its Cholesky factor: add a small variance, such as 1e-6 of the largest, to its diagonal, or use "
                        "sample_smc, which takes the exact likelihood"
                    )


@lru_cache(maxsize=16)
def _compiled(model: StateSpaceModel) -> Any:
    """Return a function of a row: whether P0, Q and R give numbers, and whether they are finite without a factor."""
    assert model.linear_gaussian is not None
    matrices = model.linear_gaussian.matrices

    def found(values: Any, rows: Any, t: Any) -> tuple[Any, Any]:
        p, k = parameters_of(values, rows, t), model.n_normals
        z = jnp.ones((1, 1) if k == 1 else (1, 1, k))
        first = states(model.initial(p, z), 1, 1)
        at = jnp.zeros_like(first)
        later = states(model.transition(p, t, at, z), 1, 1)
        numbers = first, later, observation(model, p, t, at, rows)
        each = p.each(lambda one: [jnp.atleast_2d(jnp.asarray(matrices(one)[k], dtype=jnp.float64)) for k in (1, 4, 7)])
        lacking = [jnp.isfinite(cov).all() & jnp.isnan(jnp.linalg.cholesky(cov)).any() for cov in each]
        return jnp.stack([jnp.isfinite(part).all() for part in numbers]), ~jnp.stack(lacking)

    return jax.jit(found)

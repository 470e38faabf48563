"""Probabilities of orthants of two and three normals in JAX: the rules of :mod:`ppl_backends.orthants.orthant_kernels`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc

from ppl_backends.orthants.orthant_kernels import (
    FEW_NODES,
    FEW_WEIGHTS,
    LARGEST,
    LEAST,
    LEAST_DETERMINANT,
    NODES,
    WEAK,
    WEIGHTS,
)

PAIRS = ((1, 2), (0, 2), (0, 1))


def log_orthant(mean: Any, cholesky: Any, lower: Any, upper: Any) -> tuple[Any, Any]:
    """Return log P of one row of two or three variables, and whether it is good: one bound each, and the rules exact."""
    above = jnp.isinf(upper)
    one_bound = (jnp.isinf(lower) != above).all()
    bound = jnp.where(one_bound, jnp.where(above, lower, upper), 0.0)
    sign = jnp.where(above, 1.0, -1.0)
    cov = cholesky @ cholesky.T
    variance = jnp.diag(cov)
    given = one_bound & (variance > 0).all() & jnp.isfinite(mean).all() & jnp.isfinite(cov).all()
    scale = jnp.sqrt(jnp.where(given, variance, 1.0))
    h = jnp.where(given, sign * (jnp.where(given, mean, 0.0) - bound) / scale, 0.0)
    r = jnp.where(given, cov * sign * sign[:, None] / (scale * scale[:, None]), 0.0)
    pairs = [r[i, j] for i, j in PAIRS] if len(sign) == 3 else [r[0, 1]]
    good = given & (jnp.abs(jnp.array(pairs)) <= LARGEST).all()
    if len(sign) == 3:
        determinant = 1 - pairs[0] ** 2 - pairs[1] ** 2 - pairs[2] ** 2 + 2 * pairs[0] * pairs[1] * pairs[2]
        good = good & (determinant >= LEAST_DETERMINANT)
        h, pairs = jnp.where(good, h, 0.0), [jnp.where(good, x, 0.0) for x in pairs]
        for i, (j, k) in enumerate(((1, 2), (0, 2), (0, 1))):
            to_j, to_k = pairs[k], pairs[j]  # the pair without k is (i, j)
            partial = (pairs[i] - to_j * to_k) / jnp.sqrt((1 - to_j**2) * (1 - to_k**2))
            good = good & (jnp.abs(partial) <= LARGEST)
        first = jnp.argmax(jnp.abs(jnp.array(pairs)))
        j, k = jnp.array([1, 0, 0])[first], jnp.array([2, 2, 1])[first]
        between = jnp.array(pairs)
        p = _phi3(h[first], h[j], h[k], between[k], between[j], between[first])
    else:
        h, pairs = jnp.where(good, h, 0.0), [jnp.where(good, x, 0.0) for x in pairs]
        p = _phi2(h[0], h[1], pairs[0])
    good = good & (p > LEAST)
    return jnp.log(jnp.where(good, p, 1.0)), good


def _phi(x: Any) -> Any:
    return 0.5 * erfc(-x / np.sqrt(2))


def _phi2(h: Any, k: Any, r: Any) -> Any:
    """Return P(X < h, Y < k) of correlation r."""
    angle = jnp.arcsin(r)

    def rule(nodes: Any, weights: Any) -> Any:
        sine = jnp.sin(0.5 * angle * (1 + nodes))
        return weights @ jnp.exp((sine * h * k - 0.5 * (h**2 + k**2)) / ((1 - sine) * (1 + sine)))

    total = jnp.where(jnp.abs(r) < WEAK, rule(FEW_NODES, FEW_WEIGHTS), rule(NODES, WEIGHTS))
    return _phi(h) * _phi(k) + angle * total / (4 * np.pi)


def _given(h: Any, k: Any, value: Any, r_k: Any, r_value: Any, between: Any) -> Any:
    """Return the standardised bound of a variable, given two others at h and k."""
    left = (1 - between) * (1 + between)
    on_h, on_k = (r_k - r_value * between) / left, (r_value - r_k * between) / left
    return (value - on_h * h - on_k * k) / jnp.sqrt(1 - on_h * r_k - on_k * r_value)


def _phi3(h1: Any, h2: Any, h3: Any, r12: Any, r13: Any, r23: Any) -> Any:
    """Return P(X < h) of three normals, r23 the largest correlation."""
    share = 0.5 * (1 + NODES)
    s12, s13 = jnp.sin(share * jnp.arcsin(r12)), jnp.sin(share * jnp.arcsin(r13))
    at12 = jnp.exp(-0.5 * (h1**2 + h2**2 - 2 * s12 * h1 * h2) / ((1 - s12) * (1 + s12)))
    at13 = jnp.exp(-0.5 * (h1**2 + h3**2 - 2 * s13 * h1 * h3) / ((1 - s13) * (1 + s13)))
    inside = jnp.arcsin(r12) * at12 * _phi(_given(h1, h2, h3, s13, r23, s12))
    inside = inside + jnp.arcsin(r13) * at13 * _phi(_given(h1, h3, h2, s12, r23, s13))
    return _phi(h1) * _phi2(h2, h3, r23) + WEIGHTS @ inside / (4 * np.pi)

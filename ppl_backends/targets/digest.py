"""Digests that identify a target: of program and data if these can be read, else of values.

A Python function cannot be read: two functions with the same text may differ in their closures. So a density given as
functions is identified by its values at fixed points, of many scales and drawn from its prior, to the last bit.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from ppl_backends.errors import PriorSamplingError

_SCALES = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
_POINTS_PER_SCALE = 8


def digest(*parts: Any) -> str:
    """Return the SHA-256 of arrays, bytes and text, including types and shapes, as 64 hexadecimal digits."""
    sha = hashlib.sha256()
    content: bytes | memoryview
    for part in parts:
        if isinstance(part, np.ndarray):
            kind, content = (
                f"{part.dtype.str}{part.shape}",
                np.ascontiguousarray(part).ravel().view(np.uint8).data,
            )
        else:
            kind, content = type(part).__name__, part if isinstance(part, bytes) else str(part).encode()
        sha.update(f"{kind} {len(content)} ".encode())
        sha.update(content)
    return sha.hexdigest()


def fixed_points(dim: int) -> np.ndarray:
    """Return the points ``(48, dim)`` at which densities are compared: normal, with scales from 0.01 to 10."""
    z = np.random.default_rng(48).standard_normal((len(_SCALES) * _POINTS_PER_SCALE, dim))
    return np.repeat(_SCALES, _POINTS_PER_SCALE)[:, None] * z


def digests_of_values(target: Any) -> dict[str, str]:
    """Return digests of the values of a target's functions: draws of the prior, both parts of the density, gradients."""
    points, found = fixed_points(target.dim), {}
    try:
        draws = np.asarray(target.sample_prior(_POINTS_PER_SCALE, np.random.default_rng(8)))
        points, found = np.concatenate([points, draws]), {"prior draws": digest_of_numbers(draws)}
    except PriorSamplingError:
        pass
    values = target.evaluate(points, target.has_gradient)
    for name, part in values._asdict().items():
        found[name.replace("_", " ")] = "none" if part is None else digest_of_numbers(part)
    return found


def digest_of_approximation(approximation: Any) -> str:
    """Return the digest of an approximation's draws, and of its log density and gradient there and at fixed points."""
    draws = np.asarray(approximation.sample(_POINTS_PER_SCALE, np.random.default_rng(8)))
    points = np.concatenate([fixed_points(approximation.dim), draws])
    value, gradient = approximation.log_density_and_gradient(points)
    return digest(digest_of_numbers(draws), digest_of_numbers(value), digest_of_numbers(gradient))


def digest_of_numbers(values: Any) -> str:
    """Return the digest of numbers; all NaN are equal, as are both zeros."""
    numbers = np.asarray(values, dtype=np.float64) + 0.0
    return digest(np.where(np.isnan(numbers), np.nan, numbers))

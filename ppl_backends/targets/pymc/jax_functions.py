"""Functions of normal tails for JAX, with their own derivatives.

JAX differentiates through every branch of its versions, and XLA evaluates all branches for every element.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

_FAR = 10.0  # from here on erfcx is its asymptotic series


@cache
def erfcx(jax: Any) -> Callable[[Any], Any]:
    """Return ``erfcx``, with its own derivative 2x erfcx(x) - 2/sqrt(pi).

    Derivatives of the terms of the series would make programs several times as large, which XLA would compile for long.
    """
    jnp = jax.numpy

    @jax.custom_jvp
    def function(x: Any) -> Any:
        # exp(x^2) erfc(x) below 10; above, the asymptotic series, of which the derivative has all but the first term
        near = jnp.minimum(x, _FAR)
        below = jnp.exp(near**2) * jax.scipy.special.erfc(near)
        return jnp.where(x < _FAR, below, _series(jnp, x, 1) / (_far(jnp, x) * np.sqrt(np.pi)))

    @function.defjvp
    def derivative(at: tuple, direction: tuple) -> tuple:
        (x,), (dx,) = at, direction
        value = function(x)
        far = -_series(jnp, x, 2) / (_far(jnp, x) ** 2 * np.sqrt(np.pi))
        slope = jnp.where(x < _FAR, 2 * x * value - 2 / np.sqrt(np.pi), far)
        return value, slope * dx

    return function


@cache
def log_ndtr(jax: Any) -> Callable[[Any], Any]:
    """Return the log of the standard normal distribution function Φ, whose derivative is φ/Φ, with derivative -m (x + m).

    With c = erfc(|x|/√2)/2 and e = exp(x²/2), Φ is 1 - c on the right and ec/e on the left, where ec does not underflow.
    JAX's version evaluates two logarithms, two error functions and a series of its own.
    """
    jnp = jax.numpy

    def parts(x: Any) -> tuple[Any, Any, Any]:
        """Return c on the right, ec on the left, and exp(-x²/2)."""
        z = jnp.abs(x) * np.sqrt(0.5)
        tail, density = 0.5 * jax.scipy.special.erfc(z), jnp.exp(-(z**2))
        scaled = jnp.where(z < _FAR, tail / density, 0.5 * _series(jnp, z, 1) / (_far(jnp, z) * np.sqrt(np.pi)))
        return tail, scaled, density

    @jax.custom_jvp
    def mills(x: Any) -> Any:
        tail, scaled, density = parts(x)
        return jnp.where(x > 0, density, 1.0) / (np.sqrt(2 * np.pi) * jnp.where(x > 0, 1.0 - tail, scaled))

    @mills.defjvp
    def slope_of_mills(at: tuple, direction: tuple) -> tuple:
        (x,), (dx,) = at, direction
        value = mills(x)
        return value, -value * (x + value) * dx

    @jax.custom_jvp
    def function(x: Any) -> Any:
        tail, scaled, _ = parts(x)
        return jnp.log1p(jnp.where(x > 0, -tail, scaled - 1.0)) - jnp.where(x > 0, 0.0, 0.5 * x**2)

    @function.defjvp
    def derivative(at: tuple, direction: tuple) -> tuple:
        (x,), (dx,) = at, direction
        return function(x), mills(x) * dx

    return function


@cache
def log_interval(jax: Any) -> Callable[[Any, Any], Any]:
    """Return log(Φ(x) − Φ(y)), whose derivatives are φ(x) and −φ(y), over Φ(x) − Φ(y).

    The interval is reflected if its middle is positive, and then both tails are scaled by exp(h²/2) with h = max(−x, 0).
    """
    jnp, scaled_tail = jax.numpy, erfcx(jax)

    @jax.custom_jvp
    def function(x: Any, y: Any) -> Any:
        reflect = x > -y
        x, y = jnp.where(reflect, -y, x), jnp.where(reflect, -x, y)
        h = jnp.maximum(-x, 0.0)
        tail = 0.5 * scaled_tail(jnp.abs(x) * np.sqrt(0.5))
        below_x = jnp.where(x > 0, 1.0 - tail * jnp.exp(-0.5 * x**2), tail)
        below_y = 0.5 * scaled_tail(-y * np.sqrt(0.5)) * jnp.exp(-0.5 * (y - h) * (y + h))
        return jnp.log(below_x - below_y) - 0.5 * h**2

    @function.defjvp
    def derivative(at: tuple, direction: tuple) -> tuple:
        value = function(*at)
        slopes = [jnp.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - value) for z in at]
        return value, slopes[0] * direction[0] - slopes[1] * direction[1]

    return function


def _far(jnp: Any, x: Any) -> Any:
    return jnp.where(x < _FAR, _FAR, x)  # a maximum would halve the derivative at 10


def _series(jnp: Any, x: Any, first: int) -> Any:
    """Return 1 - (2k - 1)u (1 - (2k + 1)u (1 - ...)) from k = ``first`` on, with u = 1/(2x^2)."""
    u, value = 0.5 / _far(jnp, x) ** 2, 1.0
    for k in range(12, first - 1, -1):
        value = 1.0 - (2 * k - 1) * u * value
    return value

r"""Rules that turn a noisy gradient g into a step of ascent.

    constant   step · g, no longer than ``step`` in root mean square over the parameters
    adam       step · m̂ / (√v̂ + ε), running means of g and g² without their bias (Kingma & Ba 2015)
    adagrad    step · g / √(g₁² + … + g_t²) (Duchi, Hazan & Singer 2011)

Parameters are in the units of a base Gaussian, in which a constant step length suits all of them. Adam and Adagrad
adapt a separate length for every parameter and need no such units.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.targets.protocol import Array

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8


class Constant:
    """Steps in proportion to the gradient, of bounded length."""

    default = 0.25  # the Hessian of the bound is about 1, and 2 on log scales, in the base's units

    def __init__(self, step: float) -> None:
        self.step = step

    def __call__(self, gradient: Array) -> Array:
        """Return the step ``(n_parameters,)``."""
        return self.step * gradient / max(1.0, float(np.sqrt(np.mean(gradient**2))))


class Adam:
    """Steps by running means of gradients and of their squares."""

    default = 0.1

    def __init__(self, step: float) -> None:
        self.step, self.taken, self.mean, self.square = step, 0, np.zeros(()), np.zeros(())

    def __call__(self, gradient: Array) -> Array:
        """Return the step ``(n_parameters,)``."""
        self.taken += 1
        self.mean = _FIRST * self.mean + (1 - _FIRST) * gradient
        self.square = _SECOND * self.square + (1 - _SECOND) * gradient**2
        square = self.square / (1 - _SECOND**self.taken)
        return np.asarray(self.step * self.mean / (1 - _FIRST**self.taken) / (np.sqrt(square) + _TINY))


class Adagrad:
    """Steps that shrink with the sum of all squared gradients."""

    default = 0.1

    def __init__(self, step: float) -> None:
        self.step, self.total = step, np.zeros(())

    def __call__(self, gradient: Array) -> Array:
        """Return the step ``(n_parameters,)``."""
        self.total = self.total + gradient**2
        return np.asarray(self.step * gradient / (np.sqrt(self.total) + _TINY))


RULES: dict[str, type[Constant] | type[Adam] | type[Adagrad]] = {
    "constant": Constant,
    "adam": Adam,
    "adagrad": Adagrad,
}

"""Losses ℓ(s, y) of a score s: values, derivatives, sites exp(−c ℓ) for EP, and expectations under a Gaussian score.

A Gaussian approximation of θ makes every linear score s = xᵀθ Gaussian, so that the expected risk is a sum of
one-dimensional integrals. By the heat equation ∂E/∂v = ½ ∂²E/∂μ², an optimiser needs only three numbers per score.

A pair loss is a loss of the difference of two scores, sᵢ − sⱼ with yᵢ > yⱼ, and its label is always +1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, ndtr

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array, as_floats
from ppl_backends.numerics.gaussian import LOG_2PI, normal_rule
from ppl_backends.targets.factors import FunctionSites, Normal, ScaledSites, SiteFamily, Step
from ppl_backends.targets.factors.families import signs
from ppl_backends.targets.factors.sites import Rows, TiltedMoments
from ppl_backends.targets.factors.truncated import two_sides

_NODES, _WEIGHTS = normal_rule(40)


class Expectation(NamedTuple):
    """Expected losses under N(μ, v), and their first and second derivative in μ; ∂/∂v is half the second one."""

    value: Array
    slope: Array
    curvature: Array


class Loss:
    """A loss of a score and an outcome; all functions are vectorised over points × observations.

    Attributes
    ----------
    name : str
    bound : float or None
        Largest value, if there is one; PAC-Bayes certificates need it.
    smooth : bool
        Whether a second derivative exists everywhere (Laplace needs it).
    has_gradient : bool
        False for steps, whose slope is zero wherever it exists.
    convex : bool
    classification : bool
        Whether outcomes are two classes, coded −1 and +1 here.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import Hinge, Loss
    >>> loss = Hinge()
    >>> isinstance(loss, Loss), loss.name, loss.value(np.array([0.5]), np.array([1.0]))
    (True, 'hinge', array([0.5]))
    """

    name: str = "loss"
    bound: float | None = None
    smooth: bool = False
    has_gradient: bool = True
    convex: bool = True
    classification: bool = True

    def prepare(self, y: Any) -> Array:
        """Return outcomes in the loss's coding: −1 and +1 for classes (0/1, booleans and ±1 are accepted), else numbers."""
        if self.classification:
            return signs(y)
        y = as_floats("y", y)
        if not np.isfinite(y).all():
            raise ModelError(f"{self.name} loss: y has values that are not finite")
        return y

    def value(self, s: Array, y: Array) -> Array:
        """Return losses, shaped as ``s``."""
        raise NotImplementedError(f"{type(self).__name__} must define value(s, y)")

    def slope(self, s: Array, y: Array) -> Array:
        """Return the derivative in s."""
        raise NotImplementedError(f"{type(self).__name__} must define slope(s, y)")

    def curvature(self, s: Array, y: Array) -> Array:
        """Return the second derivative in s, zero at kinks."""
        return np.zeros_like(s)

    def sites(self, y: Array, weight: float) -> SiteFamily:
        """Return sites exp(−weight · ℓ(s, yᵢ))."""
        raise NotImplementedError(f"{type(self).__name__} must define sites(y, weight)")

    def expectation(self, mean: Array, variance: Array, y: Array) -> Expectation:
        """Return expected losses under N(mean, variance); by 40-node quadrature unless overridden."""
        sd = np.sqrt(np.maximum(variance, 1e-300))
        s = mean[..., None] + sd[..., None] * _NODES
        value = self.value(s, np.broadcast_to(y, mean.shape)[..., None])
        moments = [value @ _WEIGHTS, value @ (_WEIGHTS * _NODES) / sd, value @ (_WEIGHTS * (_NODES**2 - 1)) / sd**2]
        return Expectation(*moments)

    def expected(self, mean: Array, variance: Array, y: Array) -> Array:
        """Return expected losses under N(mean, variance), without their derivatives."""
        return self.expectation(mean, variance, y).value

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ZeroOne(Loss):
    """1 if y s ≤ 0: misclassification, with a score of zero counted as an error.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import ZeroOne
    >>> ZeroOne().value(np.array([0.5, -0.5]), np.array([1.0, 1.0]))
    array([0., 1.])
    """

    name, bound, has_gradient, convex = "zero_one", 1.0, False, False

    def value(self, s: Array, y: Array) -> Array:
        return (y * s <= 0).astype(np.float64)

    def slope(self, s: Array, y: Array) -> Array:
        return np.zeros_like(s)

    def sites(self, y: Array, weight: float) -> SiteFamily:
        """Return steps, with closed-form moments."""
        return Step(y, weight)

    def expectation(self, mean: Array, variance: Array, y: Array) -> Expectation:
        """Return Φ(−y μ/√v)."""
        sd = np.sqrt(np.maximum(variance, 1e-300))
        z = y * mean / sd
        density = _normal_density(z)
        return Expectation(ndtr(-z), -y * density / sd, z * density / sd**2)

    def expected(self, mean: Array, variance: Array, y: Array) -> Array:
        z = -y * mean
        z /= np.sqrt(np.maximum(variance, 1e-300))
        return ndtr(z, out=z)


class Hinge(Loss):
    """(1 − y s)₊.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import Hinge
    >>> Hinge().value(np.array([0.5, 3.0]), np.array([1.0, 1.0]))
    array([0.5, 0. ])
    """

    name = "hinge"

    def value(self, s: Array, y: Array) -> Array:
        return np.maximum(1 - y * s, 0.0)

    def slope(self, s: Array, y: Array) -> Array:
        return np.where(y * s < 1, -y, 0.0)

    def sites(self, y: Array, weight: float) -> SiteFamily:
        """Return exponential on one side of the margin, with closed-form moments."""
        return TwoSlopes(y, weight * (y > 0), weight * (y < 0))

    def expectation(self, mean: Array, variance: Array, y: Array) -> Expectation:
        """Return the closed form, x Φ(x/√v) + √v φ(x/√v) with x = 1 − y μ."""
        sd = np.sqrt(np.maximum(variance, 1e-300))
        x = 1 - y * mean
        z = x / sd
        density, mass = _normal_density(z), ndtr(z)
        return Expectation(x * mass + sd * density, -y * mass, density / sd)


class Logistic(Loss):
    """log(1 + e^{−y s}); with λ = n the Gibbs posterior is logistic regression.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import Logistic
    >>> Logistic().value(np.array([0.0]), np.array([1.0])).round(3)
    array([0.693])
    """

    name, smooth = "logistic", True

    def value(self, s: Array, y: Array) -> Array:
        return np.logaddexp(0.0, -y * s)

    def slope(self, s: Array, y: Array) -> Array:
        return -y * expit(-y * s)

    def curvature(self, s: Array, y: Array) -> Array:
        return expit(s) * expit(-s)

    def sites(self, y: Array, weight: float) -> SiteFamily:
        """Return powers of the logistic function, by quadrature."""
        return _loss_sites(self, y, weight)

    def expectation(self, mean: Array, variance: Array, y: Array) -> Expectation:
        s = mean[..., None] + np.sqrt(variance)[..., None] * _NODES
        y = np.broadcast_to(y, mean.shape)[..., None]
        return Expectation(*(part(s, y) @ _WEIGHTS for part in (self.value, self.slope, self.curvature)))


class Squared(Loss):
    """(y − s)².

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import Squared
    >>> Squared().value(np.array([0.5]), np.array([2.0]))
    array([2.25])
    """

    name, smooth, classification = "squared", True, False

    def value(self, s: Array, y: Array) -> Array:
        return (y - s) ** 2

    def slope(self, s: Array, y: Array) -> Array:
        return 2 * (s - y)

    def curvature(self, s: Array, y: Array) -> Array:
        return np.full_like(s, 2.0)

    def sites(self, y: Array, weight: float) -> SiteFamily:
        """Return Gaussian sites, with which EP is exact."""
        sd = (2 * weight) ** -0.5
        return ScaledSites(Normal(y, sd), np.full(len(y), 0.5 * LOG_2PI + np.log(sd)))

    def expectation(self, mean: Array, variance: Array, y: Array) -> Expectation:
        return Expectation((y - mean) ** 2 + variance, 2 * (mean - y), np.full_like(mean, 2.0))


class Quantile(Loss):
    """Check loss of the quantile ``tau``, times ``scale``: scale · (tau (y − s)₊ + (1 − tau)(s − y)₊).

    ``tau=0.5`` with ``scale=2`` is the absolute loss.

    Parameters
    ----------
    tau : float
        The quantile's level, in (0, 1).
    scale : float
        Factor of the loss.

    Examples
    --------
    >>> import numpy as np
    >>> Quantile(0.9).value(np.array([0.0]), np.array([1.0]))
    array([0.9])
    """

    name, classification = "quantile", False

    def __init__(self, tau: float = 0.5, scale: float = 1.0) -> None:
        if not 0 < tau < 1 or scale <= 0:
            raise ModelError(f"Quantile(tau={tau}, scale={scale}): expected tau between 0 and 1 and scale above 0")
        self.tau, self.scale = float(tau), float(scale)
        if tau == 0.5 and scale == 2.0:
            self.name = "absolute"

    def value(self, s: Array, y: Array) -> Array:
        return self.scale * (self.tau * (y - s) + np.maximum(s - y, 0.0))

    def slope(self, s: Array, y: Array) -> Array:
        return self.scale * ((s > y).astype(np.float64) - self.tau)

    def sites(self, y: Array, weight: float) -> SiteFamily:
        """Return asymmetric Laplace sites, with closed-form moments."""
        rate = weight * self.scale
        return TwoSlopes(y, np.full(len(y), rate * self.tau), np.full(len(y), rate * (1 - self.tau)))

    def expectation(self, mean: Array, variance: Array, y: Array) -> Expectation:
        sd = np.sqrt(np.maximum(variance, 1e-300))
        z = (mean - y) / sd
        density, mass = _normal_density(z), ndtr(z)
        value = self.tau * (y - mean) + (mean - y) * mass + sd * density
        return Expectation(self.scale * value, self.scale * (mass - self.tau), self.scale * density / sd)

    def __repr__(self) -> str:
        return f"Quantile(tau={self.tau}, scale={self.scale})"


class FunctionLoss(Loss):
    """A loss given as a function ``value(s, y)``, vectorised with broadcasting.

    Parameters
    ----------
    value : callable
    slope, curvature : callable, optional
        Its derivatives in s. Without ``slope`` the posterior is sampled without gradients.
    bound : float, optional
        Largest value; certificates need it and do not check it.
    convex : bool
    classification : bool
        Whether y has two classes, which the function gets as −1 and +1.

    Examples
    --------
    The ramp loss, which is bounded.

    >>> import numpy as np
    >>> ramp = FunctionLoss(lambda s, y: np.clip(1 - y * s, 0, 1), bound=1.0, classification=True)
    >>> ramp.value(np.array([0.5, 3.0]), np.array([1.0, 1.0]))
    array([0.5, 0. ])
    """

    name = "function"

    def __init__(
        self,
        value: Callable[[Array, Array], Array],
        slope: Callable[[Array, Array], Array] | None = None,
        curvature: Callable[[Array, Array], Array] | None = None,
        *,
        bound: float | None = None,
        convex: bool = False,
        classification: bool = False,
    ) -> None:
        self._value, self._slope, self._curvature = value, slope, curvature
        self.bound, self.convex, self.classification = bound, convex, classification
        self.has_gradient, self.smooth = slope is not None, curvature is not None

    def value(self, s: Array, y: Array) -> Array:
        return np.asarray(self._value(s, y), dtype=np.float64)

    def slope(self, s: Array, y: Array) -> Array:
        """Return the derivative in s; zero if none was given."""
        return np.zeros_like(s) if self._slope is None else np.asarray(self._slope(s, y), dtype=np.float64)

    def curvature(self, s: Array, y: Array) -> Array:
        return np.zeros_like(s) if self._curvature is None else np.asarray(self._curvature(s, y), dtype=np.float64)

    def sites(self, y: Array, weight: float) -> SiteFamily:
        return _loss_sites(self, y, weight)


class PairLoss(Loss):
    """A loss of the difference sᵢ − sⱼ of two scores whose outcomes are ordered, yᵢ > yⱼ.

    The empirical risk is the mean over the n(n − 1) ordered pairs, so that each pair of the two classes counts twice.

    Parameters
    ----------
    inner : Loss
        Loss of the difference; its label is +1 for every pair.

    Examples
    --------
    >>> PairLoss(ZeroOne()).name
    'auc'
    """

    def __init__(self, inner: Loss) -> None:
        self.inner = inner
        self.name = {"zero_one": "auc", "hinge": "auc_hinge"}.get(inner.name, f"pairwise {inner.name}")
        self.bound, self.smooth, self.convex = inner.bound, inner.smooth, inner.convex
        self.has_gradient = inner.has_gradient

    def prepare(self, y: Any) -> Array:
        """Return −1 and +1, or ±w if pairs have weights."""
        return self.inner.prepare(y) if isinstance(self.inner, Weighted) else super().prepare(y)

    def __repr__(self) -> str:
        return f"PairLoss({self.inner!r})"


class Weighted(Loss):
    """A loss of two classes times a weight of each observation; outcomes hold both, as ±w.

    Weights stay with the outcomes in subsets and folds. In a pair loss the label of a pair is w_i w_j.

    Parameters
    ----------
    inner : Loss
        A loss of two classes.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs.losses import Weighted
    >>> Weighted(Hinge()).value(np.array([0.5, 0.5]), np.array([2.0, -1.0]))
    array([1. , 1.5])
    """

    def __init__(self, inner: Loss) -> None:
        self.inner, self.name, self.smooth, self.convex = inner, inner.name, inner.smooth, inner.convex
        self.has_gradient, self.classification = inner.has_gradient, inner.classification

    def prepare(self, y: Any) -> Array:
        """Return ±w unchanged."""
        y = as_floats("y", y)
        if not (np.isfinite(y) & (y != 0)).all():
            raise ModelError(f"{self.name} loss: weights must be positive and finite; leave out rows of weight zero")
        return y

    def value(self, s: Array, y: Array) -> Array:
        return np.abs(y) * self.inner.value(s, np.sign(y))

    def slope(self, s: Array, y: Array) -> Array:
        return np.abs(y) * self.inner.slope(s, np.sign(y))

    def curvature(self, s: Array, y: Array) -> Array:
        return np.abs(y) * self.inner.curvature(s, np.sign(y))

    def sites(self, y: Array, weight: float) -> SiteFamily:
        """Return the sites of the loss, each to the power of its weight."""
        if isinstance(self.inner, ZeroOne):
            return Step(np.sign(y), weight * np.abs(y))
        if isinstance(self.inner, Hinge):
            return TwoSlopes(np.sign(y), weight * np.maximum(y, 0.0), weight * np.maximum(-y, 0.0))
        return _loss_sites(self, y, weight)

    def expectation(self, mean: Array, variance: Array, y: Array) -> Expectation:
        found, weight = self.inner.expectation(mean, variance, np.sign(y)), np.abs(y)
        return Expectation(weight * found.value, weight * found.slope, weight * found.curvature)

    def __repr__(self) -> str:
        return f"Weighted({self.inner!r})"


class TwoSlopes(SiteFamily):
    """exp(−left·(knot − s)₊ − right·(s − knot)₊): hinge, absolute and quantile losses as sites; closed-form moments."""

    knot: Array
    left: Array
    right: Array

    def __init__(self, knot: Any, left: Any, right: Any) -> None:
        super().__init__(knot=knot, left=left, right=right)

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        knot, left, right = self._at(rows, "knot", "left", "right")
        return -left * np.maximum(knot - s, 0.0) - right * np.maximum(s - knot, 0.0)

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        knot, left, right = self._at(rows, "knot", "left", "right")
        return np.where(s < knot, left, 0.0) - np.where(s > knot, right, 0.0), np.zeros_like(s)

    def tilted(self, mean: Array, variance: Array, power: float, rows: Rows = None) -> TiltedMoments | None:
        """Return two truncated normal distributions, each tilted by its slope."""
        knot, left, right = self._at(rows, "knot", "left", "right")
        log_z, centre, spread = two_sides(mean - knot, variance, power * left, power * right)
        return TiltedMoments(log_z, knot + centre, spread)


LOSSES: dict[str, Callable[[], Loss]] = {
    "zero_one": ZeroOne,
    "hinge": Hinge,
    "logistic": Logistic,
    "squared": Squared,
    "absolute": lambda: Quantile(0.5, 2.0),
    "quantile": Quantile,
    "auc": lambda: PairLoss(ZeroOne()),
    "auc_hinge": lambda: PairLoss(Hinge()),
}


def resolve_loss(loss: Any) -> Loss:
    """Return a loss given by name or as an object."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss]()
    raise ModelError(f"loss={loss!r}: expected one of {', '.join(LOSSES)}, a Loss, a function or a PyTensor expression")


def loss_of(loss: Any) -> Loss:
    """Return a loss of scores given by name, as an object, or as a function of scores and outcomes."""
    return FunctionLoss(loss) if callable(loss) and not isinstance(loss, Loss) else resolve_loss(loss)


def _normal_density(z: Array) -> Array:
    return np.exp(-0.5 * z**2 - 0.5 * LOG_2PI)


def _loss_sites(loss: Loss, y: Array, weight: float) -> SiteFamily:
    """Return sites of any loss; quadrature computes their moments."""

    def log_site(s: Array, rows: Rows) -> Array:
        return -weight * loss.value(s, y if rows is None else y[rows])

    def derivatives(s: Array, rows: Rows) -> tuple[Array, Array]:
        at = y if rows is None else y[rows]
        return -weight * loss.slope(s, at), -weight * loss.curvature(s, at)

    return FunctionSites(log_site, len(y), True, derivatives if loss.has_gradient else None)

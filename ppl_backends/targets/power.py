"""Tempered (fractional) posteriors p(θ) L(θ)^α as targets."""

from __future__ import annotations

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation

__all__ = ["PowerTarget", "with_power"]


class PowerTarget(BaseTarget):
    """The target with its observed terms raised to a power; everything else is passed through.

    Parameters
    ----------
    target : BaseTarget
        Prior and likelihood must be known apart.
    power : float
        α ≥ 0. Potentials keep power one unless ``power_potentials``.
    power_potentials : bool
    """

    def __init__(self, target: BaseTarget, power: float, power_potentials: bool = False) -> None:
        if not (np.isfinite(power) and power >= 0):
            raise ModelError(f"power={power!r}: expected a finite number of at least zero")
        if not target.has_split:
            raise ModelError(f"{target.label}: power= needs prior and likelihood apart, and no split of them is known")
        self.target, self.power, self.power_potentials = target, float(power), power_potentials

    def __getattr__(self, name: str):
        if name.startswith("__") or name == "target":
            raise AttributeError(name)
        return getattr(self.target, name)

    def __getattribute__(self, name: str):
        # Class-level defaults of BaseTarget would hide the wrapped target's own values.
        if name in _PASSED_THROUGH:
            return getattr(object.__getattribute__(self, "target"), name)
        return object.__getattribute__(self, name)

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        """Log prior and α times the log likelihood."""
        parts = self.target.evaluate(x, gradient)
        assert isinstance(parts, Evaluation)
        likelihood, slope = _scaled(self.power, parts.log_likelihood), parts.log_likelihood_gradient
        if slope is not None:
            slope = self.power * slope
        if self.has_potentials and not self.power_potentials:
            potential, potential_slope = self.target.evaluate_potentials(x, gradient)  # type: ignore[attr-defined]
            likelihood = likelihood + _scaled(1.0 - self.power, potential)
            if slope is not None:
                slope = slope + (1.0 - self.power) * potential_slope
        likelihood = np.where(np.isnan(likelihood), -np.inf, likelihood)
        return Evaluation(parts.log_prior, likelihood, parts.log_prior_gradient, slope)

    @property
    def evidence_note(self) -> str:
        """What the normalising constant of a tempered posterior is."""
        return (
            f"pseudo-evidence: the normalising constant of the prior times the likelihood to the power {self.power:g}"
        )

    @property
    def has_potentials(self) -> bool:
        """Whether the wrapped target has terms that are neither prior nor observed."""
        return bool(getattr(self.target, "has_potentials", False))

    def hessian(self, x: Array, part: str = "joint") -> Array:
        """Hessian of the tempered target."""
        if self.has_potentials and not self.power_potentials:
            return super().hessian(x, part)
        likelihood = self.power * self.target.hessian(x, "likelihood")
        if part == "likelihood":
            return likelihood
        return self.target.hessian(x, "joint") - self.target.hessian(x, "likelihood") + likelihood


_PASSED_THROUGH = frozenset(
    {"dim", "names", "has_split", "has_gradient", "label", "coords", "dims", "observed_data", "constant_data"}
    | {"observations", "sample_prior", "initial_points", "constrain", "unconstrain", "pointwise_log_likelihood"}
)


def _scaled(power: float, value: Array) -> Array:
    """``power * value`` with 0·(−inf) = 0 only where the power is zero everywhere: support is kept otherwise."""
    return np.zeros_like(value) if power == 0 else power * value


def with_power(target: BaseTarget, power: float, power_potentials: bool = False) -> BaseTarget:
    """The target itself for power one, else a :class:`PowerTarget`, or what the target has of its own (Gibbs posteriors)."""
    if power == 1:
        return target
    tempered = getattr(target, "tempered", None)
    return PowerTarget(target, power, power_potentials) if tempered is None else tempered(power)

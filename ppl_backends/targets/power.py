"""Tempered (fractional) posteriors p(θ) L(θ)^α as targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.options import checked
from ppl_backends.targets.digest import digest
from ppl_backends.targets.factors.proof import constant_and_error
from ppl_backends.targets.observations import Observations
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation
from ppl_backends.targets.wrapped import WrappedTarget

TOLERANCE = 1e-6  # relative error of factors against the density


class PowerTarget(WrappedTarget):
    """The target with its observed terms raised to a power; everything else is unchanged."""

    log_likelihood_estimate = simulate = state_space = rest = None  # those of the likelihood itself

    def __init__(self, target: BaseTarget, power: float, power_potentials: bool = False) -> None:
        if not (np.isfinite(power) and power >= 0):
            raise ModelError(f"power={power!r}: expected a finite number of at least zero")
        if not target.has_split:
            raise ModelError(
                f"{target.label}: power= needs prior and likelihood separately, and the target has no split"
            )
        if not target.likelihood_is_known:
            raise ModelError(f"{target.label}: power= needs the likelihood, which can only be estimated")
        super().__init__(target)
        self.power, self.power_potentials = float(power), power_potentials

    @property
    def _keeps_potentials(self) -> bool:
        """Return whether there are Potentials that keep power one."""
        return self.target.has_potentials and not self.power_potentials

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        parts = self.target.evaluate(x, gradient)
        assert isinstance(parts, Evaluation)
        likelihood, slope = _scaled(self.power, parts.log_likelihood), parts.log_likelihood_gradient
        if slope is not None:
            slope = self.power * slope
        if self._keeps_potentials:
            potential, potential_slope = self.target.evaluate_potentials(x, gradient)
            likelihood = likelihood + _scaled(1.0 - self.power, potential)
            if slope is not None:
                slope = slope + (1.0 - self.power) * np.asarray(potential_slope)
        likelihood = np.where(np.isnan(likelihood), -np.inf, likelihood)
        return Evaluation(parts.log_prior, likelihood, parts.log_prior_gradient, slope)

    def evaluate_potentials(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        value, slope = self.target.evaluate_potentials(x, gradient)
        if self._keeps_potentials:
            return value, slope
        return _scaled(self.power, value), None if slope is None else self.power * slope

    def tempered(self, power: float) -> None:
        """Return None: a power of a power is computed like any other."""

    @property
    def evidence_note(self) -> str:  # type: ignore[override]
        """Return a note on the normalising constant of a tempered posterior."""
        return (
            f"pseudo-evidence: the normalising constant of the prior times the likelihood to the power {self.power:g}"
        )

    @property
    def observations(self) -> Observations | None:  # type: ignore[override]
        """Return the rows of data, with log likelihoods times the power; None if Potentials keep power one."""
        observations = self.target.observations
        return None if observations is None or self._keeps_potentials else PoweredObservations(observations, self)

    @property
    def likelihood_factors(self) -> Any:
        """Return the observed sites to the power, under a flat prior."""
        factors = self.target.likelihood_factors
        return None if factors is None or self._keeps_potentials else factors.tempered(self.power)

    @property
    def factors(self) -> Any:
        """Return the factors of the target with the observed ones to the power, if they equal the tempered density."""
        factors = self.target.factors
        if factors is None or self._keeps_potentials:
            return None
        tempered = _TemperedFactors(factors, self)
        try:
            return tempered.at(np.empty(0)) if not len(tempered.hyper_names) else tempered
        except ModelError:
            return None

    def digests(self) -> dict[str, str]:
        return {**self.target.digests(), "power": digest(self.power, self.power_potentials)}

    def hessian(self, x: Array, part: str = "joint") -> Array:
        if self._keeps_potentials:
            return BaseTarget.hessian(self, x, part)
        likelihood = self.power * self.target.hessian(x, "likelihood")
        if part == "likelihood":
            return likelihood
        return self.target.hessian(x, "joint") - self.target.hessian(x, "likelihood") + likelihood


class _TemperedFactors:
    """Factors given hyper-parameters φ with the observed sites to a power; their constant comes from the density."""

    def __init__(self, factors: Any, target: PowerTarget) -> None:
        self._factors, self._target = factors, target
        self.hyper_names, self.hyper_coordinates = factors.hyper_names, factors.hyper_coordinates
        self.coordinates, self.start = factors.coordinates, factors.start
        self.log_hyper_prior = factors.log_hyper_prior

    def at(self, phi: Any = ()) -> Any:
        """Return the factors of θ given φ."""
        factors = self._factors.at(phi).tempered(self._target.power)
        x = np.empty((3, self._target.dim))
        theta = factors.prior.mean + 0.1 * np.random.default_rng(0).standard_normal((3, factors.dim))
        x[:, self.coordinates], x[:, self.hyper_coordinates] = theta, phi
        truth = self._target.log_density(x) - self.log_hyper_prior(phi)
        constant, spread, error = constant_and_error(factors, theta, truth, TOLERANCE)
        if not error <= 1:
            raise ModelError(
                f"{self._target.label}: the factors raised to a power differ from the density by {spread:.2g}"
            )
        factors.log_constant += constant
        return factors


class PoweredObservations(Observations):
    """Rows of data whose log likelihoods are multiplied."""

    def __init__(self, observations: Observations, target: PowerTarget) -> None:
        self._target, self._observations, self._power = target, observations, target.power
        self.no_gradient, self.check = observations.no_gradient, observations.check  # type: ignore[method-assign]

    @property
    def n(self) -> int:  # type: ignore[override]
        """Return the number of observations."""
        return self._observations.n

    def log_likelihood(self, x: Array, index: Any = None) -> Array:
        return self._power * self._observations.log_likelihood(x, index)

    def sum(self, x: Array, index: Any = None, weights: Array | None = None, gradient: bool = False) -> Any:
        found = self._observations.sum(x, index, weights, gradient=gradient)
        return tuple(self._power * part for part in found) if gradient else self._power * found

    def log_prior_and_potentials(self, x: Array, gradient: bool = False) -> Any:
        if not self._target.has_potentials:
            return self._observations.log_prior_and_potentials(x, gradient)
        prior, slope = self._target.evaluate_prior(x, gradient)
        potentials, potentials_slope = self._target.evaluate_potentials(x, gradient)
        return (prior + potentials, np.add(slope, potentials_slope)) if gradient else prior + potentials  # type: ignore[arg-type]

    def score_and_hessian(self, x0: Array) -> tuple[Array, Array]:
        scores, hessian = self._observations.score_and_hessian(x0)
        return self._power * scores, self._power * hessian


def _scaled(power: float, value: Array) -> Array:
    """Return ``power * value`` with 0·(−inf) = 0 only if the power is zero everywhere; otherwise the support is kept."""
    return np.zeros_like(value) if power == 0 else power * value


@checked()
def with_power(model: Any, power: float, power_potentials: bool = False, **target_options: Any) -> BaseTarget:
    """Return the tempered (fractional) posterior p(θ)L(θ)^α as a target for every method.

    Parameters
    ----------
    model : pm.Model, Stan program or target
        A model that separates prior and likelihood.
    power : float
        α ≥ 0. For Gibbs posteriors the learning rate is multiplied.
    power_potentials : bool
        Whether to raise Potentials to the power too.
    **target_options
        Passed to :func:`~ppl_backends.as_target`, such as ``data``.

    Returns
    -------
    BaseTarget

    Examples
    --------
    >>> import ppl_backends as pb
    >>> from ppl_backends.targets.factors import Factors, Normal
    >>> half = pb.with_power(Factors([[1.0]], 0.0, Normal([2.0]), 0.0, 1.0), 0.5)
    >>> pb.fit_ep(half).mean.round(6)
    array([0.666667])
    """
    from ppl_backends.targets.convert import as_target

    target = as_target(model, **target_options)
    if power == 1:
        return target
    tempered = target.tempered(power)
    return PowerTarget(target, power, power_potentials) if tempered is None else tempered

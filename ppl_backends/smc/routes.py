"""Choose path and kernel from the options of a call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ppl_backends.approximations.given import is_poor_start
from ppl_backends.approximations.modes import with_other_modes
from ppl_backends.approximations.resolve import (
    resolve_approximation,
    resolve_start,
    variational_if_nearer,
    warn_if_poor,
)
from ppl_backends.errors import ModelError, PriorSamplingError, SamplerWarning, user_level
from ppl_backends.importance.tails import with_tails
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.kernels.smoothed import SmoothedCycle
from ppl_backends.kernels.table import make_kernel
from ppl_backends.smc.path import BridgePath, PriorPath, TemperingPath
from ppl_backends.smc.polya_gamma import TemperedPolyaGamma
from ppl_backends.smc.rows import rows_have_gradients
from ppl_backends.smc.sampler import SampledPriorPath, Settings
from ppl_backends.targets.protocol import BaseTarget


def choose_path(
    target: BaseTarget, initial: Any, rng: np.random.Generator, kernel: Kernel, settings: Settings
) -> TemperingPath:
    """Return the path that ``initial`` names; prior and approximation replace each other if one is not available.

    ``kernel`` and ``settings`` are for a run that samples the prior.
    """
    name = initial if isinstance(initial, str) else "given"
    if kernel.powers_of_likelihood:
        if name != "prior":
            raise ModelError(f"kernel={kernel.name!r} moves along powers of the likelihood; use initial='prior'")
        return PriorPath(target)
    if name == "prior":
        try:
            return prior_path(target, rng, kernel, settings)
        except PriorSamplingError as error:
            warnings.warn(
                f"{error}; starting from the Laplace approximation instead", SamplerWarning, stacklevel=user_level()
            )
            initial = name = "laplace"
    if name == "given":
        approximation = resolve_approximation(target, initial, random_seed=rng, argument="initial")
        return BridgePath(target, approximation, with_tails(target, approximation, by_variance=True))
    return _approximation_path(target, name, rng, partial(_prior_path_if_any, target, rng, kernel, settings))


def _approximation_path(
    target: BaseTarget, name: str, rng: np.random.Generator, from_prior: Callable[[], TemperingPath | None]
) -> TemperingPath:
    """Return the path from the approximation of that name, or from the prior if the approximation is a poor start."""
    try:
        approximation = resolve_start(target, name, random_seed=rng, argument="initial")
    except ModelError as error:
        path = from_prior() if name == "auto" else None
        if path is None:
            raise
        text = f"initial: the model has no Laplace approximation ({error}); starting from the prior instead"
        warnings.warn(text, SamplerWarning, stacklevel=user_level())
        return path
    if name == "laplace":
        approximation = with_other_modes(target, approximation)
    path = from_prior() if is_poor_start(approximation) else None
    nearer = variational_if_nearer(target, approximation, rng) if path is None else approximation
    instead = "the prior" if path is not None else "variational inference" if nearer is not approximation else ""
    warn_if_poor(target, approximation, "initial", f"; starting from {instead} instead" if instead else "")
    return BridgePath(target, nearer, with_tails(target, nearer, by_variance=True)) if path is None else path


def _prior_path_if_any(
    target: BaseTarget, rng: np.random.Generator, kernel: Kernel, settings: Settings
) -> TemperingPath | None:
    """Return the path from the prior; None if the prior cannot be sampled."""
    try:
        return prior_path(target, rng, kernel, settings)
    except PriorSamplingError:
        return None


def prior_path(target: BaseTarget, rng: np.random.Generator, kernel: Kernel, settings: Settings) -> PriorPath:
    """Return the path from the prior, drawn directly or, if the target has only its density, by a separate run."""
    try:
        target.sample_prior(1, rng)
        return PriorPath(target)
    except PriorSamplingError:
        prior = target.prior_target()
        if prior is None:
            raise
        return SampledPriorPath(target, prior, kernel, **settings._asdict())


def choose_kernel(name: str, target: BaseTarget, has_gradient: bool) -> Kernel:
    """Return the kernel asked for; ``"auto"`` is HMC if there are gradients, else the mixed kernel."""
    if name == TemperedPolyaGamma.name:
        return TemperedPolyaGamma(target)
    if name == "auto":
        return make_kernel("hmc" if has_gradient else "mixed")
    chosen = make_kernel(name)
    if chosen.uses_gradient and not has_gradient:
        raise ModelError(f"kernel={name!r} needs gradients and {target.label} has none; use kernel='random_walk'")
    return chosen


def rows_kernel(name: str, target: BaseTarget) -> Kernel:
    """Return the kernel of that name for particles that add rows."""
    if target.state_space is not None:
        return filter_kernel(name, target)
    return choose_kernel(name, target, rows_have_gradients(target))


def filter_kernel(name: str, target: BaseTarget) -> Kernel:
    """Return the kernel of that name for a state-space model; ``"auto"`` draws from the smoothed particles.

    After few rows the posterior is far from a normal distribution, and the likelihood of a series costs more than the
    mixture.
    """
    return SmoothedCycle() if name == "auto" else choose_kernel(name, target, False)

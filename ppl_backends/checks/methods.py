"""Methods by name as functions from a target to draws of its posterior, for the many fits of calibration."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ppl_backends.approximations.base import Approximation
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import is_inference_data, unconstrained_draws
from ppl_backends.targets.protocol import Array, BaseTarget, as_points

Method = Callable[..., Any]

_THINNED = 10  # states of a chain per kept state


def _named(function: str, settings: Callable[[int], Mapping[str, Any]] = lambda n: {}) -> Method:
    """Return a public function ``"module:name"``, imported where it is called, with settings for the number of draws."""
    module, name = function.split(":")

    def fit(target: BaseTarget, n: int, **options: Any) -> Any:
        return getattr(importlib.import_module(module), name)(target, **{**settings(n), **options})

    return fit


METHODS: Mapping[str, Method] = {
    "smc": _named("ppl_backends.smc.sample:sample_smc", lambda n: {"draws": max(500, 2 * n), "chains": 1}),
    "importance": _named(
        "ppl_backends.importance:sample_importance", lambda n: {"draws": max(1000, 4 * n), "chains": 1}
    ),
    "mcmc": _named("ppl_backends.mcmc.sample:sample_mcmc", lambda n: {"draws": _THINNED * n, "chains": 1}),
    "laplace": _named("ppl_backends.approximations:fit_laplace"),
    "ep": _named("ppl_backends.approximations.ep:fit_ep"),
    "vi": _named("ppl_backends.approximations.variational:fit_vi"),
    "inla": _named("ppl_backends.approximations.inla:fit_inla"),
}
"""Methods by name. Each gets a target, the number of draws, and options of the public function."""


def draws_of(found: Any, target: BaseTarget, n: int, rng: np.random.Generator) -> Array:
    """Return ``n`` draws ``(n, dim)`` from the result of a method: an approximation, InferenceData or points.

    Draws are evenly spaced among particles, points or states of a chain.
    """
    if is_inference_data(found):
        x = unconstrained_draws(found, target)[1].reshape(-1, target.dim)
    elif isinstance(found, np.ndarray):
        x = as_points(found, target.dim)
    elif isinstance(found, Approximation):
        return as_points(found.sample(n, rng), target.dim)
    else:
        raise ModelError(
            f"method returned a {type(found).__name__}: expected InferenceData, an approximation or draws (n, dim) on the "
            "unconstrained space"
        )
    if len(x) < n:
        raise ModelError(f"method returned {len(x)} draws; expected at least ranks={n}")
    return x[np.arange(n) * len(x) // n]

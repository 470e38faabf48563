"""Methods by name as functions from a target to draws of its posterior, for the many fits of calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ppl_backends.approximations.base import Approximation
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import is_inference_data, unconstrained_draws
from ppl_backends.targets.protocol import Array, BaseTarget, as_points

Method = Callable[..., Any]

_THINNED = 10  # states of a chain per kept state


def _smc(target: BaseTarget, n: int, **options: Any) -> Any:
    from ppl_backends.smc.sample import sample_smc

    return sample_smc(target, **{"draws": max(500, 2 * n), "chains": 1, **options})


def _importance(target: BaseTarget, n: int, **options: Any) -> Any:
    from ppl_backends.importance import sample_importance

    return sample_importance(target, **{"draws": max(1000, 4 * n), "chains": 1, **options})


def _mcmc(target: BaseTarget, n: int, **options: Any) -> Any:
    from ppl_backends.mcmc.sample import sample_mcmc

    return sample_mcmc(target, **{"draws": _THINNED * n, "chains": 1, **options})


def _laplace(target: BaseTarget, n: int, **options: Any) -> Any:
    from ppl_backends.approximations import fit_laplace

    return fit_laplace(target, **options)


def _ep(target: BaseTarget, n: int, **options: Any) -> Any:
    from ppl_backends.approximations.ep import fit_ep

    return fit_ep(target, **options)


def _vi(target: BaseTarget, n: int, **options: Any) -> Any:
    from ppl_backends.approximations.variational import fit_vi

    return fit_vi(target, **options)


def _inla(target: BaseTarget, n: int, **options: Any) -> Any:
    from ppl_backends.approximations.inla import fit_inla

    return fit_inla(target, **options)


METHODS: Mapping[str, Method] = {
    "smc": _smc,
    "importance": _importance,
    "mcmc": _mcmc,
    "laplace": _laplace,
    "ep": _ep,
    "vi": _vi,
    "inla": _inla,
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

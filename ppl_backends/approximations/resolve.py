"""From what a caller names or hands over to an approximation of a target."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from numpy.linalg import LinAlgError

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.random import SeedLike
from ppl_backends.targets.protocol import BaseTarget

__all__ = ["resolve_approximation"]

_FITTERS = {
    "laplace": ("ppl_backends.approximations.laplace", "fit_laplace"),
    "ep": ("ppl_backends.approximations.ep", "fit_ep"),
    "vi": ("ppl_backends.approximations.variational", "fit_vi"),
}
_MEMBERS = ("from_uniform", "sample", "log_density", "log_density_and_gradient")


def resolve_approximation(
    target: BaseTarget, approximation: Any = "auto", random_seed: SeedLike = None, argument: str = "approximation"
) -> Any:
    """An approximation of ``target``: fitted where named, checked where given.

    Parameters
    ----------
    target : BaseTarget
    approximation : {"auto", "laplace", "ep", "vi"} or approximation
        ``"auto"`` is EP where the target has factors and EP converges, else Laplace. An object with only ``mean`` and
        ``cov`` becomes a :class:`GaussianApproximation`.
    random_seed : int or numpy.random.Generator, optional
    argument : str
        What the caller knows ``approximation`` as, for messages.

    Raises
    ------
    ModelError
        If the name is unknown or not available, or the object is no approximation of this target.
    """
    if isinstance(approximation, str):
        return _fit(target, approximation, random_seed, argument)
    mean = getattr(approximation, "mean", None)
    if mean is None or callable(mean) or not hasattr(approximation, "cov"):
        raise ModelError(
            f"{argument}={approximation!r}: expected 'auto', 'laplace', 'ep', 'vi' or an object with mean and cov"
        )
    if not all(hasattr(approximation, member) for member in _MEMBERS):
        approximation = GaussianApproximation(mean, approximation.cov, target=target, method="given")
    if len(approximation.mean) != target.dim:
        raise ModelError(
            f"the approximation has {len(approximation.mean)} coordinates, {target.label} has {target.dim}"
        )
    return approximation


def _fit(target: BaseTarget, name: str, random_seed: SeedLike, argument: str) -> Any:
    if name == "auto":
        return _ep_where_it_works(target) or _fit(target, "laplace", random_seed, argument)
    if name not in _FITTERS:
        choices = ", ".join(map(repr, ["prior"] * (argument == "initial") + ["auto", *_FITTERS]))
        raise ModelError(f"{argument}={name!r}: expected {choices} or an approximation")
    fit = _fitter(name)
    if fit is None:
        raise ModelError(f"{argument}={name!r} is not available in this version; use 'laplace'")
    known = inspect.signature(fit).parameters  # deterministic methods take no seed
    options = {"random_seed": random_seed, "progressbar": False}
    return fit(target, **{name: value for name, value in options.items() if name in known})


def _ep_where_it_works(target: BaseTarget) -> Any:
    """EP of a target with factors, if it converges; None otherwise, without a warning: nobody asked for EP."""
    from ppl_backends.approximations.ep import fit_ep

    try:
        if target.factors is None:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ApproximationWarning)
            approximation = fit_ep(target)
    except (ModelError, LinAlgError):
        return None
    return approximation if approximation.converged else None


def _fitter(name: str) -> Callable[..., Any] | None:
    """The function of that name, None where this version has none."""
    module, function = _FITTERS[name]
    if importlib.util.find_spec(module) is None:
        return None
    return getattr(importlib.import_module(module), function, None)

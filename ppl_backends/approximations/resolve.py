"""From what a caller names or hands over to an approximation of a target."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import ApproximationWarning, FactorSearchError, ModelError
from ppl_backends.random import SeedLike
from ppl_backends.targets.protocol import BaseTarget

__all__ = ["is_poor_start", "resolve_approximation", "resolve_start", "warn_if_poor"]

_FITTERS = {
    "laplace": (
        "ppl_backends.approximations.laplace",
        "gaussian_at_mode",
    ),  # a poor one is spoken of in the caller's words
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
        found = _fit(target, approximation, random_seed, argument)
        warn_if_poor(target, found, argument)
        return found
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


def resolve_start(
    target: BaseTarget, approximation: Any = "auto", random_seed: SeedLike = None, argument: str = "approximation"
) -> Any:
    """Return what points are first drawn from: as :func:`resolve_approximation`, with ``"auto"`` for several modes too.

    Where ``"auto"`` leads to Laplace, or EP leaves out a mode, climbs from draws of the prior look for all modes, and the
    approximation is a mixture of the Gaussians there. Of a poor one, the caller is to warn.

    Parameters
    ----------
    target : BaseTarget
    approximation, random_seed, argument
        See :func:`resolve_approximation`.
    """
    if not isinstance(approximation, str):
        return resolve_approximation(target, approximation, random_seed, argument)
    if approximation != "auto":
        return _fit(target, approximation, random_seed, argument)
    from ppl_backends.approximations.modes import with_other_modes

    found = _ep_where_it_works(target)
    if found is None or _misses_a_mode(target, found):
        found = with_other_modes(target, _fit(target, "laplace", random_seed, argument))
    return found


def is_poor_start(approximation: Any) -> bool:
    """Return whether samplers should not begin at an approximation: a Laplace approximation that is far off.

    It has no mode, or its points are on average more than a standard deviation off in every coordinate:
    2 KL(q ‖ p) > dim. One that is merely not ``converged`` serves, since what begins there is corrected.
    """
    if approximation.method != "laplace" or approximation.converged:
        return False
    return not approximation.diagnostics.get("distance", np.inf) <= 1.0


def warn_if_poor(target: BaseTarget, approximation: Any, argument: str, instead: str = "") -> None:
    """Say of a start that it is bad, in the caller's words, and what is taken ``instead``."""
    if is_poor_start(approximation):
        text = (
            f"{argument}: the Laplace approximation of {target.label} is a poor start: {approximation.trouble}{instead}"
        )
        warnings.warn(text, ApproximationWarning, stacklevel=5)


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
    """Return EP of a target with factors if it converges, else None, with a warning where the search for factors failed."""
    from ppl_backends.approximations.ep import fit_ep

    try:
        if target.factors is None:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ApproximationWarning)
            approximation = fit_ep(target)
    except FactorSearchError as failure:  # a fault of the search, not of the model
        warnings.warn(f"{failure}; 'auto' takes Laplace in place of EP", ApproximationWarning, stacklevel=6)
        return None
    except (ModelError, LinAlgError):
        return None
    return approximation if approximation.converged else None


def _fitter(name: str) -> Callable[..., Any] | None:
    """The function of that name, None where this version has none."""
    module, function = _FITTERS[name]
    if importlib.util.find_spec(module) is None:
        return None
    return getattr(importlib.import_module(module), function, None)


def _misses_a_mode(target: BaseTarget, q: Any) -> bool:
    """Whether a draw of the prior that EP does not account for leads to a mode beyond; log-concave sites have only one."""
    from ppl_backends.approximations.ep.hyper import EPMixture
    from ppl_backends.approximations.modes import find_other_mode

    factors = (q.at_mode if isinstance(q, EPMixture) else q).factors
    if factors is not None and all(family.log_concave for family, _, _ in factors.sites.pieces(None)):
        return False
    return find_other_mode(target, GaussianApproximation(q.mean, q.cov)) is not None

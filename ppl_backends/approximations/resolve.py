"""Turn a name or an object that a caller gives into an approximation of a target."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from ppl_backends.approximations.ep import EPApproximation, EPMixture, fit_ep
from ppl_backends.approximations.ep.budget import BudgetSpentError
from ppl_backends.approximations.ep.fit import fixed_point
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.given import as_approximation, is_poor_start
from ppl_backends.approximations.hyper import GRID_DIM
from ppl_backends.approximations.laplace import endless_climb, gaussian_at_mode, proper
from ppl_backends.approximations.modes import find_other_mode, with_other_modes
from ppl_backends.approximations.variational import fit_vi
from ppl_backends.errors import ApproximationWarning, FactorSearchError, ModelError, user_level
from ppl_backends.options import has_moments
from ppl_backends.random import SeedLike
from ppl_backends.targets.protocol import BaseTarget

# Evaluations of sites by EP, in calls of the cheapest rule. Hierarchies with few hyper-parameters take 2,000 to 19,000.
CALLS_OF_A_START = 24_000.0


def resolve_approximation(
    target: BaseTarget, approximation: Any = "auto", random_seed: SeedLike = None, argument: str = "approximation"
) -> Any:
    """Return an approximation of ``target``: fitted if named, checked if given; messages call it ``argument``.

    ``"auto"`` is EP if the target has factors and EP converges within a budget, else Laplace.
    """
    if isinstance(approximation, str):
        found = _fit(target, approximation, random_seed, argument)
        warn_if_poor(target, found, argument)
        return found
    if not has_moments(approximation):
        raise ModelError(
            f"{argument}={approximation!r}: expected 'auto', 'laplace', 'ep', 'vi' or an object with mean and cov"
        )
    found = as_approximation(approximation, target)
    endless = endless_climb(target)
    if endless is not None:
        proper(target, endless)
    return found


def resolve_start(
    target: BaseTarget, approximation: Any = "auto", random_seed: SeedLike = None, argument: str = "approximation"
) -> Any:
    """Return the distribution of the first points, as :func:`resolve_approximation`, with several modes for ``"auto"``.

    If ``"auto"`` is Laplace, or EP misses a mode, climbs from draws of the prior search for all modes, and the
    approximation is a mixture of the Gaussians there. The caller warns if it is poor.
    """
    if not isinstance(approximation, str):
        return resolve_approximation(target, approximation, random_seed, argument)
    if approximation != "auto":
        return _fit(target, approximation, random_seed, argument)
    found = _ep_where_it_works(target)
    if found is None or _misses_a_mode(target, found):
        found = with_other_modes(target, _fit(target, "laplace", random_seed, argument))
    return found


def nearest_start(target: BaseTarget, approximation: Any, rng: np.random.Generator) -> Any:
    """Return the source of points of importance sampling; warn if it is poor.

    For ``"auto"`` it is the variational approximation if Laplace's is poor and farther from the posterior.
    """
    found = resolve_start(target, approximation, random_seed=rng)
    if not isinstance(approximation, str):
        return found
    return _nearer_or_warn(target, found, rng if approximation == "auto" else None, "points come")


def nearest_gaussian(target: BaseTarget, approximation: Any) -> Any:
    """Return the approximation that calibrates a kernel; warn if it is poor.

    For ``"laplace"`` and ``"auto"`` it is the variational approximation if Laplace's is poor and farther from the posterior.
    """
    if not isinstance(approximation, str) or approximation not in ("auto", "laplace"):
        return resolve_approximation(target, approximation)
    found = _fit(target, approximation, None, "approximation")
    return _nearer_or_warn(target, found, np.random.default_rng(0), "starts and scales come")


def _nearer_or_warn(target: BaseTarget, found: Any, rng: np.random.Generator | None, what: str) -> Any:
    """Return the variational approximation if it is nearer and ``rng`` is given; warn if the approximation is poor."""
    nearer = found if rng is None else variational_if_nearer(target, found, rng)
    instead = "" if nearer is found else f"; {what} from variational inference instead"
    warn_if_poor(target, found, "approximation", instead)
    return nearer


def variational_if_nearer(target: BaseTarget, approximation: Any, rng: np.random.Generator) -> Any:
    """Return the variational Gaussian if the Gaussian at a single mode is a poor start and farther from the posterior.

    The mode of a funnel is deep in its neck, which has almost no mass. Variational inference ends in its mouth.
    """
    if not is_poor_start(approximation) or not isinstance(approximation, GaussianApproximation):
        return approximation
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)  # weights correct a poor start
        try:
            other = fit_vi(target, random_seed=rng, progressbar=False)
        except ModelError:
            return approximation
    at_mode = approximation.diagnostics.get("distance", np.inf)
    return other if other.diagnostics.get("distance", np.inf) < at_mode else approximation


def warn_if_poor(target: BaseTarget, approximation: Any, argument: str, instead: str = "") -> None:
    """Warn that a start is poor, and name what is used ``instead``."""
    if is_poor_start(approximation):
        text = (
            f"{argument}: the Laplace approximation of {target.label} is a poor start: {approximation.trouble}{instead}"
        )
        warnings.warn(text, ApproximationWarning, stacklevel=user_level())


def _fit(target: BaseTarget, name: str, random_seed: SeedLike, argument: str) -> Any:
    if name == "auto":
        return _ep_where_it_works(target) or _fit(target, "laplace", random_seed, argument)
    if name == "laplace":
        return proper(target, gaussian_at_mode(target, random_seed=random_seed))  # the caller warns if it is poor
    if name == "ep":
        return fit_ep(target, progressbar=False)
    if name == "vi":
        return fit_vi(target, random_seed=random_seed, progressbar=False)
    choices = ", ".join(map(repr, ["prior"] * (argument == "initial") + ["auto", "laplace", "ep", "vi"]))
    raise ModelError(f"{argument}={name!r}: expected {choices} or an approximation")


def _ep_where_it_works(target: BaseTarget) -> Any:
    """Return EP of a target with factors if it converges within a budget, else None; warn if the search failed."""
    try:
        if target.factors is None:
            return None
        approximation = fixed_point(target, CALLS_OF_A_START)
    except FactorSearchError as failure:  # a fault of the search, not of the model
        warnings.warn(f"{failure}; 'auto' uses Laplace instead of EP", ApproximationWarning, stacklevel=user_level())
        return None
    except (ModelError, LinAlgError, BudgetSpentError):
        return None
    return approximation if approximation.converged else None


def has_one_mode(approximation: Any) -> bool:
    """Return whether the posterior is known to be log-concave: Gaussian prior, log-concave factors, no hyper-parameters."""
    return isinstance(approximation, EPApproximation) and _has_log_concave_factors(approximation)


def one_mode_given_few(approximation: Any) -> bool:
    """Return whether the posterior is log-concave given one or two hyper-parameters, which a lattice of EP runs covers."""
    few = isinstance(approximation, EPMixture) and len(approximation.hyper.names) <= GRID_DIM
    return few and _has_log_concave_factors(approximation.at_mode)


def _has_log_concave_factors(q: EPApproximation) -> bool:
    return q.factors is not None and q.factors.log_concave


def _misses_a_mode(target: BaseTarget, q: Any) -> bool:
    """Return whether a draw of the prior leads to a mode outside EP's Gaussian; log-concave sites have only one mode."""
    if _has_log_concave_factors(q.at_mode if isinstance(q, EPMixture) else q):
        return False
    return find_other_mode(target, GaussianApproximation(q.mean, q.cov)) is not None

"""Mass of a posterior that a fitted Gaussian does not cover: another mode, or a wide region around a narrow mode.

Points of the Gaussian show neither. Climbs from other draws of the prior find another mode, and changes of signs find the
mirror image of a mode (:mod:`.mirrors`). Draws at larger scales find a region around the Gaussian (:mod:`.wide_modes`). The
moments of the Gaussian and of that region together, weighted by their masses, say whether the Gaussian can still be used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.linalg import LinAlgError
from scipy.special import expit
from scipy.stats import chi2

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.mirrors import has_mirror_image
from ppl_backends.approximations.modes import bound_of_ellipsoid, find_other_mode
from ppl_backends.approximations.newton import LARGEST_NEWTON_DIM
from ppl_backends.approximations.verdict import LARGEST_SHIFT, POINTS, SD_RANGE, Verdict
from ppl_backends.approximations.wide_modes import draws_outside
from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import BaseTarget

NEGLIGIBLE_SHARE = 0.01  # largest negligible share of the other mode in the mass of both
# With priors that are not normal. From here on climbs cost more than the search for factors, which takes longer then.
_MANY_ROWS = 10_000


def is_log_concave(target: BaseTarget) -> bool:
    """Return whether a posterior is known to be log-concave, so that its mass is around one mode.

    It is if the target says so, as one with normal priors does. With other priors and many rows, it also is if its factors
    are a Gaussian prior and log-concave sites.
    """
    if target.log_concave:
        return True
    try:
        many = target.observations is not None and target.observations.n >= _MANY_ROWS
        return many and log_concave_factors(target.factors)
    except (ModelError, LinAlgError):
        return False


def log_concave_factors(factors: Any) -> bool:
    """Return whether factors, or None, are a Gaussian prior and log-concave sites without hyper-parameters."""
    return factors is not None and not len(factors.hyper_names) and bool(factors.at().log_concave)


def judge_elsewhere(target: BaseTarget, q: GaussianApproximation) -> Verdict:
    """Return whether mass that a dense Gaussian does not cover matters; its ``log_evidence`` is that of the mode it is at.

    The figures are ``other_mode_share`` and ``around_share``. The draws are the same in every call.
    """
    share = share_of_another_mode(target, q)
    if said := reason_of_another_mode(share):
        return Verdict(said, {"other_mode_share": share, "around_share": 0.0})
    trouble, around = _region_around(target, q)
    return Verdict(trouble, {"other_mode_share": share, "around_share": around})


def share_of_another_mode(target: BaseTarget, q: GaussianApproximation) -> float:
    """Return the share of another mode in the mass of both; 0 if there is none, NaN without a search by climbs."""
    if has_mirror_image(target, q):
        return 0.5
    if target.dim > LARGEST_NEWTON_DIM:
        return float("nan")
    other = find_other_mode(target, q)
    return 0.0 if other is None else float(expit(other.log_evidence - q.log_evidence))


def reason_of_another_mode(share: float) -> str:
    """Return in words that another mode has this share, empty if the share is negligible or not known."""
    return (
        f"there is another mode, where a Gaussian has {share:.0%} of the mass of both"
        if share > NEGLIGIBLE_SHARE
        else ""
    )


def _region_around(target: BaseTarget, q: GaussianApproximation) -> tuple[str, float]:
    """Return what a wide region around a Gaussian changes, empty if little, and its share of the mass, NaN if not known."""
    if q.dim > LARGEST_NEWTON_DIM:
        return "", float("nan")
    with np.errstate(all="ignore"):
        found = draws_outside(target.log_density, q, POINTS, np.random.default_rng(0))
    if found is None:
        return "", 0.0
    mass = np.exp(min(found.log_mass - q.log_evidence, 300.0)) - chi2.sf(bound_of_ellipsoid(q.dim), q.dim)
    if not mass > 0:
        return "", 0.0
    share = float(mass / (1.0 + mass))
    apart = (found.x - q.mean) / q.sd
    shift = share * (found.weights @ apart)
    ratio = np.sqrt(np.maximum(1.0 - share + share * (found.weights @ apart**2) - shift**2, 1e-12))
    off = np.maximum(ratio / SD_RANGE[1], np.abs(shift) / ratio / LARGEST_SHIFT)
    worst = int(np.argmax(off))
    if off[worst] <= 1.0:
        return "", share
    return (
        f"a wider region around the Gaussian has {share:.0%} of the mass; with it the standard deviation of {q.names[worst]} "
        f"is {ratio[worst]:.2g} times the Gaussian's",
        share,
    )

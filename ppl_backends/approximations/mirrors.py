"""Mirror images of a posterior: sign changes of variables that leave its density as it is.

The loadings and the scores of a factor model can change their signs together. A Gaussian at one mode then has at most half
of the mass. Climbs from the prior miss such a mode if the density has no finite maximum, as in many hierarchies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, islice

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.modes import beyond
from ppl_backends.approximations.verdict import POINTS
from ppl_backends.targets.names import coordinates_by_variable
from ppl_backends.targets.protocol import Array, BaseTarget

_DRAWS = 4  # points at which the density is compared
_SAME = 1e-8  # largest difference of two log densities that are the same, relative to their size


def has_mirror_image(target: BaseTarget, q: GaussianApproximation) -> bool:
    """Return whether a change of signs takes a Gaussian to where its points are not, without a change of the density."""
    signs = np.array(list(_sign_changes(q.names, POINTS // _DRAWS - 1)))
    signs = signs[beyond(q.mean * signs, q)]
    if not len(signs):
        return False
    x = q.sample(_DRAWS, np.random.default_rng(0))
    images = np.concatenate([x, (x * signs[:, None]).reshape(-1, q.dim)])
    padded = np.resize(images, (POINTS, q.dim))  # all calls have this number of rows, so that they share one program
    with np.errstate(all="ignore"):
        own, *others = target.log_density(padded)[: len(images)].reshape(-1, _DRAWS)
    tolerance = _SAME * (1.0 + np.abs(own))
    return bool(np.isfinite(own).all()) and any((np.abs(other - own) <= tolerance).all() for other in others)


def _sign_changes(names: Sequence[str], most: int) -> Iterator[Array]:
    """Yield at most so many vectors of 1 and −1: the signs of one variable change, or of two."""
    variables = coordinates_by_variable(names).values()
    for changed in islice(chain(combinations(variables, 1), combinations(variables, 2)), most):
        signs = np.ones(len(names))
        signs[np.concatenate(changed)] = -1.0
        yield signs

"""Points near the posterior at which a simulator fails, so that all their data sets are NaN or infinite.

Data sets that are not finite count as far from the observed. This is right if they occur by chance, and wrong if the
simulator cannot simulate at some parameters: these are then missing from the posterior.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppl_backends.importance.outside import LARGEST_UNDEFINED

Counts = NDArray[np.integer]


def failing_share(not_finite: Counts, counts: Counts) -> float:
    """Return the share of points without a finite data set, or 0 if chance explains them.

    They are not due to chance if their share is nearer to the share of data sets that are not finite than to what
    independent data sets would give.

    Parameters
    ----------
    not_finite, counts : ndarray of int (n,)
        Number of data sets of a point that are not finite, and of all.

    Examples
    --------
    >>> failing_share(np.array([4, 0, 0, 4]), np.full(4, 4))
    0.5
    >>> failing_share(np.array([4, 2, 3, 3]), np.full(4, 4))
    0.0
    """
    if not len(counts) or not not_finite.any():
        return 0.0
    failed, chance = float(np.mean(not_finite == counts)), not_finite.sum() / counts.sum()
    return failed if failed > 0.5 * (chance + np.mean(chance**counts)) else 0.0


def reasons_of_failing(share: float) -> list[str]:
    """Return the reason not to trust a run if the share of points is large."""
    if share <= LARGEST_UNDEFINED:
        return []
    return [
        f"all data sets are NaN or infinite at {100 * share:.1f} % of the points near the posterior, which count as far from "
        "the observed data, so a part of the posterior may be missing: mend the simulator there, or return large numbers "
        "if such data are unlike the observed"
    ]

"""Points near the posterior at which a simulator fails, so that all their data sets are NaN or infinite.

Data sets that are not finite count as far from the observed. This is right if they occur by chance, and wrong if the
simulator cannot simulate at some parameters: these are then missing from the posterior.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.importance.outside import LARGEST_UNDEFINED
from ppl_backends.simulators.abc.problem import AbcProblem
from ppl_backends.simulators.abc.stages import Budget
from ppl_backends.targets.protocol import Array

POINTS, FEWEST_POINTS, DATA_SETS = 400, 50, 4
SHARE = 0.1  # of the simulations so far, at most
JITTER = 0.5  # standard deviations by which draws are moved, so that some come beyond a bound of the posterior


def failing_beside(problem: AbcProblem, draws: Array, budget: Budget, rng: np.random.Generator) -> float:
    """Return the share of points at and beside ``draws`` ``(chain, draw, dim)`` at which the simulator fails.

    Nothing is simulated if all data sets so far were finite, or if the budget is used up.
    """
    n = int(min(POINTS, budget.left // DATA_SETS, SHARE * budget.used / DATA_SETS))
    if not problem.n_not_finite or n < FEWEST_POINTS or budget.out_of_time:
        return 0.0
    flat = draws.reshape(-1, draws.shape[-1])
    picked = flat[rng.integers(len(flat), size=n)]
    a, b = flat[rng.integers(len(flat), size=(2, n))]  # their differences have twice the covariance of the draws
    x = picked + JITTER * (a - b) / np.sqrt(2.0)
    x = x[problem.log_prior(x) > -np.inf]
    if not len(x):
        return 0.0
    values = [{name: np.repeat(v, DATA_SETS, axis=0) for name, v in each.items()} for each in problem.values(x, rng)]
    try:
        distances = problem.experiment.run(values, rng)[0]
    except ModelError:  # a simulator that raises an error there is seen by the run itself
        return 0.0
    budget.spend(len(distances))
    not_finite = np.sum(~np.isfinite(distances.reshape(len(x), DATA_SETS)), axis=1)
    return failing_share(not_finite, DATA_SETS)


def failing_share(not_finite: NDArray[np.integer], n: int) -> float:
    """Return the share of points without a finite data set, or 0 if chance explains them.

    They are not due to chance if their share is nearer to the share of data sets that are not finite than to what
    independent data sets would give.

    Parameters
    ----------
    not_finite : ndarray of int
        Number of data sets of every point that are not finite.
    n : int
        Number of all data sets of a point.

    Examples
    --------
    >>> failing_share(np.array([4, 0, 0, 4]), 4)
    0.5
    >>> failing_share(np.array([4, 2, 3, 3]), 4)
    0.0
    """
    failed, chance = float(np.mean(not_finite == n)), float(np.mean(not_finite)) / n
    return failed if failed > 0.5 * (chance + chance**n) else 0.0


def reason_of_failing(share: float) -> str:
    """Return the reason not to trust a run if the share of points is large; else ""."""
    if share <= LARGEST_UNDEFINED:
        return ""
    return (
        f"all data sets are NaN or infinite at {100 * share:.1f} % of the points near the posterior, which count as far from "
        "the observed data, so a part of the posterior may be missing: mend the simulator there, or return large numbers "
        "if such data are unlike the observed"
    )

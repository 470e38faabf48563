"""Plots of simulation-based calibration: histograms of ranks, and deviations of their distribution function from uniform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binom

from ppl_backends.checks.sbc import Calibration
from ppl_backends.checks.uniformity import empirical, histogram, places_of, simultaneous_band
from ppl_backends.errors import ModelError
from ppl_backends.options import checked, instance, none, number, several_names
from ppl_backends.plots.axes import table_of_panels

_MOST = 4  # quantities that are drawn by default


@checked(
    result=instance(Calibration, "the result of pb.sbc"),
    quantities=none | several_names("a name or a sequence of names of quantities"),
    probability=number(above=0, below=1),
)
def plot_sbc(
    result: Calibration, quantities: Sequence[str] | None = None, *, probability: float = 0.99, axes: Any = None
) -> Any:
    """Plot the ranks of simulation-based calibration with the bands expected of uniform ranks.

    A hump in the histogram shows that the method's posterior is too wide, a trough that it is too narrow, and a slope
    that it is biased.

    Parameters
    ----------
    result : Calibration
        Result of :func:`~ppl_backends.sbc`.
    quantities : sequence of str, optional
        The four with the smallest p-values by default.
    probability : float
        Probability of the bands. It is pointwise for the histogram's bins, and simultaneous for the distribution
        function.
    axes : array of matplotlib.axes.Axes, optional
        Two axes for each quantity.

    Returns
    -------
    ndarray of matplotlib.axes.Axes (2, quantities)
        Histograms in the first row; distribution functions minus the diagonal in the second.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     _ = pm.Normal("y", mu, 1, observed=np.zeros(3))
    >>> result = pb.sbc(model, method="laplace", n=100, random_seed=1, progressbar=False)
    >>> pb.plot_sbc(result).shape
    (2, 1)
    """
    if set(quantities or ()) - set(result.labels):
        raise ModelError(f"quantities={quantities!r}: expected names among {', '.join(result.labels[:8])}")
    names = list(quantities or result.table["p_chi2"].sort_values(kind="stable").index[:_MOST])
    columns = [result.labels.index(name) for name in names]
    axes = table_of_panels(axes, 2, len(names))
    for (top, bottom), column, name in zip(axes.T, columns, names, strict=True):
        _histogram(top, result, column, probability)
        _departure(bottom, result, column, probability)
        top.set_title(f"{name}: p = {result.table.loc[name, 'p_chi2']:.2g}", fontsize="medium")
    return axes


def _histogram(axis: Any, result: Calibration, column: int, probability: float) -> None:
    """Plot counts with the binomial interval of a bin's count."""
    counts = histogram(result.ranks[:, [column]], result.n_ranks)[0]
    n, width = len(result.ranks), result.n_ranks / len(counts)
    low, high = binom.interval(probability, n, 1 / len(counts))
    axis.axhspan(low, high, color="0.88", zorder=0)
    axis.axhline(n / len(counts), color="0.5", linewidth=1, zorder=1)
    axis.bar(width * np.arange(len(counts)), counts, width=width, align="edge", alpha=0.8, edgecolor="white", zorder=2)
    axis.set(xlabel=f"rank among {result.n_ranks - 1} draws", ylabel="simulations", xlim=(0, result.n_ranks))


def _departure(axis: Any, result: Calibration, column: int, probability: float) -> None:
    """Plot the distribution function of the ranks minus the diagonal, with its band."""
    places, n = places_of(result.n_ranks), len(result.ranks)
    line = places / result.n_ranks
    low, high = simultaneous_band(n, result.n_ranks, probability)
    axis.fill_between(
        line, low - line, high - line, color="0.88", linewidth=0, label=f"{100 * probability:g} % of uniform ranks"
    )
    axis.plot(line, empirical(result.ranks[:, [column]], places)[0] - line, drawstyle="steps-post")
    axis.axhline(0, color="0.5", linewidth=1)
    axis.set(xlabel="rank, as a share", ylabel="ECDF − uniform")

"""Plot an ABC run: the tolerance of every stage, and the evidence at each tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from ppl_backends.errors import ModelError
from ppl_backends.options import checked
from ppl_backends.plots.axes import panels
from ppl_backends.results.inference_data import group, inference_data
from ppl_backends.targets.protocol import Array

__all__ = ["plot_abc_run"]

COVERAGE = 1.96


@checked(idata=inference_data("posterior", "sample_stats"))
def plot_abc_run(idata: Any, axes: Any = None) -> Any:
    """Plot a run of ABC: tolerance, acceptance rate and effective sample size of every stage, and the evidence against ε.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~ppl_backends.sample_abc`. A run of SMC has one line per chain.
    axes : sequence of four matplotlib.axes.Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    ndarray of matplotlib.axes.Axes (4,)
        The last panel has the log density of the summaries at the observed ones, which converges as ε falls; if
        distances are functions, it has the log evidence of K_ε. Bars are 95 % intervals of each stage separately.

    Examples
    --------
    >>> import numpy as np
    >>> import ppl_backends as pb
    >>> from scipy.stats import norm
    >>> prior = pb.FunctionTarget(1, lambda x: (0 * x[:, 0], 0 * x), lambda x: (norm.logpdf(x[:, 0]), -x),
    ...                           prior_from_uniform=norm.ppf)
    >>> def simulate(parameters, rng):
    ...     return rng.normal(parameters["x"][:, 0], 0.2)
    >>> idata = pb.sample_abc(prior, simulate=simulate, observed=1.0, epsilon=0.01, random_seed=1, progressbar=False)
    >>> [axis.get_ylabel() for axis in pb.plot_abc_run(idata)][:2]
    ['tolerance ε', 'acceptance']
    """
    stats = _stages(idata)
    axes = panels(axes, 4, 2, (4.25, 2.8))
    known = "log_kernel_volume" in stats
    axes[3].set(
        xlabel="tolerance ε",
        ylabel="log density of the summaries" if known else "log evidence",
        xscale="log",
    )
    chains = (
        [stats] if "chain" not in stats["epsilon"].dims else [stats.isel(chain=c) for c in range(stats.sizes["chain"])]
    )
    for number, chain in enumerate(chains):
        _draw(axes, chain, f"C{number % 10}")
    for axis, label in zip(axes, ("tolerance ε", "acceptance", "effective size"), strict=False):
        axis.set(xlabel="stage", ylabel=label)
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_yscale("log")
    axes[1].set_ylim(bottom=0)
    axes[2].set_ylim(bottom=0)
    axes[3].invert_xaxis()
    axes[3].tick_params(axis="x", which="both", labelrotation=45)  # labels of one decade or less would overlap
    return axes


def _draw(axes: Any, chain: xr.Dataset, colour: str) -> None:
    """Plot the stages of one chain, or of all chains pooled."""
    epsilon = chain["epsilon"].values
    reached = np.isfinite(epsilon)
    stage = np.arange(len(epsilon))
    style: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 3}
    for axis, name in zip(axes, ("epsilon", "acceptance", "effective_size"), strict=False):
        axis.plot(stage[reached], chain[name].values[reached], **style)
    volume: Array | float = chain["log_kernel_volume"].values[reached] if "log_kernel_volume" in chain else 0.0
    value = chain["log_evidence"].values[reached] - volume
    error = np.nan_to_num(COVERAGE * chain["log_evidence_se"].values[reached])
    axes[3].errorbar(epsilon[reached], value, yerr=error, capsize=2, **style)


def _stages(idata: Any) -> xr.Dataset:
    """Return the figures per stage.

    Raises
    ------
    ModelError
        If ``idata`` is not a result of ABC.
    """
    stats = group(idata, "sample_stats")
    if "epsilon" not in stats or "stage" not in stats["epsilon"].dims:
        raise ModelError(
            "expected a result of ppl_backends.sample_abc: its sample_stats hold the tolerances of every stage"
        )
    return stats

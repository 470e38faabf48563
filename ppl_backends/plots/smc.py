"""Plot a tempering SMC run: its figures stage by stage, and the particles along the ladder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import t as student_t

from ppl_backends.errors import ModelError
from ppl_backends.options import checked, choice, none, several_names
from ppl_backends.plots.axes import panels
from ppl_backends.results.inference_data import group, inference_data
from ppl_backends.targets.protocol import Array

_COVERAGE = 0.95
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_MOST_PANELS = 6  # parameters that plot_ladder draws by default
_PANELS = {  # title and unit
    "beta": ("inverse temperature β", "β"),
    "ess": ("effective sample size", "particles"),
    "accept_rate": ("acceptance rate", "share of the moves"),
    "scale": ("step of the kernel", "sds of the particles"),
    "log_marginal_likelihood": ("running log evidence", "nats"),
}
_ALONG_ROWS = {
    "beta": ("n_observations", ("rows so far", "rows")),
    "scale": ("n_particles", ("size of the filters, N_x", "particles")),
}
_MOST_LABELS = 8  # chains that a legend names
_ABOVE = 0.55  # of the height of the evidences, added above them for their legend


@checked(idata=inference_data("posterior", "sample_stats"))
def plot_smc_run(idata: Any, axes: Any = None) -> Any:
    """Plot a run of SMC: temperature, ESS, acceptance rate, tuned kernel, and evidence of every chain.

    For a run over observations the first panel shows their number. For SMC² the fourth panel shows the size of the
    filters. Chains agree if their lines coincide. Signs of trouble are an acceptance rate that falls to zero, and a
    chain whose evidence is outside the band.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~ppl_backends.sample_smc`, :func:`~ppl_backends.sample_ibis` or
        :func:`~ppl_backends.sample_smc2`.
    axes : sequence of matplotlib.axes.Axes, optional
        Six axes to draw on; a new figure by default.

    Returns
    -------
    ndarray of matplotlib.axes.Axes (6,)
        Temperature or rows, ESS, acceptance, kernel or filters, running log evidence, and each chain's log evidence
        with its 95 % interval beside the band of all chains pooled.

    Examples
    --------
    >>> import numpy as np
    >>> import ppl_backends as pb
    >>> target = pb.FunctionTarget(
    ...     1,
    ...     lambda x: (-50 * (x[:, 0] - 1) ** 2, 100 * (1 - x)),
    ...     lambda x: (-0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi), -x),
    ...     sample_prior=lambda n, rng: rng.standard_normal((n, 1)),
    ... )
    >>> idata = pb.sample_smc(target, draws=500, chains=2, random_seed=1, progressbar=False)
    >>> axes = pb.plot_smc_run(idata)
    >>> [axis.get_title() for axis in axes][0]
    'inverse temperature β'
    """
    stats = _stages(idata)
    axes = panels(axes, 6)
    for axis, (name, words) in zip(axes, _PANELS.items(), strict=False):
        instead = _ALONG_ROWS.get(name, (name, words))
        shown, words = instead if instead[0] in stats else (name, words)
        _per_chain(axis, stats[shown], *words)
        if shown == "beta":
            axis.set_yscale("log")
        if shown == "n_particles":
            axis.set_ylim(bottom=0)
    axes[1].set_ylim(bottom=0)
    axes[2].set_ylim(0, 1)
    if stats.sizes["chain"] <= _MOST_LABELS:
        axes[0].legend(title="chain", fontsize="small", ncols=2)
    _evidences(axes[5], idata)
    return axes


def _per_chain(axis: Any, values: xr.DataArray, title: str, unit: str) -> None:
    """Plot one line a chain over the stages."""
    stages = np.arange(1, values.sizes["stage"] + 1)
    for chain, line in enumerate(values.transpose("chain", "stage").values):
        axis.plot(stages, line, marker="o", markersize=3, color=f"C{chain % 10}", alpha=0.8, label=str(chain))
    axis.set(title=title, xlabel="stage", ylabel=unit)
    axis.xaxis.get_major_locator().set_params(integer=True)


def _evidences(axis: Any, idata: Any) -> None:
    """Plot the log evidence of every chain with its interval, and the band of all chains pooled."""
    stats, attrs = group(idata, "sample_stats"), group(idata, "posterior").attrs
    single, error = stats["log_evidence_single_run"].values, stats["log_evidence_single_run_se"].values
    chains = np.arange(len(single))
    reach = float(student_t.isf((1 - _COVERAGE) / 2, 1e6)) * error
    for chain in chains:
        label = "each chain" if chain == 0 else None
        style = {"fmt": "o", "markersize": 4, "capsize": 3, "color": f"C{chain % 10}", "label": label}
        axis.errorbar(chain, single[chain], reach[chain], **style)
    if "log_evidence" in attrs:
        half = float(student_t.isf((1 - _COVERAGE) / 2, attrs["log_evidence_df"])) * attrs["log_evidence_se"]
        bridged = attrs.get("log_evidence_method") == "bridge sampling"
        label = "all chains, bridge sampling" if bridged else "all chains"
        low, high = attrs["log_evidence"] - half, attrs["log_evidence"] + half
        axis.axhspan(low, high, color="0.85", zorder=0, label=label)
        axis.axhline(attrs["log_evidence"], color="0.5", linewidth=1, zorder=0)
        low, high = axis.get_ylim()
        axis.set_ylim(low, high + _ABOVE * (high - low))
        axis.legend(title="95 % intervals", fontsize="small", ncols=2, loc="upper center")
    title = "log evidence" if attrs.get("log_evidence_trusted", 1) else "log evidence, not trusted"
    axis.set(title=title, xlabel="chain", ylabel="nats", xticks=chains)
    axis.ticklabel_format(axis="y", useOffset=False)


@checked(
    idata=inference_data("posterior", "sample_stats"),
    parameters=none | several_names(),
    scale=choice("log", "linear"),
)
def plot_ladder(idata: Any, parameters: Sequence[str] | None = None, *, scale: str = "log", axes: Any = None) -> Any:
    """Plot the particles along the ladder: how each parameter narrows from the start of the path to the posterior.

    If the path starts from the prior, every rung is the posterior under a power β of the likelihood. The plot then
    also shows how the parameters depend on a learning rate.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~ppl_backends.sample_smc`. With ``keep_ladder=True`` lines are medians of the particles and
        bands contain 50 % and 90 % of them; otherwise lines are means and bands are one and two standard deviations.
    parameters : sequence of str, optional
        Unconstrained names, such as ``"beta[0]"``; the first six by default.
    scale : {"log", "linear"}
        Scale of the β axis.
    axes : sequence of matplotlib.axes.Axes, optional
        One axes for each parameter.

    Returns
    -------
    ndarray of matplotlib.axes.Axes (len(parameters),)

    Examples
    --------
    >>> import numpy as np
    >>> import ppl_backends as pb
    >>> target = pb.FunctionTarget(
    ...     1,
    ...     lambda x: (-50 * (x[:, 0] - 1) ** 2, 100 * (1 - x)),
    ...     lambda x: (-0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi), -x),
    ...     sample_prior=lambda n, rng: rng.standard_normal((n, 1)),
    ...     names=["theta"],
    ... )
    >>> idata = pb.sample_smc(target, draws=500, chains=2, random_seed=1, progressbar=False)
    >>> [axis.get_title() for axis in pb.plot_ladder(idata)]
    ['theta']
    """
    stats = _stages(idata)
    known = [str(name) for name in stats["unconstrained_parameter"].values]
    chosen = known[:_MOST_PANELS] if parameters is None else list(parameters)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ModelError(
            f"parameters: {unknown[0]!r} is not among the unconstrained parameters ({', '.join(known[:8])})"
        )
    axes = panels(axes, len(chosen))
    for axis, name in zip(axes, chosen, strict=True):
        for chain in range(stats.sizes["chain"]):
            reached, curves = _summary(idata, stats, chain, known.index(name))
            shown = reached > 0 if scale == "log" else reached >= 0
            _band(axis, reached[shown], curves[:, shown], color=f"C{chain % 10}")
        axis.set(title=name, xlabel="β", xscale=scale)
    return axes


def _summary(idata: Any, stats: xr.Dataset, chain: int, parameter: int) -> tuple[Array, Array]:
    """Return β ``(stages,)`` and five curves ``(5, stages)``: outer, inner, centre, inner, outer."""
    try:
        ladder = group(idata, "ladder").isel(chain=chain, unconstrained_parameter=parameter)
    except KeyError:
        moments = stats.isel(chain=chain, unconstrained_parameter=parameter)
        reached = np.isfinite(moments["beta"].values)
        mean, sd = moments["ladder_mean"].values[reached], moments["ladder_sd"].values[reached]
        return moments["beta"].values[reached], mean + np.array([-2, -1, 0, 1, 2])[:, None] * sd
    reached = np.isfinite(ladder["beta"].values)
    curves = [
        _weighted_quantiles(x, np.exp(log_weight))
        for x, log_weight in zip(ladder["x"].values[reached], ladder["log_weight"].values[reached], strict=True)
    ]
    return ladder["beta"].values[reached], np.stack(curves, axis=1)


def _weighted_quantiles(x: Array, weight: Array) -> Array:
    """Return 5 %, 25 %, 50 %, 75 % and 95 % quantiles of weighted points ``(n,)``."""
    order = np.argsort(x)
    position = (np.cumsum(weight[order]) - 0.5 * weight[order]) / weight.sum()
    return np.interp(_QUANTILES, position, x[order])


def _band(axis: Any, beta: Array, curves: Array, color: str) -> None:
    """Plot two nested bands and the line in their middle."""
    axis.fill_between(beta, curves[0], curves[4], color=color, alpha=0.08, linewidth=0)
    axis.fill_between(beta, curves[1], curves[3], color=color, alpha=0.15, linewidth=0)
    axis.plot(beta, curves[2], color=color, marker="o", markersize=3)


def _stages(idata: Any) -> xr.Dataset:
    """Return the figures per stage; refuse an ``idata`` that is not a result of tempering SMC."""
    stats = group(idata, "sample_stats")
    if "beta" not in stats or "stage" not in stats["beta"].dims:
        raise ModelError(
            "expected a result of ppl_backends.sample_smc: its sample_stats hold the figures of every stage"
        )
    return stats

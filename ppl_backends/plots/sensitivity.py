"""Plot power-scaling sensitivity: posteriors under powers of prior and likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ppl_backends.checks.sensitivity import LIKELIHOOD, PRIOR, Sensitivity
from ppl_backends.errors import ModelError
from ppl_backends.options import checked, choice, instance, none, several_names
from ppl_backends.plots.axes import table_of_panels

_MOST = 4  # quantities that are drawn by default


@checked(
    result=instance(Sensitivity, "the result of pb.sensitivity"),
    quantities=none | several_names("a name or a sequence of names of rows of the table"),
    components=several_names("a name or a sequence of names, such as ('prior', 'likelihood')"),
    kind=choice("ecdf", "moments"),
)
def plot_sensitivity(
    result: Sensitivity,
    quantities: Sequence[str] | None = None,
    *,
    components: Sequence[str] = (PRIOR, LIKELIHOOD),
    kind: str = "ecdf",
    axes: Any = None,
) -> Any:
    """Plot how quantities change if a component of the posterior is raised to a power.

    If the curves coincide, the quantity does not depend on that component. If both prior and likelihood change the
    quantity, they conflict.

    Parameters
    ----------
    result : Sensitivity
        From :func:`~ppl_backends.sensitivity`.
    quantities : sequence of str, optional
        Rows of the table of ``result``; the four most sensitive ones by default.
    components : sequence of str
        ``"prior"``, ``"likelihood"`` or ``"prior[name]"``; each has one row of panels.
    kind : {"ecdf", "moments"}
        Distribution functions at each power, or mean ± sd against the power. In the latter, error bars are two
        standard errors of the mean.
    axes : array of matplotlib.axes.Axes, optional
        One axes for each component and quantity.

    Returns
    -------
    ndarray of matplotlib.axes.Axes (components, quantities)

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     _ = pm.Normal("y", mu, 1, observed=np.array([7.5, 8.0, 8.5]))
    >>> idata = pb.sample_smc(model, draws=500, random_seed=1, progressbar=False)
    >>> pb.plot_sensitivity(pb.sensitivity(idata, model, random_seed=1)).shape
    (2, 1)
    """
    known = list(result.table.index)
    chosen = _most_sensitive(result, components) if quantities is None else list(quantities)
    for asked, names, what in ((chosen, known, "quantities"), (components, _components(result), "components")):
        unknown = [name for name in asked if name not in names]
        if unknown:
            raise ModelError(f"{what}: {unknown[0]!r} is not among {', '.join(names[:8])}")
    axes = table_of_panels(axes, len(components), len(chosen))
    draw = _distributions if kind == "ecdf" else _moments
    for row, component in zip(axes, components, strict=True):
        for axis, name in zip(row, chosen, strict=True):
            draw(axis, result, component, name)
            axis.set_title(f"{name}, powers of the {component}", fontsize="medium")
    if kind == "ecdf":
        axes[0, 0].legend(title="power", fontsize="small", title_fontsize="small")
    return axes


def _components(result: Sensitivity) -> list[str]:
    return [str(name) for name in result.moments["component"].values]


def _most_sensitive(result: Sensitivity, components: Sequence[str]) -> list[str]:
    known = [name for name in components if name in result.table]
    largest = result.table[known].max(axis=1)
    kept = set(largest.sort_values(ascending=False, kind="stable").index[:_MOST])
    return [name for name in result.table.index if name in kept]


def _distributions(axis: Any, result: Sensitivity, component: str, name: str) -> None:
    """Plot one distribution function for each power, from low to high."""
    powers = result.moments["power"].values
    for power in powers:
        colour = "black" if power == 1 else "tab:blue" if power < 1 else "tab:red"
        values, weight = result.values(component, float(power), name)
        order = np.argsort(values)
        axis.plot(values[order], np.cumsum(weight[order]), color=colour, label=f"{power:g}", linewidth=1.5)
    axis.set(xlabel=name, ylabel="share of the posterior below", ylim=(0, 1))


def _moments(axis: Any, result: Sensitivity, component: str, name: str) -> None:
    """Plot the mean with its error, and a band of one standard deviation, against the power."""
    figures = result.moments.sel(component=component, quantity=name)
    powers, mean, sd = figures["power"].values, figures["mean"].values, figures["sd"].values
    axis.fill_between(powers, mean - sd, mean + sd, alpha=0.2, linewidth=0, label="mean ± sd")
    axis.errorbar(powers, mean, 2 * figures["mean_se"].values, marker="o", capsize=3)
    axis.set(xscale="log", xlabel="power", ylabel=name, xticks=powers, xticklabels=[f"{p:g}" for p in powers])
    axis.minorticks_off()

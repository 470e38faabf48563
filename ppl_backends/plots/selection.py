"""Plot a search over models: inclusion probabilities with their errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.options import checked, instance, none
from ppl_backends.results.inference_data import group, inference_data

__all__ = ["plot_inclusion"]

COVERAGE = 1.96


@checked(idata=inference_data("selection"), var_name=none | instance(str, "the name of a variable"))
def plot_inclusion(idata: Any, var_name: str | None = None, axes: Any = None) -> Any:
    """Plot the posterior inclusion probability of each coefficient, with 95 % intervals of the search's Monte Carlo error.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~ppl_backends.select_variables`.
    var_name : str, optional
        The variable, if the search selected from several.
    axes : matplotlib.axes.Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import numpy as np
    >>> import ppl_backends as pb
    >>> rng = np.random.default_rng(1)
    >>> X = rng.standard_normal((50, 3))
    >>> idata = pb.select_variables(X=X, y=X[:, 0] + rng.standard_normal(50), family="gaussian", progressbar=False)
    >>> pb.plot_inclusion(idata).get_xlabel()
    'posterior probability of inclusion'
    """
    import matplotlib.pyplot as plt

    selection = group(idata, "selection")
    name = "inclusion" if var_name is None else f"{var_name}_inclusion"
    if name not in selection:
        names = [str(each).removesuffix("_inclusion") for each in selection if str(each).endswith("_inclusion")]
        raise ModelError(
            f"var_name={var_name!r}: expected one of {', '.join(names)}" if names else f"{name} is not known"
        )
    probability = selection[name]
    labels = [", ".join(map(str, np.atleast_1d(label))) for label in _labels(probability)]
    value, error = probability.values.ravel(), selection[f"{name}_se"].values.ravel()
    if axes is None:
        _, axes = plt.subplots(figsize=(6, 0.8 + 0.28 * len(labels)), layout="constrained")
    place = np.arange(len(labels))[::-1]
    low, high = np.minimum(COVERAGE * error, value), np.minimum(COVERAGE * error, 1 - value)
    axes.barh(place, value, color="C0", alpha=0.35)
    axes.errorbar(value, place, xerr=[low, high], fmt="o", markersize=4, capsize=3, color="C0")
    axes.set(xlim=(0, 1.02), xlabel="posterior probability of inclusion")
    axes.set_yticks(place, labels)
    return axes


def _labels(probability: Any) -> list[Any]:
    """Return the coordinates of each element, as a label or as a tuple of labels."""
    shape = probability.shape
    coordinates = [probability[dim].values for dim in probability.dims]
    return [tuple(axis[i] for axis, i in zip(coordinates, index, strict=True)) for index in np.ndindex(shape)]

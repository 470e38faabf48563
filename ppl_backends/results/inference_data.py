"""Results as the installed ArviZ's InferenceData: the only module that depends on the ArviZ version.

ArviZ 0.x has ``arviz.InferenceData``; ArviZ 1.x uses ``xarray.DataTree``. This module makes both from xarray data
sets. They hold only numeric arrays with named dimensions, so that every result can be written to NetCDF and read back.
"""

from __future__ import annotations

import importlib.metadata
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

import ppl_backends
from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.numerics.arrays import real_parts
from ppl_backends.numerics.gaussian import MAX_DENSE_DIM, Gaussian
from ppl_backends.options import Option
from ppl_backends.results.far_tails import far_tail
from ppl_backends.results.heavy_tails import unreliable_means
from ppl_backends.targets.protocol import Array, BaseTarget

ARVIZ_MAJOR = int(importlib.metadata.version("arviz").split(".")[0])

DimsAndValues = tuple[tuple[str, ...], Any]


def as_inference_data(groups: Mapping[str, xr.Dataset]) -> Any:
    """Return groups of data sets as ``arviz.InferenceData`` (ArviZ 0.x) or ``xarray.DataTree`` (ArviZ 1.x)."""
    kept = {name: data for name, data in groups.items() if len(data.data_vars)}
    if ARVIZ_MAJOR == 0:
        import arviz

        return arviz.InferenceData(**kept)
    return xr.DataTree.from_dict(kept)


def group(idata: Any, name: str) -> xr.Dataset:
    """Return one group of either kind of InferenceData as a data set."""
    found = idata[name]
    return found.to_dataset() if isinstance(found, xr.DataTree) else found


def group_names(idata: Any) -> list[str]:
    """Return the names of the groups of InferenceData or of a DataTree."""
    names = idata.groups() if callable(getattr(idata, "groups", None)) else list(idata.children)
    return [name.strip("/") for name in names if name.strip("/")]


def with_states(idata: Any, states: Array, axis: str, labels: Array) -> Any:
    """Add paths of states ``(chain, draw, row[, state])`` to the variables of ``posterior``.

    ``axis`` names the rows, and ``labels`` are their coordinates.
    """
    groups = {name: _without(group(idata, name), "states") for name in group_names(idata)}
    paths = (("chain", "draw", axis, "state")[: states.ndim], states)
    groups["posterior"] = groups["posterior"].assign(states=paths).assign_coords({axis: labels})
    return as_inference_data(groups)


def _without(data: xr.Dataset, name: str) -> xr.Dataset:
    """Return a group without a variable, and without the axes that only this variable has."""
    if name not in data:
        return data
    kept = data.drop_vars(name)
    used = {dim for variable in kept.data_vars.values() for dim in variable.dims}
    return kept.drop_dims([dim for dim in data[name].dims if dim not in used])


def is_inference_data(value: Any) -> bool:
    """Return whether a value is InferenceData of either kind."""
    if isinstance(value, xr.DataTree):
        return True
    return ARVIZ_MAJOR == 0 and "arviz" in sys.modules and isinstance(value, sys.modules["arviz"].InferenceData)


def inference_data(*groups: str) -> Option:
    """Return an option for InferenceData of either kind with the named groups."""

    def read(value: Any) -> Any:
        if not is_inference_data(value):
            raise TypeError
        for name in groups:
            try:
                group(value, name)
            except KeyError:
                raise ValueError from None
        return value

    return Option(f"InferenceData with {' and '.join(groups)}", read)


def is_before_posterior(attrs: Mapping[Any, Any]) -> bool:
    """Return whether attributes are of a run with an evidence that was stopped before it reached the posterior."""
    return float(attrs.get("complete", 1)) == 0 and "log_evidence_trusted" in attrs and "log_evidence" not in attrs


def normalised_evidence_error(attrs: Mapping[Any, Any], key: str = "log_evidence") -> float:
    """Return the standard error of an evidence minus the log integral of the prior, from the attributes of a result.

    Tempering from the prior includes the error of the prior's integral; other methods do not.
    """
    error = float(attrs.get(f"{key}_se", np.nan))
    if attrs.get("log_evidence_method") == "tempering" and str(attrs.get("initial")).startswith("prior"):
        return error
    return float(np.hypot(error, float(attrs.get("log_prior_normalizer_se", 0.0))))


def library_attrs() -> dict[str, str]:
    """Return the attributes of ArviZ's schema that name this package and its version."""
    return {"inference_library": "ppl_backends", "inference_library_version": ppl_backends.__version__}


def build_inference_data(
    target: BaseTarget,
    points: Array,
    *,
    method: str,
    accuracy: str,
    sampling_time: float,
    rng: np.random.Generator,
    attrs: Mapping[str, Any] | None = None,
    sample_stats: Mapping[str, DimsAndValues] | None = None,
    extra_groups: Mapping[str, Mapping[str, DimsAndValues]] | None = None,
    log_likelihood: bool = False,
    log_prior: bool = False,
    looks_beyond: bool = False,
) -> Any:
    """Return draws ``(chains, draws, dim)`` on the unconstrained space as InferenceData in model space.

    ``attrs`` that are None are left out. ``sample_stats`` and the groups of ``extra_groups`` map names to (dims,
    values). ``log_likelihood`` is pointwise; it is always stored if a Stan program has ``log_lik``. A warning names the
    variables whose means are unreliable because a tail of the draws is heavy.
    """
    chains, draws, _ = points.shape
    flat = points.reshape(chains * draws, -1)
    all_attrs = {
        **library_attrs(),
        "method": method,
        "accuracy": accuracy,
        "sampling_time": float(sampling_time),
        **{name: value for name, value in (attrs or {}).items() if value is not None},
    }
    coords, dims = target.coords, target.dims
    drawn = dict(target.constrain(flat, rng))
    if unreliable := unreliable_means(drawn, partial(far_tail, target, flat) if looks_beyond else None):
        all_attrs["warnings"] = "; ".join(filter(None, (all_attrs.get("warnings"), unreliable)))
        warnings.warn(unreliable, SamplerWarning, stacklevel=user_level())
    # Stan's generated quantities belong to separate groups, as in arviz.from_cmdstanpy.
    generated = {
        name: {new: drawn.pop(old) for old, new in names.items() if old in drawn}
        for name, names in target.generated_groups.items()
    }
    pointwise = generated.pop("log_likelihood", {})
    groups = {"posterior": _draws(drawn, chains, draws, coords, dims).assign_attrs(all_attrs)}
    stats = xr.Dataset({name: (list(on), np.asarray(values)) for name, (on, values) in (sample_stats or {}).items()})
    groups["sample_stats"] = _with_index_coords(stats, target)
    for name, variables in (extra_groups or {}).items():
        data = xr.Dataset({variable: (list(on), np.asarray(values)) for variable, (on, values) in variables.items()})
        groups[name] = _with_index_coords(data, target)
    if log_likelihood and not pointwise:
        pointwise = target.pointwise_log_likelihood(flat)
    for name, quantities in {**generated, "log_likelihood": pointwise}.items():
        groups[name] = _draws(quantities, chains, draws, coords, dims)
    if log_prior:
        groups["log_prior"] = _draws({"log_prior": _log_prior(target, flat)}, chains, draws, {}, {})
    for name, stored in (("observed_data", target.observed_data), ("constant_data", target.constant_data)):
        groups[name] = _constants(stored, coords, dims)
    return as_inference_data(groups)


def _log_prior(target: BaseTarget, points: Array) -> Array:
    values = target.evaluate(points).log_prior
    if values is None:
        raise ValueError(f"{target.label}: prior and likelihood cannot be separated, so there is no log_prior")
    return values


def _draws(values: Mapping[str, Array], chains: int, draws: int, coords: Mapping, dims: Mapping) -> xr.Dataset:
    """Return variables ``(chains·draws, *shape)`` as a data set with dims (chain, draw, the model's own)."""
    variables, index = {}, {"chain": np.arange(chains), "draw": np.arange(draws)}
    for name, value in values.items():
        value = real_parts(value)  # neither NetCDF nor ArviZ's summaries support complex numbers
        shaped = value.reshape(chains, draws, *value.shape[1:])
        own = _own_dims(name, shaped.shape[2:], coords, dims, index)
        variables[name] = (["chain", "draw", *own], shaped)
    return xr.Dataset(variables, coords=index)


def _constants(values: Mapping[str, Array], coords: Mapping, dims: Mapping) -> xr.Dataset:
    variables: dict[str, tuple] = {}
    index: dict[str, Array] = {}
    for name, value in values.items():
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            variables[name] = (_own_dims(name, array.shape, coords, dims, index), array)
    return xr.Dataset(variables, coords=index)


def dims_of(name: str, n_axes: int, dims: Mapping) -> list[str]:
    """Return the model's dims of a variable, or ArviZ's ``name_dim_k`` where it has none."""
    given = list(dims.get(name) or [])
    given += [None] * (n_axes - len(given))
    return [given[axis] or f"{name}_dim_{axis}" for axis in range(n_axes)]


def _own_dims(name: str, shape: tuple[int, ...], coords: Mapping, dims: Mapping, index: dict) -> list[str]:
    """Return the model's dims of a variable, or ArviZ's ``name_dim_k`` if it has none; add the coordinates that they need."""
    own = []
    for axis, (dim, length) in enumerate(zip(dims_of(name, len(shape), dims), shape, strict=True)):
        labels = coords.get(dim)
        if labels is None or len(labels) != length:
            labels = np.arange(length)
        if len(index.setdefault(dim, np.asarray(labels))) != length:
            dim = f"{name}_dim_{axis}"
            index[dim] = np.arange(length)
        own.append(dim)
    return own


def _with_index_coords(data: xr.Dataset, target: BaseTarget) -> xr.Dataset:
    """Give every dimension labels: the model's, the unconstrained names, or integers."""
    labels = {}
    for dim, length in data.sizes.items():
        if dim not in data.coords:
            known = target.coords.get(str(dim))
            labels[dim] = np.asarray(known) if known is not None and len(known) == length else np.arange(length)
    if "unconstrained_parameter" in labels:
        labels["unconstrained_parameter"] = np.asarray(target.names)
    return data.assign_coords(labels)


def gaussian_of_draws(idata: Any, target: BaseTarget | None) -> tuple[tuple[str, ...], Gaussian]:
    """Return names of coordinates, and the Gaussian with the mean and covariance of the draws.

    The covariance is dense if there are more than two draws per coordinate, else diagonal.
    """
    names, draws = unconstrained_draws(idata, target)
    n, dim = (x := draws.reshape(-1, draws.shape[-1])).shape
    sd = x.std(axis=0, ddof=1) if n > 1 else np.zeros(dim)
    if not (np.isfinite(sd) & (sd > 0)).all():
        stuck = names[int(np.argmin(np.where(np.isfinite(sd), sd, -1.0)))]
        raise ModelError(f"the {n} draws of {stuck} do not vary or are not finite: no Gaussian can be fitted to them")
    if n <= 2 * dim or dim > MAX_DENSE_DIM:
        return names, Gaussian(x.mean(axis=0), sd)
    try:
        return names, Gaussian.from_covariance(x.mean(axis=0), np.atleast_2d(np.cov(x.T)))
    except np.linalg.LinAlgError:
        raise ModelError(f"the covariance of the {n} draws is not positive definite") from None


def unconstrained_draws(idata: Any, target: BaseTarget | None) -> tuple[tuple[str, ...], Array]:
    """Return names and draws ``(chain, draw, dim)`` on the unconstrained space."""
    try:
        stored = group(idata, "unconstrained_posterior")
    except KeyError:
        stored = None
    if stored is not None and "x" in stored and _are_of(stored["unconstrained_parameter"].values, target):
        return tuple(str(name) for name in stored["unconstrained_parameter"].values), stored["x"].values
    if target is None:
        raise ModelError("the draws are in model space: give model=, which takes them to the unconstrained space")
    sizes = group(idata, "posterior").sizes
    x = np.asarray(target.unconstrain(flat_draws(idata)), dtype=np.float64)
    return target.names, x.reshape(sizes["chain"], sizes["draw"], -1)


def _are_of(names: Array, target: BaseTarget | None) -> bool:
    """Return whether stored coordinates have the names of the target's."""
    return target is None or [str(name) for name in names] == list(target.names)


def flat_draws(idata: Any, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Return draws of a posterior, name → ``(chains·draws, *shape)``: all variables, or those of ``names`` it has."""
    posterior = group(idata, "posterior")
    kept = posterior.data_vars if names is None else [name for name in names if name in posterior]
    return {str(name): np.concatenate(posterior[name].transpose("chain", "draw", ...).values) for name in kept}

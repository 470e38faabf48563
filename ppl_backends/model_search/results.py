"""A search as InferenceData: draws of models and coefficients, inclusion probabilities, and the models themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.forms import Form
from ppl_backends.model_search.space import Bits, ModelSpace, by_model
from ppl_backends.results import build_inference_data
from ppl_backends.targets.protocol import Array, BaseTarget

MOST_LISTED = 1000  # models


class Listed(NamedTuple):
    """Models with the largest posterior probabilities: bits ``(models, m)``, log evidences and probabilities."""

    bits: Bits
    log_evidence: Array
    probability: Array

    def best(self) -> Listed:
        """Return the most probable ones, in order."""
        order = np.argsort(-self.probability, kind="stable")[:MOST_LISTED]
        return Listed(self.bits[order], self.log_evidence[order], self.probability[order])


class Searched(NamedTuple):
    """Result of a search: models ``(chains, draws, m)``, inclusion probabilities, and the most probable models."""

    bits: Bits
    inclusion: Array
    inclusion_se: Array
    models: Listed


class _Selection(BaseTarget):
    """Results of a form: its variables, and ``gamma`` for each that was selected from."""

    def __init__(self, form: Form, space: ModelSpace) -> None:
        target, self._form = form.target, form
        self.names = (*target.names, *(f"included[{name}]" for name in form.names))
        self.dim, self.label = len(self.names), target.label
        self.coords, dims = {**target.coords, "candidate": list(space.names)}, dict(target.dims)
        for variable in form.variables:
            own = list(dims.get(variable) or [])
            shape = form.variables[variable].shape
            own += [f"{variable}_dim_{axis}" for axis in range(len(own), len(shape))]
            dims[prefixed(form, variable, "gamma")] = own
        self.dims, self.observed_data, self.constant_data = dims, target.observed_data, target.constant_data

    def constrain(self, x: Array, rng: np.random.Generator | None = None) -> dict[str, Array]:
        p = len(self._form.names)
        gamma = x[:, -p:].astype(np.int8)
        found: dict[str, Any] = dict(self._form.target.constrain(x[:, :-p], rng))
        for variable, index in self._form.variables.items():
            found[prefixed(self._form, variable, "gamma")] = gamma[:, index]
        return found


def prefixed(form: Form, variable: str, name: str) -> str:
    """Return the name of a result for one variable; it includes the variable's name if several are selected from."""
    return name if len(form.variables) == 1 else f"{variable}_{name}"


def search_inference_data(
    form: Form,
    space: ModelSpace,
    evidence: Evidence,
    found: Searched,
    *,
    sampling_time: float,
    rng: np.random.Generator,
    attrs: Mapping[str, Any],
    sample_stats: Mapping[str, Any],
) -> Any:
    """Return the result of :func:`~ppl_backends.select_variables`."""
    chains, draws, m = found.bits.shape
    columns = space.columns(found.bits.reshape(chains * draws, m))
    points = np.concatenate([_coefficients(form, evidence, columns, rng), columns.astype(np.float64)], axis=1)
    return build_inference_data(
        _Selection(form, space),
        points.reshape(chains, draws, -1),
        rng=rng,
        sampling_time=sampling_time,
        attrs={name: value for name, value in attrs.items() if name != "method"},
        sample_stats=sample_stats,
        extra_groups={"selection": _selection(form, space, found)},
        method=str(attrs["method"]),
        accuracy="exact" if evidence.exact and attrs["log_evidence_trusted"] else "approximate",
    )


def _coefficients(form: Form, evidence: Evidence, columns: Bits, rng: np.random.Generator) -> Array:
    """Return a draw of the coefficients of each model ``(n, p + extra)``, zero if they are off."""
    out = np.empty((len(columns), len(form.names) + len(form.extra)))
    for model, rows in by_model(columns):
        drawn = evidence.coefficients(model, len(rows), rng)
        out[rows, : len(form.names)] = drawn["coefficients"]
        for k, name in enumerate(form.extra, start=len(form.names)):
            out[rows, k] = drawn[name]
    return out


def _selection(form: Form, space: ModelSpace, found: Searched) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Return inclusion probabilities by variable, and the models with their evidences and probabilities."""
    models = found.models
    candidate, column = np.nonzero(space.members)
    inclusion, error = np.ones(len(form.names)), np.zeros(len(form.names))
    inclusion[column], error[column] = found.inclusion[candidate], found.inclusion_se[candidate]
    on = space.columns(models.bits).astype(np.int8)
    group: dict[str, tuple[tuple[str, ...], Any]] = {
        "model_log_evidence": (("model",), models.log_evidence),
        "model_probability": (("model",), models.probability),
    }
    dims = _Selection(form, space).dims
    for variable, index in form.variables.items():
        own = tuple(dims[prefixed(form, variable, "gamma")])
        group[prefixed(form, variable, "inclusion")] = (own, inclusion[index])
        group[prefixed(form, variable, "inclusion_se")] = (own, error[index])
        group[prefixed(form, variable, "model_gamma")] = (("model", *own), on[:, index])
    return group

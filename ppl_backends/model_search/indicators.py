"""PyMC models with indicators: which coefficient each of them switches, found by fixing them all at one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.model_search.chain import SelectedModel
from ppl_backends.model_search.evidences.laplace_kernels import log_priors
from ppl_backends.model_search.evidences.table import make_evidence
from ppl_backends.model_search.forms import Form
from ppl_backends.model_search.model_form import model_form
from ppl_backends.targets.protocol import Array, Index

_TOLERANCE = 1e-6  # of log densities, relative


def selected_model(
    model: Any, indicators: Mapping[str, str], evidence: str, points: int
) -> tuple[SelectedModel, dict[str, Any]]:
    """Return what a chain needs of a PyMC model whose ``indicators`` multiply coefficients, and its start.

    Raises
    ------
    ModelError
        If a name is unknown, shapes differ, the model has variables beside coefficients and indicators, or to switch an
        indicator off is not to leave the coefficient out.
    """
    import pymc as pm

    start = {name: np.asarray(value) for name, value in model.initial_point(random_seed=0).items()}
    for name in (*indicators, *indicators.values()):
        if name not in start:
            raise ModelError(f"indicators: {name!r} is not among the free variables {', '.join(map(repr, start))}")
    for name, coefficient in indicators.items():
        if start[name].shape != start[coefficient].shape:
            raise ModelError(
                f"indicators: {name!r} has shape {start[name].shape} and {coefficient!r} {start[coefficient].shape}"
            )
    fixed = pm.do(model, {name: np.ones(start[name].shape, start[name].dtype) for name in indicators})
    form = model_form(fixed, None, dict.fromkeys(indicators.values(), True))
    assert form.regression is not None
    compiled = form.regression.compiled
    if compiled is None:
        raise ModelError("ModelSearch needs a logit, probit, Poisson or normal likelihood and normal or Student priors")
    switched = np.concatenate([form.variables[name].ravel() for name in indicators.values()])
    selected = SelectedModel(
        make_evidence(evidence, form, len(switched), False, points),
        _prior_of(model, list(indicators), start),
        form.always,
        switched,
        compiled.prior,
        _places(start, list(indicators)),
        _places(start, [fixed.rvs_to_values[rv].name for rv in fixed.free_RVs]),
    )
    _check(model, form, selected, start)
    return selected, start


def ravelled(start: Mapping[str, Any]) -> Array:
    """Return the values of variables as one point ``(dim,)``."""
    return np.concatenate([np.ravel(value).astype(np.float64) for value in start.values()])


def _places(start: Mapping[str, Any], names: list[str]) -> Index:
    """Return where the elements of some variables are in the ravelled point."""
    ends = np.cumsum([0, *(value.size for value in start.values())])
    slices = {name: np.arange(a, b) for name, a, b in zip(start, ends, ends[1:], strict=False)}
    return np.concatenate([slices[name] for name in names])


def _point(start: Mapping[str, Any], x: Array) -> dict[str, Any]:
    ends = np.cumsum([0, *(value.size for value in start.values())])
    pieces = zip(start.items(), ends, ends[1:], strict=False)
    return {name: x[a:b].reshape(value.shape).astype(value.dtype) for (name, value), a, b in pieces}


def _prior_of(model: Any, names: list[str], start: Mapping[str, Any]) -> Any:
    """Return the log prior of indicators ``(m,)``."""
    compiled = model.compile_logp(vars=[model[name] for name in names])
    index = _places(start, names)
    x = ravelled(start)

    def log_prior(bits: Any) -> float:
        here = x.copy()
        here[index] = bits
        return float(compiled(_point(start, here)))

    return log_prior


def _check(model: Any, form: Form, selected: SelectedModel, start: Mapping[str, Any]) -> None:
    """Refuse a model whose log density is not that of indicators, coefficients that are on, and priors of the others."""
    assert form.regression is not None
    rng, joint = np.random.default_rng(0), model.compile_logp()
    x = np.empty(len(selected.indicators) + len(selected.coefficients))
    gaps = []
    for _ in range(4):
        bits, theta = rng.random(len(selected.switched)) < 0.5, 0.3 * rng.standard_normal(len(selected.always))
        x[selected.indicators], x[selected.coefficients] = bits, theta
        on = selected.columns(bits[None])[0]
        within = form.regression.take(on).log_density(theta[None, on])[0] if on.any() else 0.0
        gaps.append(
            (float(joint(_point(start, x))), within + selected.log_prior(bits) + _log_prior(selected, theta, ~on))
        )
    found, expected = np.array(gaps).T
    if not np.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ModelError(
            f"indicators: a coefficient whose indicator is 0 does not drop out of the likelihood of the model (log density "
            f"{found[0]:.6g}, without it {expected[0]:.6g}); multiply coefficients by indicators"
        )


def _log_prior(selected: SelectedModel, theta: Array, off: Any) -> float:
    """Return the log prior density of the coefficients that are off."""
    return float(log_priors(selected.prior[off], theta[off]).sum())

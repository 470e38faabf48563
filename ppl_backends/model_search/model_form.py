"""The coefficients of a PyMC model or a Stan program as columns that are switched on and off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy import sparse

from ppl_backends.errors import ModelError
from ppl_backends.model_search.forms import Form
from ppl_backends.model_search.space import Bits
from ppl_backends.model_search.switched import replace_prior, switched
from ppl_backends.options import shown
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.factors import Factors, StackedSites
from ppl_backends.targets.factors.sites import ScaledSites
from ppl_backends.targets.protocol import BaseTarget, Index


@dataclass(frozen=True)
class ModelForms:
    """The coefficients of a model as columns, given its hyper-parameters φ.

    Attributes
    ----------
    target : BaseTarget
    factors : Factors or ConditionalFactors
    variables : mapping of str to ndarray of int
        Coordinates of the target that the elements of each selected variable are.
    switchable : ndarray (target.dim,) of bool
    """

    target: BaseTarget
    factors: Any
    variables: Mapping[str, Index]
    switchable: Bits

    def at(self, phi: Any = ()) -> Form:
        """Return the form at φ, whose columns are the coordinates without φ; up to a factor if there are any φ."""
        factors, own = self.factors.at(phi), np.asarray(self.factors.coordinates)
        if factors.normal_rows is not None:
            factors = _with_normal_sites(factors, None if len(self.factors.hyper_names) else self.target)
        switchable = self.switchable[own]
        variables = {name: np.searchsorted(own, index) for name, index in self.variables.items()}
        names = tuple(self.target.names[j] for j in own)
        return Form(names, ~switchable, variables, self.target, switched(factors, switchable))


def model_form(model: Any, data: Any, select: Mapping[str, Any]) -> Form:
    """Return the form of a model; ``select`` maps variables to masks of what may be switched off, or to True for all.

    Raises
    ------
    ModelError
        If a name is unknown, a variable is transformed, or the model has hyper-parameters or unknown factors.
    """
    forms = model_forms(as_target(model, data), select)
    if len(forms.factors.hyper_names):
        raise ModelError(
            f"{forms.target.label}: hyper-parameters ({', '.join(forms.factors.hyper_names)}) are not integrated over in a "
            "model search; give them values"
        )
    return forms.at()


def labels(form: Form) -> dict[str, str]:
    """Return the name of each column with the labels of its coords: ``beta[age]`` for ``beta[0]``.

    A variable keeps its numbers if it has no coords, or if labels could be mistaken for numbers.
    """
    found, coords = {name: name for name in form.names}, form.target.coords
    for variable, index in form.variables.items():
        dims = form.target.dims.get(variable) or ()
        if not index.ndim or len(dims) != index.ndim or any(dim not in coords for dim in dims):
            continue
        own = [form.names[j] for j in index.ravel()]
        shown_as = [f"{variable}[{', '.join(map(str, each))}]" for each in product(*(coords[dim] for dim in dims))]
        if len({*own, *shown_as}) == 2 * len(own):
            found.update(zip(own, shown_as, strict=True))
    return found


def model_forms(target: BaseTarget, select: Mapping[str, Any]) -> ModelForms:
    """Return the forms of a target given its hyper-parameters.

    Raises
    ------
    ModelError
        If a name is unknown, a variable is transformed or is itself a hyper-parameter, or factors are unknown.
    """
    if not select:
        raise ModelError("select={} names no variable; write select={'beta': True}, with a variable of the model")
    variables = _variables(target, select)
    switchable = np.zeros(target.dim, dtype=bool)
    for name, index in variables.items():
        switchable[index[_mask(name, select[name], index.shape)]] = True
    factors = target.factors
    if factors is None:
        raise ModelError(
            f"{target.label}: no factors with one linear predictor each are known, so nothing can be switched"
        )
    held = factors.hyper_coordinates[switchable[factors.hyper_coordinates]]
    if len(held):
        raise ModelError(f"{target.label}: {target.names[held[0]]} is not a coefficient of a linear predictor")
    return ModelForms(target, factors, variables, switchable)


def _variables(target: BaseTarget, select: Mapping[str, Any]) -> dict[str, Index]:
    """Return the coordinates of the elements of each variable, which must be a coordinate itself."""
    grid = np.arange(1.0, target.dim + 1.0) / (target.dim + 1.0)
    with np.errstate(all="ignore"):
        values, halves = (target.constrain(x[None], np.random.default_rng(0)) for x in (grid, 0.5 * grid))
    found = {}
    for name in select:
        if name not in values:
            raise ModelError(f"select: {name!r} is not among the variables {', '.join(map(repr, values))}")
        value, half = np.asarray(values[name][0], dtype=np.float64), np.asarray(halves[name][0], dtype=np.float64)
        index = np.clip(np.rint(np.nan_to_num(value) * (target.dim + 1)).astype(int) - 1, 0, target.dim - 1)
        if not (np.allclose(value, grid[index]) and np.allclose(half, 0.5 * grid[index])):
            raise ModelError(f"select: {name!r} is transformed or computed; only free, unbounded coefficients can be 0")
        found[name] = index
    return found


def _mask(name: str, given: Any, shape: tuple[int, ...]) -> Any:
    mask = np.asarray(given)
    if mask.dtype != bool or mask.shape not in ((), shape):
        raise ModelError(f"select: {name!r}={shown(given)}: expected True, or a boolean mask of shape {shape}")
    return np.broadcast_to(mask, shape)


def _with_normal_sites(factors: Factors, target: BaseTarget | None) -> Factors:
    """Return factors whose Gaussian part is only the prior: normal observations become sites.

    Their constant is that of the target, and is not used without a target.
    """
    assert factors.normal_rows is not None
    design, offset, family, log_scale = factors.normal_rows
    prior = factors.tempered(0.0).prior
    dense = design.toarray() if sparse.issparse(design) else np.asarray(design)
    rows = np.r_[factors.observed, np.ones(len(dense), dtype=bool)]
    whole = Factors(
        [factors.design, dense],
        np.r_[factors.offset, np.broadcast_to(offset, len(dense))],
        StackedSites([factors.sites, ScaledSites(family, log_scale)]),
        prior.mean,
        prior.precision,
        observed=rows,
        names=factors.names,
    )
    point = np.full((1, factors.dim), 0.1)
    constant = 0.0 if target is None else float(target.log_density(point)[0] - whole.log_density(point)[0])
    return replace_prior(whole, prior.mean, prior.precision, constant)

"""PyMC models with indicators: find the coefficient of each indicator by fixing all indicators at one.

Other steps move free variables that are neither indicators nor coefficients, and the model is conditional on them: the
scales of priors and of noise, found as hyper-parameters of the factors, and variables on which only the prior of the
indicators depends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.model_search.chain import SelectedModel
from ppl_backends.model_search.evidences.laplace_kernels import log_priors
from ppl_backends.model_search.evidences.table import make_evidence
from ppl_backends.model_search.forms import Form
from ppl_backends.model_search.model_form import model_forms
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import Array, BaseTarget, Index

_TOLERANCE = 1e-6  # of log densities, relative


class OwnVariables(BaseTarget):
    """The coordinates of a point that a step moves, and the values of the others.

    Parameters
    ----------
    free : ndarray of int (dim,)
    point : ndarray (full dim,)
    """

    free: Any = None
    others: Any = None
    point: Any = None

    def __init__(self, free: Index, point: Array) -> None:
        self.free, self.point, self.dim = free, point.copy(), len(free)
        self.others = np.setdiff1d(np.arange(len(point)), free)

    def set_others(self, point: Array) -> bool:
        moved = not np.array_equal(self.point[self.others], point[self.others])
        self.point[self.others] = point[self.others]
        return moved


class Selection:
    """A PyMC model whose ``indicators`` multiply coefficients, name → name, given its other variables.

    Parameters
    ----------
    model : pm.Model
    indicators : mapping of str to str
    evidence : str
    points : int

    Attributes
    ----------
    start : dict
        Value variables, name → value, in the order of the point.
    own : tuple of str
        Value variables of indicators and coefficients.
    target : OwnVariables

    Raises
    ------
    ModelError
        If a name is unknown, shapes differ, a variable is neither a coefficient nor one that can be conditioned on, or
        switching an indicator off does not remove the coefficient.
    """

    def __init__(self, model: Any, indicators: Mapping[str, str], evidence: str, points: int) -> None:
        self._model, self._indicators, self._evidence, self._points = model, dict(indicators), evidence, points
        self.start = {name: np.asarray(value) for name, value in model.initial_point(random_seed=0).items()}
        self._check_names()
        fixed = _with_all_on(model, indicators, self.start)
        self._forms = model_forms(as_target(fixed), dict.fromkeys(indicators.values(), True))
        self._values = [fixed.rvs_to_values[rv].name for rv in fixed.free_RVs]
        held = np.zeros(self._forms.target.dim, dtype=bool)
        held[self._forms.factors.hyper_coordinates] = True
        ends = np.cumsum([self.start[name].size for name in self._values])
        flags = dict(zip(self._values, np.split(held, ends[:-1]), strict=True))
        for name, flag in flags.items():
            if flag.any() and not flag.all():
                raise ModelError(f"ModelSearch: some elements of {name!r} are coefficients and others are not")
        coefficients = {name for name in self._values if not flags[name].any()}
        self.own = tuple(name for name in self.start if name in coefficients or name in indicators)
        self.target = OwnVariables(_places(self.start, self.own), ravelled(self.start))
        self._prior = model.compile_logp(vars=[model[name] for name in indicators])
        self._latest: tuple[Array, SelectedModel] | None = None
        self._check(self.current())

    def _check_names(self) -> None:
        given = list(self._indicators.values())
        if twice := [name for name in given if given.count(name) > 1]:
            raise ModelError(f"indicators: {twice[0]!r} is the coefficient of several indicators; it can have one")
        for name in (*self._indicators, *self._indicators.values()):
            if name not in self.start:
                known = ", ".join(map(repr, self.start))
                raise ModelError(f"indicators: {name!r} is not among the free variables {known}")
        for name, coefficient in self._indicators.items():
            shapes = self.start[name].shape, self.start[coefficient].shape
            if shapes[0] != shapes[1]:
                raise ModelError(f"indicators: {name!r} has shape {shapes[0]} and {coefficient!r} {shapes[1]}")

    def current(self) -> SelectedModel:
        """Return the model given the current values of the other variables."""
        point = self.target.point
        others = point[self.target.others]
        if self._latest is None or not np.array_equal(self._latest[0], others):
            self._latest = others, self._given(point.copy())
        return self._latest[1]

    def form(self, point: Array) -> Form:
        """Return the form given the other variables in a point of all."""
        return self._forms.at(point[_places(self.start, self._values)][self._forms.factors.hyper_coordinates])

    def _given(self, point: Array) -> SelectedModel:
        form = self.form(point)
        assert form.regression is not None
        compiled = form.regression.compiled
        if compiled is None:
            raise ModelError(
                "ModelSearch needs a logit, probit, Poisson or normal likelihood and normal or Student priors"
            )
        switched = np.concatenate([form.variables[name].ravel() for name in self._indicators.values()])
        own = {name: self.start[name] for name in self.own}
        return SelectedModel(
            make_evidence(self._evidence, form, len(switched), False, self._points),
            self._prior_at(point),
            form.always,
            switched,
            compiled.prior,
            _places(own, tuple(self._indicators)),
            _places(own, tuple(name for name in self._values if name in own)),
        )

    def _prior_at(self, point: Array) -> Callable[[Any], float]:
        """Return the log prior of indicators ``(m,)`` given the other variables."""
        index = _places(self.start, tuple(self._indicators))

        def log_prior(bits: Any) -> float:
            here = point.copy()
            here[index] = bits
            return float(self._prior(_point(self.start, here)))

        return log_prior

    def _check(self, selected: SelectedModel) -> None:
        """Check that the log density is that of indicators, included coefficients, and priors of the others."""
        regression = self.form(self.target.point).regression
        assert regression is not None
        rng, joint = np.random.default_rng(0), self._model.compile_logp()
        x, own = self.target.point.copy(), np.empty(self.target.dim)
        gaps = []
        first, second = rng.random((2, len(selected.switched))) < 0.5
        for bits in (first, ~first, second, ~second):  # each indicator is off at some points, and on at others
            theta = 0.3 * rng.standard_normal(len(selected.always))
            own[selected.indicators], own[selected.coefficients] = bits, theta
            x[self.target.free] = own
            on = selected.columns(bits[None])[0]
            within = regression.log_density_of_none
            if on.any():
                within = regression.take(on).log_density(theta[None, on])[0]
            gaps.append(
                (
                    float(joint(_point(self.start, x))),
                    within + selected.log_prior(bits) + _log_prior(selected, theta, ~on),
                )
            )
        found, expected = np.array(gaps).T
        if len(self.target.others):  # their priors are the same at all points
            expected = expected + found[0] - expected[0]
        if not np.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
            worst = int(np.argmax(np.abs(found - expected)))
            raise ModelError(
                f"indicators: a coefficient whose indicator is 0 is still part of the likelihood of the model (log "
                f"density {found[worst]:.6g}, without it {expected[worst]:.6g}); multiply coefficients by indicators"
            )


def _with_all_on(model: Any, indicators: Mapping[str, str], start: Mapping[str, Any]) -> Any:
    """Return the model with all indicators at one, without variables on which only their prior depends."""
    import pymc as pm

    from ppl_backends.targets.pymc.matching import ancestors

    fixed = pm.do(model, {name: np.ones(start[name].shape, start[name].dtype) for name in indicators})
    above = set(ancestors([model[name] for name in indicators]))
    wanted = [rv.name for rv in model.free_RVs if rv in above and rv.name not in indicators]
    idle = {}
    for name in wanted:
        rest = [rv for rv in (*fixed.basic_RVs, *fixed.potentials) if rv.name != name]
        if fixed[name] not in set(ancestors(rest)):
            idle[name] = pm.draw(fixed[name], random_seed=0)
    return pm.do(fixed, idle) if idle else fixed


def ravelled(start: Mapping[str, Any]) -> Array:
    """Return the values of variables as one point ``(dim,)``."""
    return np.concatenate([np.ravel(value).astype(np.float64) for value in start.values()])


def _places(start: Mapping[str, Any], names: Any) -> Index:
    """Return the positions of the elements of some variables in the ravelled point."""
    ends = np.cumsum([0, *(value.size for value in start.values())])
    slices = {name: np.arange(a, b) for name, a, b in zip(start, ends, ends[1:], strict=False)}
    return np.concatenate([slices[name] for name in names])


def _point(start: Mapping[str, Any], x: Array) -> dict[str, Any]:
    ends = np.cumsum([0, *(value.size for value in start.values())])
    pieces = zip(start.items(), ends, ends[1:], strict=False)
    return {name: x[a:b].reshape(value.shape).astype(value.dtype) for (name, value), a, b in pieces}


def _log_prior(selected: SelectedModel, theta: Array, off: Any) -> float:
    """Return the log prior density of the coefficients that are off."""
    return float(log_priors(selected.prior[off], theta[off]).sum())

"""The regression of a search: a design and a response, or the coefficients of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from ppl_backends.errors import ModelError
from ppl_backends.model_search.space import Bits, place
from ppl_backends.model_search.switched import Switched, switched
from ppl_backends.options import shown
from ppl_backends.targets.digest import digest
from ppl_backends.targets.factors import Factors, Logit, Poisson, Probit, SiteFamily, StackedSites, StudentT
from ppl_backends.targets.protocol import Array, BaseTarget, Index

FAMILIES = {
    ("binomial", "logit"): Logit,
    ("binomial", "probit"): Probit,
    ("poisson", "log"): Poisson,
}
LINKS = {"binomial": "logit", "poisson": "log", "gaussian": "identity"}
# Gelman, Jakulin, Pittau & Su (2008); the normal priors are those of Chopin & Ridgway (2017).
INTERCEPT_SD, SLOPE_SD = 20.0, 5.0
CAUCHY_INTERCEPT, CAUCHY_SLOPE = 10.0, 2.5


@dataclass(frozen=True)
class Form:
    """Columns that are switched on and off, the regression they belong to, and the names of results.

    Attributes
    ----------
    names : tuple of str
        Names of the columns.
    always : ndarray (p,) of bool
        Columns in every model.
    variables : mapping of str to ndarray of int
        Variables that are selected from, and the columns of their elements.
    target : BaseTarget
        Names and shapes of the results; its points are the coefficients, and ``extra`` of the evidence.
    regression : Switched or None
        None for the linear model with a g-prior, which is ``linear``: design, response and prior.
    extra : tuple of str
        Parameters other than the coefficients.
    link : str or None
        Link of a design; None for a model, which contains its link.
    """

    names: tuple[str, ...]
    always: Bits
    variables: Mapping[str, Index]
    target: BaseTarget
    regression: Switched | None = None
    linear: tuple[Array, Array, str] | None = None
    extra: tuple[str, ...] = ()
    link: str | None = None


class Coefficients(BaseTarget):
    """Names and shapes of the coefficients of a design, for results."""

    label = "design"

    def __init__(
        self,
        names: tuple[str, ...],
        own: Index,
        added: bool,
        extra: tuple[str, ...],
        y: Array,
        digests: Mapping[str, str],
    ) -> None:
        self.names, self.dim, self._digests = (*names, *extra), len(names) + len(extra), dict(digests)
        self._own, self._added, self._extra = own, added, extra
        self.coords = {"predictor": [names[j] for j in own], "obs": range(len(y))}
        self.dims = {"beta": ["predictor"], "gamma": ["predictor"], "y": ["obs"]}
        self.observed_data = {"y": y}

    def digests(self) -> dict[str, str]:
        """Return the digests of the design, the response and the options."""
        return dict(self._digests)

    def constrain(self, x: Array, rng: np.random.Generator | None = None) -> dict[str, Array]:
        found = {"beta": x[:, self._own]}
        if self._added:
            found["intercept"] = x[:, 0]
        first = self.dim - len(self._extra)
        return found | {name: x[:, first + k] for k, name in enumerate(self._extra)}


def design_form(X: Any, y: Any, family: str, link: str | None, prior: Any, always: Any) -> Form:
    """Return the form of a design and a response; the first constant column is the intercept, or one is added first.

    Raises
    ------
    ModelError
        If shapes disagree, numbers are not finite, or the family, link or prior is unknown.
    """
    design, names = read_design(X)
    if len(design) == 0:
        raise ModelError(f"X has shape {design.shape}: it has no rows")
    response = read_response(y, len(design))
    constant = np.ptp(design, axis=0) == 0
    if zero := [name for name, column in zip(names, design.T, strict=True) if not column.any()]:
        raise ModelError(f"X: column {zero[0]!r} is zero in all rows; leave it out")
    added = not constant.any()
    if added:
        label = "intercept" if "intercept" not in names else "(intercept)"
        design, names = np.column_stack([np.ones(len(design)), design]), (label, *names)
        constant = np.r_[True, constant]
    intercept = int(np.argmax(constant))
    if constant.sum() > 1:
        raise ModelError(f"X: column {names[np.flatnonzero(constant)[1]]!r} is constant and so is {names[intercept]!r}")
    own = np.arange(len(names))[1:] if added else np.arange(len(names))
    kept = np.zeros(len(names), dtype=bool)
    kept[own] = _always(always, tuple(names[j] for j in own))
    kept[intercept] = True
    given = prior if prior is None or isinstance(prior, str) else np.asarray(prior)
    said = {"X": digest(design), "y": digest(response), "family": digest(family, link), "prior": digest(given)}
    if link is not None and LINKS[family] != link and (family, link) not in FAMILIES:
        raise ModelError(f"link={link!r} is not known for family={family!r}")
    if family == "gaussian":
        if not (prior is None or (isinstance(prior, str) and prior in ("g", "hyper-g"))):
            raise ModelError(f"prior={shown(prior)}: with family='gaussian' expected 'g' or 'hyper-g'")
        target = Coefficients(names, own, added, ("sigma",), response, said)
        return Form(
            names,
            kept,
            {"beta": own},
            target,
            linear=(design, response, prior or "g"),
            extra=("sigma",),
            link="identity",
        )
    link = link or LINKS[family]
    if family == "poisson" and (np.any(response < 0) or np.any(response != np.round(response))):
        raise ModelError("y must be counts with family='poisson'")
    try:
        sites = FAMILIES[family, link](response)
    except ModelError as error:
        raise ModelError(f"y: {error}; other outcomes need family='gaussian' or 'poisson'") from None
    factors = _with_prior(design, sites, prior, intercept, added, names)
    target = Coefficients(names, own, added, (), response, said)
    return Form(names, kept, {"beta": own}, target, switched(factors, ~kept), link=link)


def read_design(X: Any) -> tuple[Array, tuple[str, ...]]:
    """Return a design ``(n, p)`` with names, those of a data frame or numbers."""
    columns: Any = getattr(X, "columns", None)  # of a data frame of any library
    values = np.asarray(X)
    if issparse(X):
        raise ModelError("X is a sparse matrix; pass X.toarray()")
    if values.ndim != 2:
        raise ModelError(f"X has shape {values.shape}; expected (rows, columns)")
    names: tuple[str, ...] = tuple(f"x{j}" for j in range(values.shape[1]))
    if columns is not None:
        names = tuple(map(str, columns))
        if twice := [name for name in names if names.count(name) > 1]:
            raise ModelError(f"X has {names.count(twice[0])} columns named {twice[0]!r}; rename them")
    if values.dtype.kind == "c":
        raise ModelError("X has complex numbers")
    if values.dtype.kind not in "biuf":
        for j, name in enumerate(names):
            try:
                values[:, j].astype(np.float64)
            except (ValueError, TypeError):
                if any(value is None or type(value).__name__ == "NAType" for value in values[:, j]):
                    raise ModelError(f"X: column {name!r} has missing values") from None
                raise ModelError(
                    f"X: column {name!r} is not numeric; make dummy columns from it, and a group of these"
                ) from None
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        bad = names[int(np.argmin(np.isfinite(values).all(axis=0)))]
        raise ModelError(f"X: column {bad!r} has values that are not finite")
    return values, names


def read_response(y: Any, n: int) -> Array:
    """Return a response ``(n,)`` of finite numbers."""
    response, numbers = np.asarray(y), None
    with contextlib.suppress(ValueError, TypeError):
        numbers = response.astype(np.float64) if response.dtype.kind in "biufO" else None
    if numbers is None:
        raise ModelError("y has values that are not numbers; code classes as 0 and 1, such as (y == 'yes')")
    if numbers.shape != (n,):
        raise ModelError(f"y has shape {numbers.shape}; expected ({n},), one number for each row of X")
    if not np.isfinite(numbers).all():
        raise ModelError(f"y[{int(np.argmin(np.isfinite(numbers)))}] is not finite")
    return numbers


def _always(always: Any, names: tuple[str, ...]) -> Bits:
    """Return the columns in every model, from names, numbers or a mask over the columns of X."""
    kept = np.zeros(len(names), dtype=bool)
    given = [always] if isinstance(always, str) else list(() if always is None else always)
    if given and all(isinstance(each, bool | np.bool_) for each in given):
        if len(given) != len(names):
            raise ModelError(f"always: {len(given)} flags for {len(names)} columns")
        return np.array(given, dtype=bool)
    for each in given:
        kept[place(names, each, "always")] = True
    return kept


def _with_prior(
    design: Array, sites: SiteFamily, prior: Any, intercept: int, added: bool, names: tuple[str, ...]
) -> Factors:
    """Return the factors with normal priors of given standard deviations, or Cauchy ones."""
    n, p = design.shape
    is_intercept = np.arange(p) == intercept
    if isinstance(prior, str):
        if prior != "cauchy":
            raise ModelError(f"prior={prior!r}: expected 'cauchy', a number or standard deviations")
        scale = np.where(is_intercept, CAUCHY_INTERCEPT, CAUCHY_SLOPE)
        stacked = StackedSites([sites, StudentT(np.zeros(p), 1.0, scale)])
        observed = np.r_[np.ones(n, dtype=bool), np.zeros(p, dtype=bool)]
        return Factors(np.vstack([design, np.eye(p)]), 0.0, stacked, 0.0, 0.0, observed=observed, names=names)
    given = np.asarray(SLOPE_SD if prior is None else prior)
    if given.dtype.kind not in "iuf" or not np.isfinite(given).all() or np.any(given <= 0):
        raise ModelError(f"prior={shown(prior)}: expected 'cauchy', or standard deviations above 0")
    if given.ndim == 0:
        sd = np.where(is_intercept, INTERCEPT_SD, float(given))
    elif given.shape == (p - added,):
        sd = np.r_[INTERCEPT_SD, given] if added else given.astype(np.float64)
    else:
        raise ModelError(
            f"prior has shape {given.shape}; expected a number or one for each of {p - added} columns of X"
        )
    return Factors(design, 0.0, sites, 0.0, sd**-2.0, names=names)

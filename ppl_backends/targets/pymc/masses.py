r"""Integrals of the density of a free variable on the unconstrained space, given its parents, in closed form.

PyMC normalises its densities in model space, with two exceptions: for ``LKJCholeskyCov`` and ``LKJCorr`` (before PyMC
6), and for ``CAR``, it leaves out constants. A transform can map the line to only a part of the support, as ``log``
does on a Normal: the integral is then the probability of that part, a difference of the distribution function.
``ordered`` keeps one of the K! orders of exchangeable elements.

Distributions in :data:`NORMALISED` with their default transform integrate to one; a test integrates each of them. For
any other without a closed form, the integral must be estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomSymbolicDistRV
from pymc.distributions.distribution import PartialObservedRV, SymbolicRandomVariable
from pymc.distributions.transforms import Chain, Interval, LogExpM1, Ordered, _default_transform
from pymc.logprob.abstract import _logprob
from pymc.logprob.transforms import CircularTransform, IntervalTransform, LogOddsTransform, LogTransform
from pytensor.graph.basic import Variable, equal_computations
from pytensor.tensor.random.op import RandomVariable
from scipy.special import gammaln

from ppl_backends.targets.pymc.rewrites import replace_checks

# fmt: off
NORMALISED = (
    "AsymmetricLaplace", "Beta", "Cauchy", "ExGaussian", "Exponential", "Gamma", "Gumbel", "HalfCauchy",
    "HalfNormal", "HalfStudentT", "Interpolated", "InverseGamma", "Kumaraswamy", "Laplace", "LogNormal",
    "Logistic", "Moyal", "Normal", "Pareto", "Rice", "SkewNormal", "SkewStudentT", "StudentT", "Triangular",
    "TruncatedNormal", "Uniform", "VonMises", "Wald", "Weibull", "Dirichlet", "MvNormal", "MvStudentT",
    "MatrixNormal", "KroneckerNormal", "StickBreakingWeights", "ZeroSumNormal", "RandomWalk", "AR", "GARCH11",
    "EulerMaruyama", "Mixture", "Truncated",
)
# fmt: on
"""Names in ``pymc`` of distributions whose density integrates to one under their default transform.

Others are special cases of these (``ChiSquared``, ``LogitNormal``, ``GaussianRandomWalk``, …). ``VonMises`` integrates to
one with the window of :mod:`~ppl_backends.targets.pymc.circle`.
"""
_SINGULAR = ("Dirichlet", "StickBreakingWeights", "ZeroSumNormal")  # on a surface, improper without a transform
_ELEMENTWISE = (LogTransform, LogOddsTransform, LogExpM1, Interval, IntervalTransform)


def _op_types(names: Sequence[str]) -> frozenset[type]:
    """Return types of the ops of distributions of these names, if this PyMC has them."""
    found = [getattr(getattr(pm, name, None), "rv_type", None) for name in names]
    return frozenset(kind for kind in found if kind is not None)


_NORMALISED_OPS, _SINGULAR_OPS = _op_types(NORMALISED), _op_types(_SINGULAR)


def log_mass(model: pm.Model, rv: Variable, shape: tuple[int, ...]) -> Variable | float | None:
    """Return the log integral of the density of ``rv`` given its parents: a graph, a number, or None if unknown."""
    if isinstance(rv.owner.op, PartialObservedRV):  # its density is counted with the observed entries
        return 0.0
    if is_truncated_vector(rv):
        return 0.0
    constant = _missing_constant(rv, shape)
    if constant is not None:
        return constant if has_default_transform(model, rv) else None
    if not _is_normalised(model, rv):
        return None
    transform = model.rvs_to_transforms[rv]
    if transform is None:
        return None if type(rv.owner.op) in _SINGULAR_OPS else 0.0
    return 0.0 if has_default_transform(model, rv) else _mass_inside(model, rv, shape)


def is_truncated_vector(rv: Variable) -> bool:
    """Return whether ``rv`` is a normalised ``pb.TruncatedMvNormal`` with a transform that keeps its bounds."""
    return bool(getattr(getattr(type(rv.owner.op), "_random_fn", None), "integrates_to_one", False))


def has_default_transform(model: pm.Model, rv: Variable) -> bool:
    """Return whether the transform is PyMC's default for the distribution."""
    transform, default = model.rvs_to_transforms[rv], _default_transform(rv.owner.op, rv)
    if type(transform) is not type(default):
        return False
    if not isinstance(transform, IntervalTransform):
        return True
    value = rv.type()
    return equal_computations(
        [transform.backward(value, *rv.owner.inputs)], [default.backward(value, *rv.owner.inputs)]
    )


def counted_mass(model: pm.Model, rv: Variable, shape: tuple[int, ...]) -> Variable:
    """Return a draw whose mean is the integral, as a log; its weight is zero if no unconstrained value maps to it."""
    value = model.rvs_to_transforms[rv].forward(rv, *rv.owner.inputs)
    log_orders = _log_orders(shape) if exchangeable_and_ordered(model, rv) else 0.0  # such draws are sorted
    return pt.switch(pt.any(pt.isnan(value)), -np.inf, -log_orders)


def is_ordered(model: pm.Model, rv: Variable) -> bool:
    """Return whether the transform orders elements."""
    transforms = chained(model.rvs_to_transforms[rv])
    return bool(transforms) and isinstance(transforms[-1], Ordered)


def has_independent_parts(model: pm.Model, rv: Variable) -> bool:
    """Return whether elements given their parents, or ordered vectors, are independent when unconstrained."""
    if not isinstance(rv.owner.op, RandomVariable) or rv.owner.op.ndim_supp:
        return False
    transforms = chained(model.rvs_to_transforms[rv])
    before = transforms[:-1] if is_ordered(model, rv) else transforms
    return all(type(transform) in _ELEMENTWISE for transform in before)


def exchangeable_and_ordered(model: pm.Model, rv: Variable) -> bool:
    """Return whether the transform orders elements whose parameters are constant along the last axis."""
    op, transforms = rv.owner.op, chained(model.rvs_to_transforms[rv])
    if not is_ordered(model, rv) or not has_independent_parts(model, rv):
        return False
    if any(_is_decreasing(transform, rv) for transform in transforms[:-1]):
        return False
    return all(p.type.ndim == 0 or p.type.shape[-1] == 1 for p in op.dist_params(rv.owner))


def _is_normalised(model: pm.Model, rv: Variable) -> bool:
    """Return whether the distribution and its components are known to be normalised in model space."""
    op = rv.owner.op
    if isinstance(op, CustomSymbolicDistRV):  # PyMC derives the density, unless one was given
        return _logprob.dispatch(type(op)) is _logprob.dispatch(CustomSymbolicDistRV)
    if type(op) not in _NORMALISED_OPS:
        return False
    base = getattr(op, "base_rv_op", None)  # of Truncated
    if base is not None and type(base) not in _NORMALISED_OPS:
        return False
    parts = [v for v in rv.owner.inputs if v.owner is not None and v not in model.free_RVs]
    kinds = (RandomVariable, SymbolicRandomVariable)
    return all(_is_normalised(model, part) for part in parts if isinstance(part.owner.op, kinds))


# -- constants that PyMC leaves out ------------------------------------------------------------------------------------


def _missing_constant(rv: Variable, shape: tuple[int, ...]) -> Variable | None:
    """Return the log integral of densities that PyMC does not normalise: theirs minus the true one, at one point."""
    name = type(rv.owner.op).__name__
    if name == "_LKJCholeskyCovRV":
        n, eta, sd_dist = rv.owner.inputs[-3:]
        return _lkj_cholesky(int(_value(n)), eta, sd_dist, shape)
    if name == "LKJCorrRV":
        n, eta = rv.owner.inputs[-2:]
        return _lkj_corr(int(_value(n)), eta, shape)
    return _car(rv, shape) if name == "CARRV" else None


def _lkj_cholesky(n: int, eta: Variable, sd_dist: Variable, shape: tuple[int, ...]) -> Variable | None:
    """Return the constant of ``LKJCholeskyCov``, at the identity under half-normals for its standard deviations."""
    op = sd_dist.owner.op
    positive = type(_default_transform(op, sd_dist)) is LogTransform
    if type(op) not in _NORMALISED_OPS or not positive:
        return None
    identity = np.eye(n)[np.tril_indices(n)]
    half_normal = pm.HalfNormal.dist(1.0, shape=n)
    stand_in = pm.LKJCholeskyCov.dist(n=n, eta=eta, sd_dist=half_normal, compute_corr=False)
    compiled = pt.sum(_logp(stand_in, identity)) - n * (0.5 * np.log(2.0 / np.pi) - 0.5)
    return np.prod(shape[:-1]) * (compiled + _log_lkj_volume(n, eta))


def _lkj_corr(n: int, eta: Variable, shape: tuple[int, ...]) -> Variable:
    """Return the constant of ``LKJCorr``, at the identity, as a vector (PyMC 5) or as a Cholesky factor (PyMC 6)."""
    stand_in = pm.LKJCorr.dist(n=n, eta=eta)
    core = stand_in.type.ndim
    identity = np.zeros(n * (n - 1) // 2) if core == 1 else np.eye(n)
    return np.prod(shape[: len(shape) - core]) * (pt.sum(_logp(stand_in, identity)) + _log_lkj_volume(n, eta))


def _log_lkj_volume(n: int, eta: Variable) -> Variable:
    """Return log ∫ det(R)^{η−1} dR over correlation matrices (Lewandowski, Kurowicka & Joe 2009, theorem 5)."""
    k = np.arange(1, n)
    eta = pt.as_tensor_variable(eta).astype("float64")
    return pt.sum(0.5 * k * np.log(np.pi) + pt.gammaln(eta + 0.5 * (n - 1 - k)) - pt.gammaln(eta + 0.5 * (n - 1)))


def _car(rv: Variable, shape: tuple[int, ...]) -> Variable:
    """Return the constant of ``CAR``, at its mean."""
    _, W, alpha, tau = rv.owner.inputs[2:6]
    zero = np.zeros(shape[-1])
    compiled = pt.sum(_logp(pm.CAR.dist(zero, W=W, alpha=alpha, tau=tau), zero))
    _, log_determinant = pt.linalg.slogdet(car_precision(rv))
    return np.prod(shape[:-1]) * (compiled + 0.5 * shape[-1] * np.log(2.0 * np.pi) - 0.5 * log_determinant)


def car_precision(rv: Variable) -> Variable:
    """Return the precision matrix of a ``CAR`` variable."""
    _, W, alpha, tau = rv.owner.inputs[2:6]
    W = pt.as_tensor_variable(W.toarray() if hasattr(W, "toarray") else W).astype("float64")
    return tau * (pt.diag(W.sum(axis=0)) - alpha * W)


def _value(variable: Variable) -> Any:
    return pt.get_underlying_scalar_constant_value(variable)


def _logp(rv: Variable, value: Any) -> Variable:
    """Return the log density, −∞ if PyMC would raise an error."""
    return replace_checks([pm.logp(rv, pt.as_tensor_variable(value), warn_rvs=False)])[0]


# -- transforms onto a part of the support -----------------------------------------------------------------------------


def _mass_inside(model: pm.Model, rv: Variable, shape: tuple[int, ...]) -> Variable | None:
    """Return the probability that independent elements are in the range of the transforms, None without a formula."""
    if rv.owner.op.ndim_supp:
        return None
    transforms, log_orders = chained(model.rvs_to_transforms[rv]), 0.0
    if is_ordered(model, rv):
        if transforms[-1].positive or not exchangeable_and_ordered(model, rv):
            return counted_mass(model, rv, shape)
        transforms, log_orders = transforms[:-1], _log_orders(shape)
    circular = any(isinstance(transform, CircularTransform) for transform in transforms[:1])
    if not circular and not all(type(transform) in _ELEMENTWISE for transform in transforms):
        return None
    if circular:
        ends = [np.full(shape, end) for end in (-np.pi, np.pi)]
    else:
        ends = [np.full(shape, end) for end in (-np.inf, np.inf)]
        for transform in reversed(transforms):
            ends = [transform.backward(end, *rv.owner.inputs) for end in ends]
    lower, upper = pt.minimum(*ends), pt.maximum(*ends)
    try:
        below = pt.switch(pt.isinf(lower), -np.inf, _logcdf(rv, lower))
        up_to = pt.switch(pt.isinf(upper), 0.0, _logcdf(rv, upper))
    except NotImplementedError:
        return counted_mass(model, rv, shape)
    return pt.sum(pm.math.logdiffexp(up_to, below)) - log_orders


def _log_orders(shape: tuple[int, ...]) -> float:
    """Return the log of the number of orders of the elements along the last axis, for all vectors together."""
    return float(np.prod(shape[:-1]) * gammaln(shape[-1] + 1))


def _logcdf(rv: Variable, value: Variable) -> Variable:
    return replace_checks([pm.logcdf(rv, value, warn_rvs=False)])[0]


def chained(transform: Any) -> list[Any]:
    """Return the transforms that a chain applies to a draw, in their order."""
    if transform is None:
        return []
    return (
        [t for part in transform.transform_list for t in chained(part)] if isinstance(transform, Chain) else [transform]
    )


def _is_decreasing(transform: Any, rv: Variable) -> bool:
    """Return whether this is an interval with only an upper end."""
    return isinstance(transform, IntervalTransform) and transform.args_fn(*rv.owner.inputs)[0] is None

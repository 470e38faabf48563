"""Draws of a PyMC model's prior from points of the unit cube: the inverse Rosenblatt transform, in graph order.

Every elementary random variable of the generative graph is replaced by its inverse distribution function at separate
uniforms, given the draws above it. Composite distributions (``GaussianRandomWalk``, ``LKJCholeskyCov``, ``Truncated``,
…) without an inverse are expanded into the elementary ones inside them. Points of a scrambled net thus become points
of the prior that keep its low discrepancy (Buchholz & Chopin 2019, section 3.4: θ = Γ(u)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.truncated import TruncatedRV
from pymc.logprob.abstract import _icdf
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.tensor.random.basic import (
    BernoulliRV,
    CategoricalRV,
    DirichletRV,
    MvNormalRV,
)
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType

from ppl_backends.errors import PriorSamplingError
from ppl_backends.numerics.gaussian import inside_cube
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.graph import (
    PYTHON_MODE,
    DataValues,
    ModelShapes,
    ancestors,
    evaluate_graphs,
    forward,
    free_variables,
    io_toposort,
)
from ppl_backends.targets.pymc.masses import exchangeable_and_ordered, has_default_transform
from ppl_backends.targets.pymc.priors import expanded, prior_replacements, refuse_improper
from ppl_backends.targets.pymc.rewrites import replace_checks
from ppl_backends.targets.pymc.survival import truncated_normal_quantile, truncated_quantile

__all__ = ["PriorFromUniform"]

_TRUNCATED_NORMAL = pm.TruncatedNormal.rv_type
_STICK_BREAKING = pm.StickBreakingWeights.rv_type

Inverse = Callable[[Variable, Sequence[Variable], tuple[int, ...]], Variable]


class PriorFromUniform:
    """Map points of the unit cube to draws of the ravelled value variables.

    Parameters
    ----------
    model : pm.Model
    data : dict
        Values of the shared variables.
    shapes : ModelShapes

    Attributes
    ----------
    n_uniforms : int
        Dimension of the cube.

    Raises
    ------
    PriorSamplingError
        If a variable has no inverse distribution function; the message names it.
    """

    def __init__(self, model: pm.Model, data: DataValues, shapes: ModelShapes) -> None:
        free = free_variables(model)
        for rv in free:
            refuse_improper(rv)
            _refuse_restricted(model, rv)
        fixed = prior_replacements(model, data)
        graphs = clone_replace([forward(model, rv, rv) for rv in free], fixed, rebuild_strict=False)
        names = [rv.name for rv in free]
        point = pt.vector("u", dtype="float64")
        values, self.n_uniforms = _inverted(graphs, names, point)
        output = pt.concatenate([pt.atleast_1d(value.astype("float64")).ravel() for value in values])
        [output] = replace_checks([output])
        self._many = self._batched(point, output)
        self._one = pytensor.function([point], output, mode=PYTHON_MODE) if self._many is None else None

    def _batched(self, point: Variable, output: Variable) -> Callable[[Array], Array] | None:
        """Return the function of many points, if every operation can have a batch axis and rows are independent."""
        u = np.random.default_rng(0).random((3, self.n_uniforms))
        try:
            points = pt.matrix("us", dtype="float64")
            [many] = vectorize_graph([output], {point: points})
            function = pytensor.function([points], many, mode=PYTHON_MODE)
            one_by_one = [function(u[i : i + 1])[0] for i in range(3)]
            same = np.allclose(function(u), one_by_one, rtol=1e-9, atol=1e-12, equal_nan=True)
        except Exception:  # an operation without a batch axis: one point after the other
            return None
        return function if same else None

    def __call__(self, u: Array) -> Array:
        """Return the draws ``(n, dim)`` at the points ``u`` ``(n, n_uniforms)``."""
        u = inside_cube(u)
        if self._many is not None:
            draws = np.asarray(self._many(u))
        else:
            assert self._one is not None
            draws = np.stack([self._one(row) for row in u])
        if np.isnan(draws).any():
            share = 100 * np.isnan(draws).any(axis=1).mean()
            raise PriorSamplingError(
                f"{share:.3g} % of the points have no draw of the prior: a distribution may be truncated where its "
                "distribution function has no digits left; move the bounds, or use qmc=False"
            )
        return draws


def _refuse_restricted(model: pm.Model, rv: Variable) -> None:
    """Raise an error for a transform that may cut the support, because draws outside would have to be drawn again."""
    if model.rvs_to_transforms[rv] is None or has_default_transform(model, rv) or exchangeable_and_ordered(model, rv):
        return
    raise PriorSamplingError(f"'{rv.name}' has a custom transform, which may cut its support")


def _inverted(graphs: list[Variable], names: list[str], point: Variable) -> tuple[list[Variable], int]:
    """Return the graphs as functions of one vector of uniforms, and the length of that vector."""
    graphs = expanded(graphs, kept=lambda node: _inverse(node) is not None)
    nodes = [node for node in io_toposort([], graphs) if _is_random(node)]
    for node in nodes:
        if not isinstance(node.op, RandomVariable) and _inverse(node) is None:
            raise PriorSamplingError(f"{_owner(node, graphs, names)} is drawn inside a loop")
    shapes: list[tuple[int, ...]] = [
        tuple(map(int, shape)) for shape in evaluate_graphs([_draw(node).shape for node in nodes], {})
    ]
    done: dict[Variable, Variable] = {}
    used = 0
    for node, shape in zip(nodes, shapes, strict=True):
        inverse = _inverse(node)
        if inverse is None:
            kind = type(node.op).__name__.removesuffix("RV")
            raise PriorSamplingError(f"{_owner(node, graphs, names)}: {kind} has no inverse distribution function")
        own = (*shape[:-1], shape[-1] - 1) if isinstance(node.op, DirichletRV | _STICK_BREAKING) else shape
        n = int(np.prod(own, dtype=int))
        inputs = clone_replace(list(node.inputs), done, rebuild_strict=False) if done else list(node.inputs)
        value = inverse(point[used : used + n].reshape(own), inputs, shape)
        done[_draw(node)] = pt.broadcast_to(value, shape).astype(_draw(node).dtype)
        used += n
    return clone_replace(graphs, done, rebuild_strict=False), used


def _is_random(node: Apply) -> bool:
    return any(isinstance(v.type, RandomType) for v in node.inputs)


def _draw(node: Apply) -> Variable:
    """Return the output of a random node that is the draw."""
    [draw] = [v for v in node.outputs if not isinstance(v.type, RandomType)]
    return draw


def _owner(node: Apply, graphs: Sequence[Variable], names: Sequence[str]) -> str:
    """Return the name of the first variable for which a node is drawn."""
    for graph, name in zip(graphs, names, strict=True):
        if set(node.outputs) & set(ancestors([graph])):
            return f"'{name}'"
    return "a variable"


def _inverse(node: Apply) -> Inverse | None:
    """Return ``(u, inputs of the node, shape) -> draw``, or None."""
    op = node.op
    if len([v for v in node.outputs if not isinstance(v.type, RandomType)]) != 1:
        return None
    for kind, inverse in _OWN.items():
        if isinstance(op, kind):
            return lambda u, inputs, shape: inverse(u, _parameters(node, inputs), shape)
    if isinstance(op, TruncatedRV) and _has_icdf(op.base_rv_op):
        return lambda u, inputs, shape: truncated_quantile(op.base_rv_op, u, inputs)
    if not _has_icdf(op):
        return None
    return lambda u, inputs, shape: _icdf(op, u, *inputs)


def _has_icdf(op: Op) -> bool:
    return _icdf.dispatch(type(op)) is not _icdf.dispatch(object)


def _parameters(node: Apply, inputs: Sequence[Variable]) -> list[Variable]:
    """Return the parameters among the inputs of a random variable."""
    where = [node.inputs.index(parameter) for parameter in node.op.dist_params(node)]
    return [inputs[i] for i in where]


def _mv_normal(u: Variable, parameters: Sequence[Variable], shape: tuple[int, ...]) -> Variable:
    mean, cov = parameters
    z = _quantile(u)
    return mean + pt.matvec(pt.linalg.cholesky(cov), z)


def _dirichlet(u: Variable, parameters: Sequence[Variable], shape: tuple[int, ...]) -> Variable:
    """Return a Dirichlet draw by stick-breaking: the k-th share of the remainder is Beta(aₖ, Σ_{j>k} aⱼ)."""
    [a] = parameters
    after = pt.cumsum(a[..., ::-1], axis=-1)[..., ::-1]
    share = pt.betaincinv(a[..., :-1], after[..., 1:], u)
    return _sticks(share)


def _stick_breaking(u: Variable, parameters: Sequence[Variable], shape: tuple[int, ...]) -> Variable:
    alpha = parameters[0]
    return _sticks(-pt.expm1(pt.log1p(-u) / pt.expand_dims(alpha, -1)))


def _sticks(share: Variable) -> Variable:
    """Return the pieces of a stick from the shares that are broken off the remainder."""
    left = pt.cumprod(1 - share, axis=-1)
    before = pt.concatenate([pt.ones_like(left[..., :1]), left[..., :-1]], axis=-1)
    return pt.concatenate([share * before, left[..., -1:]], axis=-1)


def _categorical(u: Variable, parameters: Sequence[Variable], shape: tuple[int, ...]) -> Variable:
    cumulated = pt.cumsum(parameters[0], axis=-1)[..., :-1]
    return pt.sum(pt.expand_dims(u, -1) > cumulated, axis=-1)


def _quantile(u: Variable) -> Variable:
    return -np.sqrt(2.0) * pt.erfcinv(2 * u)


_OWN: dict[type, Callable[[Variable, Sequence[Variable], tuple[int, ...]], Variable]] = {
    MvNormalRV: _mv_normal,
    DirichletRV: _dirichlet,
    _STICK_BREAKING: _stick_breaking,
    _TRUNCATED_NORMAL: lambda u, parameters, shape: truncated_normal_quantile(u, *parameters),
    BernoulliRV: lambda u, parameters, shape: u > 1 - parameters[0],
    CategoricalRV: _categorical,
}

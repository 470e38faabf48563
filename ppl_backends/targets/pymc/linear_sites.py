"""A PyMC model whose rows each see one linear predictor, found at the cost of a few passes over the data.

The predictor is a parameter of the one observed variable, under its link: the argument of the sigmoid or the exponential.
It is evaluated at the origin and at the unit vectors, which gives the design, and proved affine at random points; the
family is proved against the model's own pointwise log likelihood.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from ppl_backends.targets import compiled_sites as sites
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.graph import PYTHON_MODE, _cut, free_variables, no_c_compiler, observed_variables
from ppl_backends.targets.pymc.observations import RowTerm

__all__ = ["find_linear_sites"]

LARGEST_DESIGN = 2**31  # bytes


def find_linear_sites(target: Any) -> tuple[Array, Array, Array, Array, int] | None:
    """Design, offset, outcome, extra and family, or None where the model is not of that kind."""
    model = target.model
    observed = observed_variables(model)
    if len(observed) != 1:
        return None
    [rv] = observed
    y = np.asarray(target.observed_data[rv.name])
    if y.ndim != 1 or 8 * len(y) * target.dim > LARGEST_DESIGN:
        return None
    found = _predictor(rv)
    if found is None:
        return None
    predictor, family, more = found
    with no_c_compiler():
        graphs = model.replace_rvs_by_values([predictor, *more])
        free = free_variables(model)
        values = [model.rvs_to_values[v] for v in free]
        point, pieces = _cut(values, target._shapes.value.values(), "point")
        known = {shared: pytensor.tensor.constant(v, dtype=shared.dtype) for shared, v in target._data.items()}
        graphs = clone_replace(graphs, {**dict(zip(values, pieces, strict=True)), **known}, rebuild_strict=False)
        evaluate = pytensor.function([point], graphs, mode=PYTHON_MODE, on_unused_input="ignore")
    return _prove(target, evaluate, y.astype(np.float64), family)


def _prove(target: Any, evaluate: Any, y: Array, family: int) -> Any:
    dim, n = target.dim, len(y)

    def at(x: Array) -> list[Array]:
        return [np.broadcast_to(np.asarray(v, dtype=np.float64), n) for v in evaluate(x)]

    offset, *more = at(np.zeros(dim))
    design = np.empty((n, dim))
    for j in range(dim):
        design[:, j] = at(np.eye(dim)[j])[0] - offset
    extra = np.ones(n) if not more else more[0]
    if family == sites.NORMAL:
        extra = extra**-2.0
    rng = np.random.default_rng(0)
    for x in rng.normal(size=(2, dim)):
        s, *now = at(x)
        predicted = design @ x + offset
        if not np.allclose(s, predicted, rtol=1e-8, atol=1e-8) or any(
            not np.array_equal(a, b) for a, b in zip(now, more, strict=True)
        ):
            return None
    rows = rng.choice(n, size=min(n, 200), replace=False)
    points = 0.3 * rng.normal(size=(2, dim)) / np.maximum(1.0, np.abs(design[rows]).max())
    mine = [sites.values(design, offset, y, extra, family, rows, x)[:, 0] for x in points]
    with no_c_compiler():
        [name] = target._compiled._dynamic.observed
        theirs = RowTerm(target, target._compiled._dynamic, name).slice_of_full(points, rows)
    if not np.allclose(mine[1] - mine[0], theirs[1] - theirs[0], rtol=1e-6, atol=1e-9):
        return None
    return design, np.array(offset), y, np.array(extra), family


def _predictor(rv: Variable) -> tuple[Variable, int, list[Variable]] | None:
    """The graph under the link, the family, and the graphs of what else it needs."""
    op = rv.owner.op
    name = type(op).__name__
    parameters = op.dist_params(rv.owner) if hasattr(op, "dist_params") else []
    if name in ("BernoulliRV", "BinomialRV"):
        inner = _argument(parameters[-1], ps.Sigmoid)
        return None if inner is None else (inner, sites.LOGIT, list(parameters[:-1]))
    if name == "PoissonRV":
        inner = _argument(parameters[0], ps.Exp)
        return None if inner is None else (inner, sites.POISSON, [])
    if name == "NormalRV":
        return parameters[0], sites.NORMAL, [parameters[1]]
    return None


def _argument(variable: Variable, link: type) -> Variable | None:
    """What ``link`` is applied to, if ``variable`` is that."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        variable = variable.owner.inputs[0]
    op = getattr(variable.owner, "op", None)
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, link):
        return variable.owner.inputs[0]
    return None

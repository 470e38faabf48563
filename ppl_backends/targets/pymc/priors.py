"""Draws of a PyMC model's prior on the unconstrained space, all at once.

The generative graph of the free variables, followed by their forward transforms, is rebuilt so that every elementary
random variable in it draws ``n`` times in one call. Distributions made of several others (``LKJCholeskyCov``,
``GaussianRandomWalk``, ``Truncated``, …) are expanded into them first. Where that is not possible, one compiled draw is
called ``n`` times. Potentials play no part.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.distribution import PartialObservedRV
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType, random_generator_type

from ppl_backends.errors import PriorSamplingError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.graph import (
    PYTHON_MODE,
    DataValues,
    ancestors,
    fixed_values,
    forward,
    free_variables,
    io_toposort,
)

__all__ = ["PriorSampler"]


class PriorSampler:
    """Prior draws of the ravelled value variables.

    Parameters
    ----------
    model : pm.Model
    data : dict
        Values of the shared variables.

    Raises
    ------
    PriorSamplingError
        If a free variable has no proper prior; the message names it.
    """

    def __init__(self, model: pm.Model, data: DataValues) -> None:
        free = free_variables(model)
        for rv in free:
            _refuse_improper(rv)
        values = [forward(model, rv, rv) for rv in free]
        ndims = [value.type.ndim for value in values]
        graphs = _expand_composites(clone_replace(values, fixed_values(model, data), rebuild_strict=False))
        self._names = [rv.name for rv in free]
        self._ndims = ndims
        self._loop = _compile(graphs)
        size = pt.lscalar("n")
        try:
            self._batched: Callable | None = _compile(_draw_many(graphs, size), size)
        except Exception:  # an operation that cannot be given a batch axis: draw one by one
            self._batched = None

    def __call__(self, n: int, rng: np.random.Generator) -> Array:
        """``n`` draws ``(n, dim)``."""
        state = rng.bit_generator.state
        if self._batched is not None:
            try:
                draws = [np.asarray(draw, dtype=np.float64) for draw in self._batched(rng, n)]
                if self._independent(draws, n):
                    return np.concatenate([draw.reshape(n, -1) for draw in draws], axis=1)
            except Exception:
                rng.bit_generator.state = state
            self._batched = None
            rng.bit_generator.state = state
        rows = [np.concatenate([np.ravel(value) for value in self._loop(rng)]) for _ in range(n)]
        return np.array(rows, dtype=np.float64).reshape(n, -1)

    def _independent(self, draws: list[Array], n: int) -> bool:
        """Whether every variable has a row per draw, and no draw is repeated."""
        for draw, ndim in zip(draws, self._ndims, strict=True):
            if draw.ndim != ndim + 1 or draw.shape[0] != n:
                return False
            if n > 1 and draw.size and len(np.unique(draw.reshape(n, -1), axis=0)) == 1:
                return False
        return True


def _refuse_improper(rv: Variable) -> None:
    op = rv.owner.op
    if isinstance(op, FlatRV | HalfFlatRV):
        raise PriorSamplingError(f"the prior of '{rv.name}' is flat and cannot be sampled: use initial='laplace'")
    if isinstance(op, PartialObservedRV):
        raise PriorSamplingError(
            f"'{rv.name}' stands for missing entries of a multivariate observation, whose density is counted with the "
            "observed entries, not with the prior: use initial='laplace'"
        )


def _expand_composites(graphs: list[Variable]) -> list[Variable]:
    """Replace every composite distribution by the graph of elementary random variables inside it."""
    while True:
        composites = [
            node
            for node in io_toposort([], graphs)
            if isinstance(node.op, OpFromGraph) and any(isinstance(v.type, RandomType) for v in node.inputs)
        ]
        if not composites:
            return graphs
        node = composites[0]
        inner = clone_replace(
            node.op.inner_outputs, dict(zip(node.op.inner_inputs, node.inputs, strict=True)), rebuild_strict=False
        )
        graphs = clone_replace(graphs, dict(zip(node.outputs, inner, strict=True)), rebuild_strict=False)


def _draw_many(graphs: list[Variable], n: Variable) -> list[Variable]:
    """The graphs with every elementary random variable drawn ``n`` times, along a new leading axis."""
    batched: dict[Variable, Variable] = {}
    for node in io_toposort([], graphs):
        if not isinstance(node.op, RandomVariable):
            continue
        draw = node.outputs[1]
        batch_ndim = node.op.batch_ndim(node)
        parameters = []
        for parameter, core_ndim in zip(node.op.dist_params(node), node.op.ndims_params, strict=True):
            [many] = vectorize_graph([parameter], batched) if batched else [parameter]
            if many.type.ndim > parameter.type.ndim:  # line the draws up in front of all batch axes
                missing = batch_ndim - (parameter.type.ndim - core_ndim)
                many = pt.expand_dims(many, tuple(range(1, 1 + missing))) if missing else many
            parameters.append(many)
        size = pt.stack([n, *[draw.shape[axis] for axis in range(batch_ndim)]])
        generator = pytensor.shared(np.random.default_rng(0))  # a stream of its own; replaced by an input
        batched[draw] = node.op.make_node(generator, size, *parameters).outputs[1]
    return vectorize_graph(graphs, batched)


def _compile(graphs: list[Variable], *inputs: Variable) -> Callable[..., list[Array]]:
    """``(rng, *inputs) -> draws``; every stream of the graph is seeded from ``rng``."""
    streams = [v for v in ancestors(graphs) if isinstance(v, SharedVariable) and isinstance(v.type, RandomType)]
    stand_ins = [random_generator_type() for _ in streams]
    graphs = clone_replace(graphs, dict(zip(streams, stand_ins, strict=True)), rebuild_strict=False)
    function = pytensor.function([*inputs, *stand_ins], graphs, mode=PYTHON_MODE, on_unused_input="ignore")

    def draw(rng: np.random.Generator, *arguments) -> list[Array]:
        seeds = rng.integers(2**63, size=len(streams))
        return function(*arguments, *[np.random.default_rng(seed) for seed in seeds])

    return draw

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
from pymc.distributions.transforms import Ordered, _default_transform
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType, random_generator_type
from scipy.special import gammaln

from ppl_backends.errors import PriorSamplingError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.graph import (
    PYTHON_MODE,
    DataValues,
    ModelShapes,
    ancestors,
    fixed_values,
    forward,
    free_variables,
    io_toposort,
)

try:
    from pytensor.compile.rewriting import inline_ofg_node
except ImportError:  # PyTensor < 3
    from pytensor.tensor.rewriting.ofg import inline_ofg_node

__all__ = ["PriorSampler"]

NORMALIZER_DRAWS = 10_000


class PriorSampler:
    """Prior draws of the ravelled value variables.

    A transform may restrict a variable to part of its support, as ``ordered`` does. Where the elements are exchangeable
    their draws are sorted; otherwise draws outside are drawn again, all variables together, which is rejection sampling
    from the density that the model states.

    Parameters
    ----------
    model : pm.Model
    data : dict
        Values of the shared variables.
    shapes : ModelShapes

    Attributes
    ----------
    log_sorted : float
        Log of the prior mass that sorting keeps: -log K! for K ordered elements.
    accepted, proposed : int
        Draws so far that the restrictions kept, of how many.

    Raises
    ------
    PriorSamplingError
        If a free variable has no proper prior; the message names it.
    """

    def __init__(self, model: pm.Model, data: DataValues, shapes: ModelShapes) -> None:
        self._free = free_variables(model)
        for rv in self._free:
            _refuse_improper(rv)
        fixed = fixed_values(model, data)
        ordered = [rv for rv in self._free if _exchangeable_and_ordered(model, rv)]
        fixed.update({rv: _sorted_copy(rv, model.rvs_to_transforms[rv]) for rv in ordered})
        self.log_sorted = -sum(_log_orders(shapes.model[rv.name]) for rv in ordered)

        self._transformed = [rv for rv in self._free if _has_unusual_transform(model, rv)]
        values = {rv: forward(model, rv, rv) for rv in self._free}
        errors = [_error_of_return(model, rv, values[rv]) for rv in self._transformed]
        graphs = _expand_composites(clone_replace([*values.values(), *errors], fixed, rebuild_strict=False))
        self.accepted = self.proposed = 0
        self._ndims = [graph.type.ndim for graph in graphs]
        self._loop = _compile(graphs)
        size = pt.lscalar("n")
        try:
            self._batched: Callable | None = _compile(_draw_many(graphs, size), size)
        except Exception:  # an operation that cannot be given a batch axis: draw one by one
            self._batched = None

    @property
    def log_normalizer(self) -> float:
        """Log of the mass of the prior density on the unconstrained space: 0 unless a transform restricts it."""
        if not self._transformed:
            return 0.0
        if not self.proposed:
            self(NORMALIZER_DRAWS, np.random.default_rng(0))
        return self.log_sorted + float(np.log(self.accepted / self.proposed))

    def __call__(self, n: int, rng: np.random.Generator) -> Array:
        """``n`` draws ``(n, dim)``.

        Raises
        ------
        PriorSamplingError
            If too few draws fall where the transforms allow, or a transform does not undo itself.
        """
        kept: list[Array] = []
        while (missing := n - sum(map(len, kept))) > 0:
            draws = self._draw(missing, rng)
            inside = np.isfinite(draws).all(axis=1)
            self.proposed += missing
            self.accepted += missing - int(np.isnan(draws).any(axis=1).sum())
            kept.append(draws[inside])
            if self.proposed > 10_000 and self.accepted < 1e-3 * self.proposed:
                names = ", ".join(repr(rv.name) for rv in self._free)
                raise PriorSamplingError(
                    f"only {self.accepted} of {self.proposed} prior draws of {names} fall where the transforms allow: "
                    "use initial='laplace'"
                )
        return np.concatenate(kept) if kept else self._draw(1, rng)[:0]

    def _draw(self, n: int, rng: np.random.Generator) -> Array:
        """``n`` draws in one call, or one by one where the graph has no batched form."""
        if self._batched is not None:
            state = rng.bit_generator.state
            try:
                draws = [np.asarray(draw, dtype=np.float64) for draw in self._batched(rng, n)]
                if _are_draws(draws, self._ndims, n):
                    return self._ravel(draws, n)
            except PriorSamplingError:
                raise
            except Exception:  # shapes that only fail when the graph runs
                self._batched = None
            self._batched = None
            rng.bit_generator.state = state
        try:
            rows = [self._loop(rng) for _ in range(n)]
        except Exception as error:  # a distribution without draws, as ICAR
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise PriorSamplingError(f"the prior cannot be drawn from ({reason}): use initial='laplace'") from None
        return self._ravel([np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)], n)

    def _ravel(self, draws: list[Array], n: int) -> Array:
        """Points ``(n, dim)``, once it is checked that every transform undoes itself."""
        k = len(self._free)
        for rv, error in zip(self._transformed, draws[k:], strict=True):
            if np.nanmax(error, initial=0.0) > 1e-6:
                raise PriorSamplingError(
                    f"draws of '{rv.name}' do not survive its transform and back, so that its prior cannot be sampled: "
                    "use initial='laplace'"
                )
        return np.concatenate([draw.reshape(n, -1) for draw in draws[:k]], axis=1)


def _are_draws(draws: list[Array], ndims: list[int], n: int) -> bool:
    """Whether every output has a row per draw."""
    return all(draw.ndim == ndim + 1 and len(draw) == n for draw, ndim in zip(draws, ndims, strict=True))


def _exchangeable_and_ordered(model: pm.Model, rv: Variable) -> bool:
    """Whether the transform orders elements of which no parameter varies along the last axis."""
    op = rv.owner.op
    if not isinstance(model.rvs_to_transforms[rv], Ordered) or not isinstance(op, RandomVariable) or op.ndim_supp:
        return False
    return all(p.type.ndim == 0 or p.type.shape[-1] == 1 for p in op.dist_params(rv.owner))


def _sorted_copy(rv: Variable, transform: Ordered) -> Variable:
    """The same draw, with its elements in the order that the transform asks for."""
    ascending = pt.sort(rv.owner.clone().outputs[1], axis=-1)
    return ascending if transform.ascending else ascending[..., ::-1]


def _log_orders(shape: tuple[int, ...]) -> float:
    """Log of the number of orders of the elements along the last axis, for all vectors together."""
    return float(np.prod(shape[:-1]) * gammaln(shape[-1] + 1))


def _has_unusual_transform(model: pm.Model, rv: Variable) -> bool:
    transform = model.rvs_to_transforms[rv]
    return transform is not None and type(transform) is not type(_default_transform(rv.owner.op, rv))


def _error_of_return(model: pm.Model, rv: Variable, value: Variable) -> Variable:
    """Largest error of a draw that is transformed and back."""
    back = model.rvs_to_transforms[rv].backward(value, *rv.owner.inputs)
    return pt.max(pt.abs(back - rv))


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
    graphs = _merged(graphs)
    while True:
        composites = [
            node
            for node in io_toposort([], graphs)
            if isinstance(node.op, OpFromGraph) and any(isinstance(v.type, RandomType) for v in node.inputs)
        ]
        if not composites:
            return graphs
        node = composites[0]
        inner = inline_ofg_node(node)
        graphs = _merged(clone_replace(graphs, dict(zip(node.outputs, inner, strict=True)), rebuild_strict=False))


def _merged(graphs: list[Variable]) -> list[Variable]:
    """Every random variable once: replacing clones what is above, and two clones must not be drawn apart."""
    fgraph = FunctionGraph(outputs=list(graphs), clone=False)
    MergeOptimizer().rewrite(fgraph)
    return list(fgraph.outputs)


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

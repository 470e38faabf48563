"""Draws of a PyMC model's prior on the unconstrained space, all at once.

The generative graph of the free variables, followed by their forward transforms, is rebuilt so that every elementary
random variable in it draws ``n`` times in one call. Distributions made of several others (``LKJCholeskyCov``,
``GaussianRandomWalk``, ``Truncated``, …) are expanded into them first. If that is not possible, one compiled draw is
called ``n`` times. Potentials are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.distribution import PartialObservedRV
from pymc.distributions.multivariate import CARRV
from pymc.distributions.timeseries import AutoRegressiveRV
from pymc.distributions.transforms import LogOddsTransform, LogTransform, SimplexTransform
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType, random_generator_type
from scipy.signal import lfilter, lfiltic

from ppl_backends.errors import PriorSamplingError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.circle import is_circular, on_the_line
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
from ppl_backends.targets.pymc.masses import (
    car_precision,
    chained,
    exchangeable_and_ordered,
    has_default_transform,
    has_independent_parts,
    is_ordered,
)

try:
    from pytensor.compile.rewriting import inline_ofg_node
except ImportError:  # PyTensor < 3
    from pytensor.tensor.rewriting.ofg import inline_ofg_node


_LARGEST_BATCH = 65_536
_CHECKED_DRAWS, _CHECKED_IN_TURN, _CHECKED_NUMBERS = 1000, 100, 2_000_000
_LARGEST_LOSS = 0.005  # of the draws; the log evidence is off by as much
_SMALLEST = 1e-300  # distance from a bound at 0, far enough from where numbers lose digits


class PriorDraws:
    """Draws of graphs of random variables, all at once if every operation can have a batch axis."""

    def __init__(self, graphs: Sequence[Variable]) -> None:
        graphs = expanded(list(graphs))
        self._ndims = [graph.type.ndim for graph in graphs]
        self._loop = random_function(graphs)
        size = pt.lscalar("n")
        try:
            self._batched: Callable | None = random_function(_draw_many(graphs, size), size)
        except Exception:  # an operation without a batch axis: draw one by one
            self._batched = None

    @property
    def at_once(self) -> bool:
        """Return whether one call draws many, as far as is known."""
        return self._batched is not None

    def __call__(self, n: int, rng: np.random.Generator) -> list[Array]:
        """Return ``n`` draws of every graph ``(n, *shape)``."""
        if self._batched is not None:
            state = rng.bit_generator.state
            try:
                draws = [np.asarray(draw, dtype=np.float64) for draw in self._batched(rng, n)]
                if _are_draws(draws, self._ndims, n):
                    return draws
            except Exception:  # shapes that only fail when the graph runs
                pass
            self._batched = None
            rng.bit_generator.state = state
        try:
            rows = [self._loop(rng) for _ in range(n)]
        except Exception as error:  # a distribution without draws, such as ICAR
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise PriorSamplingError(f"the prior cannot be sampled ({reason}): use initial='laplace'") from None
        return [np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)]


class PriorSampler:
    """Prior draws of the ravelled value variables.

    A transform may restrict a variable to part of its support, as ``ordered`` does. If the elements are exchangeable,
    their draws are sorted; otherwise draws outside are drawn again, each together with all variables that depend on it
    or on which it depends. This is rejection sampling from the density that the model states.
    """

    def __init__(self, model: pm.Model, data: DataValues, shapes: ModelShapes) -> None:
        self._free = free_variables(model)
        for rv in self._free:
            refuse_improper(rv)
        self._transformed = [
            rv for rv in self._free if model.rvs_to_transforms[rv] is not None and not has_default_transform(model, rv)
        ]
        self._groups = _redrawn_together(model, self._transformed, shapes)
        values = {rv: on_the_line(rv) if is_circular(model, rv) else forward(model, rv, rv) for rv in self._free}
        errors = [_error_of_return(model, rv, values[rv]) for rv in self._transformed]

        def draws(rounded: Sequence[Variable]) -> PriorDraws:
            fixed = prior_replacements(model, data, rounded)
            return PriorDraws(clone_replace([*values.values(), *errors], fixed, rebuild_strict=False))

        self._draws, where = draws(()), coordinates(shapes)
        lost = self._lost(where)
        # A draw that rounds to a bound of these can take the next number inside.
        clipped = LogTransform | LogOddsTransform | SimplexTransform
        rounded = [rv for rv in lost if isinstance(model.rvs_to_transforms[rv], clipped)]
        if rounded:
            self._draws = draws(rounded)
            lost = self._lost(where)
        _refuse_lost(lost)

    @property
    def at_once(self) -> bool:
        """Return whether one call draws many, as far as is known."""
        return self._draws.at_once

    def __call__(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` draws ``(n, dim)``."""
        if n == 0:
            return self._draw(1, rng)[:0]
        draws = self._draw(n, rng)
        x, proposed = draws.copy(), n
        missing = [np.flatnonzero(~np.isfinite(draws[:, columns]).all(axis=1)) for columns in self._groups]
        kept = np.array([n - len(rows) for rows in missing])
        while any(map(len, missing)):
            if proposed > 10_000 and kept.min() < 1e-3 * proposed:
                names = ", ".join(repr(rv.name) for rv in self._transformed or self._free)
                raise PriorSamplingError(
                    f"only {kept.min()} of {proposed} prior draws of {names} fall where the transforms allow: "
                    "use initial='laplace'"
                )
            draws = self._draw(min(max(n, 2 * proposed), _LARGEST_BATCH), rng)
            proposed += len(draws)
            for group, columns in enumerate(self._groups):
                inside = np.flatnonzero(np.isfinite(draws[:, columns]).all(axis=1))
                rows = missing[group][: len(inside)]
                x[np.ix_(rows, columns)] = draws[np.ix_(inside[: len(rows)], columns)]
                missing[group], kept[group] = missing[group][len(rows) :], kept[group] + len(inside)
        return x

    def _lost(self, where: Mapping[str, NDArray[np.intp]]) -> dict[Variable, float]:
        """Return the variables more than a few of whose draws have no finite point although no transform restricts them.

        They round to a bound of the support, as half of the draws of a Gamma(0.001, 0.001) do, or overflow. Drawing again
        would sample the rest of the prior only. Outside what a transform allows, points are NaN, not infinite. The values
        are the shares of draws.
        """
        dim = sum(map(np.size, where.values()))
        n = _CHECKED_DRAWS if self.at_once else _CHECKED_IN_TURN
        draws = self._draw(max(2, min(n, _CHECKED_NUMBERS // max(1, dim))), np.random.default_rng(0))
        shares = {}
        for rv in self._free:
            own = draws[:, where[rv.name].ravel()]
            lost = np.isinf(own) if rv in self._transformed else ~np.isfinite(own)
            shares[rv] = float(lost.any(axis=1).mean())
        return {rv: share for rv, share in shares.items() if share > _LARGEST_LOSS}

    def _draw(self, n: int, rng: np.random.Generator) -> Array:
        """Return points ``(n, dim)``, NaN if a transform does not allow a draw; transforms must be invertible."""
        draws, k = self._draws(n, rng), len(self._free)
        for rv, error in zip(self._transformed, draws[k:], strict=True):
            if np.nanmax(error, initial=0.0) > 1e-6:
                raise PriorSamplingError(
                    f"draws of '{rv.name}' are changed by its transform and back, so that its prior cannot be sampled: "
                    "use initial='laplace'"
                )
        return np.concatenate([draw.reshape(n, -1) for draw in draws[:k]], axis=1)


def _refuse_lost(shares: Mapping[Variable, float]) -> None:
    """Raise an error that names the variable of which the largest share of draws is lost."""
    if shares:
        worst = max(shares, key=lambda rv: shares[rv])
        raise PriorSamplingError(
            f"{100 * shares[worst]:.1f} % of the prior draws of '{worst.name}' round to a bound of its support, or overflow, "
            "where the unconstrained value is not finite, so that the rest would not follow the prior: use "
            "initial='laplace'"
        )


def _inside(rv: Variable, transform: Any) -> Variable:
    """Return the same draw; where it rounds to a bound, the number next to it, which is as good for the likelihood."""
    if isinstance(transform, LogTransform):
        largest = 1 / _SMALLEST
    else:
        largest = 1.0 if isinstance(transform, SimplexTransform) else 1.0 - np.finfo(float).epsneg
    bounds = [pt.constant(bound, dtype="float64") for bound in (_SMALLEST, largest)]
    return pt.clip(rv.owner.clone().outputs[rv.owner.outputs.index(rv)], *bounds)


def prior_replacements(model: pm.Model, data: DataValues, rounded: Sequence[Variable] = ()) -> dict[Variable, Variable]:
    """Return replacements by which draws follow the density as written: data, sorted elements, ``CAR`` and ``AR``.

    Draws of the variables ``rounded`` do not round to the bounds of their support.
    """
    fixed = fixed_values(model, data)
    for rv in free_variables(model):
        if isinstance(rv.owner.op, CARRV):
            replacement = _car_draw(rv)
        elif isinstance(rv.owner.op, AutoRegressiveRV):
            replacement = _autoregressive_draw(rv)
        elif exchangeable_and_ordered(model, rv):
            replacement = _sorted_copy(rv, model.rvs_to_transforms[rv])
        elif rv in rounded:
            replacement = _inside(rv, model.rvs_to_transforms[rv])
        else:
            continue
        [fixed[rv]] = clone_replace([replacement], fixed, rebuild_strict=False)
    return fixed


def coordinates(shapes: ModelShapes) -> dict[str, NDArray[np.intp]]:
    """Return the coordinates of every free variable in the ravelled point, in the shape of its value variable."""
    sizes = [int(np.prod(shape, dtype=int)) for shape in shapes.value.values()]
    pieces = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    named = zip(shapes.model, pieces, shapes.value.values(), strict=True)
    return {name: piece.reshape(shape) for name, piece, shape in named}


def joined_groups(reach: Mapping[Variable, set[Variable]]) -> list[list[Variable]]:
    """Return the variables in groups without common reachable variables."""
    groups: list[tuple[list[Variable], set[Variable]]] = []
    for rv, reached in reach.items():
        apart = [group for group in groups if not group[1] & reached]
        joined = [group for group in groups if group[1] & reached]
        members = [v for group in joined for v in group[0]]
        groups = [*apart, ([*members, rv], set(reached).union(*[group[1] for group in joined]))]
    return [members for members, _ in groups]


def _redrawn_together(model: pm.Model, restricted: Sequence[Variable], shapes: ModelShapes) -> list[NDArray[np.intp]]:
    """Return the coordinates in independent groups, each of which is drawn again if one of its coordinates is outside."""
    where, free = coordinates(shapes), free_variables(model)
    groups, rest = [], []
    for members in map(set, joined_groups({rv: {rv, *(v for v in ancestors([rv]) if v in free)} for rv in free})):
        columns = [where[rv.name] for rv in free if rv in members]
        if not members & set(restricted):
            rest += [column.ravel() for column in columns]
        elif len(members) == 1 and has_independent_parts(model, *members):
            last = columns[0].shape[-1] if is_ordered(model, *members) else 1
            groups += list(columns[0].reshape(-1, last))
        else:
            groups.append(np.concatenate([column.ravel() for column in columns]))
    return [*groups, np.concatenate(rest)] if rest else groups


def _are_draws(draws: list[Array], ndims: list[int], n: int) -> bool:
    """Return whether every output has a row per draw."""
    return all(draw.ndim == ndim + 1 and len(draw) == n for draw, ndim in zip(draws, ndims, strict=True))


def _sorted_copy(rv: Variable, transform: Any) -> Variable:
    """Return the same draw, with its elements in the order that the transform requires."""
    ascending = pt.sort(rv.owner.clone().outputs[1], axis=-1)
    return ascending if chained(transform)[-1].ascending else ascending[..., ::-1]


def _car_draw(rv: Variable) -> Variable:
    """Return a draw from the density of ``CAR``; PyMC's own draws have the square of its covariance matrix."""
    factor = pt.linalg.cholesky(car_precision(rv))
    noise = pt.random.normal(size=rv.shape)
    return rv.owner.inputs[2] + pt.linalg.solve_triangular(factor.mT, noise, lower=False)


class _Recursion(Op):
    """The recursion x_t = Σ_i ρ_i x_{t−i} + e_t of one series; PyMC's is a loop in Python that cannot have a batch axis."""

    __props__ = ()
    gufunc_signature = "(p),(p),(t)->(t)"

    def make_node(self, *inputs: Variable) -> Apply:
        return Apply(self, list(inputs), [inputs[2].type()])

    def perform(self, node: Apply, inputs: Sequence[Array], outputs: Sequence[list[Any]]) -> None:
        rhos, before, noise = inputs
        feedback = np.concatenate([[1.0], -rhos])
        outputs[0][0] = lfilter([1.0], feedback, noise, zi=lfiltic([1.0], feedback, before[::-1]))[0]


def _autoregressive_draw(rv: Variable) -> Variable:
    """Return a draw of ``AR`` whose innovations are drawn before the recursion."""
    rhos, sigma, before, steps = rv.owner.inputs[:4]
    noise = sigma[..., None] * pt.random.normal(size=(*before.shape[:-1], steps))
    if rv.owner.op.constant_term:
        noise, rhos = noise + rhos[..., :1], rhos[..., 1:]
    return pt.concatenate([before, Blockwise(_Recursion())(rhos, before, noise)], axis=-1)


def _error_of_return(model: pm.Model, rv: Variable, value: Variable) -> Variable:
    """Return the largest error of a draw that is transformed and back."""
    back = model.rvs_to_transforms[rv].backward(value, *rv.owner.inputs)
    return pt.max(pt.abs(back - rv))


def refuse_improper(rv: Variable) -> None:
    """Raise an error for a variable whose prior cannot be sampled."""
    op = rv.owner.op
    if isinstance(op, FlatRV | HalfFlatRV):
        raise PriorSamplingError(f"the prior of '{rv.name}' is flat and cannot be sampled: use initial='laplace'")
    if isinstance(op, PartialObservedRV):
        raise PriorSamplingError(
            f"'{rv.name}' represents missing entries of a multivariate observation, whose density is counted with the "
            "observed entries, not with the prior: use initial='laplace'"
        )


def expanded(graphs: list[Variable], kept: Callable[[Apply], bool] = lambda node: False) -> list[Variable]:
    """Replace composite distributions that are not ``kept`` by the graphs of elementary random variables inside them."""
    graphs = merged(graphs)
    while True:
        composites = [
            node
            for node in io_toposort([], graphs)
            if isinstance(node.op, OpFromGraph)
            and any(isinstance(v.type, RandomType) for v in node.inputs)
            and not kept(node)
        ]
        if not composites:
            return graphs
        inner = dict(zip(composites[0].outputs, inline_ofg_node(composites[0]), strict=True))
        graphs = merged(clone_replace(graphs, inner, rebuild_strict=False))


def merged(graphs: list[Variable]) -> list[Variable]:
    """Return graphs in which copies of a random variable are one variable, so that they are not drawn separately."""
    fgraph = FunctionGraph(outputs=list(graphs), clone=False)
    MergeOptimizer().rewrite(fgraph)
    return list(fgraph.outputs)


def _draw_many(graphs: list[Variable], n: Variable) -> list[Variable]:
    """Return the graphs with every elementary random variable drawn ``n`` times, along a new leading axis."""
    batched: dict[Variable, Variable] = {}
    for node in io_toposort([], graphs):
        if not isinstance(node.op, RandomVariable):
            continue
        draw = node.outputs[1]
        batch_ndim = node.op.batch_ndim(node)
        parameters = []
        for parameter, core_ndim in zip(node.op.dist_params(node), node.op.ndims_params, strict=True):
            [many] = vectorize_graph([parameter], batched) if batched else [parameter]
            if many.type.ndim > parameter.type.ndim:  # put the axis of draws before all batch axes
                missing = batch_ndim - (parameter.type.ndim - core_ndim)
                many = pt.expand_dims(many, tuple(range(1, 1 + missing))) if missing else many
            parameters.append(many)
        size = pt.stack([n, *[draw.shape[axis] for axis in range(batch_ndim)]])
        generator = pytensor.shared(np.random.default_rng(0))  # a separate stream; replaced by an input
        batched[draw] = node.op.make_node(generator, size, *parameters).outputs[1]
    return vectorize_graph(graphs, batched)


def random_function(graphs: list[Variable], *inputs: Variable) -> Callable[..., list[Array]]:
    """Return ``(rng, *inputs) -> draws``; every stream of the graph is seeded from ``rng``."""
    streams = [v for v in ancestors(graphs) if isinstance(v, SharedVariable) and isinstance(v.type, RandomType)]
    stand_ins = [random_generator_type() for _ in streams]
    graphs = clone_replace(graphs, dict(zip(streams, stand_ins, strict=True)), rebuild_strict=False)
    function = pytensor.function([*inputs, *stand_ins], graphs, mode=PYTHON_MODE, on_unused_input="ignore")

    def draw(rng: np.random.Generator, *arguments) -> list[Array]:
        seeds = rng.integers(2**63, size=len(streams))
        return function(*arguments, *[np.random.default_rng(seed) for seed in seeds])

    return draw

"""``pm.Simulator`` variables of a PyMC model: the model without them, their parameters as functions of a point, their parts.

The pseudo log likelihood of PyMC is the sum of ``distance(epsilon, sum_stat(observed), sum_stat(simulated))`` over elements:
exp(−d²/2ε²) with the Euclidean distance for ``"gaussian"``, exp(−d/ε) with the sum of absolute differences for ``"laplace"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions import simulator as pymc_simulator
from pymc.distributions.simulator import SimulatorRV
from pymc.model.core import treedict, treelist
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.type_other import NoneTypeT

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.graph import (
    PYTHON_MODE,
    DataValues,
    ModelShapes,
    _clone,
    _cut,
    free_variables,
    no_c_compiler,
)
from ppl_backends.targets.pymc.target import PyMCTarget

__all__ = ["SimulatorVariable", "simulator_target", "simulators_of"]

Function = Callable[..., Any]
Values = Mapping[str, NDArray]
ParameterFunction = Callable[[Array, np.random.Generator], dict[str, NDArray]]


@dataclass(frozen=True)
class SimulatorVariable:
    """One ``pm.Simulator``.

    Attributes
    ----------
    name : str
    observed : ndarray
    batched, single : callable
        ``(values, rng) -> data``; values are the parameters by position.
    kind : {"gaussian", "laplace", "function"}
    epsilon : float or ndarray
    epsilon_given : bool
        Whether it differs from PyMC's default.
    summary : str or callable
        A summary name of PyMC, or a function of one data set.
    log_kernel : callable or None
        ``(epsilon, observed summary, simulated summary) -> float`` if ``kind`` is ``"function"``.
    """

    name: str
    observed: NDArray
    batched: Callable[[Values, np.random.Generator], Any]
    single: Callable[[Values, np.random.Generator], Any]
    kind: str
    epsilon: Any
    epsilon_given: bool
    summary: str | Function
    log_kernel: Function | None


def simulators_of(model: pm.Model) -> list[Variable]:
    """Return the observed ``pm.Simulator`` variables of a model."""
    return [rv for rv in dict.fromkeys(model.observed_RVs) if isinstance(rv.owner.op, SimulatorRV)]


def without_simulators(model: pm.Model) -> pm.Model:
    """Return a model of the same variables except these; nothing is cloned."""
    gone = simulators_of(model)
    names, values = {rv.name for rv in gone}, {model.rvs_to_values[rv] for rv in gone}
    reduced = object.__new__(type(model))
    reduced.__dict__.update(model.__dict__)
    reduced.observed_RVs = treelist([rv for rv in model.observed_RVs if rv not in gone])
    for attribute in ("rvs_to_values", "rvs_to_transforms", "rvs_to_initial_values"):
        kept = {rv: value for rv, value in getattr(model, attribute).items() if rv not in gone}
        setattr(reduced, attribute, treedict(kept))
    reduced.values_to_rvs = treedict({v: rv for v, rv in model.values_to_rvs.items() if v not in values})
    reduced.named_vars = treedict({name: v for name, v in model.named_vars.items() if name not in names})
    return reduced


def _parts(model: pm.Model, rv: Variable, data: DataValues) -> SimulatorVariable:
    """Return the parts of a Simulator, evaluated on the data."""
    op, node = rv.owner.op, rv.owner
    own = vars(type(op))
    fixed = {v: pt.constant(value, dtype=v.dtype) for v, value in data.items()}
    size = node.op.size_param(node)
    sized = not isinstance(size.type, NoneTypeT)
    graphs = _clone([model.rvs_to_values[rv], op.epsilon, *([size] if sized else [])], fixed)
    with no_c_compiler():
        observed, epsilon, *sizes = map(np.asarray, pytensor.function([], graphs, mode=PYTHON_MODE)())
    shape = tuple(map(int, sizes[0])) if sized else None
    batch = observed.shape[: op.batch_ndim(node)]
    cores = [int(core) for core in op.ndims_params]
    ndims = [parameter.type.ndim for parameter in op.dist_params(node)]
    kind, log_kernel = _distance(own["_distance"])
    return SimulatorVariable(
        rv.name,
        observed,
        partial(_draw_many, own["fn"], batch, cores, ndims),
        partial(_draw_one, own["fn"], shape),
        kind,
        epsilon if epsilon.ndim else float(epsilon),
        not (op.epsilon.type.dtype == "int8" and epsilon.ndim == 0 and epsilon == 1),
        _summary(own["_sum_stat"]),
        log_kernel,
    )


def _draw_one(fn: Function, size: tuple[int, ...] | None, values: Values, rng: np.random.Generator) -> Any:
    """Call the function in the same way as PyTensor."""
    return fn(rng, *values.values(), size)


def _draw_many(
    fn: Function,
    batch: tuple[int, ...],
    cores: Sequence[int],
    ndims: Sequence[int],
    values: Values,
    rng: np.random.Generator,
) -> Any:
    """Call the function for a batch: the new axis comes first, before all batch axes of the parameters."""
    n = len(next(iter(values.values())))
    rows = []
    for value, core, ndim in zip(values.values(), cores, ndims, strict=True):
        missing = len(batch) - (ndim - core)
        rows.append(value.reshape(n, *(1,) * missing, *value.shape[1:]))
    return fn(rng, *rows, (n, *batch))


def _summary(given: Any) -> str | Function:
    """Return PyMC's name of a summary, or a function of one data set."""
    known = {pymc_simulator.identity: "identity", pt.sort: "sort", pt.mean: "mean", np.median: "median"}
    function = _wrapped(given) if isinstance(given, Op) else None
    function = given if function is None else function
    try:
        if function in known:
            return known[function]
    except TypeError:  # not hashable
        pass
    return function if function is not given else partial(_evaluate, _Compiled(given))


def _distance(given: Any) -> tuple[str, Function | None]:
    """Return the kind of a distance, and its function."""
    if given is pymc_simulator.gaussian:
        return "gaussian", None
    if given is pymc_simulator.laplace:
        return "laplace", None
    function = _wrapped(given) if isinstance(given, Op) else None
    return "function", function if function is not None else partial(_evaluate, _Compiled(given))


def _wrapped(op: Op) -> Function | None:
    """Return the NumPy function from which PyMC made an operation."""
    if type(op).__module__ != pymc_simulator.__name__:
        return None
    code, cells = type(op).perform.__code__, type(op).perform.__closure__ or ()
    return dict(zip(code.co_freevars, cells, strict=True))["fn"].cell_contents


class _Compiled:
    """A function of PyTensor variables as one of arrays, compiled at its first use in a process."""

    def __init__(self, symbolic: Any) -> None:
        self.symbolic = symbolic
        self._functions: dict[Any, Callable] = {}

    def __call__(self, *arguments: NDArray) -> NDArray:
        key = tuple((np.ndim(argument), np.asarray(argument).dtype.str) for argument in arguments)
        if key not in self._functions:
            inputs = [pt.tensor(dtype=np.asarray(a).dtype.name, shape=(None,) * np.ndim(a)) for a in arguments]
            output = pt.as_tensor_variable(self.symbolic(*inputs))
            self._functions[key] = pytensor.function(inputs, output, mode=PYTHON_MODE, on_unused_input="ignore")
        return self._functions[key](*arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {"symbolic": self.symbolic, "_functions": {}}


def _evaluate(compiled: _Compiled, *arguments: Any) -> NDArray:
    return compiled(*map(np.asarray, arguments))


def parameter_function(model: pm.Model, rv: Variable, data: DataValues, shapes: ModelShapes) -> ParameterFunction:
    """Return the parameters of a Simulator as a function of points: name → ``(n, ...)``, in their order.

    It takes a generator too, as a target's ``constrain`` does, and draws nothing.
    """
    inputs = rv.owner.op.dist_params(rv.owner)
    names = [_name(v) or f"parameter {i}" for i, v in enumerate(inputs)]
    names = names if len(set(names)) == len(names) else [f"parameter {i}" for i in range(len(inputs))]
    values_at = batched_values(model, inputs, data, shapes)
    return lambda x, rng: dict(zip(names, values_at(x), strict=True))


def batched_values(
    model: pm.Model, outputs: Sequence[Variable], data: DataValues, shapes: ModelShapes
) -> Callable[[Array], list[NDArray]]:
    """Return values of graphs as a function of points ``(n, dim)``, without a compiler: ``(n, ...)`` each."""
    values = [model.rvs_to_values[free] for free in free_variables(model)]
    with no_c_compiler():
        point, pieces = _cut(values, shapes.value.values(), "point")
        fixed = {v: pt.constant(value, dtype=v.dtype) for v, value in data.items()}
        graphs = _clone(model.replace_rvs_by_values(outputs), {**fixed, **dict(zip(values, pieces, strict=True))})
        points = pt.matrix("points", dtype="float64")
        try:
            several = vectorize_graph(graphs, {point: points})
            many = pytensor.function([points], several, mode=PYTHON_MODE, on_unused_input="ignore")
        except Exception:  # an operation without a batch axis
            many, one = None, pytensor.function([point], graphs, mode=PYTHON_MODE, on_unused_input="ignore")

    def values_of(x: Array) -> list[NDArray]:
        if many is None:
            return [np.stack(column) for column in zip(*map(one, x), strict=True)]
        return [
            np.broadcast_to(value, (len(x), *np.shape(value))) if np.ndim(value) == graph.type.ndim else value
            for value, graph in zip(many(x), graphs, strict=True)
        ]

    return values_of


def _name(parameter: Variable) -> str | None:
    """Return the name of a parameter, to which PyTensor may have added axes."""
    while parameter.name is None and parameter.owner is not None and isinstance(parameter.owner.op, DimShuffle):
        [parameter] = parameter.owner.inputs
    return parameter.name


def simulator_target(
    model: pm.Model, data: Mapping[str, Any] | None, cores: int | None
) -> tuple[PyMCTarget, list[SimulatorVariable], list[ParameterFunction]]:
    """Return the target of all other variables, and the parts and the parameter function of every Simulator.

    Raises
    ------
    ModelError
        If a Simulator has no data, or there is none.
    """
    for rv in free_variables(model):
        if isinstance(rv.owner.op, SimulatorRV):
            raise ModelError(f"pm.Simulator '{rv.name}' has no observed data")
    target = PyMCTarget(without_simulators(model), cores=cores)
    target = target if data is None else target.with_data(data)
    simulators = simulators_of(model)
    variables = [_parts(model, rv, target._data) for rv in simulators]
    functions = [parameter_function(model, rv, target._data, target._shapes) for rv in simulators]
    return target, variables, functions

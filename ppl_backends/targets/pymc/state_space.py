"""State-space likelihoods as observed variables of PyMC models, and the targets of such models."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.op import RandomVariable

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array
from ppl_backends.targets.pymc.graph import state_space_variables
from ppl_backends.targets.pymc.simulator import batched_values
from ppl_backends.targets.pymc.target import PyMCTarget
from ppl_backends.targets.state_space.filter import Filter
from ppl_backends.targets.state_space.model import StateSpaceModel
from ppl_backends.targets.state_space.target import StateSpaceData, StateSpaceTarget, check_dims, refusal


class StateSpaceVariable:
    """Description of a state-space variable, which replaces the function of draws of ``pm.CustomDist``.

    Attributes
    ----------
    name : str
    model : StateSpaceModel
    y : ndarray (n_rows,) or (n_rows, k)
    names : list of str
        Parameters, in the order of the variable's inputs.
    covariates : dict of str to ndarray
    dims : tuple of str
    step : weakref or None
        The PyMC step that moves its parameters.
    """

    state_space = True
    step: weakref.ref | None = None

    def __init__(
        self,
        name: str,
        model: StateSpaceModel,
        y: Array,
        names: list[str],
        covariates: dict[str, Array],
        dims: tuple[str, ...],
    ) -> None:
        self.name, self.model, self.y = name, model, y
        self.names, self.covariates, self.dims = names, covariates, dims

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "step"}

    def __call__(self, *parameters: Any, rng: np.random.Generator, size: Any = None) -> NDArray:
        """Raise an error: the model has the density of a row, but no function that draws one."""
        raise ModelError(
            f"state-space variable '{self.name}' cannot be drawn: its model has only the density of a row; name the other "
            "variables in var_names="
        )


class _Intractable(Op):
    """The log density in PyMC's graph: it raises an error, but is zero if a step of this package moves the parameters.

    PyMC evaluates it at starting points, and so do steps of the other variables; neither depends on its value.
    """

    __props__ = ("variable",)

    def __init__(self, variable: StateSpaceVariable) -> None:
        self.variable = variable

    def make_node(self, *parameters: Any) -> Apply:
        return Apply(self, [pt.as_tensor_variable(p) for p in parameters], [pt.dscalar()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        if self.variable.step is None or self.variable.step() is None:
            raise ModelError(refusal(self.variable.name))
        output_storage[0][0] = np.array(0.0)

    def infer_shape(self, *arguments: Any) -> Any:  # PyTensor 2 passes (graph, node, shapes), PyTensor 3 (node, shapes)
        return [()]

    def L_op(self, inputs: Any, outputs: Any, output_gradients: Any) -> Any:
        raise ModelError(refusal(self.variable.name))

    grad = pullback = L_op


def state_space_variable(
    name: str,
    model: StateSpaceModel,
    parameters: Mapping[str, Any],
    y: Array,
    covariates: dict[str, Array],
    dims: tuple[str, ...],
) -> Variable:
    """Create the variable of :func:`ppl_backends.StateSpace`."""
    coords = pm.modelcontext(None).coords
    lengths = {axis: None if held is None else len(held) for axis, held in coords.items()}
    check_dims(name, y, dims, lengths, "pm.Model(coords=…)")
    inputs = [_as_input(name, key, value) for key, value in parameters.items()]
    filters = Filter(model, y, covariates)  # checks the rows
    shapes = {key: given.type.shape for key, given in zip(parameters, inputs, strict=True)}
    if all(None not in shape for shape in shapes.values()):
        filters.state_shape({key: np.zeros((1, *shape)) for key, shape in shapes.items()})  # checks the functions
    variable = StateSpaceVariable(name, model, y, list(parameters), covariates, dims)
    letters = (f"d{i}" for i in range(1000))
    cores = [",".join(next(letters) for _ in range(v.type.ndim)) for v in inputs]
    shape = ",".join(next(letters) for _ in y.shape)
    # PyMC would impute NaN; the data's shape is passed as a last parameter, from which PyMC infers that of draws.
    signature = f"{','.join(f'({core})' for core in [*cores, shape])}->({shape})"
    density = _Intractable(variable)
    return pm.CustomDist(
        name,
        *inputs,
        np.zeros(y.shape),
        logp=lambda value, *given: density(*given[:-1]),
        random=variable,
        signature=signature,
        observed=np.nan_to_num(y),
        dims=dims or None,
    )


def _as_input(name: str, key: str, value: Any) -> Any:
    """Return a parameter as a variable of floats."""
    try:
        return pt.as_tensor_variable(value).astype("float64")
    except (TypeError, ValueError, NotImplementedError):
        raise ModelError(
            f"'{name}': {key}={type(value).__name__} is not a variable or number; data go in observed= and covariates="
        ) from None


def claim_state_space(model: pm.Model, step: Any) -> None:
    """Declare that ``step`` moves the parameters of the state-space variable, so that PyMC may evaluate the model."""
    for rv in state_space_variables(model):
        type(rv.owner.op)._random_fn.step = weakref.ref(step)


class _ParametersOfPoint:
    """Parameters of the variable at points ``(n, dim)``, by name."""

    def __init__(self, names: list[str], values_of: Callable[[Array], list[NDArray]]) -> None:
        self.names, self.values_of = names, values_of

    def __call__(self, x: Array) -> dict[str, Array]:
        return dict(zip(self.names, map(np.asarray, self.values_of(x)), strict=True))


class _OtherTerms(PyMCTarget):
    """A model without its state-space variable."""

    accepts_intractable = True


class PyMCStateSpaceTarget(StateSpaceTarget):
    """Pickles as the model and the rows."""

    def __reduce__(self) -> Any:
        rows = {self.state_space.name: self.state_space.y, **self.state_space.covariates}
        recipe = cloudpickle.dumps((self.target.model, rows, self.n_particles))  # type: ignore[attr-defined]
        return _rebuild, (recipe, self.target.backend)  # type: ignore[attr-defined]


def _register(kind: Any) -> None:
    """Register with PyMC the log density of a variable whose type was created in another process."""
    if _logprob.dispatch(kind) is not _logprob.dispatch(RandomVariable):
        return

    @_logprob.register(kind)
    def _(op: Any, values: Any, rng: Any, size: Any, *parameters: Any, **kwargs: Any) -> Any:
        return _Intractable(op._random_fn)(*parameters[:-1])


def _rebuild(recipe: bytes, backend: str) -> StateSpaceTarget:
    model, rows, n_particles = pickle.loads(recipe)
    for rv in state_space_variables(model):
        _register(type(rv.owner.op))
    return state_space_target(model, backend=backend).with_data(rows).with_particles(n_particles)


def state_space_target(model: pm.Model, *, backend: str = "auto", cores: int | None = None) -> StateSpaceTarget:
    """Return the target of a model with one state-space variable.

    Raises
    ------
    ModelError
        If there is none, or more than one.
    """
    found = state_space_variables(model)
    if len(found) != 1:
        names = ", ".join(f"'{rv.name}'" for rv in found)
        raise ModelError(
            f"{names} are all pb.StateSpace: join them in one variable with a vector state"
            if found
            else (
                "no observed variable of the model is pb.StateSpace; declare it with pb.StateSpace inside the pm.Model"
            )
        )
    [rv] = found
    variable: StateSpaceVariable = type(rv.owner.op)._random_fn
    other = _OtherTerms(model, backend=backend, cores=cores)
    inputs = rv.owner.op.dist_params(rv.owner)[:-1]
    values_of = batched_values(model, inputs, other._data, other._shapes)
    data = StateSpaceData(
        variable.name,
        variable.model,
        variable.y,
        _ParametersOfPoint(variable.names, values_of),
        variable.covariates,
        variable.dims,
    )
    return PyMCStateSpaceTarget(other, data)

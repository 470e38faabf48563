"""Unnormalised observed variables of PyMC models: a marked ``pm.CustomDist``, and its target."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.ops import TypeCastingOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import vectorize_graph

from ppl_backends.errors import CompilationError, ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.compile import first_backend
from ppl_backends.targets.pymc.graph import (
    PYTHON_MODE,
    _clone,
    _cut,
    ancestors,
    data_values,
    free_variables,
    no_c_compiler,
    shapes_of,
    unnormalized_variables,
)
from ppl_backends.targets.pymc.target import PyMCTarget
from ppl_backends.targets.unnormalized import UnnormalizedLikelihood, UnnormalizedTarget, checked_draws, refusal


class _RefusedGradient(TypeCastingOp):
    """The identity, whose gradient raises an error with the variable's name, because PyMC's gradient-based steps ignore Z.

    It is not a ``ViewOp``: PyMC simplifies the log density before it differentiates, and that removes views.
    """

    __props__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def make_node(self, x: Variable) -> Apply:
        return Apply(self, [x], [x.type()])

    def infer_shape(self, *arguments: Any) -> Any:  # PyTensor 2 passes (graph, node, shapes), PyTensor 3 (node, shapes)
        return arguments[-1]

    def L_op(self, inputs: Any, outputs: Any, output_gradients: Any) -> Any:
        raise ModelError(refusal(self.name))

    grad = pullback = L_op


class UnnormalizedModel:
    """The ``random`` function of the CustomDist, with all other information about it."""

    unnormalized = True

    def __init__(self, name: str, logp: Callable, random: Callable, exact: bool, observed: NDArray) -> None:
        self.name, self.logp, self.random, self.exact = name, logp, random, bool(exact)
        self.shape, self.dtype = observed.shape, observed.dtype

    def __call__(self, *parameters: Any, rng: np.random.Generator, size: Any = None) -> NDArray:
        """Draw in the form of ``pm.CustomDist``; the last parameter only gives the shape of the data."""
        if size is None or not len(tuple(size)):
            return self.draw(parameters[:-1], 1, rng)[0]
        n = int(np.prod(size))
        cores = [np.ndim(p) - len(tuple(size)) for p in parameters[:-1]]
        if all(np.ndim(p) == 0 or k <= 0 for p, k in zip(parameters, cores, strict=False)):
            return self.draw(parameters[:-1], n, rng).reshape(*size, *self.shape)
        rows = [np.reshape(p, (n, *np.shape(p)[len(tuple(size)) :])) for p in parameters[:-1]]
        draws = [self.draw([row[i] for row in rows], 1, rng)[0] for i in range(n)]
        return np.stack(draws).reshape(*size, *self.shape)

    def draw(self, parameters: Sequence[Any], n: int, rng: np.random.Generator) -> NDArray:
        """Return ``n`` data sets ``(n, *shape)``, of the observed data's type."""
        drawn = checked_draws(np.asarray(self.random(*parameters, rng=rng, size=(n,))), n, self.shape, self.name)
        with np.errstate(invalid="ignore"):
            data = drawn.astype(self.dtype)
        if not np.can_cast(drawn.dtype, self.dtype, "same_kind") and (data != drawn).any():
            raise ModelError(
                f"the simulator of '{self.name}' draws {drawn.dtype} that {self.dtype}, the type of the observed data, would "
                "round: give observed as floats"
            )
        return data


class _FamilyDensity:
    """θᵀs of the statistics."""

    def __call__(self, value: Any, theta: Any) -> Any:
        return pt.dot(value, theta)


class _FamilyDraws:
    """Statistics of data sets drawn by a ready-made simulator."""

    def __init__(self, simulator: Any) -> None:
        self.simulator = simulator

    def __call__(self, theta: Any, rng: np.random.Generator, size: Any) -> NDArray:
        return self.simulator.simulate_statistics(theta, size[0], rng)


def unnormalized_variable(
    name: str,
    parameters: Sequence[Any],
    observed: Any,
    simulator: Any,
    logp: Callable | None,
    random: Callable | None,
    exact: bool,
) -> Variable:
    """Create the variable of :func:`ppl_backends.Unnormalized`."""
    if not parameters:
        raise ModelError(f"pb.Unnormalized('{name}') needs the parameters of its likelihood after the name")
    if simulator is not None:
        if logp is not None or random is not None:
            raise ModelError(f"pb.Unnormalized('{name}'): give either simulator= or logp= and random=")
        if len(parameters) != 1 or pt.as_tensor_variable(parameters[0]).type.ndim > 1:
            raise ModelError(
                f"pb.Unnormalized('{name}'): a ready-made simulator takes one vector of parameters; join them by "
                "pm.math.stack"
            )
        parameters = [pt.atleast_1d(parameters[0])]
        observed = simulator.statistics(observed)
        logp, random, exact = _FamilyDensity(), _FamilyDraws(simulator), simulator.exact
    if logp is None:
        raise ModelError(f"pb.Unnormalized('{name}'): logp= is missing: the log likelihood up to its constant")
    if random is None:
        raise ModelError(
            f"pb.Unnormalized('{name}'): random= is missing: a likelihood without its constant needs a simulator"
        )
    data = np.asarray(observed)
    if data.dtype.kind not in "iufb" or (data.dtype.kind == "f" and not np.isfinite(data).all()):
        raise ModelError(f"pb.Unnormalized('{name}'): the observed data have missing values or are not numbers")
    model = UnnormalizedModel(name, logp, random, exact, data)
    inputs = [pt.as_tensor_variable(parameter) for parameter in parameters]
    letters = (f"d{i}" for i in itertools.count())
    cores = [",".join(next(letters) for _ in range(v.type.ndim)) for v in inputs]
    shape = ",".join(next(letters) for _ in data.shape)
    # The data's shape is passed as a last parameter, from which PyMC infers that of draws.
    signature = f"{','.join(f'({core})' for core in [*cores, shape])}->({shape})"
    refused = _RefusedGradient(name)

    def density(value: Variable, *given: Variable) -> Variable:
        return refused(logp(value, *given[:-1]))

    return pm.CustomDist(
        name,
        *inputs,
        np.zeros(data.shape),
        logp=density,
        random=model,
        signature=signature,
        dtype=str(data.dtype),
        observed=data,
    )


def unnormalized_target(model: pm.Model) -> UnnormalizedTarget:
    """Return the target of a model with one unnormalised variable, for steps that may run in forked workers."""
    found = unnormalized_variables(model)
    if not found:
        raise ModelError(
            "no observed variable of the model is pb.Unnormalized; this step is for likelihoods whose normalising constant "
            "is not known"
        )
    if len(found) > 1:
        names = ", ".join(f"'{rv.name}'" for rv in found)
        raise ModelError(f"{names} are all pb.Unnormalized: join them in one variable")
    tractable = TractablePart(model, backend="numba", cores=1)
    try:
        tractable.log_density(np.zeros((1, tractable.dim)))
    except CompilationError:
        tractable = TractablePart(model, backend="c", cores=1)
    return PyMCUnnormalizedTarget(tractable, PyMCLikelihood(model, found[0]))


class TractablePart(PyMCTarget):
    """A model without its unnormalised variable."""

    accepts_intractable = True


class PyMCUnnormalizedTarget(UnnormalizedTarget):
    """Pickles as the model."""

    def __reduce__(self):
        """Return a recipe: the model."""
        assert isinstance(self.tractable, PyMCTarget)
        return _rebuild, (cloudpickle.dumps(self.tractable.model),)


def _rebuild(recipe: bytes) -> UnnormalizedTarget:
    return unnormalized_target(cloudpickle.loads(recipe))


class PyMCLikelihood(UnnormalizedLikelihood):
    """The unnormalised variable of a PyMC model, compiled by Numba at the first use of each function."""

    def __init__(self, model: pm.Model, rv: Variable) -> None:
        self._model: UnnormalizedModel = type(rv.owner.op)._random_fn
        self.name, self.exact = self._model.name, self._model.exact
        data = data_values(model)
        with no_c_compiler():
            shapes = shapes_of(model, data)
            values = [model.rvs_to_values[free] for free in free_variables(model)]
            self._point, pieces = _cut(values, shapes.value.values(), "point")
            constants = {v: pt.constant(value, dtype=v.dtype) for v, value in data.items()}
            fixed = {**constants, **dict(zip(values, pieces, strict=True))}
            value = model.rvs_to_values[rv]
            inputs = rv.owner.op.dist_params(rv.owner)[:-1]
            *self._parameters, observed = _clone([*model.replace_rvs_by_values(inputs), value], fixed)
            self.observed = _evaluated(observed)[None]
        self.depends_on = self._seen(values, model, inputs, shapes)
        self._value = pt.tensor("value", dtype=self.observed.dtype, shape=self._model.shape)
        self._log_f = self._model.logp(self._value, *self._parameters)
        if self._log_f.type.ndim:
            raise ModelError(f"pb.Unnormalized('{self.name}'): logp returns {self._log_f.type.ndim} axes; sum them up")
        self._functions: dict[str, Callable] = {}

    @staticmethod
    def _seen(
        values: Sequence[Variable], model: pm.Model, inputs: Sequence[Variable], shapes: Any
    ) -> NDArray[np.bool_]:
        """Return the coordinates of the variables that the parameters depend on."""
        above = set(ancestors(model.replace_rvs_by_values(inputs)))
        sizes = [int(np.prod(shape, dtype=int)) for shape in shapes.value.values()]
        return np.repeat([value in above for value in values], sizes)

    def _function(self, kind: str) -> Callable:
        if kind not in self._functions:
            self._functions[kind] = self._compile(kind)
        return self._functions[kind]

    def _compile(self, kind: str) -> Callable:
        """Return one of ``parameters``, ``value`` and ``gradient``."""
        batch = pt.tensor("data", dtype=self.observed.dtype, shape=(None, *self._model.shape))
        if kind == "parameters":
            inputs, outputs = [self._point], list(self._parameters)
        else:
            log_f = self._log_f if kind == "value" else pt.grad(self._log_f, self._point, disconnected_inputs="ignore")
            vectorised = vectorize_graph(log_f, {self._value: batch})
            if vectorised.type.ndim == log_f.type.ndim:  # the same for all data
                vectorised = pt.broadcast_to(vectorised, (batch.shape[0], *log_f.shape))
            inputs, outputs = [self._point, batch], [vectorised]

        def compiled(mode: str) -> Callable:
            with no_c_compiler():
                function = pytensor.function(
                    inputs, outputs, mode=PYTHON_MODE if mode == "python" else "NUMBA", on_unused_input="ignore"
                )
                function(*[np.zeros(self._point.type.shape), self.observed][: len(inputs)])
            return function

        return first_backend(("numba", "python"), compiled, f"the {kind} of '{self.name}'")[1]

    def log_unnormalized(self, x: Array, data: NDArray) -> Array:
        return self._function("value")(np.asarray(x, dtype=np.float64), data)[0]

    def gradient(self, x: Array, data: NDArray) -> Array:
        return self._function("gradient")(np.asarray(x, dtype=np.float64), data)[0]

    def simulate(self, x: Array, n: int, rng: np.random.Generator) -> NDArray:
        """Draw by the variable's ``random``, at the parameters of the point."""
        parameters = self._function("parameters")(np.asarray(x, dtype=np.float64))
        return self._model.draw(parameters, n, rng).astype(self.observed.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without compiled functions."""
        return {**self.__dict__, "_functions": {}}


def _evaluated(graph: Variable) -> NDArray:
    return np.asarray(pytensor.function([], graph, mode=PYTHON_MODE, on_unused_input="ignore")())

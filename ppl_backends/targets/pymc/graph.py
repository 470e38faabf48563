"""Graphs of a PyMC model as functions of one ravelled point: terms of the log density, constrained values, their inverse.

The value variables of the model are cut from one vector ``x`` (:attr:`ModelGraph.point`); ``pm.Data`` containers
become inputs, so that data can be replaced without recompiling. The log density is stored as its elementwise terms,
whose sums are the prior, the likelihood and the pointwise log likelihood.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.data import MinibatchOp
from pymc.distributions.simulator import SimulatorRV
from pymc.logprob.basic import transformed_conditional_logp
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.replace import clone_replace
from pytensor.link.vm import VMLinker
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from ppl_backends.errors import ModelError
from ppl_backends.targets.pymc.circle import with_windows
from ppl_backends.targets.pymc.matching import ancestors, io_toposort
from ppl_backends.targets.pymc.normal_intervals import recognise_normal_intervals
from ppl_backends.targets.pymc.rewrites import in_double, replace_checks
from ppl_backends.targets.state_space.target import refusal as state_space_refusal
from ppl_backends.targets.unnormalized import refusal

# Modules in which PyTensor has its factorisations, solvers and determinants (one package since version 3).
LINEAR_ALGEBRA = ("pytensor.tensor.linalg", "pytensor.tensor.nlinalg", "pytensor.tensor.slinalg")

DataValues = Mapping[SharedVariable, np.ndarray]

RESERVED = frozenset({"chain", "draw"})

# Interpreted by Python: for functions called once or twice, for which compilation takes longer than the run.
PYTHON_MODE = Mode(linker=VMLinker(use_cloop=False, c_thunks=False), optimizer="fast_compile")


def no_c_compiler() -> AbstractContextManager:
    """Let PyTensor fold constants in Python, not in C that it compiles first, and record no call stacks.

    Rewrites join the call stacks of everything that they replace, which takes gigabytes for a gradient of a large model.
    """
    return pytensor.config.change_flags(cxx="", traceback__limit=0)


@dataclass(frozen=True)
class ModelShapes:
    """Shapes of the free variables, by name, in the order of the ravelled point."""

    value: dict[str, tuple[int, ...]]  # name of value variable (``sigma_log__``) → shape on the unconstrained space
    model: dict[str, tuple[int, ...]]  # name of free variable (``sigma``) → shape in model space


@dataclass(frozen=True)
class ModelGraph:
    """Graphs of one point of a model."""

    point: Variable  # the ravelled value variables; input of all graphs but ``unconstrained``
    data: list[Variable]  # inputs for the shared variables, in the order of :func:`data_values`
    free: dict[str, Variable]  # name → elementwise terms of the log density, Jacobians included
    observed: dict[str, Variable]  # name → elementwise terms of the log density, Jacobians included
    potentials: dict[str, Variable]  # name → elementwise terms of the log density, Jacobians included
    constrained: dict[str, Variable]  # name → value of every free variable, then of every Deterministic
    constrained_point: Variable  # the ravelled free variables in model space; input of ``unconstrained``
    unconstrained: Variable  # inverse of ``constrained`` on the free variables

    @property
    def log_prior(self) -> Variable:
        """Return the sum of the free terms."""
        return _total(self.free)

    @property
    def log_likelihood(self) -> Variable:
        """Return the sum of the observed terms and the Potentials."""
        return _total({**self.observed, **self.potentials})

    @property
    def log_potentials(self) -> Variable:
        """Return the sum of the Potentials."""
        return _total(self.potentials)


def _total(terms: Mapping[str, Variable]) -> Variable:
    total = pt.constant(0.0, dtype="float64")
    for term in terms.values():
        total = total + pt.sum(term)
    return total


def free_variables(model: pm.Model) -> list[Variable]:
    """Return the free variables, each once."""
    return list(dict.fromkeys(model.free_RVs))


def observed_variables(model: pm.Model) -> list[Variable]:
    """Return the observed variables with a density, each once; PyMC 5 may list Deterministics among them."""
    left_out = [*unnormalized_variables(model), *state_space_variables(model)]
    return [rv for rv in dict.fromkeys(model.observed_RVs) if rv in model.rvs_to_values and rv not in left_out]


def unnormalized_variables(model: pm.Model) -> list[Variable]:
    """Return the observed variables that are ``pb.Unnormalized``."""
    return _marked(model, "unnormalized")


def state_space_variables(model: pm.Model) -> list[Variable]:
    """Return the observed variables that are ``pb.StateSpace``."""
    return _marked(model, "state_space")


def _marked(model: pm.Model, kind: str) -> list[Variable]:
    """Return the observed variables whose function of draws is a class of this package."""
    return [
        rv
        for rv in dict.fromkeys(model.observed_RVs)
        if rv.owner is not None and hasattr(getattr(type(rv.owner.op), "_random_fn", None), kind)
    ]


def check_model(model: pm.Model, intractable: bool = False) -> None:
    """Raise ModelError without a differentiable log density of the full data; optionally ignore intractable variables."""
    if not intractable:
        for rv in unnormalized_variables(model):
            raise ModelError(refusal(rv.name))
        for rv in state_space_variables(model):
            raise ModelError(state_space_refusal(rv.name))
    free = free_variables(model)
    if not free:
        raise ModelError("the model has no free variables, so there is nothing to infer")
    for rv in free:
        if model.rvs_to_values[rv].type.dtype in ("float16", "float32"):
            raise ModelError(
                f"variable '{rv.name}' is of single precision, which is not enough for Hessians and log evidences: make the "
                "model under pytensor.config.floatX = 'float64'"
            )
    for name in {variable.name for variable in model.unobserved_RVs} & RESERVED:
        raise ModelError(f"variable '{name}' has the name of a dimension of every result: give it another")
    for rv in free:
        if not model.rvs_to_values[rv].type.dtype.startswith("float"):
            if rv.name.endswith("_unobserved"):
                raise ModelError(
                    f"observed variable '{rv.name.removesuffix('_unobserved')}' is discrete and has missing values: leave "
                    "out the rows where it is missing"
                )
            raise ModelError(
                f"free variable '{rv.name}' is discrete: sum it out of the model (pm.Mixture, or a pm.Potential); only "
                "continuous variables have an unconstrained space"
            )
    for rv in [*free, *observed_variables(model), *model.potentials]:
        op = getattr(rv.owner, "op", None)
        if isinstance(op, MinibatchRandomVariable):
            raise ModelError(f"variable '{rv.name}' has total_size: minibatches are refused, pass the full data")
        if isinstance(op, SimulatorRV):
            raise ModelError(f"variable '{rv.name}' is a pm.Simulator, which has no log density: use sample_abc")
        above = ancestors([rv, model.rvs_to_values.get(rv, rv)])
        if any(v.owner is not None and isinstance(v.owner.op, MinibatchOp) for v in above):
            raise ModelError(f"variable '{rv.name}' depends on pm.Minibatch: pass the full data")


def flat_names(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return the names of the coordinates of ravelled arrays."""
    return tuple(
        name + (f"[{','.join(map(str, index))}]" if shape else "")
        for name, shape in shapes.items()
        for index in np.ndindex(*shape)
    )


def data_values(model: pm.Model) -> dict[SharedVariable, np.ndarray]:
    """Return current values of the shared variables that the model depends on: its data and mutable lengths."""
    roots = [*model.basic_RVs, *model.potentials, *model.deterministics, *model.rvs_to_values.values()]
    return {
        v: np.array(v.get_value(borrow=True))
        for v in dict.fromkeys([*model.data_vars, *ancestors(roots)])
        if isinstance(v, SharedVariable) and not isinstance(v.type, RandomType)
    }


def fixed_values(model: pm.Model, data: DataValues) -> dict[Variable, Variable]:
    """Return the values that replace the shared and the observed variables."""
    constants = {v: pt.constant(value, dtype=v.dtype) for v, value in data.items()}
    observed = observed_variables(model)
    values = _clone([model.rvs_to_values[rv] for rv in observed], constants)
    return {**constants, **dict(zip(observed, values, strict=True))}


def shapes_of(model: pm.Model, data: DataValues) -> ModelShapes:
    """Return shapes of the free variables given the data."""
    free = free_variables(model)
    shapes = [forward(model, rv, rv).shape for rv in free] + [rv.shape for rv in free]
    found = [tuple(int(length) for length in shape) for shape in evaluate_graphs(shapes, fixed_values(model, data))]
    value_names = [model.rvs_to_values[rv].name for rv in free]
    return ModelShapes(
        dict(zip(value_names, found[: len(free)], strict=True)),
        dict(zip([rv.name for rv in free], found[len(free) :], strict=True)),
    )


def observed_values(model: pm.Model, data: DataValues) -> dict[str, np.ndarray]:
    """Return the values of the observed variables given the data."""
    observed = observed_variables(model)
    fixed = fixed_values(model, data)
    return dict(zip([rv.name for rv in observed], evaluate_graphs([fixed[rv] for rv in observed], {}), strict=True))


def evaluate_graphs(graphs: Sequence[Variable], replace: Mapping[Variable, Variable]) -> list[np.ndarray]:
    """Return the values of graphs that need no further inputs."""
    with no_c_compiler():
        function = pytensor.function([], _clone(graphs, replace), mode=PYTHON_MODE, on_unused_input="ignore")
        return [np.asarray(value) for value in function()]


def forward(model: pm.Model, rv: Variable, value: Variable) -> Variable:
    """Return ``value`` of the free variable ``rv`` on the unconstrained space."""
    transform = model.rvs_to_transforms[rv]
    return value if transform is None else transform.forward(value, *rv.owner.inputs)


def log_density_terms(model: pm.Model, variables: Sequence[Variable], jacobian: bool = True) -> list[Variable]:
    """Return elementwise terms of the log density of random variables and Potentials, like ``pm.Model.logp``.

    Here they have double precision. PyMC folds ``reciprocal(100)`` in float32; see :func:`in_double`.
    """
    recognised = recognise_normal_intervals(list(model.rvs_to_values))
    double = dict(zip(model.rvs_to_values, in_double(recognised, random=True), strict=True))
    random = [rv for rv in variables if rv in double]
    others = [variable for variable in variables if variable not in double]
    terms = transformed_conditional_logp(
        [double[rv] for rv in random],
        rvs_to_values={double[rv]: value for rv, value in model.rvs_to_values.items()},
        rvs_to_transforms={double[rv]: transform for rv, transform in model.rvs_to_transforms.items()},
        jacobian=jacobian,
    )
    found = dict(zip([*random, *others], [*terms, *model.replace_rvs_by_values(others)], strict=True))
    return in_double(recognise_normal_intervals([found[variable] for variable in variables]))


def build_graph(model: pm.Model, data: DataValues, shapes: ModelShapes, static: bool = True) -> ModelGraph:
    """Return graphs of one ravelled point."""
    free, observed, potentials = free_variables(model), observed_variables(model), list(model.potentials)
    term_rvs = [*free, *observed, *potentials]
    outputs = [*free, *model.deterministics]
    values = [model.rvs_to_values[rv] for rv in free]
    point, value_pieces = _cut(values, shapes.value.values(), "point")
    inputs, data_map = _data_inputs(data, static)
    fixed = {**dict(zip(values, value_pieces, strict=True)), **data_map}
    try:
        graphs = with_windows(model, term_rvs, log_density_terms(model, term_rvs))
        graphs += model.replace_rvs_by_values(outputs)
        graphs = replace_checks(_clone(graphs, fixed))
    except ModelError:
        raise
    except ValueError as error:
        raise _shapes_disagree(model, fixed, error) from error
    terms = dict(zip([rv.name for rv in term_rvs], graphs[: len(term_rvs)], strict=True))
    _refuse_random(terms)

    constrained_point, pieces = _cut(free, shapes.model.values(), "constrained_point")
    given = _clone([model.rvs_to_values[rv] for rv in observed], data_map)
    known = {**dict(zip(observed, given, strict=True)), **data_map, **dict(zip(free, pieces, strict=True))}
    inverse = _clone([forward(model, rv, rv) for rv in free], known)
    return ModelGraph(
        point=point,
        data=inputs,
        free={rv.name: terms[rv.name] for rv in free},
        observed={rv.name: terms[rv.name] for rv in observed},
        potentials={rv.name: terms[rv.name] for rv in potentials},
        constrained=dict(zip([rv.name for rv in outputs], graphs[len(term_rvs) :], strict=True)),
        constrained_point=constrained_point,
        unconstrained=pt.concatenate([pt.atleast_1d(value).ravel() for value in inverse]),
    )


def graph_of_free(
    model: pm.Model, data: DataValues, shapes: ModelShapes
) -> tuple[Variable, list[Variable], list[Variable]]:
    """Return a ravelled point, inputs for the data, and the terms of the free variables without Jacobians."""
    free = free_variables(model)
    values = [model.rvs_to_values[rv] for rv in free]
    point, pieces = _cut(values, shapes.value.values(), "point")
    inputs, data_map = _data_inputs(data, static=True)
    terms = log_density_terms(model, free, jacobian=False)
    fixed = {**dict(zip(values, pieces, strict=True)), **data_map}
    return point, inputs, replace_checks(_clone(terms, fixed))


def _shapes_disagree(model: pm.Model, replace: Mapping[Variable, Variable], error: ValueError) -> ModelError:
    """Return one line for a log density that cannot be built, with the variable's name."""
    reason = one_line(error)
    for rv in [*observed_variables(model), *free_variables(model), *model.potentials]:
        try:
            term = pm.logp(rv, model.rvs_to_values[rv]) if rv in model.rvs_to_values else rv
            _clone(model.replace_rvs_by_values([term]), replace)
        except ValueError:
            return ModelError(f"the shapes of '{rv.name}', its parameters and its data do not agree: {reason}")
    return ModelError(f"the shapes of the model's variables and data do not agree: {reason}")


def one_line(error: Exception) -> str:
    """Return the message of an error of PyTensor's, which may take pages, on one short line."""
    text = " ".join(str(error).partition("\nApply node that caused the error")[0].split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def factorises(outputs: Sequence[Variable]) -> bool:
    """Return whether a graph factorises matrices, solves with them or takes their determinants."""

    def any_node(nodes: Iterable[Apply]) -> bool:
        for node in nodes:
            op = _core(node)
            if type(op).__module__.startswith(LINEAR_ALGEBRA):
                return True
            if isinstance(op, HasInnerGraph) and any_node(op.fgraph.apply_nodes):
                return True
        return False

    return any_node(io_toposort([], list(outputs)))


def _core(node: Apply) -> Op:
    """Return the operation of a node for one matrix, if it maps over several."""
    return node.op.core_op if isinstance(node.op, Blockwise) else node.op


def multiplies(point: Variable, outputs: Sequence[Variable]) -> bool:
    """Return whether a graph contains a product of matrices that both depend on the point."""
    moving = {point}
    for node in io_toposort([], list(outputs)):
        depends = [v in moving for v in node.inputs]
        if any(depends):
            moving.update(node.outputs)
        if isinstance(_core(node), Dot | BatchedDot) and all(depends):
            return True
    return False


def _clone(graphs: Sequence[Variable], replace: Mapping[Variable, Variable]) -> list[Variable]:
    clones = clone_replace(list(graphs), replace=dict(replace), rebuild_strict=False)
    for variable in ancestors(clones):
        if variable.owner is not None and hasattr(variable.tag, "trace"):
            variable.tag.trace = []
    return clones


def named_tensor(name: str | None, dtype: str, shape: Sequence[int | None]) -> Variable:
    """Return a tensor of any name; ``pt.tensor`` raises for names that NumPy takes for a dtype (``1|g_sigma``)."""
    return TensorType(dtype, shape=tuple(shape))(name=name)


def _cut(variables: Sequence[Variable], shapes, name: str) -> tuple[Variable, list[Variable]]:
    """Return a vector, and pieces of it for ``variables`` of the given shapes."""
    shapes = list(shapes)
    sizes = [int(np.prod(shape, dtype=int)) for shape in shapes]
    ends = np.cumsum(sizes)
    vector = pt.tensor(name, dtype="float64", shape=(int(ends[-1]),))
    pieces = [
        vector[end - size : end].reshape(shape).astype(variable.dtype)
        for variable, shape, size, end in zip(variables, shapes, sizes, ends, strict=True)
    ]
    return vector, pieces


def _data_inputs(data: DataValues, static: bool) -> tuple[list[Variable], dict[Variable, Variable]]:
    """Return inputs for the shared variables and their replacements; integer scalars may become constants."""
    inputs, replace = [], {}
    for shared, value in data.items():
        stand_in = named_tensor(shared.name, shared.dtype, value.shape if static else shared.type.shape)
        inputs.append(stand_in)
        is_length = value.ndim == 0 and value.dtype.kind in "iu"
        replace[shared] = pt.constant(value, dtype=shared.dtype) if is_length and static else stand_in
    return inputs, replace


def _refuse_random(terms: Mapping[str, Variable]) -> None:
    for name, term in terms.items():
        if any(isinstance(v.type, RandomType) for v in ancestors([term])):
            raise ModelError(f"the log density of '{name}' contains random draws, so it is not a function of the point")

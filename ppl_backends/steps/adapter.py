"""The only adapter between our algorithms and PyMC's step methods, for both versions of PyMC.

PyMC 5 passes its random generator to a chain by ``set_rng``, PyMC 6 by ``setup_chain(rng, tune, draws)``. Both start a
new chain: everything that the algorithm adapted or stored with its point belongs to the state and is created again.
Workers are forked by default and share the compiled functions and the data with their parent; nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import new_class
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.step_methods.compound import BlockedStep
from pymc.util import get_random_generator, get_value_vars_from_user_vars

from ppl_backends.errors import CompilationError, ModelError
from ppl_backends.kernels.algorithm import Algorithm
from ppl_backends.targets.conditional import ConditionalTarget
from ppl_backends.targets.protocol import Array, BaseTarget
from ppl_backends.targets.pymc import PyMCTarget
from ppl_backends.targets.pymc.graph import free_variables
from ppl_backends.targets.pymc.kept import kept_target

Point = Mapping[str, NDArray]


def pymc_step(
    name: str,
    make_target: Callable[[pm.Model], BaseTarget],
    bind: Callable[[BaseTarget], Algorithm],
    vars: Any,
    model: pm.Model,
) -> PyMCStep:
    """Return a PyMC step method that runs the algorithm of ``bind`` on some variables of a model, by default all.

    PyMC prints ``name`` as the name of the step.
    """
    value_names = [model.rvs_to_values[rv].name for rv in free_variables(model)]
    chosen = _value_variables(vars, model)
    target = make_target(model)
    start = {name: np.asarray(value) for name, value in model.initial_point(random_seed=0).items()}
    layout = {name: start[name].shape for name in value_names}
    x = _ravel(start, layout)
    block: BaseTarget = target
    if len(chosen) < len(value_names):
        names = {variable.name for variable in chosen}
        ends = np.cumsum([0, *(int(np.prod(shape, dtype=int)) for shape in layout.values())])
        pieces = [np.arange(a, b) for name, a, b in zip(layout, ends, ends[1:], strict=False) if name in names]
        block = ConditionalTarget(target, np.concatenate(pieces), x)
    return step_class(name)(bind(block), block, chosen, layout, x)


def forkable_target(
    model: pm.Model, prior_alone: bool = False, kind: Callable[..., BaseTarget] = PyMCTarget
) -> BaseTarget:
    """Return a PyMC model compiled by Numba, or by C if Numba lacks an operation: JAX does not run in forked workers.

    ``prior_alone`` is for steps that never evaluate all data at once.
    """
    return kept_target(model, _compiled, kind=kind, prior_alone=prior_alone)


def _compiled(model: pm.Model, kind: Callable[..., Any], prior_alone: bool) -> Any:
    target = kept_target(model, kind, backend="numba", cores=1)  # steps with either choice of prior_alone share it
    try:
        (target.evaluate_prior if prior_alone else target.log_density)(np.zeros((1, target.dim)))
    except CompilationError:
        target = kept_target(model, kind, backend="c", cores=1)
    return target


class PyMCStep(BlockedStep):
    """An :class:`~ppl_backends.kernels.algorithm.Algorithm` as a PyMC step method.

    A chain at the model's ``default`` point starts at a draw of the approximation instead; a conditional ``target``
    gets the other variables' values before each step; ``layout`` maps value variables to shapes, in the target's
    order.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> PyMCStep:
        """Construct without PyMC's handling: :func:`pymc_step` has already resolved variables and model."""
        return object.__new__(cls)

    def __init__(
        self,
        algorithm: Algorithm,
        target: BaseTarget,
        vars: list,
        layout: Mapping[str, tuple[int, ...]],
        default: Array,
    ) -> None:
        self.algorithm, self.target, self.vars = algorithm, target, vars
        self.name = algorithm.name
        self.stats_dtypes = [dict(algorithm.stats)]
        self.stats_dtypes_shapes: dict[str, Any] = {name: (kind, []) for name, kind in algorithm.stats.items()}
        self.tune = True
        self.rng = np.random.default_rng()
        self._layout = dict(layout)
        self._default = default
        mine = {variable.name for variable in vars}
        ends = np.cumsum([0, *(int(np.prod(shape, dtype=int)) for shape in layout.values())])
        self._pieces = []
        begin = 0
        for (name, shape), a, b in zip(self._layout.items(), ends, ends[1:], strict=False):
            if name in mine:
                self._pieces.append((name, shape, begin, begin + int(b - a)))
                begin += int(b - a)
        self._dtypes = {variable.name: variable.type.dtype for variable in vars}
        self._state: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the name of the class and the attributes; the class itself is created again."""
        return _blank_step, (type(self).__name__,), self.__dict__

    def set_rng(self, rng: Any) -> None:
        """Start a chain (PyMC 5)."""
        self.rng = get_random_generator(rng, copy=False)
        self._state, self.tune = None, True  # inside a compound step PyMC 5 leaves `tune` as the last chain had it

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Start a chain (PyMC 6)."""
        self.set_rng(rng)

    def reset_tuning(self) -> None:
        """Reset the chain's state, which holds everything that was adapted."""
        self._state = None

    def step(self, point: Point) -> tuple[dict[str, NDArray], list[dict[str, Any]]]:
        """Make one step of the algorithm from ``point``, the values of all variables."""
        state = self._ready(point)
        self._state, found = self.algorithm.step(state, self.rng, self.tune)
        x = self._state.x.reshape(-1)
        stats = {name: np.asarray(value).item() for name, value in found.items()}
        moved = dict(point)
        for name, shape, begin, end in self._pieces:
            moved[name] = x[begin:end].reshape(shape).astype(self._dtypes[name])
        return moved, [stats]

    def _ready(self, point: Point) -> Any:
        """Return the state at ``point``."""
        moved = len(self.target.others) > 0 and self.target.set_others(_ravel(point, self._layout))
        state = self._state
        if state is not None and all(
            np.array_equal(point[name].ravel(), state.x.reshape(-1)[begin:end]) for name, _, begin, end in self._pieces
        ):
            return self.algorithm.refresh(state, self.rng) if moved else state
        x = np.concatenate([np.ravel(point[name]) for name, _, _, _ in self._pieces]).astype(np.float64)
        if state is None and np.array_equal(x, self._default[self.target.free]):
            drawn = self.algorithm.initial_point(self.rng)
            x = x if drawn is None else drawn
        return self.algorithm.start(x, self.rng)


@cache
def step_class(name: str) -> type[PyMCStep]:
    """Return the subclass of :class:`PyMCStep` of that name; PyMC shows the names of classes."""
    named: type[PyMCStep] = new_class(name, (PyMCStep,), exec_body=lambda body: body.update(__module__=__name__))
    return named


def _blank_step(name: str) -> PyMCStep:
    """Return a step without attributes."""
    return object.__new__(PyMCStep if name == PyMCStep.__name__ else step_class(name))


def _value_variables(vars: Any, model: pm.Model) -> list:
    """Return the value variables for the given variables or names."""
    if vars is None:
        return [model.rvs_to_values[rv] for rv in free_variables(model)]
    given = list(vars) if isinstance(vars, Sequence) and not isinstance(vars, str) else [vars]
    if any(isinstance(variable, pm.Model) for variable in given):
        raise ModelError("vars holds a model: pass it as model=, or make the step inside its context")
    free = {rv.name: rv for rv in model.free_RVs}
    known = set(free.values()) | {model.rvs_to_values[rv] for rv in free.values()}
    wrong = [v for v in given if not (v in free if isinstance(v, str) else v in known)]
    if wrong:
        named = getattr(wrong[0], "name", None) or wrong[0]
        raise ModelError(f"vars: {named!r} is not a free variable of the model; these are {', '.join(free) or 'none'}")
    named = [free.get(variable, variable) if isinstance(variable, str) else variable for variable in given]
    chosen = list(dict.fromkeys(get_value_vars_from_user_vars(named, model)))
    if not chosen:
        raise ModelError("vars is empty: name the variables that the step method moves")
    for variable in chosen:
        if not variable.type.dtype.startswith("float"):
            raise ModelError(f"variable '{variable.name}' is discrete: this step method moves continuous ones")
    return chosen


def _ravel(point: Point, layout: Mapping[str, tuple[int, ...]]) -> Array:
    return np.concatenate([np.ravel(point[name]) for name in layout]).astype(np.float64)

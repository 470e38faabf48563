"""A problem of approximate Bayesian computation: a prior, simulators, and distances of their data from the observed.

The model is a ``pm.Model`` with ``pm.Simulator`` variables, or the prior of any model together with ``simulate=`` and
``observed=``. The weights include other likelihoods of the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.simulators.abc.calls import SAME, Simulator, ignores_generator, measured, repeats, with_valid_batches
from ppl_backends.simulators.abc.discrepancy import SUMMARIES, Discrepancy, by_rows
from ppl_backends.simulators.abc.kernels import log_kernel, log_kernel_volume
from ppl_backends.targets.convert import as_target, pymc_model
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation
from ppl_backends.targets.wrapped import WrappedTarget

__all__ = ["AbcProblem", "Experiment", "make_problem"]

FLAT = 0.01  # difference of the log kernel between the nearest and the farthest data set that has no effect

Parameters = Callable[[Array, np.random.Generator], dict[str, NDArray]]


@dataclass(frozen=True)
class Experiment:
    """The simulators with their discrepancies, the input of a worker.

    Attributes
    ----------
    simulators : tuple of Simulator
    discrepancies : tuple of Discrepancy
    joint : {"euclidean", "manhattan", "energy"}
        How distances of several simulators are combined: the root of the sum of squares, the sum, or −log of PyMC's kernels.
    unit : float
        Factor of an energy, so that ε has the unit that the user gave.
    """

    simulators: tuple[Simulator, ...]
    discrepancies: tuple[Discrepancy, ...]
    joint: str
    unit: float = 1.0

    @property
    def size(self) -> int:
        """Return the length of one data set of all simulators."""
        return sum(int(np.prod(simulator.shape, dtype=int)) for simulator in self.simulators)

    @property
    def at_once(self) -> bool:
        """Return whether all simulators draw many data sets in one call."""
        return all(simulator.at_once for simulator in self.simulators)

    def run(self, values: list[dict[str, NDArray]], rng: np.random.Generator) -> tuple[Array, Array, list[NDArray]]:
        """Return distances ``(n,)``, summaries ``(n, k)`` and the data sets, for rows of parameters."""
        data = [simulator(rows, rng) for simulator, rows in zip(self.simulators, values, strict=True)]
        with np.errstate(invalid="ignore", over="ignore"):
            found = [
                measured(part.measure, each, simulator.name, rows)
                for part, each, simulator, rows in zip(self.discrepancies, data, self.simulators, values, strict=True)
            ]
            parts, apart = [summaries for summaries, _ in found], [distances for _, distances in found]
            if self.joint == "energy":
                pairs = zip(self.discrepancies, apart, strict=True)  # each −log of PyMC's kernel at its ε
                total = self.unit * sum(0.5 * d**2 if part.norm == 2 else d for part, d in pairs)
            elif len(apart) == 1:
                total = apart[0]
            else:
                total = sum(apart) if self.joint == "manhattan" else np.sqrt(sum(d**2 for d in apart))
        return np.asarray(total), np.concatenate(parts, axis=1), data


class AbcTarget(WrappedTarget):
    """The prior part of a problem, with the simulators' data among the observed data."""

    observed_data: Any = None

    def __init__(self, target: BaseTarget, observed: Mapping[str, NDArray]) -> None:
        super().__init__(target)
        self.observed_data = {**target.observed_data, **observed}

    has_split: Any = property(lambda self: self.target.is_prior or self.target.has_split)

    def evaluate(self, x: Array, gradient: bool = False) -> Any:
        """Return log prior and log likelihood separately; a program without a likelihood is all prior."""
        found = self.target.evaluate(x, gradient)
        if not self.target.is_prior or found.log_likelihood is not None:
            return found
        slope = None if found.gradient is None else np.zeros_like(found.gradient)
        return Evaluation(found.log_density, np.zeros(len(x)), found.gradient, slope)

    def evaluate_prior(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return the log prior and its gradient; for a program without a likelihood, those of the whole program."""
        if not self.target.is_prior:
            return self.target.evaluate_prior(x, gradient)
        found = self.target.evaluate(x, gradient)
        return found.log_density, found.gradient


class Settings(NamedTuple):
    """Requested settings of a problem: tolerance and kernel.

    Attributes
    ----------
    epsilon : float or None
        The last tolerance; None if acceptance floor, budget or time determine it.
    kernel : str
    """

    epsilon: float | None
    kernel: str


class AbcProblem:
    """A model in the form that the ABC samplers use.

    Parameters
    ----------
    target : BaseTarget
        Prior and ordinary likelihoods.
    experiment : Experiment
    parameters : list of callable
        For each simulator, a function of points that returns its parameters.
    settings : Settings

    Attributes
    ----------
    has_likelihood : bool
        Whether ordinary observations contribute to the weights.
    nearest, farthest : float
        Smallest and largest finite distance of all simulated data sets.
    without_noise : list of str
        Names of simulators whose data do not depend on the generator they are given.
    n_finite, n_not_finite : int
        Number of data sets at a finite distance, and of others.
    fitted_prior : (list of StudentT, shares) or None
        Student t's fitted to a prior that is only a density.
    log_prior_integral, log_prior_integral_se : float
        Integral of the log density of the prior as written, and its error; 0 if it is known, or not to differ from one.
    """

    def __init__(
        self,
        target: BaseTarget,
        experiment: Experiment,
        parameters: list[Parameters],
        settings: Settings,
        observed: Any,
    ) -> None:
        self.target = AbcTarget(target, observed)
        self.experiment, self._parameters = experiment, parameters
        self.epsilon, self.kernel = settings
        self.reasons: dict[str, str] = {}
        self.without_noise: list[str] = []
        self.nearest, self.farthest, self.n_finite, self.n_not_finite = np.inf, -np.inf, 0, 0
        self.has_likelihood = bool(target.observed_data) or target.has_potentials
        self.fitted_prior: tuple[list[Any], Array] | None = None
        self.log_prior_integral, self.log_prior_integral_se = 0.0, 0.0

    @property
    def dim(self) -> int:
        """Return the number of coordinates."""
        return self.target.dim

    @property
    def observed_summaries(self) -> Array:
        """Return the observed summaries of all simulators ``(k,)``."""
        return np.concatenate([part.observed_summaries for part in self.experiment.discrepancies])

    def values(self, x: Array, rng: np.random.Generator) -> list[dict[str, NDArray]]:
        """Return the parameters of each simulator at points ``(n, dim)``."""
        return [function(x, rng) for function in self._parameters]

    def log_prior(self, x: Array) -> Array:
        """Return the normalised log density of the prior ``(n,)``."""
        stated = self.target.log_prior_normalizer
        if self.fitted_prior is not None or stated is None or not np.isfinite(stated):
            return self.target.evaluate_prior(x)[0] - self.log_prior_integral
        return self.target.evaluate_prior(x)[0] - float(stated)

    def log_likelihood(self, x: Array) -> Array:
        """Return the log weight ``(n,)`` of ordinary observed variables and Potentials."""
        if not self.has_likelihood:
            return np.zeros(len(x))
        value = self.target.evaluate(x).log_likelihood
        if value is None:
            raise ModelError(
                f"{self.target.label}: ABC needs prior and likelihood separately, and this target has no split"
            )
        return value

    def log_kernel_volume(self, epsilon: float) -> float | None:
        """Return the log factor that turns E[K] into a density of the summaries at the observed ones; None for functions."""
        norm, *others = {part.norm for part in self.experiment.discrepancies}
        if self.experiment.joint == "energy" or norm is None or others or epsilon <= 0:
            return None
        scale = sum(float(np.log(part.scale).sum()) for part in self.experiment.discrepancies)
        k = len(self.observed_summaries)
        return scale + log_kernel_volume(self.kernel, epsilon, k, norm)

    def look_at(self, distances: Array) -> None:
        """Record the range of the finite distances of simulated data sets."""
        finite = distances[np.isfinite(distances)]
        self.n_not_finite += distances.size - len(finite)
        if len(finite):
            self.nearest, self.farthest = min(self.nearest, finite.min()), max(self.farthest, finite.max())
            self.n_finite += len(finite)

    def fault(self, epsilon: float) -> str:
        """Return that data sets have no noise, or no effect on the posterior at the last tolerance, or ""."""
        if self.without_noise:
            return (
                f"simulator '{self.without_noise[0]}' gives the same data in {SAME} calls with different generators, so it "
                "has no noise or a fixed seed of its own, and the posterior is that of this one noise: draw all random "
                "numbers from the rng it is given, or add the noise of the data"
            )
        if self.n_finite < 2:
            return ""
        if self.nearest == self.farthest:
            return (
                f"all {self.n_finite} data sets at a finite distance have the same distance ({self.nearest:.3g}) from the "
                "observed data, so they say nothing about the parameters: check the simulator, the summaries and the distance"
            )
        near, far = log_kernel(self.kernel, np.array([self.nearest, self.farthest]), epsilon)
        if near - far > FLAT:
            return ""
        return (
            f"all {self.n_finite} data sets at a finite distance (at most {self.farthest:.3g}) have the same weight at "
            f"ε = {epsilon:.3g}, so they say nothing about the parameters: lower epsilon"
        )

    def try_batches(self, x: Array, rng: np.random.Generator) -> None:
        """Let simulators draw many data sets at once if tests at two points confirm their batched form.

        Warns of a simulator whose data do not depend on the generator it is given alone.
        """
        self.has_likelihood = self.has_likelihood or bool(np.any(self.target.evaluate(x).log_likelihood))
        chosen = []
        for simulator, discrepancy, values in zip(
            self.experiment.simulators, self.experiment.discrepancies, self.values(x[:2], rng), strict=True
        ):
            simulator, reason = with_valid_batches(simulator, values, discrepancy, rng)
            if reason:
                self.reasons[simulator.name] = reason
            if not repeats(simulator, values, rng):
                warnings.warn(
                    f"sample_abc: simulator '{simulator.name}' gave different data in two calls with the same seed, so "
                    "random_seed does not determine the result: draw all random numbers from the rng it is given",
                    SamplerWarning,
                    stacklevel=user_level(),
                )
            elif ignores_generator(simulator, values, rng):
                self.without_noise.append(simulator.name)
            chosen.append(simulator)
        self.experiment = replace(self.experiment, simulators=tuple(chosen))


def make_problem(
    model: Any,
    *,
    data: Any = None,
    epsilon: Any = "auto",
    kernel: str | None = None,
    simulate: Any = None,
    observed: Any = None,
    summary: Any = None,
    distance: Any = None,
    cores: int | None = None,
) -> AbcProblem:
    """Return the problem of a model with Simulators, or of a prior with ``simulate`` and ``observed``.

    Raises
    ------
    ModelError
        If an argument is missing or inconsistent with the model.
    """
    if simulate is None:
        return _of_simulators(model, data, epsilon, kernel, {"observed": observed, "summary": summary}, distance, cores)
    if observed is None:
        raise ModelError("simulate= needs observed=, the data that simulated data are compared with")
    if isinstance(epsilon, Mapping):
        raise ModelError("epsilon= by name is for several pm.Simulator variables; give a number")
    target = as_target(model, data, cores=cores)
    data_set = np.asarray(observed)
    if data_set.dtype.kind not in "biuf":
        raise ModelError(f"observed= is of {data_set.dtype}: expected an array of numbers")
    examples = np.stack([data_set, data_set + 1]).astype(np.float64)
    reduce = (
        SUMMARIES[summary] if isinstance(summary, str) else None if summary is None else by_rows(summary, (), examples)
    )
    measure = "euclidean" if distance is None else distance
    if callable(measure):
        summaries = Discrepancy(data_set, reduce, "euclidean")
        first = summaries._observed[0]
        measure = by_rows(measure, (first,), np.stack([first, first + 1, first - 2]))
    if isinstance(simulate, str):
        discrepancy = Discrepancy(data_set, reduce, measure)
        return _of_generated(target, simulate, data_set, discrepancy, _settings(epsilon, kernel))
    name = next((f"y{i}" for i in ["", *range(2, 99)] if f"y{i}" not in target.observed_data), "y")
    discrepancy = Discrepancy(data_set, reduce, measure)
    simulator = Simulator(name, data_set.shape, _Batched(simulate), _Single(simulate, data_set.shape))
    experiment = Experiment((simulator,), (discrepancy,), "euclidean")
    return AbcProblem(target, experiment, [target.constrain], _settings(epsilon, kernel), {name: data_set})


def _settings(epsilon: Any, kernel: str | None) -> Settings:
    return Settings(None if isinstance(epsilon, str) else epsilon, kernel or "uniform")


def _of_generated(
    target: BaseTarget, name: str, data_set: NDArray, discrepancy: Discrepancy, settings: Settings
) -> AbcProblem:
    """Return the problem of a Stan program with a generated quantity that simulates."""
    rng = np.random.default_rng(0)
    found = target.constrain(target.initial_points(1, rng), rng)
    if name not in found:
        raise ModelError(f"simulate={name!r}: {target.label} has no such variable; it has {', '.join(found)}")
    shape = found[name].shape[1:]
    if shape != data_set.shape:
        raise ModelError(f"observed= has shape {data_set.shape}; {name!r} of {target.label} has shape {shape}")
    simulator = Simulator(name, shape, _Generated(target, name), _GeneratedOne(target, name))
    experiment = Experiment((simulator,), (discrepancy,), "euclidean")
    return AbcProblem(target, experiment, [lambda x, rng: {"unconstrained point": x}], settings, {name: data_set})


@dataclass(frozen=True)
class _Generated:
    """A variable of a target that is drawn again at every evaluation; NaN if the program cannot draw it."""

    target: BaseTarget
    name: str

    def __call__(self, values: Any, rng: np.random.Generator) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SamplerWarning)
            return self.target.constrain(values["unconstrained point"], rng)[self.name]


@dataclass(frozen=True)
class _GeneratedOne(_Generated):
    """The same at one point."""

    def __call__(self, values: Any, rng: np.random.Generator) -> Any:
        return super().__call__({name: value[None] for name, value in values.items()}, rng)[0]


@dataclass(frozen=True)
class _Batched:
    """A user's function of constrained parameters and a generator, on a batch."""

    function: Callable[..., Any]

    def __call__(self, values: Any, rng: np.random.Generator) -> Any:
        return self.function(dict(values), rng)


@dataclass(frozen=True)
class _Single:
    """The same on one row: as a batch of one if that gives a data set, else without the axis."""

    function: Callable[..., Any]
    shape: tuple[int, ...]

    def __call__(self, values: Any, rng: np.random.Generator) -> Any:
        state, failure = rng.bit_generator.state, None
        try:
            data = np.asarray(self.function({name: np.asarray(value)[None] for name, value in values.items()}, rng))
        except Exception as error:  # a function of single values
            data, failure = None, error
        if data is not None and data.shape == (1, *self.shape):
            return data[0]
        rng.bit_generator.state = state
        try:
            return self.function(dict(values), rng)
        except Exception:
            if failure is not None:
                raise failure from None  # a function of many values fails without their axis
            return data  # of a wrong shape, which is more informative than this error


def _of_simulators(
    model: Any, data: Any, epsilon: Any, kernel: str | None, given: dict[str, Any], distance: Any, cores: int | None
) -> AbcProblem:
    """Return the problem of a model's pm.Simulator variables."""
    source = pymc_model(model)
    if source is not None:
        from ppl_backends.targets.pymc.simulator import simulator_target, simulators_of
    if source is None or not simulators_of(source):
        raise ModelError("the model has no pm.Simulator; give simulate= and observed=")
    for name, value in {**given, "distance": distance}.items():
        if value is not None:
            raise ModelError(f"{name}= is an option for simulate=; a pm.Simulator has its own")
    target, variables, functions = simulator_target(source, data, cores)
    kinds = {variable.kind for variable in variables}
    energy = len(kinds) > 1 or "function" in kinds
    joint = "energy" if energy else "euclidean" if kinds == {"gaussian"} else "manhattan"
    if energy and kernel is not None:
        raise ModelError("kernel= needs a distance; the Simulators' functions of ε are kernels themselves")
    own, last, unit = _tolerances(variables, epsilon, energy)
    discrepancies = tuple(_discrepancy(variable, scale) for variable, scale in zip(variables, own, strict=True))
    simulators = tuple(Simulator(v.name, v.observed.shape, v.batched, v.single) for v in variables)
    natural = "gaussian" if joint == "euclidean" else "laplace"
    return AbcProblem(
        target,
        Experiment(simulators, discrepancies, joint, unit),
        functions,
        Settings(last, kernel or natural),
        {variable.name: variable.observed for variable in variables},
    )


def _tolerances(variables: Any, epsilon: Any, energy: bool) -> tuple[list[Any], float | None, float]:
    """Return the scale of each Simulator's summaries, the last tolerance of the joint distance, and an energy's unit.

    One Simulator with a number for ε keeps the unit of its summaries; otherwise distances are in units of the
    Simulators' own ε.
    """
    names = [variable.name for variable in variables]
    if isinstance(epsilon, Mapping):
        if set(epsilon) != set(names):
            raise ModelError(f"epsilon= names {sorted(epsilon)}; the Simulators are {sorted(names)}")
        own, ends = [epsilon[name] for name in names], True
    elif isinstance(epsilon, str):
        own, ends = [variable.epsilon for variable in variables], any(variable.epsilon_given for variable in variables)
    else:
        own, ends = [epsilon] * len(names), True
    if any(np.any(np.asarray(each) <= 0) for each in own):
        raise ModelError(f"epsilon={epsilon!r}: expected positive numbers")
    if all(np.ndim(each) == 0 and each == own[0] for each in own):
        unit = float(own[0])
        return own if energy else [1.0] * len(own), unit if ends else None, unit
    return own, 1.0 if ends else None, 1.0


def _discrepancy(variable: Any, scale: Any) -> Discrepancy:
    """Return the discrepancy of a Simulator; PyMC's functions take one data set at a time."""
    summary = SUMMARIES[variable.summary] if isinstance(variable.summary, str) else _Rows(variable.summary)
    if variable.kind != "function":
        return Discrepancy(
            variable.observed, summary, "euclidean" if variable.kind == "gaussian" else "manhattan", scale
        )
    return Discrepancy(variable.observed, summary, _Energy(variable.log_kernel, scale), signed=True)


@dataclass(frozen=True)
class _Rows:
    """A function of one data set, called for one after the other."""

    function: Callable[..., Any]

    def __call__(self, data: NDArray) -> Array:
        return np.stack([np.asarray(self.function(row), dtype=np.float64) for row in data])


@dataclass(frozen=True)
class _Energy:
    """Minus the log kernel of a Simulator's ``distance=`` at its ε."""

    log_kernel: Callable[..., Any]
    epsilon: Any

    def __call__(self, observed: Array, simulated: Array) -> Array:
        return np.array([-np.sum(self.log_kernel(self.epsilon, observed, row)) for row in simulated])

"""A Stan program with data as a target: batched log density and gradient in process, through a compiled library."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError, PriorSamplingError, SamplerWarning, user_level
from ppl_backends.numerics.differences import with_short_steps
from ppl_backends.targets.digest import digest
from ppl_backends.targets.factors import Factors
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, Index, JointEvaluation, PriorTerms, as_points
from ppl_backends.targets.stan.build import program_key
from ppl_backends.targets.stan.compiled import LOG_LIK, CompiledProgram
from ppl_backends.targets.stan.data import missing_values, read_data, to_arrays
from ppl_backends.targets.stan.directions import unit_vectors, with_lengths
from ppl_backends.targets.stan.factors import StanFactors, find_factors
from ppl_backends.targets.stan.few_digits import UnitSums, unit_sums, with_unit_sums
from ppl_backends.targets.stan.groups import Groups
from ppl_backends.targets.stan.library import BatchedModel, CompiledModel
from ppl_backends.targets.stan.observations import PointwiseObservations, RowObservations
from ppl_backends.targets.stan.program import StanProgram, looks_like_code
from ppl_backends.targets.stan.split import split_program
from ppl_backends.targets.stan.split.propriety import Propriety
from ppl_backends.targets.stan.split.routes import Split
from ppl_backends.targets.stan.split.terms import prior_terms
from ppl_backends.targets.stan.variables import collect, flatten
from ppl_backends.targets.starts import uniform_starts

STEP = float(np.finfo(float).eps ** 0.2)  # of the library's differences of gradients, relative to max(1, |x|)
NO_GROUPS = Groups()


def stan_target(
    model: Any,
    data: Any = None,
    *,
    cores: int | None = None,
    rows: Mapping[str, Sequence[str]] | None = None,
    likelihood_data: Sequence[str] | None = None,
    prior: str | None = "auto",
    predictor: str | None = None,
    include_paths: Sequence[str] = (),
    **groups: Any,
) -> StanTarget:
    """Return a Stan program with data as a target; the program is compiled, or its library taken from the cache.

    Parameters
    ----------
    model : path, str, cmdstanpy.CmdStanModel or StanProgram
        A ``.stan`` file, program text, a CmdStan model, or a library with BridgeStan's C interface (``.so``).
    data : mapping, path or str, optional
        Data as a dict, a path to JSON, or JSON text.
    cores : int, optional
        Threads over which a batch of points is distributed; all available by default.
    rows : mapping of str to sequence of str, optional
        The integer that holds the number of observations, and the data variables with one row per observation, such as
        ``{"N": ["x", "y"]}``. The target can then be evaluated on subsets of its observations.
    likelihood_data : sequence of str, optional
        The observed data variables, if the program alone does not separate prior and likelihood.
    prior : {"auto"} or None
        None skips the search for the prior part of the density.
    predictor : str, optional
        The transformed parameter or generated quantity that is the linear predictor of the observations, for EP;
        guessed if only one qualifies.
    include_paths : sequence of str
        Folders of ``#include`` files, in addition to the program's folder.
    **groups
        ``coords``, ``dims``, ``posterior_predictive``, ``predictions``, ``log_likelihood``, ``observed_data`` and
        ``constant_data``, as in ``arviz.from_cmdstanpy``, and ``quantities``: see
        :class:`~ppl_backends.targets.stan.groups.Groups`.

    Returns
    -------
    StanTarget

    Raises
    ------
    ModelError
        If the model is none of these, or Stan refuses the data.
    CompilationError
        With the message of stanc or the compiler, or what to install.
    """
    if prior not in ("auto", None):
        raise ModelError(f"prior={prior!r}: expected 'auto' or None")
    compiled = CompiledProgram(_read_model(model, tuple(include_paths)), read_data(data), cores, rows, likelihood_data)
    given = {name: value for name, value in groups.items() if value is not None}
    return StanTarget(compiled, Groups(**given), prior == "auto", predictor)


def _read_model(model: Any, include_paths: tuple[str, ...]) -> StanProgram | Path:
    """Return a program, or the path of a library."""
    if isinstance(model, StanProgram):
        return model
    if type(model).__module__.split(".")[0] == "cmdstanpy":
        file = getattr(model, "stan_file", None)
        if file is None:
            raise ModelError(f"CmdStanModel {model.name!r} has an executable only; make it from its .stan file")
        given = (getattr(model, "stanc_options", None) or {}).get("include-paths", ())
        return StanProgram.from_file(file, include_paths + tuple([given] if isinstance(given, str) else given))
    if isinstance(model, str) and looks_like_code(model):
        return StanProgram("model", model, None, include_paths)
    if not isinstance(model, str | os.PathLike):
        raise ModelError(f"model is a {type(model).__name__}: expected a .stan path, program text or a CmdStanModel")
    path = Path(model).expanduser()
    if path.suffix in (".so", ".dylib", ".dll"):
        if not path.is_file():
            raise ModelError(f"{path}: no such library")
        return path.resolve()
    return StanProgram.from_file(path, include_paths)


_NOT_FINITE = "the log density is not finite"  # in the message of a point that computes NaN or +inf


class StanTarget(BaseTarget):
    """The log density of a Stan program, including constants and Jacobians; see :func:`stan_target`.

    A point at which the program throws (``reject``, a domain error, a failed ODE solver), or where density or gradient
    is not finite, has log density -inf; :meth:`explain` gives the reason.
    """

    def __init__(
        self,
        compiled: CompiledProgram,
        groups: Groups = NO_GROUPS,
        find_prior: bool = True,
        predictor: str | None = None,
    ) -> None:
        if not compiled.dim:
            raise ModelError(f"{compiled.label}: the program has no parameters, so there is nothing to infer")
        self.compiled, self._find_prior, self._predictor = compiled, find_prior, predictor
        self.label, self.data, self.dim = compiled.label, compiled.data, compiled.dim
        self.program, self.library, self.cores = compiled.program, compiled.library, compiled.cores
        self._model, self._rows, self.program_split = compiled.model, compiled.rows, split_program(compiled, find_prior)
        self.groups, self.coords = groups, dict(groups.coords)
        variables = [variable.name for variable in compiled.model.variables]
        groups.check(variables, self.parameter_names, list(to_arrays(self.data)), self.label)
        renamed = {
            new: groups.dims[old]
            for names in groups.generated.values()
            for old, new in names.items()
            if old in groups.dims
        }
        self.dims = {**renamed, **groups.dims}

    def __reduce__(self) -> Any:
        return StanTarget, (self.compiled, self.groups, self._find_prior, self._predictor)

    def __repr__(self) -> str:
        return f"StanTarget({self.label!r}, dim={self.dim})"

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return flat unconstrained names, each of the element that the coordinate determines."""
        return self.compiled.names

    def with_data(self, new: Mapping[str, Any]) -> StanTarget:
        """Return the same program on new data, which replace those of the same name; nothing is compiled again."""
        compiled = self.compiled.with_data({**self.data, **read_data(new)})
        return StanTarget(compiled, self.groups, self._find_prior, self._predictor)

    def digests(self) -> dict[str, str]:
        """Return digests of the compiled program, of its data, and of the split into prior and likelihood."""
        arrays = to_arrays(self.data)
        told_apart = {
            "rows": self.compiled.rows_option,
            "likelihood_data": self.compiled.likelihood_data,
            "find_prior": self._find_prior,
        }
        return {
            "program": digest(program_key(self.library) if self.program else self.library.read_bytes()),
            "data": digest(*(part for item in sorted(arrays.items()) for part in item)),
            "split": digest(json.dumps(told_apart)),
        }

    # ------------------------------------------------------------------------------ density

    def log_density(self, x: Array) -> Array:
        return self._model.evaluate(as_points(x, self.dim), False, self.cores)[0]

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        value, gradient = self._model.evaluate(as_points(x, self.dim), True, self.cores)
        assert gradient is not None
        return value, gradient

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        x = as_points(x, self.dim)
        joint, slope = self._model.evaluate(x, gradient, self.cores)
        part = self.program_split.prior
        if part is None:
            return JointEvaluation(joint, slope)
        prior, prior_slope = part.model.evaluate(x, gradient, self.cores)
        with np.errstate(invalid="ignore"):
            likelihood = np.where(np.isfinite(prior), joint - prior, -np.inf)
        if slope is None or prior_slope is None:
            return Evaluation(prior, likelihood)
        return Evaluation(prior, likelihood, prior_slope, np.where(np.isfinite(joint)[:, None], slope - prior_slope, 0))

    def evaluate_prior(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        part = self.program_split.prior
        if part is None:
            raise ModelError(str(self.split_problem))
        return part.model.evaluate(as_points(x, self.dim), gradient, self.cores)

    @cached_property
    def prior_terms(self) -> PriorTerms:
        """Return the log prior density in model space by variable; the first request compiles a program."""
        part = self.program_split.prior
        if part is None:
            raise ModelError(str(self.split_problem))
        return prior_terms(self.compiled, part.model)

    def undefined(self, x: Array) -> NDArray[np.bool_]:
        """Return where the program computes NaN or +inf ``(n,)``; a point that it rejects has density zero."""
        found = np.zeros(len(x), dtype=bool)
        for i, point in enumerate(as_points(x, self.dim)):
            found[i] = _NOT_FINITE in self.explain(point)
        return found

    def hessian(self, x: Array, part: str = "joint") -> Array:
        """Return the Hessian ``(n, dim, dim)`` by fourth-order differences of gradients; NaN if the program throws."""
        x = as_points(x, self.dim)
        if part == "joint":
            return self._hessian(self._model, x)
        if part != "likelihood" or self.program_split.prior is None:
            raise ModelError(f"part={part!r}: expected 'joint', or 'likelihood' if prior and likelihood are separate")
        return self._hessian(self._model, x) - self._hessian(self.program_split.prior.model, x)

    def _hessian(self, model: CompiledModel, x: Array) -> Array:
        """Return the Hessian of a compiled model, with shorter steps than Stan's where a coordinate's scale is small."""

        def gradient(points: Array) -> Array:
            slope = model.evaluate(points, True, self.cores)[1]
            assert slope is not None
            return slope

        return with_short_steps(gradient, x, model.hessian(x, self.cores), STEP * np.maximum(1.0, np.abs(x)))

    def explain(self, x: Array) -> str:
        [point] = as_points(x, self.dim)
        self._model.messages.clear()
        value, _ = self._model.evaluate(point[None], True, 1)
        if np.isfinite(value[0]) and not self._model.messages:
            return "the log density and its gradient are finite"
        said = self._model.messages[-1] if self._model.messages else "the log density is -inf"
        missing = missing_values(self.data)
        return f"{said}; {missing}" if missing else said

    # ------------------------------------------------------------------------------ prior and likelihood

    @property
    def has_split(self) -> bool:  # type: ignore[override]
        """Return whether prior and likelihood can be separated; the first call may compile a program."""
        return self.program_split.prior is not None

    @property
    def split(self) -> Split | None:
        """Return the split into prior and likelihood (``split.description``), or None if there is none."""
        return self.program_split.prior.split if self.program_split.prior else None

    @property
    def is_prior(self) -> bool:  # type: ignore[override]
        """Return whether the program has no likelihood."""
        return self.program_split.is_prior

    @property
    def split_problem(self) -> str | None:
        return self.program_split.problem or None

    @property
    def stated_propriety(self) -> Propriety | None:
        """Return whether the prior is proper, if the program's statements determine it, without compilation."""
        return self.program_split.stated_propriety

    @cached_property
    def factors(self) -> Factors | StanFactors:
        """Return the factors with one linear predictor each, for EP; see :mod:`ppl_backends.targets.stan.factors.find`."""
        return find_factors(self.compiled, self.program_split, self._predictor)

    @cached_property
    def likelihood_factors(self) -> Factors | None:
        """Return the sites of ``log_lik`` as functions of all coordinates; None if some have no single predictor."""
        try:
            found = self.factors
        except ModelError:
            return None
        return found.likelihood() if isinstance(found, Factors) else None

    def prior_target(self) -> StanTarget:
        stated = self.stated_propriety
        if stated and stated.improper:
            raise PriorSamplingError(f"{self.label}: {stated.improper} has no prior; start from initial='laplace'")
        part = self.program_split.prior
        if part is None:
            raise PriorSamplingError(f"{self.split_problem}; or start from an approximation: initial='laplace'")
        return StanTarget(CompiledProgram(part.source, part.data, self.cores), find_prior=False)

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        """Raise an error, because Stan cannot draw from a prior; samplers use :meth:`prior_target` instead."""
        raise PriorSamplingError(f"{self.label}: Stan gives no independent prior draws; sample target.prior_target()")

    def initial_points(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` points uniform on (-2, 2) in every coordinate, as Stan starts, of finite density.

        If the density is zero at all of them, they are distant points of highest density.
        """
        return uniform_starts(self, n, rng)

    # ------------------------------------------------------------------------------ model space

    def constrain(self, x: Array, rng: np.random.Generator | None = None) -> dict[str, NDArray[Any]]:
        """Return parameters, transformed parameters and generated quantities: name → ``(n, *shape)``.

        ``rng`` seeds the program's generator once for each point; without it the seeds are 0, 1, 2, … . If generated
        quantities throw, they are NaN from there on and a warning gives the count.
        """
        x = as_points(x, self.dim)
        if not self.groups.quantities:
            return self.parameters(x)
        seeds = np.arange(len(x)) if rng is None else rng.integers(0, 2**32, size=len(x))
        values, refused = self.compiled.constrain(x, seeds)
        if refused:
            why = self._model.messages[-1]
            warnings.warn(
                f"{self.label}: generated quantities of {refused} of {len(x)} draws failed and are NaN: {why}",
                SamplerWarning,
                stacklevel=user_level(),
            )
        collected = collect(values, self._model.variables)
        return {name: self._as_declared(name, array) for name, array in collected.items()}

    @property
    def values_per_draw(self) -> int:
        shown = self._model.variables if self.groups.quantities else self._model.parameters
        return max(self.dim, sum(variable.columns.size for variable in shown))

    def _as_declared(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return integers of the program as integers."""
        quantities = self.program.info["generated quantities"] if self.program else {}
        if quantities.get(name, {}).get("type") == "int" and np.isfinite(values).all():
            return values.astype(np.int64)
        return values

    @property
    def parameter_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the variables of the parameters block, an element of a tuple as ``t.1``."""
        return tuple(variable.name for variable in self._model.parameters)

    def parameters(self, x: Array) -> dict[str, NDArray[Any]]:
        """Return only the variables of the parameters block: name → ``(n, *shape)``."""
        values = self._model.parameter_values(as_points(x, self.dim), self.cores)
        return collect(values, self._model.parameters)

    def unconstrain(self, values: Mapping[str, Any]) -> Array:
        """Return points on the unconstrained space; the lengths of unit vectors there follow Stan's density of them."""
        flat = with_unit_sums(flatten(values, self._model.parameters), self._unit_sums)
        return with_lengths(self._model.unconstrain(flat, self.cores), self._unit_vectors)

    @cached_property
    def _unit_sums(self) -> list[UnitSums]:
        return unit_sums(self._model)

    @cached_property
    def _unit_vectors(self) -> list[Index]:
        return unit_vectors(self._model)

    @property
    def circular(self) -> list[int]:  # type: ignore[override]
        """Return the coordinates of unit vectors."""
        return [int(column) for columns in self._unit_vectors for column in columns]

    @property
    def generated_groups(self) -> dict[str, dict[str, str]]:  # type: ignore[override]
        """Return the named groups, and ``log_lik`` as log likelihood unless that was named too."""
        found = self.groups.generated
        pointwise = self._found_log_lik() if self.groups.finds_log_likelihood else {}
        return {**found, "log_likelihood": pointwise} if pointwise else found

    def _found_log_lik(self) -> dict[str, str]:
        """Return ``{"log_lik": name}`` if the program has it: the observed variable of its shape, else ``log_lik``."""
        shapes = [variable.columns.shape for variable in self._model.variables if variable.name == LOG_LIK]
        if not shapes:
            return {}
        matching = [name for name, data in self.observed_data.items() if data.shape == shapes[0]]
        return {LOG_LIK: matching[0] if len(matching) == 1 else LOG_LIK}

    def pointwise_log_likelihood(self, x: Array) -> dict[str, Array]:
        """Return the quantities that are log likelihoods, or that of every row if ``rows=`` was given."""
        x = as_points(x, self.dim)
        named = self.generated_groups.get("log_likelihood")
        if named:
            values = self.compiled.values(x, list(named))
            return {new: values[old] for old, new in named.items()}
        if self._rows is None or self.observations is None:
            raise ModelError(f"{self.label}: no generated quantity log_lik; add it to the program, or give rows=")
        return {LOG_LIK: self.observations.log_likelihood(x)}

    @cached_property
    def observations(self) -> RowObservations | PointwiseObservations | None:  # type: ignore[override]
        """Return subsets of rows if ``rows=`` was given; else columns of ``log_lik``; else None."""
        if self._rows is not None:
            if not isinstance(self._model, BatchedModel):
                raise ModelError(f"{self.label}: rows= needs a library built by ppl_backends; pass the .stan file")
            prior = self.program_split.prior.model if self.program_split.prior else None
            return RowObservations(self._model, self.data, self._rows, self.cores, self.initial_points, prior)
        if self.compiled.has_log_lik:
            return PointwiseObservations(self.compiled.log_lik, self.dim, self.label)
        return None

    # ------------------------------------------------------------------------------ data

    def append(self, new: Mapping[str, Any]) -> BaseTarget:
        """Return the same program with new rows appended to those of the variables in ``rows=``."""
        if self._rows is None:
            raise ModelError(
                f"{self.label}: new rows cannot be appended, because rows= does not say which data have rows; give rows=, "
                "such as {'N': ['x', 'y']}, or the program with all data, old and new"
            )
        missing = sorted(set(self._rows.axes) - set(new))
        if missing:
            raise ModelError(f"{self.label}: new_data lacks {missing[0]!r}, which has one row for each observation")
        return self.with_data(self._rows.append(self.data, new))

    @property
    def observed_data(self) -> dict[str, NDArray[Any]]:  # type: ignore[override]
        """Return the data that were named, else those of the likelihood, if they are known."""
        given = self.groups.observed_data
        default = self.program_split.likelihood_data if given is None else ()
        return self.groups.data_of("observed_data", to_arrays(self.data), default)

    @property
    def constant_data(self) -> dict[str, NDArray[Any]]:  # type: ignore[override]
        """Return the data that were named, else all that are not observed."""
        arrays = to_arrays(self.data)
        observed = self.observed_data if self.groups.constant_data is None else ()
        return self.groups.data_of("constant_data", arrays, arrays.keys() - observed)

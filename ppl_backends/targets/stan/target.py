"""A Stan program with data as a target: batched log density and gradient in process, through a compiled library."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError, PriorSamplingError, SamplerWarning
from ppl_backends.targets.blocks import available_cores
from ppl_backends.targets.digest import digest
from ppl_backends.targets.factors import Factors
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, JointEvaluation, as_points
from ppl_backends.targets.stan.build import open_program, program_key
from ppl_backends.targets.stan.data import read_data, to_arrays
from ppl_backends.targets.stan.library import BatchedModel, CompiledModel, open_model
from ppl_backends.targets.stan.observations import PointwiseObservations, RowObservations, read_rows
from ppl_backends.targets.stan.prior import PriorPart, find_prior
from ppl_backends.targets.stan.program import StanProgram, looks_like_code
from ppl_backends.targets.stan.split import Split, derive, find_split
from ppl_backends.targets.stan.static_propriety import Propriety, stated_propriety
from ppl_backends.targets.stan.variables import collect, flatten, unconstrained_names

if TYPE_CHECKING:
    from ppl_backends.targets.stan.factors import StanFactors

__all__ = ["StanTarget", "stan_target"]

LOG_LIK = "log_lik"
INITIAL_TRIES = 100


def stan_target(
    model: Any,
    data: Any = None,
    *,
    cores: int | None = None,
    rows: Mapping[str, Sequence[str]] | None = None,
    likelihood_data: Sequence[str] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    prior: str | None = "auto",
    predictor: str | None = None,
    include_paths: Sequence[str] = (),
) -> StanTarget:
    """A Stan program with data as a target; the program is compiled, or its library taken from the cache.

    Parameters
    ----------
    model : path, str, cmdstanpy.CmdStanModel or StanProgram
        A ``.stan`` file, program text, a CmdStan model, or a library with BridgeStan's C interface (``.so``).
    data : mapping, path or str, optional
        Data as a dict, a path to JSON, or JSON text.
    cores : int, optional
        Threads that a batch of points is spread over; all available by default.
    rows : mapping of str to sequence of str, optional
        Which integer holds the number of observations and which data variables have one row for each of them, such as
        ``{"N": ["x", "y"]}``. The target can then be evaluated on subsets of its observations.
    likelihood_data : sequence of str, optional
        The observed data variables, where the program alone does not tell prior from likelihood.
    coords, dims : mapping, optional
        As ``arviz.from_cmdstanpy`` takes them.
    prior : {"auto"} or None
        None does not look for the prior part of the density.
    predictor : str, optional
        The transformed parameter or generated quantity that is the linear predictor of the observations, for EP; guessed
        where only one can be.
    include_paths : sequence of str
        Folders of ``#include`` files, besides the program's own.

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
    source = _read_model(model, tuple(include_paths))
    return StanTarget(
        source,
        read_data(data),
        cores=cores,
        rows=rows,
        likelihood_data=likelihood_data,
        coords=coords,
        dims=dims,
        find_prior=prior == "auto",
        predictor=predictor,
    )


def _read_model(model: Any, include_paths: tuple[str, ...]) -> StanProgram | Path:
    """A program, or the path of a library."""
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
    """The log density of a Stan program, constants kept and Jacobians included; see :func:`stan_target`.

    A point at which the program throws (``reject``, a domain error, a failed ODE solver), or where density or gradient
    is not finite, has log density -inf; :meth:`explain` tells why.

    Attributes
    ----------
    label : str
    program : StanProgram or None
        None where a library was given.
    data : dict
    library : Path
    """

    def __init__(
        self,
        source: StanProgram | Path,
        data: Mapping[str, Any],
        *,
        cores: int | None = None,
        rows: Mapping[str, Sequence[str]] | None = None,
        likelihood_data: Sequence[str] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        find_prior: bool = True,
        predictor: str | None = None,
    ) -> None:
        self.label = source.label if isinstance(source, StanProgram) else Path(str(source)).name
        self.data = dict(data)
        self.cores = available_cores(cores)
        self._model: CompiledModel
        if isinstance(source, StanProgram):
            source, self.library, self._model = open_program(source, self.data)
        else:
            self.library, self._model = source, open_model(source, self.data, self.label)
        self.program = source if isinstance(source, StanProgram) else None
        self._source, self._find_prior, self._predictor = source, find_prior, predictor
        self._rows = read_rows(rows, self.data, self.label) if rows else None
        self._likelihood_data = tuple(likelihood_data) if likelihood_data is not None else None
        self.coords, self.dims = dict(coords or {}), dict(dims or {})
        self.dim = self._model.dim
        if not self.dim:
            raise ModelError(f"{self.label}: the program has no parameters: there is nothing to infer")
        self.names = unconstrained_names(self._model.names)
        self._lock = threading.RLock()

    def __reduce__(self) -> Any:
        return _rebuild, (self._source, self.data, self._options)

    def __repr__(self) -> str:
        return f"StanTarget({self.label!r}, dim={self.dim})"

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "cores": self.cores,
            "rows": {self._rows.count: list(self._rows.axes)} if self._rows else None,
            "likelihood_data": self._likelihood_data,
            "coords": self.coords,
            "dims": self.dims,
            "find_prior": self._find_prior,
            "predictor": self._predictor,
        }

    def with_data(self, new: Mapping[str, Any]) -> StanTarget:
        """The same program on new data, which replace those of the same name; nothing is compiled again."""
        return StanTarget(self._source, {**self.data, **read_data(new)}, **self._options)

    def digests(self) -> dict[str, str]:
        """Return digests of the program as compiled, of its data, and of how prior and likelihood are told apart."""
        arrays = to_arrays(self.data)
        told_apart = {name: self._options[name] for name in ("rows", "likelihood_data", "find_prior")}
        return {
            "program": digest(program_key(self.library) if self.program else self.library.read_bytes()),
            "data": digest(*(part for item in sorted(arrays.items()) for part in item)),
            "split": digest(json.dumps(told_apart)),
        }

    # ------------------------------------------------------------------------------ density

    def log_density(self, x: Array) -> Array:
        """Joint log density ``(n,)``, Jacobians included and no constants dropped."""
        return self._model.evaluate(as_points(x, self.dim), False, self.cores)[0]

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Joint log density ``(n,)`` and its gradient ``(n, dim)``."""
        value, gradient = self._model.evaluate(as_points(x, self.dim), True, self.cores)
        assert gradient is not None
        return value, gradient

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        """One pass over the points ``x`` ``(n, dim)``: prior and likelihood apart where the split is known."""
        x = as_points(x, self.dim)
        joint, slope = self._model.evaluate(x, gradient, self.cores)
        part = self._prior_part
        if part is None:
            return JointEvaluation(joint, slope)
        prior, prior_slope = part.model.evaluate(x, gradient, self.cores)
        with np.errstate(invalid="ignore"):
            likelihood = np.where(np.isfinite(prior), joint - prior, -np.inf)
        if slope is None or prior_slope is None:
            return Evaluation(prior, likelihood)
        return Evaluation(prior, likelihood, prior_slope, np.where(np.isfinite(joint)[:, None], slope - prior_slope, 0))

    def evaluate_prior(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Log prior ``(n,)`` and its gradient ``(n, dim)``, or None, where prior and likelihood are known apart."""
        part = self._prior_part
        if part is None:
            raise ModelError(str(self.split_problem))
        return part.model.evaluate(as_points(x, self.dim), gradient, self.cores)

    def undefined(self, x: Array) -> NDArray[np.bool_]:
        """Return where the program computes NaN or +inf ``(n,)``; a point that it rejects has density zero."""
        found = np.zeros(len(x), dtype=bool)
        for i, point in enumerate(as_points(x, self.dim)):
            found[i] = _NOT_FINITE in self.explain(point)
        return found

    def hessian(self, x: Array, part: str = "joint") -> Array:
        """Hessian ``(n, dim, dim)`` by fourth-order differences of gradients; NaN where the program throws."""
        x = as_points(x, self.dim)
        if part == "joint":
            return self._model.hessian(x, self.cores)
        if part != "likelihood" or self._prior_part is None:
            raise ModelError(f"part={part!r}: expected 'joint', or 'likelihood' where prior and likelihood are apart")
        return self._model.hessian(x, self.cores) - self._prior_part.model.hessian(x, self.cores)

    def explain(self, x: Array) -> str:
        """Why the program refuses a point ``(dim,)``: its own message."""
        [point] = as_points(x, self.dim)
        self._model.messages.clear()
        value, _ = self._model.evaluate(point[None], True, 1)
        if np.isfinite(value[0]):
            return "the log density and its gradient are finite"
        return self._model.messages[-1] if self._model.messages else "the log density is -inf"

    # ------------------------------------------------------------------------------ prior and likelihood

    @property
    def has_split(self) -> bool:  # type: ignore[override]
        """Whether prior and likelihood are known apart; looked into on first use, which may compile a program."""
        return self._prior_part is not None

    @property
    def split(self) -> Split | None:
        """How prior and likelihood are told apart, and what its check found (``split.description``); None if not."""
        return self._prior_part.split if self._prior_part else None

    @property
    def is_prior(self) -> bool:  # type: ignore[override]
        """Whether the program has no likelihood."""
        return "there is no likelihood" in (self.split_problem or "")

    @property
    def split_problem(self) -> str | None:
        """Why prior and likelihood are not known apart, and the way out; None where they are."""
        return None if self._prior_part else self._prior_or_problem[1]

    @property
    def _prior_part(self) -> PriorPart | None:
        return self._prior_or_problem[0]

    @cached_property
    def _prior_or_problem(self) -> tuple[PriorPart | None, str]:
        with self._lock:
            if not self._find_prior:
                return None, "the prior was not looked for (prior=None)"
            if self.program is None and self._rows is None:
                return None, f"{self.label}: a library has no program text to tell prior from likelihood; give rows="
            try:
                return find_prior(self), ""
            except ModelError as error:
                if self._likelihood_data is not None:
                    raise
                return None, str(error)

    @property
    def stated_propriety(self) -> Propriety | None:
        """Whether the prior is proper, where the program's statements say so; they cost no compilation."""
        if self.program is None or not self._find_prior:
            return None
        try:
            return stated_propriety(derive(self.program, self._likelihood_data))
        except ModelError:
            return None

    @property
    def free_prior_part(self) -> PriorPart | None:
        """The prior part where it is at hand or costs no compilation, else None."""
        if "_prior_or_problem" not in self.__dict__:
            try:
                free = (
                    self.program is None
                    or find_split(self.program, self.data, self._likelihood_data).prior_program is None
                )
            except ModelError:
                return None
            if not free:
                return None
        return self._prior_part

    @cached_property
    def factors(self) -> Factors | StanFactors:
        """The factors with one linear predictor each, for EP; see :mod:`ppl_backends.targets.stan.factors.find`.

        Raises
        ------
        ModelError
            If the program does not factorise so; names the variable in the way.
        """
        from ppl_backends.targets.stan.factors import find_factors

        return find_factors(self, self._predictor)

    def prior_target(self) -> StanTarget:
        """The prior alone, as a target over the same coordinates.

        Raises
        ------
        PriorSamplingError
            If prior and likelihood are not known apart; the message shows the statement and the way out. If the prior
            is improper as the statements have it.
        """
        stated = self.stated_propriety
        if stated and stated.improper:
            raise PriorSamplingError(f"{self.label}: {stated.improper} has no prior; start from initial='laplace'")
        part = self._prior_part
        if part is None:
            raise PriorSamplingError(f"{self.split_problem}; or start from an approximation: initial='laplace'")
        return StanTarget(part.source, part.data, cores=self.cores, find_prior=False)

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        """Stan cannot draw from a prior; a sampler takes :meth:`prior_target` instead."""
        raise PriorSamplingError(f"{self.label}: Stan gives no independent prior draws; sample target.prior_target()")

    def initial_points(self, n: int, rng: np.random.Generator) -> Array:
        """``n`` points uniform on (-2, 2) in every coordinate, as Stan starts, drawn again until density is finite.

        Raises
        ------
        ModelError
            If no finite density is found in 100 tries for a point, with what the program says.
        """
        x = rng.uniform(-2.0, 2.0, size=(n, self.dim))
        for _ in range(INITIAL_TRIES):
            bad = ~np.isfinite(self.log_density_and_gradient(x)[0])
            if not bad.any():
                return x
            x[bad] = rng.uniform(-2.0, 2.0, size=(int(bad.sum()), self.dim))
        reason = self.explain(x[bad][0])
        raise ModelError(f"{self.label}: no finite log density in {INITIAL_TRIES} random starts; at the last {reason}")

    # ------------------------------------------------------------------------------ model space

    def constrain(self, x: Array, rng: np.random.Generator | None = None) -> dict[str, NDArray[Any]]:
        """Parameters, transformed parameters and generated quantities: name → ``(n, *shape)``.

        ``rng`` seeds the program's generator once for each point; without it the seeds are 0, 1, 2, … . Where
        generated quantities throw, they are NaN from there on and a warning gives the count.
        """
        x = as_points(x, self.dim)
        seeds = np.arange(len(x)) if rng is None else rng.integers(0, 2**32, size=len(x))
        values, refused = self._model.constrain(x, seeds.astype(np.uint32), True, self.cores)
        if refused:
            why = self._model.messages[-1]
            warnings.warn(
                f"{self.label}: {refused} of {len(x)} draws not complete: {why}", SamplerWarning, stacklevel=2
            )
        collected = collect(values, self._model.variables)
        return {name: self._as_declared(name, array) for name, array in collected.items()}

    def _as_declared(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Integers of the program as integers."""
        quantities = self.program.info["generated quantities"] if self.program else {}
        if quantities.get(name, {}).get("type") == "int" and np.isfinite(values).all():
            return values.astype(np.int64)
        return values

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The variables of the parameters block, an element of a tuple as ``t.1``."""
        return tuple(variable.name for variable in self._model.parameters)

    def parameters(self, x: Array) -> dict[str, NDArray[Any]]:
        """The variables of the parameters block alone: name → ``(n, *shape)``."""
        x = as_points(x, self.dim)
        values, _ = self._model.constrain(x, np.zeros(len(x), dtype=np.uint32), False, self.cores)
        return collect(values, self._model.parameters)

    def unconstrain(self, values: Mapping[str, Any]) -> Array:
        """Inverse of :meth:`constrain` on the parameters: ``(n, dim)``."""
        return self._model.unconstrain(flatten(values, self._model.parameters), self.cores)

    @property
    def log_likelihood_names(self) -> dict[str, str]:  # type: ignore[override]
        """``{"log_lik": name}`` where the program has it: the observed variable of its shape, else ``log_lik``."""
        shapes = [variable.columns.shape for variable in self._model.variables if variable.name == LOG_LIK]
        if not shapes:
            return {}
        matching = [name for name, data in self.observed_data.items() if data.shape == shapes[0]]
        return {LOG_LIK: matching[0] if len(matching) == 1 else LOG_LIK}

    def pointwise_log_likelihood(self, x: Array) -> dict[str, Array]:
        """The generated quantity ``log_lik``, or the log likelihood of every row where ``rows=`` was given."""
        x = as_points(x, self.dim)
        if self.log_likelihood_names:
            return {self.log_likelihood_names[LOG_LIK]: self._log_lik(x)}
        if self._rows is None or self.observations is None:
            raise ModelError(f"{self.label}: no generated quantity log_lik; add it to the program, or give rows=")
        return {LOG_LIK: self.observations.log_likelihood(x)}

    def _log_lik(self, x: Array) -> Array:
        values, _ = self._model.constrain(x, np.arange(len(x)).astype(np.uint32), True, self.cores)
        return collect(values, [v for v in self._model.variables if v.name == LOG_LIK])[LOG_LIK]

    @cached_property
    def observations(self) -> RowObservations | PointwiseObservations | None:  # type: ignore[override]
        """Subsets of rows where ``rows=`` was given; else columns of ``log_lik``; else None."""
        if self._rows is not None:
            if not isinstance(self._model, BatchedModel):
                raise ModelError(f"{self.label}: rows= needs a library built by ppl_backends; pass the .stan file")
            prior = self._prior_part.model if self._prior_part else None
            return RowObservations(self._model, self.data, self._rows, self.cores, self.initial_points, prior)
        if any(variable.name == LOG_LIK for variable in self._model.variables):
            return PointwiseObservations(self._log_lik, self.dim, self.label)
        return None

    # ------------------------------------------------------------------------------ data

    def append(self, new: Mapping[str, Any]) -> BaseTarget:
        """The same program with new rows behind those of the variables that ``rows=`` names."""
        if self._rows is None:
            return super().append(new)
        missing = sorted(set(self._rows.axes) - set(new))
        if missing:
            raise ModelError(f"{self.label}: new_data lacks {missing[0]!r}, which has one row for each observation")
        return self.with_data(self._rows.append(self.data, new))

    @cached_property
    def _observed_names(self) -> tuple[str, ...]:
        if self._likelihood_data is not None:
            return self._likelihood_data
        if self.program is None or not self._find_prior:
            return ()
        try:
            return find_split(self.program, self.data).likelihood_data
        except ModelError:
            return ()

    @property
    def observed_data(self) -> dict[str, NDArray[Any]]:  # type: ignore[override]
        """The data that the likelihood is of, where that is known."""
        return {name: array for name, array in to_arrays(self.data).items() if name in self._observed_names}

    @property
    def constant_data(self) -> dict[str, NDArray[Any]]:  # type: ignore[override]
        """All other data."""
        return {name: array for name, array in to_arrays(self.data).items() if name not in self._observed_names}


def _rebuild(source: StanProgram | Path, data: dict[str, Any], options: dict[str, Any]) -> StanTarget:
    """A target in another process: the library comes from the cache there."""
    return StanTarget(source, data, **options)

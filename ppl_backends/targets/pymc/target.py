"""A PyMC model as a target."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property
from threading import Lock
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.basic import Variable

from ppl_backends.errors import ModelError, PriorSamplingError
from ppl_backends.numerics.arrays import with_rows
from ppl_backends.targets.blocks import available_cores, evaluate_in_blocks, pad_to_blocks, threads_worth_having
from ppl_backends.targets.digest import digest
from ppl_backends.targets.integral import PriorIntegral
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, as_points, gradient_of, sanitize, undefined
from ppl_backends.targets.pymc.circle import circular_coordinates, spread
from ppl_backends.targets.pymc.compile import ONE_SHAPE, CompiledGraph, DataArguments
from ppl_backends.targets.pymc.data import check_lengths, checked_value, coords_and_dims, resize_dims
from ppl_backends.targets.pymc.factors import PyMCFactors, factors_or_refusal, has_normal_priors
from ppl_backends.targets.pymc.graph import (
    DataValues,
    ancestors,
    check_model,
    data_values,
    flat_names,
    no_c_compiler,
    observed_values,
    observed_variables,
    shapes_of,
)
from ppl_backends.targets.pymc.inverse_cdf import PriorFromUniform
from ppl_backends.targets.pymc.normalizer import Masses, integrate_prior, prior_masses
from ppl_backends.targets.pymc.observations import PyMCObservations
from ppl_backends.targets.pymc.predictive import PyMCPredictive
from ppl_backends.targets.pymc.prior_terms import PyMCPriorTerms
from ppl_backends.targets.pymc.priors import PriorSampler
from ppl_backends.targets.pymc.reasons import reason_of_potential, reason_of_variable
from ppl_backends.targets.starts import jittered_starts


class PyMCTarget(BaseTarget):
    """The log density of a PyMC model on its unconstrained space.

    Values of ``pm.Data`` are read when the target is made. Functions are compiled at their first use.

    Parameters
    ----------
    model : pm.Model
    backend : {"auto", "jax", "numba", "c"}
        Compiler of the log density. ``"auto"`` is JAX; a function with an operation that JAX lacks uses Numba, then C,
        with a warning that names the operation.
    cores : int, optional
        Threads that evaluate blocks of points; all available cores by default. JAX uses its own threads.
    data : dict of str to array, optional
        New values of ``pm.Data`` containers, by name.

    Raises
    ------
    ModelError
        For discrete free variables, minibatches, simulators, and models without free variables; the message names the
        variable.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     _ = pm.Normal("y", mu, 1, observed=[1.0])
    >>> target = PyMCTarget(model)
    >>> target.names
    ('mu',)
    >>> target.log_density(np.zeros((1, 1))).round(4)
    array([-2.3379])
    """

    has_split = True
    label = "PyMC model"
    accepts_intractable = False
    # Shared variables that hold observed values of a target that data are drawn for
    _exchangeable: tuple[Variable, ...] = ()
    _fixed_batches = False

    def __init__(
        self, model: pm.Model, *, backend: str = "auto", cores: int | None = None, data: DataValues | None = None
    ) -> None:
        check_model(model, self.accepts_intractable)
        self.model, self.backend, self._cores_asked = model, backend, cores
        self.cores = available_cores(cores)
        self._data = dict(data) if data is not None else data_values(model)
        with no_c_compiler():
            self._shapes = shapes_of(model, self._data)
        self.names, self.parameter_names = flat_names(self._shapes.value), tuple(self._shapes.model)
        self.dim = len(self.names)
        self.circular = circular_coordinates(model, self._shapes.value.values())
        if not self.dim:
            raise ModelError("the free variables of the model have no elements, so there is nothing to infer")
        self._compiled = CompiledGraph(model, self._data, self._shapes, backend)
        self._arguments = DataArguments(self._data.values())
        self._prior: PriorSampler | None = None
        self._integral: PriorIntegral | PriorSamplingError | None = None
        self._factors: Any = None
        self._lock, self._integral_lock = Lock(), Lock()
        self.has_potentials = bool(model.potentials)
        self.observed_data = observed_values(model, self._data)
        self.constant_data = self._constant_data()
        self.coords, self.dims = coords_and_dims(model, self._data)
        self.observations = PyMCObservations(self)

    @property
    def has_gradient(self) -> bool:  # type: ignore[override]
        """Return whether all operations of the model have gradients."""
        return self._compiled.differentiable

    # -- the log density -------------------------------------------------------------------------------------------

    def check_indices(self) -> None:
        """Raise ModelError if the model selects elements of an array that do not exist."""
        self._compiled.check_indices(self._arguments)

    def _call(self, kind: str, x: Array, rows: int | None = None) -> list[Array]:
        """Return the compiled function ``kind`` at the rows of ``x``, evaluated in blocks of that many ``rows`` if given."""
        self.check_indices()
        function = self._compiled.function(kind)
        jax = function.backend == "jax"  # uses its own threads, and compiles for every size of block
        cap = rows or function.cap
        n = len(x)
        many = jax and self._compiled.factorises and n > 1
        if rows or many:
            x = pad_to_blocks(x, cap)  # only full blocks, and single points, are compiled
        # One factorisation per point: threads that synchronise at each take longer than one thread for all of them.
        with threads_worth_having(0) if many else nullcontext():
            outputs = evaluate_in_blocks(
                lambda block: function(block, self._arguments), x, cap, 1 if jax else self.cores, pad=jax
            )
        return [output[:n] for output in outputs]

    def with_fixed_batch_size(self) -> PyMCTarget:
        """Return the same density by one compiled program, if evaluations take less time than compiling.

        Blocks have 64 rows, values come with gradients, and Hessians are differences of these. It is the target itself
        if the backend does not compile for every size of block, or 64 rows exceed the byte budget of a block.
        """
        if not self._compiled.can_have_one_shape:
            return self
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _fixed_batches=True)
        return other

    @property
    def _one_shape(self) -> bool:
        """Return whether one program serves all batches: as asked for, or because compiling another takes too long."""
        return self._fixed_batches or self._compiled.is_long

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        x = as_points(x, self.dim)
        if not gradient and not self._one_shape:
            prior, likelihood = self._call("value", x)
            return Evaluation(sanitize(prior)[0], sanitize(likelihood)[0])
        values = self._call("gradient", x, ONE_SHAPE if self._one_shape else None)
        prior, prior_gradient = sanitize(values[0], values[2])
        likelihood, likelihood_gradient = sanitize(values[1], values[3])
        return Evaluation(prior, likelihood, prior_gradient, likelihood_gradient)

    def undefined(self, x: Array) -> NDArray[np.bool_]:
        x = as_points(x, self.dim)
        kind = "gradient" if self.has_gradient else "value"
        # No program for each number of points
        rows = ONE_SHAPE if self._one_shape else self._compiled.function(kind).cap
        return undefined(*self._call(kind, x, rows)[:2])

    def evaluate_prior(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return log prior ``(n,)`` and its gradient ``(n, dim)``, or None.

        The run time does not depend on the data, unless one compiled program computes the likelihood as well.
        """
        if self._one_shape:
            evaluation = self.evaluate(x)
            return evaluation.log_prior, evaluation.log_prior_gradient if gradient else None
        value, slope = sanitize(*self._call("prior", as_points(x, self.dim)))
        return value, slope if gradient else None

    def evaluate_potentials(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        value, slope = sanitize(*self._call("potentials", as_points(x, self.dim)))
        return value, slope if gradient else None

    @cached_property
    def prior_terms(self) -> PyMCPriorTerms:
        """Return the log prior density in model space by free variable."""
        with no_c_compiler():
            return PyMCPriorTerms(self.model, self._data, self._shapes, self._compiled.backends)

    def hessian(self, x: Array, part: str = "joint") -> Array:
        """Return the Hessian ``(n, dim, dim)`` of the joint log density or of the log ``"likelihood"``.

        It is compiled by JAX, and compared with differences of gradients at its first use; such differences replace it
        if the two disagree, if the model factorises matrices or has many operations, or with the other backends.
        """
        if part not in ("joint", "likelihood"):
            raise ModelError(f"part={part!r}: expected 'joint' or 'likelihood'")
        compiled = self._compiled
        if self._one_shape or compiled.function("gradient").backend != "jax" or not compiled.compiles_hessian(part):
            return super().hessian(x, part)
        x = as_points(x, self.dim)

        def by_jax(x: Array) -> Array:
            return self._call(f"hessian of the {part}", x)[0]

        def gradient(x: Array) -> Array:
            return gradient_of(self.evaluate(x, True), part)

        hessian = by_jax(x)
        if not compiled.check_hessian(part, x, hessian, by_jax, gradient):
            return super().hessian(x, part)
        return 0.5 * (hessian + np.swapaxes(hessian, 1, 2))

    def pointwise_log_likelihood(self, x: Array) -> dict[str, Array]:
        return dict(zip(self._compiled.observed, self._call("pointwise", as_points(x, self.dim)), strict=True))

    @property
    def factors(self) -> PyMCFactors:
        """Return a Gaussian times sites that each depend on one linear predictor, found at the first request."""
        self.check_indices()
        with self._lock:
            if self._factors is None:
                given = self.model, self._data, self._shapes, self.backend, self._exchangeable
                self._factors = factors_or_refusal(*given)
        if isinstance(self._factors, ModelError):
            raise type(self._factors)(f"{self.label}: {self._factors}; use fit_laplace or sample_smc")
        return self._factors

    @cached_property
    def log_concave(self) -> bool:  # type: ignore[override]
        """Return whether all priors are normal, and the other factors are known to be log-concave.

        The search for factors of such models is short.
        """
        try:
            return has_normal_priors(self.model) and not self.factors.hyper_names and self.factors.at().log_concave
        except (ModelError, np.linalg.LinAlgError):
            return False

    @cached_property
    def likelihood_factors(self) -> Any:
        """Return the sites of the observed variables as functions of all coordinates, or None."""
        try:
            return PyMCFactors(self.model, self._data, self._shapes, self.backend, likelihood_only=True).at()
        except (ModelError, NotImplementedError):
            return None

    # -- model space -----------------------------------------------------------------------------------------------

    def constrain(self, x: Array, rng: np.random.Generator | None = None) -> dict[str, Array]:
        """Return free variables and Deterministics at the points: name → ``(n, *shape)``."""
        values = dict(zip(self._compiled.constrained, self._call("constrain", as_points(x, self.dim)), strict=True))
        whole = [each for each in self.model.deterministics if np.dtype(each.dtype).kind in "biu"]
        return values | {each.name: values[each.name].astype(each.dtype) for each in whole}

    @property
    def values_per_draw(self) -> int:
        stored = {*self.model.free_RVs, *self.model.deterministics}
        return max(self.dim, sum(math.prod(length or 1 for length in each.type.shape) for each in stored))

    def unconstrain(self, values: Mapping[str, Array]) -> Array:
        columns = []
        for name, shape in self._shapes.model.items():
            if name not in values:
                raise ModelError(f"values of free variable '{name}' are missing; expected {list(self._shapes.model)}")
            try:
                value = np.asarray(values[name], dtype=np.float64)
            except (TypeError, ValueError):
                kind = np.asarray(values[name]).dtype
                raise ModelError(f"values of '{name}' are of type {kind}: expected numbers") from None
            if value.shape[1:] != shape:
                raise ModelError(f"values of '{name}' have shape {value.shape[1:]} at each point; expected {shape}")
            columns.append(value.reshape(len(value), -1))
        return spread(self._call("unconstrain", np.concatenate(columns, axis=1))[0], self.circular)

    # -- starting points -------------------------------------------------------------------------------------------

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` draws of the prior ``(n, dim)``; Potentials are ignored."""
        if self._masses.unknown:
            self._integrated()  # raises an error if draws do not follow the density
        return self._prior_sampler()(n, rng)

    def _prior_sampler(self) -> PriorSampler:
        with self._lock, no_c_compiler():
            if self._prior is None:
                self._prior = PriorSampler(self.model, self._data, self._shapes)
        return self._prior

    @cached_property
    def _inverse_cdf(self) -> PriorFromUniform | PriorSamplingError:
        with no_c_compiler():
            try:
                return PriorFromUniform(self.model, self._data, self._shapes)
            except PriorSamplingError as refusal:
                return refusal

    @property
    def n_uniforms(self) -> int | None:  # type: ignore[override]
        """Return the dimension of the cube that :meth:`prior_from_uniform` maps to the prior; None if there is no map."""
        return None if isinstance(self._inverse_cdf, PriorSamplingError) else self._inverse_cdf.n_uniforms

    def prior_from_uniform(self, u: Array) -> Array:
        """Return draws of the prior ``(n, dim)`` from points of the cube ``(n, n_uniforms)``, by inverse cdfs."""
        if isinstance(self._inverse_cdf, PriorSamplingError):
            raise PriorSamplingError(
                f"{self.label}: {self._inverse_cdf}, so that no uniforms can be mapped to its prior"
            )
        return self._inverse_cdf(u)

    @cached_property
    def _masses(self) -> Masses:
        with no_c_compiler():
            return prior_masses(self.model, self._shapes)

    def _integrated(self) -> PriorIntegral:
        with self._integral_lock, no_c_compiler():
            if self._integral is None:
                try:
                    self._integral = integrate_prior(
                        self.model, self._data, self._shapes, self._masses, self._prior_sampler, self._free_terms
                    )
                except PriorSamplingError as refusal:
                    self._integral = refusal
        if isinstance(self._integral, PriorSamplingError):
            raise self._integral
        return self._integral

    def _free_terms(self, x: Array) -> dict[str, Array]:
        """Return terms of the log prior by free variable, ``(n, ...)`` each."""
        return dict(zip(self._shapes.model, self._call("free terms", x), strict=True))

    @property
    def prior_integral(self) -> PriorIntegral:
        """Return the log integral of the prior as written, its standard error and degrees of freedom.

        It is 0 without an error for distributions that are known to be normalised, and exact for those with a closed
        form; otherwise it is estimated from draws of the prior, the same in every call. NaN for an improper prior, and
        for one that cannot be sampled.
        """
        try:
            return self._integrated()
        except PriorSamplingError:
            return PriorIntegral(float("nan"))

    @property
    def log_prior_normalizer(self) -> float:
        """Return the log integral of the prior: 0, unless a transform cuts its support or PyMC drops a constant."""
        return self.prior_integral.log_integral

    @property
    def log_prior_normalizer_se(self) -> float:
        """Return the standard error of ``log_prior_normalizer``; 0 if it is exact."""
        return self.prior_integral.standard_error

    @property
    def log_prior_normalizer_df(self) -> float:
        """Return the degrees of freedom of that standard error."""
        return self.prior_integral.df

    def initial_points(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` dispersed points of finite density ``(n, dim)``: PyMC's initial point, jittered by U(-1, 1).

        If the density is zero at all of them, they are draws of the prior, or distant points, of highest density.
        """
        return jittered_starts(self, self._start(), n, rng)

    def _start(self) -> Array:
        """Return PyMC's initial point, ravelled."""
        with no_c_compiler():
            point = self.model.initial_point(random_seed=1)
        return as_points(np.concatenate([np.ravel(point[name]) for name in self._shapes.value]), self.dim)[0]

    def explain(self, x: Array) -> str:
        terms = dict(zip(self._compiled.terms, self._call("terms", as_points(x, self.dim)), strict=True))
        potentials = {potential.name for potential in self.model.potentials}
        observed = {name: self.observed_data.get(name, np.empty(0)) for name in self._compiled.observed}
        lines = [
            reason_of_potential(name, term)
            if name in potentials
            else reason_of_variable(name, term, observed.get(name))
            for name, term in terms.items()
        ]
        lines = [line for line in lines if line]
        return "; ".join(lines) if lines else "all terms of the log density are finite"

    # -- data ------------------------------------------------------------------------------------------------------

    def append(self, new: Mapping[str, Any]) -> PyMCTarget:
        """Return the same target with new rows appended to those of its ``pm.Data`` containers."""
        held = {shared.name: shared for shared in self._data if shared in self.model.data_vars}
        unknown = sorted(set(new) - set(held))
        if unknown:
            known = ", ".join(held) or "none"
            raise ModelError(f"{unknown[0]!r} is not a pm.Data container of the model (those are: {known})")
        pairs = {name: (self._data[held[name]], checked_value(name, held[name], value)) for name, value in new.items()}
        longer = self.with_data({name: with_rows(name, *pair) for name, pair in pairs.items()})
        try:
            longer.check_indices()
        except ModelError as error:
            lengths = {len(old) for old, _ in pairs.values()}
            left = [
                f"'{name}'"
                for name, v in held.items()
                if name not in new and len(np.atleast_1d(self._data[v])) in lengths
            ]
            raise ModelError(f"{error}; {', '.join(left)} got no new rows" if left else str(error)) from None
        return longer

    def with_data(self, new: Mapping[str, Any]) -> PyMCTarget:
        """Return the same target with other values of its ``pm.Data`` containers.

        Nothing is recompiled if shapes stay the same; with Numba or C nothing is recompiled even if they change.
        """
        data = dict(self._data)
        named = {shared.name: shared for shared in data}
        for name, value in new.items():
            short = name.removeprefix(f"{self.model.name}::")
            if name not in named:
                known = ", ".join(v.name for v in self.model.data_vars) or "none"
                raise ModelError(f"'{short}' is not a pm.Data container of the model (those are: {known})")
            data[named[name]] = checked_value(name, named[name], value)
        resize_dims(self.model, data)
        return PyMCTarget._on(self, data)

    @cached_property
    def predictive(self) -> PyMCPredictive:
        """Return the object that draws data from the model and makes the target of drawn data."""
        return PyMCPredictive(self)

    def of_model(self, model: pm.Model) -> PyMCTarget:
        """Return the target of a copy of the model whose observed values are shared variables."""
        other = PyMCTarget(model, backend=self.backend, cores=self._cores_asked)
        other._exchangeable = tuple(model.rvs_to_values[rv] for rv in observed_variables(model))
        return other

    def with_observations(self, values: DataValues, named: Mapping[str, Any]) -> PyMCTarget:
        """Return the same target with other ``values`` of shared variables, which are data ``named`` so; factors are kept."""
        other = object.__new__(type(self))
        left_out = "likelihood_factors", "log_concave", "predictive"
        kept = {name: value for name, value in self.__dict__.items() if name not in left_out}
        other.__dict__.update(kept)
        other._data = {**self._data, **{v: np.asarray(value, dtype=v.dtype) for v, value in values.items()}}
        other._arguments = DataArguments(other._data.values())
        other._lock, other._factors = Lock(), None
        other.observed_data = {**self.observed_data, **named}
        other.observations = PyMCObservations(other)
        try:
            other._factors = self.factors.on(other._data, other.log_density)
        except ModelError as refusal:
            other._factors = refusal if isinstance(self._factors, ModelError) else None
        return other

    def digests(self) -> dict[str, str]:
        """Return digests of the model's graph and of its data; of values too, if the graph contains user code."""
        graph, complete = self._compiled.digest()
        named = [(str(shared.name), value) for shared, value in self._data.items()] + list(self.observed_data.items())
        named.sort(key=lambda item: item[0])
        found = {"model": graph, "data": digest(*(part for item in named for part in item))}
        return found if complete else found | super().digests()

    def _on(self, data: DataValues) -> PyMCTarget:
        other = PyMCTarget(self.model, backend=self.backend, cores=self._cores_asked, data=data)
        if self._compiled.serves(data) and other._shapes == self._shapes:
            other._compiled = self._compiled
        if other.dim != self.dim:
            raise ModelError("the new data change the number of free coordinates: make a new target of the model")
        check_lengths(other._compiled, data, self._data, other._start)
        return other

    def _constant_data(self) -> dict[str, Array]:
        """Return the containers except those with observed values."""
        observed = set(ancestors([self.model.rvs_to_values[rv] for rv in observed_variables(self.model)]))
        return {v.name: value for v, value in self._data.items() if v in self.model.data_vars and v not in observed}

    def __reduce__(self):
        """Return the model, the data and the options; functions are compiled again."""
        return _rebuild, (type(self), cloudpickle.dumps((self.model, self._data)), self.backend, self._cores_asked)

    def __deepcopy__(self, memo: dict) -> PyMCTarget:
        """Return the target itself, which is immutable."""
        return self


def _rebuild(kind: type[PyMCTarget], recipe: bytes, backend: str, cores: int | None) -> PyMCTarget:
    model, data = pickle.loads(recipe)
    return kind(model, backend=backend, cores=cores, data=data)

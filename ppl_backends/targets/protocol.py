"""The Target protocol, the interface that every approximation and sampler uses.

A *target* is the compiled log density of a model on its unconstrained space. Points are rows of a float64 array
``(n_points, dim)``; every evaluation is batched and returns arrays. Approximations and samplers use nothing else of a
model, so any object with the members that a method needs can be used. :class:`BaseTarget` derives most members from
:meth:`BaseTarget.evaluate`, which is the only method that a new kind of target must define.

Conventions
-----------
* ``log_prior`` holds the free variables with the Jacobians of their transforms; ``log_likelihood`` the observed
  variables and any extra terms (PyMC's Potentials). Their sum is the joint log density, no constants dropped.
* A point outside the support, or where the density is not a number, has log density ``-inf``. A gradient that is not
  finite is returned as zero in every coordinate of that row; see :func:`sanitize`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError, PriorSamplingError
from ppl_backends.numerics.arrays import Array, Index
from ppl_backends.numerics.differences import difference_hessian
from ppl_backends.targets.digest import digests_of_values
from ppl_backends.targets.observations import Observations


class Evaluation(NamedTuple):
    """One pass over a batch of points, with prior and likelihood separately.

    Attributes
    ----------
    log_prior, log_likelihood : ndarray (n,)
    log_prior_gradient, log_likelihood_gradient : ndarray (n, dim), or None unless asked for

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.targets.protocol import Evaluation
    >>> one = Evaluation(log_prior=np.array([-0.5]), log_likelihood=np.array([-2.0]))
    >>> one.log_prior_gradient is None
    True
    """

    log_prior: Array
    log_likelihood: Array
    log_prior_gradient: Array | None = None
    log_likelihood_gradient: Array | None = None

    @property
    def log_density(self) -> Array:
        """Return the joint log density ``(n,)``; ``-inf`` if either part is."""
        joint: Array = self.log_prior + self.log_likelihood
        return np.where(np.isnan(joint), -np.inf, joint)

    @property
    def gradient(self) -> Array | None:
        """Return the gradient of the joint log density ``(n, dim)``, or None."""
        if self.log_prior_gradient is None or self.log_likelihood_gradient is None:
            return None
        return self.log_prior_gradient + self.log_likelihood_gradient


class JointEvaluation(NamedTuple):
    """One pass over a batch of points of a target that does not separate prior and likelihood.

    Attributes
    ----------
    log_density : ndarray (n,)
    gradient : ndarray (n, dim), or None unless asked for

    Examples
    --------
    >>> import numpy as np, ppl_backends.targets as targets
    >>> targets.JointEvaluation(np.array([-2.5])).log_density
    array([-2.5])
    """

    log_density: Array
    gradient: Array | None = None

    @property
    def log_prior(self) -> None:
        """Return None: no split is known."""

    @property
    def log_likelihood(self) -> None:
        """Return None: no split is known."""


def as_points(x: Any, dim: int) -> Array:
    """Return points as a float64 array ``(n, dim)``; a single point ``(dim,)`` becomes one row."""
    if type(x) is np.ndarray and x.dtype == np.float64 and x.ndim == 2 and x.shape[1] == dim:
        return x  # the checks below take as long as a small Stan program
    try:
        points = np.atleast_2d(np.asarray(x, dtype=np.float64))
    except (TypeError, ValueError):
        raise ModelError(f"points of type {type(x).__name__}: expected numbers (n_points, {dim})") from None
    if points.ndim != 2 or points.shape[1] != dim:
        raise ModelError(f"points have shape {np.shape(x)}; expected (n_points, {dim}) on the unconstrained space")
    return points


def named_point(target: BaseTarget, values: Mapping[str, Any], argument: str) -> Array:
    """Return the unconstrained point ``(1, dim)`` of the values of all variables, by name."""
    try:
        arrays = {name: np.asarray(value, dtype=np.float64)[None] for name, value in values.items()}
        x = target.unconstrain(arrays)
    except KeyError as error:
        raise ModelError(f"{argument}: the value of {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, ModelError) else ModelError(f"{argument}: {error}") from None
    lost = np.flatnonzero(~np.isfinite(x[0]))
    if lost.size:
        raise ModelError(
            f"{argument}: {target.names[lost[0]]} is {x[0, lost[0]]} on the unconstrained scale: give a number inside of its "
            "bounds"
        )
    known = target.constrain(x)
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ModelError(f"{argument}: {unknown[0]!r} is not a variable of the model; those are {', '.join(known)}")
    return x


def prior_draws(target: BaseTarget, drawn: Any, n: int) -> Array:
    """Return draws of the prior by a user's function; check that they are ``n`` points."""
    draws = as_points(drawn, target.dim)
    if len(draws) != n:
        raise ModelError(f"sample_prior of {target.label} returned {len(draws)} draws where {n} were asked for")
    return draws


def sanitize(value: Array, gradient: Array | None = None) -> tuple[Array, Array | None]:
    """Replace NaN and +inf log densities by -inf, and rows of non-finite gradients by zero."""
    value = np.where(np.isnan(value) | (value == np.inf), -np.inf, value)
    if gradient is not None:
        finite = np.isfinite(gradient).all(axis=1) & np.isfinite(value)
        if not finite.all():
            gradient = np.where(finite[:, None], gradient, 0.0)
    return value, gradient


def undefined(*parts: Array) -> NDArray[np.bool_]:
    """Return where a density is NaN or +inf ``(n,)``, given the computed logs of its factors.

    A factor of zero makes the density zero for any other factors: outside the prior's support a likelihood may be NaN.
    """
    broken = np.any([np.isnan(part) | (part == np.inf) for part in parts], axis=0)
    zero = np.any([part == -np.inf for part in parts], axis=0)
    return broken & ~zero


class PriorTerms:
    """The log prior density in model space, without Jacobians, as a sum of terms by variable."""

    names: tuple[str, ...]  #: variables that the terms are of

    def values(self, x: Array) -> Array:
        """Return the terms ``(n_points, len(names))``."""
        raise NotImplementedError

    def sum(self, x: Array, weights: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return the sum weighted by ``weights`` ``(len(names),)``, ``(n_points,)``, and its gradient or None."""
        raise NotImplementedError


class WholePrior(PriorTerms):
    """The log prior as one term, for a target whose model space is the unconstrained one."""

    names = ("prior",)

    def __init__(self, target: BaseTarget) -> None:
        self._target = target

    def values(self, x: Array) -> Array:
        return self._target.evaluate_prior(x)[0][:, None]

    def sum(self, x: Array, weights: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        value, slope = self._target.evaluate_prior(x, gradient)
        return weights[0] * value, None if slope is None else weights[0] * slope


@runtime_checkable
class Target(Protocol):
    """Interface of a model for all methods; see the module docstring and ``docs/targets.md``.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> isinstance(target, pb.Target)
    True
    """

    dim: int
    names: tuple[str, ...]

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        """Return one pass over the points ``x`` ``(n, dim)``."""
        ...

    def log_density(self, x: Array) -> Array:
        """Return the joint log density ``(n,)``, including Jacobians and all constants."""
        ...

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the joint log density ``(n,)`` and its gradient ``(n, dim)``."""
        ...

    def constrain(self, x: Array, rng: np.random.Generator | None = None) -> dict[str, Array]:
        """Return points in model space: name → ``(n, *shape)``."""
        ...


class BaseTarget:
    """Derive the protocol from :meth:`evaluate`; subclasses override members that they can improve.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.targets.protocol import BaseTarget, Evaluation
    >>> class Flipped(BaseTarget):
    ...     dim, names, label = 1, ("x",), "one coin, seven heads of ten"
    ...     def evaluate(self, x, gradient=False):
    ...         s = x[:, 0]
    ...         return Evaluation(-0.5 * s**2, 7 * s - 10 * np.log1p(np.exp(s)))
    >>> Flipped().log_density(np.zeros((3, 1))).round(2)
    array([-6.93, -6.93, -6.93])
    """

    dim: int  #: number of unconstrained coordinates
    names: tuple[str, ...]  #: flat unconstrained names such as ``beta[0]`` or ``sigma_log__``
    label: str = "target"  #: name of the model in messages, e.g. ``"PyMC model"`` or a file name
    has_split: bool = False  #: whether :meth:`evaluate` separates prior and likelihood
    has_gradient: bool = True  #: whether gradients are computed, not approximated by differences of values
    has_potentials: bool = False  #: whether ``log_likelihood`` has terms other than the observed variables
    is_estimated: bool = False  #: whether the likelihood is known only through ``log_likelihood_estimate``
    is_prior: bool = False  #: whether the whole density is a prior, without a likelihood
    log_concave: bool = False  #: whether the density is known to be log-concave, so that it has one mode
    circular: Sequence[int] = ()  #: angles and unit vectors: values do not determine their turn or length
    coords: Mapping[str, Sequence[Any]] = {}  #: ArviZ's coords, for the variables of :meth:`constrain`
    dims: Mapping[str, Sequence[str]] = {}  #: ArviZ's dims
    observed_data: Mapping[str, Array] = {}  #: the group of that name
    constant_data: Mapping[str, Array] = {}  #: the group of that name
    parameter_names: tuple[str, ...] = ()  #: variables of :meth:`constrain` that are parameters; empty for all of them
    #: group of a result → variables of :meth:`constrain` that belong to it, and their names there
    generated_groups: Mapping[str, Mapping[str, str]] = {}
    observations: Observations | None = None  #: the rows of the data
    #: ``Factors``, or an object with ``at(phi)``: a Gaussian times sites that each depend on one linear predictor
    factors: Any = None
    likelihood_factors: Any = None  #: the sites of the observations in all coordinates, under a flat prior
    #: an object with ``at(phi)``: sparse factors of latent variables given hyper-parameters
    latent_gaussian: Any = None
    simulate: Any = None  #: ``(x, rng) ->`` one data set per point
    likelihood_is_known: bool = True  #: whether :meth:`evaluate` has the likelihood, and not only its estimate
    #: an object with ``draw(x, rng)``, one data set per point by name, and ``on(data)``, the same target on such a data set
    predictive: Any = None
    log_likelihood_estimate: Any = None  #: ``(x, rng) -> (n,)``, logs of independent unbiased estimates
    state_space: Any = None  #: the series of the likelihood: model, y, covariates and parameters_at(x)
    rest: Any = None  #: the target of all terms except a likelihood that may be estimated, such as that of the series
    prior_from_uniform: Any = None  #: ``u (n, n_uniforms) -> x (n, dim)``, the prior's inverse Rosenblatt transform
    n_uniforms: int | None = None  #: dimension of the cube that ``prior_from_uniform`` maps to the prior, if it can
    evidence_note: str | None = None  #: what the normalising constant is, if it is not a probability of the data
    stated_propriety: Any = None  #: whether the prior is proper, if the program states it
    #: Log integral of the prior as written: 0 for a normalised one, NaN if unknown; None if the target does not state it.
    log_prior_normalizer: Any = None
    log_prior_normalizer_se: Any = 0.0  #: its standard error
    log_prior_normalizer_df: Any = float("inf")  #: degrees of freedom of that error

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        """Return one pass over the points ``x`` ``(n, dim)``; both parts if the split is known, else the joint."""
        raise NotImplementedError(f"{type(self).__name__} must define evaluate(x, gradient)")

    @property
    def full(self) -> BaseTarget:
        """Return the target of which these are all or some coordinates: itself, or the target of a block."""
        return self

    @property
    def free(self) -> Index:
        """Return the indices of these coordinates in ``full`` ``(dim,)``."""
        return np.arange(self.dim)

    @property
    def others(self) -> Index:
        """Return the coordinates of ``full`` that are fixed while these move."""
        return np.empty(0, dtype=np.intp)

    @property
    def point(self) -> Array:
        """Return a point of ``full`` that has the fixed values of the other coordinates."""
        return np.zeros(self.dim)

    def set_others(self, point: Array) -> bool:
        """Hold the other coordinates at their values in ``point`` of ``full``; return whether any changed."""
        return False

    def embed(self, x: Array) -> Array:
        """Return points ``(n, dim)`` as points of ``full``."""
        return as_points(x, self.dim)

    @property
    def split_problem(self) -> str | None:
        """Return why prior and likelihood cannot be separated, and what to do; None if they can."""
        return None if self.has_split else f"{self.label}: prior and likelihood cannot be separated"

    def evaluate_prior(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return the log prior ``(n,)`` and its gradient ``(n, dim)`` or None, without the data where possible."""
        parts = self.evaluate(x, gradient)
        if not isinstance(parts, Evaluation):
            raise ModelError(str(self.split_problem))
        return parts.log_prior, parts.log_prior_gradient

    @property
    def prior_terms(self) -> PriorTerms:
        """Return the log prior density in model space by variable, or as one term if variables are not known."""
        return WholePrior(self)

    def evaluate_potentials(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return the part of ``log_likelihood`` that is not of observed variables ``(n,)``, and its gradient or None."""
        return np.zeros(len(x)), np.zeros_like(x) if gradient else None

    def explain(self, x: Array) -> str:
        """Return why the log density is not finite at one point ``(dim,)``; empty if the target cannot tell."""
        return ""

    def tempered(self, power: float) -> BaseTarget | None:
        """Return the target with its likelihood to a power in a special form; None if it has none."""
        return None

    def with_fixed_batch_size(self) -> BaseTarget:
        """Return the same density with one compiled program, for few evaluations."""
        return self

    def log_density(self, x: Array) -> Array:
        """Return the joint log density ``(n,)``, including Jacobians and all constants."""
        return self.evaluate(x).log_density

    def undefined(self, x: Array) -> NDArray[np.bool_]:
        """Return which of the points ``(n, dim)`` have a computed density that is NaN or +inf instead of zero.

        Every method treats such a density as zero. Targets without this information return False for all points.
        """
        return np.zeros(len(x), dtype=bool)

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the joint log density ``(n,)`` and its gradient ``(n, dim)``."""
        evaluation = self.evaluate(x, gradient=True)
        assert evaluation.gradient is not None
        return evaluation.log_density, evaluation.gradient

    def hessian(self, x: Array, part: str = "joint") -> Array:
        """Return the Hessian ``(n, dim, dim)`` of the log ``"joint"`` or ``"likelihood"``, by central differences."""
        x = as_points(x, self.dim)
        return difference_hessian(lambda points: gradient_of(self.evaluate(points, gradient=True), part), x)

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` independent draws of the prior on the unconstrained space ``(n, dim)``."""
        raise PriorSamplingError(f"{self.label}: the prior cannot be sampled; use initial='laplace'")

    def prior_target(self) -> BaseTarget | None:
        """Return the prior as a target, for sampling if it cannot be drawn from directly; None if there is none."""
        return None

    def check_possible(self) -> None:
        """Raise an error that names the reason if the density is zero or NaN at every starting point."""
        self.initial_points(1, np.random.default_rng(0))

    def initial_points(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` dispersed points ``(n, dim)`` of finite density to start from; no proper prior is needed."""
        return rng.uniform(-2.0, 2.0, size=(n, self.dim))

    @property
    def values_per_draw(self) -> int:
        """Return how many numbers a result stores for a draw."""
        return self.dim

    def constrain(self, x: Array, rng: np.random.Generator | None = None) -> dict[str, Array]:
        """Return points in model space: name → ``(n, *shape)``."""
        return {"x": as_points(x, self.dim)}

    def unconstrain(self, values: Mapping[str, Array]) -> Array:
        """Return the inverse of :meth:`constrain` on the parameters: ``(n, dim)``."""
        return as_points(values["x"], self.dim)

    def pointwise_log_likelihood(self, x: Array) -> dict[str, Array]:
        """Return log likelihood of every observation by observed variable: name → ``(n, *shape)``."""
        raise ModelError(f"{self.label}: no pointwise log likelihood is known")

    def digests(self) -> dict[str, str]:
        """Return digests that identify this target: name of a part → SHA-256.

        They are of program and data if these can be read, by default of values at fixed points, to the last bit.
        """
        return digests_of_values(self)

    def with_data(self, new: Mapping[str, Any]) -> BaseTarget:
        """Return the same target on new data, without recompiling if the backend allows it."""
        raise ModelError(f"{self.label}: the data cannot be replaced")

    def append(self, new: Mapping[str, Any]) -> BaseTarget:
        """Return the target with new rows of data appended.

        Raises
        ------
        ModelError
            If the target does not define which of its data are rows, or a name is unknown.
        """
        raise ModelError(f"{self.label}: new rows cannot be appended; give the target on all data, old and new")


def gradient_of(evaluation: Evaluation | JointEvaluation, part: str) -> Array:
    """Return the gradient of the part asked for."""
    if part == "joint":
        gradient = evaluation.gradient
    elif part == "likelihood" and isinstance(evaluation, Evaluation):
        gradient = evaluation.log_likelihood_gradient
    else:
        raise ModelError(f"part={part!r}: expected 'joint', or 'likelihood' if prior and likelihood are separate")
    assert gradient is not None
    return gradient

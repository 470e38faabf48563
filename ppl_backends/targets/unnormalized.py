r"""Targets whose likelihood is known up to a constant Z(θ) that depends on the parameters.

The posterior is then p(θ) f(y | θ) / Z(θ), with f computable and Z not. Methods that evaluate a density cannot use such a
target and are told so; methods that draw auxiliary data from the model (:mod:`ppl_backends.kernels.exchange`) can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.numerics.differences import central_differences
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, JointEvaluation

__all__ = ["CallableLikelihood", "Unnormalized", "UnnormalizedLikelihood", "UnnormalizedTarget", "refusal"]


def refusal(name: str) -> str:
    """Why a method cannot use an unnormalised likelihood, and what can."""
    return (
        f"observed variable '{name}' is pb.Unnormalized: the normalising constant of its likelihood is not known, so there "
        "is no log density; use pb.steps.Exchange(), NoisyExchange(), MALAExchange(), NoisyMALAExchange() or "
        "NoisyLangevin() in pm.sample(step=...) or pb.sample_mcmc"
    )


class UnnormalizedLikelihood:
    """f(y | x) and a way to draw y from f(· | x) / Z(x), at points of the target's unconstrained space.

    Attributes
    ----------
    name : str
    exact : bool
        Whether the draws are declared to follow the model exactly.
    observed : ndarray (1, ...)
        The data, as a batch of one.
    depends_on : ndarray of bool (dim,)
        Coordinates that the likelihood sees.
    """

    name: str
    exact: bool
    observed: NDArray
    depends_on: NDArray[np.bool_]

    def log_unnormalized(self, x: Array, data: NDArray) -> Array:
        """Log f ``(n,)`` of ``n`` data sets at one point ``(dim,)``."""
        raise NotImplementedError

    def gradient(self, x: Array, data: NDArray) -> Array:
        """Gradient in x of log f, ``(n, dim)``; by central differences unless overridden."""
        return central_differences(lambda points: [self.log_unnormalized(x, data) for x in points], x[None])[0].T

    def simulate(self, x: Array, n: int, rng: np.random.Generator) -> NDArray:
        """``n`` data sets ``(n, ...)`` from the model at ``x`` ``(dim,)``."""
        raise NotImplementedError


class UnnormalizedTarget(BaseTarget):
    """A target that holds an unnormalised likelihood: everything but a log density.

    Parameters
    ----------
    tractable : BaseTarget
        All other terms: the prior, and other observed variables.
    likelihood : UnnormalizedLikelihood
    """

    has_split = True

    def __init__(self, tractable: BaseTarget, likelihood: UnnormalizedLikelihood) -> None:
        self.tractable, self.likelihood = tractable, likelihood
        self.dim, self.names, self.label = tractable.dim, tractable.names, tractable.label
        self.coords, self.dims = tractable.coords, tractable.dims
        self.observed_data = {**tractable.observed_data, likelihood.name: likelihood.observed[0]}
        self.constant_data = tractable.constant_data

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        """Refused: Z(θ) is not known."""
        raise ModelError(refusal(self.likelihood.name))

    @property
    def factors(self) -> Any:
        """Refused."""
        raise ModelError(refusal(self.likelihood.name))

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        """Draws of the prior."""
        return self.tractable.sample_prior(n, rng)

    def initial_points(self, n: int, rng: np.random.Generator) -> Array:
        """Points of finite density of all other terms."""
        return self.tractable.initial_points(n, rng)

    def constrain(self, x: Array, rng: np.random.Generator | None = None) -> dict[str, Array]:
        """Points in model space."""
        return self.tractable.constrain(x, rng)

    def unconstrain(self, values: Mapping[str, Array]) -> Array:
        """Inverse of :meth:`constrain`."""
        return self.tractable.unconstrain(values)

    def simulate(self, x: Array, rng: np.random.Generator) -> NDArray:
        """One data set ``(n, ...)`` per point ``(n, dim)``."""
        return np.concatenate([self.likelihood.simulate(point, 1, rng) for point in np.atleast_2d(x)])


class CallableLikelihood(UnnormalizedLikelihood):
    """An unnormalised likelihood from plain functions of a point and a batch of data sets."""

    def __init__(
        self,
        dim: int,
        log_unnormalized: Callable[[Array, NDArray], Array],
        simulate: Callable[[Array, int, np.random.Generator], NDArray],
        observed: Any,
        gradient: Callable[[Array, NDArray], Array] | None = None,
        exact: bool = False,
        name: str = "y",
    ) -> None:
        self.name, self.exact, self.observed = name, bool(exact), np.asarray(observed)[None]
        self.depends_on = np.ones(dim, dtype=bool)
        self._log_unnormalized, self._simulate, self._gradient = log_unnormalized, simulate, gradient

    def log_unnormalized(self, x: Array, data: NDArray) -> Array:
        """As given, checked for its shape."""
        value = np.asarray(self._log_unnormalized(x, data), dtype=np.float64)
        if value.shape != (len(data),):
            raise ModelError(f"log_unnormalized returned shape {value.shape} for {len(data)} data sets; expected (n,)")
        return value

    def gradient(self, x: Array, data: NDArray) -> Array:
        """As given, else by central differences."""
        if self._gradient is None:
            return super().gradient(x, data)
        return np.broadcast_to(np.asarray(self._gradient(x, data), dtype=np.float64), (len(data), len(x)))

    def simulate(self, x: Array, n: int, rng: np.random.Generator) -> NDArray:
        """As given, checked for its shape."""
        data = np.asarray(self._simulate(x, n, rng))
        return checked_draws(data, n, self.observed.shape[1:], self.name)


def checked_draws(data: NDArray, n: int, shape: tuple[int, ...], name: str) -> NDArray:
    """The simulator's draws, if there are ``n`` of the observed shape."""
    if data.shape != (n, *shape):
        expected = f"({n}, {', '.join(map(str, shape))})" if shape else f"({n},)"
        raise ModelError(
            f"the simulator of '{name}' returned shape {data.shape} for {n} data sets; expected {expected}"
        )
    return data


def Unnormalized(
    name: str | None = None,
    *parameters: Any,
    observed: Any = None,
    simulator: Any = None,
    logp: Callable | None = None,
    random: Callable | None = None,
    log_unnormalized: Callable | None = None,
    simulate: Callable | None = None,
    gradient: Callable | None = None,
    prior: Any = None,
    exact: bool = False,
) -> Any:
    r"""A likelihood f(y | θ) / Z(θ) whose normalising constant Z is not known.

    With a name, inside ``pm.Model``, an observed variable of the model: ``Unnormalized("y", theta, simulator=...)``, or
    ``Unnormalized("y", *parameters, logp=..., random=...)`` as in ``pm.CustomDist``. Without a name, a target:
    ``Unnormalized(simulator=..., observed=..., prior=target)`` or with plain functions
    ``Unnormalized(log_unnormalized=..., simulate=..., observed=..., prior=target)``.

    Parameters
    ----------
    name : str, optional
    *parameters : variable
        Of the PyMC model. A ready simulator takes one vector.
    observed : array
        The data. With a ready simulator its statistics are kept in their place.
    simulator : ExponentialFamily, optional
        One of :mod:`ppl_backends.simulators`, in place of the two functions.
    logp : callable, optional
        PyMC: ``(value, *parameters) -> scalar`` of PyTensor, log f.
    random : callable, optional
        PyMC: ``(*parameters, rng=None, size=None)``, NumPy; ``size=(n,)`` asks for ``n`` data sets along a first axis.
    log_unnormalized : callable, optional
        Target: ``(x, data) -> (n,)``, log f of ``n`` data sets ``(n, ...)`` at one point ``(dim,)`` of ``prior``.
    simulate : callable, optional
        Target: ``(x, n, rng) -> (n, ...)``.
    gradient : callable, optional
        Target: ``(x, data) -> (n, dim)``, gradient of log f in x; by default differences. For the Langevin steps.
    prior : Target, optional
        All other terms of the posterior.
    exact : bool
        Declares that ``random`` or ``simulate`` draws exactly from f / Z. A Markov chain run for a while does not.

    Returns
    -------
    TensorVariable or UnnormalizedTarget

    Raises
    ------
    ModelError
        If there is no simulator, or arguments of both forms are mixed; one line.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.simulators import Ising
    >>> ising = Ising((4, 4))
    >>> lattice = ising.simulate([0.3], 1, np.random.default_rng(1))[0]
    >>> prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> target = pb.Unnormalized(simulator=ising, observed=lattice, prior=prior)
    >>> idata = pb.sample_mcmc(target, step=pb.steps.Exchange(), draws=2000, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'exact'
    """
    if observed is None:
        raise ModelError("pb.Unnormalized needs observed=: without data there is nothing to normalise")
    if name is not None:
        if log_unnormalized is not None or simulate is not None or gradient is not None or prior is not None:
            raise ModelError("log_unnormalized=, simulate=, gradient= and prior= make a target and take no name")
        from ppl_backends.targets.pymc.unnormalized import unnormalized_variable

        return unnormalized_variable(name, parameters, observed, simulator, logp, random, exact)
    if logp is not None or random is not None:
        raise ModelError("logp= and random= make a variable of a PyMC model: give its name first")
    if prior is None:
        raise ModelError("prior= is missing: the target of all other terms; inside of a pm.Model give a name first")
    return _target(as_target(prior), observed, simulator, log_unnormalized, simulate, gradient, exact)


def _target(
    prior: BaseTarget,
    observed: Any,
    simulator: Any,
    log_unnormalized: Callable | None,
    simulate: Callable | None,
    gradient: Callable | None,
    exact: bool,
) -> UnnormalizedTarget:
    """The target form."""
    if simulator is not None:
        if log_unnormalized is not None or simulate is not None or gradient is not None:
            raise ModelError("give either simulator= or log_unnormalized= and simulate=")
        if prior.dim != simulator.n_parameters:
            raise ModelError(f"prior has {prior.dim} coordinates and the simulator {simulator.n_parameters} parameters")
        likelihood = CallableLikelihood(
            prior.dim,
            simulator.log_unnormalized,
            simulator.simulate_statistics,
            simulator.statistics(observed),
            lambda x, data: data,
            simulator.exact,
        )
        return UnnormalizedTarget(prior, likelihood)
    if log_unnormalized is None:
        raise ModelError("log_unnormalized= is missing: log f(y | x) up to its normalising constant")
    if simulate is None:
        raise ModelError("simulate= is missing: a likelihood without its constant can only be used with a simulator")
    return UnnormalizedTarget(
        prior, CallableLikelihood(prior.dim, log_unnormalized, simulate, observed, gradient, exact)
    )

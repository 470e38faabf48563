"""``pb.Unnormalized``: an unnormalised likelihood as a variable of a PyMC model, or as a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppl_backends.errors import ModelError
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import BaseTarget
from ppl_backends.targets.unnormalized import CallableLikelihood, UnnormalizedTarget


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
    r"""Return a likelihood f(y | θ) / Z(θ) with unknown normalising constant Z.

    With a name, inside ``pm.Model``, an observed variable of the model: ``Unnormalized("y", theta, simulator=...)``, or
    ``Unnormalized("y", *parameters, logp=..., random=...)`` as in ``pm.CustomDist``. Without a name, a target:
    ``Unnormalized(simulator=..., observed=..., prior=target)`` or with plain functions
    ``Unnormalized(log_unnormalized=..., simulate=..., observed=..., prior=target)``.

    Parameters
    ----------
    name : str, optional
    *parameters : variable
        Parameters of the PyMC model. A ready-made simulator takes one vector.
    observed : array
        The data. With a ready-made simulator only its statistics are kept.
    simulator : ExponentialFamily, optional
        A simulator of :mod:`ppl_backends.simulators`, which replaces the two functions.
    logp : callable, optional
        PyMC: ``(value, *parameters) -> scalar`` of PyTensor, log f.
    random : callable, optional
        PyMC: ``(*parameters, rng=None, size=None)``, NumPy; ``size=(n,)`` requests ``n`` data sets along a first axis.
    log_unnormalized : callable, optional
        Target: ``(x, data) -> (n,)``, log f of ``n`` data sets ``(n, ...)`` at one point ``(dim,)`` of ``prior``.
    simulate : callable, optional
        Target: ``(x, n, rng) -> (n, ...)``.
    gradient : callable, optional
        Target: ``(x, data) -> (n, dim)``, gradient of log f in x; by default differences. For the Langevin steps.
    prior : Target, optional
        All other terms of the posterior.
    exact : bool
        Whether ``random`` or ``simulate`` draws exactly from f / Z. The end of a Markov chain does not.

    Returns
    -------
    TensorVariable or UnnormalizedTarget

    Raises
    ------
    ModelError
        If there is no simulator, or arguments of both forms are mixed.

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
        raise ModelError("pb.Unnormalized needs observed=, the data")
    if name is not None:
        if log_unnormalized is not None or simulate is not None or gradient is not None or prior is not None:
            raise ModelError("log_unnormalized=, simulate=, gradient= and prior= make a target and take no name")
        from ppl_backends.targets.pymc.unnormalized import unnormalized_variable  # PyMC only where it is used

        return unnormalized_variable(name, parameters, observed, simulator, logp, random, exact)
    if logp is not None or random is not None:
        raise ModelError("logp= and random= make a variable of a PyMC model: give its name first")
    if prior is None:
        raise ModelError("prior= is missing: give the target of all other terms; inside a pm.Model give a name first")
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
    """Return the target form."""
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

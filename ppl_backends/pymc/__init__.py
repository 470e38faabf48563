"""PyMC as a host: methods of this package in place of PyMC's own samplers, with the result that ``pm.sample`` returns.

* ``pb.pymc.sample(method="smc")`` works with every PyMC version that the package supports.
* ``pm.sample(sampler=pb.pymc.SMC())`` works if the installed PyMC has its contract for whole-model samplers
(``pymc.sampling.samplers``). :data:`HAS_CONTRACT` says whether it has.

Both return a result with the names, dims, coords and groups of ``pm.sample``, and the method's figures in addition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppl_backends.errors import ModelError
from ppl_backends.options import checked, choice, entries, flag, instance, integer, none
from ppl_backends.pymc.methods import METHODS, Run, find_method, run_method
from ppl_backends.pymc.samplers import HAS_CONTRACT, Sampler, checked_model

__all__ = [
    "ABC",
    "EP",
    "HAS_CONTRACT",
    "IBIS",
    "INLA",
    "MCMC",
    "METHODS",
    "PMMH",
    "SMC",
    "SMC2",
    "VI",
    "Importance",
    "Laplace",
    "ParticleGibbs",
    "sample",
]


KEYWORDS = none | instance(Mapping, "a dict of arguments")
METHOD = choice(*METHODS) | instance(Sampler, "a sampler of pb.pymc")


@checked(
    method=METHOD,
    chains=none | integer(1),
    tune=none | integer(0),
    var_names=none | entries("names of variables"),
    idata_kwargs=KEYWORDS,
    compute_convergence_checks=flag,
)
def sample(
    model: Any = None,
    *,
    method: str | Sampler = "smc",
    draws: int = 1000,
    tune: int | None = None,
    chains: int | None = None,
    cores: int | None = None,
    initvals: Any = None,
    random_seed: Any = None,
    progressbar: bool = True,
    var_names: Sequence[str] | None = None,
    idata_kwargs: Mapping[str, Any] | None = None,
    compute_convergence_checks: bool = True,
    **options: Any,
) -> Any:
    """Draw from the posterior of a PyMC model by a method of this package; return a result like that of ``pm.sample``.

    Parameters
    ----------
    model : pymc.Model, optional
        The model on the context stack by default.
    method : str or Sampler
        ``"smc"``, ``"importance"``, ``"mcmc"``, ``"ibis"``, ``"abc"``, ``"smc2"``, ``"pmmh"``, ``"particle_gibbs"``,
        ``"laplace"``, ``"ep"``, ``"vi"`` or ``"inla"``; or an object such as ``pb.pymc.SMC(kernel="hmc")``.
    draws : int
        Draws of each chain.
    tune : int, optional
        Number of tuning draws before the kept ones, for Markov chains only; the other methods have no warm-up.
    chains : int, optional
        The method's default number if not given; 4 for approximations, whose draws are independent.
    cores : int, optional
    initvals : dict or list of dict, optional
        Starting values of Markov chains.
    random_seed : int, sequence of int or numpy.random.Generator, optional
    progressbar : bool
    var_names : sequence of str, optional
        Variables to keep in the posterior; all by default.
    idata_kwargs : dict, optional
        ``{"log_likelihood": True}``, ``{"log_prior": True}``.
    compute_convergence_checks : bool
        Whether to give the method's verdict as warnings. The result stores the verdict in any case.
    **options
        Further arguments of the method's own function, such as :func:`~ppl_backends.sample_smc` for ``"smc"``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``posterior`` with the names, dims and coords of ``pm.sample``, ``sample_stats``, ``observed_data``,
        ``constant_data``, and the groups asked for. Attribute ``log_evidence`` if the method estimates it.

    Raises
    ------
    ModelError
        If the method is unknown, or does not support an argument; the message names the argument.

    Examples
    --------
    >>> import pymc as pm
    >>> import ppl_backends as pb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 1)
    ...     _ = pm.Normal("y", mu, 1, observed=[1.0, 2.0])
    ...     idata = pb.pymc.sample(method="importance", draws=64, chains=2, random_seed=1, progressbar=False)
    >>> dict(idata["posterior"].sizes)
    {'chain': 2, 'draw': 64}
    """
    if isinstance(method, Sampler):
        if options:
            name, kind = next(iter(options)), type(method).__name__
            raise ModelError(f"{name}= is an option of {kind}: write method={kind}({name}=...)")
        options = method.options
    name = method.method if isinstance(method, Sampler) else method
    find_method(name)
    run = Run(
        model=checked_model(model),
        draws=draws,
        tune=tune,
        chains=chains,
        cores=cores,
        initvals=initvals,
        random_seed=random_seed,
        progressbar=progressbar,
        var_names=var_names,
        idata_kwargs=idata_kwargs,
        compute_convergence_checks=compute_convergence_checks,
    )
    return run_method(name, run, options)


class SMC(Sampler):
    """Tempering SMC with evidence, for ``pm.sample(sampler=pb.pymc.SMC())``; options of :func:`~ppl_backends.sample_smc`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.SMC(kernel="hmc")
    SMC(kernel='hmc')
    """

    method = "smc"


class IBIS(Sampler):
    """SMC over the data in their order; options of :func:`~ppl_backends.sample_ibis`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.IBIS(max_moves=20)
    IBIS(max_moves=20)
    """

    method = "ibis"


class Importance(Sampler):
    """Importance sampling with evidence; options of :func:`~ppl_backends.sample_importance`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.Importance(approximation="laplace")
    Importance(approximation='laplace')
    """

    method = "importance"


class MCMC(Sampler):
    """Markov chains of ``pb.steps``, in one batch; options of :func:`~ppl_backends.sample_mcmc`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.MCMC(step=pb.steps.RandomWalk()).method
    'mcmc'
    """

    method = "mcmc"


class ABC(Sampler):
    """Approximate Bayesian computation for ``pm.Simulator``; options of :func:`~ppl_backends.sample_abc`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.ABC(epsilon=0.1)
    ABC(epsilon=0.1)
    """

    method = "abc"


class SMC2(Sampler):
    """SMC² for models with ``pb.StateSpace``; options of :func:`~ppl_backends.sample_smc2`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.SMC2(n_particles=64)
    SMC2(n_particles=64)
    """

    method = "smc2"


class PMMH(Sampler):
    """Particle marginal Metropolis–Hastings for ``pb.StateSpace``; options of :func:`~ppl_backends.sample_pmmh`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.PMMH(n_particles=100)
    PMMH(n_particles=100)
    """

    method = "pmmh"


class ParticleGibbs(Sampler):
    """Particle Gibbs for ``pb.StateSpace``; options of :func:`~ppl_backends.sample_particle_gibbs`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.ParticleGibbs(n_particles=30)
    ParticleGibbs(n_particles=30)
    """

    method = "particle_gibbs"


class Laplace(Sampler):
    """Draws of the Laplace approximation; options of :func:`~ppl_backends.fit_laplace`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.Laplace()
    Laplace()
    """

    method = "laplace"


class EP(Sampler):
    """Draws of expectation propagation; options of :func:`~ppl_backends.fit_ep`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.EP(damping=0.5)
    EP(damping=0.5)
    """

    method = "ep"


class VI(Sampler):
    """Draws of a variational Gaussian; options of :func:`~ppl_backends.fit_vi`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.VI(family="dense")
    VI(family='dense')
    """

    method = "vi"


class INLA(Sampler):
    """Draws of nested Laplace approximations; options of :func:`~ppl_backends.fit_inla`.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.pymc.INLA(points=15)
    INLA(points=15)
    """

    method = "inla"

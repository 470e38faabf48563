"""``sample_particle_gibbs``: parameters and states of a state-space model, updated alternately."""

from __future__ import annotations

import warnings
from concurrent.futures import Executor
from typing import Any

import numpy as np

from ppl_backends.errors import SamplerWarning, user_level
from ppl_backends.mcmc.sample import sample_mcmc
from ppl_backends.options import array, checked, flag, integer, none
from ppl_backends.results.convergence import FEW_EFFECTIVE, effective_draws
from ppl_backends.results.inference_data import group, with_states
from ppl_backends.steps.particle import ParticleGibbs
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.state_space.target import axis_of_rows

_FEWEST_SHARE = 0.1  # of the draws of a short run, if that is less than FEW_EFFECTIVE


@checked(tune=integer(0), n_particles=integer(2), covariance=none | array("a covariance matrix"), states=flag)
def sample_particle_gibbs(
    model: Any = None,
    *,
    data: Any = None,
    draws: int = 2000,
    tune: int = 1000,
    chains: int = 8,
    n_particles: int = 20,
    covariance: Any = None,
    states: bool = False,
    executor: Executor | None = None,
    initvals: Any = None,
    random_seed: Any = None,
    progressbar: bool = True,
    **target_options: Any,
) -> Any:
    """Draw from the posterior of a state-space model by particle Gibbs with backward sampling, an exact method.

    All chains move as one batch, so that additional chains add little run time.

    Parameters
    ----------
    model : pymc.Model, Stan program or Target, optional
        A model with ``pb.StateSpace`` that has ``log_transition`` and ``log_initial``; the PyMC model on the context
        stack by default.
    data : dict or path, optional
        Data of a Stan program.
    draws, tune, chains : int
        Draws kept per chain, and tuning draws before them, which adapt the proposals of the parameters and are dropped.
    n_particles : int
        Particles of a conditional filter; one of them is the current path.
    covariance : array (dim, dim), optional
        Shape of the proposals, on the unconstrained space; learnt during tuning by default.
    states : bool
        Whether to keep the path of states of every draw, as variable ``states`` of ``posterior``.
    executor : concurrent.futures.Executor, optional
        Runs the batch elsewhere; the result is the same.
    initvals : dict, list of dict, or array, optional
        Starting points of the chains, as for :func:`~ppl_backends.sample_mcmc`.
    random_seed : int or Generator, optional
    progressbar : bool
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As from :func:`~ppl_backends.sample_mcmc`. ``sample_stats`` holds ``renewed``, the share of rows whose state
        changed in a sweep, and ``renewed_first``, whether the first row's state changed. If it changes rarely,
        increase ``n_particles``.

    Raises
    ------
    ModelError
        If the model has no state-space model, or the state-space model lacks a density.

    Warns
    -----
    SamplerWarning
        If R̂ of a coordinate is above 1.05, or the effective sample size of one is below 400 (or below a tenth of the
        draws of a short run).

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     rho = pm.Uniform("rho", -0.95, 0.95)
    ...     series = pb.state_space.linear_gaussian()
    ...     y = pb.StateSpace("y", series, rho=rho, sigma_x=1.0, sigma_y=0.5, observed=[0.3, 0.9, 0.4, -0.8])
    >>> idata = pb.sample_particle_gibbs(model, draws=100, tune=50, chains=4, random_seed=1, progressbar=False)
    >>> idata.posterior["rho"].shape
    (4, 100)

    References
    ----------
    Andrieu, C., Doucet, A. and Holenstein, R. (2010). Particle Markov chain Monte Carlo methods. *JRSS B* 72(3), 269–342.
    """
    step = ParticleGibbs.specification(n_particles=n_particles, covariance=covariance, keep_states=states)
    target = as_target(model, data, **target_options)
    idata = sample_mcmc(
        target,
        step=step,
        draws=draws,
        tune=tune,
        chains=chains,
        executor=executor,
        initvals=initvals,
        random_seed=random_seed,
        progressbar=progressbar,
    )
    warn_of_slow_chains(idata)
    if not states:
        return idata
    return with_states(idata, group(idata, "sample_stats")["states"].values, *axis_of_rows(target))


def warn_of_slow_chains(idata: Any) -> None:
    """Warn if a parameter has few effective draws, and add the text to attribute ``warnings`` of ``posterior``.

    Parameters and states are drawn given each other. If they determine each other, chains visit a tail of a scale for
    long stretches or not at all, and R̂ does not show it.
    """
    posterior = group(idata, "posterior")
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    if not draws:
        return
    values = {
        name: np.reshape(each.values, (chains, draws, -1)) for name, each in posterior.items() if name != "states"
    }
    worth = {name: float(effective_draws(x).min()) for name, x in values.items()}
    slowest = min(worth, key=lambda name: worth[name])
    if worth[slowest] >= min(FEW_EFFECTIVE, _FEWEST_SHARE * chains * draws):
        return
    more = int(np.ceil(draws * FEW_EFFECTIVE / worth[slowest]))
    said = (
        f"the effective sample size of {slowest} is {worth[slowest]:.0f} of {chains * draws} draws, so its tails may be "
        f"missed: use about draws={more} for {FEW_EFFECTIVE} effective draws, or sample_pmmh, which moves parameters "
        "without a path of states"
    )
    idata["posterior"].attrs["warnings"] = "; ".join(filter(None, (posterior.attrs["warnings"], said)))
    warnings.warn(f"particle Gibbs: {said}", SamplerWarning, stacklevel=user_level())

"""``sample_pmmh``: parameters, and optionally states, of a state-space model by particle marginal Metropolis–Hastings."""

from __future__ import annotations

import warnings
from concurrent.futures import Executor
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.kernels.particle.filters import filter_of
from ppl_backends.kernels.particle.metropolis import grid
from ppl_backends.kernels.particle.narrow import narrow_proposal
from ppl_backends.kernels.particle.paths import replayed_paths
from ppl_backends.mcmc.sample import sample_mcmc
from ppl_backends.options import array, checked, choice, flag, integer, none, number
from ppl_backends.results.convergence import FEW_EFFECTIVE, effective_draws, effective_in_moments
from ppl_backends.results.inference_data import flat_draws, group, with_states
from ppl_backends.steps.particle import FILTERS, ParticleMetropolis
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import Array, BaseTarget
from ppl_backends.targets.state_space.target import axis_of_rows

_LONG_STAY = 50  # draws
_PRECISE = 0.5  # variance of log estimates that does not make chains stay
_NOISY = 20.0  # variance of log estimates above which the number of particles that is needed is not known


@checked(
    tune=integer(0),
    n_particles=choice("auto") | integer(1),
    filter=FILTERS,
    correlation=choice("auto") | number(at_least=0, below=1),
    covariance=none | array("a covariance matrix"),
    states=flag,
)
def sample_pmmh(
    model: Any = None,
    *,
    data: Any = None,
    draws: int = 4000,
    tune: int = 1000,
    chains: int = 8,
    n_particles: int | str = "auto",
    filter: str = "auto",
    correlation: float | str = "auto",
    covariance: Any = None,
    states: bool = False,
    executor: Executor | None = None,
    initvals: Any = None,
    random_seed: Any = None,
    progressbar: bool = True,
    **target_options: Any,
) -> Any:
    """Draw from the posterior of a state-space model by particle marginal Metropolis–Hastings, an exact method.

    All chains move as one batch and learn their proposals together: half are random-walk proposals, half are
    independent proposals (if the covariance is learnt). Starting points are chosen among many points by their
    estimated posterior. :func:`~ppl_backends.sample_smc2` also estimates the evidence.

    Parameters
    ----------
    model : pymc.Model, Stan program or Target, optional
        A model with ``pb.StateSpace``; the PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan program.
    draws, tune, chains : int
        Draws kept per chain, and tuning draws before them, which adapt the proposals and the filters and are dropped.
    n_particles : int or "auto"
        Particles of a filter. ``"auto"`` chooses, at the start and during tuning, the number for which the log
        likelihood estimate has a variance of about one, or the log ratio of correlated estimates has a variance of
        about one half. With fewer particles chains stick.
    filter : {"auto", "bootstrap", "guided", "auxiliary"}
        ``"auto"`` is guided if the model has ``proposal=``.
    correlation : float or "auto"
        The largest share of the rows whose random numbers a proposal's filter keeps, so that its error is correlated
        with that of the current filter and far fewer particles suffice. The filter sorts its particles and takes their
        numbers from a lattice. ``"auto"`` is 0.99 if a state is one number and Numba compiles the filter, and 0
        otherwise and for ``states=True``. With 0 every filter has fresh independent numbers.
    covariance : array (dim, dim), optional
        Shape of the proposals, on the unconstrained space; learnt during tuning by default.
    states : bool
        Whether to keep a path of states for every draw, as variable ``states`` of ``posterior``; not with correlated filters.
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
        As from :func:`~ppl_backends.sample_mcmc`. ``sample_stats`` holds ``n_particles``, ``estimate`` (the chain's
        current log likelihood estimate), ``estimate_variance`` as last measured, and ``seed`` of the filter.

    Raises
    ------
    ModelError
        If the model has no state-space model, or an option is out of range.

    Warns
    -----
    SamplerWarning
        If the likelihood estimates are too noisy, R̂ of a coordinate is above 1.05, or chains stay at overestimates
        for so long that the effective sample size is below 400; the warning says how many draws or particles help.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     rho = pm.Uniform("rho", -0.95, 0.95)
    ...     series = pb.state_space.linear_gaussian()
    ...     y = pb.StateSpace("y", series, rho=rho, sigma_x=1.0, sigma_y=0.5, observed=[0.3, 0.9, 0.4, -0.8])
    >>> idata = pb.sample_pmmh(model, draws=200, tune=200, chains=4, random_seed=1, progressbar=False)
    >>> idata.posterior["rho"].shape
    (4, 200)

    References
    ----------
    Andrieu, C., Doucet, A. and Holenstein, R. (2010). Particle Markov chain Monte Carlo methods. *JRSS B* 72(3), 269–342.
    Deligiannidis, G., Doucet, A. and Pitt, M. K. (2018). The correlated pseudomarginal method. *JRSS B* 80(5), 839–870.
    """
    if states and correlation == "auto":
        correlation = 0.0
    if states and correlation:
        raise ModelError("states=True: a correlated filter does not keep its random numbers; use correlation=0")
    target = as_target(model, data, **target_options)
    step = ParticleMetropolis.specification(
        n_particles=n_particles, filter=filter, correlation=correlation, covariance=covariance
    )
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
    warn_of_stuck_chains(idata)
    few = {name: values[:: max(1, len(values) // 4)] for name, values in flat_draws(idata).items()}
    narrow = narrow_proposal(filter_of(target, filter), target.state_space.parameters_at(target.unconstrain(few)))
    if narrow:
        _warn(idata, narrow)
    return _with_states(target, idata, filter) if states else idata


def warn_of_stuck_chains(idata: Any) -> None:
    """Warn if chains stay long at overestimated likelihoods, and say how many draws or particles help.

    No figure of a chain that stays at one point for a large share of its draws can be trusted; the chain must be longer.
    The text of the warning is added to attribute ``warnings`` of ``posterior``.
    """
    posterior, stats = group(idata, "posterior"), group(idata, "sample_stats")
    draws, n = posterior.sizes["draw"], int(stats["n_particles"].values[0, -1])
    stay, variance = _longest_stay(stats["estimate"].values), float(stats["estimate_variance"].values[0, -1])
    if stay < max(_LONG_STAY, draws // 100):
        return
    x = np.concatenate([np.reshape(each.values, (len(each), draws, -1)) for each in posterior.values()], axis=2)
    # tails that chains seldom reach, and then stay in, show in moments before they show in ranks
    worth = float(min(effective_draws(x).min(), effective_in_moments(x).min()))
    if not worth < FEW_EFFECTIVE:
        return
    more = int(np.ceil(draws * FEW_EFFECTIVE / worth))
    noisy, times = variance > _NOISY, int(np.ceil(max(2.0, variance)))
    better = "give the model a proposal= if it has none" if noisy else f"n_particles={grid(times * n)}"
    better = "sample_smc2, because such estimates need no more particles" if variance < _PRECISE else better
    said = (
        f"the effective sample size is {worth:.0f}, because a chain stayed at one estimate for {stay} of {draws} draws (log "
        f"estimates of {n} particles have variance {variance:.1f}): use about draws={more} for {FEW_EFFECTIVE} effective "
        f"draws, or {better}"
    )
    _warn(idata, said)


def _warn(idata: Any, said: str) -> None:
    """Warn, and add the text to attribute ``warnings`` of ``posterior``."""
    attrs = idata["posterior"].attrs
    attrs["warnings"] = "; ".join(filter(None, (attrs.get("warnings"), said)))
    warnings.warn(f"particle Metropolis: {said}", SamplerWarning, stacklevel=user_level())


def _longest_stay(estimate: Array) -> int:
    """Return the largest number of draws ``(chain, draw)`` for which one estimate was kept."""
    changes = np.diff(estimate, axis=1, prepend=np.nan, append=np.nan) != 0
    return max(int(np.diff(np.flatnonzero(chain)).max()) for chain in changes)


def _with_states(target: BaseTarget, idata: Any, method: str) -> Any:
    """Return the draws, each with a path from the filter with which it was accepted."""
    posterior, stats = group(idata, "posterior"), group(idata, "sample_stats")
    seeds = stats["seed"].values.reshape(-1).view(np.uint64)
    _, first, place = np.unique(seeds, return_index=True, return_inverse=True)
    drawn = {name: values[first] for name, values in flat_draws(idata).items()}
    parameters = target.state_space.parameters_at(target.unconstrain(drawn))
    size = int(stats["n_particles"].values[0, 0])
    by_numba = posterior.attrs["compiled_by"] == "numba"
    paths = replayed_paths(filter_of(target, method), parameters, size, seeds[first], by_numba)[place]
    by_draw = paths.reshape(posterior.sizes["chain"], posterior.sizes["draw"], *paths.shape[1:])
    return with_states(idata, by_draw, *axis_of_rows(target))

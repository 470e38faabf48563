"""``sample_smc2``: posterior, evidence and scores of a state-space model, with filters that grow where it is necessary."""

from __future__ import annotations

import os
import time
from concurrent.futures import Executor
from typing import Any

from ppl_backends.kernels.particle.filters import filter_of
from ppl_backends.options import checked, choice, flag, integer, number
from ppl_backends.smc.filters import FilterPath, Growth
from ppl_backends.smc.ibis import RowsCall, row_settings
from ppl_backends.smc.routes import filter_kernel
from ppl_backends.targets.convert import as_target

_REGENERATING = ("gibbs", "partial")


@checked(
    draws=integer(4),
    n_particles=choice("auto") | integer(1),
    filter=choice("auto", "bootstrap", "guided", "auxiliary"),
    moves=choice("auto", "random_walk", "mixed", "independent", "exchange", *_REGENERATING),
    ess_threshold=number(above=0, below=1),
    min_moves=integer(1),
    max_moves=integer(1),
    states=flag,
)
def sample_smc2(
    model: Any = None,
    *,
    data: Any = None,
    draws: int = 400,
    chains: int = 4,
    n_particles: int | str = "auto",
    filter: str = "auto",
    moves: str = "auto",
    ess_threshold: float = 0.5,
    min_moves: int = 3,
    max_moves: int = 20,
    states: bool = False,
    cores: int | None = None,
    executor: Executor | None = None,
    max_time: float | None = None,
    checkpoint: str | os.PathLike | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    log_prior: bool = False,
    **target_options: Any,
) -> Any:
    """Draw from the posterior of a state-space model by SMC², an exact method, and estimate the evidence.

    The particles are parameters, and each has a particle filter of its own, which estimates the likelihood of the next
    rows. Rows are added while the effective sample size of the weights stays above its threshold. Then the particles are
    resampled and moved by particle Metropolis steps. :func:`~ppl_backends.update_smc` adds more rows later.

    Parameters
    ----------
    model : pymc.Model, Stan program or Target, optional
        A model with ``pb.StateSpace``; the PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan program.
    draws : int
        Particles of the parameters per chain, all of which are kept.
    chains : int
        Independent runs; their spread is part of the evidence's standard error.
    n_particles : int or "auto"
        Particles of a filter, N_x. Results are exact for any number. ``"auto"`` begins with 32. It increases the number
        if the log likelihood estimate has a variance above 1.5 over fresh filters at the same parameters, and decreases it
        again (not below 32) if this variance is below a quarter.
    filter : {"auto", "bootstrap", "guided", "auxiliary"}
        ``"auto"`` is guided if the model has ``proposal=``.
    moves : {"auto", "mixed", "random_walk", "independent", "exchange", "gibbs", "partial"}
        ``"auto"`` alternates between random-walk proposals and draws from the smoothed particles; ``"mixed"`` has draws
        from a Gaussian instead of the latter. ``"random_walk"`` and ``"independent"`` make one kind of proposal.
        ``"exchange"`` moves like ``"auto"``, but replaces filters by larger ones with importance weights. ``"partial"`` also
        moves like ``"auto"``, and after every block of rows draws new filters around paths of states. ``"gibbs"`` alternates
        between moves of the parameters given a path of states and conditional filters that renew the path; the model needs
        ``log_transition`` and ``log_initial``.
    ess_threshold : float
        Relative ESS that every reweighting keeps.
    min_moves, max_moves : int
        Smallest and largest number of moves per block of rows; the number is chosen automatically between them.
    states : bool
        Whether to keep a path of states for every draw, as variable ``states`` of ``posterior``: a draw of the states
        given these parameters and all rows. Rows that an unfinished run has not reached are NaN.
    max_time : float, optional
        Seconds per chain; a chain that exceeds them returns its particles, marked incomplete, after at least one block.
    checkpoint : path, optional
        File that saves the run after every block of rows (with one more file per chain beside it). The same call with
        the same file continues an unfinished run, with the result that it would have had.
    cores, executor, random_seed, progressbar, log_prior
        As for :func:`~ppl_backends.sample_smc`.
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As from :func:`~ppl_backends.sample_ibis`, with ``log_score`` in group ``prequential``. ``sample_stats`` has
        ``n_particles`` and ``estimate_variance`` (measured after the moves) at every stage. Group
        ``unconstrained_posterior`` holds the filters.

    Raises
    ------
    ModelError
        If the model has no ``pb.StateSpace``, or a row has probability zero under every particle.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     rho = pm.Uniform("rho", -0.95, 0.95)
    ...     series = pb.state_space.linear_gaussian()
    ...     y = pb.StateSpace("y", series, rho=rho, sigma_x=1.0, sigma_y=0.5, observed=[0.3, 0.9, 0.4, -0.8])
    >>> idata = pb.sample_smc2(model, draws=100, chains=2, random_seed=1, progressbar=False)
    >>> idata.posterior["rho"].shape, bool(idata.posterior.attrs["log_evidence_se"] < 0.2)
    ((2, 100), True)

    References
    ----------
    Chopin, N., Jacob, P. E. and Papaspiliopoulos, O. (2013). SMC²: an efficient algorithm for sequential analysis of state
    space models. *JRSS B* 75(3), 397–426.
    """
    clock = time.perf_counter()
    target = as_target(model, data, cores=cores, **target_options)
    settings = row_settings(ess_threshold, min_moves, max_moves, max_time)
    asked = {"log_likelihood": False, "log_prior": log_prior, "states": states}
    call = RowsCall(clock, settings, executor, progressbar, asked)
    filters, grow = filter_of(target, filter), isinstance(n_particles, str)
    growth = Growth() if isinstance(n_particles, str) else Growth(first=n_particles, above=float("inf"))
    regenerates = moves if moves in _REGENERATING else "growth" if grow and moves != "exchange" else ""
    return call.sample(
        target,
        filter_kernel("auto" if moves in ("exchange", *_REGENERATING) else moves, target),
        lambda prior: FilterPath(target, prior, filters, growth, regenerates),
        (draws, chains),
        random_seed,
        checkpoint,
        n_particles=n_particles,
        filter=filters.method,
        moves=moves,
    )

"""Steps on the parameters of state-space models, whose states are sampled by particle filters."""

from __future__ import annotations

from typing import Any

from ppl_backends.kernels.particle.filters import filter_of
from ppl_backends.kernels.particle.gibbs import ParticleGibbs as ParticleGibbsAlgorithm
from ppl_backends.kernels.particle.metropolis import ParticleMetropolis as ParticleMetropolisAlgorithm
from ppl_backends.options import array, checked, choice, flag, integer, none, number
from ppl_backends.steps.specification import Step, is_bound, model_on_context
from ppl_backends.targets.protocol import BaseTarget

FILTERS = choice("auto", "bootstrap", "guided", "auxiliary")


class _ParticleStep(Step):
    """A step for models whose series PyMC cannot evaluate; PyMC may evaluate the other terms."""

    def __new__(cls, vars: Any = None, *, model: Any = None, **options: Any) -> Any:
        """Return the options, or a PyMC step method if there is a model."""
        made = super().__new__(cls, vars, model=model, **options)
        if is_bound(made):
            from ppl_backends.targets.pymc.state_space import claim_state_space

            claim_state_space(model_on_context() if model is None else model, made)
        return made

    def make_target(self, model: Any) -> BaseTarget:
        """Return the target of a ``pm.Model``, whose other terms run in forked workers."""
        from ppl_backends.steps.adapter import forkable_target
        from ppl_backends.targets.pymc.state_space import state_space_target

        return forkable_target(model, prior_alone=True, kind=state_space_target)


class ParticleGibbs(_ParticleStep):
    """Particle Gibbs: states given parameters by a conditional particle filter, parameters given states. Exact.

    The model needs ``log_transition`` and ``log_initial``. Few particles suffice for long series, because backward
    sampling draws the paths. If parameters and states depend strongly on each other, chains mix slowly;
    :class:`ParticleMetropolis` does not have this problem. In ``pm.sample`` it needs ``cores=1``.

    Parameters
    ----------
    vars : list of variables or names, optional
        The variables to move; all by default. They must include those that the state-space model depends on.
    n_particles : int
        Particles of a conditional filter; one of them is the current path.
    covariance : array (dim, dim), optional
        Shape of the proposals of the parameters, on the unconstrained space; learnt during tuning by default.
    keep_states : bool
        Whether to store the path of every draw in the statistics, as ``states``; for :func:`ppl_backends.sample_mcmc`.
    model : pm.Model, optional
        The model on the context stack by default; outside of any, the step is for :func:`ppl_backends.sample_mcmc`.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     rho = pm.Uniform("rho", -0.95, 0.95)
    ...     series = pb.state_space.linear_gaussian()
    ...     y = pb.StateSpace("y", series, rho=rho, sigma_x=1.0, sigma_y=0.5, observed=[0.3, 0.9, 0.4, -0.8])
    >>> step = pb.steps.ParticleGibbs()
    >>> idata = pb.sample_mcmc(model, step=step, draws=200, tune=50, random_seed=1, progressbar=False)
    >>> idata.posterior["rho"].shape
    (4, 200)

    References
    ----------
    Andrieu, C., Doucet, A. and Holenstein, R. (2010). Particle Markov chain Monte Carlo methods. *JRSS B* 72(3), 269–342.
    Lindsten, F., Jordan, M. I. and Schön, T. B. (2014). Particle Gibbs with ancestor sampling. *JMLR* 15, 2145–2184.
    """

    @checked(n_particles=integer(2), covariance=none | array("a covariance matrix"), keep_states=flag)
    def __init__(
        self,
        vars: Any = None,
        *,
        n_particles: int = 20,
        covariance: Any = None,
        keep_states: bool = False,
        model: Any = None,
    ) -> None:
        self.n_particles, self.covariance, self.keep_states = n_particles, covariance, keep_states

    def bind(self, target: BaseTarget) -> ParticleGibbsAlgorithm:
        """Return the algorithm on ``target``."""
        return ParticleGibbsAlgorithm(
            target,
            filter_of(target, "bootstrap"),
            n_particles=self.n_particles,
            covariance=self.covariance,
            keeps_states=self.keep_states,
        )


class ParticleMetropolis(_ParticleStep):
    """Particle marginal Metropolis–Hastings: the likelihood is a particle filter's estimate. Exact.

    Filters are compiled by Numba and run in forked workers. A model with functions that Numba cannot compile, and the
    auxiliary filter, need ``cores=1`` in ``pm.sample``. :func:`ppl_backends.sample_pmmh` moves all chains as one
    batch, and they learn their proposals together.

    Parameters
    ----------
    vars : list of variables or names, optional
        The variables to move; all by default. They must include those that the state-space model depends on.
    n_particles : int or "auto"
        Particles of a filter, N_x. ``"auto"`` chooses, at the start and during tuning, the number for which the log
        estimate has a variance of about one.
    filter : {"auto", "bootstrap", "guided", "auxiliary"}
        ``"auto"`` is guided if the model has ``proposal=``.
    correlation : float or "auto"
        The largest share of the rows whose random numbers a proposal's filter keeps, so that its error is correlated
        with that of the current filter and fewer particles suffice. The filter sorts its particles and takes their
        numbers from a lattice. ``"auto"`` is 0.99 if a state is one number and Numba compiles the filter, and 0
        otherwise. With 0 every filter has fresh independent numbers.
    covariance : array (dim, dim), optional
        Shape of the proposals, on the unconstrained space, which are then random-walk proposals. By default it is
        learnt during tuning, with a centre around which half of the proposals are drawn.
    model : pm.Model, optional
        The model on the context stack by default; outside of any, the step is for :func:`ppl_backends.sample_mcmc`.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     rho = pm.Uniform("rho", -0.95, 0.95)
    ...     series = pb.state_space.linear_gaussian()
    ...     y = pb.StateSpace("y", series, rho=rho, sigma_x=1.0, sigma_y=0.5, observed=[0.3, 0.9, 0.4, -0.8])
    >>> step = pb.steps.ParticleMetropolis()
    >>> idata = pb.sample_mcmc(model, step=step, draws=200, tune=100, random_seed=1, progressbar=False)
    >>> idata.posterior["rho"].shape
    (4, 200)

    References
    ----------
    Andrieu, C., Doucet, A. and Holenstein, R. (2010). Particle Markov chain Monte Carlo methods. *JRSS B* 72(3), 269–342.
    Deligiannidis, G., Doucet, A. and Pitt, M. K. (2018). The correlated pseudomarginal method. *JRSS B* 80(5), 839–870.
    """

    @checked(
        n_particles=choice("auto") | integer(1),
        filter=FILTERS,
        correlation=choice("auto") | number(at_least=0, below=1),
        covariance=none | array("a covariance matrix"),
    )
    def __init__(
        self,
        vars: Any = None,
        *,
        n_particles: int | str = "auto",
        filter: str = "auto",
        correlation: float | str = "auto",
        covariance: Any = None,
        model: Any = None,
    ) -> None:
        self.n_particles, self.filter, self.correlation, self.covariance = n_particles, filter, correlation, covariance

    def bind(self, target: BaseTarget) -> ParticleMetropolisAlgorithm:
        """Return the algorithm on ``target``."""
        return ParticleMetropolisAlgorithm(
            target,
            filter_of(target, self.filter),
            n_particles=self.n_particles,
            correlation=self.correlation,
            covariance=self.covariance,
        )

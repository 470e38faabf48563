"""Steps for likelihoods with an unknown normalising constant: exchange, its noisy forms, and noisy Langevin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ppl_backends.kernels.algorithm import Algorithm
from ppl_backends.kernels.exchange import exchange, mala_exchange
from ppl_backends.kernels.noisy_langevin import NoisyLangevin as NoisyLangevinAlgorithm
from ppl_backends.options import array, checked, integer, none, number
from ppl_backends.steps.specification import Step
from ppl_backends.targets.protocol import BaseTarget

COVARIANCE = none | array("a covariance matrix")


class _AuxiliaryStep(Step):
    """A step whose options are passed to the algorithm unchanged."""

    algorithm: ClassVar[Callable[..., Algorithm]] = staticmethod(exchange)

    def __init__(self, vars: Any = None, *, model: Any = None, **options: Any) -> None:
        self.options = options

    def make_target(self, model: Any) -> BaseTarget:
        from ppl_backends.targets.pymc.unnormalized import unnormalized_target

        return unnormalized_target(model)

    def bind(self, target: BaseTarget) -> Algorithm:
        return type(self).algorithm(target, **self.options)


class Exchange(_AuxiliaryStep):
    """The exchange algorithm (Murray, Ghahramani & MacKay 2006) with random-walk proposals.

    It is exact with an exact simulator and power one, and approximate if the simulator is a Markov chain.

    Parameters
    ----------
    vars : list of variables or names, optional
        The block to move; all variables by default. It must contain every variable that the unnormalised likelihood
        depends on.
    power : float
        α of the tempered posterior p(θ) {f(y|θ)/Z(θ)}^α; values other than one are approximate.
    covariance : array (dim, dim), optional
        Shape of the proposals, on the unconstrained space; learnt during tuning by default.
    model : pm.Model, optional
        The model on the context stack by default; outside of any, the step is for :func:`ppl_backends.sample_mcmc`.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.simulators import ERGM
    >>> graphs = ERGM(5, ["edges"], moves="enumerate")
    >>> prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> target = pb.Unnormalized(simulator=graphs, observed=np.zeros((5, 5)), prior=prior)
    >>> idata = pb.sample_mcmc(target, step=pb.steps.Exchange(), draws=2000, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'exact'
    """

    @checked(power=number(above=0), covariance=COVARIANCE)
    def __init__(self, vars: Any = None, *, power: float = 1.0, covariance: Any = None, model: Any = None) -> None:
        super().__init__(power=power, covariance=covariance)


class NoisyExchange(_AuxiliaryStep):
    """Exchange with the ratio of normalising constants averaged over N draws (Alquier et al. 2016). Approximate.

    Parameters
    ----------
    vars : list of variables or names, optional
    n_draws : int
        N. With 1 this is :class:`Exchange`; the error is zero there, increases with N at first, and then decreases.
    power, covariance, model
        As for :class:`Exchange`.

    Examples
    --------
    >>> import warnings, numpy as np, ppl_backends as pb
    >>> from ppl_backends.simulators import ERGM
    >>> graphs = ERGM(5, ["edges"], moves="enumerate")
    >>> prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> target = pb.Unnormalized(simulator=graphs, observed=np.zeros((5, 5)), prior=prior)
    >>> step = pb.steps.NoisyExchange(n_draws=20)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # it is approximate, and says so
    ...     idata = pb.sample_mcmc(target, step=step, draws=50, tune=50, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'approximate'
    """

    @checked(n_draws=integer(1), power=number(above=0), covariance=COVARIANCE)
    def __init__(
        self,
        vars: Any = None,
        *,
        n_draws: int = 100,
        power: float = 1.0,
        covariance: Any = None,
        model: Any = None,
    ) -> None:
        super().__init__(n_draws=n_draws, power=power, covariance=covariance)


class MALAExchange(_AuxiliaryStep):
    """Langevin proposals along an estimated gradient, with the exchange acceptance step. Exact if :class:`Exchange` is.

    Parameters
    ----------
    vars : list of variables or names, optional
    n_gradient_draws : int
        Draws that estimate each gradient.
    power, covariance, model
        As for :class:`Exchange`.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.simulators import ERGM
    >>> graphs = ERGM(5, ["edges"], moves="enumerate")
    >>> prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> target = pb.Unnormalized(simulator=graphs, observed=np.zeros((5, 5)), prior=prior)
    >>> step = pb.steps.MALAExchange()
    >>> idata = pb.sample_mcmc(target, step=step, draws=2000, tune=200, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'exact'
    """

    algorithm = staticmethod(mala_exchange)

    @checked(n_gradient_draws=integer(1), power=number(above=0), covariance=COVARIANCE)
    def __init__(
        self,
        vars: Any = None,
        *,
        n_gradient_draws: int = 10,
        power: float = 1.0,
        covariance: Any = None,
        model: Any = None,
    ) -> None:
        super().__init__(n_gradient_draws=n_gradient_draws, power=power, covariance=covariance)


class NoisyMALAExchange(_AuxiliaryStep):
    """MALA exchange whose N draws estimate both the gradient and the ratio of normalising constants. Approximate.

    Parameters
    ----------
    vars : list of variables or names, optional
    n_draws : int
        N.
    power, covariance, model
        As for :class:`Exchange`.

    Examples
    --------
    >>> import warnings, numpy as np, ppl_backends as pb
    >>> from ppl_backends.simulators import ERGM
    >>> graphs = ERGM(5, ["edges"], moves="enumerate")
    >>> prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> target = pb.Unnormalized(simulator=graphs, observed=np.zeros((5, 5)), prior=prior)
    >>> step = pb.steps.NoisyMALAExchange(n_draws=20)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # it is approximate, and says so
    ...     idata = pb.sample_mcmc(target, step=step, draws=50, tune=50, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'approximate'
    """

    algorithm = staticmethod(mala_exchange)

    @checked(n_draws=integer(1), power=number(above=0), covariance=COVARIANCE)
    def __init__(
        self,
        vars: Any = None,
        *,
        n_draws: int = 100,
        power: float = 1.0,
        covariance: Any = None,
        model: Any = None,
    ) -> None:
        super().__init__(n_gradient_draws=None, n_draws=n_draws, power=power, covariance=covariance)


class NoisyLangevin(_AuxiliaryStep):
    """Langevin steps along an estimated gradient that are never rejected (Alquier et al. 2016). Approximate.

    Parameters
    ----------
    vars : list of variables or names, optional
    step_size : float
        The step's covariance as a share of the posterior's. A smaller one reduces the bias and the mixing speed.
    n_draws : int
        Draws that estimate each gradient.
    power, covariance, model
        As for :class:`Exchange`; the covariance is the posterior's.

    Examples
    --------
    >>> import warnings, numpy as np, ppl_backends as pb
    >>> from ppl_backends.simulators import ERGM
    >>> graphs = ERGM(5, ["edges"], moves="enumerate")
    >>> prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> target = pb.Unnormalized(simulator=graphs, observed=np.zeros((5, 5)), prior=prior)
    >>> step = pb.steps.NoisyLangevin()
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # it is approximate, and says so
    ...     idata = pb.sample_mcmc(target, step=step, draws=50, tune=50, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'approximate'
    """

    algorithm = NoisyLangevinAlgorithm

    @checked(step_size=number(above=0), n_draws=integer(1), power=number(above=0), covariance=COVARIANCE)
    def __init__(
        self,
        vars: Any = None,
        *,
        step_size: float = 0.02,
        n_draws: int = 10,
        power: float = 1.0,
        covariance: Any = None,
        model: Any = None,
    ) -> None:
        super().__init__(step_size=step_size, n_draws=n_draws, power=power, covariance=covariance)

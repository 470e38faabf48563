"""Steps calibrated by an approximation of the posterior: random walk, HMC, independence, and the other kernels."""

from __future__ import annotations

from typing import Any, ClassVar

from ppl_backends.approximations.resolve import nearest_gaussian
from ppl_backends.kernels.algorithm import Algorithm
from ppl_backends.kernels.calibrated import calibrated, independence_sampler
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.kernels.random_walk import RandomWalk as RandomWalkKernel
from ppl_backends.kernels.table import KERNELS
from ppl_backends.options import approximation as approximation_option
from ppl_backends.options import checked, choice, integer, none, number
from ppl_backends.steps.specification import Step
from ppl_backends.targets.protocol import BaseTarget

APPROXIMATION = approximation_option("auto", "laplace", "ep", "vi")
METRIC = choice("diagonal", "dense", None)


def approximation_of(target: BaseTarget, approximation: Any) -> Any:
    """Return the approximation asked for, of the full target, or a nearer one where Laplace's is poor."""
    return nearest_gaussian(target.full, approximation)


class RandomWalk(Step):
    """Random-walk Metropolis with proposals N(θ, (2.38²/d) Σ), with Σ from an approximation. Exact.

    Parameters
    ----------
    vars : list of variables or names, optional
        The block to move; all variables by default. Σ is then (Λ_aa)⁻¹, the conditional covariance.
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
    scale : float, optional
        Replaces 2.38/√d.
    adapt : bool
        Whether to adapt the scale to an acceptance rate of 0.234 during tuning.
    model : pm.Model, optional
        The model on the context stack by default; outside of any, the step is for :func:`ppl_backends.sample_mcmc`.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> idata = pb.sample_mcmc(target, step=pb.steps.RandomWalk(), draws=2000, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'exact'
    """

    @checked(approximation=APPROXIMATION, scale=none | number(above=0))
    def __init__(
        self,
        vars: Any = None,
        *,
        approximation: Any = "laplace",
        scale: float | None = None,
        adapt: bool = False,
        model: Any = None,
    ) -> None:
        self.approximation, self.scale, self.adapt = approximation, scale, adapt

    def bind(self, target: BaseTarget) -> Algorithm:
        q = approximation_of(target, self.approximation)
        return calibrated(target, RandomWalkKernel(), q, adapt=self.adapt, scale=self.scale)


class CalibratedStep(Step):
    """A kernel of the table, preconditioned by an approximation's covariance. Exact.

    Parameters
    ----------
    vars : list of variables or names, optional
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
    target_accept : float, optional
        Acceptance rate to which the step size is adapted during tuning; the kernel's optimal one by default.
    metric : {"diagonal", "dense", None}
        What tuning estimates: the variances of the coordinates that the approximation whitens, or their covariance;
        None keeps the approximation's covariance. A step for a block of the variables always keeps it.
    model : pm.Model, optional

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> step = pb.steps.MALA()
    >>> idata = pb.sample_mcmc(target, step=step, draws=2000, tune=200, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'exact'
    """

    kernel: ClassVar[type[Kernel]]

    @checked(approximation=APPROXIMATION, target_accept=none | number(above=0, below=1), metric=METRIC)
    def __init__(
        self,
        vars: Any = None,
        *,
        approximation: Any = "laplace",
        target_accept: float | None = None,
        metric: str | None = "diagonal",
        model: Any = None,
    ) -> None:
        self.approximation, self.metric = approximation, metric
        self.target_accept = self.kernel.target_acceptance if target_accept is None else target_accept

    def bind(self, target: BaseTarget) -> Algorithm:
        q = approximation_of(target, self.approximation)
        kernel, rate = self.kernel(balanced=False), self.target_accept
        return calibrated(target, kernel, q, adapt=True, target_acceptance=rate, metric=self.metric)


def _step_of(kernel: type[Kernel]) -> type[CalibratedStep]:
    """Return the step method of a kernel, with the kernel's documentation."""
    _, parameters = str(CalibratedStep.__doc__).split("\n", 1)
    name = str(kernel.step_name)
    about = f"{kernel.__doc__}\n{parameters.replace('steps.MALA()', f'steps.{name}()')}"
    return type(name, (CalibratedStep,), {"kernel": kernel, "__doc__": about, "__module__": "ppl_backends.steps"})


STEPS = {kernel.step_name: _step_of(kernel) for kernel in KERNELS.values() if kernel.step_name}
"""The step methods of kernels that have no further options."""


class HMC(Step):
    """Hamiltonian Monte Carlo with mass Σ⁻¹ from an approximation and trajectories of length εL. Exact.

    Parameters
    ----------
    vars : list of variables or names, optional
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
    path_length : float
        Mean of the length εL, in posterior standard deviations. Every trajectory draws its length anew, up to 30 %
        shorter or longer. π/2 makes draws of a Gaussian independent. A longer one makes their means more precise and
        the means of their squares less precise.
    target_accept : float
        Acceptance rate to which dual averaging adapts the largest ε during tuning. L is the smallest even number of
        steps no longer than that; if two steps suffice for every length, acceptance is above the rate.
    max_steps : int
        Largest L, at least 2.
    metric : {"diagonal", "dense", None}
        What tuning estimates of the mass, in windows of 100, 200, 400, … steps: the variances of the coordinates that
        the approximation whitens, or their covariance; None keeps Σ. A step for a block of the variables always keeps
        it.
    model : pm.Model, optional

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> step = pb.steps.HMC()
    >>> idata = pb.sample_mcmc(target, step=step, draws=2000, tune=200, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'exact'
    """

    @checked(approximation=APPROXIMATION, path_length=number(above=0), max_steps=integer(2), metric=METRIC)
    def __init__(
        self,
        vars: Any = None,
        *,
        approximation: Any = "laplace",
        path_length: float = 1.6,
        target_accept: float = 0.8,
        max_steps: int = 100,
        metric: str | None = "diagonal",
        model: Any = None,
    ) -> None:
        self.approximation, self.path_length, self.metric = approximation, path_length, metric
        self.target_accept, self.max_steps = target_accept, max_steps

    def bind(self, target: BaseTarget) -> Algorithm:
        q = approximation_of(target, self.approximation)
        kernel = Hmc(self.path_length, self.max_steps, balanced=False)
        rate = self.target_accept
        return calibrated(target, kernel, q, adapt=True, target_acceptance=rate, metric=self.metric)


class Independent(Step):
    """Independence Metropolis–Hastings: proposals from an approximation q, or from q(a | b) for a block. Exact.

    Its acceptance rate measures the quality of the approximation; if q has lighter tails than the posterior, chains stick.

    Parameters
    ----------
    vars : list of variables or names, optional
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
    model : pm.Model, optional

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> step = pb.steps.Independent()
    >>> idata = pb.sample_mcmc(target, step=step, draws=2000, tune=200, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'exact'
    """

    @checked(approximation=APPROXIMATION)
    def __init__(self, vars: Any = None, *, approximation: Any = "laplace", model: Any = None) -> None:
        self.approximation = approximation

    def bind(self, target: BaseTarget) -> Algorithm:
        return independence_sampler(target, approximation_of(target, self.approximation))

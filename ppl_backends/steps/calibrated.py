"""Steps calibrated by an approximation of the posterior: random walk, MALA, HMC and independence."""

from __future__ import annotations

from typing import Any

from ppl_backends.approximations.resolve import resolve_approximation
from ppl_backends.kernels import metropolis as kernels
from ppl_backends.kernels.calibrated import Calibrated, IndependentProposal, PathHmc
from ppl_backends.options import approximation as approximation_option
from ppl_backends.options import checked, integer, none, number
from ppl_backends.steps.specification import Step
from ppl_backends.targets.conditional import ConditionalTarget
from ppl_backends.targets.protocol import BaseTarget

__all__ = ["APPROXIMATION", "HMC", "MALA", "Independent", "RandomWalk", "approximation_of"]

APPROXIMATION = approximation_option("auto", "laplace", "ep", "vi")


def approximation_of(target: BaseTarget, approximation: Any) -> Any:
    """The approximation asked for, of the full target."""
    return resolve_approximation(target.full if isinstance(target, ConditionalTarget) else target, approximation)


class RandomWalk(Step):
    """Random-walk Metropolis with proposals N(θ, (2.38²/d) Σ), Σ from an approximation. Exact.

    Parameters
    ----------
    vars : list of variables or names, optional
        The block to move, all by default. Σ is then (Λ_aa)⁻¹, the conditional covariance.
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
    scale : float, optional
        In place of 2.38/√d.
    adapt : bool
        Whether to adapt the scale to an acceptance rate of 0.234 while tuning.
    model : pm.Model, optional
        The one on the context stack by default; outside of any, the step is for :func:`ppl_backends.sample_mcmc`.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> idata = pb.sample_mcmc(target, step=pb.steps.RandomWalk(), draws=50, chains=1, random_seed=1, progressbar=False)
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

    def bind(self, target: BaseTarget) -> Calibrated:
        """The algorithm on ``target``."""
        q = approximation_of(target, self.approximation)
        return Calibrated(target, kernels.RandomWalk(), q, adapt=self.adapt, scale=self.scale)


class MALA(Step):
    """Metropolis-adjusted Langevin, preconditioned by an approximation's covariance. Exact.

    Parameters
    ----------
    vars : list of variables or names, optional
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
    target_accept : float
        Acceptance rate that the step size is adapted to while tuning.
    model : pm.Model, optional
    """

    @checked(approximation=APPROXIMATION)
    def __init__(
        self, vars: Any = None, *, approximation: Any = "laplace", target_accept: float = 0.574, model: Any = None
    ) -> None:
        self.approximation, self.target_accept = approximation, target_accept

    def bind(self, target: BaseTarget) -> Calibrated:
        """The algorithm on ``target``."""
        q = approximation_of(target, self.approximation)
        return Calibrated(target, kernels.Mala(), q, adapt=True, target_acceptance=self.target_accept)


class HMC(Step):
    """Hamiltonian Monte Carlo with mass Σ⁻¹ from an approximation and trajectories of length εL. Exact.

    Parameters
    ----------
    vars : list of variables or names, optional
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
    path_length : float
        εL, in posterior standard deviations.
    target_accept : float
        Acceptance rate that ε is adapted to while tuning, by dual averaging.
    max_steps : int
        Largest L.
    model : pm.Model, optional
    """

    @checked(approximation=APPROXIMATION, path_length=number(above=0), max_steps=integer(1))
    def __init__(
        self,
        vars: Any = None,
        *,
        approximation: Any = "laplace",
        path_length: float = 1.0,
        target_accept: float = 0.65,
        max_steps: int = 100,
        model: Any = None,
    ) -> None:
        self.approximation, self.path_length = approximation, path_length
        self.target_accept, self.max_steps = target_accept, max_steps

    def bind(self, target: BaseTarget) -> Calibrated:
        """The algorithm on ``target``."""
        q = approximation_of(target, self.approximation)
        kernel = PathHmc(self.path_length, self.max_steps)
        return Calibrated(target, kernel, q, adapt=True, target_acceptance=self.target_accept)


class Independent(Step):
    """Independence Metropolis–Hastings: proposals from an approximation q, or from q(a | b) for a block. Exact.

    Its acceptance rate says how good the approximation is; where q has lighter tails than the posterior, chains stick.

    Parameters
    ----------
    vars : list of variables or names, optional
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
    model : pm.Model, optional
    """

    @checked(approximation=APPROXIMATION)
    def __init__(self, vars: Any = None, *, approximation: Any = "laplace", model: Any = None) -> None:
        self.approximation = approximation

    def bind(self, target: BaseTarget) -> IndependentProposal:
        """The algorithm on ``target``."""
        return IndependentProposal(target, approximation_of(target, self.approximation))

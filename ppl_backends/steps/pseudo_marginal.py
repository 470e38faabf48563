"""Pseudo-marginal Metropolis–Hastings as a step method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppl_backends.kernels.pseudo_marginal import PseudoMarginal as PseudoMarginalAlgorithm
from ppl_backends.options import array, checked, choice, function, integer, none, number
from ppl_backends.steps.specification import Step
from ppl_backends.targets.protocol import BaseTarget


class PseudoMarginal(Step):
    """Metropolis–Hastings on an unbiased estimate of the likelihood (Andrieu & Roberts 2009). Exact.

    The model contains everything but the estimated likelihood: its prior, and any other observed variables.

    Parameters
    ----------
    vars : list of variables or names, optional
        The block to move; all variables by default. Other steps ignore the estimated likelihood, so the estimator gets
        only the variables of the block (and those that they determine).
    log_likelihood_estimate : callable
        ``(values, rng) -> (n,)``: logs of ``n`` independent estimates L̂ ≥ 0 with E L̂ = L. ``values`` holds the model's
        variables at ``n`` points, name → ``(n, *shape)``. By default the target's own ``log_likelihood_estimate(x, rng)``.
    n_estimates : int or "auto"
        Number of averaged estimates. ``"auto"`` chooses, during tuning, the number for which their log has a variance
        of about one.
    n_normals : int, optional
        For the correlated form: the estimator is a function of that many standard normal numbers,
        ``(values, u) -> (n,)`` with ``u`` ``(n, n_normals)``, and draws nothing itself.
    correlation : float
        Correlation of these numbers from one step to the next.
    covariance : array (dim, dim), optional
        Shape of the proposals, on the unconstrained space; learnt during tuning by default.
    model : pm.Model, optional
        The model on the context stack by default; outside of any, the step is for :func:`ppl_backends.sample_mcmc`.

    Examples
    --------
    Counts with a random effect, y ~ Poisson(exp(μ + z)) with z ~ N(0, 1) integrated by ten draws:

    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> from scipy.stats import poisson
    >>> def estimate(values, rng):
    ...     z = rng.standard_normal((len(values["mu"]), 10))
    ...     return np.log(poisson.pmf(3, np.exp(values["mu"][:, None] + z)).mean(axis=1))
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    >>> step = pb.steps.PseudoMarginal(log_likelihood_estimate=estimate)
    >>> idata = pb.sample_mcmc(model, step=step, draws=2000, tune=100, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'exact'
    """

    @checked(
        log_likelihood_estimate=none | function("a function of points and a generator"),
        n_estimates=choice("auto") | integer(1),
        n_normals=none | integer(1),
        correlation=number(at_least=0, below=1),
        covariance=none | array("a covariance matrix"),
    )
    def __init__(
        self,
        vars: Any = None,
        *,
        log_likelihood_estimate: Callable | None = None,
        n_estimates: int | str = "auto",
        n_normals: int | None = None,
        correlation: float = 0.99,
        covariance: Any = None,
        model: Any = None,
    ) -> None:
        self.log_likelihood_estimate, self.n_estimates, self.n_normals = log_likelihood_estimate, n_estimates, n_normals
        self.correlation, self.covariance = correlation, covariance

    def bind(self, target: BaseTarget) -> PseudoMarginalAlgorithm:
        return PseudoMarginalAlgorithm(
            target,
            log_likelihood_estimate=self.log_likelihood_estimate,
            n_estimates=self.n_estimates,
            n_normals=self.n_normals,
            correlation=self.correlation,
            covariance=self.covariance,
        )

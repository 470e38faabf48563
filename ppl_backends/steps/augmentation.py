"""Gibbs sampling of regression coefficients by latent variables, as step methods."""

from __future__ import annotations

from typing import Any

from ppl_backends.kernels.augmentation import DataAugmentation
from ppl_backends.kernels.augmented_sites import polya_gamma_sampler
from ppl_backends.options import checked, flag
from ppl_backends.steps.specification import Step
from ppl_backends.targets.factors import Laplace, Logit, NegativeBinomial, Normal, NormalMixture, Probit, StudentT
from ppl_backends.targets.protocol import BaseTarget

GAUSSIAN_MIXTURES = (StudentT, Laplace, NormalMixture, Normal)


class AlbertChib(Step):
    """Sample the coefficients of a probit regression by Gibbs sampling with latent normal variables. Exact, without tuning.

    Parameters
    ----------
    vars : list of variables or names, optional
        The coefficients; all coefficients by default. Other variables are not changed.
    scale_move : bool
        Whether to multiply all latent variables by one factor as well (Liu & Wu 1999), which is cheap.
    model : pm.Model, optional
        The model on the context stack by default; outside of any, the step is for :func:`ppl_backends.sample_mcmc`.

    Raises
    ------
    ModelError
        If the model has no known factors, a likelihood with another link, or a variable among ``vars`` that is not a
        coefficient.

    References
    ----------
    Albert, J. H. and Chib, S. (1993). Bayesian analysis of binary and polychotomous response data. *JASA* 88, 669–679.
    Liu, J. S. and Wu, Y. N. (1999). Parameter expansion for data augmentation. *JASA* 94, 1264–1274.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> X, y = np.array([[1.0, -1.0], [1.0, 0.2], [1.0, 0.9], [1.0, 2.0]]), [0, 1, 0, 1]
    >>> with pm.Model() as model:
    ...     beta = pm.StudentT("beta", nu=4, mu=0, sigma=[10.0, 2.5], shape=2)
    ...     y = pm.Bernoulli("y", p=pm.math.invprobit(X @ beta), observed=y)
    ...     step = pb.steps.AlbertChib()
    >>> idata = pb.sample_mcmc(model, step=step, draws=200, tune=50, chains=2, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'exact'
    """

    allowed: tuple[type, ...] = (Probit, *GAUSSIAN_MIXTURES)

    @checked(scale_move=flag)
    def __init__(self, vars: Any = None, *, scale_move: bool = True, model: Any = None) -> None:
        self.scale_move = scale_move

    def bind(self, target: BaseTarget) -> DataAugmentation:
        """Return the algorithm on ``target``."""
        return DataAugmentation(target, allowed=self.allowed, name="AlbertChib", scale_move=self.scale_move)


class PolyaGamma(Step):
    """Sample the coefficients of a logistic regression by Gibbs sampling with Pólya–Gamma variables. Exact, without tuning.

    Outcomes are binary, binomial or negative binomial (with a given dispersion, or one that another step moves);
    priors and offsets are as in :class:`AlbertChib`. The package ``polyagamma``, an extra of the same name, draws the
    Pólya–Gamma variables.

    Parameters
    ----------
    vars : list of variables or names, optional
        The coefficients; all coefficients by default. Other variables are not changed.
    model : pm.Model, optional
        The model on the context stack by default; outside of any, the step is for :func:`ppl_backends.sample_mcmc`.

    Raises
    ------
    ImportError
        If ``polyagamma`` is not installed.
    ModelError
        If the model has no known factors, a likelihood with another link, or a variable among ``vars`` that is not a
        coefficient.

    References
    ----------
    Polson, N. G., Scott, J. G. and Windle, J. (2013). Bayesian inference for logistic models using Pólya–Gamma latent
    variables. *JASA* 108, 1339–1349.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> X, y = np.array([[1.0, -1.0], [1.0, 0.2], [1.0, 0.9], [1.0, 2.0]]), [0, 1, 0, 1]
    >>> with pm.Model() as model:
    ...     tau = pm.HalfNormal("tau", 1)
    ...     beta = pm.Normal("beta", 0, tau, shape=2)
    ...     y = pm.Bernoulli("y", logit_p=X @ beta, observed=y)
    ...     step = [pb.steps.PolyaGamma([beta]), pm.NUTS([tau])]
    """

    allowed: tuple[type, ...] = (Logit, NegativeBinomial, *GAUSSIAN_MIXTURES)

    @checked()
    def __init__(self, vars: Any = None, *, model: Any = None) -> None:
        polya_gamma_sampler()

    def bind(self, target: BaseTarget) -> DataAugmentation:
        """Return the algorithm on ``target``."""
        return DataAugmentation(target, allowed=self.allowed, name="PolyaGamma")

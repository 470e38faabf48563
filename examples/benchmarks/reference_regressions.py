"""Binary regressions with four pairs of prior and link, as plain densities with their programs in words.

``gaussian``  N(0, 20²) on the intercept and N(0, 5²) on the rest, predictors scaled after Gelman et al. (2008), as Chopin &
              Ridgway (2017) have it.
``cauchy``    the same with Cauchy priors of scales 10 and 2.5.
``unit``      N(0, I), with the default scaling of ``load_binary_regression``.
``flat``      no prior: the integral of the likelihood.
"""

import numpy as np
from scipy.special import log_ndtr, ndtri

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.targets.protocol import Evaluation

LOG_2PI = np.log(2 * np.pi)
BLOCK = 2_000_000  # numbers in a block of linear predictors


class BinaryRegression:
    """y_i ~ Bernoulli(F(x_iᵀβ)) with a prior on β, with gradients.

    Parameters
    ----------
    X : ndarray (n, p)
    y : ndarray (n,)
    link : {"logit", "probit"}
    prior : {"gaussian", "cauchy", "flat"}
    scale : ndarray (p,)
    """

    has_split = True

    def __init__(self, X, y, link, prior, scale):
        self.signed = np.ascontiguousarray(X * (2.0 * np.asarray(y)[:, None] - 1))
        self.link, self.prior, self.scale = link, prior, np.broadcast_to(np.asarray(scale, float), X.shape[1]).copy()
        self.dim = X.shape[1]

    def log_likelihood(self, x, gradient=True):
        """Values ``(n,)`` and gradients, or None for these."""
        values, slopes = [], []
        for block in np.array_split(x, max(1, x.shape[0] * len(self.signed) // BLOCK)):
            eta = block @ self.signed.T
            if self.link == "logit":
                small = np.exp(-np.abs(eta))
                value = np.minimum(eta, 0) - np.log1p(small)
            else:
                value = log_ndtr(eta)
            values.append(value.sum(axis=1))
            if gradient:
                probit = self.link == "probit"
                slope = (
                    np.exp(-0.5 * (eta**2 + LOG_2PI) - value) if probit else np.where(eta > 0, small, 1.0) / (1 + small)
                )
                slopes.append(slope @ self.signed)
        return np.concatenate(values), np.concatenate(slopes) if gradient else None

    def log_prior(self, x):
        """Values ``(n,)`` and gradients."""
        z = x / self.scale
        if self.prior == "gaussian":
            return -0.5 * (z**2).sum(axis=1) - np.log(self.scale).sum() - 0.5 * self.dim * LOG_2PI, -z / self.scale
        if self.prior == "cauchy":
            value = -np.log1p(z**2).sum(axis=1) - np.log(np.pi * self.scale).sum()
            return value, -2 * z / (1 + z**2) / self.scale
        return np.zeros(len(x)), np.zeros_like(x)

    def from_uniform(self, u):
        """Draws of the prior from points of the unit cube."""
        return self.scale * (ndtri(u) if self.prior == "gaussian" else np.tan(np.pi * (u - 0.5)))

    def target(self):
        """The target of the package."""
        return RegressionTarget(self)


class RegressionTarget(pb.FunctionTarget):
    """A regression as a target that computes no gradient where none is asked for."""

    def __init__(self, model):
        self.model, proper = model, {}
        if model.prior != "flat":
            proper["prior_from_uniform"] = model.from_uniform
            proper["sample_prior"] = lambda n, rng: model.from_uniform(rng.random((n, model.dim)))
        names = [f"beta[{j}]" for j in range(model.dim)]
        super().__init__(model.dim, model.log_likelihood, model.log_prior, names=names, **proper)

    def evaluate(self, x, gradient=False):
        """Both parts of the log density."""
        if gradient:
            return super().evaluate(x, True)
        return Evaluation(self.model.log_prior(x)[0], self.model.log_likelihood(x, gradient=False)[0])


LINKS = {"logit": "1 / (1 + exp(-eta[i]))", "probit": "Phi(eta[i])"}
PRIORS = {
    "gaussian": "beta[1] ~ normal(0, 20); beta[j] ~ normal(0, 5) for j > 1",
    "cauchy": "beta[1] ~ cauchy(0, 10); beta[j] ~ cauchy(0, 2.5) for j > 1",
    "unit": "beta[j] ~ normal(0, 1)",
    "flat": "beta[j] flat",
}
SCALINGS = {
    "gelman": "predictors have mean 0; those with two values range 1, the others standard deviation 0.5 (divisor n)",
    "unit": "predictors have mean 0 and standard deviation 1 (divisor n)",
    "raw": "predictors as in the file, with mean 0 and standard deviation 1",
}


def scales(prior, dim):
    """Scales of the prior."""
    if prior in ("unit", "flat"):
        return np.ones(dim)
    return np.r_[20.0, np.full(dim - 1, 5.0)] if prior == "gaussian" else np.r_[10.0, np.full(dim - 1, 2.5)]


def describe(link, prior, scaling):
    """The program in words."""
    return (
        f"y[i] ~ bernoulli({LINKS[link]}), eta = X * beta; {PRIORS[prior]}; first column of X one, {SCALINGS[scaling]}; "
        "all constants kept"
    )


def regression(name, link, prior, scaling):
    """The target of a data set that the package has."""
    X, y, *_ = load_binary_regression(name, scaling=scaling)
    kind = "gaussian" if prior == "unit" else prior
    return BinaryRegression(X, y, link, kind, scales(prior, X.shape[1])).target()


def raw_data(name):
    """Values of the file, for the digest: no scaling, so that no rounding enters."""
    X, y, names, _ = load_binary_regression(name, scaling="raw")
    return {"X": X.tolist(), "y": y.tolist(), "names": list(names)}

"""PyMC models shared by the tests of targets."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def normal_model():
    """Return a conjugate model: mu ~ N(0, 2^2), y ~ N(mu, 1)."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        pm.Normal("y", mu, 1, observed=[0.3, -1.2, 2.5])
    return model


def logistic_model(n=60, d=3, shared=False):
    """Return logistic regression; with its data in containers on request."""
    rng = np.random.default_rng(5)
    predictors = rng.normal(size=(n, d))
    outcome = (rng.random(n) < 0.5).astype(int)
    with pm.Model(coords={"predictor": [f"x{j}" for j in range(d)]}) as model:
        if shared:
            design = pm.Data("design", predictors, dims=("row", "predictor"))
            y = pm.Data("y_obs", outcome, dims="row")
        else:
            design, y = predictors, outcome
        beta = pm.Normal("beta", 0, 1.5, dims="predictor")
        pm.Deterministic("odds", pm.math.exp(beta), dims="predictor")
        pm.Bernoulli("y", logit_p=pm.math.dot(design, beta), observed=y)
    return model


def every_transform():
    """Return every default transform, hierarchical and composite priors, a Potential and two observed variables."""
    rng = np.random.default_rng(0)
    transforms = pm.distributions.transforms
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        scale = pm.HalfNormal("scale", 1)
        interval = pm.Uniform("interval", -1, 2)
        truncated = pm.TruncatedNormal("truncated", 0, 1, lower=-1, upper=scale + 2)
        pm.Dirichlet("simplex", np.full(4, 2.0))
        pm.Normal("ordered", 0, 1, shape=3, transform=transforms.ordered, initval=[-1.0, 0.0, 1.0])
        unit = pm.Beta("unit", 2, 3, shape=(2, 1))
        centred = pm.Normal("centred", interval, scale, dims="group")
        pm.ZeroSumNormal("zero_sum", 1, shape=4)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.Exponential.dist(1), compute_corr=True)
        walk = pm.GaussianRandomWalk("walk", mu=0, sigma=scale, init_dist=pm.Normal.dist(0, 1), shape=4)
        student = pm.Truncated("student", pm.StudentT.dist(nu=5, mu=0, sigma=scale), lower=-1, upper=3)
        multivariate = pm.MvNormal("multivariate", mu=np.zeros(3), chol=chol)
        pm.InverseGamma("positive", 3, 2)
        pm.Deterministic("doubled", 2 * centred, dims="group")
        pm.Potential("sum_to_zero", -0.5 * centred.sum() ** 2)
        pm.MvNormal("y", mu=centred + multivariate, chol=chol, observed=rng.normal(size=(5, 3)))
        pm.Normal("z", mu=unit.sum() + walk[2] + student + truncated, sigma=scale, observed=rng.normal(size=7))
    return model


def mixture_with_labels():
    """Return two normals, censored at 2.2, whose labels the priors do not tell apart for sure: the other labels have 15 %."""
    rng, top = np.random.default_rng(1), 2.2
    low = rng.random(120) < 0.35
    y = np.minimum(np.where(low, rng.normal(-2, 0.7, 120), rng.normal(1.5, 1.0, 120)), top)

    def log_density(value, w, mu, sd):
        inside = [pm.logp(pm.Normal.dist(mu[k], sd[k]), value) for k in (0, 1)]
        above = [pm.math.log(pm.math.erfc((top - mu[k]) / sd[k] / np.sqrt(2)) / 2) for k in (0, 1)]
        parts = [pm.math.switch(value >= top, above[k], inside[k]) for k in (0, 1)]
        return pm.math.logaddexp(pm.math.log(w) + parts[0], pm.math.log(1 - w) + parts[1])

    with pm.Model() as model:
        w = pm.Beta("w", 2, 2)
        mu = pm.Normal("mu", [-1.0, 1.0], 2.0, shape=2)
        sd = pm.HalfNormal("sd", 1.5, shape=2)
        pm.CustomDist("y", w, mu, sd, logp=log_density, observed=y)
    return model


def recursion(steps):
    """Return a model whose scales are computed in a loop from a constant, and that repeats a mean for all rows."""
    y = np.random.default_rng(0).normal(size=steps)
    with pm.Model() as model:
        a, mean = pm.Normal("a", 0, 1), pm.Normal("mean", 0, 1)
        squares = [pt.as_tensor(1.0)]
        for value in y[1:]:
            squares.append(0.1 + pt.sigmoid(a) * squares[-1] + 0.1 * (value - mean) ** 2)
        pm.Normal("y", pt.full((steps,), mean), pt.sqrt(pt.stack(squares)), observed=y)
    return model

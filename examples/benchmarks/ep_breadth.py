"""
Expectation propagation on many kinds of models
===============================================

The same call, ``fit_ep(model)``, runs on models of different kinds. The reference is NUTS (nutpie), Hamiltonian Monte
Carlo if NUTS finds no start, or the sum of all 2^p Gaussians of a spike-and-slab regression. Errors are the largest
over all unconstrained coordinates; those of means are in posterior standard deviations. ``noise`` is the part that the
Monte Carlo error of the reference explains.

    python examples/benchmarks/ep_breadth.py [names]
"""

import json
import sys
import time
import warnings
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression

STAN_MODELS = Path(__file__).parents[2] / "stan_models"
RNG = np.random.default_rng(20)
SPIKES = {"w": np.array([0.8, 0.2]), "sigma": np.array([0.05, 2.0])}


def poisson_random_effects():
    """Return counts with a scale of group effects; the Stan example's data."""
    data = json.loads((STAN_MODELS / "poisson_random_effects.data.json").read_text())
    group = np.array(data["group"]) - 1
    with pm.Model() as model:
        beta, tau = pm.Normal("beta", 0, data["prior_sd"], shape=data["P"]), pm.HalfNormal("tau", 1)
        z = pm.Normal("z", shape=data["J"])
        eta = np.array(data["log_exposure"]) + np.array(data["X"]) @ beta + (tau * z)[group]
        pm.Poisson("y", pm.math.exp(eta), observed=data["y"])
    return model


def robust_regression(n=200, d=5):
    """Return a model of Student t errors with unknown scale and degrees of freedom."""
    X = RNG.normal(size=(n, d))
    y = X @ np.linspace(1, -1, d) + 0.7 * RNG.standard_t(3, size=n)
    with pm.Model() as model:
        beta, sigma, nu = pm.Normal("beta", 0, 2.5, shape=d), pm.HalfNormal("sigma", 2), pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=X @ beta, sigma=sigma, observed=y)
    return model


def ordinal_regression(n=300, d=4):
    """Return a model of four ordered categories with unknown cutpoints."""
    X = RNG.normal(size=(n, d))
    y = np.digitize(X @ np.linspace(1, -1, d) + RNG.logistic(size=n), [-1.5, 0.2, 1.5])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2.5, shape=d)
        cutpoints = pm.Normal(
            "cutpoints", 0, 3, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0.0, 1.0]
        )
        pm.OrderedLogistic("y", eta=X @ beta, cutpoints=cutpoints, observed=y)
    return model


def dna_cauchy_probit():
    """Return a model of splice junctions of the kind ei against the rest."""
    X, y, *_ = load_binary_regression("dna", scaling="gelman")
    with pm.Model() as model:
        beta = pm.Cauchy("beta", 0, np.r_[10.0, np.full(X.shape[1] - 1, 2.5)], shape=X.shape[1])
        pm.Bernoulli("y", p=pm.math.invprobit(X @ beta), observed=np.asarray(y, dtype=int))
    model.exact = by_hmc
    return model


def gaussian_process_classification(n=500):
    """Return a model of binary outcomes along a line with unknown amplitude."""
    x = np.sort(RNG.uniform(0, 10, size=n))
    root = np.linalg.cholesky(np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-6 * np.eye(n))
    y = RNG.random(n) < 1 / (1 + np.exp(-2 * root @ RNG.normal(size=n)))
    with pm.Model() as model:
        amplitude, z = pm.HalfNormal("amplitude", 2), pm.Normal("z", shape=n)
        pm.Bernoulli("y", logit_p=amplitude * pm.math.dot(root, z), observed=y.astype(int))
    return model


def spike_and_slab(n=60, p=10, correlation=0.0):
    """Return a regression with a mixture of two normals for a prior of every coefficient."""
    X = np.sqrt(1 - correlation) * RNG.normal(size=(n, p)) + np.sqrt(correlation) * RNG.normal(size=(n, 1))
    y = X[:, :3] @ [1.0, -0.6, 0.35] + RNG.normal(size=n)
    with pm.Model() as model:
        beta = pm.NormalMixture("beta", mu=[0, 0], shape=p, **SPIKES)
        pm.Normal("y", X @ beta, 1.0, observed=y)
    model.exact = mixture_of_gaussians(X, y)
    return model


def correlated_spike_and_slab():
    """Return the same with predictors that can replace each other, which gives several modes."""
    return spike_and_slab(n=40, correlation=0.8)


MODELS = {
    f.__name__: f
    for f in (
        poisson_random_effects,
        robust_regression,
        ordinal_regression,
        dna_cauchy_probit,
        gaussian_process_classification,
        spike_and_slab,
        correlated_spike_and_slab,
    )
}


def mixture_of_gaussians(X, y):
    """Return means and sds of a spike-and-slab regression with unit noise, over all 2^p choices."""
    p = X.shape[1]
    gram, shift = X.T @ X, X.T @ y
    choices = (np.arange(2**p)[:, None] >> np.arange(p)) & 1
    log_weights, means, squares = [], [], []
    for choice in choices:
        precision = gram + np.diag(SPIKES["sigma"][choice] ** -2)
        cov = np.linalg.inv(precision)
        mean = cov @ shift
        log_prior = np.log(SPIKES["w"][choice] / SPIKES["sigma"][choice]).sum()
        log_weights.append(log_prior - 0.5 * np.linalg.slogdet(precision)[1] + 0.5 * shift @ mean)
        means.append(mean)
        squares.append(np.diag(cov) + mean**2)
    weights = np.exp(log_weights - np.max(log_weights))
    weights /= weights.sum()
    mean = weights @ means
    return mean, np.sqrt(weights @ squares - mean**2)


def by_nuts(model, target):
    """Return means and sds in unconstrained space by NUTS, the seconds it took, and its smallest bulk ESS."""
    import nutpie

    compiled = nutpie.compile_pymc_model(model)
    started = time.perf_counter()
    trace = nutpie.sample(compiled, draws=2000, tune=1000, chains=4, cores=1, seed=1, progress_bar=False)
    seconds = time.perf_counter() - started
    names = [rv.name for rv in model.free_RVs]
    posterior = trace.posterior[names]
    values = {name: posterior[name].values.reshape(-1, *posterior[name].shape[2:]) for name in names}
    draws = target.unconstrain(values)
    ess = min(float(np.min(v.values)) for v in az.ess(posterior, method="bulk").data_vars.values())
    return draws.mean(axis=0), draws.std(axis=0), seconds, ess


def by_hmc(factors, q, iterations=700, chains=24, step=0.28, leaps=6):
    """Return means and sds by HMC in the coordinates in which ``q`` is standard normal, and the seconds.

    This is for a probit with many predictors: at random coefficients it is 0 or 1 to machine precision, and NUTS finds
    no start.
    """
    rng, root, started = np.random.default_rng(0), np.linalg.cholesky(q.cov), time.perf_counter()

    def log_density(z):
        s = factors.predictor(q.mean + z @ root.T)
        slope = factors.site_derivatives(s)[0]
        return factors.log_site(s).sum(axis=1), np.asarray(slope @ factors.design) @ root

    z, draws = rng.normal(size=(chains, q.dim)), []
    value, gradient = log_density(z)
    for _ in range(iterations):
        epsilon = step * rng.uniform(0.7, 1.3)
        momentum = rng.normal(size=z.shape)
        energy = value - 0.5 * (momentum**2).sum(axis=1)
        there, slope = z, gradient
        for _ in range(leaps):
            momentum = momentum + 0.5 * epsilon * slope
            there = there + epsilon * momentum
            new_value, slope = log_density(there)
            momentum = momentum + 0.5 * epsilon * slope
        accepted = np.log(rng.random(chains)) < new_value - 0.5 * (momentum**2).sum(axis=1) - energy
        z, value = np.where(accepted[:, None], there, z), np.where(accepted, new_value, value)
        gradient = np.where(accepted[:, None], slope, gradient)
        draws.append(q.mean + z @ root.T)
    kept = np.array(draws[iterations // 10 :])
    ess = np.prod(kept.shape[:2]) * np.min(kept.var(axis=(0, 1)) / kept.mean(axis=0).var(axis=0, ddof=1) / len(kept))
    return kept.mean(axis=(0, 1)), kept.std(axis=(0, 1)), time.perf_counter() - started, min(ess, kept[..., 0].size)


def compare(name):
    """Print one row of the table."""
    model = MODELS[name]()
    started = time.perf_counter()
    target = pb.as_target(model)
    factors = target.factors
    found = time.perf_counter() - started
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", pb.errors.ApproximationWarning)
        started = time.perf_counter()
        q = pb.fit_ep(target)
        first = time.perf_counter() - started
        started = time.perf_counter()
        q = pb.fit_ep(target)
        again = time.perf_counter() - started
    if callable(getattr(model, "exact", None)):
        mean, sd, seconds, ess = model.exact(factors.at(), q)
    elif hasattr(model, "exact"):
        (mean, sd), seconds, ess = model.exact, float("nan"), float("inf")
    else:
        mean, sd, seconds, ess = by_nuts(model, target)
    in_mean, in_sd = np.abs(q.mean - mean) / sd, np.abs(q.sd / sd - 1)
    flags = sum(issubclass(w.category, pb.errors.ApproximationWarning) for w in caught)
    print(
        f"{name:32s} {len(factors.hyper_names):3d} {q.dim:5d} {in_mean.max():8.3f} {100 * in_sd.max():6.1f} "
        f"{np.mean(100 * in_sd):6.1f} {3 / np.sqrt(ess):7.3f} {found:7.1f} {first:7.1f} {again:7.2f} "
        f"{seconds:7.1f} {ess:7.0f} {'converged' if q.converged else 'not converged'}, {flags} warnings",
        flush=True,
    )
    worst = np.argsort(-np.maximum(in_mean / 0.1, in_sd / 0.1))[:3]
    print(
        "    worst:",
        ", ".join(f"{q.names[j]} {in_mean[j]:.3f} sd, {100 * (q.sd[j] / sd[j] - 1):+.1f} %" for j in worst),
    )


if __name__ == "__main__":
    print(
        f"{'model':32s} {'phi':>3s} {'dim':>5s} {'mean/sd':>8s} {'sd %':>6s} {'avg %':>6s} {'noise':>7s} {'find s':>7s} "
        f"{'first s':>7s} {'EP s':>7s} {'NUTS s':>7s} {'ESS':>7s}"
    )
    for name in sys.argv[1:] or MODELS:
        compare(name)

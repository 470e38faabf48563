"""Models with factorisations of matrices, in fresh processes on two cores.

Every model and method runs several times, each time in its own process, which may use two cores and is stopped after
``--timeout`` seconds. The table has the number of runs that returned, the CPU times of the first call and of a second
call, and the results. NUTS is PyMC's own, two chains of 1,000 draws after 1,000 of tuning. All methods compile in their
first call: the compiled code that PyTensor keeps on disk is of the same process, and the time of C compilers counts.

    python examples/benchmarks/factorisations.py --repeats 5
    python examples/benchmarks/factorisations.py --models gp_marginal gp_latent --methods fit_laplace --repeats 50
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

TWICE = ("fit_laplace", "sample_smc", "nuts")
METHODS = ("fit_laplace", "fit_vi", "fit_ep", "sample_importance", "sample_smc", "sample_mcmc", "nuts")


def _series(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs ``(n, 1)`` and a noisy sine."""
    inputs = np.linspace(0.0, 10.0, n)[:, None]
    return inputs, np.sin(inputs[:, 0]) + 0.3 * np.random.default_rng(0).normal(size=n)


def gp_marginal() -> Any:
    """Return a Gaussian process with its function integrated out, 80 observations."""
    return _marginal(80, "ExpQuad")


def gp_matern() -> Any:
    """Return the same with a rougher kernel, 50 observations."""
    return _marginal(50, "Matern52")


def _marginal(n: int, kernel: str) -> Any:
    import pymc as pm

    inputs, y = _series(n)
    with pm.Model() as model:
        length, eta, sigma = pm.HalfNormal("length", 2.0), pm.HalfNormal("eta", 2.0), pm.HalfNormal("sigma", 1.0)
        process = pm.gp.Marginal(cov_func=eta**2 * getattr(pm.gp.cov, kernel)(1, ls=length))
        process.marginal_likelihood("y", X=inputs, y=y, sigma=sigma)
    return model


def gp_latent() -> Any:
    """Return counts with a latent Gaussian process, 30 observations."""
    import pymc as pm

    inputs, y = _series(30)
    with pm.Model() as model:
        length, eta = pm.Gamma("length", 4.0, 2.0), pm.HalfNormal("eta", 1.0)
        process = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=length))
        f = process.prior("f", X=inputs)
        pm.Poisson("y", pm.math.exp(1.0 + f), observed=np.random.default_rng(1).poisson(np.exp(1.0 + y)))
    return model


def mvnormal() -> Any:
    """Return autoregressive covariance of 20 coordinates, 40 observations."""
    import pymc as pm

    lags = np.abs(np.subtract.outer(np.arange(20), np.arange(20)))
    y = np.random.default_rng(2).multivariate_normal(np.zeros(20), 0.6**lags, size=40)
    with pm.Model() as model:
        rho, scale = pm.Beta("rho", 2.0, 2.0), pm.HalfNormal("scale", 2.0)
        pm.MvNormal("y", mu=np.zeros(20), cov=scale**2 * rho**lags, observed=y)
    return model


def lkj() -> Any:
    """Return the covariance of three outcomes, 60 observations."""
    import pymc as pm

    y = np.random.default_rng(3).multivariate_normal([0.0, 1.0, 2.0], [[1, 0.5, 0], [0.5, 2, 0.3], [0, 0.3, 1]], 60)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0, shape=3)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0), compute_corr=True)
        pm.MvNormal("y", mu=mu, chol=chol, observed=y)
    return model


def lkj_groups() -> Any:
    """Return correlated intercepts and slopes of eight groups, 80 observations."""
    import pymc as pm

    rng = np.random.default_rng(4)
    group, t = np.repeat(np.arange(8), 10), rng.normal(size=80)
    effects = rng.multivariate_normal([1.0, -0.5], [[0.5, 0.2], [0.2, 0.3]], size=8)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0, shape=2)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0), compute_corr=True)
        b = pm.MvNormal("b", mu=mu, chol=chol, shape=(8, 2))
        sigma = pm.HalfNormal("sigma", 1.0)
        y = effects[group, 0] + effects[group, 1] * t + 0.4 * rng.normal(size=80)
        pm.Normal("y", b[group, 0] + b[group, 1] * t, sigma, observed=y)
    return model


def cholesky() -> Any:
    """Return a covariance factorised by hand, its log density as a Potential."""
    import pymc as pm
    import pytensor.tensor as pt

    inputs, y = _series(40)
    distance = np.abs(inputs - inputs.T)
    with pm.Model() as model:
        length, sigma = pm.HalfNormal("length", 2.0), pm.HalfNormal("sigma", 1.0)
        factor = pt.linalg.cholesky(pt.exp(-distance / length) + sigma**2 * np.eye(40))
        z = pt.linalg.solve_triangular(factor, y, lower=True)
        pm.Potential("y", -0.5 * (z**2).sum() - pt.log(pt.diag(factor)).sum())
    return model


def solve() -> Any:
    """Return a spatial autoregression on a ring: (I - rho W) y = a + e."""
    import pymc as pm
    import pytensor.tensor as pt

    n = 30
    ring = 0.5 * (np.roll(np.eye(n), 1, axis=0) + np.roll(np.eye(n), -1, axis=0))
    rng = np.random.default_rng(5)
    y = np.linalg.solve(np.eye(n) - 0.5 * ring, 1.0 + 0.5 * rng.normal(size=n))
    with pm.Model() as model:
        rho, a, sigma = pm.Uniform("rho", -0.9, 0.9), pm.Normal("a", 0.0, 2.0), pm.HalfNormal("sigma", 1.0)
        system = pt.eye(n) - rho * ring
        e = (y - pt.linalg.solve(system, a * np.ones(n))) / sigma
        white = pt.dot(system, e)
        _, log_det = pt.linalg.slogdet(system)
        pm.Potential("y", -0.5 * (white**2).sum() - n * pt.log(sigma) + log_det)
    return model


def eigh() -> Any:
    """Return observations in the eigenbasis of a covariance that depends on a parameter."""
    import pymc as pm
    import pytensor.tensor as pt

    inputs, y = _series(25)
    distance = np.abs(inputs - inputs.T)
    with pm.Model() as model:
        length, sigma = pm.Gamma("length", 4.0, 2.0), pm.HalfNormal("sigma", 1.0)
        values, vectors = pt.linalg.eigh(pt.exp(-distance / length))
        rotated = pt.dot(vectors.T, y)
        variance = values + sigma**2
        pm.Potential("y", -0.5 * (rotated**2 / variance + pt.log(variance)).sum())
    return model


def inverse() -> Any:
    """Return a model with an inverted precision matrix and its determinant, 50 observations."""
    import pymc as pm
    import pytensor.tensor as pt

    path = 2 * np.eye(12) - np.eye(12, k=1) - np.eye(12, k=-1)
    y = np.random.default_rng(6).multivariate_normal(np.zeros(12), np.linalg.inv(path + 0.5 * np.eye(12)), size=50)
    with pm.Model() as model:
        tau, nugget = pm.Gamma("tau", 2.0, 2.0), pm.Gamma("nugget", 2.0, 2.0)
        precision = tau * path + nugget * np.eye(12)
        covariance = pt.linalg.inv(precision)
        pm.Potential("y", -0.5 * (pt.linalg.inv(covariance) * (y.T @ y)).sum() - 25 * pt.log(pt.linalg.det(covariance)))
    return model


MODELS: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (gp_marginal, gp_latent, gp_matern, mvnormal, lkj, lkj_groups, cholesky, solve, eigh, inverse)
}


def run(model: Any, target: Any, method: str) -> str:
    """Run one method and return what it reports."""
    import ppl_backends as pb

    quiet = {"random_seed": 1, "progressbar": False}
    if method == "nuts":
        import pymc as pm

        with model:
            pm.sample(1000, tune=1000, chains=2, cores=1, random_seed=1, progressbar=False)
        return ""
    if method.startswith("fit_"):
        fit = getattr(pb, method)(target, **quiet)
        return f"log Z {fit.log_evidence:.3f}, {'converged' if fit.converged else 'not converged'}"
    options = {"draws": 1000, "chains": 2} if method in ("sample_smc", "sample_mcmc") else {}
    attributes = getattr(pb, method)(target, **options, **quiet)["posterior"].attrs
    if "log_evidence" not in attributes:
        return ""
    return f"log Z {attributes['log_evidence']:.3f}" + ("" if attributes["log_evidence_trusted"] else ", not trusted")


def child(name: str, method: str) -> None:
    """Make one run and print it as JSON on the last line."""
    import ppl_backends as pb

    warnings.simplefilter("ignore")
    model = MODELS[name]()
    times, said = [], ""
    start = cpu_seconds()
    target = None if method == "nuts" else pb.as_target(model)
    for _ in range(2 if method in TWICE else 1):
        try:
            said = run(model, target, method)
        except pb.errors.ModelError as refusal:
            said = f"refused: {str(refusal)[:60]}"
        times.append(cpu_seconds() - start)
        start = cpu_seconds()
    print(json.dumps({"cpu": times, "said": said}))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it started, such as C compilers."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def repeat(name: str, method: str, repeats: int, timeout: float) -> tuple[int, list[dict]]:
    """Return the number of runs that returned, and their results."""
    results = []
    cores = sorted(os.sched_getaffinity(0))[:2]
    for _ in range(repeats):
        command = [sys.executable, "-W", "ignore", __file__, "--child", name, method]
        with tempfile.TemporaryDirectory() as compiled:
            flags = ",".join([*filter(None, [os.environ.get("PYTENSOR_FLAGS")]), f"base_compiledir={compiled}"])
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    timeout=timeout,
                    env=os.environ | {"PYTENSOR_FLAGS": flags},
                    preexec_fn=lambda: os.sched_setaffinity(0, cores),
                )
            except subprocess.TimeoutExpired:
                continue
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["?"])[-1]
            results.append({"cpu": [float("nan")], "said": f"failed: {last[:100]}"})
        else:
            results.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return len(results), results


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    print(
        "| model | method | came back | CPU s, first | CPU s, second | result |\n| --- | --- | --- | --- | --- | --- |"
    )
    for name in arguments.models:
        for method in arguments.methods:
            back, results = repeat(name, method, 1 if method == "nuts" else arguments.repeats, arguments.timeout)
            runs = 1 if method == "nuts" else arguments.repeats
            first = f"{median(r['cpu'][0] for r in results):.1f}" if results else ""
            second = f"{median(r['cpu'][1] for r in results):.2f}" if results and len(results[0]["cpu"]) > 1 else ""
            said = " / ".join(sorted({r["said"] for r in results}))
            print(f"| {name} | `{method}` | {back}/{runs} | {first} | {second} | {said} |", flush=True)


if __name__ == "__main__":
    main()

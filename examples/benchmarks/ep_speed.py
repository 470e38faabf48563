"""
Speed of expectation propagation
================================

The script prints three tables, with one BLAS thread. Solving and sampling are timed in CPU seconds on one core, so that
other work on the machine matters little. Finding factors and compiling are timed in wall time.

``small`` has solver times of EP on hand-written factors, and of Newton's method run to convergence on the same factors,
which is the cost of a Laplace approximation. ``models`` starts from a PyMC model and has separate times for finding the
factors, first use (with compilation) and solving; and for NUTS (nutpie) run to an ESS of 1,000 in every coordinate,
without compilation. ``growth`` has more and more rows.

    python examples/benchmarks/ep_speed.py small | models [data sets] | growth
"""

import sys
import time

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits

import ppl_backends as pb
from ppl_backends.approximations.ep import Factors, Logit, Probit, StudentT, fit_ep
from ppl_backends.approximations.ep.evidence import working_sites
from ppl_backends.approximations.ep.parallel import laplace_start
from ppl_backends.datasets import load_binary_regression

ENOUGH = 1000  # effective draws


def timed(function, clock=time.process_time):
    """Return seconds, and the result."""
    started = clock()
    result = function()
    return clock() - started, result


def best(function, repeats=15):
    """Return the shortest of several runs, in milliseconds, and the last result."""
    runs = [timed(function) for _ in range(repeats)]
    return 1e3 * min(seconds for seconds, _ in runs), runs[-1][1]


def scenarios(X, y):
    """Yield the four scenarios of Chopin & Ridgway (2017): Gaussian or Cauchy prior, probit or logit."""
    d = X.shape[1]
    scale = np.r_[10.0, np.full(d - 1, 2.5)]
    for family in (Probit, Logit):
        name = family.__name__.lower()
        yield f"Gaussian/{name}", Factors(X, None, family(y), 0.0, 1 / (2 * scale) ** 2)
        cauchy = StudentT(np.zeros(d), 1.0, scale)
        yield f"Cauchy/{name}", Factors([X, np.eye(d)], None, [family(y), cauchy], 0.0, 0.0)


def small_data():
    """Print the times of EP and Newton on the data sets of the paper."""
    print(
        f"{'data':18s} {'n':>5s} {'d':>4s} {'scenario':16s} {'EP ms':>8s} {'Newton ms':>10s} {'ratio':>6s} {'sweeps':>7s}"
    )
    for name in ("plasma", "pima", "breast_wisconsin", "australian", "german_credit", "sonar", "musk"):
        X, y, *_ = load_binary_regression(name, scaling="gelman")
        for scenario, factors in scenarios(X, y):
            ep, q = best(lambda factors=factors: fit_ep(factors))
            sites, _ = working_sites(factors)
            newton, _ = best(lambda sites=sites: laplace_start(sites, gain=1e-10))
            n, d = X.shape
            print(
                f"{name:18s} {n:5d} {d:4d} {scenario:16s} {ep:8.2f} {newton:10.2f} {ep / newton:6.1f} "
                f"{int(q.diagnostics['sweeps']):7d}{'' if q.converged else '  not converged'}",
                flush=True,
            )


def regression(X, y, link, prior_sd):
    """Return a binary regression in PyMC."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, prior_sd, shape=X.shape[1])
        eta = X @ beta
        given = {"logit_p": eta} if link == "logit" else {"p": pm.math.invprobit(eta)}
        pm.Bernoulli("y", **given, observed=np.asarray(y, dtype=int))
    return model


def nuts_seconds(model):
    """Return nutpie's seconds until every coordinate has an ESS of 1,000, with adaptation; and to compile."""
    import arviz as az
    import nutpie

    # At random coefficients a probit can be 0 or 1 to machine precision, and NUTS finds no start of its own.
    start = {"initial_points": {"beta": np.zeros(model["beta"].type.shape)}, "jitter_rvs": set()}
    compiling, compiled = timed(lambda: nutpie.compile_pymc_model(model, **start), time.perf_counter)
    draws = 250
    while True:
        run = {"draws": draws, "chains": 4, "cores": 1, "seed": 1, "progress_bar": False}
        seconds, trace = timed(lambda run=run: nutpie.sample(compiled, **run))
        ess = float(az.ess(trace.posterior, method="bulk")["beta"].min())
        if ess >= ENOUGH:
            return seconds, compiling
        draws = int(np.ceil(1.1 * draws * ENOUGH / ess))


def models(*names):
    """Print the times of all steps from a PyMC model, and those of NUTS."""
    print(
        f"\n{'data':14s} {'link':7s} {'find s':>7s} {'first s':>8s} {'EP ms':>7s} {'NUTS s':>7s} {'NUTS/EP':>8s} "
        f"{'compile s':>10s}"
    )
    for name, scaling, prior_sd in (("pima", "gelman", None), ("german_credit", "gelman", None), ("sonar", None, 1.0)):
        if names and name not in names:
            continue
        X, y, *_ = load_binary_regression(name, **({"scaling": scaling} if scaling else {}))
        for link in ("probit", "logit"):
            model = regression(X, y, link, np.r_[20.0, np.full(X.shape[1] - 1, 5.0)] if prior_sd is None else prior_sd)
            finding, target = timed(lambda model=model: _found(model), time.perf_counter)
            first, _ = timed(lambda target=target: pb.fit_ep(target), time.perf_counter)
            ep, _ = best(lambda target=target: pb.fit_ep(target))
            nuts, compiling = nuts_seconds(model)
            print(
                f"{name:14s} {link:7s} {finding:7.2f} {first:8.2f} {ep:7.1f} {nuts:7.2f} "
                f"{1e3 * nuts / ep:8.0f} {compiling:10.2f}",
                flush=True,
            )


def _found(model):
    target = pb.as_target(model)
    target.factors.at()
    return target


def growth(d=50):
    """Print the times of logistic regressions in PyMC with more and more rows."""
    print(f"\n{'n':>7s} {'d':>4s} {'find s':>7s} {'EP s':>7s} {'sweeps':>7s}")
    rng = np.random.default_rng(0)
    beta = 0.2 * rng.normal(size=d)
    for n in (12_500, 25_000, 50_000, 100_000):
        X = rng.normal(size=(n, d))
        y = rng.random(n) < 1 / (1 + np.exp(-X @ beta))
        finding, target = timed(lambda X=X, y=y: _found(regression(X, y, "logit", 1.0)))
        solving, q = timed(lambda target=target: pb.fit_ep(target))
        print(f"{n:7d} {d:4d} {finding:7.2f} {solving:7.2f} {int(q.diagnostics['sweeps']):7d}", flush=True)


if __name__ == "__main__":
    with threadpool_limits(1):
        part, *names = sys.argv[1:]
        {"small": small_data, "models": models, "growth": growth}[part](*names)

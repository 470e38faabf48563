"""
Nested Laplace approximations
=============================

``marginals`` has the smallest and the median accuracy 1 − ½∫|q − p| over coefficients of logistic regressions, of Laplace,
EP and improved Laplace, beside importance sampling with three scrambles of 2¹⁸ Sobol points; ``noise`` is the largest
distance of the bins of two such references with other scrambles. Times are CPU milliseconds, the median of five calls;
those of ``fit_inla`` hold the search for the mode, the verdict and the search for other modes, ``curves`` the marginals
alone.

``em`` has the same accuracies of Laplace-EM beside Laplace's, with Cauchy priors.

``hyper`` has latent Gaussian models with hyper-parameters beside NUTS: the largest distance of a mean in standard deviations,
and of a standard deviation from the reference's in per cent, over all coordinates, with two standard errors of the reference.

``large`` has 10⁵ latent variables: CPU seconds and the largest memory of the process.

    python examples/benchmarks/inla.py marginals | em | hyper | large [names]
"""

import resource
import sys
import time
import warnings

import numpy as np
from scipy import sparse, stats
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.approximations.ep import Factors, FactorsTarget, Logit, StudentT, fit_ep
from ppl_backends.approximations.inla.conditional import improved_marginals
from ppl_backends.datasets import load_binary_regression
from ppl_backends.targets.factors import FunctionSites, Poisson

DATA = ("plasma", "pima", "breast_wisconsin", "heart", "australian", "german_credit")
REPEATS = 5
SCRAMBLES = 3
DRAWS = 10_000


def regressions(name):
    """Yield logistic regressions of one data set, with a Gaussian and with a Cauchy prior."""
    X, y, *_ = load_binary_regression(name, scaling="gelman")
    d = X.shape[1]
    scale = np.r_[10.0, np.full(d - 1, 2.5)]
    yield "Gaussian", Factors(X, None, Logit(y), 0.0, 1 / (2 * scale) ** 2)
    yield "Cauchy", Factors([X, np.eye(d)], None, [Logit(y), StudentT(np.zeros(d), 1.0, scale)], 0.0, 0.0)


def milliseconds(call):
    """Return the CPU time of a call, the median of a few, and what it returned."""
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        found = call()
        times.append(1e3 * (time.process_time() - started))
    return np.median(times), found


def exact_bins(factors, q, first):
    """Return posterior mass of every bin and coordinate ``(d, bins)`` and log evidence, averaged over scrambles."""
    from ep_accuracy import bin_masses, reference

    masses, logs = 0.0, []
    for seed in range(first, first + SCRAMBLES):
        z, w, log_z, *_ = reference(factors, q, seed=seed)
        masses = masses + bin_masses(z, w) / SCRAMBLES
        logs.append(log_z)
    return masses, logsumexp(logs) - np.log(SCRAMBLES)


def table_of_marginals(*names):
    """Print accuracies and times of every regression."""
    from ep_accuracy import EDGES, gaussian_masses

    print(
        f"{'data':17s} {'prior':9s} {'d':>3s} {'noise':>6s} {'Laplace min':>11s} {'EP min':>7s} {'INLA min':>8s} "
        f"{'median':>7s} {'log Z':>9s} {'Laplace':>8s} {'EP':>7s} {'INLA':>7s} "
        f"{'se':>6s} {'ms EP':>6s} {'INLA':>6s} {'curves':>6s}"
    )
    for name in names or DATA:
        for prior, factors in regressions(name):
            target, q = FactorsTarget(factors), fit_ep(factors)
            exact, log_z = exact_bins(factors, q, 0)
            noise = 0.5 * np.abs(exact_bins(factors, q, SCRAMBLES)[0] - exact).sum(axis=1).max()
            ep_time, _ = milliseconds(lambda factors=factors: fit_ep(factors))
            inla_time, inla = milliseconds(lambda target=target: pb.fit_inla(target, progressbar=False))
            laplace, index = inla.gaussian_at_mode, np.arange(target.dim)
            curves_time, _ = milliseconds(
                lambda target=target, q=laplace, index=index: improved_marginals(target, q, target.names, index, 25)
            )

            def accuracy(masses, exact=exact):
                return 1 - 0.5 * np.abs(masses - exact).sum(axis=1)

            ones = np.ones(q.dim)
            of_ep = accuracy(gaussian_masses(0 * ones, ones)).min()
            of_laplace = accuracy(gaussian_masses((laplace.mean - q.mean) / q.sd, laplace.sd / q.sd)).min()
            of_inla = accuracy(np.diff(inla.cdf(q.mean + np.outer(EDGES, q.sd)), axis=0).T)
            print(
                f"{name:17s} {prior:9s} {q.dim:3d} {noise:6.4f} {of_laplace:11.3f} {of_ep:7.3f} {of_inla.min():8.4f} "
                f"{np.median(of_inla):7.4f} {log_z:9.3f} {laplace.log_evidence - log_z:8.3f} {q.log_evidence - log_z:7.3f} "
                f"{inla.log_evidence - log_z:7.3f} {inla.log_evidence_se:6.3f} {ep_time:6.1f} {inla_time:6.1f} "
                f"{curves_time:6.1f}",
                flush=True,
            )


def table_of_em(*names):
    """Print the accuracy of Laplace-EM and of Laplace, the largest error of a mean and of a standard deviation, and times."""
    from ep_accuracy import bin_masses, gaussian_masses, reference

    print(
        f"{'data':17s} {'method':11s} {'min':>6s} {'median':>7s} {'mean off by':>12s} {'sds over exact':>16s} {'ms':>6s}"
    )
    for name in names or DATA:
        [factors] = [factors for prior, factors in regressions(name) if prior == "Cauchy"]
        target, q = FactorsTarget(factors), fit_ep(factors)
        z, w, *_ = reference(factors, q)
        exact, shift = bin_masses(z, w), w @ z
        spread = np.sqrt(w @ (z - shift) ** 2)
        calls = {
            "Laplace": lambda target=target: pb.fit_laplace(target, progressbar=False),
            "Laplace-EM": lambda target=target: pb.fit_laplace_em(target),
        }
        for method, call in calls.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ms, found = milliseconds(call)
            mean, sd = (found.mean - q.mean) / q.sd, found.sd / q.sd
            accuracy = 1 - 0.5 * np.abs(gaussian_masses(mean, sd) - exact).sum(axis=1)
            ratio = sd / spread
            print(
                f"{name:17s} {method:11s} {accuracy.min():6.3f} {np.median(accuracy):7.3f} "
                f"{np.abs((mean - shift) / spread).max():9.2f} sd {ratio.min():7.2f} – {ratio.max():.2f} {ms:6.1f}",
                flush=True,
            )


def walk(n):
    """Return the structure of a random walk with a little mass at every point."""
    steps = sparse.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(n - 1, n))
    return sparse.csc_array(steps.T @ steps + 0.01 * sparse.eye_array(n))


def lattice_graph(m):
    """Return the structure of a conditional autoregression on an m × m lattice."""
    neighbours = sparse.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(m, m))
    adjacent = sparse.kronsum(neighbours, neighbours)
    return sparse.csc_array(sparse.diags_array(np.asarray(adjacent.sum(axis=1)).ravel()) - 0.95 * adjacent)


def autoregression(n, rho):
    """Return the precision of a stationary autoregression with unit innovations."""
    middle = np.full(n, 1 + rho**2)
    middle[[0, -1]] = 1.0
    return sparse.csc_array(sparse.diags_array([-rho, middle, -rho], offsets=[-1, 0, 1], shape=(n, n)))


class Scaled:
    """exp(φ) times a structure, with an intercept of its own before it: N(0, 5²)."""

    def __init__(self, structure, intercept=True):
        self.structure, self.intercept = structure, intercept

    def __call__(self, phi):
        matrix = np.exp(phi[0]) * self.structure
        return sparse.block_diag([[[0.04]], matrix], format="csc") if self.intercept else matrix


def simulated(structure, tau, mean, rng):
    """Return one draw of an intercept plus a field with precision tau times the structure."""
    root = np.linalg.cholesky(np.linalg.inv(structure.toarray() * tau))
    return mean + root @ rng.standard_normal(len(root))


def normal_prior(mean, sd):
    """Log density of independent normal priors of φ."""
    return lambda phi: float(stats.norm.logpdf(phi, mean, sd).sum())


def fields():
    """Yield models with an intercept, a structure, its precision exp(φ), and counts or successes: name → its parts."""
    rng = np.random.default_rng(7)
    plates = sparse.csc_array(sparse.eye_array(21))
    trials = rng.integers(10, 60, 21)
    eta = simulated(plates, 8.0, -0.3, rng)
    yield "binomial plates", plates, "binomial", rng.binomial(trials, 1 / (1 + np.exp(-eta))), trials, (2.0, 1.0)
    eta = simulated(walk(60), 20.0, 1.0, rng)
    yield "Poisson walk", walk(60), "poisson", rng.poisson(np.exp(eta)), None, (3.0, 1.0)
    eta = simulated(lattice_graph(8), 3.0, 1.0, rng)
    yield "Poisson lattice", lattice_graph(8), "poisson", rng.poisson(np.exp(eta)), None, (1.0, 1.0)
    days = rng.integers(1, 3, 80)
    eta = simulated(walk(80), 5.0, -0.5, rng)
    yield "binomial walk", walk(80), "binomial", rng.binomial(days, 1 / (1 + np.exp(-eta))), days, (2.0, 1.0)


def described(structure, family, y, trials, prior):
    """Return a field as a ``LatentGaussian``."""
    n = len(y)
    design = sparse.hstack([np.ones((n, 1)), sparse.eye_array(n)], format="csr")
    sites = Poisson(y) if family == "poisson" else Logit(y, trials=trials)
    return pb.LatentGaussian(
        Scaled(structure),
        sites,
        design=design,
        hyper_start=[prior[0]],
        hyper_prior=normal_prior(*prior),
        hyper_names=["log_tau"],
    )


def field_for_nuts(structure, family, y, trials, prior):
    """Return the same in PyMC, non-centred; the draws of its coordinates are in ``x``."""
    import pymc as pm

    root = np.linalg.cholesky(np.linalg.inv(structure.toarray()))
    with pm.Model() as model:
        log_tau = pm.Normal("log_tau", *prior)
        intercept = pm.Normal("intercept", 0, 5)
        z = pm.Normal("z", shape=len(y))
        field = pm.Deterministic("field", pm.math.exp(-0.5 * log_tau) * pm.math.dot(root, z))
        if family == "poisson":
            pm.Poisson("y", pm.math.exp(intercept + field), observed=y)
        else:
            pm.Binomial("y", trials, logit_p=intercept + field, observed=y)
    return model, ("log_tau", "intercept", "field")


def volatility(n=100):
    """Return stochastic volatility: an autoregression with unknown persistence and innovations."""
    rng = np.random.default_rng(3)
    x = simulated(autoregression(n, 0.95), 1 / 0.3**2, -1.0, rng)
    y = np.exp(0.5 * x) * rng.standard_normal(n)
    priors = np.array([3.5, -1.0, -1.0]), np.array([0.7, 0.5, 1.0])  # logit of persistence, log sd, level

    def precision(phi):
        rho = 2 / (1 + np.exp(-phi[0])) - 1
        return sparse.block_diag([[[1.0]], autoregression(n, rho) * np.exp(-2 * phi[1])], format="csc")

    def log_site(s, rows=None):
        square = (y if rows is None else y[rows]) ** 2
        return -0.5 * (np.log(2 * np.pi) + s + square * np.exp(-s))

    def derivatives(s, rows=None):
        scaled = 0.5 * (y if rows is None else y[rows]) ** 2 * np.exp(-s)
        return scaled - 0.5, -scaled

    model = pb.LatentGaussian(
        precision,
        FunctionSites(log_site, n, takes_rows=True, derivatives=derivatives),
        design=sparse.hstack([np.ones((n, 1)), sparse.eye_array(n)], format="csr"),
        mean=np.r_[-1.0, np.zeros(n)],
        hyper_start=[3.0, -1.0],
        hyper_prior=normal_prior(priors[0][:2], priors[1][:2]),
        hyper_names=["logit_rho", "log_sd"],
    )
    return model, y, priors


def volatility_for_nuts(y, priors):
    """Return the same in PyMC, non-centred."""
    import pymc as pm

    n = len(y)
    ahead = np.maximum(np.subtract.outer(np.arange(n), np.arange(n)), 0)
    with pm.Model() as model:
        logit_rho, log_sd, level = (
            pm.Normal(name, m, s) for name, m, s in zip(("logit_rho", "log_sd", "level"), *priors, strict=True)
        )
        rho = 2 * pm.math.sigmoid(logit_rho) - 1
        z = pm.Normal("z", shape=n)
        first = pm.math.concatenate([1 / pm.math.sqrt(1 - rho**2)[None] * z[:1], z[1:]])
        powers = pm.math.exp(ahead * pm.math.log(rho)) * np.tril(np.ones((n, n)))
        field = pm.Deterministic("field", pm.math.exp(log_sd) * pm.math.dot(powers, first))
        pm.Normal("y", 0, pm.math.exp(0.5 * (level + field)), observed=y)
    return model, ("logit_rho", "log_sd", "level", "field")


def long_run(model, names):
    """Return means, standard deviations of all coordinates by NUTS, and the largest standard errors of both, relative."""
    import arviz as az
    import nutpie

    compiled = nutpie.compile_pymc_model(model)
    trace = nutpie.sample(
        compiled, draws=DRAWS, tune=1500, chains=4, cores=1, seed=1, target_accept=0.95, progress_bar=False
    )
    posterior = trace.posterior
    draws = np.concatenate([posterior[name].values.reshape(4, DRAWS, -1) for name in names], axis=2)
    ess = min(float(az.ess(posterior[name]).to_array().min()) for name in names)
    x = draws.reshape(-1, draws.shape[2])
    return x.mean(axis=0), x.std(axis=0), ess


def table_of_hyper_parameters(*names):
    """Print errors of means and standard deviations beside NUTS."""
    print(
        f"{'model':17s} {'dim':>4s} {'mean, sd':>9s} {'sd, %':>6s} {'2 se':>6s} {'2 se, %':>7s} {'ESS':>6s} "
        f"{'hyper mean':>10s} {'hyper sd, %':>11s} {'fits':>5s} {'CPU s':>6s} {'NUTS s':>7s}  converged"
    )
    cases = [(name, described(*rest), lambda rest=rest: field_for_nuts(*rest)) for name, *rest in fields()]
    model, y, priors = volatility()
    cases.append(("volatility", model, lambda: volatility_for_nuts(y, priors)))
    for name, model, reference in cases:
        if names and name not in names:
            continue
        started = time.process_time()
        q = pb.fit_inla(model, progressbar=False)
        spent = time.process_time() - started
        mean, sd, ess = long_run(*reference())
        nuts = time.process_time() - started - spent
        shift, ratio = np.abs(q.mean - mean) / sd, 100 * np.abs(q.sd / sd - 1)
        p = len(q.hyper.names)
        print(
            f"{name:17s} {q.dim:4d} {shift.max():9.3f} {ratio.max():6.1f} {2 / np.sqrt(ess):6.3f} "
            f"{200 / np.sqrt(2 * ess):7.1f} {ess:6.0f} {shift[:p].max():10.3f} {ratio[:p].max():11.1f} "
            f"{q.diagnostics['fits']:5.0f} {spent:6.1f} "
            f"{nuts:7.1f}  {q.converged} {q.trouble}",
            flush=True,
        )


def table_of_large(*names):
    """Print times and memory with 10⁵ latent variables."""
    rng = np.random.default_rng(1)
    n, m = 100_000, 316
    steps = np.cumsum(rng.normal(size=n) * 0.05)
    cases = {
        "walk": (walk(n), 1 + steps - steps.mean(), 4.0),
        "lattice": (
            lattice_graph(m),
            1 + 0.5 * np.add.outer(np.sin(np.arange(m) / 9), np.cos(np.arange(m) / 7)).ravel(),
            1.0,
        ),
    }
    print(
        f"{'model':10s} {'latents':>8s} {'fits':>5s} {'CPU s':>7s} {'GB':>5s} {'log Z':>12s} "
        f"{'log tau':>8s} {'sd':>6s}  converged"
    )
    for name in names or cases:
        structure, eta, start = cases[name]
        model = described(structure, "poisson", rng.poisson(np.exp(eta)), None, (start, 2.0))
        started = time.process_time()
        q = pb.fit_inla(model, progressbar=False)
        spent = time.process_time() - started
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"{name:10s} {q.dim - 1:8d} {q.diagnostics['fits']:5.0f} {spent:7.1f} {memory:5.2f} {q.log_evidence:12.2f} "
            f"{q.mean[0]:8.3f} {q.sd[0]:6.3f}  {q.converged} {q.trouble}",
            flush=True,
        )


if __name__ == "__main__":
    part, *chosen = sys.argv[1:]
    {"marginals": table_of_marginals, "em": table_of_em, "hyper": table_of_hyper_parameters, "large": table_of_large}[
        part
    ](*chosen)

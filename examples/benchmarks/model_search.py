"""Searches of linear models against enumeration and against particles; the data are those of the particles package.

    python examples/benchmarks/model_search.py boston --runs 20
    python examples/benchmarks/model_search.py concrete12 --runs 20 --peer
    python examples/benchmarks/model_search.py concrete78 --runs 4 --draws 2000

particles 0.4 does not run on current NumPy as released. ``--peer`` corrects it: coefficients of scikit-learn become
arrays, the constants of the g-prior are right, and stages are not printed.
"""

import argparse
import contextlib
import io
import time
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.special import logsumexp

from ppl_backends.model_search.evidences.linear import LinearEvidence
from ppl_backends.model_search.sampler import run_search
from ppl_backends.model_search.space import make_space

MOST_ENUMERATED = 20


def load(name):
    """Return a design and a response."""
    folder = Path(find_spec("particles").submodule_search_locations[0]) / "datasets"
    if name == "boston":
        table = np.loadtxt(folder / "boston_house_prices.csv", delimiter=",", skiprows=2)
        return table[:, :-1], np.log(table[:, -1])
    table = np.loadtxt(folder / "concrete.csv", delimiter=",", skiprows=1)
    design = np.column_stack([table[:, :-1], np.log(table[:, [0, 3, 5, 7]])])
    if name == "concrete78":
        design = np.column_stack([design, *(design[:, i] * design[:, j] for j, i in combinations(range(12), 2))])
    return design, table[:, -1]


def ours(design, response, draws):
    """Return a function of a seed: inclusions and the log mean evidence of one run."""
    p = design.shape[1]
    space = make_space(tuple(map(str, range(p))), np.zeros(p, dtype=bool), None, None, "uniform")
    evidence = LinearEvidence(design, response, "g")

    def run(seed):
        found = run_search(space, evidence, draws, np.random.default_rng(seed))
        return found.population.share.mean(axis=0), found.log_evidence

    return run, space, evidence


def peer(design, response, draws):
    """Return the same of particles, mended."""
    import particles
    from particles import binary_smc
    from particles import distributions as dists
    from particles import smc_samplers as ssps
    from sklearn.linear_model import LogisticRegression

    class Regression(LogisticRegression):
        def fit(self, *args, **kwargs):
            super().fit(*args, **kwargs)
            self.intercept_, self.coef_ = self.intercept_[0], self.coef_[0]
            return self

    class GPrior(binary_smc.BayesianVS_gprior):
        def set_constants(self):
            self.g = float(self.n)
            self.coef_len, self.coef_log = 0.5 * np.log1p(self.g), 0.5 * (self.n - 1)
            self.coef_in_log, self.gogp1 = self.yty, self.g / (1 + self.g)

    binary_smc.LogisticRegression = Regression
    x = (design - design.mean(axis=0)) / design.std(axis=0)
    y = (response - response.mean()) / response.std()
    n, p = design.shape
    prior = dists.IID(binary_smc.Bernoulli(0.5), p)
    model = GPrior(data=(x, y), prior=prior, lamb=1.0, g=float(n), jitted=True)

    def run(seed):
        np.random.seed(seed)  # noqa: NPY002
        move = ssps.MCMCSequenceWF(mcmc=binary_smc.BinaryMetropolis(), len_chain=2)
        tempering = ssps.AdaptiveTempering(model, wastefree=True, len_chain=2, move=move)
        smc = particles.SMC(fk=tempering, N=draws, verbose=False)
        with contextlib.redirect_stdout(io.StringIO()):
            smc.run()
        constant = 0.5 * (n - 1) * np.log(model.yty)
        return np.average(smc.X.theta, weights=smc.W, axis=0), smc.logLt + constant

    return run


def report(name, run, runs, exact):
    """Print time, spread and error of independent runs."""
    run(10_000)  # compiles
    inclusions, logs, seconds = [], [], []
    for seed in range(runs):
        clock = time.process_time()
        inclusion, log_evidence = run(seed)
        seconds.append(time.process_time() - clock)
        inclusions.append(inclusion)
        logs.append(log_evidence)
        apart = np.ptp(inclusions, axis=0).max()
        print(
            f"    {seed}: {log_evidence:.3f}, {seconds[-1]:.1f} CPU s, inclusions so far {apart:.3f} apart", flush=True
        )
    inclusions, logs = np.array(inclusions), np.array(logs)
    print(
        f"{name}: {np.mean(seconds):.3f} CPU s a run, largest sd of an inclusion {inclusions.std(axis=0, ddof=1).max():.4f}, "
        f"range {np.ptp(inclusions, axis=0).max():.3f}; log mean evidence {logs.mean():.3f}, sd {logs.std(ddof=1):.3f}"
    )
    if exact is not None:
        error = np.sqrt(((inclusions - exact[0]) ** 2).mean(axis=0).max())
        print(
            f"    rms error {error:.4f}, error² × CPU {error**2 * np.mean(seconds):.2e}; "
            f"log evidence off by {logs.mean() - exact[1]:.4f} ± {logs.std(ddof=1) / runs**0.5:.4f}"
        )


def main():
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=("boston", "concrete12", "concrete78"))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--peer-draws", type=int, default=5000, help="chains of two states each")
    given = parser.parse_args()
    design, response = load(given.data)
    run, space, evidence = ours(design, response, given.draws)
    exact = None
    if space.n_candidates <= MOST_ENUMERATED:
        bits = space.all()
        logs = evidence(space.columns(bits), np.random.default_rng(0)) + space.log_prior(bits)
        exact = np.exp(logs - logsumexp(logs)) @ bits, logsumexp(logs)
        print("exact", exact[0].round(6), round(exact[1], 6))
    report("ppl_backends", run, given.runs, exact)
    if given.peer:
        report("particles", peer(design, response, given.peer_draws), given.runs, exact)


if __name__ == "__main__":
    main()

"""Importance sampling from the Gaussian of EP, and the gain of scrambled Sobol points (Chopin & Ridgway 2017, Table 2).

Probit regressions with the prior N(0, 20²) on the intercept and N(0, 5²) on the other coefficients, predictors scaled
as in the paper.

``efficiency``  Efficiency factor ESS/N of 5·10⁵ independent draws from EP's Gaussian, over seeds.
``gains``       Mean squared error of independent draws divided by that of the same number of scrambled Sobol points.
                The error of the Sobol points is their spread over replicates. That of independent draws comes from the
                weights of all replicates. The table has the gain of the evidence, and of the gains of the posterior
                means the median over coefficients, as the paper does, and the smallest.

Run: python examples/benchmarks/importance_rqmc.py efficiency [--points 500000] [--replicates 5]
     python examples/benchmarks/importance_rqmc.py gains [--points 16384] [--replicates 64]
         [--proposal gaussian defensive] [--approximation ep laplace] [--sets pima ...]
"""

import argparse
import time
import warnings

import numpy as np

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.results.inference_data import group
from ppl_backends.targets.factors import Probit

PAPER = {  # EF %, gains of the means (median) and of the evidence
    "pima": (99.5, 28.9, 42.7),
    "german_credit": (97.9, 13.2, 8.2),
    "breast_wisconsin": (82.9, 2.6, 6.2),
    "heart": (95.2, 8.8, 9.3),
    "plasma": (90.0, 2.2, 4.4),
    "australian": (95.6, 12.0, 20.3),
}
FITS = {"ep": pb.fit_ep, "laplace": pb.fit_laplace}


def probit_regression(name):
    """Return the posterior of a data set by its factors."""
    X, y, *_ = load_binary_regression(name, scaling="gelman")
    sd = np.r_[20.0, np.full(X.shape[1] - 1, 5.0)]
    return pb.as_target(pb.Factors(X, None, Probit(y), 0.0, 1.0 / sd**2))


def weighted_points(target, approximation, proposal, points, qmc, seed):
    """Return points ``(points, dim)`` with weights ``(points,)``, whose mean is the ratio of evidences."""
    idata = pb.sample_importance(
        target,
        approximation=approximation,
        proposal=proposal,
        draws=points,
        chains=1,
        qmc=qmc,
        random_seed=seed,
        progressbar=False,
    )
    kept = group(idata, "proposal")
    x = kept[next(name for name in kept.data_vars if name != "log_weight")].values[0]
    return x, np.exp(kept["log_weight"].values[0] - approximation.log_evidence)


def efficiencies(names, points, seeds):
    """Print a table of efficiency factors."""
    print(f"| data | n | p | EF of {points} draws, {seeds} seeds, % | median | paper | CPU s a run |")
    print("| --- " * 7 + "|")
    for name in names:
        target, found, clock = probit_regression(name), [], time.process_time()
        approximation = pb.fit_ep(target, progressbar=False)
        for seed in range(seeds):
            _, w = weighted_points(target, approximation, "gaussian", points, False, seed)
            found.append(100 * w.sum() ** 2 / (w @ w) / len(w))
        n = len(load_binary_regression(name).y)
        text = ", ".join(f"{value:.2f}" for value in found)
        seconds = (time.process_time() - clock) / seeds
        print(
            f"| {name} | {n} | {target.dim} | {text} | {np.median(found):.2f} | {PAPER[name][0]} | {seconds:.1f} |",
            flush=True,
        )


def gains(names, fits, proposals, points, count):
    """Print a table of gains."""
    print(f"{count} replicates of {points} points")
    columns = ["data", "approximation", "proposal", "log evidence", "gain, means: median", "smallest", "paper, median"]
    columns += ["gain, evidence", "paper", "CPU s"]
    print(f"| {' | '.join(columns)} |")
    print("| --- " * len(columns) + "|")
    for name in names:
        target = probit_regression(name)
        for fit in fits:
            approximation = FITS[fit](target, progressbar=False)
            for proposal in proposals:
                clock = time.process_time()
                shift, evidence, means = gain(target, approximation, proposal, points, count)
                _, paper_means, paper_evidence = PAPER[name]
                print(
                    f"| {name} | {fit} | {proposal} | {approximation.log_evidence + shift:.4f} | {np.median(means):.1f} | "
                    f"{means.min():.1f} | {paper_means} | {evidence:.1f} | {paper_evidence} | "
                    f"{time.process_time() - clock:.0f} |",
                    flush=True,
                )


def gain(target, approximation, proposal, points, count):
    """Return the log evidence less that of the approximation, the gain in it, and the gains ``(dim,)`` of the means."""
    first, second = np.empty((count, 2)), np.empty((count, 2 * target.dim))
    found = np.empty((count, 1 + target.dim))
    for seed in range(count):
        x, w = weighted_points(target, approximation, proposal, points, True, seed)
        found[seed] = np.r_[w.mean(), w @ x / w.sum()]
        z, w = weighted_points(target, approximation, proposal, points, False, count + seed)
        first[seed] = w.mean(), w @ w / points
        centred = z - found[:1, 1:]
        second[seed] = np.r_[(w**2 @ centred**2) / points, (w**2 @ centred) / points]
    evidence = found[:, 0].mean()
    random_evidence = (first[:, 1].mean() - evidence**2) / points
    shift = found[:, 1:].mean(axis=0) - found[0, 1:]
    squares, products = np.split(second.mean(axis=0), 2)
    random_means = (squares - 2 * shift * products + shift**2 * first[:, 1].mean()) / evidence**2 / points
    spread = found.var(axis=0, ddof=1)
    return float(np.log(evidence)), random_evidence / spread[0], random_means / spread[1:]


def main():
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["efficiency", "gains"])
    parser.add_argument("--sets", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--points", type=int)
    parser.add_argument("--replicates", type=int)
    parser.add_argument("--proposal", nargs="+", default=["gaussian"], choices=["gaussian", "t", "defensive", "auto"])
    parser.add_argument("--approximation", nargs="+", default=["ep"], choices=list(FITS))
    options = parser.parse_args()
    warnings.simplefilter("ignore", PPLBackendsWarning)
    if options.table == "efficiency":
        efficiencies(options.sets, options.points or 500_000, options.replicates or 5)
    else:
        points, count = options.points or 16_384, options.replicates or 64
        gains(options.sets, options.approximation, options.proposal, points, count)


if __name__ == "__main__":
    main()

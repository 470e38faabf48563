"""Ranking by EP of the AUC: linear scores, a Gaussian process, spikes and slabs; and the path of spike widths on DNA.

    python examples/benchmarks/auc_scores.py table --seeds 10      # Pima, Glass (each class against the rest), DNA
    python examples/benchmarks/auc_scores.py path                  # inclusions on DNA, spikes of 0.3 to 10⁻⁶

Half of the rows (DNA: 400) are for training, and the rest for testing. Predictors are scaled by the training rows. As
in Ridgway, Alquier, Chopin & Liang (2014), hyper-parameters of the prior (the length scale, of √p times ½, 1, 2, 4)
maximise the pseudo-evidence, and λ, of n times ¼, 1, 4, is chosen by cross-validation in three folds. The script prints
a line for every split and method, and then the table.
"""

import argparse
import time

import numpy as np

from ppl_backends.datasets import load_binary_regression
from ppl_backends.gibbs import (
    GaussianProcess,
    GibbsPosterior,
    SpikeSlab,
    fit_pair_ep,
    fit_pair_ep_path,
    inclusion_probabilities,
)

NAMES = ("pima", "glass:Head", "glass:Con", "glass:Tabl", "glass:Veh", "glass:WinF", "glass:WinNF", "dna")
MOST_ROWS = 400
RATES, SCALES = np.array([0.25, 1.0, 4.0]), np.array([0.5, 1.0, 2.0, 4.0])
SPIKES = (0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)


def split(name, seed):
    """Return training and test rows without intercept, scaled by the former, with labels −1 and +1."""
    name, _, positive = name.partition(":")
    X, y, *_ = load_binary_regression(name, scaling="raw", positive=positive or None)
    order = np.random.default_rng(1000 + seed).permutation(len(y))
    n = min(len(y) // 2, MOST_ROWS)
    train, test = order[:n], order[n:]
    centre, spread = X[train, 1:].mean(axis=0), X[train, 1:].std(axis=0)
    X, y = (X[:, 1:] - centre) / np.where(spread > 0, spread, 1.0), 2.0 * y - 1
    return (X[train], y[train]), (X[test], y[test])


def auc(scores, y):
    """Return the share of the pairs of both classes that are in order, ties counting one half."""
    above, below = scores[y > 0][:, None], scores[y < 0]
    return float((above > below).mean() + 0.5 * (above == below).mean())


def fit(posterior):
    """Return EP of all pairs, to a thousandth."""
    return fit_pair_ep(posterior, tolerance=1e-3)


def folds(y, seed, k=3):
    """Return random folds with both classes in each."""
    order = np.random.default_rng(seed).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    return [order[i::k] for i in range(k)]


def validated(posterior, seed):
    """Return the mean AUC of the folds that are left out, at the weight of each row that the posterior has."""
    found = []
    for out in folds(posterior.y, seed):
        kept = np.setdiff1d(np.arange(posterior.n), out)
        found.append(auc(posterior.X[out] @ fit(posterior.subset(kept)).mean, posterior.y[out]))
    return float(np.mean(found))


def linear(train, test, seed):
    """Return linear scores, λ by cross-validation."""
    (X, y), (X_test, y_test) = train, test
    posteriors = [GibbsPosterior((0.0, 1.0), "auc", X, y, learning_rate=rate * len(y)) for rate in RATES]
    best = max(posteriors, key=lambda posterior: validated(posterior, seed))
    return auc(X_test @ fit(best).mean, y_test), f"λ/n {best.eta:g}", best


def process(train, test, seed):
    """Return scores of a Gaussian process: length scale by pseudo-evidence, λ by cross-validation."""
    (X, y), (X_test, y_test) = train, test
    n, p = X.shape
    processes, tried = [GaussianProcess(X, length_scale=scale * p**0.5) for scale in SCALES], []
    for rate in RATES:
        posteriors = [each.posterior("auc", y, learning_rate=rate * n) for each in processes]
        fits = [fit(each) for each in posteriors]
        k = int(np.argmax([each.log_evidence for each in fits]))
        tried.append((validated(posteriors[k], seed), rate, SCALES[k], processes[k], fits[k]))
    _, rate, scale, chosen, q = max(tried, key=lambda each: each[0])
    return auc(chosen.scores(q, X_test).mean, y_test), f"λ/n {rate:g}, length {scale:g} √p"


def spikes(train, test, at):
    """Return spikes and slabs at the learning rate of the linear scores."""
    X_test, y_test = test
    q = fit(at.with_prior(SpikeSlab(at.dim)))
    included = inclusion_probabilities(q)
    return auc(X_test @ q.mean, y_test), f"{int((included >= 0.5).sum())} of {at.dim} columns in"


def table(names, seeds):
    """Print the held-out AUC of all methods on the same splits."""
    rows = {}
    for name in names:
        for seed in range(seeds):
            train, test = split(name, seed)
            clock = time.process_time()
            value, note, best = linear(train, test, seed)
            found = {"linear": (value, note, time.process_time() - clock)}
            for method, run in (
                ("process", lambda t=train, u=test, s=seed: process(t, u, s)),
                ("spikes", lambda t=train, u=test, b=best: spikes(t, u, b)),
            ):
                clock = time.process_time()
                found[method] = (*run(), time.process_time() - clock)
            for method, (value, note, seconds) in found.items():
                rows.setdefault((name, method), []).append((value, seconds))
                print(f"{name} {seed} {method}: {value:.4f}, {note}, {seconds:.1f} s", flush=True)
    print("\n| data | linear EP | process EP | spikes and slabs | CPU s of a split |\n| --- | --- | --- | --- | --- |")
    for name in names:
        cells = [np.array(rows[name, method]) for method in ("linear", "process", "spikes")]
        shown = [f"{cell[:, 0].mean():.4f} ({cell[:, 0].std(ddof=1):.4f})" for cell in cells]
        print(f"| {name} | {' | '.join(shown)} | {', '.join(f'{cell[:, 1].mean():.1f}' for cell in cells)} |")


def path():
    """Print the inclusions on DNA along the width of the spikes."""
    (X, y), (X_test, y_test) = split("dna", 0)
    posterior = GibbsPosterior(SpikeSlab(X.shape[1]), "auc", X, y, learning_rate=float(len(y)))
    clock = time.process_time()
    fits = fit_pair_ep_path(posterior, SPIKES, tolerance=1e-3)
    seconds = time.process_time() - clock
    print("| sd of spikes | columns of inclusion ≥ ½ | ≥ 0.9 | log pseudo-evidence | AUC held out | converged |")
    print("| --- | --- | --- | --- | --- | --- |")
    for width, q in zip(SPIKES, fits, strict=True):
        inclusion = inclusion_probabilities(q)
        shown = f"{(inclusion >= 0.5).sum()} | {(inclusion >= 0.9).sum()} | {q.log_evidence:.2f}"
        print(f"| {width:g} | {shown} | {auc(X_test @ q.mean, y_test):.4f} | {q.converged} |")
    last = inclusion_probabilities(fits[-1])
    names = load_binary_regression("dna")[2][1:]
    order = np.argsort(-last)[: max(int((last >= 0.5).sum()), 5)]
    listed = ", ".join(f"{names[j]} {last[j]:.2f} ({fits[-1].mean[j]:+.2f})" for j in order)
    print(f"\nIncluded at the narrowest: {listed}. {seconds:.1f} CPU s.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "path"))
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    if given.what == "path":
        path()
    else:
        table(given.names, given.seeds)

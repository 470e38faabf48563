"""The kl-inverse certificate compared with the linear one: an example, coverage, and the data sets of Alquier et al. (2016).

    python examples/benchmarks/gibbs_certificates.py example | coverage | sets [--runs 500] [--names pima dna] [--out FILE]

``example`` has 500 simulated rows at two learning rates. ``coverage`` counts how often 95 % bounds lie above the true
risk in simulated data sets of 200 rows: for fits by the 0–1 loss, for hinge fits certified under the 0–1 loss, for
rankings, and for a narrow Gaussian that is both prior and approximation, so that the slack of its bound comes from the
inequality alone. ``sets``: each data set is halved; one half is scaled by means and deviations of the other, so that
the theorem's assumption holds, and fitted over a grid of λ; the best bound of each kind is printed (the linear ones
include the choice from the grid) with the error of draws of the same Gaussian on the other half, as means over the
splits in ``--runs``. For the hinge loss there is also the smallest certificate of the hinge risk itself, with κ the
longest row. For the AUC there are the bound on 1 − AUC given the classes, for the same Gaussian, and 1 − AUC on the
other half. Lines of JSON go to ``--out`` one by one.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from rows import append_row

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.gibbs import GibbsPosterior, certify, expected_risk, fit_gibbs_vi, fit_gibbs_vi_path

PRIOR = (0.0, 1.0)
KINDS = {"published": {}, "sharp": {"sharp": True}, "kl": {"inequality": "kl"}}
SETS = ("pima", "glass", "breast_wisconsin", "dna", "german_credit")
TRUTH, FLIP = np.array([1.0, -0.5, 0.5]), 0.1
GRID = 2.0 ** np.arange(-3, 5)  # λ/n
COARSE = 2.0 ** np.arange(-3, 3)


def simulate(n, rng):
    """Return rows with 10 % of the labels flipped."""
    X = rng.normal(size=(n, 3))
    return X, np.sign(X @ TRUTH) * np.where(rng.random(n) < FLIP, -1.0, 1.0)


def error_rate(theta):
    """Return the true misclassification of draws: it depends on the angle to the truth."""
    cosine = theta @ TRUTH / np.linalg.norm(theta, axis=1) / np.linalg.norm(TRUTH)
    return (FLIP + (1 - 2 * FLIP) * np.arccos(np.clip(cosine, -1, 1)) / np.pi).mean()


def bounds(posterior, q, loss=None, candidates=1):
    """Return bounds of every kind; the linear bounds include the choice from a grid."""
    return {
        name: certify(posterior, q, loss=loss, candidates=1 if name == "kl" else candidates, **options).bound
        for name, options in KINDS.items()
    }


def example():
    """Print the bounds of 500 rows at two learning rates."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 2))
    y = np.sign(X @ [1.0, -1.0] + 0.3 * rng.normal(size=500))
    for rate in (100.0, 400.0):
        posterior = GibbsPosterior(PRIOR, "zero_one", X, y, learning_rate=rate)
        print(rate, {name: round(bound, 4) for name, bound in bounds(posterior, fit_gibbs_vi(posterior)).items()})


def smallest(loss, target, X, y, rates, family="dense"):
    """Return the smallest bound of every kind over learning rates, and the fit of the smallest by kl."""
    posterior = GibbsPosterior(PRIOR, loss, X, y, learning_rate=1.0)
    fits = fit_gibbs_vi_path(posterior, list(rates), family=family, tolerance=1e-2)
    table = [bounds(q.posterior, q, target, len(rates)) for q in fits]
    best = {name: min(row[name] for row in table) for name in KINDS}
    return best, fits[int(np.argmin([row["kl"] for row in table]))]


def coverage(names, runs, record, n=200):
    """Print how often bounds hold."""
    rng = np.random.default_rng(0)
    X, y = simulate(4000, rng)
    fresh = GibbsPosterior(PRIOR, "auc", X, y, learning_rate=1.0)
    narrow = pb.GaussianApproximation(TRUTH, 0.01 * np.eye(3))
    cases = {
        "0-1": ("zero_one", None),
        "hinge": ("hinge", "zero_one"),
        "auc": ("auc", None),
        "narrow": ("zero_one", None),
    }
    for name, (loss, target) in cases.items():
        if name not in (names or cases):
            continue
        rng, held, found, true = np.random.default_rng(1), [], [], []
        clock = time.process_time()
        for _ in range(runs):
            X, y = simulate(n, rng)
            if name == "narrow":
                posterior = GibbsPosterior((TRUTH, 0.01), loss, X, y, learning_rate=60.0)
                best, q = bounds(posterior, narrow), narrow
            else:
                best, q = smallest(loss, target, X, y, [15.0, 30.0, 60.0, 120.0], "isotropic")
            theta = q.sample(50 if loss == "auc" else 500, rng)
            risk = fresh.risk(theta).mean() if loss == "auc" else error_rate(theta)
            held.append([bound >= risk for bound in best.values()])
            found.append(list(best.values()))
            true.append(risk)
        record(
            case=name,
            runs=runs,
            held=dict(zip(KINDS, np.sum(held, axis=0).tolist(), strict=True)),
            bound=dict(zip(KINDS, np.mean(found, axis=0).round(4).tolist(), strict=True)),
            true=round(float(np.mean(true)), 4),
            seconds=round(time.process_time() - clock, 1),
        )


def hinge_itself(X, y):
    """Return the smallest linear certificate of the hinge risk over eight λ below the largest; it includes this choice."""
    kappa = np.sqrt((X**2).sum(axis=1)).max() * (1 + 1e-9)
    rates = np.sqrt(2 * len(y)) / kappa * np.linspace(0.1, 0.95, 8)
    fits = fit_gibbs_vi_path(GibbsPosterior(PRIOR, "hinge", X, y, learning_rate=1.0), list(rates))
    return min(certify(q.posterior, q, candidates=8, feature_bound=kappa).bound for q in fits)


def between_classes(q, held_out):
    """Return the kl-inverse bound on 1 − AUC given the classes, and 1 − AUC on the other half."""
    n, positive = held_out.n, int((held_out.y > 0).sum())
    other = expected_risk(held_out, q) * n * (n - 1) / (2 * positive * (n - positive))
    return round(certify(q.posterior, q, inequality="kl").class_bound, 4), round(other, 4)


def halves(name, seed):
    """Return one half, scaled by the other, with an intercept; and the other."""
    X, y, *_ = load_binary_regression(name, scaling="raw")
    X, y = X[:, 1:], 2.0 * y - 1
    order = np.random.default_rng(1000 + seed).permutation(len(y))
    train, rest = order[: len(y) // 2], order[len(y) // 2 :]
    centre, scale = X[rest].mean(axis=0), X[rest].std(axis=0)
    X = np.column_stack([np.ones(len(X)), (X - centre) / np.where(scale > 0, scale, 1.0)])
    return X[train], y[train], X[rest], y[rest]


def sets(names, runs, record):
    """Print bounds on data sets, with a line for each split and loss."""
    for name in names:
        for seed in range(runs):
            X, y, X_rest, y_rest = halves(name, seed)
            rates = len(y) * (COARSE if X.size > 50_000 else GRID)
            for loss, target in (("zero_one", None), ("hinge", "zero_one"), ("auc", None)):
                if loss == "auc" and X.size > 50_000:
                    continue
                clock = time.process_time()
                family = "diagonal" if loss == "auc" else "dense"
                best, q = smallest(loss, target, X, y, rates, family)
                held_out = GibbsPosterior(PRIOR, target or loss, X_rest, y_rest, learning_rate=1.0)
                record(
                    data=name,
                    rows=len(y),
                    seed=seed,
                    loss=loss,
                    eta=q.posterior.eta,
                    **{kind: round(bound, 4) for kind, bound in best.items()},
                    held_out=round(expected_risk(held_out, q), 4),
                    itself=round(hinge_itself(X, y), 3) if loss == "hinge" else None,
                    classes=between_classes(q, held_out) if loss == "auc" else None,
                    seconds=round(time.process_time() - clock, 2),
                )


def main():
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["example", "coverage", "sets"])
    parser.add_argument("--runs", type=int)
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()

    rows = []

    def record(**row):
        rows.append(row)
        print(row, flush=True)
        append_row(given.out, **row)

    if given.what == "example":
        example()
    elif given.what == "coverage":
        coverage(given.names, given.runs or 500, record)
    else:
        sets(given.names or SETS, given.runs or 5, record)
        figures = (*KINDS, "held_out")
        for name, loss in dict.fromkeys((row["data"], row["loss"]) for row in rows):
            mine = [row for row in rows if (row["data"], row["loss"]) == (name, loss)]
            means = " | ".join(f"{np.mean([row[figure] for row in mine]):.3f}" for figure in figures)
            print(f"| {name} | {mine[0]['rows']} | {loss} | {means} | {len(mine)} |")


if __name__ == "__main__":
    main()

"""Gibbs posteriors on the data of Alquier, Ridgway & Chopin (2016): error rates, AUC, coverage of bounds, annealing.

    python examples/benchmarks/gibbs_tables.py errors pima glass breast_wisconsin dna --seeds 20
    python examples/benchmarks/gibbs_tables.py auc pima glass dna --seeds 20
    python examples/benchmarks/gibbs_tables.py coverage | annealing | iterations | means
    python examples/benchmarks/gibbs_tables.py print

Every split is a half for training and a half for testing, predictors are scaled by the training half, and λ is chosen
there by cross-validation. Figures go to a file of JSON lines (``--out``), and an interrupted run continues from it. A
data set that the package does not contain is read from ``--data FOLDER``: ``name.csv``, with the label in the last
column.
"""

import argparse
import csv
import time
from functools import cache
from pathlib import Path

import numpy as np
from rows import append_row, read_rows

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.gibbs import GibbsPosterior, certify, choose_learning_rate, fit_gibbs_vi, fit_pair_ep
from ppl_backends.gibbs.learning_rate import prediction_risk

PRIOR = (0.0, 1.0)
GRID = 2.0 ** np.arange(-3, 5)  # η = λ/n
LARGE = 500  # sets with more training rows × columns / 100 than this get a coarser search


def load(name, folder):
    """Return the design without intercept, and labels −1 and +1."""
    if folder is None:
        X, y, *_ = load_binary_regression(name, scaling="raw")
        return X[:, 1:], 2.0 * y - 1
    with (Path(folder) / f"{name}.csv").open() as file:
        _, *rows = csv.reader(file)
    labels = np.array([row[-1] for row in rows])
    return np.array([row[:-1] for row in rows], dtype=float), np.where(labels == np.unique(labels)[-1], 1.0, -1.0)


def split(name, seed, folder):
    """Return two halves, scaled by the first, with an intercept."""
    X, y = load(name, folder)
    order = np.random.default_rng(1000 + seed).permutation(len(y))
    train, test = order[: len(y) // 2], order[len(y) // 2 :]
    centre, scale = X[train].mean(axis=0), X[train].std(axis=0)
    X = np.column_stack([np.ones(len(X)), (X - centre) / np.where(scale > 0, scale, 1.0)])
    return (X[train], y[train]), (X[test], y[test])


def search(n, d):
    """Return folds and grid of learning rates; coarser for large sets."""
    return (2, n * GRID[:6]) if n * d > 100 * LARGE else (3, n * GRID)


@cache
def tuned(loss, family, seed, name, folder):
    """Return the posterior of a split at the learning rate that cross-validation chooses, shared by methods."""
    train, _ = split(name, seed, folder)
    posterior = GibbsPosterior(PRIOR, loss, *train, learning_rate=1.0)
    folds, grid = search(*train[0].shape)
    return choose_learning_rate(posterior, grid, folds=folds, family=family, random_seed=seed).posterior


def gibbs(loss, family, smc=False, ep=False, draws=1000):
    """Return a method: learning rate by cross-validation with VI, then VI, SMC or EP at that rate."""

    def run(name, seed, folder):
        test, posterior = split(name, seed, folder)[1], tuned(loss, family, seed, name, folder)
        if smc:
            idata = pb.sample_smc(posterior, draws=draws, chains=1, random_seed=seed, progressbar=False)
            mean = idata.posterior["theta"].values.reshape(-1, posterior.dim).mean(axis=0)
        elif ep:
            mean = fit_pair_ep(posterior, tolerance=1e-3).mean if posterior.paired else pb.fit_ep(posterior).mean
        else:
            mean = fit_gibbs_vi(posterior, family=family).mean
        held_out = posterior.with_data({"X": test[0], "y": test[1]})
        return prediction_risk(held_out, held_out.scores(mean)[0]), posterior.eta

    return run


def svm(kernel):
    """Return a support vector machine, its penalty by cross-validation."""

    def run(name, seed, folder):
        from sklearn.model_selection import GridSearchCV
        from sklearn.svm import SVC

        train, test = split(name, seed, folder)
        machine = GridSearchCV(SVC(kernel=kernel), {"C": 10.0 ** np.arange(-2, 3)}, cv=3).fit(*train)
        return float((machine.predict(test[0]) != test[1]).mean()), machine.best_params_["C"]

    return run


def logit_auc(name, seed, folder):
    """Return Bayesian logistic regression with the same prior, by EP."""
    train, test = split(name, seed, folder)
    q = pb.fit_ep(GibbsPosterior(PRIOR, "logistic", *train, learning_rate=len(train[1])))
    held_out = GibbsPosterior(PRIOR, "auc", *test, learning_rate=1.0)
    return prediction_risk(held_out, held_out.scores(q.mean)[0]), 1.0


TABLES = {
    "errors": {
        "0-1 F2": gibbs("zero_one", "diagonal"),
        "0-1 F3": gibbs("zero_one", "dense"),
        "0-1 SMC": gibbs("zero_one", "dense", smc=True),
        "hinge F3": gibbs("hinge", "dense"),
        "SVM linear": svm("linear"),
        "SVM radial": svm("rbf"),
    },
    "auc": {
        "AUC VI F2": gibbs("auc", "diagonal"),
        "AUC EP": gibbs("auc", "diagonal", ep=True),
        "AUC SMC": gibbs("auc", "diagonal", smc=True),
        "AUC-hinge VI F2": gibbs("auc_hinge", "diagonal"),
        "logit EP": logit_auc,
    },
}


def tables(kind, names, seeds, out, folder, methods):
    """Record the error or 1 − AUC of every method on every split."""
    done = {(row["table"], row.get("data"), row.get("method"), row.get("seed")) for row in read_rows(out)}
    for name in names:
        for seed in range(seeds):
            for method, run in TABLES[kind].items():
                if (kind, name, method, seed) in done or (methods and method not in methods):
                    continue
                started = time.perf_counter()
                risk, chosen = run(name, seed, folder)
                seconds = time.perf_counter() - started
                append_row(
                    out,
                    table=kind,
                    data=name,
                    method=method,
                    seed=seed,
                    risk=float(risk),
                    chosen=float(chosen),
                    seconds=seconds,
                )


TRUTH, FLIP = np.array([1.0, -0.5, 0.5]), 0.1


def coverage(out, losses, replications, n=200):
    """Record how often the 95 % bounds lie above the true risk, for both losses, with λ from a grid of four."""
    rng = np.random.default_rng(0)
    large = rng.normal(size=(4000, 3))
    large_y = np.sign(large @ TRUTH) * np.where(rng.random(4000) < FLIP, -1.0, 1.0)
    done = {(row["data"], row["method"]) for row in read_rows(out) if row["table"] == "coverage"}
    for loss in losses or ("zero_one", "auc"):
        for sharp in (False, True):
            if (loss, "sharp" if sharp else "published") in done:
                continue
            held, bounds, risks = 0, [], []
            for _ in range(replications):
                X = rng.normal(size=(n, 3))
                y = np.sign(X @ TRUTH) * np.where(rng.random(n) < FLIP, -1.0, 1.0)
                posterior = GibbsPosterior(PRIOR, loss, X, y, learning_rate=1.0)
                options = {"method": "bound", "sharp": sharp, "family": "isotropic"}
                chosen = choose_learning_rate(posterior, [15.0, 30.0, 60.0, 120.0], **options).posterior
                q = fit_gibbs_vi(chosen, family="isotropic")
                theta = q.sample(200, rng)
                cosine = theta @ TRUTH / np.linalg.norm(theta, axis=1) / np.linalg.norm(TRUTH)
                if loss == "zero_one":
                    true = (FLIP + (1 - 2 * FLIP) * np.arccos(np.clip(cosine, -1, 1)) / np.pi).mean()
                else:
                    true = GibbsPosterior(PRIOR, loss, large, large_y, learning_rate=1.0).risk(theta[:50]).mean()
                bound = certify(chosen, q, sharp=sharp).bound
                held += bound >= true
                bounds.append(bound)
                risks.append(true)
            append_row(
                out,
                table="coverage",
                data=loss,
                method="sharp" if sharp else "published",
                seed=0,
                held=int(held),
                replications=replications,
                bound=float(np.mean(bounds)),
                true=float(np.mean(risks)),
            )


def annealing(out, starts=20):
    """Record the bound that annealing reaches on Pima, and those of random starts, at several λ."""
    X, y = load("pima", None)
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / X.std(axis=0)])
    for rate in (50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0):
        posterior = GibbsPosterior((0.0, 10.0), "zero_one", X, y, learning_rate=rate)
        rng = np.random.default_rng(0)
        annealed = certify(posterior, fit_gibbs_vi(posterior)).bound
        reached = []
        for _ in range(starts):
            start = pb.GaussianApproximation(rng.normal(size=8) * 10**0.5, np.eye(8) * rng.uniform(0.01, 1.0))
            reached.append(certify(posterior, fit_gibbs_vi(posterior, initial=start)).bound)
        append_row(
            out,
            table="annealing",
            data="pima",
            method=f"{rate:g}",
            seed=0,
            annealed=annealed,
            mean=float(np.mean(reached)),
            best=float(np.min(reached)),
            worst=float(np.max(reached)),
        )


def adult_size(seed=0):
    """Return data of the size of Adult, 32,561 rows and 1.9·10⁸ pairs, with 14 correlated predictors."""
    rng = np.random.default_rng(seed)
    n, d = 32_561, 14
    X = rng.normal(size=(n, d)) + 0.5 * rng.normal(size=(n, 1))
    score = X @ rng.normal(size=d) + 2.0 * rng.normal(size=n)
    y = np.where(score > np.sort(score)[-7841 - 1], 1.0, -1.0)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def iterations(out):
    """Record time and bound of sampled pairs on Pima and on data of the size of Adult."""
    X, y = load("pima", None)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    for name, data, rate, sizes in (
        ("pima", (X, y), 100.0, (1, 10, 20, 50)),
        ("adult size", adult_size(), 1000.0, (50,)),
    ):
        posterior = GibbsPosterior(PRIOR, "auc", *data, learning_rate=rate)
        for size in sizes:
            started = time.perf_counter()
            q = fit_gibbs_vi(posterior, family="diagonal", sample_pairs=True, batch_size=size, random_seed=0)
            seconds = time.perf_counter() - started
            bound = certify(posterior, q)
            append_row(
                out,
                table="iterations",
                data=name,
                method=f"B={size}",
                seed=0,
                seconds=seconds,
                bound=bound.bound,
                risk=q.expected_risk,
                trace=q.trace.tolist(),
            )


def random_walk(posterior, q, chains=300, steps=24_000, kept=20_000):
    """Return mean, standard deviation and standard error of the mean from many long random walks, for the 0–1 loss."""
    rng, factor = np.random.default_rng(1), np.linalg.cholesky(q.cov)
    signed, weight = (posterior.X * posterior.y[:, None]).T.astype(np.float32), posterior.eta

    def log_density(theta):
        return -weight * (theta.astype(np.float32) @ signed < 0).sum(axis=1) - 0.5 * (theta**2).sum(axis=1)

    theta = q.mean + 1.3 * rng.standard_normal((chains, posterior.dim)) @ factor.T
    value, total, squares = log_density(theta), np.zeros_like(theta), np.zeros(posterior.dim)
    for step in range(steps):
        trial = theta + (0.15, 0.4, 0.9)[step % 3] * rng.standard_normal(theta.shape) @ factor.T
        proposed = log_density(trial)
        accepted = np.log(rng.random(chains)) < proposed - value
        theta, value = np.where(accepted[:, None], trial, theta), np.where(accepted, proposed, value)
        if step >= steps - kept:
            total += theta
            squares += (theta**2).sum(axis=0)
    means = total / kept
    sd = np.sqrt(squares / kept / chains - means.mean(axis=0) ** 2)
    return means.mean(axis=0), sd, means.std(axis=0) / np.sqrt(chains)


def means(out):
    """Record how far EP's and SMC's means differ on Pima, and from long random walks, in posterior sds."""
    (X, y), _ = split("pima", 0, None)
    done = {row["method"] for row in read_rows(out) if row["table"] == "means"}
    for loss in ("auc", "zero_one"):
        for rate in (100.0, 266.0):
            if f"{loss} λ={rate:g}" in done:
                continue
            posterior = GibbsPosterior(PRIOR, loss, X, y, learning_rate=rate)
            ep = pb.fit_ep(posterior)
            options = {"draws": 4000, "chains": 4, "kernel": "mixed", "random_seed": 0, "progressbar": False}
            idata = pb.sample_smc(posterior, **options)
            theta = idata.posterior["theta"].values.reshape(-1, posterior.dim)
            mean, sd = theta.mean(axis=0), theta.std(axis=0)
            figures = {}
            if loss == "zero_one":
                walked, walked_sd, error = random_walk(posterior, ep)
                figures = {
                    "ep_walk": float(np.abs((ep.mean - walked) / walked_sd).max()),
                    "smc_walk": float(np.abs((mean - walked) / walked_sd).max()),
                    "walk_error": float((error / walked_sd).max()),
                }
            append_row(
                out,
                table="means",
                data="pima",
                method=f"{loss} λ={rate:g}",
                seed=0,
                mean=float(np.abs((ep.mean - mean) / sd).max()),
                sd=float(np.abs(ep.sd / sd - 1).max()),
                log_evidence=[float(ep.log_evidence), float(idata.posterior.attrs["log_evidence"])],
                **figures,
            )


def show(out):
    """Print what is recorded as Markdown."""
    rows = read_rows(out)
    for kind in TABLES:
        names = list(dict.fromkeys(row["data"] for row in rows if row["table"] == kind))
        for name in names:
            for method in TABLES[kind]:
                mine = [row for row in rows if (row["table"], row["data"], row["method"]) == (kind, name, method)]
                if mine:
                    risk = np.array([row["risk"] for row in mine])
                    value = 100 * risk if kind == "errors" else 1 - risk
                    eta = np.median([row["chosen"] for row in mine])
                    print(
                        f"| {kind} | {name} | {method} | {len(mine)} | {value.mean():.4g} | {value.std(ddof=1):.2g} "
                        f"| {eta:.3g} | {np.mean([row['seconds'] for row in mine]):.3g} |"
                    )
    for row in rows:
        if row["table"] not in TABLES:
            print({key: value for key, value in row.items() if key not in ("trace", "seed")})


def main():
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=[*TABLES, "coverage", "annealing", "iterations", "means", "print"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--replications", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("gibbs_tables.jsonl"))
    parser.add_argument("--data")
    chosen = parser.parse_args()
    if chosen.task in TABLES:
        tables(chosen.task, chosen.names, chosen.seeds, chosen.out, chosen.data, chosen.methods)
    elif chosen.task == "coverage":
        coverage(chosen.out, chosen.names, chosen.replications)
    elif chosen.task != "print":
        globals()[chosen.task](chosen.out)
    show(chosen.out)


if __name__ == "__main__":
    main()

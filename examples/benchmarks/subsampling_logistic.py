"""Logistic regression on up to ten million rows by sub-sampling steps in ``pm.sample``, against full-data Metropolis.

    python examples/benchmarks/subsampling_logistic.py [--case normal] [--rows 1000000] [row ...]

Twenty coefficients with N(0, 1) priors. Cases: ``normal`` (covariates AR(1) with correlation 0.5), ``t3`` (the same,
Student with three degrees of freedom), ``rare`` (normal, one success in a thousand). Without rows it prints a Markdown
table of all finished rows. Every row is one call of ``pm.sample`` with one chain. Its time is the processor time of
PyMC's sampling loop with tuning, and without the set-up (the mode and one pass for the scores or the expansion). Biases
are in posterior standard deviations; the reference is Laplace's approximation with importance sampling. Finished rows
are kept in ``subsampling_logistic.json`` in the folder ``--out``.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from scipy.stats import qmc

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.kernels.subsampling.rows import QuadraticLogPrior, SiteRows
from ppl_backends.steps.adapter import forkable_target
from ppl_backends.steps.subsampling import rows_of
from ppl_backends.targets.factors import compiled as sites

DIM = 20
S = pb.steps
STEPS = {
    # name: (step, draws, steps a draw)
    "full-data random walk": (lambda: S.RandomWalk(approximation=laplace()), 40, 1),
    "control variates": (lambda: S.SubsampledMetropolis(), 20_000, 10),
    "control variates, one step a draw": (lambda: S.SubsampledMetropolis(steps=1), 40_000, 1),
    "control variates, independent": (lambda: S.SubsampledMetropolis(proposal="independent"), 5_000, 10),
    "control variates, HMC": (lambda: S.SubsampledHMC(), 1_500, 1),
    "sequential test": (lambda: S.SubsampledMetropolis(estimator="sequential"), 20_000, 1),
    "uniform subsets of 1,000": (lambda: S.SubsampledMetropolis(estimator="uniform", subset=1000), 10_000, 1),
    "scalable Metropolis": (lambda: S.ScalableMetropolis(), 20_000, 10),
    "scalable Metropolis, one step a draw": (lambda: S.ScalableMetropolis(steps=1), 20_000, 1),
    "scalable Metropolis, independent": (lambda: S.ScalableMetropolis(proposal="independent"), 5_000, 10),
    "TunaMH": (lambda: S.TunaMetropolis(), 300, 1),
    "informed, s = 0.3": (lambda: S.InformedSubsampling(subset=1000, correction=None), 100_000, 1),
    "informed, gradient correction": (lambda: S.InformedSubsampling(subset=1000, correction="gradient"), 100_000, 1),
    "informed, gradient correction, automatic size": (lambda: S.InformedSubsampling(correction="gradient"), 75_000, 1),
    "informed, defaults": (lambda: S.InformedSubsampling(), 100_000, 1),
    "informed, uniform subsets": (
        lambda: S.InformedSubsampling(subset=1000, spread=np.inf, correction=None),
        30_000,
        1,
    ),
}
CURVES = {
    "full-data random walk": "s",
    "informed, s = 0.3": "^",
    "informed, gradient correction": "v",
    "informed, defaults": "P",
    "control variates": "o",
    "scalable Metropolis": "D",
}
TUNE = 500
MEANS = {
    "microseconds_per_iteration",
    "setup_seconds",
    "accept",
    "rows",
    "subset_size",
    "z_norm",
    "swap_accept",
    "ess_of_z",
}
HALVES = {"normal": 64, "t3": 256, "rare": 512}  # antithetic pairs for the reference at a million rows; more for fewer


def laplace() -> pb.GaussianApproximation:
    """Return Laplace's approximation of the model on the context stack, by a few passes over its rows."""
    pilot = rows_of(forkable_target(pm.modelcontext(None), prior_alone=True)).expansion_point
    return pb.GaussianApproximation(pilot.mode, pilot.factor @ pilot.factor.T)


def load(case: str, n: int, folder: Path):
    """Return the design ``(n, 20)`` and outcomes, kept on disk."""
    path = folder / f"data_{case}_{n}.npz"
    if not path.exists():
        design, y = simulate(case, n)
        np.savez(path, design=design, y=y)
    found = np.load(path)
    return found["design"], found["y"]


def simulate(case: str, n: int):
    """Return the design ``(n, 20)`` and outcomes."""
    rng = np.random.default_rng(20)
    theta = 0.3 * rng.normal(size=DIM)
    design = np.empty((n, DIM))
    design[:, 0] = 1.0
    design[:, 1] = rng.normal(size=n)
    for j in range(2, DIM):
        design[:, j] = 0.5 * design[:, j - 1] + np.sqrt(0.75) * rng.normal(size=n)
    if case == "t3":
        design[:, 1:] /= np.sqrt(rng.chisquare(3, size=(n, 1)) / 3)
    s = design @ theta
    if case == "rare":
        grid = np.linspace(-15, 5, 401)
        sub = s[: min(n, 100_000)] - theta[0]
        rates = [np.mean(1 / (1 + np.exp(-sub - a))) for a in grid]
        s += grid[np.searchsorted(rates, 1e-3)] - theta[0]
    return design, (rng.random(n) < 1 / (1 + np.exp(-s))).astype(np.int64)


def reference(case: str, n: int, folder: Path):
    """Return the posterior means and sds by importance sampling from Laplace's approximation; kept on disk."""
    path = folder / f"reference_{case}_{n}.npz"
    if path.exists():
        found = np.load(path)
        return found["mean"], found["sd"], float(found["weight_variance"])
    design, y = load(case, n, folder)
    rows = SiteRows(design, 0.0, y, 1.0, sites.LOGIT, QuadraticLogPrior(0.0, np.zeros(DIM), -np.eye(DIM)))
    pairs = HALVES[case] << int(np.log2(np.clip(10**6 // n, 1, 512)))
    half = qmc.MultivariateNormalQMC(np.zeros(DIM), rng=np.random.default_rng(0)).random(pairs)
    z = np.concatenate([half, -half])
    mode, factor = rows.expansion_point
    log_w = np.empty(len(z))
    for k, zk in enumerate(z):
        x = mode + factor @ zk
        log_w[k] = (
            rows.full_difference(mode, x)
            + rows.log_prior_and_potentials(x)
            - rows.log_prior_and_potentials(mode)
            + 0.5 * zk @ zk
        )
    w = np.exp(log_w - log_w.max())
    w /= w.mean()
    shift = (w[:, None] * z).mean(axis=0)
    second = np.eye(DIM) + ((w - 1)[:, None, None] * (z[:, :, None] * z[:, None, :])).mean(axis=0)
    cov = factor @ (second - np.outer(shift, shift)) @ factor.T
    mean, sd = mode + factor @ shift, np.sqrt(np.diag(cov))
    np.savez(path, mean=mean, sd=sd, weight_variance=w.var(), laplace_sd=np.sqrt((factor**2).sum(axis=1)), mode=mode)
    return mean, sd, float(w.var())


def make_model(case: str, n: int, folder: Path) -> pm.Model:
    """Return the PyMC model of a case."""
    design, y = load(case, n, folder)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=DIM)
        pm.Bernoulli("y", logit_p=pm.math.dot(pm.Data("design", design), beta), observed=y)
    return model


def run(model: pm.Model, name: str, known: tuple | None, scale: float, seed: int) -> tuple[dict, object]:
    """Return one run of a row, and its step."""
    make, draws, per_draw = STEPS[name]
    draws = max(10, int(draws * scale))
    tune = min(TUNE, draws // 4)
    with model:
        clock = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SamplerWarning)
            step = make()
        setup = time.perf_counter() - clock
        options = {
            "chains": 1,
            "cores": 1,
            "random_seed": seed,
            "progressbar": False,
            "compute_convergence_checks": False,
        }
        clocks = []
        idata = pm.sample(
            draws=draws, tune=tune, step=step, callback=lambda **_: clocks.append(time.process_time()), **options
        )
    seconds = (clocks[-1] - clocks[0]) * len(clocks) / (len(clocks) - 1)
    x, stats = idata.posterior["beta"].values, idata.sample_stats
    ess = min(float(az.ess(x[..., j], method="bulk")) for j in range(DIM))
    found = {
        "draws": draws,
        "microseconds_per_iteration": 1e6 * seconds / ((draws + tune) * per_draw),
        "iterations_per_draw": per_draw,
        "setup_seconds": setup,
        "seconds": seconds,
        "ess": ess,
        "ess_per_second": ess / seconds,
        "accept": float(stats["accept"].mean()),
        "pymc": pm.__version__,
    }
    if known is not None:
        mean, sd, found["weight_variance"] = known
        bias, ratio = (x.mean(axis=(0, 1)) - mean) / sd, x.std(axis=(0, 1)) / sd
        found |= {"bias": bias.tolist(), "ratio": ratio.tolist()} | accuracy([bias], [ratio])
    for key in ("swap_accept", "rows", "subset_size", "log_likelihood_variance", "z_norm", "acceptance_error"):
        if key in stats:
            found[key] = float(np.nanmean(stats[key].values))
    if "z_first" in stats:
        found["ess_of_z"] = float(az.ess(stats["z_first"].values))
        found["distinct_rows"] = int(stats["distinct_rows"].values[0, -1])
    attributes = getattr(step.algorithm, "attributes", {})
    return found | {k: v for k, v in attributes.items() if isinstance(v, (int, float)) and k not in found}, step


def accuracy(biases: list, ratios: list) -> dict:
    """Return the root mean square and largest bias of the means over runs, and the range of ratios of sds."""
    bias, ratio = np.mean(biases, axis=0), np.mean(ratios, axis=0)
    found = {"bias_rms": float(np.sqrt((bias**2).mean())), "bias_max": float(np.abs(bias).max())}
    return found | {f"ratio_{key}": float(getattr(ratio, key)()) for key in ("min", "mean", "max")}


def pooled(runs: list[dict]) -> dict:
    """Return the runs of a row as one: effective sizes and seconds add up, biases and ratios are those of all draws."""
    runs = [row for row in runs if "bias" in row] or runs[:1]  # several rows of times alone are not pooled
    if len(runs) == 1:
        return runs[0] | {"seeds": 1}
    total = {key: sum(row[key] for row in runs) for key in ("draws", "seconds", "ess")}
    mean = {key: float(np.mean([row[key] for row in runs])) for key in runs[0] if key in MEANS}
    out = runs[0] | mean | total | {"ess_per_second": total["ess"] / total["seconds"], "seeds": len(runs)}
    return out | (accuracy([row["bias"] for row in runs], [row["ratio"] for row in runs]) if "bias" in runs[0] else {})


def laplace_line(case: str, n: int, folder: Path) -> str:
    """Return how far Laplace's approximation is from the reference, where that has been made."""
    path = folder / f"reference_{case}_{n}.npz"
    if not path.exists():
        return ""
    found = np.load(path)
    bias, ratio = (found["mode"] - found["mean"]) / found["sd"], found["laplace_sd"] / found["sd"]
    return (
        f"Laplace: bias {np.sqrt((bias**2).mean()):.3f} / {np.abs(bias).max():.3f}, sd ratio {ratio.min():.3f}–"
        f"{ratio.max():.3f}; variance of the weights {float(found['weight_variance']):.2g}\n"
    )


def runs_of(done: dict, key: str) -> list[dict]:
    """Return the runs of a row, one for each seed."""
    return [row for found, row in done.items() if found.partition("#")[0] == key]


def rows_a_step(row: dict, n: int) -> float:
    """Return rows that one iteration looks at."""
    if "rows" in row:
        return row["rows"] / row["iterations_per_draw"]
    return row.get("rows_per_step", row.get("subset_size", n))


def table(done: dict, folder: Path) -> str:
    """Return all rows as Markdown.

    The ESS an iteration of a chain on all data too short to tell is that of the same random walk with control variates.
    """
    lines = []
    for group in sorted({key.rsplit("|", 1)[0] for key in done}):
        case, n = group.split("|")
        rows = {name: pooled(found) for name in STEPS if (found := runs_of(done, f"{group}|{name}"))}
        walk, full = rows.get("control variates"), rows.get("full-data random walk")
        base = float("nan")
        short = full is not None and full["draws"] < 1000
        if full and not short:
            base = full["ess_per_second"]
        elif walk and full:
            rate = walk["ess"] / (walk["draws"] * walk["iterations_per_draw"])
            full["ess"] = rate * full["draws"]
            base = full["ess_per_second"] = rate * 1e6 / full["microseconds_per_iteration"]
        lines += [f"\n{case}, n = {int(n):,}\n", laplace_line(case, int(n), folder)]
        lines += [
            "| step | seeds | µs/it | ESS | ESS/s | × full data | bias rms / max (1/√ESS) | sd ratio | accept | rows a step |"
        ]
        lines += ["|" + " --- |" * 10]
        for name, row in rows.items():
            known = "bias_rms" in row and not (row is full and short)
            bias = f"{row['bias_rms']:.3f} / {row['bias_max']:.3f}" if known else "–"
            ratio = f"{row['ratio_min']:.3f}–{row['ratio_max']:.3f}" if known else "–"
            lines.append(
                f"| {name} | {row['seeds']} "
                f"| {row['microseconds_per_iteration']:,.1f} | {row['ess']:,.0f} | {row['ess_per_second']:,.3g} "
                f"| {row['ess_per_second'] / base:,.3g} | {bias} ({1 / np.sqrt(row['ess']):.3f}) | {ratio} "
                f"| {row['accept']:.2f} | {rows_a_step(row, int(n)):,.3g} |"
            )
    return "\n".join(lines)


def picture(done: dict, path: Path) -> None:
    """Draw the time per iteration against the number of rows, for the steps in ``CURVES`` on the normal case."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for name, marker in CURVES.items():
        sizes = sorted({int(key.split("|")[1]) for key in done if key.startswith("normal|")})
        rows = {n: runs_of(done, f"normal|{n}|{name}") for n in sizes}
        found = [(n, pooled(runs)["microseconds_per_iteration"]) for n, runs in rows.items() if runs]
        if found:
            axes.loglog(*zip(*found, strict=True), marker=marker, label=name)
    axes.set_xlabel("rows")
    axes.set_ylabel("processor time of an iteration, µs")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run what is asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="row")
    parser.add_argument("--case", default="normal", choices=["normal", "t3", "rare"])
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--seed", type=int, default=1, help="of the chain; runs with several seeds are pooled")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of draws")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--save", type=Path, help="write data and reference for the peers' scripts to this .npz file")
    parser.add_argument("--picture", type=Path, help="draw the time per iteration against the number of rows")
    parser.add_argument("--no-reference", action="store_true", help="times alone")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "subsampling_logistic.json"
    if options.save:
        design, y = load(options.case, options.rows, options.out)
        mean, sd, _ = reference(options.case, options.rows, options.out)
        np.savez(options.save, design=design, y=y, mean=mean, sd=sd)
    if options.names:
        known = None if options.no_reference else reference(options.case, options.rows, options.out)
        model = make_model(options.case, options.rows, options.out)
    for name in options.names:
        # while a step lives, the next shares what it compiled
        found, _step = run(model, name, known, options.scale, options.seed)
        done = json.loads(path.read_text()) if path.exists() else {}
        done[f"{options.case}|{options.rows}|{name}" + (f"#{options.seed}" if options.seed > 1 else "")] = found
        path.write_text(json.dumps(done, indent=1))
        print(time.strftime("%H:%M"), name, json.dumps(found), flush=True)
    done = json.loads(path.read_text()) if path.exists() else {}
    print(table(done, options.out))
    if options.picture:
        picture(done, options.picture)


if __name__ == "__main__":
    main()

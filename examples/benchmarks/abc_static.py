"""ABC from the prior: nets against random points as ε falls (Buchholz 2018, section 3.5, Algorithm 9).

    python examples/benchmarks/abc_static.py exact m toy lotka tuberculosis [--runs 50] [--points 16384] [--store FILE]

``exact``: the mixture toy in one dimension at ε = 0.01 (Figure 3.2a), quantiles of the ABC posterior by either kind of
points and by quadrature. ``m``: the same at ε = 1, variance of the evidence over runs and as a run reports it, both
times M (Figure 3.2b). ``toy``: in 2, 4 and 8 dimensions (Figures 3.3 and 3.4). ``lotka``: Lotka–Volterra on simulated
data (Figure 3.5). ``tuberculosis``: Figure 3.6b. These three print ratios of variances over runs, random points over
scrambled nets: first for the posterior mean of the average parameter, with a 90 % interval by the bootstrap over runs,
and after the comma for the posterior variance. There is one data set per point, and the given share of the nearest data
is kept. ``--store`` appends every run to a file as a line of JSON. Runs that are in the file are not made again.
"""

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np
from scipy.special import ndtr
from scipy.stats import qmc

import ppl_backends as pb

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
from abc_toys import HALF, QUIET, mixture
from abc_toys import box as toy_box
from rows import append_row, read_rows

SHARES = (0.1, 0.03, 0.01, 0.003, 0.001)
SDS = np.sqrt([0.1, 0.001])


def nearest(prior, simulate, observed, u, rng, natural=np.asarray):
    """Return the average parameter of every point ``u`` of the unit cube, those of the nearest data first."""
    theta = prior.prior_from_uniform(u)
    distance = np.linalg.norm(simulate({"x": theta}, rng) - observed, axis=1)
    return natural(theta).mean(axis=1)[np.argsort(np.nan_to_num(distance, nan=np.inf))]


def uniform(kind, points, dim, rng):
    """Return points of the unit cube ``(points, dim)``."""
    return qmc.Sobol(dim, rng=rng).random(points) if kind == "nets" else rng.random((points, dim))


def ratios(name, model, runs, points, store):
    """Print variances of random points over those of nets, by share."""
    found = {}
    for k, kind in enumerate(("random", "nets")):
        known = {row["run"]: row["moments"] for row in read_rows(store) if row["name"] == [name, kind, points]}
        for run in sorted(set(range(runs)) - set(known)):
            rng = np.random.default_rng([run, k])
            x = nearest(*model[:3], uniform(kind, points, model[0].dim, rng), rng, *model[3:])
            known[run] = [(near.mean(), near.var()) for near in (x[: int(share * points)] for share in SHARES)]
            append_row(store, name=[name, kind, points], run=run, moments=known[run])
        found[kind] = np.array(list(known.values()))
    n, rng = len(found["nets"]), np.random.default_rng(1)
    again = [{kind: moments[rng.integers(n, size=n)] for kind, moments in found.items()} for _ in range(2000)]
    ratio, *drawn = (sample["random"].var(axis=0) / sample["nets"].var(axis=0) for sample in (found, *again))
    low, high = np.nanquantile(drawn, [0.05, 0.95], axis=0)[..., 0]
    cells = [f"{m:.2f} [{a:.2f}, {b:.2f}], {v:.2f}" for (m, v), a, b in zip(ratio, low, high, strict=True)]
    print(f"| {name} | {points} | {n} | {' | '.join(cells)} |", flush=True)


def exact(points):
    """Print quantiles of the ABC posterior of the toy in one dimension."""
    epsilon, rng = 0.01, np.random.default_rng(1)
    grid = np.linspace(-1.5, 1.5, 300_001)
    density = np.mean([ndtr((epsilon - grid) / sd) - ndtr((-epsilon - grid) / sd) for sd in SDS], axis=0)
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    known = np.interp(levels, np.cumsum(density) / density.sum(), grid)
    print(f"quadrature: {known.round(4)}, share within ε {density.sum() * (grid[1] - grid[0]) / (2 * HALF):.3g}")
    for kind in ("random", "nets"):
        x = toy_box(1).prior_from_uniform(uniform(kind, points, 1, rng))
        kept = x[np.abs(mixture({"x": x}, rng)) <= epsilon]
        print(f"{kind}: {np.quantile(kept, levels).round(4)}, share {len(kept) / points:.3g}", flush=True)


def by_data_sets(runs, points):
    """Print M times the variance of the evidence, over runs and by single runs, by M."""
    truth = 1.0 / HALF  # up to the ends of the prior
    print("| M | M × variance over runs | M × variance that a run reports, mean (sd) |\n| --- | --- | --- |")
    for data_sets in (1, 2, 4, 8, 16):
        found = []
        for seed in range(runs):
            options = {"epsilon": 1.0, "method": "importance", "draws": points, "chains": 1, "data_sets": data_sets}
            idata = pb.sample_abc(
                toy_box(1), simulate=mixture, observed=np.zeros(1), random_seed=seed, **options, **QUIET
            )
            attrs = idata.posterior.attrs
            evidence = np.exp(attrs["log_evidence"]) / truth
            found.append([evidence, (evidence * attrs["log_evidence_se"]) ** 2])
        evidence, reported = np.array(found).T
        said = data_sets * reported
        print(
            f"| {data_sets} | {data_sets * evidence.var(ddof=1):.3g} | {said.mean():.3g} ({said.std():.2g}) |",
            flush=True,
        )


def main():
    """Print the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["exact", "m", "toy", "lotka", "tuberculosis"])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--points", type=int, default=2**14)
    parser.add_argument("--store", type=Path, help="file of single runs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rest = options.runs, options.points
    if "exact" in options.parts:
        exact(2**20)
    if "m" in options.parts:
        by_data_sets(*rest)
    if {"toy", "lotka", "tuberculosis"} & set(options.parts):
        shares = " | ".join(f"{share:.1%} kept" for share in SHARES)
        print(f"\n| model: mean, variance | points | runs | {shares} |\n{'| --- ' * 8}|")
    if "toy" in options.parts:
        for dim in (2, 4, 8):
            ratios(f"toy, d = {dim}", (toy_box(dim), mixture, np.zeros(dim)), *rest, options.store)
    if "lotka" in options.parts:
        from abc_models import box, lotka_volterra

        observed = lotka_volterra({"x": np.log([[1.0, 0.005, 0.6]])}, np.random.default_rng(1))[0]
        model = box([-6] * 3, [2] * 3, list("abc")), lotka_volterra, observed, np.exp
        ratios("Lotka-Volterra", model, *rest, options.store)
    if "tuberculosis" in options.parts:
        from tests.simulators.abc.tuberculosis import OBSERVED, prior, simulate

        ratios("tuberculosis", (prior(), simulate, OBSERVED), *rest, options.store)


if __name__ == "__main__":
    main()

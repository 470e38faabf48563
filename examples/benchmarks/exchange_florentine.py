"""Business ties of 16 Florentine families: edges and two-stars, by exchange, its noisy forms, and noisy Langevin.

    python examples/benchmarks/exchange_florentine.py [row ...]

Prints a Markdown table: posterior means and standard deviations with their Monte Carlo errors, the means' deviations
from the exact posterior in those errors, and the largest gap between simulations from opposite starts at 20 draws of
the posterior. Figures of finished rows are kept in ``exchange_florentine.json`` in the folder ``--out``, so that an
interrupted run continues where it stopped. The exact posterior comes from the density of states (a multicanonical walk
over the numbers of ties at 27 values of the two-star parameter, and the complement identity).
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import arviz as az
import numpy as np

import ppl_backends as pb
from ppl_backends.datasets import load_florentine
from ppl_backends.errors import SamplerWarning
from ppl_backends.simulators import ERGM

EXACT = {30: (-2.256, 0.484, 0.067, 0.105), 100: (-2.268, 0.481, 0.069, 0.105)}
# Alquier (2019), slides; simulators of a few toggles from the observed network.
PUBLISHED = {
    "BERGM": (-2.675, 0.647, 0.188, 0.155),
    "exchange": (-2.573, 0.568, 0.146, 0.133),
    "noisy exchange": (-2.686, 0.526, 0.167, 0.122),
    "noisy Langevin": (-2.281, 0.513, 0.081, 0.119),
    "MALA exchange": (-2.518, 0.620, 0.136, 0.128),
    "noisy MALA exchange": (-2.584, 0.498, 0.144, 0.113),
}
STEPS = pb.steps
DRAWS, TUNE, CHAINS = 15_000, 2_000, 2  # 30,000 draws in all
LONGER = 8  # times as many for noisy Langevin, whose steps are small

FLIPS = {}
NEAR = {"interval": 120}
LOCAL = {"moves": "tnt", "burn_in": 200, "complement": False}
TOGGLES = {"complement": False}
ROWS = {
    "exchange": (lambda: STEPS.Exchange(), FLIPS, 30),
    "MALA exchange": (lambda: STEPS.MALAExchange(), FLIPS, 30),
    "noisy exchange, N = 10": (lambda: STEPS.NoisyExchange(n_draws=10), FLIPS, 30),
    "noisy exchange, N = 100": (lambda: STEPS.NoisyExchange(n_draws=100), NEAR, 30),
    "noisy MALA exchange, N = 10": (lambda: STEPS.NoisyMALAExchange(n_draws=10), FLIPS, 30),
    "noisy Langevin, step 0.5": (lambda: STEPS.NoisyLangevin(step_size=0.5), FLIPS, 30),
    "noisy Langevin, step 0.1": (lambda: STEPS.NoisyLangevin(step_size=0.1), FLIPS, 30),
    "noisy Langevin, step 0.02": (lambda: STEPS.NoisyLangevin(step_size=0.02), FLIPS, 30),
    "noisy Langevin, step 0.005": (lambda: STEPS.NoisyLangevin(step_size=0.005), FLIPS, 30),
    "exchange, 30 sweeps of toggles, no flips": (lambda: STEPS.Exchange(), TOGGLES, 30),
    "exchange, 200 TNT toggles, N(0, 100 I)": (lambda: STEPS.Exchange(), LOCAL, 100),
}


def run(name: str) -> dict:
    """Return one row: 30,000 draws."""
    make, simulator, variance = ROWS[name]
    draws = LONGER * DRAWS if "Langevin" in name else DRAWS
    network = load_florentine()
    graphs = ERGM(16, ["edges", "kstar(2)"], start=network, **simulator)
    prior = pb.FunctionTarget(
        2, lambda x: (-0.5 * (x**2).sum(1) / variance, -x / variance), names=["edges", "two-stars"]
    )
    target = pb.Unnormalized(simulator=graphs, observed=network, prior=prior)
    clock = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)
        idata = pb.sample_mcmc(
            target,
            step=make(),
            draws=draws,
            tune=TUNE,
            chains=CHAINS,
            random_seed=1,
            progressbar=False,
            initvals=np.array([-2.0, 0.0]),
        )
    seconds = time.process_time() - clock
    x = idata.posterior["x"]
    error = np.nanmean(idata.sample_stats["acceptance_error"]) if "acceptance_error" in idata.sample_stats else np.nan
    thinned = x.values.reshape(-1, 2)[:: draws * CHAINS // 20]
    checked = graphs.equilibration(thinned, np.random.default_rng(1), burn_in=[graphs.burn_in])
    return {
        "mean": x.values.reshape(-1, 2).mean(axis=0).tolist(),
        "sd": x.values.reshape(-1, 2).std(axis=0).tolist(),
        "mcse": az.mcse(idata)["x"].values.tolist(),
        "mcse_sd": error_of_sd(x.values).tolist(),
        "ess": float(az.ess(idata)["x"].min()),
        "rhat": float(az.rhat(idata)["x"].max()),
        "accept": float(idata.sample_stats["accept"].mean()),
        "error": float(error),
        "gap": float(checked.gap.max()),
        "equilibrated": checked.equilibrated,
        "seconds": seconds,
    }


def error_of_sd(x: np.ndarray) -> np.ndarray:
    """Return Monte Carlo errors ``(k,)`` of standard deviations of draws ``(chains, draws, k)``, by the delta method."""
    squares = (x - x.mean(axis=(0, 1))) ** 2
    return np.array(
        [np.std(part) / np.sqrt(az.ess(part)) / (2 * np.sqrt(part.mean())) for part in np.moveaxis(squares, -1, 0)]
    )


def show(name: str, row: dict) -> str:
    """Return a line of the table."""
    exact = EXACT[ROWS[name][2]]
    cells = [
        f"{row['mean'][j]:.3f} ± {row['mcse'][j]:.3f} / {row['sd'][j]:.3f} ± {row['mcse_sd'][j]:.3f}" for j in range(2)
    ]
    off = [(row["mean"][j] - exact[2 * j]) / row["mcse"][j] for j in range(2)]
    error = "" if np.isnan(row["error"]) else f"{row['error']:.3f}"
    gap = f"{row['gap']:.2f} ({'passes' if row['equilibrated'] else 'fails'})"
    return (
        f"| {name} | {cells[0]} | {cells[1]} | {off[0]:+.1f}, {off[1]:+.1f} | {error} | {gap} | {row['accept']:.2f} | "
        f"{row['ess']:.0f} | {row['rhat']:.3f} | {row['seconds']:.0f} s |"
    )


def main() -> None:
    """Run what is missing, print all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="names of rows; all by default")
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    file = options.out / "exchange_florentine.json"
    done = json.loads(file.read_text()) if file.exists() else {}
    columns = (
        "method, edges: mean / sd, two-stars: mean / sd, off by (MC errors), E abs(a − â), gap of starts, accept, ESS"
    )
    heads = [*columns.split(", "), "R-hat", "CPU"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for variance, exact in EXACT.items():
        print(f"| exact, N(0, {variance} I) | {exact[0]} / {exact[1]} | {exact[2]} / {exact[3]} | | | | | | | |")
    for name, row in PUBLISHED.items():
        print(f"| published: {name} | {row[0]} / {row[1]} | {row[2]} / {row[3]} | | | | | | | |")
    for name in options.rows or ROWS:
        if name not in done:
            done[name] = run(name)
            file.write_text(json.dumps(done, indent=1))
        print(show(name, done[name]), flush=True)


if __name__ == "__main__":
    main()

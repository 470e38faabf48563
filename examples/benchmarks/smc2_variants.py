"""Four ways to move the particles of SMC² and to let its filters grow, on stochastic volatility: variance × CPU.

The first four are those of Ridgway (2015, section 6.4): (a) particle Metropolis, with twice the particles if fewer than
20 % are accepted; (b) the same moves, with filters exchanged after every block of rows, whose size follows from the
variance of the estimate; (c) full particle Gibbs; (d) partial particle Gibbs with three particle Metropolis steps. (e)
is the default: like (d), with up to twenty steps, and new filters only if the variance is above 1.5. All begin with 32
bootstrap particles. All Metropolis steps are those of the default, from a random walk and from the smoothed particles
in turn.

``python smc2_variants.py [--runs 8] [--rows 200] [--draws 100] > runs.jsonl``; ``python smc2_variants.py table runs.jsonl``.
"""

import argparse
import json
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

import ppl_backends as pb
from ppl_backends.kernels.particle.filters import filter_of
from ppl_backends.kernels.smoothed import SmoothedCycle
from ppl_backends.smc.filters import FilterPath, Growth
from ppl_backends.smc.ibis import row_settings, run_ibis
from ppl_backends.smc.path import PriorPath

DATA = Path(__file__).parents[2] / "tests" / "state_space" / "data" / "stochastic_volatility.csv"
MOST = 512  # particles of a filter
LABELS = {
    "a": "(a) Metropolis, doubling below 20 % accepted",
    "b": "(b) Metropolis, exchange after every block",
    "c": "(c) full particle Gibbs",
    "d": "(d) partial particle Gibbs, three Metropolis steps",
    "e": "default: Metropolis, larger filters around paths",
}


class Doubling(FilterPath):
    """A path with twice the particles if moves are seldom accepted."""

    def moves(self, kernel, settings):
        """Return moves, and their judgement."""
        inner = super().moves(kernel, settings)

        def moved(drawn, path, tuning, rng):
            done = inner.moves(drawn, path, tuning, rng)
            few = done.summary.acceptance < 0.2 and drawn.stage.beta == 1.0 and not path.is_last(drawn.stage)
            particles = replace(done.population, fresh=rng.integers(0, 2**64, len(drawn.weights), dtype=np.uint64))
            size = particles.n_particles
            return done._replace(population=replace(particles, wanted=min(MOST, 2 * size) if few else size))

        return moved


EAGER = Growth(above=1.0, most=MOST)
PATHS = {
    "a": lambda *parts: Doubling(*parts, Growth(most=MOST)),
    "b": lambda *parts: FilterPath(*parts, EAGER),
    "c": lambda *parts: FilterPath(*parts, EAGER, "gibbs"),
    "d": lambda *parts: FilterPath(*parts, EAGER, "partial"),
    "e": lambda *parts: FilterPath(*parts, Growth(most=MOST), "growth"),
}
MOVES = {"a": (3, 3), "b": (3, 3), "c": (3, 3), "d": (3, 3), "e": (3, 20)}


def target_of(rows):
    """Return the model on the first rows, with the priors of the thesis."""
    import pymc as pm

    with pm.Model() as model:
        mu, rho = pm.Normal("mu", 0, 2), pm.TruncatedNormal("rho", 0, 1, lower=-1, upper=1)
        sigma = pm.Deterministic("sigma", pm.InverseGamma("variance", 3, 0.5) ** 0.5)
        y = np.loadtxt(DATA, skiprows=1)[:rows]
        pb.StateSpace("y", pb.state_space.stochastic_volatility(), mu=mu, rho=rho, sigma=sigma, observed=y)
    return pb.as_target(model)


def run(target, variant, draws, seed):
    """Return the figures of one run."""
    clock = time.process_time()
    path = PATHS[variant](target, PriorPath(target), filter_of(target, "bootstrap"))
    settings = row_settings(0.5, *MOVES[variant], None)
    done = run_ibis(path, SmoothedCycle(), draws, np.random.default_rng([7, seed]), None, settings)
    sigma = target.constrain(done.x)["sigma"]
    return {
        "variant": variant,
        "seed": seed,
        "log_evidence": done.log_evidence,
        "sigma": float(sigma.mean()),
        "n_particles": done.records["filters"].n_particles[-1],
        "stages": len(done.stages) - 1,
        "acceptance": float(np.mean([stage.moves.acceptance for stage in done.stages if stage.moves])),
        "cpu": time.process_time() - clock,
    }


def interval(values, cpu, unit=1.0):
    """Return variance × median CPU seconds, and its 95 % interval by the bootstrap over runs."""
    rows = np.random.default_rng(1).integers(len(values), size=(4000, len(values)))
    products = values[rows].var(axis=1, ddof=1) * np.median(cpu[rows], axis=1) / unit
    low, high = np.quantile(products, [0.025, 0.975])
    return f"{values.var(ddof=1) * np.median(cpu) / unit:.2f} ({low:.2f} to {high:.2f})"


def table(file):
    """Print the table."""
    runs = [json.loads(row) for row in Path(file).read_text().splitlines()]
    print(
        "| variant | runs | log of mean Z | log Z, sd | mean of σ, sd | N_x at the end | CPU s | variance of log Z × CPU | "
        "of σ × CPU, 10⁻³ |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for variant, label in LABELS.items():
        found = [each for each in runs if each["variant"] == variant]
        z, sigma, sizes, cpu = (
            np.array([each[key] for each in found]) for key in ("log_evidence", "sigma", "n_particles", "cpu")
        )
        ratio = np.exp(z - z.max())
        mean, error = z.max() + np.log(ratio.mean()), ratio.std(ddof=1) / np.sqrt(len(z)) / ratio.mean()
        print(
            f"| {label} | {len(found)} | {mean:.2f} ± {error:.2f} | {z.mean():.2f}, {z.std(ddof=1):.2f} | "
            f"{sigma.mean():.3f}, {sigma.std(ddof=1):.3f} | {sizes.min()} to {sizes.max()} | {np.median(cpu):.1f} | "
            f"{interval(z, cpu)} | {interval(sigma, cpu, 1e-3)} |"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["table"]:
        table(sys.argv[2])
        sys.exit()
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--variants", default="".join(LABELS))
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--draws", type=int, default=100)
    given = parser.parse_args()
    target = target_of(given.rows)
    for variant in given.variants:
        run(target, variant, given.draws, given.first)  # compiles
        for seed in range(given.first, given.first + given.runs):
            print(json.dumps(run(target, variant, given.draws, seed)), flush=True)

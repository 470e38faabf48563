"""Log evidences of a suite of hard targets by `sample_smc` and by nested samplers: error² × CPU seconds, and calls.

    python evidence_suite.py --file rows.jsonl --samplers "smc" "smc auto" --seeds 5
    python evidence_suite.py --file rows.jsonl --samplers dynesty nautilus --seeds 3     # in the peers' environment
    python evidence_suite.py --file rows.jsonl --print

``smc`` and ``smc auto`` are `sample_smc` from the prior and with ``initial="auto"``, with the other options at their
defaults. ``dynesty`` is the static nested sampler with 500 live points, ``nautilus`` has 1,000 live points and stops at
an effective size of 10,000. Every sampler gets the same prior and the same likelihood in NumPy. dynesty calls it point
by point, nautilus and `sample_smc` in batches. `sample_smc` uses gradients, the others do not. A call is one point,
with or without gradient.

CPU seconds are of this process. Rows are appended to ``--file``; rows that are there are not run again. Intervals of
the ratio are bootstrapped over seeds, and left out below three.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from suite_problems import LOG_2PI, PROBLEMS

OURS = ("smc", "smc auto")


class Counted:
    """A problem's log likelihood that counts points."""

    def __init__(self, problem):
        self.problem, self.calls = problem, 0

    def __call__(self, x):
        """Return values ``(n,)`` and gradients ``(n, dim)``."""
        self.calls += len(x)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.problem.log_likelihood(x)


def target_of(problem, counted):
    """Return the problem as a target on the unconstrained space; a bounded coordinate becomes its log odds."""
    import ppl_backends as pb

    if problem.sd is not None:

        def prior(x):
            square = (x**2).sum(axis=1) / problem.sd**2
            return -0.5 * (square + problem.dim * LOG_2PI) - problem.dim * np.log(problem.sd), -x / problem.sd**2

        return pb.FunctionTarget(
            problem.dim, counted, prior, lambda n, rng: problem.sd * rng.standard_normal((n, problem.dim))
        )
    width = problem.high - problem.low

    def likelihood(z):
        p = 1 / (1 + np.exp(-z))
        value, slope = counted(problem.low + width * p)
        return value, slope * width * p * (1 - p)

    def uniform(z):
        return -(np.logaddexp(0, -z) + np.logaddexp(0, z)).sum(axis=1), -np.tanh(z / 2)

    return pb.FunctionTarget(problem.dim, likelihood, uniform, lambda n, rng: rng.logistic(size=(n, problem.dim)))


def smc(problem, counted, seed, initial="prior"):
    """Return log evidence, standard error and whether it is trusted."""
    import ppl_backends as pb

    target = target_of(problem, counted)
    attrs = pb.sample_smc(target, initial=initial, random_seed=seed, progressbar=False).posterior.attrs
    return attrs["log_evidence"], attrs["log_evidence_se"], bool(attrs["log_evidence_trusted"])


def dynesty(problem, counted, seed):
    """Return the same of dynesty; it has no verdict."""
    import dynesty as package

    sampler = package.NestedSampler(
        lambda x: float(counted(x[None])[0][0]),
        lambda u: problem.from_uniform(u[None])[0],
        problem.dim,
        nlive=500,
        rstate=np.random.default_rng(seed),
    )
    sampler.run_nested(print_progress=False)
    return float(sampler.results.logz[-1]), float(sampler.results.logzerr[-1]), True


def nautilus(problem, counted, seed):
    """Return the same of nautilus; its error is that of an effective size."""
    from nautilus import Sampler

    sampler = Sampler(
        problem.from_uniform,
        lambda x: np.maximum(np.nan_to_num(counted(x)[0], nan=-1e300), -1e300),
        problem.dim,
        n_live=1000,
        vectorized=True,
        pass_dict=False,
        seed=seed,
    )
    sampler.run(verbose=False)
    return float(sampler.log_z), float(1 / np.sqrt(sampler.n_eff)), True


SAMPLERS = {
    "smc": smc,
    "smc auto": lambda problem, counted, seed: smc(problem, counted, seed, "auto"),
    "dynesty": dynesty,
    "nautilus": nautilus,
}


def run(name, problem, sampler, seed):
    """Return the figures of one run."""
    counted, clock = Counted(problem), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value, se, trusted = SAMPLERS[sampler](problem, counted, seed)
    return {
        "name": name,
        "sampler": sampler,
        "seed": seed,
        "error": value - problem.log_evidence,
        "se": se,
        "trusted": trusted,
        "calls": counted.calls,
        "seconds": time.process_time() - clock,
    }


def figures_of(rows):
    """Return errors and CPU seconds ``(n,)``."""
    return (np.array([row[key] for row in rows]) for key in ("error", "seconds"))


def ratio(theirs, ours, rng):
    """Return error² × seconds of theirs over ours, and its 95 % interval by bootstrap over seeds."""

    def cost(rows, pick):
        error, seconds = figures_of(rows)
        return (error[pick] ** 2).mean(axis=-1) * seconds[pick].mean(axis=-1)

    whole = [cost(rows, np.arange(len(rows))) for rows in (theirs, ours)]
    drawn = [cost(rows, rng.integers(len(rows), size=(4000, len(rows)))) for rows in (theirs, ours)]
    return whole[0] / whole[1], np.quantile(drawn[0] / drawn[1], [0.025, 0.975])


def table(rows):
    """Print a line for every target and sampler, and geometric means of the ratios."""
    rng, ratios = np.random.default_rng(0), {}
    print(
        "| target | sampler | seeds | RMSE | mean error | median se | trusted | calls | CPU s | theirs / `smc` [95 %] |"
    )
    print("| --- " * 10 + "|")
    for name in dict.fromkeys(row["name"] for row in rows):
        by = {s: [row for row in rows if (row["name"], row["sampler"]) == (name, s)] for s in SAMPLERS}
        for sampler, mine in by.items():
            if not mine:
                continue
            error, seconds = figures_of(mine)
            beside = ""
            if sampler != "smc" and by["smc"]:
                found, (low, high) = ratio(mine, by["smc"], rng)
                ratios.setdefault(sampler, []).append(found)
                beside = (
                    f"{found:.2g} [{low:.2g}, {high:.2g}]" if min(len(mine), len(by["smc"])) > 2 else f"{found:.2g}"
                )
            trusted = f"{sum(row['trusted'] for row in mine)}" if sampler in OURS else ""
            print(
                f"| {name} | {sampler} | {len(mine)} | {np.sqrt((error**2).mean()):.2g} | {error.mean():+.3f} | "
                f"{np.median([row['se'] for row in mine]):.2g} | {trusted} | {np.mean([row['calls'] for row in mine]):.2g} | "
                f"{seconds.mean():.1f} | {beside} |"
            )
    for sampler, found in ratios.items():
        print(f"\n{sampler} / smc, geometric mean over {len(found)} targets: {np.exp(np.log(found).mean()):.2g}")


def main():
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--samplers", nargs="*", default=list(OURS), choices=list(SAMPLERS))
    parser.add_argument("--targets", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.file.read_text().splitlines()] if options.file.exists() else []
    known = {(row["name"], row["sampler"], row["seed"]) for row in rows}
    for name in [] if options.print else options.targets:
        problem = PROBLEMS[name]()
        for sampler in options.samplers:
            for seed in range(options.seeds):
                if (name, sampler, seed) not in known:
                    rows.append(run(name, problem, sampler, seed))
                    with options.file.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
                    print(rows[-1], flush=True)
    table(rows)


if __name__ == "__main__":
    main()

"""Log evidences of a suite of hard targets by `sample_smc` and by nested samplers: error² × CPU seconds, and calls.

    python evidence_suite.py --file rows.jsonl --samplers "smc" "smc auto" --seeds 5
    python evidence_suite.py --file rows.jsonl --samplers dynesty nautilus UltraNest pocoMC "blackjax NSS" --seeds 3
    python evidence_suite.py --file rows.jsonl --print

The second line runs in an environment that has the peers:
``pip install dynesty nautilus-sampler ultranest pocomc blackjax``.

``smc`` and ``smc auto`` are `sample_smc` from the prior and with ``initial="auto"``, with the other options at their
defaults; `suite_peers` has those of the peers. Every sampler gets the same prior and the same likelihood in NumPy.
`sample_smc` uses gradients, the others do not. A call is one point, with or without gradient.

CPU seconds are of this process, without imports and with compilation. A run over ``--limit`` CPU seconds is stopped, and its
row says so. Rows are appended to ``--file``; rows that are there are not run again. The last two columns of the table are
relative to ``smc``, with squared errors and with squares of the standard errors that the samplers report. Intervals are
bootstrapped over seeds, and left out below three.
"""

import argparse
import importlib
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from rows import append_row, keys_of, read_rows
from suite_peers import MODULES, PEERS
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


SAMPLERS = {"smc": smc, "smc auto": lambda problem, counted, seed: smc(problem, counted, seed, "auto")} | PEERS


class OutOfTime(BaseException):
    """Raised where a run has used its CPU seconds."""


def run(name, problem, sampler, seed, limit):
    """Return the figures of one run, of which there are few if it did not finish."""
    for module in MODULES.get(sampler, ["ppl_backends.smc.sample"]):
        importlib.import_module(module)
    row, counted, clock = {"name": name, "sampler": sampler, "seed": seed}, Counted(problem), time.process_time()

    ended = []

    def stop(*_):
        ended.append(limit)
        raise OutOfTime

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value, se, *trusted = SAMPLERS[sampler](problem, counted, seed)
    except BaseException:  # compiled code turns an exception of a callback into one of its own
        if not ended:
            raise
        return row | {"finished": False, "calls": counted.calls, "seconds": limit}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return row | {
        "finished": True,
        "error": value - problem.log_evidence,
        "se": se,
        "trusted": bool(trusted[0]) if trusted else None,
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


def reported(rows):
    """Return the squared median of the reported standard errors × mean seconds."""
    return np.median([row["se"] for row in rows]) ** 2 * np.mean([row["seconds"] for row in rows])


def table(rows):
    """Print a line for every target and sampler, and geometric means of the ratios."""
    rng, ratios = np.random.default_rng(0), {}
    print(
        "| target | sampler | seeds | RMSE | mean error | median se | trusted | calls | CPU s "
        "| error² × time [95 %] | se² × time |"
    )
    print("| --- " * 11 + "|")
    for name in dict.fromkeys(row["name"] for row in rows):
        all_of = {s: [row for row in rows if (row["name"], row["sampler"]) == (name, s)] for s in SAMPLERS}
        by = {sampler: [row for row in mine if row["finished"]] for sampler, mine in all_of.items()}
        for sampler, mine in by.items():
            stopped = [row for row in all_of[sampler] if not row["finished"]]
            if stopped:
                seconds = np.mean([row["seconds"] for row in stopped])
                print(f"| {name} | {sampler} | {len(stopped)} | not finished in {seconds:.0f} s " + "| " * 7 + "|")
            if not mine:
                continue
            error, seconds = figures_of(mine)
            beside, by_se = "", ""
            if sampler != "smc" and by["smc"]:
                found, (low, high) = ratio(mine, by["smc"], rng)
                ratios.setdefault(sampler, []).append(found)
                by_se = f"{reported(mine) / reported(by['smc']):.2g}"
                beside = (
                    f"{found:.2g} [{low:.2g}, {high:.2g}]" if min(len(mine), len(by["smc"])) > 2 else f"{found:.2g}"
                )
            trusted = f"{sum(row['trusted'] for row in mine)}" if sampler in OURS else ""
            print(
                f"| {name} | {sampler} | {len(mine)} | {np.sqrt((error**2).mean()):.2g} | {error.mean():+.3f} | "
                f"{np.median([row['se'] for row in mine]):.2g} | {trusted} | {np.mean([row['calls'] for row in mine]):.2g} | "
                f"{seconds.mean():.1f} | {beside} | {by_se} |"
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
    parser.add_argument("--limit", type=float, default=90.0, help="CPU seconds of a run")
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    rows = read_rows(options.file)
    known = keys_of(rows, "name", "sampler", "seed")
    for name in [] if options.print else options.targets:
        problem = PROBLEMS[name]()
        for sampler in options.samplers:
            for seed in range(options.seeds):
                if (name, sampler, seed) not in known:
                    rows.append(run(name, problem, sampler, seed, options.limit))
                    append_row(options.file, **rows[-1])
                    print(rows[-1], flush=True)
    table(rows)


if __name__ == "__main__":
    main()

"""Reference log evidences by long runs of tempering SMC, with standard errors.

Two kinds of problem: logistic and probit regressions with prior N(0, I) on all coefficients (predictors as
``load_binary_regression`` scales them by default), and the Stan programs of ``tests/stan/posteriordb`` and ``stan_models``
that have a proper prior. The evidence is ∫ exp(log density) of the program as written, constants and all: a half-normal
written as a normal with a bound is not normalised by Stan, so such priors count half. Every row is a run of ``sample_smc`` of
its own from the start named; where the first step is the last, it is importance sampling.

Rows are appended to ``--file`` as lines of JSON, and what is there is not run again. ``--print`` prints the table.

Run: PPL_BACKENDS_STAN_PRECOMPILE=1 python examples/benchmarks/reference_evidences.py --file evidences.jsonl
         [--names german_credit-logit arK-arK ...] [--draws 8000] [--chains 8] [--initial auto]
     python examples/benchmarks/reference_evidences.py --file evidences.jsonl --print
"""

import argparse
import json
import time
import warnings
import zipfile
from functools import partial
from pathlib import Path

import numpy as np

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.results.inference_data import group
from ppl_backends.targets.factors import Logit, Probit
from ppl_backends.targets.propriety import improper_coordinate

ROOT = Path(__file__).parents[2]
POSTERIORDB, PROGRAMS = ROOT / "tests" / "stan" / "posteriordb", ROOT / "stan_models"
REGRESSIONS = ("plasma", "pima", "heart", "australian", "breast_wisconsin", "german_credit", "sonar", "musk")


def regression(name, sites):
    """A binary regression with prior N(0, I)."""
    X, y, *_ = load_binary_regression(name)
    return pb.Factors(X, 0.0, sites(np.asarray(y, dtype=int)), prior_mean=0.0, prior_precision=1.0)


def from_posteriordb(name):
    """A posterior of posteriordb."""
    with zipfile.ZipFile(POSTERIORDB / f"{name}.data.json.zip") as archive:
        data = json.loads(archive.read(archive.namelist()[0]))
    return pb.as_target(POSTERIORDB / f"{name}.stan", data)


def from_programs(name):
    """A program of this package."""
    return pb.as_target(PROGRAMS / f"{name}.stan", json.loads((PROGRAMS / f"{name}.data.json").read_text()))


def problems():
    """Name → function that makes the target."""
    found = {}
    for name in REGRESSIONS:
        found |= {f"{name}-{link.__name__.lower()}": partial(regression, name, link) for link in (Logit, Probit)}
    found |= {path.stem: partial(from_posteriordb, path.stem) for path in sorted(POSTERIORDB.glob("*.stan"))}
    return found | {path.stem: partial(from_programs, path.stem) for path in sorted(PROGRAMS.glob("*.stan"))}


def run(name, make, draws, chains, initial, seed):
    """One row."""
    target = pb.as_target(make())
    row = {"name": name, "dim": target.dim}
    if not target.has_split:
        return row | {"skipped": "prior and likelihood are not known apart"}
    improper = improper_coordinate(target)
    if improper is not None:
        return row | {"skipped": f"the prior is improper along {improper}"}
    clock = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PPLBackendsWarning)  # what is warned of is in the row
        idata = pb.sample_smc(target, draws=draws, chains=chains, initial=initial, random_seed=seed, progressbar=False)
    attrs, stats = group(idata, "posterior").attrs, group(idata, "sample_stats")
    kept = ("log_evidence", "log_evidence_se", "log_evidence_df", "log_evidence_trusted", "initial", "warnings")
    row |= {key: attrs[key] for key in kept if key in attrs}
    return row | {
        "stages": stats.sizes["stage"],
        "chains": chains,
        "draws": draws,
        "seconds": time.process_time() - clock,
        "single_runs": stats["log_evidence_single_run"].values.tolist(),
    }


def table(rows):
    """Markdown."""
    print("| posterior | dim | log evidence | start | stages | particles | CPU s | trusted |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        if "log_evidence" not in row:
            continue
        figures = f"{row['log_evidence']:.3f} ± {row['log_evidence_se']:.3f} | {row['initial']} | {row['stages']}"
        trusted = "yes" if row["log_evidence_trusted"] else f"no: {row['warnings']}"
        size = f"{row['chains']} × {row['draws']:,}"
        print(f"| {row['name']} | {row['dim']} | {figures} | {size} | {row['seconds']:.0f} | {trusted} |")
    skipped = [f"{row['name']} ({row['skipped']})" for row in rows if "skipped" in row]
    if skipped:
        print("\nNot in the table:", "; ".join(skipped))


def main():
    """Run what is missing, or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--draws", type=int, default=8000)
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--initial", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.file.read_text().splitlines()] if options.file.exists() else []
    if options.print:
        return table(rows)
    known, done = problems(), {row["name"] for row in rows}
    for name in options.names or known:
        if name in done:
            continue
        row = run(name, known[name], options.draws, options.chains, options.initial, options.seed)
        with options.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print({key: value for key, value in row.items() if key != "single_runs"}, flush=True)
    return None


if __name__ == "__main__":
    main()

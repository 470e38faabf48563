"""Common methods on posteriors with a reference evidence: those that are wrong go into ``failures`` of the file.

``harmonic``  the harmonic mean of the likelihood over posterior draws, with its standard error (Newton & Raftery 1994)
``laplace``   Laplace's approximation at the mode, which has no standard error
``one_mode``  importance sampling by nets of points from Laplace at one mode
``stuck``     bridge sampling from four chains of Hamiltonian Monte Carlo that start in one mode
``vegas``     vegas from a map of draws

Rows are appended to ``--file`` as lines of JSON. A row is a failure if its value is more than four combined standard errors
off; a value without a standard error, if it is more than a tenth off.

Run: python examples/benchmarks/reference_failures.py --file failures.jsonl [--names NAME ...]
"""

import argparse
import importlib.metadata
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from reference_evidences import Run
from reference_models import problems
from rows import append_row, keys_of, read_rows
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.results.inference_data import group

LABELS = {
    "harmonic": "harmonic mean of the likelihood",
    "laplace": "Laplace's approximation",
    "one_mode": "importance sampling about one mode",
    "stuck": "bridge sampling from chains in one mode",
    "vegas": "vegas from a map of draws",
}
WHY = {
    "harmonic": "terms have infinite variance: points where the likelihood is small, which draws never reach, hold the sum",
    "laplace": "the posterior is not Gaussian about its mode",
    "one_mode": "the Gaussian about one mode misses the others, or a ridge",
    "stuck": "all chains stay in the mode that they began in, so that none shows the others",
    "vegas": "no product of functions of single coordinates is near a funnel",
}
CASES = (
    ("harmonic", "pima-logit_gaussian"),
    ("harmonic", "plasma-logit_cauchy"),
    ("harmonic", "linear_gaussian_100-stationary"),
    ("laplace", "linear_gaussian_100-stationary"),
    ("laplace", "g_and_k_100-uniform"),
    ("laplace", "hald-normal_inverse_gamma"),
    ("laplace", "breast_wisconsin-logit_cauchy"),
    ("laplace", "funnel-10"),
    ("one_mode", "forty_gaussians-2"),
    ("one_mode", "four_gaussians-1"),
    ("one_mode", "funnel-10"),
    ("stuck", "forty_gaussians-2"),
    ("stuck", "shells-10"),
    ("stuck", "many_well-32"),
    ("vegas", "funnel-10"),
    ("vegas", "funnel-20"),
)


def harmonic(run):
    """Harmonic mean."""
    x = run.points
    found = run.target.evaluate(x)
    terms = -found.log_likelihood if run.target.has_split else -run.target.log_density(x)
    value = logsumexp(terms) - np.log(len(terms))
    shares = np.exp(terms - value)
    return -value, shares.std(ddof=1) / np.sqrt(len(terms)), False, "ppl_backends and numpy"


def laplace(run):
    """Laplace."""
    fit = pb.fit_laplace(run.target, random_seed=1)
    return float(fit.log_evidence), 0.0, not fit.converged, "ppl_backends"


def one_mode(run):
    """Importance sampling about one mode."""
    idata = pb.sample_importance(
        run.target, approximation="laplace", draws=8192, chains=8, random_seed=1, progressbar=False
    )
    attrs = group(idata, "posterior").attrs
    return attrs["log_evidence"], attrs["log_evidence_se"], not attrs["log_evidence_trusted"], "ppl_backends"


def stuck(run):
    """Bridge sampling."""
    found = run.bridge()
    return found["log_evidence"], found["log_evidence_se"], not found["trusted"], "ppl_backends"


def vegas(run):
    """Vegas."""
    found = run.vegas()
    return found["log_evidence"], found["log_evidence_se"], False, f"vegas {importlib.metadata.version('vegas')}"


def failures(rows, entries):
    """Those rows that are wrong, in the form of the file."""
    found = []
    for row in rows:
        known = entries.get(row["name"])
        if known is None or known["log_evidence"] is None or "log_evidence" not in row:
            continue
        off = abs(row["log_evidence"] - known["log_evidence"])
        error = np.hypot(row["log_evidence_se"], known["log_evidence_se"])
        if off > (4 * error if row["log_evidence_se"] else 0.1):
            found.append(row | {"right": known["log_evidence"]})
    return found


def main():
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--names", nargs="+")
    options = parser.parse_args()
    warnings.simplefilter("ignore", PPLBackendsWarning)
    done, known = keys_of(read_rows(options.file), "method", "name"), problems()
    for method, name in CASES:
        if (LABELS[method], name) in done or (options.names and name not in options.names):
            continue
        run = Run(name, replace(known[name], draws=None), 1)
        try:
            value, se, flagged, software = globals()[method](run)
        except Exception as error:
            print(method, name, error, flush=True)
            continue
        row = {
            "name": name,
            "method": LABELS[method],
            "software": software,
            "log_evidence": float(value),
            "log_evidence_se": float(se),
            "flagged": bool(flagged),
            "why": WHY[method],
            "command": f"python examples/benchmarks/reference_failures.py --file failures.jsonl --names {name}",
        }
        append_row(options.file, **row)
        print(row, flush=True)


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()

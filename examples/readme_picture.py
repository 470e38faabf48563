"""Draw the picture of the README: log evidences by ``sample_smc`` and by ``pymc.sample_smc``, one run for each seed.

The model is the logistic regression of `benchmarks/models.py` on the Pima data. Every sampler runs with its defaults, except
that the chains of ``sample_smc`` run in one process. The line is the evidence of a long run (`benchmarks/references.json`).

Run: python examples/readme_picture.py [--seeds 5] [--output docs/images/evidence.png]
"""

import argparse
import json
import logging
import sys
import time
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb
from ppl_backends.results.inference_data import group

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "benchmarks"))
from models import MODELS  # noqa: E402


def run_ours(model, seed):
    """Return log evidence and standard error of a run from the prior."""
    attrs = pb.sample_smc(model, random_seed=seed, progressbar=False).posterior.attrs
    return attrs["log_evidence"], attrs["log_evidence_se"]


def run_pymc(model, seed):
    """Return the log of the mean evidence over PyMC's chains."""
    with model:
        idata = pm.sample_smc(chains=2, cores=1, random_seed=seed, progressbar=False)
    chains = [_last(chain) for chain in group(idata, "sample_stats")["log_marginal_likelihood"].values]
    return np.logaddexp.reduce(chains) - np.log(len(chains))


def _last(nested):
    while isinstance(nested, (list, np.ndarray)):
        nested = nested[-1]
    return float(nested)


def main():
    """Run both samplers, print what they say, and draw it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=HERE.parent / "docs/images/evidence.png")
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    model, reference = MODELS["Pima"](), json.loads((HERE / "benchmarks/references.json").read_text())["Pima"]
    seeds = np.arange(1, arguments.seeds + 1)
    ours, clock = [], time.process_time()
    for seed in seeds:
        ours.append(run_ours(model, int(seed)))
    ours_seconds, clock = time.process_time() - clock, time.process_time()
    theirs = [run_pymc(model, int(seed)) for seed in seeds]
    theirs_seconds = time.process_time() - clock
    value, error = np.array(ours).T
    for name, found, seconds in (("sample_smc", value, ours_seconds), ("pymc.sample_smc", theirs, theirs_seconds)):
        rmse = np.sqrt(np.mean((np.array(found) - reference["log_evidence"]) ** 2))
        print(f"{name}: rmse {rmse:.4f}, {seconds / len(seeds):.1f} CPU s a run, compilation included")
    print(f"standard errors reported by sample_smc: {error.min():.4f} to {error.max():.4f}")

    figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
    axis.axhline(reference["log_evidence"], color="0.4", lw=1, label="long run")
    axis.errorbar(
        seeds - 0.1, value, 1.96 * error, fmt="o", ms=4, capsize=3, label="ppl_backends.sample_smc, 95 % interval"
    )
    axis.plot(seeds + 0.1, theirs, "s", ms=5, color="C1", label="pymc.sample_smc (reports no error)")
    axis.set(xlabel="seed", ylabel="log evidence", xticks=seeds)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(arguments.output, dpi=130)


if __name__ == "__main__":
    main()

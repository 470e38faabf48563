"""Tempering SMC on twelve posteriors of posteriordb, written as Stan programs, against their reference draws.

Every posterior is run with the same settings: from the prior where it is proper, else from Laplace. A row passes if

* posterior means differ from the reference by at most 4 combined Monte Carlo standard errors (``z``),
* the Monte Carlo standard error of our own means is at most 0.03 posterior sd (``error``), and
* sds differ by at most 5 % or 4 combined standard errors, whichever is larger (``sd ratio``).

Errors of our own come from the lineages, since particles with different initial ancestors are independent; from the
spread of the chains' means where that is larger than the lineages explain.

Run: PPL_BACKENDS_STAN_PRECOMPILE=1 python examples/benchmarks/posteriordb_smc.py [NAME ...] [--draws 3000] [--seed 1]
(the variable halves the compile times, which are not in ``seconds``).
"""

import argparse
import json
import time
import warnings
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.results.inference_data import group
from ppl_backends.smc.results import lineage_ess

POSTERIORS = Path(__file__).parents[2] / "tests" / "stan" / "posteriordb"
REFERENCES = json.loads((POSTERIORS / "references.json").read_text())
LARGEST_Z, LARGEST_ERROR, LARGEST_SD_CHANGE = 4.0, 0.03, 0.05
SPREAD_LEVEL = 1e-4  # of the test that chains differ by more than their lineages explain; there are 69 parameters


def read_target(name):
    """A posterior as a target, its prior part compiled too."""
    with zipfile.ZipFile(POSTERIORS / f"{name}.data.json.zip") as archive:
        data = json.loads(archive.read(archive.namelist()[0]))
    target = pb.as_target(POSTERIORS / f"{name}.stan", data)
    assert target.has_split, target.split_problem
    return target


def posterior_draws(idata, names):
    """Draws ``(chain, draw, parameter)`` of parameters named as in Stan's output, counting from one."""
    columns = []
    for name in names:
        variable, _, index = name.rstrip("]").partition("[")
        values = np.asarray(group(idata, "posterior")[variable])
        columns.append(values[(..., *(int(i) - 1 for i in index.split(",")))] if index else values)
    return np.stack(columns, axis=-1)


class Comparison(NamedTuple):
    """Ours against the reference, per parameter.

    Attributes
    ----------
    z : ndarray
        Difference of the means in combined standard errors.
    error : ndarray
        Our own standard error of the mean in posterior sds.
    sd_ratio : ndarray
        Our sd over the reference's.
    sd_allowed : ndarray
        Largest distance of that ratio from one.
    """

    z: np.ndarray
    error: np.ndarray
    sd_ratio: np.ndarray
    sd_allowed: np.ndarray

    @property
    def passed(self):
        """Means, errors and sds each within its limit, for every parameter."""
        means, errors = np.abs(self.z) <= LARGEST_Z, self.error <= LARGEST_ERROR
        return bool((means & errors & (np.abs(self.sd_ratio - 1) <= self.sd_allowed)).all())


def compare(name, idata):
    """Compare the draws of ``idata`` with the reference of posterior ``name``."""
    reference = REFERENCES[name]
    mean, sd, mcse_mean, mcse_sd = (
        np.array([figures[key] for figures in reference.values()]) for key in ("mean", "sd", "mcse_mean", "mcse_sd")
    )
    draws = posterior_draws(idata, reference)
    ancestors = np.asarray(group(idata, "sample_stats")["ancestor"])
    ours, our_sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    mean_error = standard_error(draws, ancestors)
    sd_error = standard_error((draws - ours) ** 2, ancestors) / (2 * our_sd)
    return Comparison(
        z=(ours - mean) / np.hypot(mean_error, mcse_mean),
        error=mean_error / sd,
        sd_ratio=our_sd / sd,
        sd_allowed=np.maximum(LARGEST_SD_CHANGE, LARGEST_Z * np.hypot(sd_error, mcse_sd) / sd),
    )


def standard_error(values, ancestors):
    """Standard error ``(k,)`` of the mean over chains and draws of ``values`` ``(chain, draw, k)``."""
    chains = len(values)
    ess = np.stack([lineage_ess(chain, ancestor) for chain, ancestor in zip(values, ancestors, strict=True)])
    within = (values.var(axis=1) / ess).mean(axis=0)
    between = values.mean(axis=1).var(axis=0, ddof=1)
    explained = between <= within * chi2.isf(SPREAD_LEVEL, chains - 1) / (chains - 1)
    return np.sqrt(np.where(explained, within, between) / chains)


def run(name, **options):
    """Sample one posterior; its InferenceData, the seconds taken and what was warned of."""
    target = read_target(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SamplerWarning)
        clock = time.perf_counter()
        idata = pb.sample_smc(target, random_seed=options.pop("seed", 1), progressbar=False, **options)
        seconds = time.perf_counter() - clock
    return idata, seconds, [str(warning.message) for warning in caught]


COLUMNS = (
    f"{'posterior':41} {'dim':>3} {'start':8} {'stages':>6} {'seconds':>7} {'|z|':>5} {'error':>6} {'sd ratio':>8}"
)
COLUMNS += f" {'log evidence':>19} {'prior norm.':>11} {'trusted':>7} result"


def row(name, idata, seconds):
    """One line of the table: the worst of every figure."""
    found, attrs = compare(name, idata), group(idata, "posterior").attrs
    stats = group(idata, "sample_stats")
    ratio = found.sd_ratio[np.argmax(np.abs(found.sd_ratio - 1) / found.sd_allowed)]
    normalizer = attrs.get("log_prior_normalizer")
    evidence = f"{attrs['log_evidence']:.3f} ± {attrs['log_evidence_se']:.3f}"
    return (
        f"{name:41} {stats.sizes['unconstrained_parameter']:3} {attrs['initial']:8} {stats.sizes['stage']:6} "
        f"{seconds:7.1f} {np.abs(found.z).max():5.2f} {found.error.max():6.3f} {ratio:8.3f} "
        f"{evidence:>19} {'' if normalizer is None else format(normalizer, '.3f'):>11} "
        f"{'yes' if attrs['log_evidence_trusted'] else 'no':>7} {'pass' if found.passed else 'FAIL'}"
    )


def main():
    """Print the table, and below each row what was warned of."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(REFERENCES))
    parser.add_argument("--draws", type=int, default=3000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--max-moves", type=int, default=100)
    parser.add_argument("--initial", default="prior")
    parser.add_argument("--seed", type=int, default=1)
    options = vars(parser.parse_args())
    print(COLUMNS)
    for name in options.pop("names"):
        idata, seconds, warned = run(name, **options)
        print(row(name, idata, seconds), *warned, sep="\n    ", flush=True)


if __name__ == "__main__":
    main()

"""Tempering SMC on posteriors of posteriordb, as Stan programs, against their reference draws.

Every posterior has the same settings: runs start from the prior if it is proper, and from Laplace otherwise. A row
passes if

* posterior means differ from the reference by at most 4 combined Monte Carlo standard errors (``z``),
* the Monte Carlo standard error of our own means is at most 0.03 posterior sd (``error``), and
* sds differ by at most 5 % or 4 combined standard errors, whichever is larger (``sd ratio``).

Our errors come from the lineages, because particles with different initial ancestors are independent, or from the
spread of the chains' means if that is larger than the lineages explain.

From every start (``--initial prior laplace auto``) a result is right or flagged, or it is *wrong and trusted*: a mean
or a standard deviation is off by 20 % of the posterior sd, and by more than 4 combined standard errors, with
``log_evidence_trusted`` 1. If the reference draws have a tail index above 0.3 (Pareto k), the standard deviation of a
sample has no error bar, and a result is wrong if the 5, 50 or 95 % quantile is off by 5 % of the range between the
outer two. The table of starts counts right and wrong by trusted and flagged.

Twelve posteriors are in this repository, with programs of its own. With ``--database``, a checkout of
https://github.com/stan-dev/posteriordb, any posterior there is run with posteriordb's program and data; those without
reference draws are run for their evidence alone, and ``--references`` takes all that have them. Rows are appended to
``--file`` as lines of JSON, rows that are there are not run again, and ``--print`` prints the table, as a run without a
file does. ``--evidence`` skips improper priors, which have no evidence.

Run: PPL_BACKENDS_STAN_PRECOMPILE=1 python examples/benchmarks/posteriordb_smc.py [NAME ...] [--file rows.jsonl]
         [--database CHECKOUT [--references]] [--initial prior laplace auto] [--draws 3000] [--seed 1]
(the variable halves the compile times, which are not in ``seconds``).
"""

import argparse
import itertools
import json
import runpy
import time
import warnings
import zipfile
from pathlib import Path
from typing import NamedTuple

import arviz as az
import numpy as np
from rows import append_row, keys_of, read_rows
from scipy.stats import chi2

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.numerics.weights import pareto_k
from ppl_backends.results.inference_data import group
from ppl_backends.smc.results import lineage_ess
from ppl_backends.targets.propriety import improper_coordinate

POSTERIORS = Path(__file__).parents[2] / "tests" / "stan" / "posteriordb"
REFERENCES = json.loads((POSTERIORS / "references.json").read_text())
LARGEST_Z, LARGEST_ERROR, LARGEST_SD_CHANGE = 4.0, 0.03, 0.05
WRONG = 0.2  # of a posterior sd, by which a mean or an sd is off
LEVELS, WRONG_QUANTILE = np.array([0.05, 0.5, 0.95]), 0.05  # of the range of the quantiles, where moments do not exist
HEAVIEST_TAIL = 0.3  # Pareto k of the reference draws; above a quarter the standard deviation of a sample has no error
SPREAD_LEVEL = 1e-4  # of the test that chains differ by more than their lineages explain; there are 69 parameters


def read_zip(path):
    """Return the one JSON file in a zip."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(archive.namelist()[0]))


def read_target(name, database=None):
    """Return a posterior as a target, its prior part compiled too."""
    if database is None:
        program, data = POSTERIORS / f"{name}.stan", read_zip(POSTERIORS / f"{name}.data.json.zip")
    else:
        root = database / "posterior_database"
        about = json.loads((root / "posteriors" / f"{name}.json").read_text())
        program = root / "models" / "stan" / f"{about['model_name']}.stan"
        data = read_zip(root / "data" / "data" / f"{about['data_name']}.json.zip")
    return pb.as_target(program, data)


def read_reference(name, database=None):
    """Return the mean, sd and their errors by parameter, of the reference draws; None where there are none."""
    if database is None or name in REFERENCES:
        return REFERENCES[name]
    root = database / "posterior_database"
    drawn = json.loads((root / "posteriors" / f"{name}.json").read_text())["reference_posterior_name"]
    if not drawn:
        return None
    summarize = runpy.run_path(str(POSTERIORS / "make_references.py"))["summarize"]
    chains = read_zip(root / "reference_posteriors" / "draws" / "draws" / f"{drawn}.json.zip")
    return {name: figures | quantiles(chains, name) for name, figures in summarize(chains).items()}


def quantiles(chains, name):
    """Return quantiles of reference draws with errors as probabilities; nothing for light tails."""
    draws = np.array([chain[name] for chain in chains])
    with np.errstate(divide="ignore"):
        if pareto_k(np.log(np.abs(draws - np.median(draws))).ravel()) < HEAVIEST_TAIL:
            return {}
    values = np.quantile(draws, LEVELS)
    return {"quantiles": values, "mcse_level": [az.mcse(draws < value, method="mean").item() for value in values]}


def names_with_references(database):
    """Return all posteriors of the database that have reference draws there."""
    root = database / "posterior_database"
    drawn = root / "reference_posteriors" / "draws" / "draws"
    about = [json.loads(path.read_text()) for path in sorted((root / "posteriors").glob("*.json"))]
    return [one["name"] for one in about if (drawn / f"{one['reference_posterior_name']}.json.zip").exists()]


def posterior_draws(idata, names):
    """Return draws ``(chain, draw, parameter)`` of parameters named as in Stan's output, counting from one."""
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
    mean_shift : ndarray
        Difference of the means in posterior sds.
    quantile_shift : ndarray
        Largest difference of a quantile in ranges of the quantiles, where these take the place of moments; else NaN.
    quantile_z : ndarray
        Largest difference of a quantile in combined standard errors.
    """

    z: np.ndarray
    error: np.ndarray
    sd_ratio: np.ndarray
    sd_allowed: np.ndarray
    mean_shift: np.ndarray
    quantile_shift: np.ndarray
    quantile_z: np.ndarray

    @property
    def wrong(self):
        """Return whether a mean, an sd or a quantile is off by more than the limit, and by more than its errors explain."""
        mean = (np.abs(self.mean_shift) > WRONG) & (np.abs(self.z) > LARGEST_Z)
        moments = mean | (np.abs(self.sd_ratio - 1) > np.maximum(WRONG, self.sd_allowed))
        quantile = (self.quantile_shift > WRONG_QUANTILE) & (self.quantile_z > LARGEST_Z)
        return bool(np.where(np.isnan(self.quantile_shift), moments, quantile).any())

    @property
    def passed(self):
        """Return means, errors and sds each within its limit, for every parameter."""
        means, errors = np.abs(self.z) <= LARGEST_Z, self.error <= LARGEST_ERROR
        return bool((means & errors & (np.abs(self.sd_ratio - 1) <= self.sd_allowed)).all())


def compare(name, idata, reference=None):
    """Compare the draws of ``idata`` with the reference of posterior ``name``."""
    reference = reference or REFERENCES[name]
    mean, sd, mcse_mean, mcse_sd = (
        np.array([figures[key] for figures in reference.values()]) for key in ("mean", "sd", "mcse_mean", "mcse_sd")
    )
    draws = posterior_draws(idata, reference)
    ancestors = np.asarray(group(idata, "sample_stats")["ancestor"])
    ours, our_sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    mean_error = standard_error(draws, ancestors)
    sd_error = standard_error((draws - ours) ** 2, ancestors) / (2 * our_sd)
    shift, quantile_z = np.full((2, len(reference)), np.nan)
    for j, figures in enumerate(reference.values()):
        if "quantiles" in figures:
            values = np.asarray(figures["quantiles"])
            below = (draws[:, :, j, None] < values).astype(float)
            error = np.hypot(standard_error(below, ancestors), figures["mcse_level"])
            quantile_z[j] = np.max(np.abs(below.mean(axis=(0, 1)) - LEVELS) / error)
            shift[j] = np.max(np.abs(np.quantile(draws[:, :, j], LEVELS) - values)) / (values[2] - values[0])
    return Comparison(
        z=(ours - mean) / np.hypot(mean_error, mcse_mean),
        error=mean_error / sd,
        sd_ratio=our_sd / sd,
        sd_allowed=np.maximum(LARGEST_SD_CHANGE, LARGEST_Z * np.hypot(sd_error, mcse_sd) / sd),
        mean_shift=(ours - mean) / sd,
        quantile_shift=shift,
        quantile_z=quantile_z,
    )


def standard_error(values, ancestors):
    """Return Standard error ``(k,)`` of the mean over chains and draws of ``values`` ``(chain, draw, k)``."""
    chains = len(values)
    ess = np.stack([lineage_ess(chain, ancestor) for chain, ancestor in zip(values, ancestors, strict=True)])
    within = (values.var(axis=1) / ess).mean(axis=0)
    between = values.mean(axis=1).var(axis=0, ddof=1)
    explained = between <= within * chi2.isf(SPREAD_LEVEL, chains - 1) / (chains - 1)
    return np.sqrt(np.where(explained, within, between) / chains)


def run(name, target=None, **options):
    """Sample one posterior; its InferenceData, the seconds taken and what was warned of."""
    target = target or read_target(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SamplerWarning)
        clock = time.process_time()
        idata = pb.sample_smc(target, random_seed=options.pop("seed", 1), progressbar=False, **options)
        seconds = time.process_time() - clock
    return idata, seconds, [str(warning.message) for warning in caught]


def row(name, database, evidence, **options):
    """Return the figures of one posterior, the worst of every kind."""
    target = read_target(name, database)
    known = {
        "name": name,
        "asked": options["initial"],
        "dim": target.dim,
        "draws": options["draws"],
        "chains": options["chains"],
    }
    improper = improper_coordinate(target) if target.has_split else f"{target.dim} coordinates, as far as is known"
    if evidence and improper:
        return known | {"skipped": f"the prior is improper along {improper}"}
    idata, seconds, warned = run(name, target, **options)
    attrs, stats = group(idata, "posterior").attrs, group(idata, "sample_stats")
    known |= {
        "start": attrs["initial"],
        "stages": stats.sizes["stage"],
        "seconds": seconds,
        "log_evidence": attrs["log_evidence"],
        "log_evidence_se": attrs["log_evidence_se"],
        "log_prior_normalizer": attrs.get("log_prior_normalizer"),
        "proper": not improper,
        "trusted": attrs["log_evidence_trusted"],
        "method": attrs.get("log_evidence_method"),
        "warnings": warned,
    }
    for other in ("tempering", "bridge"):
        known |= {name: attrs[name] for name in (f"log_evidence_{other}", f"log_evidence_{other}_se") if name in attrs}
    reference = None if evidence else read_reference(name, database)
    if reference:
        found = compare(name, idata, reference)
        worst = np.argmax(np.abs(found.sd_ratio - 1) / found.sd_allowed)
        known |= {"z": np.abs(found.z).max(), "error": found.error.max(), "sd_ratio": found.sd_ratio[worst]}
        known |= {"mean_shift": np.abs(found.mean_shift).max(), "passed": found.passed, "wrong": found.wrong}
        if not np.isnan(found.quantile_shift).all():
            known |= {"quantile_shift": np.nanmax(found.quantile_shift), "quantile_z": np.nanmax(found.quantile_z)}
    return known


def remark(one):
    """Return what is to be said of an evidence."""
    if one.get("method") == "bridge sampling":
        return ", evidence by bridge sampling"
    return "" if one["trusted"] else ", evidence flagged"


def table(rows):
    """Print Markdown: reference posteriors, then evidences."""
    print("| posterior | dim | start | stages | CPU s | abs z | error | sd ratio | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    compared = [one for one in rows if "passed" in one]
    for one in compared:
        size = f"{one['name']} | {one['dim']} | {one['start']} | {one['stages']} | {one['seconds']:.0f}"
        figures = f"{one['z']:.2f} | {one['error']:.3f} | {one['sd_ratio']:.3f}"
        print(f"| {size} | {figures} | {'pass' if one['passed'] else 'FAIL'}{remark(one)} |")
    print(f"\n{sum(one['passed'] for one in compared)} of {len(compared)} pass.\n")
    starts(compared)
    print("| posterior | dim | log evidence | log prior normaliser | start | stages | particles | trusted |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for one in rows:
        if not one.get("proper"):
            continue
        normalizer = one["log_prior_normalizer"]
        size = f"{one['start']} | {one['stages']} | {one['chains']} × {one['draws']:,}"
        print(
            f"| {one['name']} | {one['dim']} | {one['log_evidence']:.3f} ± {one['log_evidence_se']:.3f} | "
            f"{'' if normalizer is None else format(normalizer, '.3f')} | {size} | {'yes' if one['trusted'] else 'no'} |"
        )


def starts(compared):
    """Print Markdown: right and wrong by trusted and flagged, from each start."""
    print("| initial | right, trusted | right, flagged | wrong, flagged | wrong, trusted | CPU s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for asked in dict.fromkeys(one["asked"] for one in compared):
        rows = [one for one in compared if one["asked"] == asked]
        kinds = [(False, 1), (False, 0), (True, 0), (True, 1)]
        counts = [sum((one["wrong"], one["trusted"]) == kind for one in rows) for kind in kinds]
        print(f"| {asked} | {' | '.join(map(str, counts))} | {sum(one['seconds'] for one in rows):.0f} |")
    print(
        "\nWrong and trusted:",
        [(one["name"], one["asked"]) for one in compared if one["wrong"] and one["trusted"]],
        "\n",
    )


def main():
    """Run what is missing, or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(REFERENCES))
    parser.add_argument("--file", type=Path)
    parser.add_argument("--database", type=Path)
    parser.add_argument("--evidence", action="store_true")
    parser.add_argument("--draws", type=int, default=3000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--max-moves", type=int, default=100)
    parser.add_argument("--max-time", type=float)
    parser.add_argument("--initial", nargs="+", default=["prior"])
    parser.add_argument("--references", action="store_true", help="all posteriors of the database with reference draws")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--print", action="store_true")
    options = vars(parser.parse_args())
    file, names = options.pop("file"), options.pop("names")
    rows = read_rows(file)
    if options.pop("print"):
        return table(rows)
    if options.pop("references"):
        names = names_with_references(options["database"])
    done = keys_of(rows, "name", "asked")
    for name, initial in itertools.product(names, options.pop("initial")):
        if (name, initial) in done:
            continue
        try:
            found = row(name, initial=initial, **options)
        except Exception as error:  # a failure is a row of the table
            found = {"name": name, "asked": initial, "skipped": f"{type(error).__name__}: {error}"[:300]}
        append_row(file, **found)
        rows.append(found)
        print(found, flush=True)
    return None if file else table(rows)


if __name__ == "__main__":
    main()

"""Hostile targets with known answers: how often every method is wrong, and how often it is wrong and trusted.

A run is *wrong* if its log evidence is more than four of its standard errors off (for Laplace and EP, which have none,
by more than half; variational inference has a bound alone, and is not judged by it), or the mean or sd of a coordinate
by more than 20 % of the posterior's sd, or, without a fourth moment, the 5, 50 or 95 % quantile by more than 5 % of the
range between the outer two, in each case beyond three Monte Carlo standard errors of the same number of independent
draws. A run is *trusted* if ``log_evidence_trusted`` (for the three approximations ``converged``) says so.

``z`` is the largest error of the evidence in standard errors among trusted runs, ``cover`` the share of trusted runs whose
95 % interval has the truth, ``error`` the largest error of a mean (or quantile) among trusted runs.

Run: python examples/benchmarks/hostile_cases.py [--kinds ...] [--cases ...] [--methods ...] [--seeds 40] [--file rows.jsonl]
     python examples/benchmarks/hostile_cases.py --file rows.jsonl --print
"""

import argparse
import sys
import time
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import stats

import ppl_backends as pb
from ppl_backends.errors import ModelError, PPLBackendsWarning
from ppl_backends.results.inference_data import group

sys.path.insert(0, str(Path(__file__).parent))
from hostile_models import model_cases
from hostile_targets import all_cases
from rows import append_row, keys_of, read_rows

LARGEST_Z, LARGEST_SHIFT, LARGEST_QUANTILE_SHIFT, LARGEST_LAPLACE = 4.0, 0.2, 0.05, 0.5
LEVELS = np.array([0.05, 0.5, 0.95])
METHODS = {
    "laplace": lambda target, seed: pb.fit_laplace(target, random_seed=seed, progressbar=False),
    "vi": lambda target, seed: pb.fit_vi(target, random_seed=seed, progressbar=False),
    "ep": lambda target, seed: pb.fit_ep(target),
    "importance": lambda target, seed: pb.sample_importance(target, draws=1000, random_seed=seed, progressbar=False),
    "smc prior": lambda target, seed: _smc(target, "prior", seed),
    "smc laplace": lambda target, seed: _smc(target, "laplace", seed),
    "smc auto": lambda target, seed: _smc(target, "auto", seed),
    "smc unbiased": lambda target, seed: _smc(target, "prior", seed, unbiased=True),
}


FITS = ("laplace", "vi", "ep")


def _smc(target, initial, seed, **options):
    return pb.sample_smc(target, initial=initial, draws=1000, random_seed=seed, progressbar=False, **options)


def run(case, target, method, seed):
    """Return the figures of one run."""
    clock = time.process_time()
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        if method in FITS:
            found = METHODS[method](target, seed)
            evidence = None if method == "vi" else found.log_evidence  # variational inference has a bound only
            figures = {"log_evidence": evidence, "se": 0.0, "df": None, "trusted": int(found.converged)}
            draws = target.constrain(found.sample(20_000, np.random.default_rng(seed)))
            n_eff = 1e9
        else:
            idata = METHODS[method](target, seed)
            attrs = group(idata, "posterior").attrs
            figures = {
                "log_evidence": attrs["log_evidence"],
                "se": attrs["log_evidence_se"],
                "df": attrs.get("log_evidence_df"),
                "trusted": attrs["log_evidence_trusted"],
                "tempering": attrs.get("log_evidence_tempering"),
            }
            posterior = group(idata, "posterior")
            draws = {name: np.concatenate(posterior[name].values) for name in case.reference}
            n_eff = len(next(iter(draws.values())))
    figures["seconds"] = time.process_time() - clock
    figures["said"] = [str(w.message)[:300] for w in caught if issubclass(w.category, PPLBackendsWarning)]
    return figures | errors(case, draws, n_eff)


def errors(case, draws, n):
    """Return the largest error of means, sds or quantiles, and of these beyond three Monte Carlo standard errors."""
    shift, excess = 0.0, 0.0
    for name, (mean, sd, quantiles) in case.reference.items():
        x = np.asarray(draws[name]).reshape(len(draws[name]), -1)
        if case.moments:
            found = [np.abs(x.mean(axis=0) - mean) / sd, np.abs(x.std(axis=0) / sd - 1)]
            noise = 3 / np.sqrt(n)
            shift = max(shift, *(f.max() for f in found))
            excess = max(excess, *((f - noise).max() / LARGEST_SHIFT for f in found))
        else:
            spread = quantiles[2] - quantiles[0]
            found = np.abs(np.quantile(x, LEVELS, axis=0) - quantiles) / spread
            # A quantile's standard error, from the exact density by differences of exact quantiles
            noise = 3 * _quantile_errors(case, name, n) / spread
            shift = max(shift, found.max())
            excess = max(excess, ((found - noise) / LARGEST_QUANTILE_SHIFT).max())
    return {"shift": float(shift), "excess": float(excess)}


_SPREADS = {}


def _quantile_errors(case, name, n):
    """Return standard errors ``(3, k)`` of the quantiles of ``n`` independent draws."""
    if (case.name, name) not in _SPREADS:
        x = np.asarray(case.draw(400_000, np.random.default_rng(1))[name])
        x = x.reshape(len(x), -1)
        width = 0.01
        slope = (np.quantile(x, LEVELS + width, axis=0) - np.quantile(x, LEVELS - width, axis=0)) / (2 * width)
        _SPREADS[case.name, name] = slope * np.sqrt(LEVELS * (1 - LEVELS))[:, None]
    return _SPREADS[case.name, name] / np.sqrt(n)


def judge(case, figures):
    """Return ``wrong``, and the error of the evidence in standard errors."""
    difference = figures["log_evidence"] - case.log_evidence if figures["log_evidence"] is not None else np.nan
    if figures["log_evidence"] is None:
        return {"z": None, "wrong": int(figures["excess"] > 1)}
    if figures["se"]:
        z = difference / max(np.hypot(figures["se"], case.error), 1e-6)
        bad = abs(z) > LARGEST_Z
    else:
        z = difference
        bad = not abs(difference) <= (LARGEST_LAPLACE if figures["df"] is None else 1e-6)
    return {"z": float(z), "wrong": int(bool(bad) or figures["excess"] > 1 or case.must_flag)}


def table(rows):
    """Print Markdown with a line for each target and method."""
    print("| kind | target | method | runs | wrong | flagged | wrong and trusted | z | cover | error | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    grouped = defaultdict(list)
    for one in rows:
        grouped[one["kind"], one["case"], one["method"]].append(one)
    total = defaultdict(list)
    for (kind, name, method), group_ in grouped.items():
        print("| " + " | ".join([kind, name.replace("|", r"\|"), method, *line(group_)]) + " |")
        total[kind, method] += group_
    print("\n| kind | method | runs | wrong | flagged | wrong and trusted | z | cover | error | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (kind, method), group_ in total.items():
        print("| " + " | ".join([kind, method, *line(group_)]) + " |")


def line(rows):
    """Return the figures of several runs as text."""
    failed = [one for one in rows if "failed" in one]
    rows = [one for one in rows if "failed" not in one]
    if not rows:
        return [f"0 ({failed[0]['failed'][:60]})", *[""] * 7]
    trusted = [one for one in rows if one["trusted"]]
    both = sum(one["wrong"] and one["trusted"] for one in rows)
    zs = [abs(one["z"]) for one in trusted if one["z"] is not None and one["method"] not in FITS]
    covered = [
        abs(one["z"]) < (stats.t.ppf(0.975, one["df"]) if one["df"] else 1.96)
        for one in trusted
        if one["z"] is not None and one["method"] not in FITS
    ]
    return [
        str(len(rows)) + (f" (+{len(failed)} refused)" if failed else ""),
        str(sum(one["wrong"] for one in rows)),
        str(len(rows) - len(trusted)),
        f"**{both}**" if both else "0",
        f"{max(zs):.1f}" if zs else "",
        f"{100 * np.mean(covered):.0f} %" if covered else "",
        f"{max(one['shift'] for one in trusted):.2f}" if trusted else "",
        f"{np.mean([one['seconds'] for one in rows]):.1f}",
    ]


def main():
    """Run what is missing, or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    rows = read_rows(options.file)
    if options.print:
        return table(rows)
    done = keys_of(rows, "case", "method", "seed")
    for case in [*all_cases(), *model_cases()]:
        if (options.kinds and case.kind not in options.kinds) or (options.cases and case.name not in options.cases):
            continue
        target = pb.as_target(case.build())
        for method in options.methods:
            if method in ("smc prior", "smc unbiased") and not target.has_split:
                continue
            for seed in range(1, 1 + (options.seeds if method not in ("laplace", "ep") else 1)):
                if (case.name, method, seed) in done:
                    continue
                one = {"kind": case.kind, "case": case.name, "method": method, "seed": seed}
                try:
                    figures = run(case, target, method, seed)
                    one |= figures | judge(case, figures)
                except ModelError as error:
                    one |= {"failed": str(error)[:200]}
                rows.append(one)
                append_row(options.file, **one)
    return None if options.file else table(rows)


if __name__ == "__main__":
    main()

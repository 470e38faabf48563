"""Rows of ``reference_evidences.py`` as ``evidences.json`` of the package and tables of the docs, and as posteriordb's files.

The reference is the exact value where there is one, else the trusted value with the smallest standard error; all other
trusted values are cross-checks. A posterior with two that are more than four combined standard errors apart is provisional.

Run: python examples/benchmarks/reference_collect.py json --rows rows.jsonl failures.jsonl [--database …] [--eprv3 …]
     python examples/benchmarks/reference_collect.py json --update --rows rows.jsonl [--database …]   # entries of these rows
     python examples/benchmarks/reference_collect.py posteriordb --folder FOLDER
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from reference_failures import failures
from reference_models import problems
from reference_table import TABLE, page

from ppl_backends.datasets import data_digest, program_digest, validate_reference_evidences
from ppl_backends.datasets.evidence import LARGEST_Z, SCHEMA, combined_z

HERE = Path(__file__)
FILE = HERE.parents[2] / "ppl_backends" / "datasets" / "evidences.json"
CONVENTION = (
    "log_evidence is the natural logarithm of the integral of the density as the program writes it, over unconstrained "
    "coordinates with their Jacobians, with all constants that the program keeps. A Stan half-prior written by a bound "
    "counts one half, and sampling statements (~) count with their constants. log_prior_normalizer is the logarithm of the "
    "integral of the prior as written; log_evidence less log_prior_normalizer is the evidence of the normalised model."
)
DATA = {
    "binary regression": "ppl_backends.datasets.load_binary_regression({0!r}, scaling='raw')",
    "posteriordb": "posteriordb, data of {0}",
    "radial velocities": "EPRV3EvidenceChallenge/Inputs, data/{0}",
}


def kept(row):
    """One row as an estimate."""
    method = {
        "smc": "tempering SMC",
        "tempering": "parallel tempering",
        "bridge": "bridge sampling",
        "importance": "importance sampling by nets",
    }
    label = method.get(row["method"], {"exact": "closed form"}.get(row["method"], row["method"]))
    df = row["log_evidence_df"]
    return {
        "method": f"{label}, {row['options']}" if row["options"] else label,
        "by": row["by"],
        "software": row["software"],
        "version": row["version"],
        "log_evidence": row["log_evidence"],
        "log_evidence_se": row["log_evidence_se"],
        "log_evidence_df": None if df is None or df > 1e6 else round(df, 2),
        "seed": row["seed"],
        "command": row["command"],
        "seconds": row["seconds"],
        "z": None,
    }


def is_published(estimate):
    """Whether an estimate was read from a publication."""
    return estimate["method"].startswith("published")


def disputed(entry):
    """Published values that an entry contradicts, by two methods of ours and at least one other published value."""
    checks = entry["cross_checks"]
    agreeing = [one for one in checks if abs(one["z"]) <= LARGEST_Z]
    mine = [one for one in (entry["estimate"], *agreeing) if one and one["by"] == "ours"]
    others = [one for one in checks if one not in agreeing]
    enough = len(mine) >= 2 and any(map(is_published, agreeing))
    return others if enough and all(map(is_published, others)) else []


def without(entry, published):
    """An entry without published values that it contradicts, and verified if there were any."""
    checks = [one for one in entry["cross_checks"] if one not in published]
    return entry | {"cross_checks": checks, "status": "verified"} if published else entry


def failure(entry, published):
    """A published value that an entry contradicts, as a failure."""
    return {
        "name": entry["name"],
        "method": published["method"],
        "software": published["software"],
        "log_evidence": published["log_evidence"],
        "log_evidence_se": published["log_evidence_se"],
        "flagged": False,
        "why": f"{abs(published['z']):.0f} combined standard errors from two methods here and another team's value",
        "command": published["command"],
        "right": entry["log_evidence"],
    }


def status_of(problem, chosen, checks):
    """Status of an entry."""
    if problem.improper:
        return "improper"
    if any(abs(one["z"]) > LARGEST_Z for one in checks):
        return "provisional"
    if chosen["by"] == "exact":
        return "exact"
    whose = [one["by"] for one in (chosen, *checks)]
    return "verified" if whose.count("ours") >= 2 and "others" in whose else "provisional"


def entry(name, problem, rows):
    """One entry; None without a trusted value."""
    sound = [row for row in rows if row.get("trusted") and "log_evidence" in row]
    if not sound and not problem.improper:
        return None
    base = {
        "name": name,
        "family": problem.family,
        "dim": next((row["dim"] for row in rows if "dim" in row), problem.dim),
        "status": "improper",
        "log_evidence": None,
        "log_evidence_se": None,
        "log_evidence_df": None,
        "log_prior_normalizer": None,
        "program": f"posteriordb, program of {name}" if problem.family == "posteriordb" else problem.program(),
        "program_digest": program_digest(problem.program()),
        "data": DATA.get(problem.family, "with the program").format(name.partition("-")[0]),
        "data_digest": data_digest(problem.data()),
        "estimate": None,
        "cross_checks": [],
        "note": problem.note,
    }
    if not sound:
        return base
    estimates = sorted(
        map(kept, sound), key=lambda one: (one["by"] != "exact", is_published(one), one["log_evidence_se"])
    )
    chosen, checks = estimates[0], estimates[1:]
    for one in checks:
        one["z"] = round(combined_z(one, chosen), 3)
    integral = sound[0]["log_prior_normalizer"] if problem.prior_integral is None else problem.prior_integral
    if problem.family not in ("posteriordb", "normalising constant") and not problem.improper:
        integral = 0.0
    return base | {
        "status": status_of(problem, chosen, checks),
        "log_evidence": chosen["log_evidence"],
        "log_evidence_se": chosen["log_evidence_se"],
        "log_evidence_df": chosen["log_evidence_df"],
        "log_prior_normalizer": integral,
        "estimate": chosen,
        "cross_checks": checks,
    }


def collect(rows, wrong, database, eprv3, kept=None):
    """Write the file of the package; entries of a document that is ``kept`` stay where there are no rows."""
    found, order = [], {"exact": 0, "verified": 1, "provisional": 2, "improper": 3}
    old = {} if kept is None else {one["name"]: one for one in kept["entries"]}
    for name, problem in problems(database, eprv3).items():
        mine = [row for row in rows if row["name"] == name]
        one = entry(name, problem, mine) if mine or not old else old.pop(name, None)
        if one:
            integral = problem.prior_integral
            found.append(one if integral is None else one | {"log_prior_normalizer": integral})
        old.pop(name, None)
    found += old.values()
    contradicted = [(one, disputed(one)) for one in found]
    wrongly_published = [failure(one, check) for one, checks in contradicted for check in checks]
    found = [without(one, checks) for one, checks in contradicted]
    found.sort(key=lambda one: (one["family"], order[one["status"]], one["name"]))
    known = failures(wrong, {one["name"]: one for one in found}) if kept is None else kept["failures"]
    named = {(one["name"], one["method"]) for one in wrongly_published}
    document = {
        "schema": SCHEMA,
        "convention": CONVENTION,
        "entries": found,
        "failures": [one for one in known if (one["name"], one["method"]) not in named] + wrongly_published,
    }
    FILE.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    for fault in validate_reference_evidences(document):
        print("FAULT", fault)
    proper = [one for one in found if one["status"] in ("exact", "verified")]
    precise = sum(one["log_evidence_se"] <= 0.01 for one in proper)
    print(
        f"{len(found)} entries; {len(proper)} exact or verified, {precise} of them with a standard error of at most 0.01"
    )


def export(folder):
    """Write posteriordb's files: values beside a description, as for mean_value."""
    root = folder / "reference_posteriors" / "summary_statistics" / "log_evidence"
    document, count = json.loads(FILE.read_text()), 0
    for one in document["entries"]:
        if one["family"] != "posteriordb" or one["log_evidence"] is None:
            continue
        for kind, content in (("log_evidence", values(one)), ("info", about(one, document["convention"]))):
            (root / kind).mkdir(parents=True, exist_ok=True)
            suffix = ".info.json" if kind == "info" else ".json"
            (root / kind / f"{one['name']}{suffix}").write_text(
                json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            )
        count += 1
    print(f"{count} posteriors in {root}")


def values(one):
    """The values of one posterior, by name as posteriordb's other statistics are."""
    return {
        "names": ["log_evidence"],
        "log_evidence": [one["log_evidence"]],
        "se_log_evidence": [one["log_evidence_se"]],
        "df_log_evidence": [one["log_evidence_df"]],
        "log_prior_normalizer": [one["log_prior_normalizer"]],
    }


def about(one, convention):
    """What one posterior's values rest on."""
    return {
        "name": one["name"],
        "inference": {
            "method": one["estimate"]["method"],
            "method_arguments": {"command": one["estimate"]["command"], "seed": one["estimate"]["seed"]},
        },
        "diagnostics": {"status": one["status"], "cross_checks": one["cross_checks"]},
        "checks_made": {
            "two_methods_and_another_software_within_4_se": one["status"] in ("exact", "verified"),
            "se_below_0.01": one["log_evidence_se"] <= 0.01,
        },
        "comments": " ".join(part for part in (convention, one["note"]) if part),
        "versions": {one["estimate"]["software"]: one["estimate"]["version"]},
        "digests": {"program": one["program_digest"], "data": one["data_digest"]},
    }


def main():
    """Collect, export or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["json", "posteriordb"])
    parser.add_argument("--rows", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--database", type=Path)
    parser.add_argument("--eprv3", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("posteriordb"))
    options = parser.parse_args()
    if options.what == "json":
        rows, *wrong = ([json.loads(line) for line in file.read_text().splitlines()] for file in options.rows)
        kept = json.loads(FILE.read_text()) if options.update else None
        collect(rows, wrong[0] if wrong else [], options.database, options.eprv3, kept)
        TABLE.write_text(page(json.loads(FILE.read_text())))
    else:
        export(options.folder)


if __name__ == "__main__":
    main()

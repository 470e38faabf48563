"""Published evidences of the challenge on radial velocities (Nelson et al. 2020), as rows of ``reference_evidences.py``.

Teams gave log₁₀ evidences: their medians, and half of the distance between the 16 and 84 % points, or the rounding of the
last digit if that is larger, are taken as they stand. ``--results`` is the folder of that name of
EPRV3EvidenceChallenge/Inputs.

Run: python examples/benchmarks/reference_published.py --results FOLDER --file rows.jsonl
"""

import argparse
from pathlib import Path

import numpy as np
from rows import append_row, keys_of, read_rows

LN10 = np.log(10.0)
TEAMS = {
    "TeamPUC/multinest-nlive2000-eff0.3": ("MultiNest, 2,000 live points, efficiency 0.3", 1e-3),
    "TeamPUC/vb-importance-sampling-long": ("importance sampling from variational Bayes", 1e-3),
    "Nelson/MCMC_IS_1.5": ("importance sampling from MCMC, truncated at 1.5", 1e-9),
    "Diaz/perrakis": ("importance sampling from marginal densities (Perrakis et al.)", 1e-6),
    "Rajpaul/MCMC_NestedSampler": ("nested sampling", 1e-7),
}


def rows(results):
    """All rows."""
    for team, (label, digit) in TEAMS.items():
        for number in range(1, 7):
            file = results / team / f"evidences_000{number}b.txt"
            if not file.exists():
                continue
            found = {}
            for line in file.read_text().splitlines():
                parts = [float(part) for part in line.split(",")] if line.strip() else []
                if parts and (parts[1] not in found or parts[0] >= found[parts[1]][0]):
                    found[parts[1]] = parts  # the largest effort, as the challenge has it
            for count, parts in found.items():
                yield row(team, label, digit, number, int(count), parts)


def row(team, label, digit, number, count, parts):
    """One row."""
    _, _, _, median, _, low, high, *_ = parts
    return {
        "name": f"eprv3_000{number}-{count}_planets",
        "method": f"published: {label}",
        "dim": 2 + 6 * count,
        "by": "others",
        "software": team.partition("/")[0],
        "version": "2017",
        "seed": None,
        "log_prior_normalizer": 0.0,
        "seconds": 0.0,
        "command": f"read from results/{team}/evidences_000{number}b.txt of EPRV3EvidenceChallenge/Inputs",
        "log_evidence": median * LN10,
        "log_evidence_se": max(0.5 * (high - low), digit / np.sqrt(12)) * LN10,
        "log_evidence_df": None,
        "trusted": True,
        "options": "",
    }


def main():
    """Append what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--file", type=Path, required=True)
    options = parser.parse_args()
    done = keys_of(read_rows(options.file), "name", "method")
    for one in rows(options.results):
        if (one["name"], one["method"]) not in done:
            append_row(options.file, **one)


if __name__ == "__main__":
    main()

"""Print the tables of ``smc_against_peers.py`` from its file.

Errors are against ``references.json``. The ratio is mean squared error × mean CPU time of a sampler, divided by that of
ours from ``"auto"`` (above one, ours is better), with a 95 % bootstrap interval over seeds if both have three or more.
Below each table is its geometric mean over problems, with their number in brackets and without those where ours has no
error.

Run: python examples/benchmarks/peers_table.py peers.jsonl [--against auto]
"""

import argparse
import json
from pathlib import Path

import numpy as np

REFERENCES = json.loads(Path(__file__).with_name("references.json").read_text())
FEWEST = 3  # seeds for an interval
EXACT = 1e-12  # mean squared error below which a ratio to it says nothing
QUANTITIES = {"evidence": "log evidence", "means": "posterior means"}


def read(path):
    """Return rows by problem and sampler; those that failed apart."""
    tables, failed = {}, {}
    for row in map(json.loads, path.read_text().splitlines()):
        place = failed if "error" in row else tables
        place.setdefault((row["problem"], row["sampler"]), {})[row["seed"]] = row
    return tables, failed


def errors(problem, rows, quantity):
    """Return the squared errors ``(seeds,)``, or None where the sampler does not give the quantity."""
    reference = REFERENCES[problem]
    if quantity == "evidence":
        if "log_evidence" not in next(iter(rows.values())):
            return None
        return np.array([(row["log_evidence"] - reference["log_evidence"]) ** 2 for row in rows.values()])
    if "mean" not in next(iter(rows.values())):
        return None
    mean, sd = np.array(reference["mean"]), np.array(reference["sd"])
    return np.array([np.mean(((np.array(row["mean"]) - mean) / sd) ** 2) for row in rows.values()])


def ratio(theirs, ours, rng, resamples=4000):
    """Return (MSE × time) theirs over ours with its bootstrap interval; each is (squared errors, seconds)."""

    def product(pair, size):
        index = rng.integers(0, len(pair[0]), size=(size, len(pair[0])))
        return pair[0][index].mean(axis=1) * pair[1][index].mean(axis=1)

    whole = np.mean(theirs[0]) * np.mean(theirs[1]) / (np.mean(ours[0]) * np.mean(ours[1]))
    return whole, *np.quantile(product(theirs, resamples) / product(ours, resamples), [0.025, 0.975])


def main():
    """Print a Markdown table for each quantity."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--against", default="auto")
    arguments = parser.parse_args()
    tables, failed = read(arguments.file)
    problems = [name for name in REFERENCES if any(key[0] == name for key in tables)]
    samplers = sorted({key[1] for key in tables}, key=lambda s: (s not in ("auto", "prior"), s))
    for quantity, title in QUANTITIES.items():
        print(f"\n{title}\n\n| problem | sampler | seeds | CPU s | RMSE | bias | error² × s, theirs / ours [95 %] |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        ratios = {}
        for problem in problems:
            ours = tables.get((problem, arguments.against))
            for sampler in samplers:
                rows = tables.get((problem, sampler))
                if not rows:
                    if (problem, sampler) in failed:
                        print(f"| {problem} | {sampler} | failed | | | | |")
                    continue
                squared = errors(problem, rows, quantity)
                if squared is None:
                    continue
                seconds = np.array([row["seconds"] for row in rows.values()])
                bias = ""
                if quantity == "evidence":
                    evidences = [row["log_evidence"] for row in rows.values()]
                    bias = f"{np.mean(evidences) - REFERENCES[problem]['log_evidence']:+.3f}"
                line = f"| {problem} | {sampler} | {len(rows)} | {seconds.mean():.2f} |"
                line += f" {squared.mean() ** 0.5:.2g} | {bias} |"
                if ours and sampler != arguments.against:
                    own = errors(problem, ours, quantity)
                    if own.mean() < EXACT:
                        print(line, "ours is exact |")
                        continue
                    own_seconds = np.array([row["seconds"] for row in ours.values()])
                    value, low, high = ratio((squared, seconds), (own, own_seconds), np.random.default_rng(0))
                    interval = f" [{low:.2g}, {high:.2g}]" if min(len(own), len(squared)) >= FEWEST else ""
                    line += f" {value:.2g}{interval} |"
                    ratios.setdefault(sampler, []).append(value)
                else:
                    line += " |"
                print(line)
        print(f"\nGeometric means of the ratios, {title}:", end=" ")
        means = {name: f"{np.exp(np.mean(np.log(values))):.3g} ({len(values)})" for name, values in ratios.items()}
        print("; ".join(f"{name} {mean}" for name, mean in means.items()))


if __name__ == "__main__":
    main()

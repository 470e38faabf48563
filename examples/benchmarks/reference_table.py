"""The tables of ``docs/reference_evidences.md``, from ``evidences.json``.

Run: python examples/benchmarks/reference_table.py
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "ppl_backends" / "datasets" / "evidences.json"
TABLE = ROOT / "docs" / "reference_evidences_table.inc"


def figure(value):
    """A number of the table."""
    return "" if value is None else f"{value:.4f}".replace("-", "−")


def table(document):
    """Markdown, a table for each family."""
    lines = []
    for family in dict.fromkeys(one["family"] for one in document["entries"]):
        lines += [f"### {family[0].upper()}{family[1:]}", ""]
        lines += ["| name | dim | log evidence | se | log prior normaliser | checks, largest abs z | status |"]
        lines += ["| --- " * 7 + "|"]
        for one in document["entries"]:
            if one["family"] != family:
                continue
            worst = max((abs(check["z"]) for check in one["cross_checks"]), default=None)
            se = one["log_evidence_se"]
            size = "" if se is None else "0" if se == 0 else f"{se:.1g}"
            checks = f"{len(one['cross_checks'])}" + ("" if worst is None else f", {worst:.1f}")
            cells = [
                f"`{one['name']}`",
                one["dim"],
                figure(one["log_evidence"]),
                size,
                figure(one["log_prior_normalizer"]),
            ]
            lines.append(f"| {' | '.join(map(str, [*cells, checks, one['status']]))} |")
        lines.append("")
    return "\n".join(lines)


def signed(value, digits=3):
    """A number with a minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def failures(document):
    """Markdown, a row for each case."""
    lines = ["| posterior | method | software | log evidence | right | warned | why |", "| --- " * 7 + "|"]
    for one in document["failures"]:
        value = f"{signed(one['log_evidence'])} ± {one['log_evidence_se']:.3f}"
        cells = [f"`{one['name']}`", one["method"], one["software"], value, signed(one["right"])]
        lines.append(f"| {' | '.join([*cells, 'yes' if one['flagged'] else 'no', one['why']])} |")
    return "\n".join(lines)


def page(document):
    """All tables."""
    return f"## Values\n\n{table(document)}\n## Where common methods are wrong\n\n{failures(document)}\n"


if __name__ == "__main__":
    TABLE.write_text(page(json.loads(FILE.read_text())))

"""Carry reference posteriors over: ``python make_references.py FOLDER``.

FOLDER holds, for each posterior of posteriordb, ``NAME.data.json.zip`` and ``NAME.draws.json.zip`` (a list of chains
``{parameter: [draws]}``). Written here are the data, as they are, and ``references.json``: for every parameter the mean
and standard deviation of the reference draws with their Monte Carlo standard errors, not the draws.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np

HERE = Path(__file__).parent


def read_zip(path: Path) -> Any:
    """Return the one JSON file in a zip."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(archive.namelist()[0]))


def write_zip(path: Path, content: Any) -> None:
    """One JSON file in a zip that is the same to the bit whenever it is written."""
    entry = zipfile.ZipInfo(path.name.removesuffix(".zip"), date_time=(1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(entry, json.dumps(content, separators=(",", ":")), compresslevel=9)


def summarize(chains: list[dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Return the mean, standard deviation and their Monte Carlo standard errors by parameter."""
    summary = {}
    for name in chains[0]:
        draws = np.array([chain[name] for chain in chains])
        sd = draws.std(ddof=1)
        figures = {
            "mean": draws.mean(),
            "sd": sd,
            "mcse_mean": az.mcse(draws, method="mean"),
            "mcse_sd": az.mcse((draws - draws.mean()) ** 2, method="mean") / (2 * sd),
        }
        summary[name] = {key: float(f"{np.asarray(value).item():.8g}") for key, value in figures.items()}
    return summary


def main(folder: Path) -> None:
    """Write the data and the references of every program beside this file."""
    references = {}
    for program in sorted(HERE.glob("*.stan")):
        name = program.stem
        write_zip(HERE / f"{name}.data.json.zip", read_zip(folder / f"{name}.data.json.zip"))
        references[name] = summarize(read_zip(folder / f"{name}.draws.json.zip"))
    (HERE / "references.json").write_text(json.dumps(references, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

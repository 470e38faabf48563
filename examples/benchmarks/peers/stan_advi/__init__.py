"""Stan's ADVI on the problems of the comparison: the programs, their data, and a driver built with Stan's own services.

CmdStan's ``variational`` calls the same functions with the same defaults.
"""

import csv
import json
import subprocess
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

import numpy as np

from peers import problems

HERE = Path(__file__).parent
REGRESSIONS = {"Pima": ("pima", False, None), "German": ("german_credit", False, 1.0), "Sonar-5": ("sonar", True, None)}
PROGRAMS = {"EightSchools": "schools", "Hierarchical": "hierarchical", "Poisson": "poisson"}


def program_and_data(name, poisson):
    """Return the program's name and its data; ``poisson`` are those of the problem of that name."""
    if name in REGRESSIONS:
        dataset, half_scale, prior_sd = REGRESSIONS[name]
        X, y = problems.regression_data(dataset, half_scale)
        sd = problems.wide_prior(X.shape[1]) if prior_sd is None else np.full(X.shape[1], prior_sd)
        data = {"N": len(y), "P": X.shape[1], "X": X, "y": y.astype(int), "sd": sd}
        return "logistic", data
    if name == "EightSchools":
        return "schools", {"J": 8, "y": problems.EFFECTS, "sigma": problems.EFFECT_ERRORS}
    if name == "Hierarchical":
        X, group, y, groups = problems.hierarchical_data()
        sizes = {"N": len(y), "J": groups, "P": X.shape[1]}
        return "hierarchical", sizes | {"group": group + 1, "X": X, "y": y.astype(int)}
    if name == "Poisson":
        return "poisson", poisson
    raise ValueError(f"no Stan program for {name}")


def _compile(source, result, *flags):
    from ppl_backends.targets.stan.build import COMPILER_FLAGS
    from ppl_backends.targets.stan.toolchain import find_compiler, find_toolchain

    includes = [f"-I{include}" for include in find_toolchain().includes]
    command = [*find_compiler().command, *COMPILER_FLAGS, *includes, *flags, source, "-o", result]
    subprocess.run(command, check=True)
    return result


def compile_driver():
    """Return the part that no program has to be known for, which is kept on disk, as CmdStan keeps its own."""
    kept = Path(gettempdir()) / f"stan_advi-{(HERE / 'advi.cpp').stat().st_mtime_ns}.o"
    if not kept.exists():
        _compile(HERE / "advi.cpp", kept.with_suffix(".new"), "-c").rename(kept)
    return kept


@cache
def build(program):
    """Return the driver linked with a program."""
    from ppl_backends.targets.stan.toolchain import find_toolchain

    folder, tools = Path(mkdtemp()), find_toolchain()
    subprocess.run([tools.stanc, "--O1", f"--o={folder / 'model.cpp'}", HERE / f"{program}.stan"], check=True)
    _compile(folder / "model.cpp", folder / "model.o", "-c")
    linked = [compile_driver(), *tools.archives, tools.tbb, f"-Wl,-rpath,{tools.tbb.parent}"]
    return _compile(folder / "model.o", folder / "advi", *linked)


def fit(name, family, seed, draws, poisson):
    """Return draws of the free variables, name → ``(draws, *shape)``; the driver is kept for further fits of the program."""
    program, data = program_and_data(name, poisson)
    driver = build(program)
    plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in data.items()}
    files = driver.parent / "data.json", driver.parent / "draws.csv"
    files[0].write_text(json.dumps(plain))
    command = [driver, files[0], family, str(seed), str(draws), files[1]]
    subprocess.run(command, check=True, capture_output=True)
    return read(files[1])


def read(path):
    """Return columns ``beta.1.2`` to arrays, after the first row, which is the mean."""
    with path.open() as file:
        header, *rows = [row for row in csv.reader(line for line in file if not line.startswith("#"))]
    table, shapes, columns = np.array(rows[1:], dtype=float), {}, {}
    for column, label in enumerate(header):
        name, *index = label.split(".")
        columns.setdefault(name, []).append(column)
        shapes[name] = tuple(int(i) for i in index)  # of the last element
    return {
        name: table[:, where].reshape(-1, *shapes[name], order="F")
        for name, where in columns.items()
        if not name.endswith("__")
    }

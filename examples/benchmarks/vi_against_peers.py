"""Gaussian variational inference against ADVI of PyMC and Stan, and Pathfinder and DADVI of pymc-extras: errors and times.

    python examples/benchmarks/vi_against_peers.py reference Poisson
    python examples/benchmarks/vi_against_peers.py run Pima German Sonar-5 EightSchools Hierarchical Poisson
    python examples/benchmarks/vi_against_peers.py print

Every fit has its defaults and its own process, in which it runs twice, with two seeds. The first run includes compiling
the model but no imports, and the second run uses whatever the method keeps of the first (``--once`` leaves the second
out). Pathfinder and DADVI have two versions: the default, compiled by Numba, and PyTensor's ``FAST_COMPILE``. Numba
keeps files on disk; set ``PYTENSOR_FLAGS=base_compiledir=FOLDER`` to start without them. The means and standard
deviations of 10,000 draws from the first approximation are compared with those of long NUTS runs, by the root mean
square, over quantities, of the error of the mean in posterior standard deviations and of the log of the ratio of
standard deviations. Processor time is that of the process and its children. Run the script where pymc-extras is
installed, and for Stan with a toolchain that the package finds. References are those of ``references.json``, and of
nutpie for the problem that is defined here.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
from peers.problems import PROBLEMS
from rows import append_row, keys_of, read_rows

REFERENCES = Path(__file__).with_name("references_vi.json")
SHARED_REFERENCES = REFERENCES.with_name("references.json")
AREAS, GROUPS = 32, 3
DRAWS = 10_000


def counts():
    """Return area, group, exposure and count of 32 areas × 3 groups."""
    rng = np.random.default_rng(2)
    area, group = (index.ravel() for index in np.indices((AREAS, GROUPS)))
    exposure = rng.integers(20, 200, size=area.size)
    y = rng.poisson(exposure * np.exp(-1.0 + np.array([0.0, 0.4, -0.7])[group] + 0.5 * rng.normal(size=AREAS)[area]))
    return area, group, exposure, y


def poisson():
    """Return counts with area effects, non-centred (d = 36): the model, and its quantities."""
    import pymc as pm

    area, group, exposure, y = counts()
    with pm.Model() as model:
        level, effect = pm.Normal("level", 0, 2.5), pm.Normal("effect", 0, 2.5, shape=GROUPS - 1)
        tau, z = pm.HalfNormal("tau", 1), pm.Normal("z", 0, 1, shape=AREAS)
        design = np.eye(GROUPS)[group][:, 1:]
        pm.Poisson("y", exposure * pm.math.exp(level + design @ effect + tau * z[area]), observed=y)

    def quantities(v):
        areas = v["level"][:, None] + v["tau"][:, None] * v["z"]
        return np.column_stack([v["level"], v["effect"], np.log(v["tau"]), areas])

    return model, quantities


def posterior(name):
    """Return the model, and what turns draws into the quantities that are compared."""
    from models import MODELS

    return poisson() if name == "Poisson" else (MODELS[name](), PROBLEMS[name]().quantities)


def references():
    """Return means and standard deviations of NUTS for every problem."""
    return {
        key: value for file in (SHARED_REFERENCES, REFERENCES) for key, value in json.loads(file.read_text()).items()
    }


def flat(idata, model):
    """Return free variables as ``(draws, *shape)``."""
    data = idata["posterior"]
    return {v.name: data[v.name].values.reshape(-1, *data[v.name].shape[2:]) for v in model.free_RVs if v.name in data}


def fit_package(model, seed, **options):
    """Return the package's own."""
    import ppl_backends as pb

    return pb.fit_vi(model, random_seed=seed, progressbar=False, **options).to_inference_data(DRAWS, random_seed=seed)


@cache
def target_of(model):
    """Return the model as a target, which keeps what it has compiled."""
    import ppl_backends as pb

    return pb.as_target(model)


def fit_advi(model, seed, method="advi"):
    """Return PyMC's, with its 10,000 iterations."""
    import pymc as pm

    with model:
        return pm.fit(method=method, random_seed=seed, progressbar=False).sample(DRAWS, random_seed=seed)


def fit_extras(model, seed, method, compiled=False):
    """Return the fits of pymc-extras: as they come, or in ``FAST_COMPILE`` mode and, Pathfinder, in this process."""
    import pymc_extras as pmx

    options = {"num_draws" if method == "pathfinder" else "n_draws": DRAWS, "progressbar": False}
    if not compiled:
        options["compile_kwargs"] = {"mode": "FAST_COMPILE"}
        if method == "pathfinder":
            options["parallel"] = False
    with model:
        return pmx.fit(method=method, random_seed=seed, **options)


METHODS = {
    "fit_vi": fit_package,
    "fit_vi of a target": lambda model, seed: fit_package(target_of(model), seed),
    "fit_vi, mean field": lambda model, seed: fit_package(model, seed, family="diagonal"),
    "PyMC ADVI": fit_advi,
    "PyMC full-rank ADVI": lambda model, seed: fit_advi(model, seed, "fullrank_advi"),
    "Pathfinder": lambda model, seed: fit_extras(model, seed, "pathfinder"),
    "DADVI": lambda model, seed: fit_extras(model, seed, "dadvi"),
    "Pathfinder, default": lambda model, seed: fit_extras(model, seed, "pathfinder", compiled=True),
    "DADVI, default": lambda model, seed: fit_extras(model, seed, "dadvi", compiled=True),
}
STAN = {"Stan ADVI": "meanfield", "Stan full-rank ADVI": "fullrank"}


def fit(name, method, model, seed):
    """Return draws of the free variables by a method, name → ``(draws, *shape)``."""
    if method not in STAN:
        return flat(METHODS[method](model, seed), model)
    from peers import stan_advi

    area, group, exposure, y = counts()
    sizes = {"N": len(y), "A": AREAS, "G": GROUPS - 1}
    data = sizes | {"area": area + 1, "X": np.eye(GROUPS)[group][:, 1:], "exposure": exposure, "y": y}
    return stan_advi.fit(name, STAN[method], seed + 1, DRAWS, data)


def warm_up(method):
    """Import what the method needs, and let it compile what does not depend on the model."""
    import arviz  # noqa: F401
    import pymc as pm

    if method.startswith("fit_vi"):
        import jax  # noqa: F401

        import ppl_backends.approximations.variational
        import ppl_backends.targets.pymc.target  # noqa: F401
    elif method.startswith(("Pathfinder", "DADVI")):
        import pymc_extras  # noqa: F401
    elif method in STAN:
        from peers import stan_advi

        stan_advi.compile_driver()
    with pm.Model() as model:
        pm.Normal("x")
    model.logp_dlogp_function()


def processor_time():
    """Return seconds of this process and of its compilers."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def one(name, method, seed, once=False):
    """Make a fit and print its errors and times, and the times of another, as JSON on the last line."""
    model, quantities = posterior(name)
    warm_up(method)
    row = {"problem": name, "method": method, "seed": seed}
    for repeat, prefix in enumerate(("",) if once else ("", "again_")):
        wall, processor = time.perf_counter(), processor_time()
        draws = quantities(fit(name, method, model, 100 * repeat + seed))
        row |= {f"{prefix}wall": time.perf_counter() - wall, f"{prefix}processor": processor_time() - processor}
        if not repeat:
            known = references()[name]
            mean, sd = np.array(known["mean"]), np.array(known["sd"])
            row["mean"] = float(np.sqrt(np.mean(((draws.mean(axis=0) - mean) / sd) ** 2)))
            row["sd"] = float(np.sqrt(np.mean(np.log(draws.std(axis=0) / sd) ** 2)))
    print(json.dumps(row))


def reference(name, draws=5000):
    """Write means and standard deviations of four long chains of nutpie."""
    import nutpie

    model, quantities = posterior(name)
    compiled = nutpie.compile_pymc_model(model)
    idata = nutpie.sample(compiled, draws=draws, tune=1000, chains=4, cores=1, seed=77, progress_bar=False)
    found = quantities(flat(idata, model))
    known = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    known[name] = {"mean": found.mean(axis=0).tolist(), "sd": found.std(axis=0).tolist(), "draws": 4 * draws}
    REFERENCES.write_text(json.dumps(known, indent=1) + "\n")


def run(names, seeds, out, methods, limit, once):
    """Run every fit in its own process, with methods in turn; recorded fits are left out."""
    done = keys_of(read_rows(out), "problem", "method", "seed")
    for seed in range(seeds):
        for name in names:
            for method in methods or (*METHODS, *STAN):
                if (name, method, seed) in done:
                    continue
                command = [sys.executable, __file__, "one", name, "--methods", method, "--seeds", str(seed)]
                command += ["--once"] if once else []
                row = {"problem": name, "method": method, "seed": seed}
                try:
                    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit)
                    row = json.loads(found.stdout.strip().splitlines()[-1])
                except subprocess.TimeoutExpired:
                    row["failed"] = f"more than {limit} s"
                except subprocess.CalledProcessError as error:
                    row["failed"] = error.stderr[-300:]
                append_row(out, **row)


def show(out):
    """Print Markdown: means over seeds for every problem, and geometric means relative to the first method."""
    rows = [row for row in read_rows(out) if "failed" not in row]
    names = list(dict.fromkeys(row["problem"] for row in rows))
    keys = ("mean", "sd", "processor", "wall", "again_processor", "again_wall")
    table = {}
    for name in names:
        for method in (*METHODS, *STAN):
            mine = [
                [row.get(key, np.nan) for key in keys]
                for row in rows
                if (row["problem"], row["method"]) == (name, method)
            ]
            if mine:
                table[name, method] = np.mean(mine, axis=0)
                figures = " | ".join(f"{value:.3g}" for value in table[name, method])
                print(f"| {name} | {method} | {len(mine)} | {figures} |")
    for method in (*METHODS, *STAN):
        both = [name for name in names if (name, method) in table and (name, "fit_vi") in table]
        if both:
            ratios = np.exp(np.mean([np.log(table[name, method] / table[name, "fit_vi"]) for name in both], axis=0))
            print(
                f"| geometric mean over {len(both)} | {method} | | {' | '.join(f'{value:.3g}' for value in ratios)} |"
            )


def main():
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["run", "one", "reference", "print"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--once", action="store_true", help="no second fit")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a fit")
    parser.add_argument("--out", type=Path, default=Path("vi_against_peers.jsonl"))
    chosen = parser.parse_args()
    if chosen.task == "one":
        one(chosen.names[0], chosen.methods[0], chosen.seeds, chosen.once)
        return
    for name in chosen.names if chosen.task == "reference" else ():
        reference(name)
    if chosen.task == "run":
        run(chosen.names, chosen.seeds, chosen.out, chosen.methods, chosen.limit, chosen.once)
    show(chosen.out)


if __name__ == "__main__":
    main()

"""Gaussian variational inference against PyMC's ADVI and the Pathfinder and DADVI of pymc-extras: errors and times.

    python examples/benchmarks/vi_against_peers.py reference Poisson
    python examples/benchmarks/vi_against_peers.py run Pima German Sonar-5 EightSchools Hierarchical Poisson
    python examples/benchmarks/vi_against_peers.py print

Every fit has its defaults, but that Pathfinder and DADVI are not compiled, and a process of its own, in which it is run
twice, with two seeds: the first time with compiling the model but no imports, the second time with whatever the method
keeps of the first. What is compared are the means and standard deviations of 10,000 draws from the first approximation
with those of long NUTS runs: the root mean square, over quantities, of the error of the mean in posterior standard
deviations and of the log of the ratio of standard deviations. Processor time is that of the process and its
children. Run it where pymc-extras is installed;
references are those of ``references.json``, and of nutpie for the problem that is defined here.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from peers.problems import PROBLEMS

REFERENCES = Path(__file__).with_name("references_vi.json")
SHARED_REFERENCES = REFERENCES.with_name("references.json")
AREAS, GROUPS = 32, 3
DRAWS = 10_000


def poisson():
    """Counts of 32 areas × 3 groups with area effects, non-centred (d = 36): the model, and its quantities."""
    import pymc as pm

    rng = np.random.default_rng(2)
    area, group = (index.ravel() for index in np.indices((AREAS, GROUPS)))
    exposure = rng.integers(20, 200, size=area.size)
    y = rng.poisson(exposure * np.exp(-1.0 + np.array([0.0, 0.4, -0.7])[group] + 0.5 * rng.normal(size=AREAS)[area]))
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
    """The model, and what turns draws into the quantities that are compared."""
    from models import MODELS

    return poisson() if name == "Poisson" else (MODELS[name](), PROBLEMS[name]().quantities)


def references():
    """Means and standard deviations of NUTS for every problem."""
    return {
        key: value for file in (SHARED_REFERENCES, REFERENCES) for key, value in json.loads(file.read_text()).items()
    }


def flat(idata, model):
    """Free variables as ``(draws, *shape)``."""
    data = idata["posterior"]
    return {v.name: data[v.name].values.reshape(-1, *data[v.name].shape[2:]) for v in model.free_RVs if v.name in data}


def fit_package(model, seed, **options):
    """The package's own."""
    import ppl_backends as pb

    return pb.fit_vi(model, random_seed=seed, progressbar=False, **options).to_inference_data(DRAWS, random_seed=seed)


def fit_advi(model, seed, method="advi"):
    """PyMC's, with its 10,000 iterations."""
    import pymc as pm

    with model:
        return pm.fit(method=method, random_seed=seed, progressbar=False).sample(DRAWS, random_seed=seed)


def fit_extras(model, seed, method):
    """The fits of pymc-extras, in this process and without compiling: that took many times longer than the fits."""
    import pymc_extras as pmx

    cheap = {"compile_kwargs": {"mode": "FAST_COMPILE"}, "progressbar": False}
    options = (
        {"num_draws": DRAWS, "parallel": False, **cheap} if method == "pathfinder" else {"n_draws": DRAWS, **cheap}
    )
    with model:
        return pmx.fit(method=method, random_seed=seed, **options)


METHODS = {
    "fit_vi": fit_package,
    "fit_vi, mean field": lambda model, seed: fit_package(model, seed, family="mean_field"),
    "PyMC ADVI": fit_advi,
    "PyMC full-rank ADVI": lambda model, seed: fit_advi(model, seed, "fullrank_advi"),
    "Pathfinder": lambda model, seed: fit_extras(model, seed, "pathfinder"),
    "DADVI": lambda model, seed: fit_extras(model, seed, "dadvi"),
}


def warm_up(method):
    """Import what the method needs, and let it compile what does not depend on the model."""
    import pymc as pm

    if method.startswith("fit_vi"):
        import jax  # noqa: F401

        import ppl_backends.approximations.variational
        import ppl_backends.targets.pymc.target  # noqa: F401
    elif method in ("Pathfinder", "DADVI"):
        import pymc_extras  # noqa: F401
    with pm.Model() as model:
        pm.Normal("x")
    model.logp_dlogp_function()


def processor_time():
    """Seconds of this process and of its compilers."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def one(name, method, seed):
    """A fit, its errors and times, and the times of another, as JSON on the last line."""
    model, quantities = posterior(name)
    warm_up(method)
    row = {"problem": name, "method": method, "seed": seed}
    for repeat, prefix in enumerate(("", "again_")):
        wall, processor = time.perf_counter(), processor_time()
        draws = quantities(flat(METHODS[method](model, 100 * repeat + seed), model))
        row |= {f"{prefix}wall": time.perf_counter() - wall, f"{prefix}processor": processor_time() - processor}
        if not repeat:
            known = references()[name]
            mean, sd = np.array(known["mean"]), np.array(known["sd"])
            row["mean"] = float(np.sqrt(np.mean(((draws.mean(axis=0) - mean) / sd) ** 2)))
            row["sd"] = float(np.sqrt(np.mean(np.log(draws.std(axis=0) / sd) ** 2)))
    print(json.dumps(row))


def reference(name, draws=5000):
    """Means and standard deviations of four long chains of nutpie."""
    import nutpie

    model, quantities = posterior(name)
    compiled = nutpie.compile_pymc_model(model)
    idata = nutpie.sample(compiled, draws=draws, tune=1000, chains=4, cores=1, seed=77, progress_bar=False)
    found = quantities(flat(idata, model))
    known = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    known[name] = {"mean": found.mean(axis=0).tolist(), "sd": found.std(axis=0).tolist(), "draws": 4 * draws}
    REFERENCES.write_text(json.dumps(known, indent=1) + "\n")


def run(names, seeds, out, methods, limit):
    """Every fit in a process of its own; those that are recorded are left out."""
    done = {(row["problem"], row["method"], row["seed"]) for row in lines(out)}
    for name in names:
        for seed in range(seeds):
            for method in methods or METHODS:
                if (name, method, seed) in done:
                    continue
                command = [sys.executable, __file__, "one", name, "--methods", method, "--seeds", str(seed)]
                row = {"problem": name, "method": method, "seed": seed}
                try:
                    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit)
                    row = json.loads(found.stdout.strip().splitlines()[-1])
                except subprocess.TimeoutExpired:
                    row["failed"] = f"more than {limit} s"
                except subprocess.CalledProcessError as error:
                    row["failed"] = error.stderr[-300:]
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def lines(out):
    """What is recorded."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def show(out):
    """Markdown: means over seeds for every problem, and geometric means over problems relative to the first method."""
    rows = [row for row in lines(out) if "failed" not in row]
    names = list(dict.fromkeys(row["problem"] for row in rows))
    keys = ("mean", "sd", "processor", "again_processor")
    table = {}
    for name in names:
        for method in METHODS:
            mine = [[row[key] for key in keys] for row in rows if (row["problem"], row["method"]) == (name, method)]
            if mine:
                table[name, method] = np.mean(mine, axis=0)
                figures = " | ".join(f"{value:.3g}" for value in table[name, method])
                print(f"| {name} | {method} | {len(mine)} | {figures} |")
    for method in METHODS:
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
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a fit")
    parser.add_argument("--out", type=Path, default=Path("vi_against_peers.jsonl"))
    chosen = parser.parse_args()
    if chosen.task == "one":
        one(chosen.names[0], chosen.methods[0], chosen.seeds)
        return
    for name in chosen.names if chosen.task == "reference" else ():
        reference(name)
    if chosen.task == "run":
        run(chosen.names, chosen.seeds, chosen.out, chosen.methods, chosen.limit)
    show(chosen.out)


if __name__ == "__main__":
    main()

"""Gaussian variational inference against PyMC's ADVI and the Pathfinder and DADVI of pymc-extras: errors and times.

    python examples/benchmarks/vi_against_peers.py reference Pima EightSchools
    python examples/benchmarks/vi_against_peers.py run Pima EightSchools --seeds 2
    python examples/benchmarks/vi_against_peers.py print

Every fit has its defaults and a process of its own, and its clock covers compiling the model but no imports. What is
compared are the means and standard deviations of 10,000 draws from each approximation with those of long NUTS runs: the
root mean square, over quantities, of the error of the mean in posterior standard deviations and of the log of the ratio
of standard deviations. Processor time is that of the process and its compilers. Run it where pymc-extras is installed.
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
DRAWS = 10_000


def posterior(name):
    """The model, and what turns draws into the quantities that are compared."""
    from models import MODELS

    return MODELS[name](), PROBLEMS[name]().quantities


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
    """The fits of pymc-extras."""
    import pymc_extras as pmx

    options = {"num_draws": DRAWS} if method == "pathfinder" else {"n_draws": DRAWS}
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
    """A fit, its errors and times, as JSON on the last line."""
    model, quantities = posterior(name)
    warm_up(method)
    wall, processor = time.perf_counter(), processor_time()
    draws = quantities(flat(METHODS[method](model, seed), model))
    wall, processor = time.perf_counter() - wall, processor_time() - processor
    reference = json.loads(REFERENCES.read_text())[name]
    mean, sd = np.array(reference["mean"]), np.array(reference["sd"])
    error = float(np.sqrt(np.mean(((draws.mean(axis=0) - mean) / sd) ** 2)))
    log_ratio = float(np.sqrt(np.mean(np.log(draws.std(axis=0) / sd) ** 2)))
    row = {"problem": name, "method": method, "seed": seed, "mean": error, "sd": log_ratio, "wall": wall}
    print(json.dumps({**row, "processor": processor}))


def reference(name, draws=5000):
    """Means and standard deviations of four long chains of NUTS."""
    import pymc as pm

    model, quantities = posterior(name)
    with model:
        idata = pm.sample(draws, tune=1500, chains=4, cores=1, target_accept=0.95, random_seed=1, progressbar=False)
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
    keys = ("mean", "sd", "wall", "processor")
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
    parser.add_argument("--seeds", type=int, default=2)
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

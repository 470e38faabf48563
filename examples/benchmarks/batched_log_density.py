"""Log density and gradient of a batch of points, against a Python loop over PyMC's own compiled function.

Logistic regression with normal priors. Every figure is a median over fresh processes, because some processes never get
a second thread. Within a process the competitors run in turn. Processor time counts all threads, and is reliable on a
busy machine too. The loop is PyTensor's single-point function in C mode, its fastest. Compile times are those of the
first call: cold with an empty compile cache of PyTensor, warm with the cache of the cold process.

Run: python examples/benchmarks/batched_log_density.py [--processes 5] [--cores 2] [--skip-cold]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

PROBLEMS = {"768x8": (768, 8, 1000), "10000x50": (10_000, 50, 1000)}
BATCHES = (1, 10)


def logistic_regression(n: int, d: int):
    """Return a model with simulated data."""
    import pymc as pm

    rng = np.random.default_rng(1)
    predictors = rng.normal(size=(n, d))
    outcome = (rng.random(n) < 1 / (1 + np.exp(-predictors @ rng.normal(size=d) / np.sqrt(d)))).astype(int)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=d)
        pm.Bernoulli("y", logit_p=pm.math.dot(predictors, beta), observed=outcome)
    return model


def loop_function(model):
    """Return PyMC's log density and gradient of one point, in C mode, applied to row after row."""
    from pytensor.compile.mode import Mode

    single = model.logp_dlogp_function(ravel_inputs=True, mode=Mode(linker="cvm", optimizer="fast_run"))
    single.set_extra_values({})
    single._pytensor_function.trust_input = True

    def loop(x):
        values, gradients = np.empty(len(x)), np.empty_like(x)
        for i, row in enumerate(x):
            values[i], gradients[i] = single._pytensor_function(row)
        return values, gradients

    return loop


def seconds(function, *arguments) -> tuple[float, float]:
    """Return the wall time and processor time, of all threads, of one call."""
    start = time.perf_counter(), time.process_time()
    function(*arguments)
    return time.perf_counter() - start[0], time.process_time() - start[1]


def measure(problem: str, repeats: int, cores: int) -> dict[str, float]:
    """Return the median milliseconds a call in this process, and seconds of each first call."""
    from ppl_backends.targets.pymc import PyMCTarget

    n, d, points = PROBLEMS[problem]
    model = logistic_regression(n, d)
    rng = np.random.default_rng(2)
    x = 0.3 * rng.normal(size=(points, d))
    competitors = {"loop": loop_function(model)}
    for backend in ("jax", "numba"):
        target = PyMCTarget(model, backend=backend, cores=cores)
        competitors[backend] = target.log_density_and_gradient
    expected = competitors["loop"](x)
    for competitor in competitors.values():
        for got, want in zip(competitor(x), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)

    times: dict[str, list[tuple[float, float]]] = {name: [] for name in competitors}
    for _ in range(repeats):
        for name, function in competitors.items():
            times[name].append(seconds(function, x))
    result = {}
    for name, taken in times.items():
        wall, processor = 1e3 * np.median(taken, axis=0)
        result[name], result[f"{name}, processor time"] = float(wall), float(processor)
    for batch in BATCHES:
        for name, function in competitors.items():
            function(x[:batch])
            taken = [seconds(function, x[:batch]) for _ in range(200)]
            result[f"{name}, {batch} points"] = 1e3 * float(np.median(taken, axis=0)[0])
    return result


def first_call(problem: str, backend: str) -> dict[str, float]:
    """Return seconds from a model to its first batch of gradients."""
    from ppl_backends.targets.pymc import PyMCTarget

    n, d, points = PROBLEMS[problem]
    model = logistic_regression(n, d)
    x = np.zeros((points, d))
    start = time.perf_counter()
    PyMCTarget(model, backend=backend).log_density_and_gradient(x)
    return {backend: time.perf_counter() - start}


def in_fresh_process(*arguments: str, cache: str | None = None) -> dict[str, float]:
    """Run this script in a process of its own and read what it measured."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # on a busy machine BLAS threads wait for each other
    if cache is not None:
        environment["PYTENSOR_FLAGS"] = f"base_compiledir={cache}"
        environment["NUMBA_CACHE_DIR"] = cache
    command = [sys.executable, "-W", "ignore", __file__, "--child", *arguments]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return json.loads(output.splitlines()[-1])


def report_speed(processes: int, cores: int) -> None:
    """Print times and ratios to the loop."""
    print(f"log density and gradient of 1,000 points, ms; median (range) of {processes} processes, {cores} cores")
    for problem in PROBLEMS:
        repeats = 30 if problem == "768x8" else 5
        runs = [in_fresh_process("speed", problem, str(repeats), str(cores)) for _ in range(processes)]
        for name in runs[0]:
            figures = np.array([run[name] for run in runs])
            base = name.replace("jax", "loop").replace("numba", "loop")
            ratios = np.array([run[base] / run[name] for run in runs])
            print(
                f"{problem:10s} {name:21s} {np.median(figures):9.3f} ({figures.min():.3f}-{figures.max():.3f})"
                f"   {np.median(ratios):5.2f} x the loop ({ratios.min():.2f}-{ratios.max():.2f})",
                flush=True,
            )


def report_first_call() -> None:
    """Print the time to the first gradients, cold and warm."""
    print("seconds from model to first gradients of 768x8")
    for backend in ("jax", "numba", "c"):
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = (in_fresh_process("first", "768x8", backend, cache=cache)[backend] for _ in range(2))
        print(f"{backend:6s} cold {cold:6.2f}   warm {warm:6.2f}", flush=True)


def main() -> None:
    """Read the command line and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--skip-cold", action="store_true")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        task, problem, *rest = arguments.child
        measured = measure(problem, int(rest[0]), int(rest[1])) if task == "speed" else first_call(problem, rest[0])
        print(json.dumps(measured))
        return
    report_speed(arguments.processes, arguments.cores)
    if not arguments.skip_cold:
        report_first_call()


if __name__ == "__main__":
    main()

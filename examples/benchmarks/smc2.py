"""SMC² with its defaults over many seeds: evidence, its error bars, means of the posterior, sizes of filters, CPU seconds.

Data are the 100 rows of the linear Gaussian series and the 400 rows of stochastic volatility from the tests. Their
evidences are known from quadrature. ``python smc2.py linear 200 > linear.jsonl`` makes one chain of 400 particles per
seed (option ``--first`` gives the first), and ``python smc2.py table linear.jsonl …`` prints the lines of the table.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
from scipy import stats

import ppl_backends as pb
from ppl_backends.results.inference_data import group

DATA = Path(__file__).parents[2] / "tests" / "state_space" / "data"
NAMES = {"linear": ("rho", "sigma_x", "sigma_y"), "volatility": ("mu", "rho", "sigma")}
EVIDENCE = {"linear": -117.720, "volatility": -389.347}
MEANS = {"linear": (0.7073, 0.5766, 0.3855), "volatility": (-1.1007, 0.8574, 0.4011)}
SDS = {"linear": (0.1078, 0.1139, 0.1377), "volatility": (0.195, 0.078, 0.086)}


def model(name):
    """Return the target of a series."""
    if name == "linear":
        y = np.loadtxt(DATA / "linear_gaussian.csv", skiprows=1)
        with pm.Model() as made:
            parameters = {"rho": pm.Uniform("rho", -1, 1), "sigma_x": pm.Exponential("sigma_x", 1)}
            parameters["sigma_y"] = pm.Exponential("sigma_y", 1)
            pb.StateSpace("y", pb.state_space.linear_gaussian(), observed=y, **parameters)
        return pb.as_target(made)
    y = np.loadtxt(DATA / "stochastic_volatility.csv", skiprows=1)
    with pm.Model() as made:
        mu, rho = pm.Normal("mu", 0, 2), pm.TruncatedNormal("rho", 0, 1, lower=-1, upper=1)
        sigma = pm.Deterministic("sigma", pm.InverseGamma("variance", 3, 0.5) ** 0.5)
        pb.StateSpace("y", pb.state_space.stochastic_volatility(), mu=mu, rho=rho, sigma=sigma, observed=y)
    return pb.as_target(made)


def run(name, target, seed, **options):
    """Return the figures of one chain."""
    clock = time.process_time()
    idata = pb.sample_smc2(target, chains=1, random_seed=seed, progressbar=False, **options)
    seconds = time.process_time() - clock
    posterior, stats_ = group(idata, "posterior"), group(idata, "sample_stats")
    attrs, x = posterior.attrs, [posterior[each].values.ravel() for each in NAMES[name]]
    return {
        "name": name,
        "seed": seed,
        "options": options,
        "cpu": seconds,
        "log_evidence": attrs["log_evidence"],
        "se": attrs["log_evidence_se"],
        "df": attrs["log_evidence_df"],
        "mean": [float(each.mean()) for each in x],
        "sd": [float(each.std()) for each in x],
        "n_particles": int(stats_["n_particles"].values[0][-1]),
        "variance": float(stats_["estimate_variance"].values[0][-1]),
        "moves": int(np.nansum(stats_["n_moves"].values)),
        "stages": stats_.sizes["stage"],
    }


def line(found):
    """Return the line of the table for runs of one kind."""
    name, z = found[0]["name"], np.array([each["log_evidence"] for each in found]) - EVIDENCE[found[0]["name"]]
    se, df = (np.array([each[key] for each in found]) for key in ("se", "df"))
    ratio = np.exp(z)
    error = ratio.std(ddof=1) / np.sqrt(len(z)) / ratio.mean()
    covers = np.abs(z) <= stats.t.ppf(0.975, df) * se
    means = (np.array([each["mean"] for each in found]) - MEANS[name]) / SDS[name]
    sizes, cpu = [each["n_particles"] for each in found], [each["cpu"] for each in found]
    filters = found[0]["options"].get("filter", "auto")
    cells = [
        f"{name}, {filters}",
        f"{len(z)}",
        f"{np.log(ratio.mean()):+.3f} ± {error:.3f}",
        f"{z.std(ddof=1):.3f}",
        f"{np.sqrt(np.mean(se**2)):.3f}",
        f"{100 * covers.mean():.0f} %",
        f"{np.abs(means.mean(axis=0)).max():.3f} ± {means.std(ddof=1) / np.sqrt(len(z)):.3f}",
        f"{min(sizes)} to {max(sizes)}",
        f"{np.median(cpu):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| series, filter | runs | log of mean Z − exact | sd of log Z | se reported | 95 % intervals that cover | "
    "largest error of a mean, in sds | N_x at the end | CPU s a run |"
)


def table(files):
    """Print the table of the runs in files."""
    runs = [json.loads(row) for file in files for row in Path(file).read_text().splitlines()]
    print(HEAD)
    print("| --- " * HEAD.count(" | ") + "| --- |")
    for kind in dict.fromkeys((each["name"], str(each["options"])) for each in runs):
        print(line([each for each in runs if (each["name"], str(each["options"])) == kind]))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1] == "table":
        table(sys.argv[2:])
        sys.exit()
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("runs", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--filter", default="auto")
    given = parser.parse_args()
    options = {} if given.filter == "auto" else {"filter": given.filter}
    made = model(given.name)
    run(given.name, made, 10**6, draws=400, max_moves=3, **options)  # compiles
    for seed in range(given.first, given.first + given.runs):
        print(json.dumps(run(given.name, made, seed, **options)), flush=True)

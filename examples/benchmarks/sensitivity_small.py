"""Sensitivity of small models whose prior contradicts the data, against refits: tables of ``docs/methods/sensitivity.md``.

For each model the component is the one whose weights have the largest Pareto k at the first seed. Draws by several seeds are
moved to the powers 0.8 and 1.25 of it and compared with one refit at that power with 8,000 draws. z is the difference divided
by the root of both squared standard errors.

Run: python examples/benchmarks/sensitivity_small.py --file rows.jsonl [--models ...] [--seeds 4]
     python examples/benchmarks/sensitivity_small.py --file rows.jsonl --print
"""

import argparse
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
from after_fit import Powered, moments_of
from rows import append_row, read_rows

import ppl_backends as pb

POWERS = (0.8, 1.25)


def location(far=1.0):
    """Return three normal observations near 35, or farther, with a N(0, 1) prior of their mean and a narrow prior of sd."""
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 1), pm.LogNormal("sigma", 0.5, 0.05)
        pm.Normal("y", mu, sigma, observed=far * np.array([34.0, 35.0, 37.5]))
    return model


def counts(prior=20, count=200):
    """Return one Poisson count with a rate whose prior has mean 2."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2 * prior, prior)
        pm.Poisson("y", rate, observed=[count])
    return model


def regression():
    """Return a logistic regression with large effects and a prior of scale 0.05."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 3))
    y = rng.random(300) < 1 / (1 + np.exp(-X @ [2.0, -2.0, 1.5]))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 0.05, shape=3)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y.astype(int))
    return model


def hierarchical(far=1.0):
    """Return eight groups far apart with a prior of their spread that expects one unit."""
    y = far * np.array([-90.0, 120.0, 30.0, 180.0, -140.0, 70.0, 20.0, -30.0])
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 20), pm.HalfNormal("tau", 1)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, 2.0, observed=y)
    return model


def survival(shape_sd=0.07, scale_mean=1.0, scale_sd=0.04):
    """Return ten Weibull times whose scale contradicts its prior."""
    y = 30 * np.random.default_rng(4).weibull(3.0, size=10)
    with pm.Model() as model:
        shape, scale = pm.LogNormal("shape", 1, shape_sd), pm.LogNormal("scale", scale_mean, scale_sd)
        pm.Weibull("y", shape, scale, observed=y)
    return model


def overdispersed(a_sd=0.17, prior=20):
    """Return ten negative binomial counts near 500, with a narrow prior of the log rate."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=10)
    y = rng.negative_binomial(4, 4 / (4 + np.exp(6.2 + 0.5 * x)))
    with pm.Model() as model:
        a, b, alpha = pm.Normal("a", 0, a_sd), pm.Normal("b", 0, 1), pm.Gamma("alpha", 2 * prior, prior)
        pm.NegativeBinomial("y", mu=pm.math.exp(a + b * x), alpha=alpha, observed=y)
    return model


def waiting():
    """Return eight exponential times near 16 with a rate whose prior has mean 10 and standard deviation 0.5."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 400, 40)
        pm.Exponential("y", rate, observed=[8.0, 14.0, 25.0, 11.0, 19.0, 9.0, 30.0, 12.0])
    return model


def deviations():
    """Return six normal observations near ±50 with a prior of their standard deviation that expects one."""
    with pm.Model() as model:
        sigma = pm.LogNormal("sigma", 0, 0.05)
        pm.Normal("y", 0, sigma, observed=[38.0, -48.0, 60.0, -32.0, 42.0, 54.0])
    return model


def rates():
    """Return a Poisson regression of twenty counts near 50 with a prior of scale 0.08."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=20)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 0.08, shape=2)
        pm.Poisson("y", pm.math.exp(b[0] + b[1] * x), observed=rng.poisson(np.exp(4 + 0.8 * x)))
    return model


MILD = {
    "normal mean and sd, 3 rows": location,
    "Poisson rate, 1 row": counts,
    "logistic regression, 3 coefficients, 300 rows": regression,
    "hierarchical normal, 8 groups": hierarchical,
    "Weibull shape and scale, 10 rows": survival,
    "negative binomial regression, 10 rows": overdispersed,
}
STRONG = {
    "normal mean and sd, 3 rows near 70": partial(location, 2.0),
    "Poisson rate, count of 300": partial(counts, 40, 300),
    "hierarchical normal, 8 groups, three times as far": partial(hierarchical, 3.0),
    "Weibull, narrower priors": partial(survival, 0.05, 0.0, 0.1),
    "negative binomial regression, narrower priors": partial(overdispersed, 0.08, 80),
    "exponential rate, 8 rows": waiting,
    "normal sd, 6 rows": deviations,
    "Poisson regression, 20 rows": rates,
}
MODELS = MILD | STRONG


def refit(target, component, power):
    """Return means and sds with their errors from a posterior sampled at that power."""
    idata = pb.sample_smc(
        Powered(target, component, power), initial="laplace", draws=2000, chains=4, random_seed=99, progressbar=False
    )
    return moments_of(idata, target, list(target.parameter_names))


def run(name, seeds, rows):
    """Yield new rows of one model; ``rows`` are known, and their refits are used again."""
    seen = {(row["seed"], row["power"]) for row in rows}
    if all((seed, power) in seen for seed in seeds for power in POWERS):
        return
    target, refits = pb.as_target(MODELS[name]()), {row["power"]: row["refit"] for row in rows}
    component = rows[0]["component"] if rows else None
    for seed in seeds:
        if all((seed, power) in seen for power in POWERS):
            continue
        idata = pb.sample_smc(target, initial="laplace", draws=1000, chains=2, random_seed=seed, progressbar=False)
        clock = time.process_time()
        result = pb.sensitivity(idata, target, random_seed=seed)
        seconds = time.process_time() - clock
        weighted = pb.sensitivity(idata, target, method="weights", random_seed=seed)
        component = component or result.sources["pareto_k"].unstack("power").max(axis=1).idxmax()
        for power in (power for power in POWERS if (seed, power) not in seen):
            refits[power] = refits.get(power) or refit(target, component, power)
            row = {"model": name, "seed": seed, "power": power, "component": component, "cpu": seconds}
            row |= {"refit": np.array(refits[power]).tolist(), "quantities": list(result.table.index)}
            row |= result.sources.loc[(component, power), ["pareto_k", "ess", "source", "stages", "memory"]].to_dict()
            for label, source in (("ours", result), ("weights", weighted)):
                ours = source.moments.sel(component=component, power=power)
                row[label] = [ours[key].values.tolist() for key in ("mean", "sd", "mean_se", "sd_se")]
            row["warned"] = int((result.sources["memory"] > 0.15).any())
            yield row


def show(rows):
    """Print the table."""
    print("model | component | power | k | z of means: largest, rms | z of sds | by weights | CPU s")
    everything = {"mean": [], "sd": []}
    for name, power in sorted({(row["model"], row["power"]) for row in rows}):
        chosen = [row for row in rows if (row["model"], row["power"]) == (name, power)]
        shown = []
        for source in ("ours", "weights"):
            for j, kind in enumerate(("mean", "sd")):
                values = np.array([row[source] for row in chosen])
                truth = np.array(chosen[0]["refit"])
                z = (values[:, j] - truth[j]) / np.hypot(values[:, j + 2], truth[j + 2])
                shown.append(f"{abs(z).max():.1f}, {np.sqrt((z**2).mean()):.2f}")
                if source == "ours":
                    everything[kind].extend(z.ravel())
        k = [row["pareto_k"] for row in chosen]
        how = "/".join(sorted({row["source"] for row in chosen}))
        seconds = np.mean([row["cpu"] for row in chosen])
        print(
            f"{name} | {chosen[0]['component']} | {power} | {min(k):.2f} to {max(k):.2f} ({how}) | {shown[0]} | {shown[1]} | "
            f"{shown[2]}; {shown[3]} | {seconds:.1f} | {len(chosen)} seeds"
        )
    for kind, z in everything.items():
        print(
            kind,
            len(z),
            "rms",
            np.sqrt(np.mean(np.square(z))),
            "above 2",
            np.mean(np.abs(z) > 2),
            "max",
            np.abs(z).max(),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--print", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    known = read_rows(asked.file)
    if asked.print:
        show(known)
    else:
        for model in asked.models:
            for found in run(model, range(asked.seeds), [row for row in known if row["model"] == model]):
                append_row(asked.file, **found)

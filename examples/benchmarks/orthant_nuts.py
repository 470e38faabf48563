"""Check the posterior of a trivariate probit by NUTS, and compare its draws per second with latent utilities.

    python examples/benchmarks/orthant_nuts.py sbc [--runs 200] [--persons 20] [--broken]
    python examples/benchmarks/orthant_nuts.py ess [--runs 5] [--persons 50]

``sbc`` is simulation-based calibration (Talts et al. 2018): it draws parameters from the prior and data from the model, and
ranks the parameters among draws of NUTS. Ranks are uniform if the posterior is right. ``--broken`` has residuals 1.5 times
as large. ``ess`` gives the smallest effective sample size per CPU second, with tuning and without compilation, of

* ``rectangles``: `MultivariateProbit`, no latent variables;
* ``GHK``: one uniform for each answer but the last, and the bounds of GHK (Goodrich 2017): utilities not centred;
* ``centred``: the utilities themselves inside their bounds, as in Stan's User's Guide.

nutpie runs all of them in turn, on new data in every round.
"""

import argparse
import time

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import stats

import ppl_backends as pb

RANKS = 49


def cholesky(partial):
    """Factor of a correlation matrix of three variables, from partial correlations."""
    a, b, c = (partial[k] for k in range(3))
    left = [(1 - p**2) ** 0.5 for p in (a, b, c)]
    return [[1.0, 0.0, 0.0], [a, left[0], 0.0], [b, c * left[1], left[1] * left[2]]]


def correlated():
    """Return the residuals' factor in a model."""
    partial = pm.Deterministic("partial", pt.tanh(pm.Normal("z", 0, 0.5, shape=3)))
    return pt.stacklists([[pt.as_tensor(entry) for entry in row] for row in cholesky(partial)])


def regression(x):
    """Return means of three answers that depend on one predictor."""
    return pm.Normal("level", 0, 1, shape=3) + x[:, None] * pm.Normal("slope", 0, 1, shape=3)


def rectangles(x, y):
    """Return utilities integrated out."""
    with pm.Model() as model:
        pb.MultivariateProbit("y", regression(x), correlated(), observed=y)
    return model


def ghk(x, y):
    """Return latent uniforms."""
    with pm.Model() as model:
        mean, factor = regression(x), correlated()
        u = pm.Uniform("u", 0, 1, shape=(len(y), 2))
        known, log_p = [], 0.0
        for j in range(3):
            given = mean[:, j] + sum(factor[j, k] * known[k] for k in range(j))
            below = pm.math.invprobit(-given / factor[j, j])
            log_p += pt.log(pt.switch(y[:, j] == 1, 1 - below, below)).sum()
            if j < 2:
                at = pt.switch(y[:, j] == 1, below + (1 - below) * u[:, j], below * u[:, j])
                known.append(pm.math.probit(at))
        pm.Potential("y", log_p)
    return model


def centred(x, y):
    """Return latent utilities with the signs of the answers."""
    with pm.Model() as model:
        mean, factor = regression(x), correlated()
        size = pm.Flat("size", shape=y.shape)
        gap = (2 * y - 1) * pt.exp(size) - mean
        z = pt.linalg.solve_triangular(factor, gap.T, lower=True)
        pm.Potential("y", -0.5 * (z**2).sum() - len(y) * pt.log(pt.diag(factor)).sum() + size.sum())
    return model


def simulate(x, level, slope, partial, rng):
    """Return answers of persons."""
    noise = rng.standard_normal((len(x), 3)) @ np.array(cholesky(partial)).T
    return (level + x[:, None] * slope + noise > 0).astype("int64")


def effective_draws(persons, runs):
    """Print the smallest effective sample size over CPU seconds, with the three models in turn."""
    import nutpie

    rates = {model.__name__: [] for model in (rectangles, ghk, centred)}
    for run in range(runs):
        rng = np.random.default_rng(run)
        x = rng.standard_normal(persons)
        y = simulate(x, rng.normal(0, 0.5, 3), rng.normal(0, 0.7, 3), np.tanh(rng.normal(0, 0.5, 3)), rng)
        for model in (rectangles, ghk, centred):
            compiled = nutpie.compile_pymc_model(model(x, y))
            nutpie.sample(compiled, draws=10, tune=10, chains=1, cores=1, seed=1, progress_bar=False)
            clock = time.process_time()
            found = nutpie.sample(
                compiled, draws=2000, tune=1000, chains=1, cores=1, seed=run, progress_bar=False, target_accept=0.9
            )
            seconds = time.process_time() - clock
            kept = found.posterior[["level", "slope", "partial"]]
            ess = az.ess(kept)
            least = min(float(ess[name].min()) for name in kept.data_vars)
            steps = float(found.sample_stats["n_steps"].sum())
            means = np.concatenate([kept[name].mean(("chain", "draw")).values for name in kept.data_vars])
            rates[model.__name__].append(least / seconds)
            print(
                f"run {run} {model.__name__:10s} ESS {least:6.0f} CPU {seconds:6.2f} s ESS/s {least / seconds:7.1f} "
                f"steps {steps:7.0f} divergences {int(found.sample_stats['diverging'].sum()):3d} means {means.round(2)}",
                flush=True,
            )
    for name in ("ghk", "centred"):
        ratio = np.log(np.divide(rates["rectangles"], rates[name]))
        half = stats.t.ppf(0.975, runs - 1) * ratio.std(ddof=1) / np.sqrt(runs)
        middle, low, high = np.exp(ratio.mean() + half * np.array([0, -1, 1]))
        print(f"rectangles / {name}: {middle:.1f} ({low:.1f} to {high:.1f})")


def calibration(persons, runs, broken):
    """Print χ² of ten classes for the ranks of parameters from the prior among draws given their data."""
    import nutpie

    rng = np.random.default_rng(1)
    x = rng.standard_normal(persons)
    with pm.Model() as model:
        answers = pm.Data("answers", np.zeros((persons, 3), dtype="int64"))
        factor = correlated()
        if broken:
            factor = 1.5 * factor
        pb.MultivariateProbit("y", regression(x), factor, observed=answers)
    compiled = nutpie.compile_pymc_model(model)
    ranks, clock = [], time.process_time()
    for run in range(runs):
        level, slope, partial = rng.normal(size=3), rng.normal(size=3), np.tanh(rng.normal(0, 0.5, 3))
        data = compiled.with_data(answers=simulate(x, level, slope, partial, rng))
        found = nutpie.sample(
            data, draws=10 * RANKS, tune=400, chains=1, cores=1, seed=run, progress_bar=False, target_accept=0.9
        ).posterior
        truth = {"level": level, "slope": slope, "partial": partial}
        ranks.append([(found[name].values[0, 9::10] < value).sum(axis=0) for name, value in truth.items()])
    classes = np.reshape(ranks, (runs, 9)) * 10 // (RANKS + 1)
    for j, name in enumerate(f"{name}[{k}]" for name in ("level", "slope", "partial") for k in range(3)):
        counts = np.bincount(classes[:, j], minlength=10)
        print(f"{name:10s} {counts} χ² p {stats.chisquare(counts).pvalue:.3f}")
    print(f"{runs} data sets of {persons} persons, {time.process_time() - clock:.0f} CPU s")


def main():
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sbc", "ess"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--persons", type=int, default=50)
    parser.add_argument("--broken", action="store_true")
    given = parser.parse_args()
    if given.what == "ess":
        effective_draws(given.persons, given.runs)
    else:
        calibration(given.persons, given.runs, given.broken)


if __name__ == "__main__":
    main()

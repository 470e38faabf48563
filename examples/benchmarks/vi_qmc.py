"""Quasi-Monte Carlo variational inference: variances, bounds and rates on the models of Buchholz, Wenzel & Mandt (2018).

    python examples/benchmarks/vi_qmc.py variance | score | traces | growing | evidence | adagrad
    python examples/benchmarks/vi_qmc.py picture --figure vi_qmc.png
    python examples/benchmarks/vi_qmc.py print

The hierarchical regression (d = 1,012) is simulated as in the paper. Its other data cannot be distributed, so data of
the same shape are simulated: 32 areas × 3 groups of counts for the multilevel Poisson regression (d = 37), 100 rows of
11 predictors for the network of 50 rectified units (d = 653). All families are independent Gaussians on the
unconstrained space. ``variance`` is of reparameterised gradients, ``score`` of score-function ones. ``adagrad`` is
Figure 2.3 of Buchholz (2018): the logistic regression of breast_cancer by Adagrad from 0.1 with 30 scrambled points a
step (or a net of 32, or standardised ones), with 30 and with 900 random ones, plain and with control variates of mean
and variance. Figures go to a file of JSON lines (``--out``).
"""

import argparse
import time
from pathlib import Path

import numpy as np
from rows import append_row, read_rows
from scipy.special import expit, gammaln, ndtri

import ppl_backends as pb
from ppl_backends.approximations.noise import normal_noise, standardised_noise
from ppl_backends.approximations.variational.ascents import Adagrad, Adam
from ppl_backends.approximations.variational.families import Diagonal, Location
from ppl_backends.datasets import load_binary_regression

LOG_2PI = np.log(2 * np.pi)


def normal(x, mean, log_sd):
    """Log density, and its derivatives in x, the mean and the log standard deviation."""
    z = (x - mean) * np.exp(-log_sd)
    slope = z * np.exp(-log_sd)
    return -0.5 * (z**2 + LOG_2PI) - log_sd, -slope, slope, z**2 - 1


def inverse_gamma(log_x, shape, rate):
    """Log density of log x, and its derivative; constants included."""
    value = shape * np.log(rate) - gammaln(shape) - shape * log_x - rate * np.exp(-log_x)
    return value, -shape + rate * np.exp(-log_x)


def hierarchical(groups=100, k=10):
    """Return y_i ~ N(x_i'b_i, e), b_i ~ N(m, s), m_j ~ N(0, 10²), s and e lognormal with scale 0.5."""
    rng = np.random.default_rng(1)
    design = rng.normal(size=(groups, k))
    centre = rng.normal(size=k)
    coefficients = centre + rng.normal(size=(groups, k))
    y = (design * coefficients).sum(axis=1) + rng.normal(size=groups)

    def density(theta):
        m, log_s, log_e = theta[:, :k], theta[:, k, None], theta[:, k + 1, None]
        b = theta[:, k + 2 :].reshape(-1, groups, k)
        value, slope = np.zeros(len(theta)), np.zeros_like(theta)
        parts = normal(m, 0.0, np.log(10.0))
        value += parts[0].sum(axis=1)
        slope[:, :k] += parts[1]
        for column in (k, k + 1):
            parts = normal(theta[:, column], 0.0, np.log(0.5))
            value += parts[0]
            slope[:, column] += parts[1]
        of_b = normal(b, m[:, None], log_s[:, None])
        value += of_b[0].sum(axis=(1, 2))
        slope[:, :k] += of_b[2].sum(axis=1)
        slope[:, k] += of_b[3].sum(axis=(1, 2))
        fit = normal(y, (b * design).sum(axis=2), log_e)
        value += fit[0].sum(axis=1)
        slope[:, k + 1] += fit[3].sum(axis=1)
        slope[:, k + 2 :] += (of_b[1] + fit[2][:, :, None] * design).reshape(len(theta), -1)
        return value, slope

    return pb.FunctionTarget(groups * k + k + 2, density)


def poisson(areas=32, groups=3):
    """Log λ = m + a_g + b_p + log N with a_1 = 0 left out; normal effects with log variances ~ N(0, 10²)."""
    rng = np.random.default_rng(2)
    area, group = (index.ravel() for index in np.indices((areas, groups)))
    exposure = rng.integers(20, 200, size=areas * groups)
    rate = -1.0 + np.array([0.0, 0.4, -0.7])[group] + 0.5 * rng.normal(size=areas)[area]
    y = rng.poisson(exposure * np.exp(rate))
    free = groups - 1
    dim = 3 + free + areas

    def density(theta):
        m, log_a, log_b = theta[:, 0, None], 0.5 * theta[:, 1, None], 0.5 * theta[:, 2, None]
        a, b = theta[:, 3 : 3 + free], theta[:, 3 + free :]
        value, slope = np.zeros(len(theta)), np.zeros_like(theta)
        for column in range(3):
            parts = normal(theta[:, column], 0.0, np.log(10.0))
            value += parts[0]
            slope[:, column] += parts[1]
        for column, effects, log_sd, place in ((1, a, log_a, slice(3, 3 + free)), (2, b, log_b, slice(3 + free, dim))):
            parts = normal(effects, 0.0, log_sd)
            value += parts[0].sum(axis=1)
            slope[:, place] += parts[1]
            slope[:, column] += 0.5 * parts[3].sum(axis=1)
        padded = np.column_stack([np.zeros(len(theta)), a])
        predictor = m + padded[:, group] + b[:, area] + np.log(exposure)
        mean = np.exp(predictor)
        value += (y * predictor - mean - gammaln(y + 1)).sum(axis=1)
        residual = (y - mean).reshape(-1, areas, groups)
        slope[:, 0] += residual.sum(axis=(1, 2))
        slope[:, 3 : 3 + free] += residual.sum(axis=1)[:, 1:]
        slope[:, 3 + free :] += residual.sum(axis=2)
        return value, slope

    return pb.FunctionTarget(dim, density)


def network(n=100, inputs=11, units=50):
    """Return one layer of rectified units; weights ~ N(0, 1/α), noise 1/τ, both precisions ~ Gamma(1, 0.1)."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, inputs))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * (x[:, 2] > 0) + 0.3 * rng.normal(size=n)
    y = (y - y.mean()) / y.std()
    weights = (inputs + 2) * units + 1
    first = inputs * units

    def density(theta):
        w, log_alpha, log_tau = theta[:, :weights], theta[:, weights], theta[:, weights + 1]
        value, slope = np.zeros(len(theta)), np.zeros_like(theta)
        for column in (weights, weights + 1):
            part = inverse_gamma(-theta[:, column], 1.0, 0.1)  # of the inverse of a gamma precision
            value += part[0]
            slope[:, column] -= part[1]
        of_w = normal(w, 0.0, -0.5 * log_alpha[:, None])
        value += of_w[0].sum(axis=1)
        slope[:, :weights] += of_w[1]
        slope[:, weights] -= 0.5 * of_w[3].sum(axis=1)
        layer = w[:, :first].reshape(-1, inputs, units)
        bias, out = w[:, first : first + units], w[:, first + units : first + 2 * units]
        hidden = np.maximum(x @ layer + bias[:, None], 0.0)
        fit = normal(y, (hidden @ out[:, :, None])[:, :, 0] + w[:, -1:], -0.5 * log_tau[:, None])
        value += fit[0].sum(axis=1)
        slope[:, weights + 1] -= 0.5 * fit[3].sum(axis=1)
        back = fit[2][:, :, None] * out[:, None] * (hidden > 0)
        slope[:, :first] += (x.T @ back).reshape(len(theta), -1)
        slope[:, first : first + units] += back.sum(axis=1)
        slope[:, first + units : first + 2 * units] += (fit[2][:, None] @ hidden)[:, 0]
        slope[:, weights - 1] += fit[2].sum(axis=1)
        return value, slope

    return pb.FunctionTarget(weights + 2, density)


MODELS = {"hierarchical (d = 1,012)": hierarchical, "Poisson (d = 37)": poisson, "network (d = 653)": network}


def random(n, dim, rng):
    """Return independent points."""
    return normal_noise(n, dim, rng, qmc=False)


def stratified(n, dim, rng):
    """Return a Latin hypercube: exact for sums of functions of one coordinate, as good as random points for the rest."""
    return ndtri((np.argsort(rng.random((n, dim)), axis=0) + rng.random((n, dim))) / n)


SAMPLERS = {
    "MC 10": (10, random),
    "MC 100": (100, random),
    "RQMC 10": (10, normal_noise),
    "RQMC 16": (16, normal_noise),
    "RQMC 50": (50, normal_noise),
    "MC 50": (50, random),
    "standardised 10": (10, standardised_noise),  # symmetric Sobol points of unit variances, as fit_vi has them
    "stratified 500": (500, stratified),
}


def family_at(target):
    """Return independent normals around small random numbers, a place to start from."""
    mean = 0.1 * np.random.default_rng(0).standard_normal(target.dim)
    scales = np.full(target.dim, 0.2)
    return Diagonal(Location(mean, np.ones(target.dim)), scales)


def gradient(target, family, p, z):
    """Return reparameterised gradient of the bound in means and log standard deviations, the entropy's part exact."""
    slopes = target.log_density_and_gradient(family.points(p, z))[1]
    return family.gradient(p, z, slopes) + family.entropy(p)[1]


def score_gradient(target, family, p, z):
    """Return score-function gradient of the bound: the mean of (log p − log q) times the derivatives of log q."""
    scales = family.scales * np.exp(p[target.dim :])
    log_q = -0.5 * (z**2 + LOG_2PI).sum(axis=1) - np.log(scales).sum()
    value = (target.log_density(family.points(p, z)) - log_q)[:, None]
    return np.concatenate([(value * z / scales).mean(axis=0), (value * (z**2 - 1)).mean(axis=0)])


def ascend(target, size, noise, steps, rng, every=20, rate=0.1):
    """Return adam, its step a tenth for the second half; parameters at the end, and bounds on points kept for them."""
    family = family_at(target)
    p, rule = family.start(), Adam(rate)
    z = normal_noise(1024, target.dim, np.random.default_rng(99))
    trace = []
    for step in range(steps):
        rule.step = rate if step < steps // 2 else 0.1 * rate
        p = p + rule(gradient(target, family, p, noise(size, target.dim, rng)))
        if step % every == every - 1:
            bound = float(target.log_density(family.points(p, z)).mean()) + family.entropy(p)[0]
            trace.append((step + 1, bound))
    return p, trace


def traces(out, steps=600):
    """Print the bound along the iterations, and the final bound of fit_vi."""
    for name, make in MODELS.items():
        target = make()
        for label in ("MC 10", "MC 100", "RQMC 10", "standardised 10"):
            started = time.perf_counter()
            _, trace = ascend(target, *SAMPLERS[label], steps, np.random.default_rng(5))
            seconds = time.perf_counter() - started
            append_row(out, table="traces", model=name, sampler=label, trace=trace, final=trace[-1][1], seconds=seconds)
        started = time.perf_counter()
        q = pb.fit_vi(target, family="diagonal", random_seed=1, progressbar=False)
        seconds = time.perf_counter() - started
        append_row(out, table="traces", model=name, sampler="fit_vi", final=q.elbo, se=q.elbo_se, seconds=seconds)


def variance(out, repeats=60, steps=200, table="variance", estimator=gradient):
    """Print the total variance of the gradient over coordinates, at the start and after some steps."""
    for name, make in MODELS.items():
        target = make()
        family = family_at(target)
        later, _ = ascend(target, 100, normal_noise, steps, np.random.default_rng(7))
        for place, p in (("start", family.start()), (f"after {steps} steps", later)):
            found = {}
            for label, (size, noise) in SAMPLERS.items():
                rng = np.random.default_rng(11)
                draws = [estimator(target, family, p, noise(size, target.dim, rng)) for _ in range(repeats)]
                found[label] = float(np.var(draws, axis=0, ddof=1).sum())
            append_row(out, table=table, model=name, place=place, repeats=repeats, **found)


def score(out):
    """Return the same of score-function gradients."""
    variance(out, table="score", estimator=score_gradient)


def growing(out, rate=0.01, steps=2000, largest=50_000, repeats=5):
    """Make constant steps on growing samples towards N(0, I₂), from (0.1, 0.1); print the gap of the bound, ½|μ|²."""
    sizes = np.geomspace(1, largest, steps).astype(int)
    for qmc in (False, True):
        gaps = np.empty((repeats, steps))
        for seed in range(repeats):
            rng, mean = np.random.default_rng(seed), np.array([0.1, 0.1])
            for step, size in enumerate(sizes):
                mean = mean - rate * (mean + normal_noise(int(size), 2, rng, qmc).mean(axis=0))
                gaps[seed, step] = 0.5 * mean @ mean
        typical = np.exp(np.log(gaps).mean(axis=0))
        half = slice(steps // 2, steps)
        slope = np.polyfit(np.log(sizes[half]), np.log(typical[half]), 1)[0]
        trace = [(int(t), float(typical[t])) for t in range(0, steps, 10)]
        final, sampler = float(typical[-1]), "RQMC" if qmc else "MC"
        append_row(out, table="growing", sampler=sampler, final=final, slope_in_size=float(slope), trace=trace)


def controlled(slopes, z):
    """Return contributions ``(n, 2 dim)`` to the gradient, less their regressions on z and z² − 1 of the same coordinate."""
    centred, square = z - z.mean(axis=0), z**2 - 1
    parts = np.hstack([slopes, slopes * z])
    for control in (z, square - z * (square * centred).mean(axis=0) / (centred**2).mean(axis=0)):
        both = np.hstack([control, control])
        about = both - both.mean(axis=0)
        parts = parts - both * (parts * about).mean(axis=0) / (about**2).mean(axis=0)
    return parts


def logistic(name):
    """Return a logistic regression with the prior N(0, I)."""
    data = load_binary_regression(name, scaling="raw")
    signed = data.X * (2 * data.y - 1)[:, None]

    def density(theta):
        s = theta @ signed.T
        value = -np.logaddexp(0, -s).sum(axis=1) - 0.5 * (theta**2 + LOG_2PI).sum(axis=1)
        return value, expit(-s) @ signed - theta

    return pb.FunctionTarget(signed.shape[1], density)


ADAGRAD = {  # points a step, their sampler, and whether the gradient has control variates
    "RQMC 30": (30, normal_noise, False),
    "RQMC 32": (32, normal_noise, False),
    "standardised 30": (30, standardised_noise, False),
    "MC 30": (30, random, False),
    "MC 900": (900, random, False),
    "MC 30, control variates": (30, random, True),
    "MC 900, control variates": (900, random, True),
}


def adagrad(out, labels=tuple(ADAGRAD), seeds=5, steps=200, rate=0.1):
    """Print bounds along the steps of Adagrad from N(0, I), on 4,096 separate points."""
    target = logistic("breast_cancer")
    d = target.dim
    family, kept = (
        Diagonal(Location(np.zeros(d), np.ones(d)), np.ones(d)),
        normal_noise(4096, d, np.random.default_rng(99)),
    )
    for label in labels:
        size, noise, control = ADAGRAD[label]
        bounds = np.empty((seeds, steps // 10))
        for seed in range(seeds):
            rng, p, rule = np.random.default_rng(seed), family.start(), Adagrad(rate)
            for step in range(steps):
                z = noise(size, d, rng)
                slopes = target.log_density_and_gradient(family.points(p, z))[1]
                if control:
                    scales = np.concatenate([np.ones(d), family.mean_and_sd(p)[1]])
                    g = scales * controlled(slopes, z).mean(axis=0)
                else:
                    g = family.gradient(p, z, slopes)
                p = p + rule(g + family.entropy(p)[1])
                if step % 10 == 9:
                    value = target.log_density(family.points(p, kept)).mean()
                    bounds[seed, step // 10] = value + family.entropy(p)[0]
        at = {str(10 * (k + 1)): float(bounds[:, k].mean()) for k in (1, 4, 9, 14, 19)}
        spread = float(bounds[:, -1].std(ddof=1))
        append_row(
            out, table="adagrad", sampler=label, bound_after=at, spread=spread, trace=bounds.mean(axis=0).tolist()
        )


def evidence(out):
    """Print the bound on logistic regressions of known log evidence, for every family."""
    for name, known in (("breast_cancer", -55.22),):
        target = logistic(name)
        for family in ("diagonal", "low_rank", "dense"):
            started = time.perf_counter()
            q = pb.fit_vi(target, family=family, random_seed=1, progressbar=False)
            seconds = time.perf_counter() - started
            figures = {"elbo": q.elbo, "se": q.elbo_se, "k": q.pareto_k, "known": known, "seconds": seconds}
            append_row(out, table="evidence", model=name, family=family, **figures)


def picture(out, path):
    """Draw the bounds along the iterations, and the gap on growing samples."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = read_rows(out)
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.4), layout="constrained")
    for axis, name in zip(axes, MODELS, strict=False):
        mine = [row for row in rows if row["table"] == "traces" and row["model"] == name]
        for row in mine:
            if "trace" in row:
                style = {"MC 10": "C1", "MC 100": "C0", "RQMC 10": "C2", "standardised 10": "C3"}[row["sampler"]]
                axis.plot(*zip(*row["trace"], strict=True), style, label=row["sampler"], linewidth=1)
            else:
                axis.axhline(row["final"], color="k", linestyle=":", label="fit_vi")
        best = max(row["final"] for row in mine)
        values = np.concatenate([[bound for _, bound in row["trace"]] for row in mine if "trace" in row])
        axis.set(
            title=name,
            xlabel="iteration",
            ylim=(np.quantile(values, 0.1), best + 0.03 * (best - np.quantile(values, 0.1))),
        )
    axes[0].set_ylabel("evidence lower bound")
    axes[1].legend(loc="lower right")
    for row in rows:
        if row["table"] == "growing":
            axes[3].semilogy(*zip(*row["trace"], strict=True), label=row["sampler"])
    axes[3].set(title="growing samples, N(0, I₂)", xlabel="iteration", ylabel="gap of the bound")
    axes[3].legend()
    figure.savefig(path, dpi=90)


def show(out):
    """Print what is recorded as Markdown."""
    for row in read_rows(out):
        if row["table"] in ("variance", "score"):
            points = [100 * row["MC 100"] / row[label] for label in SAMPLERS]
            worth = ", ".join(f"{label}: {value:.3g}" for label, value in zip(SAMPLERS, points, strict=True))
            share = 500 * row["stratified 500"] / (100 * row["MC 100"])
            place = f"{row['table']}, {row['model']}, {row['place']}"
            print(f"{place}; worth so many random points: {worth}; not additive: {share:.2g}")
        else:
            print({key: value for key, value in row.items() if key != "trace"})


def main():
    """Run what the command line names."""
    tasks = {
        "variance": variance,
        "score": score,
        "traces": traces,
        "growing": growing,
        "evidence": evidence,
        "adagrad": adagrad,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=[*tasks, "picture", "print"])
    parser.add_argument("--out", type=Path, default=Path("vi_qmc.jsonl"))
    parser.add_argument("--figure", type=Path, default=Path("vi_qmc.png"))
    chosen = parser.parse_args()
    for task in chosen.tasks:
        if task in tasks:
            tasks[task](chosen.out)
        elif task == "picture":
            picture(chosen.out, chosen.figure)
    show(chosen.out)


if __name__ == "__main__":
    main()

"""Funnels, a centred hierarchy and a horseshoe by `sample_smc` with its defaults: errors, coverage, and verdicts.

    python funnels.py --repeats 10 --file rows.jsonl
    python funnels.py --file rows.jsonl --print

``funnel d``      Neal's funnel, a normalised density of d coordinates: v ~ N(0, 3²), x_i ~ N(0, exp(v)). It has no
                  prior to start from.
``eight schools`` the centred model of Rubin (1981) in PyMC; the effects and the mean integrate out, and quadrature over
                  the scale gives the evidence.
``horseshoe``     a regression on twelve orthogonal columns with a horseshoe prior and an unknown error scale, centred, in
                  PyMC; quadrature over the error's scale, the global scale and each local one gives the evidence.

``eight schools density``, ``binomial density`` and ``crossed density`` are centred hierarchies without a prior to start
from: eight schools, proportions with a common mean on the logit scale, and a table with effects of rows and of columns.

CPU seconds are of this process. Rows are appended to ``--file``; rows that are there are not run again.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
from rows import append_row, keys_of, read_rows
from scipy import stats
from scipy.special import gammaln, logsumexp

import ppl_backends as pb

LOG_2PI = np.log(2 * np.pi)
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def funnel(dim):
    """Return Neal's funnel of ``dim`` coordinates, and its log evidence."""

    def density(points):
        v, x = points[:, 0], points[:, 1:]
        with np.errstate(over="ignore"):
            precision = np.exp(-v)
            shrunk = (x**2).sum(axis=1) * precision
            slope = np.column_stack([-v / 9 + 0.5 * shrunk - 0.5 * (dim - 1), -x * precision[:, None]])
        value = -(v**2) / 18 - np.log(3) - 0.5 * shrunk - 0.5 * (dim - 1) * v - 0.5 * dim * LOG_2PI
        return value, slope

    return pb.FunctionTarget(dim, density), 0.0


def eight_schools():
    """Return the centred model of eight schools, and its log evidence."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, ERRORS, observed=EFFECTS)

    # tau = 5 tan(u π/2) has a uniform u; given tau the effects are a Gaussian whose mean has a Gaussian prior
    u, weights = _legendre(400)
    variance = (5 * np.tan(0.5 * np.pi * u))[:, None] ** 2 + ERRORS**2
    precision = (1 / variance).sum(axis=1) + 1 / 25
    shift = (EFFECTS / variance).sum(axis=1)
    squares = (EFFECTS**2 / variance + np.log(variance) + LOG_2PI).sum(axis=1)
    given = -0.5 * (squares - shift**2 / precision + np.log(25 * precision))
    return model, float(logsumexp(given, b=weights))


def binomial():
    """Return a centred hierarchy of six proportions, and its log evidence."""
    trials, counts = np.array([20, 25, 15, 30, 20, 18]), np.array([6, 9, 4, 11, 5, 7])
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfCauchy("tau", 1)
        theta = pm.Normal("theta", mu, tau, shape=6)
        pm.Binomial("y", trials, logit_p=theta, observed=counts)

    means, logits = np.linspace(-8, 8, 801), np.linspace(-12, 12, 2401)
    choose = gammaln(trials + 1) - gammaln(counts + 1) - gammaln(trials - counts + 1)

    def log_likelihood(theta):
        return choose + counts * theta[..., None] - trials * np.logaddexp(0, theta[..., None])

    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    terms, step = [], 0.02
    for t in np.arange(-14, 8, step):  # log tau; effects by Gauss and Hermite, or on a grid where they are wide
        if t < 1:
            values = np.exp(log_likelihood(means[:, None] + np.exp(t) * nodes))
            effects = np.einsum("mnk,n->mk", values, weights / weights.sum())
        else:
            prior = stats.norm.pdf(logits, means[:, None], np.exp(t)) * (logits[1] - logits[0])
            effects = prior @ np.exp(log_likelihood(logits))
        inner = np.log(effects + 1e-300).sum(axis=1) + stats.norm.logpdf(means, 0, 2)
        terms.append(logsumexp(inner) + stats.halfcauchy.logpdf(np.exp(t)) + t)
    return model, float(logsumexp(terms) + np.log(step) + np.log(means[1] - means[0]))


def crossed(rows=6, columns=5):
    """Return a table with effects of rows and of columns, both of unknown scales, and its log evidence."""
    rng = np.random.default_rng(7)
    effects = 0.4 * rng.standard_normal(rows)[:, None] + 0.15 * rng.standard_normal(columns)
    y = 1.0 + effects + rng.standard_normal((rows, columns))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        scale_a, scale_b = pm.HalfNormal("scale_a", 1), pm.HalfNormal("scale_b", 1)
        a = pm.Normal("a", 0, scale_a, shape=rows)
        b = pm.Normal("b", 0, scale_b, shape=columns)
        pm.Normal("y", mu + a[:, None] + b, 1, observed=y)

    design = np.column_stack(
        [np.ones(y.size), np.repeat(np.eye(rows), columns, axis=0), np.tile(np.eye(columns), (rows, 1))]
    )
    gram, shift = design.T @ design, design.T @ y.ravel()
    logs = np.linspace(-12, 2.2, 285)
    terms = []
    for s in logs:
        sds = np.array([np.concatenate([[2.0], np.full(rows, np.exp(s)), np.full(columns, np.exp(t))]) for t in logs])
        matrix = np.eye(len(gram)) + sds[:, :, None] * gram * sds[:, None, :]
        scaled = sds * shift
        explained = (scaled * np.linalg.solve(matrix, scaled[..., None])[..., 0]).sum(axis=1)
        given = -0.5 * ((y**2).sum() - explained + np.linalg.slogdet(matrix)[1] + y.size * LOG_2PI)
        prior = stats.halfnorm.logpdf(np.exp(logs)) + logs + stats.halfnorm.logpdf(np.exp(s)) + s
        terms.append(logsumexp(given + prior))
    return model, float(logsumexp(terms) + 2 * np.log(logs[1] - logs[0]))


def density_alone(made):
    """Return a model as a density without a prior, and its log evidence."""
    model, truth = made
    target = pb.as_target(model)
    return pb.FunctionTarget(target.dim, target.log_density_and_gradient), truth


def horseshoe(n=60, p=12, seed=3):
    """Return a horseshoe regression whose columns are orthogonal, and its log evidence."""
    rng = np.random.default_rng(seed)
    columns = np.linalg.qr(rng.standard_normal((n, p)))[0] * np.sqrt(n)
    effects = np.concatenate([[1.5, -1.0, 0.5], np.zeros(p - 3)])
    y = columns @ effects + rng.standard_normal(n)
    with pm.Model() as model:
        sigma, tau = pm.HalfNormal("sigma", 2), pm.HalfCauchy("tau", 0.5)
        local = pm.HalfCauchy("local", 1, shape=p)
        beta = pm.Normal("beta", 0, tau * local, shape=p)
        pm.Normal("y", columns @ beta, sigma, observed=y)

    # With X'X = n I the estimates are independent N(beta_j, sigma² / n), whatever the rest, and so are their integrals.
    estimate = columns.T @ y / n
    rest = float(((y - columns @ estimate) ** 2).sum())
    u, weights = _legendre(120)
    halves = np.tan(0.5 * np.pi * u)  # half-Cauchy of scale one
    sigma = stats.halfnorm.ppf(u, scale=2)
    terms = []
    for s in sigma:
        variance = (0.5 * halves[:, None] * halves) ** 2 + s**2 / n  # (tau, local)
        by_effect = [logsumexp(stats.norm.logpdf(e, 0, np.sqrt(variance)), b=weights, axis=1) for e in estimate]
        outer = -0.5 * (n - p) * (LOG_2PI + 2 * np.log(s)) - 0.5 * p * np.log(n) - 0.5 * rest / s**2
        terms.append(outer + logsumexp(sum(by_effect), b=weights))
    return model, float(logsumexp(np.array(terms), b=weights))


def _legendre(n):
    """Return nodes and weights of Gauss and Legendre on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return 0.5 * (nodes + 1), 0.5 * weights


TARGETS = {
    "funnel 6": lambda: funnel(6),
    "funnel 20": lambda: funnel(20),
    "funnel 100": lambda: funnel(100),
    "eight schools": eight_schools,
    "horseshoe": horseshoe,
    "eight schools density": lambda: density_alone(eight_schools()),
    "binomial density": lambda: density_alone(binomial()),
    "crossed density": lambda: density_alone(crossed()),
}


def run(name, target, truth, seed):
    """Return the figures of one call."""
    clock = time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        attrs = pb.sample_smc(target, random_seed=seed, progressbar=False).posterior.attrs
    spread = attrs["log_evidence_se"] * stats.t.ppf(0.975, attrs["log_evidence_df"])
    return {
        "name": name,
        "seed": seed,
        "error": attrs["log_evidence"] - truth,
        "se": attrs["log_evidence_se"],
        "inside": bool(abs(attrs["log_evidence"] - truth) < spread),
        "trusted": bool(attrs["log_evidence_trusted"]),
        "method": attrs["log_evidence_method"],
        "seconds": time.process_time() - clock,
        "warnings": [str(w.message)[:300] for w in said],
    }


def table(rows):
    """Print a line for every target."""
    print(
        "| target | runs | mean error ± se | sd of errors | median se | coverage | trusted | wrong, trusted | CPU s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in dict.fromkeys(row["name"] for row in rows):
        mine = [row for row in rows if row["name"] == name]
        error, se, seconds = (np.array([row[key] for row in mine]) for key in ("error", "se", "seconds"))
        inside, trusted = (np.array([row[key] for row in mine], bool) for key in ("inside", "trusted"))
        wrong = trusted & (np.abs(error) > 4 * se)
        sd = error.std(ddof=1) if len(mine) > 1 else np.nan
        print(
            f"| {name} | {len(mine)} | {error.mean():+.4f} ± {sd / np.sqrt(len(mine)):.4f} | {sd:.4f} | "
            f"{np.median(se):.4f} | {inside.sum()} of {len(mine)} | {trusted.sum()} | {wrong.sum()} | {seconds.mean():.1f} |"
        )


def main():
    """Run what is asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--targets", nargs="*", default=list(TARGETS))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    rows = read_rows(options.file)
    known = keys_of(rows, "name", "seed")
    for name in [] if options.print else options.targets:
        target, truth = TARGETS[name]()
        for seed in range(options.repeats):
            if (name, seed) not in known:
                rows.append(run(name, target, truth, seed))
                append_row(options.file, **rows[-1])
    table(rows)


if __name__ == "__main__":
    main()

"""The comparisons of Buchholz (2018), chapter 5, with the kernels of ``sample_smc``.

``trial``     Steps and lengths of all sizes on the way of ``gaussian``, d = 10, at the temperature 0.008 (Figure 5.1).
``gaussian``  N(0, I) to N(2, Ξ), correlation 0.7 and variances from 0.1 to 10; the log normaliser is 0.
``student``   Student with 3 degrees of freedom to Student with 10, the same location and shape; the log normaliser is 0.
``mixture``   N(1, 5 I) to 0.3 N(4, Ξ₁) + 0.7 N(−4, Ξ₂); the share of positive coordinates is 0.3.
``binary``    Sonar and Musk, logit and probit, N(0, I), from expectation propagation (Table 5.2).
``cox``       Log-Gaussian Cox process of the Finnish pines on a grid, from the prior, in the normalisation of Table 5.3:
              without the factors of the Poisson probabilities that do not depend on the field.

Every repeat is one run of 1,024 particles (``--particles``) that are moved until they are uncorrelated, as in the
thesis (``--len-chain 10``: waste-free). A kernel is named with its tuning, ``hmc-pr`` (a trial at every temperature),
``hmc-ft`` (Fearnhead & Taylor), or without, by acceptance rate. Load is the number of evaluations of the density per
run (with its gradient, except for the random walk). The adjusted variance is the variance of the log evidence, or of
the mean of the first coordinate, times the load, divided by that of the first kernel. The table also has the standard
deviation of a run's log evidence by its lineages; the mean squared jump of a move at the last temperature, in variances
and relative to independent draws; the moves at every temperature, as a mean over repeats; and the log evidence by
bridge sampling from the last particles of all repeats together.

``--store FILE`` makes every run by itself and appends it to a file as a line of JSON. Runs that are in the file are not
made again, so long tables can be made in parts. The table has all runs of the file.

``--thesis`` sets the conditions of the thesis: a diagonal metric, and steps that begin uniform up to 0.1 with lengths
up to 100 for HMC, and up to 1 for MALA and the random walk, which are tuned by ``ft`` too. Use it with ``--ess 0.5``.
``--ladder`` has evenly spaced temperatures.

Run: python examples/benchmarks/buchholz_chapter5.py trial gaussian student mixture binary cox [--dims 10 50] [--repeats 10]
         [--kernels hmc-pr hmc-ft mala random_walk] [--thesis --ess 0.5] [--ladder 14]
"""

import argparse
import itertools
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.special import gammaln

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.kernels.calibrated import Evaluated
from ppl_backends.kernels.metric import scales_from_points
from ppl_backends.kernels.table import make_kernel
from ppl_backends.kernels.tuning import BuchholzPretuning, StepParameters, move_once
from ppl_backends.results.inference_data import group
from ppl_backends.targets.factors import Logit, Probit

sys.path.insert(0, str(Path(__file__).parent))
from peers.problems import cox_data
from rows import append_row, read_rows

LOG_2PI = np.log(2 * np.pi)


def shape_matrix(dim, correlation, low, high):
    """Return equal correlations and variances spread evenly."""
    sd = np.sqrt(np.linspace(low, high, dim))
    return (correlation + (1 - correlation) * np.eye(dim)) * sd[:, None] * sd


class Gaussian:
    """A normal density with its gradient, in the precision of ``dtype``."""

    def __init__(self, mean, cov, dtype=np.float64):
        self.mean, self.precision = np.asarray(mean, dtype), np.linalg.inv(cov).astype(dtype)
        self.constant = -0.5 * (np.linalg.slogdet(cov)[1] + len(cov) * LOG_2PI)
        self.root = np.linalg.cholesky(cov)

    def __call__(self, x):
        """Log density ``(n,)`` and gradient ``(n, dim)``."""
        slope = -(x - self.mean) @ self.precision
        return self.constant + 0.5 * ((x - self.mean) * slope).sum(axis=1, dtype=np.float64), slope

    def sample(self, n, rng):
        """Return draws ``(n, dim)``."""
        return self.mean + rng.standard_normal((n, len(self.mean))) @ self.root.T


class Mirrored:
    """A normal density on a square grid that its mirror images leave as it is, which makes four blocks of its covariance."""

    def __init__(self, mean, cov, dtype):
        self.side, self.mean, self.dtype = round(len(cov) ** 0.5), mean, dtype
        half = np.eye(self.side)[: self.side // 2]
        halves = [(half + sign * half[:, ::-1]) / np.sqrt(2) for sign in (1, -1)]
        bases = [np.kron(rows, columns) for rows in halves for columns in halves]
        self.parts = [Gaussian(np.zeros(len(cov) // 4), u @ cov @ u.T, dtype) for u in bases]

    def _blocks(self, x):
        grid = x.reshape(len(x), self.side, self.side).astype(self.dtype, copy=False)
        return [block.reshape(len(x), -1) for rows in unfold(grid, 1) for block in unfold(rows, 2)]

    def _grid(self, blocks):
        a, b, c, d = (block.reshape(len(block), self.side // 2, -1) for block in blocks)
        return fold(fold(a, b, 2), fold(c, d, 2), 1).reshape(len(a), -1)

    def __call__(self, x):
        """Log density ``(n,)`` and gradient ``(n, dim)``."""
        values, slopes = zip(
            *(part(block) for part, block in zip(self.parts, self._blocks(x - self.mean), strict=True)), strict=True
        )
        return sum(values), self._grid(slopes).astype(np.float64, copy=False)

    def sample(self, n, rng):
        """Return draws ``(n, dim)``."""
        return self.mean + self._grid([part.sample(n, rng) for part in self.parts])


def unfold(grid, axis):
    """Return even and odd part along an axis, each half as long."""
    low, high = np.split(grid, 2, axis)
    high, share = np.flip(high, axis), grid.dtype.type(0.5**0.5)
    return (low + high) * share, (low - high) * share


def fold(even, odd, axis):
    """Undo :func:`unfold`."""
    low, high = unfold(np.concatenate([even, np.flip(odd, axis)], axis), axis)
    return np.concatenate([low, np.flip(high, axis)], axis)


class Student:
    """A multivariate Student density with its gradient."""

    def __init__(self, df, location, shape):
        self.df, self.gaussian, dim = df, Gaussian(location, shape), len(shape)
        self.constant = (
            gammaln((df + dim) / 2) - gammaln(df / 2) - 0.5 * (dim * np.log(df * np.pi) + np.linalg.slogdet(shape)[1])
        )

    def __call__(self, x):
        """Log density ``(n,)`` and gradient ``(n, dim)``."""
        dim = x.shape[1]
        _, slope = self.gaussian(x)
        distance = -((x - self.gaussian.mean) * slope).sum(axis=1)
        value = self.constant - 0.5 * (self.df + dim) * np.log1p(distance / self.df)
        return value, slope * ((self.df + dim) / (self.df + distance))[:, None]

    def sample(self, n, rng):
        """Return draws ``(n, dim)``."""
        z = self.gaussian.sample(n, rng) - self.gaussian.mean
        return self.gaussian.mean + z / np.sqrt(rng.chisquare(self.df, size=(n, 1)) / self.df)


class Mixture:
    """0.3 N(4, Ξ₁) + 0.7 N(−4, Ξ₂)."""

    def __init__(self, dim):
        self.parts = [
            (np.log(share), Gaussian(np.full(dim, mean), shape_matrix(dim, correlation, 1.0, 2.0)))
            for share, mean, correlation in ((0.3, 4.0, 0.7), (0.7, -4.0, 0.1))
        ]

    def __call__(self, x):
        """Log density ``(n,)`` and gradient ``(n, dim)``."""
        values, slopes = zip(*(part(x) for _, part in self.parts), strict=True)
        logs = np.stack([value + log_share for value, (log_share, _) in zip(values, self.parts, strict=True)])
        total = np.logaddexp(*logs)
        return total, sum(np.exp(log - total)[:, None] * slope for log, slope in zip(logs, slopes, strict=True))


def bridge(start, end, dim):
    """Return the path from one normalised density to another, as prior and likelihood."""

    def increment(x):
        (low, low_slope), (high, high_slope) = start(x), end(x)
        return high - low, high_slope - low_slope

    return pb.FunctionTarget(dim, increment, start, start.sample)


def gaussian(dim):
    """Return the path from N(0, I) to a shifted and correlated normal."""
    end = Gaussian(np.full(dim, 2.0), shape_matrix(dim, 0.7, 0.1, 10.0))
    return bridge(Gaussian(np.zeros(dim), np.eye(dim)), end, dim), 0.0, 2.0


def student(dim):
    """Return the path from three to ten degrees of freedom."""
    end = Student(10.0, np.full(dim, 2.0), shape_matrix(dim, 0.7, 0.1, 10.0))
    return bridge(Student(3.0, np.zeros(dim), np.eye(dim)), end, dim), 0.0, 2.0


def mixture(dim):
    """Return the path to two modes; the mean is the share of positive coordinates."""
    return bridge(Gaussian(np.ones(dim), 5.0 * np.eye(dim)), Mixture(dim), dim), 0.0, 0.3


def cox(cells, single=False):
    """Return the field itself (not whitened), whose start is the prior."""
    counts, mean, factor = cox_data(cells)
    prior = Mirrored(mean, factor @ factor.T, np.float32 if single else np.float64)
    area = 1.0 / len(counts)

    def log_likelihood(x):
        intensity = area * np.exp(x)
        return x @ counts - intensity.sum(axis=1), counts - intensity

    return pb.FunctionTarget(len(counts), log_likelihood, prior, prior.sample), None, None


def binary(name, sites):
    """Return a binary regression with prior N(0, I)."""
    X, y, *_ = load_binary_regression(name)
    factors = pb.Factors(X, 0.0, sites(np.asarray(y, dtype=int)), prior_mean=0.0, prior_precision=1.0)
    return pb.as_target(factors), None, None


def trial(particles, seed, dim=10, temperature=0.008, longest=100):
    """Print energy errors and jumps of trajectories of all steps and lengths, and the steps that regressions choose."""
    rng, end = np.random.default_rng(seed), shape_matrix(dim, 0.7, 0.1, 10.0)
    cov = np.linalg.inv((1 - temperature) * np.eye(dim) + temperature * np.linalg.inv(end))
    density = Gaussian(cov @ np.linalg.solve(end, np.full(dim, 2.0 * temperature)), cov)
    x = density.sample(particles, rng)
    metric, state = scales_from_points(x), Evaluated(x, *density(x))

    def move(scale):
        tried = StepParameters(scale, rng.integers(1, longest + 1, size=particles))
        return tried, move_once(kernel, rng, state, lambda y, rng: Evaluated(y, *density(y)), tried, metric)[1]

    kernel = make_kernel("hmc")
    print("| steps up to | median regression: ε* | accepted there | least squares: ε* | accepted there |")
    print("| --- " * 5 + "|")
    for largest in (0.5, 1.0, 1.5, 2.0, 2.5):
        tried, info = move(rng.uniform(0.0, largest, particles))
        tuning = BuchholzPretuning(tried, largest, longest, 0.9)
        median = tuning.prepare(lambda _, found=(tried, info): found[1], particles, rng).largest
        error, square = np.abs(info.log_ratio), tried.scale**2
        usable = np.isfinite(error)
        slope = (error * square)[usable].sum() / (square**2)[usable].sum()
        squares = np.sqrt(-np.log(0.9) / slope)
        accepted = [move(np.full(particles, step))[1].acceptance.mean() for step in (median, squares)]
        print(f"| {largest} | {median:.3f} | {accepted[0]:.2f} | {squares:.3g} | {accepted[1]:.2f} |")
    edges, lengths = np.linspace(0.0, 2.5, 11), np.linspace(0, longest, 6).astype(int)
    tried, info = move(rng.uniform(0.0, edges[-1], particles))
    jump = np.nan_to_num(info.acceptance * info.squared_jump / tried.n_steps, posinf=0.0)
    cell = [np.digitize(tried.scale, edges[1:-1]), np.digitize(tried.n_steps - 1, lengths[1:-1])]
    shape = (len(edges) - 1, len(lengths) - 1)
    size, total = (np.bincount(np.ravel_multi_index(cell, shape), w, np.prod(shape)) for w in (None, jump))
    means = (total / np.maximum(size, 1)).reshape(shape)
    ranges = [f"jump, lengths {low + 1} to {high}" for low, high in itertools.pairwise(lengths)]
    print(f"\n| steps | abs. energy error over ε²: median | 90 % quantile | {' | '.join(ranges)} |\n{'| --- ' * 8}|")
    for k, row in enumerate(means / means.max()):
        ratio = (np.abs(info.log_ratio) / tried.scale**2)[cell[0] == k]
        middle, high = np.quantile(ratio, [0.5, 0.9])
        cells = " | ".join(f"{value:.2f}" for value in row)
        print(f"| {edges[k]:.2f} to {edges[k + 1]:.2f} | {middle:.3g} | {high:.3g} | {cells} |", flush=True)


def run(target, kernel, repeats, seed, **options):
    """Return per repeat the log evidence, the mean of the first coordinate, the share of positive ones and the load."""
    kernel, _, tuning = kernel.partition("-")
    if options.pop("thesis"):
        first = (0.1, 100) if kernel == "hmc" else (1.0, 1)
        options |= {"metric": "diagonal", "tuning": pb.FirstPairs(tuning or "ft", *first)}
    else:
        options["tuning"] = tuning or "auto"
    options["kernel"] = kernel
    options.setdefault("draws", 1024)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PPLBackendsWarning)
        idata = pb.sample_smc(target, chains=repeats, random_seed=seed, progressbar=False, **options)
    stats, posterior = group(idata, "sample_stats"), group(idata, "posterior")
    x = next(iter(posterior.data_vars.values())).values
    return {
        "log_evidence": stats["log_evidence_single_run"].values,
        "mean": x[:, :, 0].mean(axis=1),
        "positive": (x > 0).mean(axis=(1, 2)),
        "load": float(stats["n_evaluations"].sum("stage").mean()) * options["draws"],
        "stages": float(stats["beta"].count("stage").mean()),
        "moves": np.round(stats["n_moves"].mean("chain").values).astype(int),
        "jump": 0.5 * np.mean([chain[np.isfinite(chain)][-1] for chain in stats["squared_jump"].values]),
        "lineages": np.sqrt(np.mean(stats["log_evidence_single_run_se"].values ** 2)),
        "trusted": int(not posterior.attrs["warnings"]),  # of tempering, whatever is reported
        "bridge": (posterior.attrs.get("log_evidence_bridge"), posterior.attrs.get("log_evidence_bridge_se")),
    }


def stored(path, label, target, kernel, repeats, seed, **options):
    """Make and append the runs that a file lacks, and return what :func:`run` does, of all runs of the problem there."""
    name, path = f"{label} {kernel} {options.get('draws', 1024)}", Path(path)

    def known():
        return {row["seed"]: row for row in read_rows(path) if row["name"] == name}

    for one in sorted(set(range(seed, seed + repeats)) - set(known())):
        clock = time.process_time()
        found = run(target, kernel, 1, one, **options)
        figures = {key: np.asarray(found[key]).tolist() for key in found if key != "bridge"}
        append_row(path, name=name, seed=one, cpu=time.process_time() - clock, **figures)
    runs = list(known().values())
    joined = {key: np.concatenate([one[key] for one in runs]) for key in ("log_evidence", "mean", "positive")}
    for key in ("load", "stages", "jump", "trusted", "cpu"):
        joined[key] = np.mean([one[key] for one in runs])
    longest = max(len(one["moves"]) for one in runs)
    moves = [one["moves"] + [np.nan] * (longest - len(one["moves"])) for one in runs]
    joined["moves"] = np.round(np.nanmean(moves, axis=0)).astype(int)
    return joined | {"lineages": np.sqrt(np.mean(np.square([one["lineages"] for one in runs]))), "bridge": (None, None)}


def spread(values):
    """Return standard deviation over runs, undefined for one."""
    return np.std(values, ddof=1) if len(values) > 1 else np.nan


def report(label, problem, kernels, repeats, seed, store=None, **options):
    """Print the rows of one problem."""
    target, log_evidence, truth = problem
    first = None
    for kernel in kernels:
        clock = time.process_time()
        if store:
            found = stored(store, label, target, kernel, repeats, seed, **options)
            seconds = found["cpu"]
        else:
            found = run(target, kernel, repeats, seed, **options)
            seconds = (time.process_time() - clock) / repeats
        adjusted = [found["load"] * spread(found[name]) ** 2 for name in ("log_evidence", "mean")]
        adjusted.append(found["load"] * found["lineages"] ** 2)
        first = first or adjusted
        z = found["log_evidence"]
        line = (
            f"| {label} | {kernel} | {found['stages']:.0f} | {found['load']:.3g} | {z.mean():.3f} ± {spread(z):.3f} |"
        )
        line += f" {found['lineages']:.3f} |" + "".join(
            f" {value / one:.3g} |" for value, one in zip(adjusted, first, strict=True)
        )
        line += f" {found['jump']:.3f} | {' '.join(map(str, found['moves']))} | {seconds:.0f} |"
        bridged, error = found["bridge"]
        line += " |" if bridged is None else f" {bridged:.4f} ± {error:.4f} |"
        if label.startswith("mixture"):
            line += (
                f" share positive {found['positive'].mean():.3f} ± {found['positive'].std(ddof=1):.3f}, truth {truth} |"
            )
        elif truth is not None:
            line += (
                f" MSE log Z {np.mean((z - log_evidence) ** 2):.3g}, mean {np.mean((found['mean'] - truth) ** 2):.3g} |"
            )
        else:
            line += " |"
        print(line, "" if found["trusted"] == 1 else "(flagged)", flush=True)


def main():
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["trial", "gaussian", "student", "mixture", "binary", "cox"])
    parser.add_argument("--dims", nargs="+", type=int, default=[10, 50, 200, 500])
    parser.add_argument("--cells", nargs="+", type=int, default=[10, 20], help="cells along a side for cox")
    parser.add_argument("--single", action="store_true", help="the prior of cox with products in single precision")
    parser.add_argument("--sets", nargs="+", default=["sonar", "musk"])
    parser.add_argument("--links", nargs="+", default=["logit", "probit"])
    parser.add_argument("--kernels", nargs="+", default=["hmc-pr", "hmc-ft", "mala", "random_walk"])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--len-chain", type=int)
    parser.add_argument("--initial", help="by default the thesis's: EP for binary regressions, else the prior")
    parser.add_argument("--particles", type=int, default=1024)
    parser.add_argument("--ladder", type=int, help="so many temperatures, evenly spaced, in place of those by the ESS")
    parser.add_argument(
        "--ess", type=float, help="share of the particles that a step keeps, in runs that are made once"
    )
    parser.add_argument("--thesis", action="store_true", help="diagonal metric and first steps of the thesis")
    parser.add_argument("--store", help="file of single runs")
    options = parser.parse_args()
    common, chosen = (options.kernels, options.repeats, options.seed), {"len_chain": options.len_chain}
    chosen["draws"] = options.particles
    chosen |= {"thesis": options.thesis, "store": options.store}
    if options.ess:
        chosen |= {"ess_threshold": options.ess, "max_time": 1e6}  # with a limit no run is made again
    if options.ladder:
        chosen["schedule"] = np.linspace(0, 1, options.ladder + 1)[1:]
    if "trial" in options.parts:
        trial(options.particles, options.seed)
    parts = [part for part in options.parts if part != "trial"]
    if not parts:
        return
    columns = ["problem", "kernel", "stages", "load", "log Z, mean ± sd of a run", "by lineages", "adj. var log Z"]
    columns += ["adj. var mean", "by lineages", "jump", "moves", "CPU s a run"]
    columns += ["bridges, all runs", "against truth"]
    print(f"| {' | '.join(columns)} |")
    print("| --- " * len(columns) + "|", flush=True)
    for part in parts:
        if part == "cox":
            for cells in options.cells:
                initial = options.initial or "prior"
                report(f"cox {cells * cells}", cox(cells, options.single), *common, initial=initial, **chosen)
        elif part == "binary":
            for name in options.sets:
                for link in options.links:
                    sites = {"logit": Logit, "probit": Probit}[link]
                    report(f"{name} {link}", binary(name, sites), *common, initial=options.initial or "ep", **chosen)
        else:
            problem = {"gaussian": gaussian, "student": student, "mixture": mixture}[part]
            threshold = {"ess_threshold": 0.9} if part == "student" else {}
            for dim in options.dims:
                report(f"{part} {dim}", problem(dim), *common, **(threshold | chosen))


if __name__ == "__main__":
    main()

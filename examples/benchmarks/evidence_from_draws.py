"""Evidences from draws: do intervals cover, and how wide are they?

``posteriordb``    posteriors of posteriordb with proper priors, each from ``--sets`` runs of nutpie, 4 × 1,000 draws. The
                   truth is the package's reference evidence, else importance sampling by 8 nets of 2^15 points, from what
                   is fitted to 4 × 4,000 other draws. ``--database`` is a checkout of posteriordb, for all its posteriors.
``references``     the same from other posteriors of the package's table of reference evidences.
``subsets``        the same from posteriordb's reference draws (``--reference-draws``, a folder of its zipped files):
                   each set is 4,000 of the 10,000, which are thinned until they are nearly independent. Sets overlap, so
                   that errors of one posterior are correlated.
``toys``           targets with known evidences: a Gaussian regression with 50 coefficients from independent and from slow
                   draws, a Student t, Neal's funnel, skewed counts, and two modes in which chains are stuck.
``hierarchical``   a regression with intercepts and slopes in 1,000 groups, 2,005 coordinates, from 4 × 5,000 exact draws. The
                   evidence given the five hyper-parameters is a Gaussian's; over these it is integrated by nets of points.
``chains``         the same regression from 4 × 5,000 draws of nutpie.

Coverage is that of nominal 95 % intervals by Student's t. Rows are appended to ``--file`` as lines of JSON, and rows
that are there are not run again. ``--print`` prints the table.

Run: PPL_BACKENDS_STAN_PRECOMPILE=1 python examples/benchmarks/evidence_from_draws.py --file rows.jsonl
         [--kinds posteriordb references subsets toys hierarchical chains] [--names NAME ...] [--methods bridge auto]
         [--sets 20] [--first 0] [--database CHECKOUT]
     python examples/benchmarks/evidence_from_draws.py --file rows.jsonl --print
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import arviz as az
import numpy as np
from scipy.special import gammaln

import ppl_backends as pb
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.marginal_likelihood.proposals import FITS, choose_proposal
from ppl_backends.results.inference_data import group
from ppl_backends.targets.stan import StanTarget

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))
from posteriordb_smc import read_target, read_zip
from reference_models import problems
from rows import append_row, keys_of, read_rows

from tests.toys import bimodal, conjugate_gaussian, funnel, gamma_poisson

PROPER = (
    "eight_schools-eight_schools_noncentered",
    "arK-arK",
    "gp_pois_regr-gp_regr",
    "sblrc-blr",
    "low_dim_gauss_mix-low_dim_gauss_mix",
    "hudson_lynx_hare-lotka_volterra",
)
OTHERS = (
    "pima-logit_gaussian",
    "pima-probit_cauchy",
    "heart-logit_gaussian",
    "plasma-logit_cauchy",
    "glass-logit_gaussian",
    "australian-logit_unit",
    "breast_wisconsin-probit_unit",
    "hald-normal_inverse_gamma",
    "peas-dirichlet_multinomial",
    "gaussian_regression-20",
    "nile-local_level",
    "nile-states",
)
CHAINS, DRAWS = 4, 1000
GROUPS, REPEATS = 1000, 8


def nutpie_draws(target, draws, seed, tune=400):
    """Return draws of nutpie's NUTS on a target: InferenceData with what diverged, and the unconstrained points."""
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    def density(x):
        value, gradient = target.log_density_and_gradient(x[None])
        return float(value[0]), gradient[0]

    compiled = from_pyfunc(
        target.dim,
        lambda: density,
        lambda *_: lambda x: {"x": np.array(x)},
        [np.dtype("float64")],
        [(target.dim,)],
        ["x"],
        make_initial_point_fn=lambda seed: _initial_point(target, seed),
    )
    trace = nutpie.sample(compiled, draws=draws, tune=tune, chains=CHAINS, cores=1, seed=seed, progress_bar=False)
    x = group(trace, "posterior")["x"].values
    flat = x.reshape(-1, target.dim)
    values = (
        target.parameters(flat)
        if isinstance(target, StanTarget)
        else target.constrain(flat, np.random.default_rng(seed))
    )
    shaped = {name: value.reshape(*x.shape[:2], *value.shape[1:]) for name, value in values.items()}
    return with_divergences(shaped, group(trace, "sample_stats")["diverging"].values), x


def _initial_point(target, seed):
    """Return a point near the origin where the density is not zero; nutpie ends with an error elsewhere."""
    x = np.random.default_rng(seed).uniform(-2.0, 2.0, (200, target.dim))
    return x[np.argmax(np.isfinite(target.log_density(x)))]


def with_divergences(values, diverging):
    """Return InferenceData of values by name, by either line of ArviZ."""
    groups = {"posterior": values, "sample_stats": {"diverging": diverging}}
    return az.from_dict(groups) if int(az.__version__.split(".")[0]) >= 1 else az.from_dict(**groups)


def reference(target, x, points):
    """Log evidence and its standard error by nets of points of what is fitted to many draws ``(chain, draw, dim)``."""
    fit = FITS[choose_proposal(x, "hierarchical", tuple(FITS))]
    found = pb.sample_importance(
        target,
        approximation=fit(x.reshape(-1, x.shape[2])),
        proposal="gaussian",
        draws=points,
        chains=8,
        random_seed=99,
        progressbar=False,
    )
    attrs = group(found, "posterior").attrs
    return attrs["log_evidence"], attrs["log_evidence_se"]


def target_named(name, database):
    """Return a posterior of posteriordb, or another one of the table of reference evidences."""
    others = problems()
    if name not in others:
        return read_target(name, database)
    made = others[name].make()
    return pb.as_target(made[0] if isinstance(made, tuple) else made)


def posteriordb(names, methods, seeds, points, known, database):
    """Yield the rows of every posterior and set of draws, without those in ``known``."""
    for name in names:
        asked = [(seed, method) for seed in seeds for method in methods if (name, seed, method) not in known]
        if not asked:
            continue
        target = target_named(name, database)
        if name in pb.datasets.reference_evidence_names():
            about = pb.datasets.reference_evidence(name)
            truth, error = about.log_evidence, about.log_evidence_se
        else:
            _, x = nutpie_draws(target, 4 * DRAWS, 1000)
            truth, error = reference(target, x, points)
        for seed in sorted({seed for seed, _ in asked}):
            values, _ = nutpie_draws(target, DRAWS, seed)
            for method in [method for one, method in asked if one == seed]:
                yield {"truth_se": error} | row(name, seed, method, values, target, truth)


def subsets(names, methods, sets, points, known, folder):
    """Yield the rows of every posterior and subset of its reference draws."""
    for name in names or PROPER:
        target, values = read_target(name), reference_draws(folder, name)
        x = target.unconstrain({key: value.reshape(-1, *value.shape[2:]) for key, value in values.items()})
        truth, error = reference(target, x.reshape(10, -1, target.dim), points)
        label = f"{name}, reference draws"
        for seed in range(sets):
            chosen = np.random.default_rng([8, seed]).permutation(len(x))[: CHAINS * DRAWS]
            drawn = {
                key: value.reshape(-1, *value.shape[2:])[chosen].reshape(CHAINS, DRAWS, *value.shape[2:])
                for key, value in values.items()
            }
            for method in methods:
                if (label, seed, method) not in known:
                    yield {"truth_se": error} | row(label, seed, method, drawn, target, truth)


def reference_draws(folder, name):
    """Return reference draws ``(chain, draw, *shape)`` by parameter."""
    chains = read_zip(folder / f"{name}.draws.json.zip")
    entries = {}
    for key in chains[0]:
        base, _, index = key.rstrip("]").partition("[")
        place = tuple(int(i) - 1 for i in index.split(",")) if index else ()
        entries.setdefault(base, {})[place] = np.array([chain[key] for chain in chains])
    values = {}
    for base, parts in entries.items():
        shape = tuple(np.max(list(parts), axis=0) + 1) if () not in parts else ()
        values[base] = np.empty((*next(iter(parts.values())).shape, *map(int, shape)))
        for place, value in parts.items():
            values[base][(slice(None), slice(None), *place)] = value
    if "theta" in values and "tau" in values:  # eight schools: posteriordb keeps effects, the program standardised ones
        values["theta_trans"] = (values["theta"] - values["mu"][..., None]) / values["tau"][..., None]
    return values


def row(name, seed, method, draws, target, truth):
    """Return one evidence."""
    clock = time.process_time()
    found = pb.evidence(draws, target, method=method, random_seed=seed)
    return {
        "name": name,
        "seed": seed,
        "method": method,
        "dim": target.dim,
        "truth": truth,
        "seconds": time.process_time() - clock,
        "taken": found.method,
        "proposal": found.proposal,
        "log_evidence": found.log_evidence,
        "se": found.log_evidence_se,
        "inside": bool(found.interval()[0] < truth < found.interval()[1]),
        "trusted": found.trusted,
        "reasons": list(found.reasons),
        **found.diagnostics,
    }


def toy_draws(name, rng, draws=DRAWS):
    """Return the target, its exact log evidence, and draws of one toy."""
    shape = (CHAINS, draws)
    if name in ("regression 50, exact draws", "regression 50, slow chains"):
        known = conjugate_gaussian(50)
        factor = np.linalg.cholesky(np.linalg.inv(-known.target.hessian(known.mean[None])[0]))
        slow, noise = 0.8 * name.endswith("chains"), rng.standard_normal((draws, CHAINS, 50))
        z = noise.copy()
        for t in range(1, draws):
            z[t] = slow * z[t - 1] + np.sqrt(1 - slow**2) * noise[t]
        return known.target, known.log_evidence, known.mean + np.swapaxes(z, 0, 1) @ factor.T
    if name == "Student t 10":
        x = rng.standard_normal((*shape, 10)) / np.sqrt(rng.chisquare(3.0, (*shape, 1)) / 3.0)
        return student(10), 0.0, x
    if name == "funnel 6":
        v = 3 * rng.standard_normal((*shape, 1))
        return funnel(5), 0.0, np.concatenate([v, np.exp(v / 2) * rng.standard_normal((*shape, 5))], axis=2)
    if name == "skewed counts":
        known = gamma_poisson()
        return known.target, known.log_evidence, np.log(rng.gamma(7.5, 1 / 4.5, size=(*shape, 1)))
    known = bimodal(separation=4.0)
    shrink = 9 / 9.49
    x = np.array([1, 1, -1, -1])[:, None, None] * 4 * shrink + 0.7 * shrink**0.5 * rng.standard_normal((*shape, 2))
    return known.target, known.log_evidence, x


TOYS = (
    "regression 50, exact draws",
    "regression 50, slow chains",
    "Student t 10",
    "funnel 6",
    "skewed counts",
    "stuck in two modes",
)


def student(dim, df=3.0):
    """Return Student's t."""
    constant = gammaln((df + dim) / 2) - gammaln(df / 2) - dim / 2 * np.log(df * np.pi)

    def density(x):
        square = (x**2).sum(axis=1)
        return constant - (df + dim) / 2 * np.log1p(square / df), -(df + dim) * x / (df + square)[:, None]

    return pb.FunctionTarget(dim, density)


def toys(names, methods, sets, known):
    """Yield the rows of every toy and set of draws."""
    for name in names or TOYS:
        for seed in range(sets):
            target, truth, x = toy_draws(name, np.random.default_rng([5, seed]))
            for method in methods:
                if (name, seed, method) not in known:
                    yield row(name, seed, method, {"x": x}, target, truth)


def hierarchical(methods, sets, known):
    """Yield the rows of the regression with 2,005 coordinates."""
    name = f"hierarchical regression, {2 * GROUPS + 5} coordinates"
    model = HierarchicalRegression()
    truth, error, pool = model.exact()
    for seed in range(sets):
        x = model.draws(pool, 20_000, np.random.default_rng([6, seed])).reshape(CHAINS, -1, model.target.dim)
        for method in methods:
            if (name, seed, method) not in known:
                yield {"truth_se": error} | row(name, seed, method, {"x": x}, model.target, truth)


def chains(methods, sets, known):
    """Yield the rows of the regression with 2,005 coordinates from draws of nutpie."""
    name = f"hierarchical regression, nutpie, {2 * GROUPS + 5} coordinates"
    model = HierarchicalRegression()
    truth, error, _ = model.exact()
    for seed in range(sets):
        asked = [method for method in methods if (name, seed, method) not in known]
        if asked:
            clock = time.process_time()
            values, _ = nutpie_draws(model.with_gradient(), 5000, seed, tune=300)
            sampling = time.process_time() - clock
            for method in asked:
                found = row(name, seed, method, values, model.target, truth)
                yield {"truth_se": error, "sampling": sampling} | found


def table(rows):
    """Print the table as Markdown."""
    print(
        "| draws of | dim | method | sets | taken, proposal | mean error | sd | mean se | coverage | trusted | CPU s |"
    )
    print("| --- " * 11 + "|")
    keys = dict.fromkeys((one["name"], one["method"]) for one in rows)
    for name, method in keys:
        print(line(name, method, [one for one in rows if (one["name"], one["method"]) == (name, method)]))
    others = {*TOYS, f"hierarchical regression, {2 * GROUPS + 5} coordinates"}
    posteriors = [one for one in rows if one["name"] not in others]
    for method in dict.fromkeys(one["method"] for one in posteriors):
        these = [one for one in posteriors if one["method"] == method]
        print(line("all posteriors", method, these))
        print(f"\n{method}: median se {np.median([one['se'] for one in these]):.4f}")
    far = [one for one in rows if one["trusted"] and abs(one["log_evidence"] - one["truth"]) > 4 * one["se"] + 1e-3]
    print(f"\nTrusted and more than four standard errors off: {len(far)} of {len(rows)}.", [one["name"] for one in far])


def line(name, method, rows):
    """Return one row of the table."""
    error, size = (np.array([one[key] for one in rows]) for key in ("log_evidence", "se"))
    error = error - [one["truth"] for one in rows]
    taken = ", ".join(dict.fromkeys(f"{one['taken']} ({one['proposal']})" for one in rows))
    dims = rows[0]["dim"] if len({one["dim"] for one in rows}) == 1 else ""
    return (
        f"| {name} | {dims} | {method} | {len(rows)} | {taken} | {error.mean():+.4f} | {error.std():.4f} | "
        f"{size.mean():.4f} | "
        f"{100 * np.mean([one['inside'] for one in rows]):.0f} % | {100 * np.mean([one['trusted'] for one in rows]):.0f} % | "
        f"{np.mean([one['seconds'] for one in rows]):.1f} |"
    )


def main():
    """Run what is missing, or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", default=["posteriordb", "toys", "hierarchical"])
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--methods", nargs="+", default=["bridge", "auto"])
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first set of nutpie's draws")
    parser.add_argument("--points", type=int, default=2**15)
    parser.add_argument("--reference-draws", type=Path)
    parser.add_argument("--database", type=Path)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    rows = read_rows(options.file)
    if options.print:
        return table(rows)
    warnings.simplefilter("ignore", PPLBackendsWarning)
    seeds = range(options.first, options.first + options.sets)
    known = keys_of(rows, "name", "seed", "method")
    for kind in options.kinds:
        found = {
            "posteriordb": lambda: posteriordb(
                options.names or PROPER, options.methods, seeds, options.points, known, options.database
            ),
            "references": lambda: posteriordb(
                options.names or OTHERS, options.methods, seeds, options.points, known, None
            ),
            "subsets": lambda: subsets(
                options.names, options.methods, options.sets, options.points, known, options.reference_draws
            ),
            "toys": lambda: toys(options.names, options.methods, options.sets, known),
            "hierarchical": lambda: hierarchical(options.methods, options.sets, known),
            "chains": lambda: chains(options.methods, options.sets, known),
        }[kind]()
        for one in found:
            append_row(options.file, **one)
            print(one, flush=True)
    return None


class HierarchicalRegression:
    """y = a + b x + noise in groups, a ~ N(μ₁, τ₁²), b ~ N(μ₂, τ₂²); μ ~ N(0, 5²), and τ and σ half-normal of scale one."""

    def __init__(self, groups=GROUPS, repeats=REPEATS, seed=0):
        rng = np.random.default_rng(seed)
        self.groups, self.n = groups, groups * repeats
        x = rng.standard_normal((groups, repeats))
        effects = np.array([1.0, -0.5]) + np.array([0.8, 0.4]) * rng.standard_normal((groups, 2))
        y = effects[:, :1] + effects[:, 1:] * x + 0.7 * rng.standard_normal((groups, repeats))
        design = np.stack([np.ones_like(x), x], axis=2)
        self.gram = np.einsum("gri,grj->gij", design, design)
        self.cross, self.square = np.einsum("gri,gr->gi", design, y), (y**2).sum(axis=1)
        self.dim = 5 + 2 * groups
        self.target = pb.as_target(self)

    def log_prior(self, phi):
        """Log prior of μ, log τ, log σ with Jacobians."""
        scales = phi[:, 2:]
        value = -0.5 * ((phi[:, :2] / 5.0) ** 2).sum(axis=1) - 2 * np.log(5.0) - np.log(2 * np.pi)
        return value + (scales - 0.5 * np.exp(2 * scales) + 0.5 * np.log(2 / np.pi)).sum(axis=1)

    def log_density(self, points):
        """Return the joint log density."""
        return np.concatenate([self._block(block) for block in np.array_split(points, -(-len(points) // 1000))])

    def _block(self, points):
        phi, effects = points[:, :5], points[:, 5:].reshape(len(points), self.groups, 2)
        a, b = effects[:, :, 0], effects[:, :, 1]
        fit = a**2 * self.gram[:, 0, 0] + 2 * a * b * self.gram[:, 0, 1] + b**2 * self.gram[:, 1, 1]
        residual = (self.square - 2 * (a * self.cross[:, 0] + b * self.cross[:, 1]) + fit).sum(axis=1)
        value = -0.5 * residual * np.exp(-2 * phi[:, 4]) - self.n * (phi[:, 4] + 0.5 * np.log(2 * np.pi))
        spread = ((effects - phi[:, None, :2]) ** 2).sum(axis=1) * np.exp(-2 * phi[:, 2:4])
        value += -0.5 * spread.sum(axis=1) - self.groups * (phi[:, 2:4].sum(axis=1) + np.log(2 * np.pi))
        return value + self.log_prior(phi)

    def with_gradient(self):
        """Return the target with its gradient, for samplers."""
        return pb.FunctionTarget(self.dim, lambda points: (self._block(points), self._gradient(points)))

    def _gradient(self, points):
        phi, effects = points[:, :5], points[:, 5:].reshape(len(points), self.groups, 2)
        noise, narrow = np.exp(-2 * phi[:, 4])[:, None, None], np.exp(-2 * phi[:, 2:4])[:, None, :]
        fit = np.einsum("gij,ngj->ngi", self.gram, effects)
        away = effects - phi[:, None, :2]
        residual = (self.square - (effects * (2 * self.cross - fit)).sum(axis=2)).sum(axis=1)
        means = (away * narrow).sum(axis=1) - phi[:, :2] / 25.0
        squares = np.column_stack([(away**2 * narrow).sum(axis=1) - self.groups, residual * noise[:, 0, 0] - self.n])
        scales = squares + 1.0 - np.exp(2 * phi[:, 2:])
        slopes = noise * (self.cross - fit) - away * narrow
        return np.column_stack([means, scales, slopes.reshape(len(points), -1)])

    def given(self, phi):
        """Return precisions ``(n, groups, 2, 2)`` and means ``(n, groups, 2)`` of effects, and log p(y, φ)."""
        noise = np.exp(-2 * phi[:, 4])
        precision = noise[:, None, None, None] * self.gram + (np.exp(-2 * phi[:, 2:4])[:, None, :, None] * np.eye(2))
        shift = noise[:, None, None] * self.cross + (phi[:, :2] * np.exp(-2 * phi[:, 2:4]))[:, None, :]
        mean = np.linalg.solve(precision, shift[..., None])[..., 0]
        value = 0.5 * ((shift * mean).sum(axis=2) - np.linalg.slogdet(precision)[1]).sum(axis=1)
        value -= 0.5 * self.groups * (phi[:, :2] ** 2 * np.exp(-2 * phi[:, 2:4])).sum(axis=1)
        value -= self.groups * phi[:, 2:4].sum(axis=1) + 0.5 * noise * self.square.sum()
        value -= self.n * (phi[:, 4] + 0.5 * np.log(2 * np.pi))
        return precision, mean, value + self.log_prior(phi)

    def marginal(self):
        """Return the posterior of the hyper-parameters as a target."""

        def density(phi):
            return np.concatenate([self.given(block)[2] for block in np.array_split(phi, -(-len(phi) // 500))])

        class Marginal:
            dim = 5
            log_density = staticmethod(density)

        return pb.as_target(Marginal())

    def exact(self, seed=1, draws=2048, chains=8):
        """Log evidence with its standard error, and a pool of draws of the hyper-parameters."""
        result = pb.sample_importance(
            self.marginal(), approximation="laplace", draws=draws, chains=chains, random_seed=seed, progressbar=False
        )
        posterior = group(result, "posterior")
        return posterior.attrs["log_evidence"], posterior.attrs["log_evidence_se"], posterior["x"].values.reshape(-1, 5)

    def draws(self, pool, n, rng):
        """Return exact draws ``(n, dim)`` of the posterior."""
        phi = pool[rng.integers(0, len(pool), n)]
        found = []
        for block in np.array_split(phi, -(-n // 500)):
            precision, mean, _ = self.given(block)
            root = np.linalg.cholesky(np.linalg.inv(precision))
            effects = mean + (root @ rng.standard_normal((*mean.shape, 1)))[..., 0]
            found.append(np.hstack([block, effects.reshape(len(block), -1)]))
        return np.concatenate(found)


if __name__ == "__main__":
    main()

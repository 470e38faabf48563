"""``fit_inla`` on latent fields that are given as matrices: autoregression, second-order walk, mesh, and Besag–York–Mollié.

    python examples/benchmarks/inla_fields.py large NAME SIZE   (one field; time and largest memory of the process)
    python examples/benchmarks/inla_fields.py sparse            (small fields, by all covariances and by sparse factors)
    python examples/benchmarks/inla_fields.py areas             (two models of areas, in PyMC and as matrices, and NUTS)

``SIZE`` is the length of a series, or the side of a square lattice or mesh. All data are simulated counts.
"""

import resource
import sys
import time
import warnings

import numpy as np
from scipy import sparse, stats
from scipy.sparse.linalg import splu, spsolve

import ppl_backends as pb
from ppl_backends.approximations.inla import latent
from ppl_backends.targets.factors import Poisson


def draw(precision, rng):
    """Return one draw of a Gaussian with a sparse precision."""
    lu = splu(sparse.csc_matrix(precision), permc_spec="NATURAL", diag_pivot_thresh=0, options={"SymmetricMode": True})
    return spsolve(sparse.csc_matrix(lu.L.T), rng.standard_normal(precision.shape[0]) / np.sqrt(lu.U.diagonal()))


def normal_prior(mean, sd):
    """Return the log density of independent normal priors of φ."""
    return lambda phi: float(stats.norm.logpdf(phi, mean, sd).sum())


def half_normal_scales(phi):
    """Return the log density of log precisions whose standard deviations are HalfNormal(1)."""
    return float((-0.5 * np.exp(-phi) - 0.5 * phi + np.log(0.5) + 0.5 * np.log(2 / np.pi)).sum())


def autoregression(n):
    """Return counts of an autoregression with unknown persistence and precision, and their true values."""
    rng, persistence, sd = np.random.default_rng(1), 0.95, 0.3
    x = np.zeros(n)
    x[0] = sd / np.sqrt(1 - persistence**2) * rng.standard_normal()
    for t in range(1, n):
        x[t] = persistence * x[t - 1] + sd * rng.standard_normal()

    def precision(phi):
        rho, middle = 2 / (1 + np.exp(-phi[0])) - 1, np.ones(n)
        middle[1:-1] += rho**2
        walk = sparse.diags([-rho, middle, -rho], [-1, 0, 1], shape=(n, n))
        return sparse.block_diag([[[0.04]], np.exp(phi[1]) * walk], format="csc")

    model = pb.LatentGaussian(
        precision,
        Poisson(rng.poisson(np.exp(0.5 + x))),
        design=sparse.hstack([np.ones((n, 1)), sparse.identity(n)]),
        hyper_start=[3.0, 2.0],
        hyper_prior=normal_prior([3.0, 2.0], [1.0, 1.5]),
        hyper_names=["logit_rho", "log_tau"],
    )
    return model, (np.log((1 + persistence) / (1 - persistence)), -2 * np.log(sd))


def second_order_walk(n):
    """Return counts of a smooth curve with a walk of second order, whose null space is spanned by level and slope."""
    rng, t = np.random.default_rng(2), np.arange(n) / n
    y = rng.poisson(np.exp(0.5 + np.sin(12 * t) + 0.5 * np.cos(31 * t)))
    differences = sparse.diags([1.0, -2.0, 1.0], [0, 1, 2], shape=(n - 2, n))
    structure, trend = differences.T @ differences, np.column_stack([np.ones(n), np.linspace(-1, 1, n)])
    centre = np.log(n**3 / 100.0)
    return pb.LatentGaussian(
        lambda phi: sparse.block_diag([0.04 * sparse.identity(2), np.exp(phi[0]) * structure], format="csc"),
        Poisson(y),
        design=sparse.hstack([trend, sparse.identity(n)]),
        constraints=np.column_stack([np.zeros((2, 2)), trend.T]),
        hyper_start=[centre],
        hyper_prior=normal_prior(centre, 4.0),
        hyper_names=["log_tau"],
    ), (np.nan,)


def finite_elements(m):
    """Return masses, stiffness and spacing of a triangulated square with m × m nodes."""
    h, node = 1 / (m - 1), np.arange(m * m).reshape(m, m)
    lower = np.stack([node[:-1, :-1], node[1:, :-1], node[:-1, 1:]], axis=-1).reshape(-1, 3)
    upper = np.stack([node[1:, 1:], node[:-1, 1:], node[1:, :-1]], axis=-1).reshape(-1, 3)
    corners = np.concatenate([lower, upper])
    local = 0.5 * np.array([[2.0, -1.0, -1.0], [-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]])
    rows, columns = np.repeat(corners, 3, axis=1).ravel(), np.tile(corners, (1, 3)).ravel()
    stiffness = sparse.coo_matrix((np.tile(local.ravel(), len(corners)), (rows, columns))).tocsc()
    return np.bincount(corners.ravel(), minlength=m * m) * h**2 / 6, stiffness, h


def mesh(m):
    """Return counts at random places, with a Matérn field of unknown scale and range on a mesh (Lindgren et al. 2011)."""
    rng, n = np.random.default_rng(3), m * m
    places = n // 2
    masses, stiffness, h = finite_elements(m)
    parts = sparse.diags(masses), stiffness, stiffness @ sparse.diags(1 / masses) @ stiffness
    kappa, sd = np.sqrt(8) / 0.3, 0.7
    true = np.log([1 / (sd * np.sqrt(4 * np.pi) * kappa), kappa])

    def field(phi):
        tau, k = np.exp(2 * phi[0]), np.exp(2 * phi[1])
        return tau * (k**2 * parts[0] + 2 * k * parts[1] + parts[2])

    where = 0.9999 * rng.random((places, 2))
    cell = (where / h).astype(int)
    u, v = (where / h - cell).T
    far = u + v > 1
    at = [(cell[:, 0] + i) * m + cell[:, 1] + j for i, j in ((0, 0), (1, 1), (1, 0), (0, 1))]
    weights = np.r_[np.where(far, u + v - 1, 1 - u - v), np.where(far, 1 - v, u), np.where(far, 1 - u, v)]
    nodes = np.r_[np.where(far, at[1], at[0]), at[2], at[3]]
    project = sparse.coo_matrix((weights, (np.tile(np.arange(places), 3), nodes)), shape=(places, n))
    return pb.LatentGaussian(
        lambda phi: sparse.block_diag([[[0.04]], field(phi)], format="csc"),
        Poisson(rng.poisson(np.exp(1 + project @ draw(field(true), rng)))),
        design=sparse.hstack([np.ones((places, 1)), project]),
        hyper_start=np.add(true, [0.3, -0.3]),
        hyper_prior=normal_prior(true, 1.0),
        hyper_names=["log_tau", "log_kappa"],
    ), tuple(true)


def lattice(a, b):
    """Return the neighbours of the cells of an a × b lattice."""
    line = [sparse.diags([1.0, 1.0], [-1, 1], shape=(k, k)) for k in (b, a)]
    return sparse.kronsum(*line).tocsc()


def counts_of_areas(neighbours):
    """Return counts of areas, their expected values and a predictor."""
    n, rng = neighbours.shape[0], np.random.default_rng(4)
    structure = sparse.diags(np.asarray(neighbours.sum(axis=1)).ravel()) - neighbours
    phi = draw(structure + 1e-4 * sparse.identity(n), rng)
    expected, x = rng.gamma(2, 4, n), rng.standard_normal(n)
    noise = 0.5 * (phi - phi.mean()) / phi.std() + 0.3 * rng.standard_normal(n)
    return rng.poisson(expected * np.exp(0.1 + 0.3 * x + noise)), expected, x


def areas(neighbours, y, expected, x):
    """Return the model of Besag, York & Mollié: an intercept, a slope, independent effects, and an intrinsic field."""
    n = len(y)
    structure = sparse.diags(np.asarray(neighbours.sum(axis=1)).ravel()) - neighbours
    return pb.LatentGaussian(
        lambda phi: sparse.block_diag(
            [sparse.diags([0.25, 1.0]), np.exp(phi[0]) * sparse.identity(n), np.exp(phi[1]) * structure], format="csc"
        ),
        Poisson(y),
        design=sparse.hstack([np.ones((n, 1)), x[:, None], sparse.identity(n), sparse.identity(n)]),
        offset=np.log(expected),
        constraints=np.r_[np.zeros(n + 2), np.ones(n)],
        hyper_start=[2.0, 1.0],
        hyper_prior=half_normal_scales,
        hyper_names=["log_tau_own", "log_tau_shared"],
    )


def square_of_areas(m):
    """Return areas on an m × m lattice."""
    neighbours = lattice(m, m)
    return areas(neighbours, *counts_of_areas(neighbours)), (-2 * np.log(0.3), np.nan)


FIELDS = {"autoregression": autoregression, "walk": second_order_walk, "mesh": mesh, "areas": square_of_areas}


def fitted(name, size):
    """Fit a field, and print time, memory and hyper-parameters."""
    model, true = FIELDS[name](size)
    started = time.process_time()
    q = pb.fit_inla(model, progressbar=False)
    spent, memory = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    p = len(q.hyper.names)
    print(
        f"{name} {size}: {q.dim - p} latents, {q.diagnostics['fits']:.0f} fits, {spent:.1f} CPU s, {memory:.2f} GB, "
        f"log Z {q.log_evidence:.2f}, {', '.join(q.hyper.names)} {q.mean[:p].round(3)} ± {q.sd[:p].round(3)} "
        f"(true {np.round(true, 3)}), {q.converged} {q.trouble}",
        flush=True,
    )
    return q


def compare_small():
    """Print what changes if covariances are known only in the pattern of the sparse factor."""
    for name, size in (("autoregression", 200), ("walk", 200), ("mesh", 14), ("areas", 10)):
        latent.DENSE = 500
        dense = fitted(name, size)
        latent.DENSE = 0
        known = fitted(name, size)
        print(
            f"    means {np.abs((known.mean - dense.mean) / dense.sd).max():.4f} sd, "
            f"sds {100 * np.abs(known.sd / dense.sd - 1).max():.2f} %, log Z {known.log_evidence - dense.log_evidence:+.4f}"
        )


def areas_in_pymc(neighbours, y, expected, x, mixed):
    """Return the model in PyMC; ``mixed``: a standard deviation and the field's share (Riebler et al. 2016)."""
    import pymc as pm

    n, w = len(y), neighbours.toarray().astype(int)
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 1)
        own, shared = pm.Normal("own", 0, 1, shape=n), pm.ICAR("shared", W=w)
        if mixed:
            sigma, rho = pm.HalfNormal("sigma", 1), pm.Beta("rho", 0.5, 0.5)
            scale = np.exp(np.log(np.diag(np.linalg.pinv(np.diag(w.sum(axis=1)) - w))).mean())
            effect = sigma * (pm.math.sqrt(1 - rho) * own + pm.math.sqrt(rho / scale) * shared)
        else:
            effect = pm.HalfNormal("sd_own", 1) * own + pm.HalfNormal("sd_shared", 1) * shared
        effect = pm.Deterministic("effect", effect)
        pm.Poisson("y", pm.math.exp(np.log(expected) + intercept + slope * x + effect), observed=y)
    return model


def compare_areas(draws=8000):
    """Print distances of means and standard deviations from NUTS, on 7 × 8 areas."""
    import arviz as az
    import nutpie

    from ppl_backends.results.inference_data import group

    neighbours = lattice(7, 8)
    data = counts_of_areas(neighbours)
    for mixed in (False, True):
        model = areas_in_pymc(neighbours, *data, mixed)
        started = time.process_time()
        q = pb.fit_inla(model, progressbar=False)
        spent = time.process_time() - started
        found = group(q.to_inference_data(draws=20_000), "posterior")
        options = {"tune": 1500, "chains": 4, "cores": 1, "seed": 1, "target_accept": 0.95, "progress_bar": False}
        started = time.process_time()
        exact = nutpie.sample(nutpie.compile_pymc_model(model), draws=draws, **options).posterior
        print(f"mixed={mixed}: {spent:.1f} CPU s, NUTS {time.process_time() - started:.1f}, {q.converged} {q.trouble}")
        for name in exact.data_vars:
            if name not in found:
                continue
            mine, theirs = (
                each[name].stack(draw_=("chain", "draw")).transpose("draw_", ...) for each in (found, exact)
            )
            mine, theirs = mine.values, theirs.values
            shift = np.abs(mine.mean(axis=0) - theirs.mean(axis=0)) / theirs.std(axis=0)
            ratio = np.abs(mine.std(axis=0) / theirs.std(axis=0) - 1)
            ess = float(np.min(az.ess(exact[name]).to_array()))
            print(
                f"    {name:10s} mean off {shift.max():.3f} sd, sd off {100 * ratio.max():.1f} %; 2 se "
                f"{2 / ess**0.5:.3f} and {200 / (2 * ess) ** 0.5:.1f} %",
                flush=True,
            )
        if not mixed:
            compare_matrices(areas(neighbours, *data), exact, len(data[0]))


def compare_matrices(model, exact, n):
    """Print the same distances for the model as matrices: log standard deviations, and the sums of both effects."""
    q = pb.fit_inla(model, progressbar=False)
    drawn = q.sample(20_000, np.random.default_rng(1))
    effect, of_effect = drawn[:, 4 : 4 + n] + drawn[:, 4 + n :], exact["effect"].values.reshape(-1, n)
    theirs = np.log(np.stack([exact[name].values.ravel() for name in ("sd_own", "sd_shared")]))
    off = np.abs(-0.5 * q.mean[:2] - theirs.mean(axis=1)) / theirs.std(axis=1)
    ratio = 100 * np.abs(0.5 * q.sd[:2] / theirs.std(axis=1) - 1)
    shift = np.abs((effect.mean(axis=0) - of_effect.mean(axis=0)) / of_effect.std(axis=0)).max()
    wide = 100 * np.abs(effect.std(axis=0) / of_effect.std(axis=0) - 1).max()
    print(f"    as matrices: log sds off {off.round(3)} sd, {ratio.round(1)} %; effects {shift:.3f} sd, {wide:.1f} %")


if __name__ == "__main__":
    part, *rest = sys.argv[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        if part == "large":
            fitted(rest[0], int(rest[1]))
        elif part == "sparse":
            compare_small()
        else:
            compare_areas()

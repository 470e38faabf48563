"""Integrals by other people's software, of any batched log density: vegas and nautilus, and quadrature by SciPy.

``vegas`` (Lepage 2021) and ``nautilus`` (Lange 2023) integrate over the unit cube. It is mapped to the real space by axes
and scales of draws from NUTS, with wide tails, or by the inverse of the prior's distribution function.
"""

import numpy as np
from scipy.special import logsumexp

FEW = (
    12  # coordinates up to which the map has the tails of a Student t with two degrees of freedom; logistic ones beyond
)


class Map:
    """From the unit cube to the real space: axes of draws, and along each a symmetric density.

    Parameters
    ----------
    x : ndarray (n, dim)
        Draws of the posterior.
    widen : float
        Factor of the scales.
    rotate : bool
        Whether the axes are those of the covariance; else they are the coordinates, for a product of their densities.
    """

    def __init__(self, x, widen=1.0, rotate=True):
        self.mean = np.median(x, axis=0)
        cov = np.atleast_2d(np.cov(x.T))
        values, vectors = np.linalg.eigh(cov if rotate else np.diag(np.diag(cov)))
        self.axes, self.heavy = vectors * np.sqrt(np.maximum(values, 1e-300)) * widen, x.shape[1] <= FEW
        self.log_volume = 0.5 * np.log(np.maximum(values, 1e-300)).sum() + x.shape[1] * np.log(widen)

    def __call__(self, u):
        """Points ``(n, dim)`` and the log of the Jacobian ``(n,)``."""
        u = np.clip(u, 1e-15, 1 - 1e-15)
        if self.heavy:
            z = (2 * u - 1) / np.sqrt(2 * u * (1 - u))
            log_slope = 1.5 * np.log(2 + z**2)
        else:
            scale = np.sqrt(3) / np.pi
            z, log_slope = scale * np.log(u / (1 - u)), np.log(scale) - np.log(u) - np.log1p(-u)
        return self.mean + z @ self.axes.T, log_slope.sum(axis=1) + self.log_volume


def in_blocks(log_density, x, size=20_000):
    """Log densities, with −inf where they are undefined."""
    value = np.concatenate([log_density(block) for block in np.array_split(x, max(1, len(x) // size))])
    return np.where(np.isnan(value), -np.inf, value)


def vegas(log_density, dim, draws, seed, evaluations=6_000, adapt=6, repeats=12, widen=1.0, rotate=True):
    """Log integral, its standard error and degrees of freedom: the mean of ``repeats`` passes after ``adapt`` others."""
    import vegas as package

    to_space = Map(draws, widen, rotate)
    some = draws[:: max(1, len(draws) // 500)]
    level = in_blocks(log_density, some).max() + to_space.log_volume + 0.5 * dim * np.log(2 * np.pi)

    def integrand(u):
        x, log_jacobian = to_space(np.asarray(u))
        return np.exp(in_blocks(log_density, x) + log_jacobian - level)

    package.ran_array_generator = np.random.default_rng(seed).random
    integrator = package.Integrator(dim * [[0.0, 1.0]], mpi=False)
    batch = package.lbatchintegrand(integrand)
    integrator(batch, nitn=adapt, neval=evaluations)
    found = integrator(batch, nitn=repeats, neval=evaluations, adapt=False)
    means = np.array([one.mean for one in found.itn_results])
    error = means.std(ddof=1) / np.sqrt(repeats) / means.mean()
    return level + np.log(means.mean()), error, repeats - 1


def nautilus(log_density, dim, draws, seed, live=1000, effective=20_000, widen=1.5, from_prior=None):
    """Log integral and its standard error by nested sampling with neural networks.

    With ``from_prior``, a function of points of the unit cube that gives draws of the prior, ``log_density`` is the log
    likelihood at these.
    """
    from nautilus import Sampler

    to_space = None if from_prior else Map(draws, widen)

    def log_likelihood(u):
        if from_prior:
            return in_blocks(log_density, from_prior(u))
        x, log_jacobian = to_space(u)
        return np.maximum(in_blocks(log_density, x) + log_jacobian, -1e300)

    sampler = Sampler(lambda u: u, log_likelihood, dim, n_live=live, vectorized=True, seed=seed)
    sampler.run(n_eff=effective, verbose=False)
    log_weight = sampler.posterior()[1]
    size = np.exp(2 * logsumexp(log_weight) - logsumexp(2 * log_weight))
    return float(sampler.log_z), float(1 / np.sqrt(size)), None


def dynesty(log_likelihood, dim, from_prior, seed, live=500):
    """Log integral and its standard error by nested sampling over the prior."""
    import dynesty as package

    sampler = package.NestedSampler(
        lambda x: float(log_likelihood(x[None])[0]),
        lambda u: from_prior(u[None])[0],
        dim,
        nlive=live,
        rstate=np.random.default_rng(seed),
    )
    sampler.run_nested(print_progress=False)
    return float(sampler.results.logz[-1]), float(sampler.results.logzerr[-1]), None


def quadrature(log_density, dim, draws, points=None, widen=1.2):
    """Log integral by the trapezoid rule in the mapped coordinates, and its change from two thirds of the points."""
    points = points or {1: 3000, 2: 300, 3: 72}[dim]
    to_space, found = Map(draws, widen), []
    for each in (points, 2 * points // 3):
        axis = (np.arange(each) + 0.5) / each
        u = np.stack(np.meshgrid(*dim * [axis], indexing="ij"), axis=-1).reshape(-1, dim)
        x, log_jacobian = to_space(u)
        found.append(logsumexp(in_blocks(log_density, x) + log_jacobian) - dim * np.log(each))
    return found[0], abs(found[0] - found[1])

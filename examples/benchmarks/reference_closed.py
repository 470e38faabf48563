"""Posteriors and densities with evidences in closed form, and those that one-dimensional integrals give."""

import numpy as np
from scipy import integrate, stats
from scipy.special import gammaln, logsumexp

import ppl_backends as pb

LOG_2PI = np.log(2 * np.pi)
HALD = np.array(
    [
        [7, 26, 6, 60, 78.5],
        [1, 29, 15, 52, 74.3],
        [11, 56, 8, 20, 104.3],
        [11, 31, 8, 47, 87.6],
        [7, 52, 6, 33, 95.9],
        [11, 55, 9, 22, 109.2],
        [3, 71, 17, 6, 102.7],
        [1, 31, 22, 44, 72.5],
        [2, 54, 18, 22, 93.1],
        [21, 47, 4, 26, 115.9],
        [1, 40, 23, 34, 83.8],
        [11, 66, 9, 12, 113.3],
        [10, 68, 8, 12, 109.4],
    ]
)
HORSE_KICKS = {"deaths": [0, 1, 2, 3, 4], "corps_years": [109, 65, 22, 3, 1]}
PEAS = [315, 108, 101, 32]
# fmt: off
NILE = np.array([
    1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960, 1180, 799, 958, 1140,
    1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694, 940, 833, 701, 916, 692, 1020, 1050, 969,
    831, 726, 456, 824, 702, 1120, 1100, 832, 764, 821, 768, 845, 864, 862, 698, 845, 744, 796, 1040, 759,
    781, 865, 845, 944, 984, 897, 822, 1010, 771, 676, 649, 846, 812, 742, 801, 1040, 860, 874, 848, 890,
    744, 749, 838, 1050, 918, 986, 797, 923, 975, 815, 1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740,
], dtype=float)
# fmt: on


def joint(dim, function, names=None):
    """A target whose prior and likelihood are not told apart."""
    return pb.FunctionTarget(dim, function, names=names)


def hald():
    """Hald's cement: y ~ N(X β, σ² I), X one and four centred columns, β | σ² ~ N(0, 100 σ² I), σ² ~ IG(2, 10); β, log σ²."""
    X = np.column_stack([np.ones(13), HALD[:, :4] - HALD[:, :4].mean(axis=0)])
    y, n, p, g, a, b = HALD[:, 4], 13, 5, 100.0, 2.0, 10.0

    def density(x):
        beta, log_variance = x[:, :p], x[:, p]
        precision = np.exp(-log_variance)
        residual = y - beta @ X.T
        square = (residual**2).sum(axis=1) + (beta**2).sum(axis=1) / g
        value = -0.5 * precision * square - 0.5 * (n + p) * (log_variance + LOG_2PI) - 0.5 * p * np.log(g)
        value += a * np.log(b) - gammaln(a) - a * log_variance - b * precision
        slope = precision[:, None] * (residual @ X - beta / g)
        last = 0.5 * precision * square - 0.5 * (n + p) - a + b * precision
        return value, np.column_stack([slope, last])

    covariance = np.eye(n) + g * X @ X.T
    exact = stats.multivariate_t(np.zeros(n), b / a * covariance, df=2 * a).logpdf(y)
    return joint(p + 1, density), float(exact)


def horse_kicks():
    """Deaths by horse kicks in Prussian cavalry corps: Poisson(λ) with λ ~ gamma(1, 1), on log λ."""
    deaths = np.repeat(HORSE_KICKS["deaths"], HORSE_KICKS["corps_years"])
    total, n, constant = deaths.sum(), len(deaths), gammaln(deaths + 1.0).sum()

    def density(x):
        value = (total + 1) * x[:, 0] - (n + 1) * np.exp(x[:, 0]) - constant
        return value, (total + 1) - (n + 1) * np.exp(x)

    return joint(1, density, ["log lambda"]), float(gammaln(total + 1.0) - (total + 1) * np.log(n + 1.0) - constant)


def peas():
    """Mendel's peas: multinomial with a uniform Dirichlet prior, on log odds against the last kind."""
    counts = np.array(PEAS, float)
    n, constant = counts.sum(), gammaln(counts.sum() + 1) - gammaln(counts + 1).sum() + gammaln(4.0)

    def density(x):
        full = np.column_stack([x, np.zeros(len(x))])
        log_p = full - logsumexp(full, axis=1)[:, None]
        value = (log_p * (counts + 1)).sum(axis=1) + constant
        return value, (counts + 1)[:3] - (n + 4) * np.exp(log_p[:, :3])

    return joint(3, density), float(constant + gammaln(counts + 1).sum() - gammaln(n + 4))


def pooled_schools():
    """Eight schools with one effect: y_j ~ N(μ, σ_j²), μ ~ N(0, 5²)."""
    y, sd = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def density(x):
        z = (y - x) / sd
        value = -0.5 * (z**2).sum(axis=1) - np.log(sd).sum() - 4 * LOG_2PI
        value += -0.5 * (x[:, 0] / 5) ** 2 - np.log(5) - 0.5 * LOG_2PI
        return value, ((z / sd).sum(axis=1) - x[:, 0] / 25)[:, None]

    exact = stats.multivariate_normal(np.zeros(8), np.diag(sd**2) + 25.0).logpdf(y)
    return joint(1, density, ["mu"]), float(exact)


def eight_schools(data):
    """Log evidence of eight schools as Stan writes it, τ half a Cauchy that counts one half: quadrature over τ alone.

    Given τ = 5 tan(πu/2) the effects y are Gaussian around a mean that has a Gaussian prior.
    """
    y, sd = np.array(data["y"], float), np.array(data["sigma"], float)
    nodes, weights = np.polynomial.legendre.leggauss(1000)
    variance = (5 * np.tan(0.25 * np.pi * (nodes + 1)))[:, None] ** 2 + sd**2
    precision, shift = (1 / variance).sum(axis=1) + 1 / 25, (y / variance).sum(axis=1)
    square = (y**2 / variance + np.log(variance) + LOG_2PI).sum(axis=1) - shift**2 / precision
    return float(logsumexp(-0.5 * (square + np.log(25 * precision)), b=0.5 * weights) - np.log(2))


def nile_states():
    """Levels of the Nile as 100 coordinates: a local level model with the two variances of Durbin & Koopman given."""
    noise, step, first, spread = 15099.0, 1469.1, 1000.0, 500.0
    n = len(NILE)
    differences = np.eye(n) - np.eye(n, k=-1)
    prior = differences.T @ np.diag(1 / np.r_[spread**2, np.full(n - 1, step)]) @ differences
    mean = np.full(n, first)
    constant = -0.5 * n * np.log(noise) - 0.5 * (n - 1) * np.log(step) - np.log(spread) - n * LOG_2PI

    def density(x):
        from_prior, from_data = x - mean, NILE - x
        value = -0.5 * ((from_prior @ prior) * from_prior).sum(axis=1) - 0.5 * (from_data**2).sum(axis=1) / noise
        return value + constant, -from_prior @ prior + from_data / noise

    exact = stats.multivariate_normal(mean, np.linalg.inv(prior) + noise * np.eye(n)).logpdf(NILE)
    return joint(n, density), float(exact)


def gaussian_regression(dim):
    """A conjugate regression: 2 dim rows, N(0, I) coefficients, noise of variance one quarter; simulated, seed ``dim``."""
    rng = np.random.default_rng(dim)
    X = rng.standard_normal((2 * dim, dim)) @ (np.eye(dim) + 0.5)
    y = X @ rng.standard_normal(dim) + 0.5 * rng.standard_normal(2 * dim)

    def density(x):
        residual = y - x @ X.T
        value = -2 * (residual**2).sum(axis=1) + dim * np.log(4.0) - dim * LOG_2PI
        return value - 0.5 * (x**2).sum(axis=1) - 0.5 * dim * LOG_2PI, 4 * residual @ X - x

    exact = stats.multivariate_normal(np.zeros(2 * dim), X @ X.T + 0.25 * np.eye(2 * dim)).logpdf(y)
    return joint(dim, density), float(exact)


def funnel(dim):
    """Neal's funnel: v ~ N(0, 3²), the others N(0, exp(v))."""

    def density(x):
        v, rest = x[:, 0], x[:, 1:]
        square = (rest**2).sum(axis=1) * np.exp(-v)
        value = -0.5 * v**2 / 9 - np.log(3) - 0.5 * square - 0.5 * (dim - 1) * v - 0.5 * dim * LOG_2PI
        return value, np.column_stack([-v / 9 + 0.5 * square - 0.5 * (dim - 1), -rest * np.exp(-v)[:, None]])

    return joint(dim, density), 0.0


def funnel_draws(dim, seed):
    """Independent draws ``(4, 1000, dim)`` of Neal's funnel."""
    rng = np.random.default_rng(seed)
    v = 3 * rng.standard_normal((4, 1000, 1))
    return np.concatenate([v, np.exp(v / 2) * rng.standard_normal((4, 1000, dim - 1))], axis=2)


def mixture(log_components, draws_of):
    """A target from log densities and scores of the components, of equal weight; see the callers."""

    def density(x):
        value, slope = log_components(x)  # (n, k), (n, k, dim)
        total = logsumexp(value, axis=1)
        share = np.exp(value - total[:, None])
        return total - np.log(value.shape[1]), (share[:, :, None] * slope).sum(axis=1)

    return density, draws_of


def gaussians(centres, sds):
    """An equal mixture of Gaussians with independent coordinates: centres and sds ``(k, dim)``."""

    def components(x):
        z = (x[:, None] - centres) / sds
        value = (-0.5 * z**2 - np.log(sds) - 0.5 * LOG_2PI).sum(axis=2)
        return value, -z / sds

    return joint(centres.shape[1], mixture(components, None)[0]), 0.0


def four_bumps():
    """The mixture in one dimension of Blessing et al. (2024)."""
    return gaussians(np.array([[-3.0], [0.5], [1.5], [2.5]]), np.array([[0.5], [0.6], [0.3], [0.4]]))


def forty_gaussians():
    """Forty unit Gaussians in the plane, their centres uniform on (−40, 40)², drawn by NumPy with seed 0."""
    return gaussians(np.random.default_rng(0).uniform(-40, 40, size=(40, 2)), np.ones((40, 2)))


def student_mixture():
    """Ten products of Student t's with two degrees of freedom, their centres uniform on (−10, 10)², NumPy seed 0."""
    centres, df = np.random.default_rng(0).uniform(-10, 10, size=(10, 2)), 2.0
    constant = gammaln(0.5 * (df + 1)) - gammaln(0.5 * df) - 0.5 * np.log(df * np.pi)

    def components(x):
        z = x[:, None] - centres
        return (constant - 0.5 * (df + 1) * np.log1p(z**2 / df)).sum(axis=2), -(df + 1) * z / (df + z**2)

    return joint(2, mixture(components, None)[0]), 0.0


def many_well(dim=32):
    """Products of double wells exp(½ a + 6 a² − a⁴) and normals, half of the coordinates each: 2^16 modes."""

    def density(x):
        a, b = x[:, 0::2], x[:, 1::2]
        slope = np.empty_like(x)
        slope[:, 0::2], slope[:, 1::2] = 0.5 + 12 * a - 4 * a**3, -b
        return (0.5 * a + 6 * a**2 - a**4).sum(axis=1) - 0.5 * (b**2).sum(axis=1), slope

    one = integrate.quad(lambda a: np.exp(0.5 * a + 6 * a**2 - a**4 - 9), -6, 6, epsabs=0, epsrel=1e-12, limit=200)[0]
    return joint(dim, density), float(dim / 2 * (np.log(one) + 9 + 0.5 * LOG_2PI))


def many_well_draws(dim, seed):
    """Independent draws ``(4, 1000, dim)``: double wells by their distribution function on a grid, and normals."""
    rng = np.random.default_rng(seed)
    x, grid = rng.standard_normal((4, 1000, dim)), np.linspace(-4, 4, 100_001)
    below = np.cumsum(np.exp(0.5 * grid + 6 * grid**2 - grid**4 - 11))
    x[..., 0::2] = np.interp(rng.random((4, 1000, dim // 2)), below / below[-1], grid)
    return x


def with_uniform_prior(dim, log_likelihood):
    """A target from a uniform prior on the unit cube, in logit coordinates, and a log likelihood of points of the cube."""

    def likelihood(x):
        p = 1 / (1 + np.exp(-x))
        value, slope = log_likelihood(p)
        return value, slope * p * (1 - p)

    def prior(x):
        return (-np.logaddexp(0, -x) - np.logaddexp(0, x)).sum(axis=1), -np.tanh(x / 2)

    return pb.FunctionTarget(dim, likelihood, prior, lambda n, rng: rng.logistic(size=(n, dim)))


def eggbox():
    """The egg box (2 + cos(u/2) cos(v/2))⁵ on (0, 10π)², by logit coordinates; the prior is uniform."""

    def log_likelihood(p):
        u = 10 * np.pi * p
        cosines, sines = np.cos(u / 2), np.sin(u / 2)
        base = 2 + cosines.prod(axis=1)
        return base**5, 5 * base[:, None] ** 4 * (-0.5 * sines * cosines[:, ::-1]) * 10 * np.pi

    grid = 10 * np.pi * (np.arange(4000) + 0.5) / 4000
    value = (2 + np.cos(grid / 2)[:, None] * np.cos(grid / 2)) ** 5
    return with_uniform_prior(2, log_likelihood), float(logsumexp(value) - 2 * np.log(4000))


def shells(dim):
    """Two Gaussian shells of radius 2 and width 0.1 at ±3.5 on the first axis (Feroz et al. 2009), prior U(−6, 6)."""
    radius, width, centre, half = 2.0, 0.1, 3.5, 6.0

    def log_likelihood(p):
        point, values, slopes = half * (2 * p - 1), [], []
        for sign in (1.0, -1.0):
            away = point - sign * centre * (np.arange(dim) == 0)
            r = np.sqrt((away**2).sum(axis=1))
            values.append(-0.5 * ((r - radius) / width) ** 2 - 0.5 * LOG_2PI - np.log(width))
            slopes.append(-((r - radius) / width**2 / np.maximum(r, 1e-300))[:, None] * away)
        total = np.logaddexp(*values)
        slope = sum(np.exp(v - total)[:, None] * s for v, s in zip(values, slopes, strict=True))
        return total, slope * 2 * half

    def radial(r):
        return r ** (dim - 1) * np.exp(-0.5 * ((r - radius) / width) ** 2)

    one = integrate.quad(radial, 1.0, 3.0, epsrel=1e-12)[0] / np.sqrt(2 * np.pi) / width
    surface = np.log(2) + 0.5 * dim * np.log(np.pi) - gammaln(0.5 * dim)
    return with_uniform_prior(dim, log_likelihood), float(np.log(2) + surface + np.log(one) - dim * np.log(2 * half))


def diamonds(data):
    """Diamonds of posteriordb: the coefficients integrated in closed form, the intercept and log σ by Gauss and Legendre."""
    y, X = np.asarray(data["Y"], float), np.asarray(data["X"], float)[:, 1:]
    n, mean = len(y), y.mean()
    X = X - X.mean(axis=0)
    values, vectors = np.linalg.eigh(X.T @ X)
    shift, square = vectors.T @ (X.T @ (y - mean)), ((y - mean) ** 2).sum()
    nodes, weights = np.polynomial.legendre.leggauss(200)

    def given(sigma):
        ratio = values / sigma**2
        explained = (shift**2 / (1 + ratio)).sum() / sigma**4
        a = mean + 15 * sigma / np.sqrt(n) * nodes
        terms = stats.t.logpdf(a, 3, 8, 10) - 0.5 * n * ((mean - a) / sigma) ** 2
        inner = logsumexp(terms, b=weights * 15 * sigma / np.sqrt(n))
        value = inner - 0.5 * (square / sigma**2 - explained) - 0.5 * np.log1p(ratio).sum()
        return value - n * (np.log(sigma) + 0.5 * LOG_2PI) + stats.t.logpdf(sigma, 3, 0, 10) + np.log(2)

    residual = square - (shift**2 / np.maximum(values, 1.0)).sum()
    logs = 0.5 * np.log(residual / n) + np.linspace(-20, 20, 4001) / np.sqrt(2 * n)
    terms = np.array([given(np.exp(each)) + each for each in logs])
    return float(logsumexp(terms) + np.log(logs[1] - logs[0]))

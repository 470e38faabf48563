"""Latent variables leave every posterior they are for invariant; a broken twin of each is caught.

Posteriors have one coefficient, so that exact draws and the distribution function come from a grid.
"""

import numpy as np
import pytest
from scipy import stats

from ppl_backends.errors import ModelError
from ppl_backends.kernels import augmentation, augmented_sites
from ppl_backends.kernels.augmentation import DataAugmentation, scale_factor
from ppl_backends.kernels.streams import Generators
from ppl_backends.targets.conditional import ConditionalTarget
from ppl_backends.targets.factors import (
    Factors,
    FactorsTarget,
    Laplace,
    Logit,
    NegativeBinomial,
    Normal,
    NormalMixture,
    PoweredSites,
    Probit,
    StudentT,
)
from tests.statistics import FALSE_FAILURE

LEVEL = FALSE_FAILURE / 40
N, STEPS = 20_000, 2
FAMILIES = tuple(augmented_sites.AUGMENTED)

RNG = np.random.default_rng(4)
A = RNG.normal(0.6, 1.0, size=(6, 1))
B = RNG.normal(0.8, 0.6, size=6)
PRIOR = (-0.7, 0.8)  # mean and precision: both the offsets and the mean of the prior are far from zero
Y = np.array([0, 1, 0, 0, 1, 0])

POSTERIORS = {
    "probit": Factors(A, B, Probit(Y), *PRIOR),
    "probit, flat prior": Factors(A, B, Probit(1 - Y), 0.0, 0.0),
    "logit": Factors(A, B, Logit(Y), *PRIOR),
    "binomial": Factors(A, B, Logit([2, 0, 3, 1, 2, 0], [4, 2, 3, 5, 2, 1]), *PRIOR),
    "negative binomial": Factors(A, B, NegativeBinomial([0, 3, 1, 0, 2, 1], 2.5), *PRIOR),
    "power of binomial": Factors(A, B, Logit([2, 0, 3, 1, 2, 0], [4, 2, 3, 5, 2, 1]), *PRIOR).tempered(0.3),
    "power of negative binomial": Factors(A, B, NegativeBinomial([0, 3, 1, 0, 2, 1], 2.5), *PRIOR).tempered(0.3),
    "student": Factors(
        [A, [[1.0]]], np.r_[B, 0.0], [Probit(Y), StudentT(0.5, 3.0, 0.4)], 0.0, 0.0, observed=np.r_[Y >= 0, False]
    ),
    "laplace": Factors(
        [A, [[1.0]]], np.r_[B, 0.0], [Normal(2.0 * Y, 1.5), Laplace(0.5, 0.3)], 0.0, 0.0, observed=np.r_[Y >= 0, False]
    ),
    "mixture": Factors(
        [A, [[1.0]]],
        np.r_[B, 0.0],
        [Probit(Y), NormalMixture([[0.6, 0.4]], [[0.2, -0.5]], [[0.3, 1.5]])],
        0.0,
        0.0,
        observed=np.r_[Y >= 0, False],
    ),
}


class OnGrid:
    """Draws and the distribution function of a posterior of one coefficient."""

    def __init__(self, factors):
        self.grid = np.linspace(-12.0, 12.0, 20_001)
        log_density = factors.log_density(self.grid[:, None])
        mass = np.exp(log_density - log_density.max())
        trapezia = 0.5 * (mass[1:] + mass[:-1])
        self.cumulated = np.concatenate([[0.0], np.cumsum(trapezia)]) / trapezia.sum()

    def draws(self, n, rng):
        return np.interp(rng.random(n), self.cumulated, self.grid)[:, None]

    def cdf(self, x):
        return np.interp(x, self.grid, self.cumulated)


def algorithm_on(target):
    return DataAugmentation(target, allowed=FAMILIES, name="augmentation")


def p_value(name):
    """Return the p-value of draws of the posterior after a few steps, and of the change of their sizes."""
    known, rng = OnGrid(POSTERIORS[name]), np.random.default_rng(1)
    algorithm = algorithm_on(FactorsTarget(POSTERIORS[name]))
    state = algorithm.start(known.draws(N, rng), rng)
    for _ in range(STEPS):
        state, _ = algorithm.step(state, rng, False)
    return stats.kstest(known.cdf(state.x[:, 0]), "uniform").pvalue


@pytest.mark.parametrize("name", POSTERIORS)
def test_latent_variables_leave_posteriors_invariant(name):
    assert p_value(name) > LEVEL


@pytest.mark.parametrize(("quadratic", "linear"), [(2.0, 1.5), (0.3, -6.0)])
def test_one_scale_factor_has_the_mean_of_its_density(quadratic, linear):
    """A normal and a gamma proposal; many factors at once are the subject of the tests of invariance."""
    rng, n = np.random.default_rng(1), 5
    drawn = np.concatenate([scale_factor(rng, n, np.array([quadratic]), np.array([linear])) for _ in range(4000)])
    g = np.linspace(1e-6, 12.0, 20_001)
    density = g ** (n - 1) * np.exp(-0.5 * quadratic * g**2 + linear * g)
    mean = (g * density).sum() / density.sum()
    assert abs(drawn.mean() - mean) < 4.5 * drawn.std() / len(drawn) ** 0.5


def test_one_factor_is_that_of_a_batch():
    rng = np.random.default_rng(1)
    factors = Factors(rng.normal(size=(6, 3)), 0.0, Logit(np.array([1.0, 0, 1, 1, 0, 0])), 0.0, 0.5)
    regression = augmentation.Regression(factors, np.arange(3), np.zeros(3), (Logit,), "step")
    weights = rng.gamma(1.0, size=(2, 6))
    np.testing.assert_allclose(regression.root(weights[:1]), regression.root(weights)[0], rtol=1e-10)


def without_offsets(rng, n, quadratic, linear):
    return scale_factor(rng, n, quadratic, np.zeros_like(linear))


def with_one_power_less(rng, n, quadratic, linear):
    return scale_factor(rng, n - 1, quadratic, linear)


def printed_student(sites, rng, s):
    """Return the rate with ν β²/σ² in place of β²/(ν σ²)."""
    weight = rng.chisquare(sites.nu + 1, s.shape) / (1 + sites.nu * ((s - sites.y) / sites.scale) ** 2)
    return weight / (sites.nu * sites.scale**2), weight / (sites.nu * sites.scale**2) * sites.y


def without_shift(sites, rng, s):
    weight, value = augmented_sites.AUGMENTED[Logit](Logit(sites.y, sites.y + sites.alpha), rng, s)
    return weight, np.zeros_like(s) + value


def without_power(sites, rng, s):
    return REAL[type(sites.family)](sites.family, rng, s)


def latents_elsewhere(kind):
    def draw(sites, rng, s):
        return REAL[kind](sites, rng, 2.0 * s - 0.5)

    return draw


REAL = dict(augmented_sites.AUGMENTED)
BROKEN = {
    "probit": (augmentation, "scale_factor", without_offsets),
    "probit, flat prior": (augmentation, "scale_factor", with_one_power_less),
    "logit": (Logit, latents_elsewhere(Logit)),
    "binomial": (Logit, latents_elsewhere(Logit)),
    "negative binomial": (NegativeBinomial, without_shift),
    "power of binomial": (PoweredSites, without_power),
    "power of negative binomial": (PoweredSites, without_power),
    "student": (StudentT, printed_student),
    "laplace": (Laplace, latents_elsewhere(Laplace)),
    "mixture": (NormalMixture, latents_elsewhere(NormalMixture)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_twins_are_caught(name, monkeypatch):
    if len(BROKEN[name]) == 3:
        monkeypatch.setattr(*BROKEN[name])
    else:
        monkeypatch.setitem(augmentation.AUGMENTED, *BROKEN[name])
    assert p_value(name) < LEVEL


@pytest.mark.parametrize(
    ("n", "quadratic", "linear"), [(2, 0.3, -4.0), (2, 0.3, 5.0), (40, 25.0, 0.0), (300, 9.0, -80.0)]
)
def test_scale_factors_follow_their_density(n, quadratic, linear):
    g = scale_factor(np.random.default_rng(2), n, np.full(N, quadratic), np.full(N, linear))
    grid = np.linspace(0.0, 2.0 * g.max(), 40_001)[1:]
    log_density = (n - 1) * np.log(grid) - 0.5 * quadratic * grid**2 + linear * grid
    mass = np.cumsum(np.exp(log_density - log_density.max()))
    assert stats.kstest(np.interp(g, grid, mass / mass[-1]), "uniform").pvalue > LEVEL


def test_truncated_normals_hold_far_out():
    for mean in (-300.0, -31.0, -29.0, 0.5):
        z = augmented_sites.normals_on_a_side(np.random.default_rng(3), np.full((1, N), mean), np.ones(N))[0]
        below = 1.0 - np.exp(stats.norm.logsf(z - mean) - stats.norm.logsf(-mean))
        assert stats.kstest(below, "uniform").pvalue > LEVEL


def three_coefficients(sparse):
    from scipy.sparse import csr_matrix

    rng = np.random.default_rng(6)
    design = rng.normal(size=(9, 3)) * (rng.random((9, 3)) < 0.6)
    precision = np.array([[1.0, 0.4, 0.0], [0.4, 2.0, -0.3], [0.0, -0.3, 0.7]])
    sites = Logit(rng.integers(0, 2, 9))
    return Factors(csr_matrix(design) if sparse else design, 0.3, sites, [0.5, -1.0, 0.0], precision)


def test_sparse_designs_and_chains_with_their_own_streams_draw_the_same():
    found = []
    for sparse in (False, True):
        algorithm = algorithm_on(FactorsTarget(three_coefficients(sparse)))
        rng = Generators([np.random.default_rng(seed) for seed in range(4)])
        state, _ = algorithm.step(algorithm.start(np.zeros((4, 3)), rng), rng, False)
        found.append(state.x)
        one = np.random.default_rng(2)
        alone, _ = algorithm.step(algorithm.start(np.zeros(3), one), one, False)
        np.testing.assert_allclose(state.x[2], alone.x[0], rtol=1e-10)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10)


def test_block_follows_its_conditional_law():
    full = FactorsTarget(three_coefficients(False))
    block = ConditionalTarget(full, [1], np.array([0.7, 0.0, -0.9]))
    grid = np.linspace(-8.0, 8.0, 8_001)
    log_density = block.log_density(grid[:, None])
    mass = np.cumsum(np.exp(log_density - log_density.max()))
    algorithm, rng = algorithm_on(block), np.random.default_rng(5)
    state = algorithm.start(np.interp(rng.random(N), mass / mass[-1], grid)[:, None], rng)
    state, _ = algorithm.step(state, rng, False)
    assert stats.kstest(np.interp(state.x[:, 0], grid, mass / mass[-1]), "uniform").pvalue > LEVEL
    before = algorithm.density.regression()
    assert algorithm.density.regression() is before
    block.set_others(np.array([2.0, 0.0, 1.0]))
    moved, seen = algorithm.density.regression(), full.factors.design[:, 1] != 0
    np.testing.assert_allclose(moved.offset, 0.3 + (full.factors.design[:, [0, 2]] @ [2.0, 1.0])[seen])
    np.testing.assert_allclose(moved.linear, [0.4 * 0.5 + 2.0 * -1.0 - (0.4 * 2.0 - 0.3 * 1.0)])


def test_improper_law_is_refused():
    rng = np.random.default_rng(1)
    algorithm = algorithm_on(FactorsTarget(Factors(np.ones((3, 2)), 0.0, Logit([0, 1, 1]), 0.0, 0.0)))
    with pytest.raises(ModelError, match="are improper; give them a proper prior"):
        algorithm.step(algorithm.start(np.zeros(2), rng), rng, False)

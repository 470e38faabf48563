"""Tilted moments against brute-force integration on a fine grid."""

import numpy as np
import pytest
from scipy import stats

from ppl_backends.approximations.ep import (
    FunctionSites,
    Laplace,
    Logit,
    NegativeBinomial,
    Normal,
    NormalMixture,
    Poisson,
    Probit,
    StackedSites,
    Step,
    StudentT,
)
from ppl_backends.approximations.ep.moments import LEVELS, panel_moments, tilted_moments
from ppl_backends.targets.factors.families import Interval

N = 5
MEAN = np.array([-2.1, 0.3, 1.7, 4.0, -0.4])
VARIANCE = np.array([0.4, 2.5, 1.0, 3.0, 0.05])
BITS = np.array([0, 1, 1, 0, 1])
COUNTS = np.array([0, 3, 1, 7, 2])
REALS = np.array([0.2, -1.0, 2.5, 0.0, 0.9])

FAMILIES = {
    "probit": Probit(BITS),
    "logit": Logit(BITS),
    "binomial": Logit([0, 3, 1, 4, 2], np.full(N, 4)),
    "step": Step(BITS, 2.0),
    "laplace": Laplace(REALS, 0.7),
    "mixture": NormalMixture([0.3, 0.7], [0.0, 0.5], [0.1, 3.0], n=N),
    "normal": Normal(REALS, 0.5),
    "poisson": Poisson(COUNTS),
    "negative binomial": NegativeBinomial(COUNTS, 1.5),
    "student": StudentT(REALS, 3.0, 0.3),
    "cauchy": StudentT(REALS, 1.0, 0.3),
    "kinked function": FunctionSites(lambda s: -(np.abs(s - 1) ** 1.5), N),
    "stacked": StackedSites([Probit(BITS[:2]), Logit(BITS[2:])]),
}


def by_grid(family, power):
    """Return moments by the trapezoid rule; jumps and kinks limit it to about the square of the step."""
    out = []
    for i in range(N):
        s = np.linspace(MEAN[i] - 13 * VARIANCE[i] ** 0.5, MEAN[i] + 13 * VARIANCE[i] ** 0.5, 400_001)
        log_f = power * family.log_site(s[:, None], np.array([i]))[:, 0] - 0.5 * (s - MEAN[i]) ** 2 / VARIANCE[i]
        f = np.exp(log_f) / np.sqrt(2 * np.pi * VARIANCE[i])
        step = s[1] - s[0]
        z = f.sum() * step
        m = (f * s).sum() * step / z
        out.append((np.log(z), m, (f * (s - m) ** 2).sum() * step / z))
    return np.array(out).T


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("name", FAMILIES)
def test_moments_agree_with_a_fine_grid(name, power):
    family = FAMILIES[name]
    level = np.zeros(N, dtype=np.int8)
    found = tilted_moments(family, MEAN, VARIANCE, MEAN, VARIANCE, level, power, check=True)
    tolerance = 1e-4 if name == "step" else 2e-6  # the grid's own error at a jump is its step
    np.testing.assert_allclose(np.array(found[:3]), by_grid(family, power), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mean", [0.0, 0.3, 19.0, 21.0, 300.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 19.0, 21.0, 1e4])
def test_cauchy_moments_far_out(mean, scale):
    """Closed form and rule meet where one takes over from the other; the reference integrates by panels."""
    family = StudentT(np.zeros(1), 1.0, scale)
    m, v = np.array([mean]), np.ones(1)
    found = family.tilted(m, v, 1.0)
    expected = panel_moments(family, np.zeros(1, dtype=int), m, v, *found[1:], 1.0)
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["logit", "step", "laplace", "student", "kinked function"])
def test_panels_agree_with_a_fine_grid(name):
    family = FAMILIES[name]
    found = panel_moments(family, np.arange(N), MEAN, VARIANCE, MEAN, VARIANCE, 1.0)
    tolerance = 1e-4 if name == "step" else 1e-7
    np.testing.assert_allclose(np.array(found), by_grid(family, 1.0), rtol=tolerance, atol=tolerance)


def test_sites_that_are_not_smooth_end_at_the_panels():
    level = np.zeros(N, dtype=np.int8)
    found = tilted_moments(FAMILIES["kinked function"], MEAN, VARIANCE, MEAN, VARIANCE, level, 1.0, check=True)
    assert (found.level == len(LEVELS)).any()


def test_a_far_guess_is_corrected():
    family, level = FAMILIES["logit"], np.ones(N, dtype=np.int8)
    near = tilted_moments(family, MEAN, VARIANCE, MEAN, VARIANCE, level, check=True)
    far = tilted_moments(family, MEAN, VARIANCE, MEAN + 2 * VARIANCE**0.5, 9 * VARIANCE, level, check=True)
    np.testing.assert_allclose(np.array(far[:3]), np.array(near[:3]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mean", [-700.0, -40.0, 40.0, 700.0])
def test_probit_and_hard_step_stay_accurate_in_the_tails(mean):
    one = np.array([mean]), np.ones(1)
    probit = Probit([1]).tilted(*one, 1.0)
    step = Step([1]).tilted(*one, 1.0)
    for moments in (probit, step):
        assert np.isfinite(moments).all()
        assert moments.variance[0] > 0
    if mean < 0:
        # Φ(s) ≈ φ(s)/|s| there: precision 1 from the cavity, 1 from the site, up to 1/s².
        assert abs(probit.mean[0] - mean / 2) < 2 / abs(mean)
        assert abs(probit.variance[0] - 0.5) < 1 / mean**2
        # N(m, 1) above 0 is nearly exponential of rate |m|.
        assert abs(step.mean[0] * -mean - 1) < 3 / mean**2
        assert abs(step.variance[0] * mean**2 - 1) < 7 / mean**2


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_short_and_far_intervals_keep_their_digits(sign):
    ends = np.array([[0.0, 1e-3], [5.0, 5.000021], [30.0, 30.0002], [300.0, 301.0]])
    lower, upper = np.sort(sign * ends, axis=1).T
    found = Interval(lower, upper).tilted(np.zeros(4), np.ones(4), 1.0)
    middle = 0.5 * (lower + upper)[:3]
    # a density that is nearly constant, and one that is nearly exponential of rate 300
    np.testing.assert_allclose(found.variance, [*((upper - lower)[:3] ** 2 / 12), 1 / 300**2], rtol=1e-4)
    np.testing.assert_allclose(found.mean, [*middle, sign * (300 + 1 / 300)], rtol=1e-6, atol=1e-9)
    mass = stats.norm.logpdf(middle) + np.log((upper - lower)[:3])
    np.testing.assert_allclose(found.log_z, [*mass, stats.norm.logsf(300)], rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("step", "kinked function")])
def test_derivatives_agree_with_differences(name):
    family = FAMILIES[name]
    s = np.array([[-3.0, -0.5, 0.1, 1.9, 4.0]])
    h = 1e-5
    first, second = family.derivatives(s)
    up, down = family.log_site(s + h), family.log_site(s - h)
    np.testing.assert_allclose(first, (up - down) / (2 * h), rtol=1e-6, atol=1e-7)
    slopes = [family.derivatives(s + shift)[0] for shift in (h, -h)]
    np.testing.assert_allclose(second, (slopes[0] - slopes[1]) / (2 * h), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_pick_sites_with_repeats(name):
    family, rows = FAMILIES[name], np.array([4, 0, 0, 2])
    s = np.random.default_rng(0).normal(size=(3, N))
    np.testing.assert_array_equal(family.log_site(s[:, rows], rows), family.log_site(s)[:, rows])
    kept = np.array([0, 2, 3])
    np.testing.assert_array_equal(family.take(kept).log_site(s[:, kept]), family.log_site(s)[:, kept])


def test_a_function_without_rows_is_filled_in():
    y = np.arange(4.0)
    sites = FunctionSites(lambda s: -0.5 * (s - y) ** 2, 4).take(np.array([1, 3]))
    s = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    rows = np.array([1, 0, 1])
    np.testing.assert_allclose(sites.log_site(s, rows), -0.5 * (s - y[[3, 1, 3]]) ** 2)

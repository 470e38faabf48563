"""From Laplace at the wrong one of two modes."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import ppl_backends as pb
from ppl_backends.errors import ApproximationWarning
from ppl_backends.results.inference_data import group
from ppl_backends.targets import FunctionTarget

SHARES, CENTRES, SDS = np.array([1e-3, 1 - 1e-3]), np.array([0.0, 5.0]), np.array([0.3, 1.0])


def density(x):
    """A narrow normal at the origin, where the first climb begins, of a thousandth of the mass, and one at (5, 5)."""
    apart = x - CENTRES[:, None, None]
    logs = np.log(SHARES)[:, None] + norm.logpdf(apart, 0, SDS[:, None, None]).sum(axis=2)
    value = logsumexp(logs, axis=0)
    return value, np.einsum("kn,knd->nd", np.exp(logs - value), -apart / SDS[:, None, None] ** 2)


def normal(x):
    return norm.logpdf(x).sum(axis=1), -x


def draw(n, rng):
    return rng.standard_normal((n, 5))


def test_the_mode_that_holds_the_mass_is_found():
    target = FunctionTarget(2, density)
    with pytest.warns(ApproximationWarning, match="another mode, where a Gaussian has 100% of the mass"):
        np.testing.assert_allclose(pb.fit_laplace(target, progressbar=False).mean, 0.0, atol=0.1)
    idata = pb.sample_smc(target, draws=1000, chains=2, initial="laplace", random_seed=1, progressbar=False)
    posterior = group(idata, "posterior")
    assert abs(posterior.attrs["log_evidence"]) < 4 * posterior.attrs["log_evidence_se"] + 2e-3
    x = np.asarray(posterior["x"]).reshape(-1, 2)
    np.testing.assert_allclose(x.mean(axis=0), 5.0, atol=0.15)
    np.testing.assert_allclose(x.std(axis=0), 1.0, atol=0.12)


def test_auto_starts_from_the_prior_where_there_is_no_mode():
    """N(0, I) in five dimensions, cut to x > 0.5: climbs begin at draws of the prior inside, and end at the bound."""
    target = FunctionTarget(
        5, lambda x: (np.where((x > 0.5).all(axis=1), 0.0, -np.inf), np.zeros_like(x)), normal, draw
    )
    with pytest.warns(ApproximationWarning, match="is a poor start: no mode found .*; starting from the prior instead"):
        idata = pb.sample_smc(target, draws=500, chains=2, initial="auto", random_seed=1, progressbar=False)
    attrs = group(idata, "posterior").attrs
    assert attrs["initial"] == "prior"
    assert abs(attrs["log_evidence"] - 5 * norm.logsf(0.5)) < 4 * attrs["log_evidence_se"]


def funnel(x):
    """Return s ~ N(0, 3²) and five variables N(0, eˢ) given s."""
    s, rest = x[:, 0], x[:, 1:]
    square = np.exp(-s) * (rest**2).sum(axis=1)
    slope = np.column_stack([-s / 9 - 2.5 + 0.5 * square, -rest * np.exp(-s)[:, None]])
    return norm.logpdf(s, 0, 3) - 2.5 * (np.log(2 * np.pi) + s) - 0.5 * square, slope


def draw_funnel(n, rng):
    s = 3 * rng.standard_normal((n, 1))
    return np.hstack([s, np.exp(s / 2) * rng.standard_normal((n, 5))])


@pytest.mark.filterwarnings("ignore:a tail of")  # that of a mixture of scales
@pytest.mark.parametrize("initial", ["auto", "laplace"])
def test_the_prior_is_the_start_where_laplace_is_poor(initial):
    target = FunctionTarget(6, lambda x: (np.zeros(len(x)), np.zeros_like(x)), funnel, draw_funnel)
    with pytest.warns(ApproximationWarning, match="is a poor start: .*; starting from the prior instead"):
        idata = pb.sample_smc(target, draws=200, chains=2, initial=initial, random_seed=1, progressbar=False)
    attrs = group(idata, "posterior").attrs
    assert attrs["initial"] == "prior"
    assert attrs["log_evidence"] == pytest.approx(0.0, abs=1e-9)  # the likelihood is one

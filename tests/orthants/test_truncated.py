"""Draws inside rectangles: exact where they say so, in the order of the user's variables."""

import numpy as np
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.errors import ModelError
from tests.orthants import exact
from tests.statistics import assert_mean_is

INF = np.inf
LOADINGS = np.array([0.9, -0.5, 0.3, 1.2, -0.8])
NOISE = np.array([0.4, 1.0, 0.3, 0.7, 0.5])
LOWER = np.array([-0.5, -2.0, 0.2, 1.0, -3.0])
UPPER = np.array([1.0, 0.0, 0.8, 3.0, -0.4])
COV = np.outer(LOADINGS, LOADINGS) + np.diag(NOISE)


@pytest.mark.parametrize("method", ["exact", "smc"])
def test_means_of_asymmetric_rectangles(method):
    """Each variable has bounds of its own: an order that is not undone gives other means, far from these."""
    truth = exact.means_one_factor(LOADINGS, NOISE, LOWER, UPPER)
    runs = [pb.sample_truncated(COV, LOWER, UPPER, draws=400, method=method, random_seed=i) for i in range(20)]
    assert_mean_is([run.draws.mean(axis=0) for run in runs], truth)
    for run in runs:
        assert run.exact == (method == "exact")
        assert (run.draws >= LOWER).all()
        assert (run.draws <= UPPER).all()
        assert run.ess <= 400
    twin = np.array([run.draws[:, ::-1].mean(axis=0) for run in runs])
    with pytest.raises(AssertionError):
        assert_mean_is(twin, truth)


@pytest.mark.parametrize("df", [None, 1, 3, 40])
def test_margins_against_rejection_from_the_whole(df):
    rng = np.random.default_rng(3)
    z = rng.multivariate_normal(np.zeros(5), COV, 400_000)
    x = z / np.sqrt(rng.chisquare(df, len(z)) / df)[:, None] if df else z
    lower, upper = LOWER - 0.5, UPPER + 0.5
    x = x[((x >= lower) & (x <= upper)).all(axis=1)]
    assert len(x) > 500
    draws = pb.sample_truncated(COV, lower, upper, df=df, draws=4000, random_seed=4)
    assert draws.exact
    assert min(stats.ks_2samp(a, b).pvalue for a, b in zip(draws.draws.T, x.T, strict=True)) > 1e-4 / 5


def test_student_particles():
    exactly, particles = (
        pb.sample_truncated(COV, LOWER, UPPER, df=3, draws=2000, method=method, random_seed=5)
        for method in ("exact", "smc")
    )
    assert not particles.exact
    pairs = zip(exactly.draws.T, particles.draws.T, strict=True)
    assert min(stats.ks_2samp(a, b).pvalue for a, b in pairs) > 1e-4 / 5


def test_where_acceptance_does_not_pay_draws_are_labelled():
    cov, lower = exact.cauchy(180)
    result = pb.sample_truncated(cov, lower, draws=500, random_seed=6)
    assert not result.exact
    assert result.ess < 500
    assert np.isnan(result.acceptance)
    assert (result.draws >= lower).all()
    attrs = result.to_inference_data()["posterior"].attrs
    assert attrs["inference_library"] == "ppl_backends"
    assert attrs["accuracy"] == "approximate"


def test_acceptance_is_that_of_the_bound():
    result = pb.sample_truncated(exact.autoregression(50), 0, 15, draws=2000, random_seed=7)
    assert result.exact
    assert 0.1 < result.acceptance < 0.2


def test_degenerate_rectangles():
    copies = pb.sample_truncated(
        np.ones((3, 3)), [-1, 0, -2], [2, 1, 0.5], mean=[1, 1, 1], draws=200, random_seed=8
    ).draws
    np.testing.assert_allclose(copies[:, 1:], copies[:, :1] + np.zeros((200, 2)))
    assert (copies >= 0).all()
    assert (copies <= 0.5).all()
    constant = pb.sample_truncated(np.diag([1.0, 0.0]), [0, -1], [1, 5], mean=[0, 2], draws=50, random_seed=9).draws
    assert (constant[:, 1] == 2).all()
    free = pb.sample_truncated(COV, [1, -INF, -INF, -INF, -INF], draws=4000, random_seed=10).draws
    z = np.random.default_rng(11).multivariate_normal(np.zeros(5), COV, 100_000)
    z = z[z[:, 0] > 1]
    assert stats.ks_2samp(free[:, 3], z[:, 3]).pvalue > 1e-4
    far = pb.sample_truncated(exact.exchangeable(3), 30, 31, draws=100, random_seed=12)
    assert far.exact
    assert (far.draws >= 30).all()
    for bad in ({"lower": 1, "upper": 1}, {"cov": np.ones((5, 5)), "lower": LOWER, "upper": [-0.4, 9, 9, 9, 9]}):
        with pytest.raises(ModelError, match="probability zero"):
            pb.sample_truncated(**{"cov": COV} | bad)
    contradictory = np.array([[1.0, 0, 1], [0, 1, 1], [1, 1, 2]])  # the third is the sum of the others
    for options in ({}, {"df": 3.0}, {"method": "exact"}, {"method": "smc"}):
        with pytest.raises(ModelError, match="probability zero"):
            pb.sample_truncated(contradictory, [1, 1, -1], [2, 2, 0], **options)
    with pytest.raises(ModelError, match="inside one rectangle"):
        pb.sample_truncated(np.stack([COV, COV]), 0)
    with pytest.raises(ModelError, match="below 1"):
        pb.sample_truncated(COV, 0, df=0.5, method="exact")
    assert not pb.sample_truncated(COV, 0, df=0.5, draws=50, random_seed=13).exact


def test_the_same_seed_gives_the_same_draws():
    for method in ("exact", "smc"):
        first, second = (
            pb.sample_truncated(COV, LOWER, UPPER, draws=50, method=method, random_seed=1) for _ in range(2)
        )
        np.testing.assert_array_equal(first.draws, second.draws)

"""Importance sampling of posteriors with several modes, whose evidences are known."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import norm

from ppl_backends.approximations import GaussianApproximation, MixtureApproximation
from ppl_backends.approximations.ep import Factors, Probit, fit_ep
from ppl_backends.errors import SamplerWarning
from ppl_backends.importance import sample_importance
from ppl_backends.importance.proposals import make_proposal
from ppl_backends.results.inference_data import group
from ppl_backends.smc import sample_smc
from ppl_backends.targets import FunctionTarget

PRIOR_SD = 6.0


def modes(shares, centres, sds):
    """Return a target whose posterior is a mixture of spherical normals and whose evidence is one, under N(0, 6²)."""
    shares, centres, sds = np.array(shares), np.array(centres, dtype=float), np.array(sds, dtype=float)
    dim = centres.shape[1]

    def log_prior(x):
        return norm.logpdf(x, 0, PRIOR_SD).sum(1), -x / PRIOR_SD**2

    def log_likelihood(x):
        apart = x - centres[:, None]
        logs = np.log(shares)[:, None] + norm.logpdf(apart, 0, sds[:, None, None]).sum(2)
        value, part = logsumexp(logs, axis=0), apart / sds[:, None, None] ** 2
        gradient = -np.einsum("kn,knd->nd", np.exp(logs - value), part)
        prior, slope = log_prior(x)
        return value - prior, gradient - slope

    return FunctionTarget(
        dim, log_likelihood, log_prior, sample_prior=lambda n, rng: PRIOR_SD * rng.standard_normal((n, dim))
    )


def attributes(target, **options):
    idata = sample_importance(target, **{"draws": 500, "random_seed": 1, "progressbar": False} | options)
    return group(idata, "posterior").attrs, group(idata, "posterior")["x"].values.reshape(-1, target.dim)


@pytest.mark.parametrize("dim", [1, 2, 5, 10])
def test_two_modes_of_unequal_mass(dim):
    centre = 4 * np.ones(dim) / dim**0.5
    attrs, x = attributes(modes([0.8, 0.2], [centre, -centre], [1, 1]))
    assert abs(attrs["log_evidence"]) < 5 * attrs["log_evidence_se"] + 1e-3
    assert attrs["log_evidence_trusted"] == 1
    assert np.mean(x @ centre < 0) == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    ("shares", "centres", "sds"),
    [
        ([0.5, 0.5], [[4, 0], [-4, 0]], [1.0, 0.3]),
        ([0.5, 0.3, 0.2], [[5, 0], [-5, 3], [0, -6]], [1.0, 0.7, 0.5]),
        ([0.25] * 4, [[5, 5], [-5, 5], [5, -5], [-5, -5]], [1.0] * 4),
        ([0.6, 0.4], [[1.5, 0], [-1.5, 0]], [1.0, 1.0]),
    ],
)
def test_unequal_widths_many_modes_and_overlap(shares, centres, sds):
    attrs, _ = attributes(modes(shares, centres, sds), draws=2000)
    assert abs(attrs["log_evidence"]) < 5 * attrs["log_evidence_se"] + 1e-3
    assert attrs["log_evidence_trusted"] == 1


def test_labels_that_may_be_switched():
    y = np.random.default_rng(0).normal(np.repeat([0.0, 5.0, 10.0], 15), 1.0)

    def log_likelihood(x):
        logs = norm.logpdf(y[:, None], x[:, None]) - np.log(3)  # (points, rows, labels)
        value = logsumexp(logs, axis=2)
        share = np.exp(logs - value[:, :, None])
        return value.sum(1), (share * (y[:, None] - x[:, None])).sum(1)

    def log_prior(x):
        return norm.logpdf(x, 5, PRIOR_SD).sum(1), (5 - x) / PRIOR_SD**2

    target = FunctionTarget(
        3, log_likelihood, log_prior, sample_prior=lambda n, rng: 5 + PRIOR_SD * rng.standard_normal((n, 3))
    )
    attrs, x = attributes(target)
    # Every label has each of the three means a third of the time
    assert np.mean(x < 2.5, axis=0) == pytest.approx(np.full(3, 1 / 3), abs=0.03)
    assert attrs["log_evidence_trusted"] == 1


def test_what_a_proposal_at_one_mode_misses_is_seen_by_draws_of_the_prior():
    target = modes([0.8, 0.2], [[4, 0], [-4, 0]], [1, 1])
    one = GaussianApproximation([4.0, 0.0], np.eye(2))
    with pytest.warns(SamplerWarning, match="draws of the prior find .* in a region without points"):
        attrs, _ = attributes(target, approximation=one, proposal="gaussian")
    assert attrs["log_evidence_se"] < 1e-3  # the weights know nothing of it
    assert attrs["missed_share"] == pytest.approx(0.25, abs=0.1)
    assert attrs["log_evidence_trusted"] == 0
    assert attrs["accuracy"] == "approximate"


def test_an_approximation_of_another_model_does_not_show_that_there_is_one_mode():
    far = 15.0 * np.array([0.0, 1.0])[:, None, None]

    def both(x):
        logs = norm.logpdf(x - far).sum(axis=2)
        value = logsumexp(logs, axis=0)
        return value, -np.einsum("kn,knd->nd", np.exp(logs - value), x - far)

    of_one = fit_ep(Factors(np.eye(1), 0.0, Probit([1.0]), 0.0, 1.0))
    with pytest.warns(SamplerWarning, match=r"a mode with about 5\d % of the posterior"):
        attrs, _ = attributes(FunctionTarget(1, both), approximation=of_one)
    assert attrs["log_evidence_trusted"] == 0


def test_nothing_is_missed_where_there_is_one_mode():
    attrs, _ = attributes(modes([1.0], [[1.0, 2.0]], [1.0]))
    assert attrs["missed_share"] < 0.01
    assert attrs["accuracy"] == "exact"


@pytest.mark.parametrize("name", ["t", "defensive"])
def test_proposals_around_a_mixture_have_the_density_that_their_points_have(name):
    mixture = MixtureApproximation([0.7, 0.3], [[-3.0], [4.0]], [[[1.0]], [[0.25]]])
    proposal = make_proposal(name, mixture)
    grid = np.linspace(-400, 400, 400_001)
    density = np.exp(proposal.log_density(grid[:, None]))
    cumulative = np.cumsum(density) * (grid[1] - grid[0])
    assert cumulative[-1] == pytest.approx(1, abs=1e-3)
    x = np.sort(proposal.from_uniform(np.random.default_rng(0).random((100_000, proposal.n_uniforms)))[:, 0])
    apart = np.interp(x, grid, cumulative) - np.arange(len(x)) / len(x)
    assert np.abs(apart).max() < 5 * 0.5 / len(x) ** 0.5


def ridges():
    """Return N(0, I) in two dimensions given xy = 1.5 ± 0.1, a ridge in each of two quadrants, and its log evidence."""

    def log_likelihood(x):
        apart = (x[:, 0] * x[:, 1] - 1.5) / 0.1
        return norm.logpdf(apart), -apart[:, None] / 0.1 * x[:, ::-1]

    def log_prior(x):
        return norm.logpdf(x).sum(axis=1), -x

    target = FunctionTarget(2, log_likelihood, log_prior, sample_prior=lambda n, rng: rng.standard_normal((n, 2)))
    half, _ = quad(lambda x: norm.pdf(x) * 0.1 * norm.pdf(1.5, 0, np.hypot(x, 0.1)), 0, 10, limit=200)
    return target, np.log(2 * half)


@pytest.mark.filterwarnings("ignore::ppl_backends.errors.ApproximationWarning")  # Laplace is a poor start
def test_heavy_tails_of_a_proposal_do_not_hide_a_ridge_of_half_the_mass():
    """No region is without points, so only the mean likelihood over draws of the prior shows what they miss."""
    target, exact = ridges()
    with pytest.warns(SamplerWarning, match="over draws of the prior is (1.[89]|2).* times this evidence"):
        attrs, _ = attributes(target, draws=2000)
    assert attrs["log_evidence"] == pytest.approx(exact - np.log(2), abs=0.05)
    assert attrs["log_evidence_trusted"] == 0


def test_a_run_from_one_of_two_ridges_is_not_trusted():
    target, exact = ridges()
    x = np.random.default_rng(0).standard_normal((200_000, 2))
    x = x[(abs(x[:, 0] * x[:, 1] - 1.5) < 0.1) & (x[:, 0] > 0)]
    one = GaussianApproximation(x.mean(axis=0), np.cov(x.T))
    with pytest.warns(SamplerWarning, match="over draws of the prior is (1.9|2).* times this evidence"):
        idata = sample_smc(target, initial=one, draws=1000, chains=2, random_seed=1, progressbar=False)
    attrs = group(idata, "posterior").attrs
    assert attrs["log_evidence"] == pytest.approx(exact - np.log(2), abs=0.05)
    assert attrs["log_evidence_trusted"] == 0

"""EP of PyMC models integrated over a scale, against quadrature over both unknowns; data that cannot be."""

import pickle
import warnings
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.approximations.ep import Logit
from ppl_backends.approximations.ep.hyper import MOST_SWEEPS, _Posterior
from ppl_backends.approximations.hyper import MAX_NODES, PART, lattice, narrowed, net
from ppl_backends.approximations.hyper_modes import share_around
from ppl_backends.approximations.hyper_narrow import narrow_hyper_mode
from ppl_backends.approximations.resolve import has_one_mode, one_mode_given_few
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.results.inference_data import group

COUNTS = np.array([0, 1, 0, 0, 2, 0])


@pytest.fixture(scope="module")
def fit():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.5)
        effect = pm.Normal("effect", 0, scale)
        pm.Poisson("y", pm.math.exp(effect - 1), observed=COUNTS)
    return pb.fit_ep(model)


@pytest.fixture(scope="module")
def exact():
    """Return grids of log scale and effect, and their marginal densities."""
    u, theta = np.linspace(-9, 3, 1201), np.linspace(-8, 5, 2001)
    log_scale, effect = np.meshgrid(u, theta, indexing="ij")
    log_density = (
        stats.halfnorm.logpdf(np.exp(log_scale), scale=1.5)
        + log_scale
        + stats.norm.logpdf(effect, 0, np.exp(log_scale))
        + stats.poisson.logpmf(COUNTS[:, None, None], np.exp(effect - 1)).sum(axis=0)
    )
    joint = np.exp(log_density)
    found = {}
    for name, grid, axis in (("scale_log__", u, 1), ("effect", theta, 0)):
        density = joint.sum(axis=axis)
        found[name] = grid, density / (density.sum() * (grid[1] - grid[0]))
    return found, float(np.log(joint.sum() * (u[1] - u[0]) * (theta[1] - theta[0])))


def _distance(grid, density, other):
    return 0.5 * float(np.abs(density - other).sum()) * (grid[1] - grid[0])


def test_marginals_of_a_mixture_are_corrected_given_the_scale(fit, exact):
    found, log_evidence = exact
    assert abs(fit.log_evidence - log_evidence) < 0.005
    marginals = fit.marginals()
    distances = {}
    for k, name in enumerate(marginals.names):
        grid, density = found[name]
        distances[name] = _distance(grid, density, marginals.pdf(grid)[:, k])
        mean = (grid * density).sum() * (grid[1] - grid[0])
        sd = np.sqrt(((grid - mean) ** 2 * density).sum() * (grid[1] - grid[0]))
        skewness = (((grid - mean) / sd) ** 3 * density).sum() * (grid[1] - grid[0])
        assert abs(marginals.mean[k] - mean) < 0.02 * sd
        assert marginals.sd[k] == pytest.approx(sd, rel=0.02)
        assert abs(marginals.skewness[k] - skewness) < 0.05
    assert distances["scale_log__"] < 0.02
    j = fit.names.index("effect")
    grid, density = found["effect"]
    gaussians = fit.weights @ stats.norm.pdf(grid, fit.means[:, j, None], fit.component_sds()[:, j, None])
    assert distances["effect"] < 0.5 * _distance(grid, density, gaussians)


def test_the_posterior_given_the_scale_is_known_to_have_one_mode(fit):
    """Then no draws look for narrow ones."""
    assert one_mode_given_few(fit)
    assert not has_one_mode(fit)
    assert not one_mode_given_few(fit.at_mode)


def test_coordinates_can_be_chosen_and_the_fit_pickled(fit):
    whole, again = fit.marginals(), pickle.loads(pickle.dumps(fit))
    only = again.marginals(["effect"])
    assert only.names == ("effect",)
    np.testing.assert_allclose(only.density[0], whole.density[whole.names.index("effect")])
    assert only.quantile(0.5)[0] == pytest.approx(whole.quantile(0.5)[whole.names.index("effect")])


def test_another_mode_of_the_hyper_parameters_is_flagged():
    """The posterior of φ is nearly its prior, and EP finds one of two modes; it is fine without the other.

    The third prior has half of its mass in a spike between the points of the lattice.
    """
    two, spike = ([-4.0, 4.0], [0.5, 0.5]), ([1.5, 0.0], [0.02, 1.0])
    for w, (mu, sigma), converged in (([0.3, 0.7], two, False), ([0.0, 1.0], two, True), ([0.5, 0.5], spike, False)):
        with pm.Model() as model:
            phi = pm.NormalMixture("phi", w=w, mu=mu, sigma=sigma)
            effect = pm.Normal("effect", 0, pm.math.exp(0.1 * phi), shape=6)
            pm.Normal("y", effect, 1.0, observed=np.array([0.4, -1.1, 0.2, 0.9, -0.3, 1.6]))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", ApproximationWarning)
            q = pb.fit_ep(model)
        assert q.converged == converged
        said = any("another mode of the hyper-parameters, at phi = " in str(warning.message) for warning in found)
        assert said != converged


class Point(NamedTuple):
    phi: np.ndarray
    log_posterior: float
    fit: None = None


def test_a_lattice_knows_where_it_ends_early():
    def cut(phi, fit=None):
        return Point(phi, -0.5 * float(phi @ phi)) if phi[0] < 1.0 else None

    design = lattice(cut, Point(np.zeros(1), 0.0), np.eye(1))
    assert design.edge == pytest.approx(np.exp(-0.5 * 0.8**2))
    assert design.covers(np.array([1.1]))
    assert not design.covers(np.array([1.3]))
    wide = lattice(lambda phi, fit: Point(phi, 0.0), Point(np.zeros(2), 0.0), np.eye(2))
    assert len(wide.nodes) >= MAX_NODES
    assert wide.edge == 1.0


class Spiky:
    """A posterior of φ of p dimensions: N(0, I), and a share at 1.3 that is ``width`` times as wide."""

    def __init__(self, p, width, share):
        self.parts = [(0.0, 1.0, 1 - share), (1.3, width, share)]
        self.p = p

    def node(self, phi, fit=None):
        logs = [np.log(w) + stats.norm.logpdf(phi, at, sd).sum() for at, sd, w in self.parts if w]
        return Point(phi, float(np.logaddexp.reduce(logs)))


@pytest.mark.parametrize(("p", "width", "share"), [(1, 0.02, 0.5), (2, 0.05, 0.5), (1, 0.2, 0.0)])
def test_the_mass_of_a_narrow_mode_between_the_points_of_a_lattice(p, width, share):
    """Points that are close enough for a mode of width 0.2 have its mass themselves."""
    posterior = Spiky(p, width, share or 0.9)
    mode = posterior.node(np.zeros(p))
    design = lattice(posterior.node, mode, np.eye(p))
    found, place = narrow_hyper_mode(posterior, mode, design)
    assert found == pytest.approx(share, abs=0.05)
    assert (place is None) == (share == 0.0)
    if share:
        np.testing.assert_allclose(place, 1.3, atol=width)


def test_a_lattice_at_a_narrow_mode_knows_the_region_around_it():
    posterior = Spiky(1, 0.01, 0.5)
    mode = posterior.node(np.array([1.3]))
    design = lattice(posterior.node, mode, narrowed(posterior, mode, np.eye(1))[0])
    assert design.log_evidence == pytest.approx(np.log(0.5), abs=0.3)  # it ends in the region
    assert share_around(posterior, mode, design) == pytest.approx(0.5, abs=0.2)


def _regression(X, y, likelihood):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=X.shape[1])
        likelihood(pm.math.dot(X, beta), y)
    return model


@pytest.mark.parametrize(
    ("likelihood", "wrong", "where"),
    [
        (lambda eta, y: pm.Bernoulli("y", logit_p=eta, observed=y), "X", "nan at element 3"),
        (lambda eta, y: pm.Poisson("y", pm.math.exp(eta), observed=y), -1, "-inf at element 3"),
        (lambda eta, y: pm.Normal("y", eta, 1.0, observed=y), np.inf, "-inf at element 3"),
    ],
)
def test_impossible_data_are_named(likelihood, wrong, where):
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(8, 2)), rng.integers(0, 2, size=8)
    if wrong == "X":
        X[3, 1] = np.nan
    else:
        y = y.astype(type(wrong))
        y[3] = wrong
    with pytest.raises(ModelError, match=f"density of observed variable 'y' is {where}"):
        pb.fit_ep(_regression(X, y, likelihood))


def test_runs_end_if_none_of_them_converges():
    """A lattice of runs of 200 sweeps, none of which converge, took minutes."""
    failed = SimpleNamespace(converged=False, diagnostics={"sweeps": 200.0}, log_evidence=0.0)
    given = pb.Factors([[1.0]], 0.0, Logit([1]), prior_mean=0.0, prior_precision=1.0)
    factors = SimpleNamespace(hyper_names=("phi",), at=lambda phi: given, log_hyper_prior=lambda phi: 0.0)
    posterior = _Posterior(factors, lambda factors, start: failed)
    found = [posterior.node(np.zeros(1)) is not None for _ in range(30)]
    assert sum(found) == posterior.runs == MOST_SWEEPS // 200 + 1


@pytest.mark.parametrize("method", [pb.fit_ep, pb.fit_inla])
def test_draws_keep_what_data_say_about_products_of_scales_and_effects(method):
    """Means of groups are known to s/√20 each, and are sums of an intercept and products of scales and effects."""
    rng = np.random.default_rng(0)
    group_of = np.repeat(np.arange(3), 20)
    y = np.array([-2.0, 0.5, 3.0])[group_of] + rng.normal(size=60)
    with pm.Model() as model:
        intercept, scale, noise = pm.Normal("intercept", 0, 10), pm.HalfNormal("scale", 5), pm.HalfNormal("noise", 5)
        pm.Deterministic("mean", intercept + scale * pm.Normal("z", shape=3))
        pm.Normal("y", model["mean"][group_of], noise, observed=y)
    drawn = group(method(model, progressbar=False).to_inference_data(4000, random_seed=1), "posterior")["mean"][0]
    s = np.sqrt(np.mean([y[group_of == g].var(ddof=1) for g in range(3)]))
    np.testing.assert_allclose(drawn.std("draw") / (s / 20**0.5), 1, atol=0.1)


def test_net_follows_a_tail_that_the_mode_does_not_show():
    """The first of four coordinates is 0.6 N(0, 0.5²) + 0.4 N(1.5, 1.2²); the scale is that of its mode."""
    root = np.array([[1, 0, 0, 0], [0.6, 0.8, 0, 0], [0, -0.5, 0.9, 0], [0.3, 0, 0.4, 0.8]])
    log_det = np.log(np.diag(root)).sum()

    def node(phi, start=None):
        z = np.linalg.solve(root, phi)
        tail = np.logaddexp(
            np.log(0.6) + stats.norm.logpdf(z[0], 0, 0.5), np.log(0.4) + stats.norm.logpdf(z[0], 1.5, 1.2)
        )
        return SimpleNamespace(phi=phi, fit=None, log_posterior=tail + stats.norm.logpdf(z[1:]).sum() - log_det)

    design = net(node, node(np.zeros(4)), root * [0.5, 1, 1, 1])
    mean, factor = design.moments()
    sds = np.sqrt(np.diag(root @ np.diag([0.6 * 0.25 + 0.4 * (1.44 + 2.25) - 0.36, 1, 1, 1]) @ root.T))
    assert np.abs((mean - 0.6 * root[:, 0]) / sds).max() < 0.1
    np.testing.assert_allclose(np.sqrt((factor**2).sum(axis=1)), sds, rtol=0.1)
    assert abs(design.log_evidence) < 0.1


@pytest.mark.parametrize("share", [0.02, 0.03, 0.05])
def test_net_has_points_in_a_far_tail(share):
    """The first of three coordinates is (1 - s) N(0, 1) + s N(-5, 1.5²), so that s/2 of the mass is below -5."""

    def node(phi, start=None):
        tail = np.logaddexp(
            np.log(1 - share) + stats.norm.logpdf(phi[0]), np.log(share) + stats.norm.logpdf(phi[0], -5, 1.5)
        )
        return SimpleNamespace(phi=phi, fit=None, log_posterior=tail + stats.norm.logpdf(phi[1:]).sum())

    design = net(node, node(np.zeros(3)), np.eye(3))
    weights = np.exp(design.log_weights - logsumexp(design.log_weights))
    assert weights[design.points[:, 0] < -5].sum() == pytest.approx(share / 2, rel=0.4)  # five to nine points
    assert abs(design.log_evidence) < 0.01


def test_net_has_points_in_a_tail_along_a_coordinate_that_is_no_axis_at_the_mode():
    """The first of four is the log of a scale that reaches zero; the others follow it near its mode only."""
    mode, sd = np.array([-np.log(9), 0.0, 0.0, 0.0]), 0.25

    def first(f):
        return f - 10 * np.logaddexp(0, f)

    def mean_of_others(f):
        return 0.5 * np.tanh(4 * (f - mode[0]))

    def node(phi, start=None):
        others = stats.norm.logpdf(phi[1:], mean_of_others(phi[0]), sd).sum()
        return SimpleNamespace(phi=phi, fit=None, log_posterior=first(phi[0]) + others)

    f = np.linspace(-40, 10, 8001)
    weights = np.exp(first(f) - logsumexp(first(f)))
    mean, follow = weights @ f, weights @ mean_of_others(f)
    sds = np.sqrt([weights @ (f - mean) ** 2, *[sd**2 + weights @ (mean_of_others(f) - follow) ** 2] * 3])
    precision = np.diag([9 / 10 + 3 * 4 / sd**2, *[1 / sd**2] * 3])  # at the mode, where the others have slope 2
    precision[0, 1:] = precision[1:, 0] = -2 / sd**2
    values, vectors = np.linalg.eigh(precision)
    found, factor = net(node, node(mode), vectors / np.sqrt(values)).moments()
    assert np.abs((found - [mean, *[follow] * 3]) / sds).max() < 0.1
    np.testing.assert_allclose(np.sqrt((factor**2).sum(axis=1)), sds, rtol=0.1)


def test_net_of_a_gaussian_has_two_parts():
    def node(phi, start=None):
        return SimpleNamespace(phi=phi, fit=None, log_posterior=-0.5 * float(phi @ phi))

    design = net(node, node(np.zeros(3)), np.eye(3))
    assert len(design.nodes) == 2 * PART
    np.testing.assert_allclose(np.sqrt((design.moments()[1] ** 2).sum(axis=1)), 1, atol=0.05)

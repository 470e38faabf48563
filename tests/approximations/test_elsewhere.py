"""Mass beside a fitted Gaussian: a wide mode around a narrow one, another mode, heavy tails, and none."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import gammaln, logsumexp
from scipy.stats import multivariate_normal, t

import ppl_backends as pb
from ppl_backends.approximations.elsewhere import is_log_concave, judge_elsewhere
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.lost_mode import can_be_sought
from ppl_backends.approximations.mirrors import has_mirror_image
from ppl_backends.approximations.newton import modes_above
from ppl_backends.approximations.wide_modes import draws_outside
from ppl_backends.errors import ApproximationWarning
from ppl_backends.targets import FunctionTarget
from tests.toys import bimodal, conjugate_gaussian

QUIET = {"random_seed": 1, "progressbar": False}
FITS = {"laplace": pb.fit_laplace, "vi": pb.fit_vi}


def mixture(dim, share, centre, sd, wide_sd=1.0):
    """A narrow normal, of a share, and a wide one around the origin."""

    def density(x):
        logs, slopes = [], []
        for part, mean, width in ((share, centre, sd), (1 - share, 0.0, wide_sd)):
            z = (x - mean) / width
            logs.append(np.log(part) - 0.5 * (z**2).sum(1) - dim * np.log(width) - 0.5 * dim * np.log(2 * np.pi))
            slopes.append(-z / width)
        total = logsumexp(logs, axis=0)
        return total, (np.exp(np.array(logs) - total)[:, :, None] * np.array(slopes)).sum(axis=0)

    return FunctionTarget(dim, density)


def test_every_mode_that_climbs_end_at_is_returned_once():
    target, centre = mixture(10, 0.9, 0.6, 0.1), 0.6  # a narrow mode within a wide one
    aside = 0.2 * (-1.0) ** np.arange(10)  # climbs from here do not pass through the narrow mode
    starts = np.stack([aside, -aside, 2.0 * aside, np.full(10, centre + 0.01), np.full(10, centre - 0.02)])
    modes = modes_above(target, starts, 50)
    np.testing.assert_allclose([mode.mean[0] for mode in modes], [0.0, centre], atol=1e-3)
    np.testing.assert_allclose([np.sqrt(mode.cov[0, 0]) for mode in modes], [1.0, 0.1], rtol=0.01)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize(("dim", "share"), [(2, 0.7), (8, 0.8)])
def test_a_narrow_mode_in_a_wide_one_has_not_converged(fit, dim, share):
    with pytest.warns(ApproximationWarning, match="a wider region around the Gaussian has|standard deviation of"):
        q = FITS[fit](mixture(dim, share, 0.1, 0.05), **QUIET)
    assert not q.converged
    assert q.trouble


@pytest.mark.parametrize("fit", FITS)
def test_a_gaussian_is_not_doubted(fit):
    known = conjugate_gaussian()
    q = FITS[fit](known.target, **QUIET)
    assert q.converged
    assert not q.trouble
    assert q.diagnostics["around_share"] < 0.01


def test_variational_inference_sees_tails_and_another_mode():
    def cauchy(x):
        square = (x**2).sum(axis=1)
        return -5.5 * np.log1p(square) + gammaln(5.5) - 5.5 * np.log(np.pi), -11 * x / (1 + square)[:, None]

    tails = FunctionTarget(10, cauchy)
    for seed in range(1, 4):
        with pytest.warns(ApproximationWarning):
            assert not pb.fit_vi(tails, random_seed=seed, progressbar=False).converged
    with pytest.warns(ApproximationWarning, match="another mode, where a Gaussian has"):
        q = pb.fit_vi(bimodal().target, **QUIET)
    assert not q.converged


def test_variational_inference_weighs_its_own_moments():
    def skewed(x):  # exponential tails of rates 1/2 and 3: the best Gaussian is a third of a standard deviation off
        rate = np.where(x > 0, -0.5, 3.0)
        return (rate * x).sum(axis=1) - 3 * np.log(2 + 1 / 3), rate

    for seed in range(1, 4):
        with pytest.warns(ApproximationWarning):
            assert not pb.fit_vi(FunctionTarget(3, skewed), random_seed=seed, progressbar=False).converged


def test_mass_outside_is_that_of_the_tails():
    """Of a t with 3 degrees of freedom beyond the ellipsoid of a unit normal, at five seeds; and none of half a normal."""
    own = GaussianApproximation([0.0], [[1.0]])
    bound = np.sqrt(1 + 4 * np.sqrt(2))
    exact = 2 * t(3).sf(bound)
    found = [draws_outside(lambda x: t(3).logpdf(x[:, 0]), own, 256, np.random.default_rng(k)) for k in range(5)]
    masses = np.exp([one.log_mass for one in found])
    assert all(one.effective > 200 for one in found)
    assert abs(masses.mean() / exact - 1) < 5 * np.std(masses / exact, ddof=1) / np.sqrt(5)
    assert (
        draws_outside(lambda x: np.where(np.abs(x[:, 0]) < 2, 0.0, -np.inf), own, 256, np.random.default_rng(0)) is None
    )


def test_moments_are_those_of_both_parts():
    """A narrow normal in a wide one: the ratio of standard deviations in the reason is the exact one within a tenth."""
    target, q = (
        mixture(3, 0.5, 0.0, 0.05),
        GaussianApproximation(np.zeros(3), 0.05**2 * np.eye(3), log_evidence=np.log(0.5)),
    )
    verdict = judge_elsewhere(target, q)
    exact = np.sqrt(0.5 + 0.5 / 0.05**2)
    said = float(verdict.trouble.split(" is ")[1].split(" times")[0])
    assert abs(said / exact - 1) < 0.1
    assert abs(verdict.figures["around_share"] - 0.5) < 0.05


def test_the_bound_is_below_the_evidence_and_there_is_no_evidence():
    """A normal-inverse-gamma model, and one of two likelihoods, both with an evidence in closed form."""
    pm = pytest.importorskip("pymc")
    y = np.random.default_rng(0).normal(1, 2, 80)
    with pm.Model() as first:
        variance = pm.InverseGamma("variance", 3, 4)
        mu = pm.Normal("mu", 0, 2 * pm.math.sqrt(variance))
        pm.Normal("y", mu, pm.math.sqrt(variance), observed=y)
    k, a = 0.25 + 80, 3 + 40
    b = 4 + 0.5 * ((y**2).sum() - y.sum() ** 2 / k)
    exact = gammaln(a) - gammaln(3) + 3 * np.log(4) - a * np.log(b) + 0.5 * np.log(0.25 / k) - 40 * np.log(2 * np.pi)
    with pm.Model() as second:
        mu = pm.Normal("mu", 0, 3)
        pm.Normal("y", mu, 2.0, observed=y[:5])
        pm.Normal("x", 2 * mu, 1.0, observed=2.5)
    design = np.array([1.0] * 5 + [2.0])
    cov = np.diag([4.0] * 5 + [1.0]) + 9 * np.outer(design, design)
    both = multivariate_normal(np.zeros(6), cov).logpdf([*y[:5], 2.5])
    for model, evidence, gap in ((first, exact, 0.1), (second, both, 1e-6)):
        q = pb.fit_vi(model, **QUIET)
        assert q.converged
        assert evidence - gap - 4 * q.elbo_se < q.elbo < evidence + 4 * q.elbo_se + 1e-6
        assert np.isnan(q.log_evidence)
        assert "elbo=" in repr(q)
        attrs = q.to_inference_data(draws=10, random_seed=1)["posterior"].attrs
        assert "log_evidence" not in attrs or attrs["log_evidence"] is None
        assert attrs["elbo"] == q.elbo
    assert abs(q.mean[0] - 9 * design @ np.linalg.solve(cov, [*y[:5], 2.5])) < 1e-3


@pytest.mark.parametrize(
    ("prior", "n", "known"), [(pm.Normal, 12_000, True), (pm.Cauchy, 12_000, False), (pm.Normal, 100, True)]
)
def test_a_regression_with_normal_priors_is_known_to_be_log_concave(prior, n, known):
    """Sites are log-concave, the Cauchy prior is not."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 2))
    with pm.Model() as model:
        beta = prior("beta", 0, 1, shape=2)
        pm.Poisson("y", pm.math.exp(X @ beta), observed=rng.poisson(np.exp(X @ [0.3, -0.2])))
    assert is_log_concave(pb.as_target(model)) == known
    assert can_be_sought(pb.as_target(model)) != known


def _student():
    return pm.StudentT("y", 4, mu=pm.Normal("a", 0, 1), sigma=1.0, observed=np.arange(5.0))


def _hierarchy():
    return pm.Normal("y", pm.Normal("a", 0, pm.math.exp(pm.Normal("t", 0, 1)), shape=5), 1.0, observed=np.arange(5.0))


def _bent():
    return pm.Normal("y", pm.Normal("a", 0, 1) ** 2, 1.0, observed=np.arange(5.0))


@pytest.mark.parametrize("build", [_student, _hierarchy, _bent])
def test_normal_priors_alone_do_not_make_a_posterior_log_concave(build):
    with pm.Model() as model:
        build()
    assert not pb.as_target(model).log_concave


def product(shift=0.0):
    """The product of a and b is 4 ± 0.3, under normal priors; of c nothing is known."""

    def density(x):
        a, b, c = x.T
        off = (a * b - 4) / 0.3
        slopes = np.c_[-off * b / 0.3 - a + shift, -off * a / 0.3 - b, -(c - 5)]
        return -0.5 * off**2 - 0.5 * ((a - shift) ** 2 + b**2 + (c - 5) ** 2), slopes

    return FunctionTarget(3, density, names=("a", "b[0]", "c"))


def of_the_square(x):
    return -((x[:, 0] ** 2 - 2) ** 2), np.c_[-4 * x[:, 0] * (x[:, 0] ** 2 - 2), 0 * x[:, 1:]]


def test_changes_of_signs_that_leave_the_density_as_it_is_are_found():
    def at(mean, target, sd=0.2):
        return has_mirror_image(target, GaussianApproximation(np.array(mean), sd**2 * np.eye(3), names=target.names))

    assert at([2.0, 2.0, 5.0], product())  # of a and b together
    assert not at([2.0, 2.0, 5.0], product(), sd=2.0)  # the image is where the Gaussian's points are
    assert not at([2.0, 2.0, 5.0], product(shift=1e-6))  # nearly
    assert at([1.5, 0.0, 5.0], FunctionTarget(3, of_the_square, names=("a", "b", "c")))


@pytest.mark.slow  # 65 coordinates by variational inference
def test_variational_inference_at_one_sign_of_a_factor_has_not_converged():
    """The density has no finite maximum, so that climbs find no mode."""
    rng = np.random.default_rng(120)
    scores, loadings = rng.standard_normal(60), np.array([1, 0.8, 0.6, -0.5, 0.3])
    y = scores[:, None] * loadings + 0.6 * rng.standard_normal((60, 5))
    with pm.Model() as model:
        own, sd = pm.Normal("loadings", 0, 1, shape=5), pm.HalfNormal("sd", 1, shape=5)
        pm.Normal("y", pm.Normal("scores", 0, 1, shape=60)[:, None] * own, sd, observed=y)
    with pytest.warns(ApproximationWarning, match="there is another mode, where a Gaussian has 50%"):
        assert not pb.fit_vi(model, **QUIET).converged

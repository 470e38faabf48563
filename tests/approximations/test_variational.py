"""Gaussian variational inference against closed forms, evidences and its own invariants."""

import warnings

import numpy as np
import pytest
from scipy.special import expit, log_expit

import ppl_backends as pb
from ppl_backends.approximations.noise import normal_noise, standardised_noise
from ppl_backends.approximations.variational import VariationalApproximation
from ppl_backends.approximations.variational.annealing import ladder
from ppl_backends.approximations.variational.ascents import Adagrad, Adam
from ppl_backends.approximations.variational.elbo import SampleAverage
from ppl_backends.approximations.variational.families import make_family
from ppl_backends.approximations.variational.fit import gaussian_of_fit
from ppl_backends.approximations.variational.sample_average import maximise
from ppl_backends.approximations.variational.schedules import growing_sizes
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.numerics.weights import effective_sample_size
from ppl_backends.targets import FunctionTarget
from ppl_backends.targets.factors import Factors, Logit
from tests.toys import bimodal, conjugate_gaussian, gamma_poisson

QUIET = {"random_seed": 1, "progressbar": False}
FAMILIES = ("diagonal", "low_rank", "dense")


def _member(name, dim=4, seed=0):
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(np.cov(rng.normal(size=(3 * dim, dim)), rowvar=False))
    return make_family(name, rng.normal(size=dim), root, 2, rng), rng


@pytest.mark.parametrize("name", FAMILIES)
def test_gradient_of_sample_average_is_that_of_its_value(name):
    family, rng = _member(name)
    objective = SampleAverage(gamma_target(4), family, standardised_noise(32, 4, rng, factors=family.factors))
    p = 0.3 * rng.standard_normal(len(family.start()))
    _, gradient = objective(p)
    steps = 1e-5 * np.eye(len(p))
    differences = [(objective(p + step)[0] - objective(p - step)[0]) / 2e-5 for step in steps]
    np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-7)


def gamma_target(dim):
    """Return independent log-gamma coordinates, coupled by a quadratic: smooth and skewed."""
    coupling = np.eye(dim) + 0.3

    def density(x):
        return (2 * x - np.exp(x)).sum(1) - 0.5 * np.einsum("ni,ij,nj->n", x, coupling, x), 2 - np.exp(x) - x @ coupling

    return FunctionTarget(dim, density)


@pytest.mark.parametrize("name", FAMILIES)
def test_members_agree_with_their_density(name):
    family, rng = _member(name)
    p = 0.3 * rng.standard_normal(len(family.start()))
    z = rng.standard_normal((5, family.factors + 4))
    mean, sd = family.mean_and_sd(p)
    factor, directions = family.factor(p)
    q = VariationalApproximation(mean, cholesky=factor, directions=directions)
    x = family.points(p, z)
    root = (family.points(p, np.eye(z.shape[1])) - mean).T
    np.testing.assert_allclose(q.cov, root @ root.T)
    np.testing.assert_allclose(q.place(q.whiten(x)), x)
    np.testing.assert_allclose(q.sd, sd)
    np.testing.assert_allclose(np.sqrt(np.diag(q.cov)), sd)
    value, slope = q.log_density_and_gradient(x)
    dense = pb.GaussianApproximation(mean, q.cov)
    np.testing.assert_allclose(value, dense.log_density(x))
    np.testing.assert_allclose(slope, family.score(p, z))
    np.testing.assert_allclose(slope, dense.log_density_and_gradient(x)[1])
    entropy, _ = family.entropy(p)
    assert np.isclose(entropy, 0.5 * dense.log_determinant + 2 * (1 + np.log(2 * np.pi)))
    rebased = family.rebased(p)
    np.testing.assert_allclose(rebased.points(rebased.start(), z), x)
    np.testing.assert_allclose(q.marginal([2, 0]).cov, q.cov[np.ix_([2, 0], [2, 0])])
    np.testing.assert_allclose(q.conditional([1], [0.3]).mean, dense.conditional([1], [0.3]).mean)


def test_standardised_noise_has_exact_moments():
    z = standardised_noise(64, 5, np.random.default_rng(0))
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(z.T @ z / 64, np.eye(5), atol=1e-12)
    few = standardised_noise(8, 5, np.random.default_rng(0), factors=2)
    np.testing.assert_allclose((few**2).mean(axis=0), 1)
    np.testing.assert_allclose(few[:, :2].T @ few / 8, np.eye(2, 7), atol=1e-12)


def test_noise_beyond_sobol_points():
    z = normal_noise(4, 4_200, np.random.default_rng(0))
    assert z.shape == (4, 4_200)
    assert abs(z.mean()) < 4 / np.sqrt(z.size)


def test_noise_is_unbiased_and_better_than_random():
    rng = np.random.default_rng(0)
    errors = np.array([normal_noise(64, 3, rng).mean(axis=0) for _ in range(200)])
    assert np.abs(errors.mean(axis=0)).max() < 4 * errors.std() / np.sqrt(200)
    assert errors.std() < 0.2 / np.sqrt(64)


def test_maximise_survives_points_outside_the_support():
    def objective(x):
        if x[0] <= 0:
            return -np.inf, np.zeros(2)
        return np.log(x[0]) - x[0] - 50 * (x[1] - x[0]) ** 2, np.array(
            [1 / x[0] - 1 + 100 * (x[1] - x[0]), -100 * (x[1] - x[0])]
        )

    found = maximise(objective, np.array([5.0, -3.0]), 1e-12, 200)
    assert found.converged
    np.testing.assert_allclose(found.x, [1, 1], atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"method": "stochastic"}, {"gradient": "score"}, {"annealing": 4}, {"initial": "prior"}, {"qmc": False}],
)
def test_full_rank_is_exact_on_a_gaussian(options):
    known = conjugate_gaussian()
    q = pb.fit_vi(known.target, family="dense", **options, **QUIET)
    assert q.converged
    np.testing.assert_allclose(q.mean, known.mean, atol=0.02 * known.sd.min())
    np.testing.assert_allclose(q.sd, known.sd, rtol=0.02)
    assert abs(q.elbo - known.log_evidence) < 0.02
    assert q.elbo_se < 0.02
    assert np.isnan(q.log_evidence)


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
@pytest.mark.parametrize("qmc", [True, False])
def test_gradient_rules_find_a_gaussian_from_afar(optimizer, qmc):
    known = conjugate_gaussian()
    options = {"family": "dense", "initial": np.zeros(known.target.dim), "step": 0.3, "qmc": qmc}
    q = pb.fit_vi(known.target, optimizer=optimizer, tolerance=0.01, **options, **QUIET)
    np.testing.assert_allclose(q.mean, known.mean, atol=0.1 * known.sd.min())
    np.testing.assert_allclose(q.sd, known.sd, rtol=0.1)
    assert known.log_evidence - q.elbo < 0.05


def test_gradient_rules_take_the_steps_of_their_papers():
    """With a constant gradient g the steps of Adam are ε sign g, and the t-th step of Adagrad is ε sign g / √t."""
    g = np.array([3.0, -0.01])
    adam, adagrad = Adam(0.1), Adagrad(0.1)
    for t in range(1, 6):
        np.testing.assert_allclose(adam(g), [0.1, -0.1], rtol=1e-4)
        np.testing.assert_allclose(adagrad(g), np.array([0.1, -0.1]) / np.sqrt(t), rtol=1e-4)


def test_gradient_rules_need_fresh_noise():
    known = conjugate_gaussian()
    for options in ({"method": "fixed", "optimizer": "adam"}, {"gradient": "score", "step": 0.1}):
        with pytest.raises(ModelError, match="stochastic"):
            pb.fit_vi(known.target, **options, **QUIET)


@pytest.mark.filterwarnings("ignore:.*Pareto k")
def test_mean_field_finds_conditional_sds_of_a_gaussian():
    known = conjugate_gaussian()
    precision = -known.target.hessian(np.zeros((1, 5)))[0]
    q = pb.fit_vi(known.target, family="diagonal", draws=512, **QUIET)
    np.testing.assert_allclose(q.sd, np.diag(precision) ** -0.5, rtol=0.03)
    np.testing.assert_allclose(q.mean, known.mean, atol=0.01)
    exact = known.log_evidence + 0.5 * np.log(np.linalg.det(precision) / np.diag(precision).prod())
    assert abs(q.elbo - exact) < 4 * q.elbo_se + 0.02


def test_low_rank_finds_a_covariance_of_that_rank():
    rng = np.random.default_rng(3)
    scales, b = np.exp(rng.normal(size=40)), rng.normal(size=(40, 2)) / 3
    root = scales[:, None] * (np.eye(40) + b @ b.T)
    precision = np.linalg.inv(root @ root.T)
    target = FunctionTarget(
        40, lambda x: (-0.5 * np.einsum("ni,ij,nj->n", x - 1, precision, x - 1), (1 - x) @ precision)
    )
    q = pb.fit_vi(target, family="low_rank", rank=2, draws=512, **QUIET)
    assert q.directions.shape == (40, 2)
    np.testing.assert_allclose(q.mean, 1, atol=0.02 * scales.max())
    np.testing.assert_allclose(q.sd, np.sqrt((root**2).sum(axis=1)), rtol=0.03)
    exact = 20 * np.log(2 * np.pi) + np.linalg.slogdet(root)[1]
    assert abs(q.elbo - exact) < 0.05


def test_low_rank_bound_has_a_maximum_on_fewer_points_than_coordinates():
    rng = np.random.default_rng(4)
    scales, b = np.exp(rng.normal(size=400)), rng.normal(size=(400, 3)) / 5
    inner = np.linalg.inv(np.eye(3) + b.T @ b)

    def density(x):
        white = (x - 1) / scales
        slope = -(white - (white @ b) @ inner @ b.T)
        return 0.5 * (white * slope).sum(1), slope / scales

    q = pb.fit_vi(FunctionTarget(400, density), family="low_rank", rank=3, initial=np.zeros(400), **QUIET)
    assert q.converged
    exact = 200 * np.log(2 * np.pi) + np.log(scales).sum() - 0.5 * np.linalg.slogdet(inner)[1]
    assert exact - 1.5 < q.elbo < exact + 4 * q.elbo_se
    np.testing.assert_allclose(q.sd, scales * np.sqrt(1 + (b**2).sum(axis=1)), rtol=0.15)


def test_skewed_target_reaches_the_best_gaussian():
    known = gamma_poisson()
    q = pb.fit_vi(known.target, tolerance=0.002, **QUIET)
    # E[7.5x - 4.5 exp(x)] + entropy has its maximum where s² = 1/7.5 and exp(m + s²/2) = 7.5/4.5
    np.testing.assert_allclose(q.sd, 7.5**-0.5, rtol=0.01)
    np.testing.assert_allclose(q.mean, np.log(7.5 / 4.5) - 0.5 / 7.5, atol=0.003)
    assert q.elbo < known.log_evidence
    assert abs(q.diagnostics["optimism"]) < 0.02


@pytest.mark.filterwarnings("ignore:.*diagonal.*Pareto k")
def test_bound_lies_below_the_evidence_of_the_breast_cancer_data():
    X, y, *_ = load_binary_regression("breast_cancer")
    sign = 2.0 * y - 1

    def log_likelihood(x):
        s = sign * (x @ X.T)
        return log_expit(s).sum(1), (sign * expit(-s)) @ X

    def log_prior(x):
        return -0.5 * (x**2).sum(1) - 0.5 * X.shape[1] * np.log(2 * np.pi), -x

    target = FunctionTarget(X.shape[1], log_likelihood, log_prior)
    q = pb.fit_vi(target, **QUIET)
    assert q.family == "dense"
    assert -57.2 < q.elbo < -55.22 + 3 * q.elbo_se  # iterated importance sampling: -55.22
    x = q.place(normal_noise(2048, q.dim, np.random.default_rng(0)))
    with pytest.warns(ApproximationWarning, match="the Gaussian there is not the posterior"):
        laplace = pb.fit_laplace(target, progressbar=False)
    weights = [effective_sample_size(target.log_density(x) - q.log_density(x))]
    x = laplace.place(normal_noise(2048, q.dim, np.random.default_rng(0)))
    weights.append(effective_sample_size(target.log_density(x) - laplace.log_density(x)))
    assert weights[0] > weights[1]
    # q is the Gaussian of highest bound: Laplace's is lower
    mean_field = pb.fit_vi(target, family="diagonal", **QUIET)
    assert mean_field.elbo < q.elbo


def _logistic(n=4000, dim=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, dim))
    y = rng.random(n) < expit(X @ np.linspace(-1, 1, dim))
    return Factors(X, None, Logit(2.0 * y - 1), np.zeros(dim), np.eye(dim))


def test_minibatches_agree_with_all_data():
    target = pb.as_target(_logistic())
    full = pb.fit_vi(target, **QUIET)
    seen = []
    observations = target.observations
    whole = observations.sum
    observations.sum = lambda x, index, *rest, **options: seen.append(len(index)) or whole(x, index, *rest, **options)
    q = pb.fit_vi(target, minibatch=200, tolerance=0.03, elbo_draws=256, **QUIET)
    assert max(seen) <= 2000  # the subset that Laplace starts from
    assert q.converged
    np.testing.assert_allclose(q.mean, full.mean, atol=0.15 * full.sd.min())
    np.testing.assert_allclose(q.sd, full.sd, rtol=0.08)


def test_no_gradient_is_needed():
    class Values:
        dim = 2

        def log_density(self, x):
            return -0.5 * ((x - [1.0, -2.0]) ** 2 / [4.0, 0.25]).sum(1)

    q = pb.fit_vi(Values(), **QUIET)
    np.testing.assert_allclose(q.mean, [1, -2], atol=0.05)
    np.testing.assert_allclose(q.sd, [2, 0.5], rtol=0.03)


def test_annealing_finds_the_heavier_mode():
    known = bimodal()
    heavy = known.mean[0] < 0
    assert heavy
    with pytest.warns(ApproximationWarning, match="another mode"):
        q = pb.fit_vi(known.target, annealing=12, **QUIET)
    assert (q.mean < 0).all()
    assert not q.converged


def test_funnel_without_a_mode_has_a_start():
    def density(x):  # ten observations N(theta_j, 1) of theta_j ~ N(0, exp(2v)), v ~ N(0, 1): no mode, v goes to -inf
        v, theta, y = x[:, :1], x[:, 1:], np.linspace(-1, 2, 10)
        value = -0.5 * v[:, 0] ** 2 - 10 * v[:, 0] - 0.5 * (theta**2 * np.exp(-2 * v) + (y - theta) ** 2).sum(1)
        slope_v = -v[:, 0] - 10 + (theta**2 * np.exp(-2 * v)).sum(1)
        return value, np.column_stack([slope_v, -theta * np.exp(-2 * v) + y - theta])

    with pytest.warns(ApproximationWarning):
        q = pb.fit_vi(FunctionTarget(11, density), **QUIET)
    grid = np.linspace(-4, 3, 2001)  # of v, the members integrated out
    variance = 1 + np.exp(2 * grid)
    log_mass = -0.5 * grid**2 - 5 * np.log(variance) - 0.5 * (np.linspace(-1, 2, 10) ** 2).sum() / variance
    exact = np.log(np.exp(log_mass).sum() * (grid[1] - grid[0])) + 5 * np.log(2 * np.pi)
    assert exact - 3 < q.elbo < exact


def test_power_is_the_tempered_posterior():
    known = conjugate_gaussian()
    q = pb.fit_vi(known.target, power=0.25, **QUIET)
    likelihood = -known.target.hessian(np.zeros((1, 5)), "likelihood")[0]
    exact = np.linalg.inv(0.25 * likelihood + np.eye(5) / 4)
    np.testing.assert_allclose(q.cov, exact, rtol=0.02, atol=1e-3)


def test_a_fit_cut_short_says_so():
    known = gamma_target(3)
    with pytest.warns(ApproximationWarning, match="not converged"):
        q = pb.fit_vi(known, max_draws=64, **QUIET)
    assert not q.converged


def test_a_density_with_holes_has_no_bound():
    target = FunctionTarget(1, lambda x: (np.where(x[:, 0] > -1, -0.5 * x[:, 0] ** 2, -np.inf), -x))
    with pytest.warns(ApproximationWarning, match="no lower bound"):
        q = pb.fit_vi(target, draws=4, max_draws=4, **QUIET)
    assert q.elbo == -np.inf
    assert not q.converged


def test_far_from_the_posterior_is_said():
    known = conjugate_gaussian(20)
    with pytest.warns(ApproximationWarning, match="Pareto k"):
        pb.fit_vi(known.target, family="diagonal", draws=512, **QUIET)


@pytest.mark.parametrize("seed", [3, 4, 10])  # Pareto k is below 0.7
def test_independent_heavy_tails_have_not_converged(seed):
    """The Gaussian is 1.25 wide, and Student's t with 3 degrees of freedom has a standard deviation of 1.73."""
    target = FunctionTarget(10, lambda x: (-2.0 * np.log1p(x**2 / 3.0).sum(axis=1), -4.0 * x / (3.0 + x**2)))
    with pytest.warns(ApproximationWarning):
        fit = pb.fit_vi(target, random_seed=seed, progressbar=False)
    assert not fit.converged


def test_result_goes_to_inference_data_and_to_importance_sampling(tmp_path):
    known = gamma_poisson()
    q = pb.fit_vi(known.target, **QUIET)
    idata = q.to_inference_data(draws=50, random_seed=1)
    idata.to_netcdf(str(tmp_path / "vi.nc"))
    attrs = idata.posterior.attrs
    assert attrs["accuracy"] == "approximate"
    assert attrs["method"] == "variational inference"
    assert attrs["elbo"] == q.elbo
    assert "log_evidence" not in attrs
    corrected = pb.sample_importance(known.target, draws=512, chains=4, approximation="vi", **QUIET)
    error = corrected.posterior.attrs["log_evidence_se"]
    assert abs(corrected.posterior.attrs["log_evidence"] - known.log_evidence) < 6 * error + 1e-3


def test_the_seed_decides():
    known = gamma_poisson()
    first, second = (pb.fit_vi(known.target, **QUIET) for _ in range(2))
    np.testing.assert_array_equal(first.mean, second.mean)
    assert first.elbo == second.elbo


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "normal"}, "family='normal'"),
        ({"method": "adam"}, "method='adam'"),
        ({"gradient": "score", "family": "low_rank"}, "gradient='score' fits"),
        ({"minibatch": 10}, "observations"),
        ({"minibatch": 10, "method": "fixed"}, "method='fixed'"),
        ({"annealing": [0.5, 0.2]}, "increasing numbers"),
        ({"initial": np.zeros(3)}, "initial has shape"),
        ({"initial": "mode"}, "initial='mode'"),
        ({"tolerance": -1}, "tolerance=-1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ModelError, match=message):
        pb.fit_vi(conjugate_gaussian().target, **options, **QUIET)


def test_schedules():
    sizes = growing_sizes(8, 1.5, 100)
    values = [next(sizes) for _ in range(30)]
    assert values[0] == 9
    assert values[-1] == 100
    assert np.all(np.diff(values) >= 0)
    np.testing.assert_allclose(ladder([0.1, 0.5, 1.0]), [0.1, 0.5])


def test_many_coordinates_without_a_mode():
    """A centred hierarchical model of 322 coordinates: the density has no mode to start from, the bound has a maximum."""
    groups, rng = 320, np.random.default_rng(4)
    y = 1.0 + 0.6 * rng.normal(size=groups) + 0.5 * rng.normal(size=groups)

    def density(x):
        m, log_s, b = x[:, :1], x[:, 1:2], x[:, 2:]
        z, residual = (b - m) * np.exp(-log_s), (y - b) / 0.5
        value = -0.5 * ((z**2 + residual**2).sum(axis=1) + m[:, 0] ** 2 + (2 * log_s[:, 0]) ** 2) - groups * log_s[:, 0]
        slope = np.empty_like(x)
        slope[:, :1] = (z * np.exp(-log_s)).sum(axis=1, keepdims=True) - m
        slope[:, 1:2] = (z**2 - 1).sum(axis=1, keepdims=True) - 4 * log_s
        slope[:, 2:] = -z * np.exp(-log_s) + residual / 0.5
        return value, slope

    target = FunctionTarget(groups + 2, density)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)  # the funnel is far from a Gaussian
        q = pb.fit_vi(target, family="diagonal", random_seed=1, progressbar=False)
        tight = pb.fit_vi(target, family="diagonal", random_seed=2, tolerance=0.002, progressbar=False)
    assert q.converged
    assert abs(q.elbo - tight.elbo) < 0.3 + 4 * np.hypot(q.elbo_se, tight.elbo_se)
    assert np.all(np.abs(q.mean[:2] - tight.mean[:2]) < 1.0 * tight.sd[:2])


def test_many_coordinates_start_from_laplace():
    sd = np.exp(np.linspace(-4, 1, 320))  # the prior's Gaussian, a standard normal, would be far from the narrow ones
    target = FunctionTarget(320, lambda x: (-0.5 * ((x - 3) ** 2 / sd**2).sum(1), (3 - x) / sd**2))
    q = pb.fit_vi(target, **QUIET)
    assert q.history["iterations"].sum() == 0
    np.testing.assert_allclose(q.mean, 3, atol=1e-6)


def test_a_fit_whose_scale_shrank_to_zero_is_an_error_of_one_line():
    """In thirty coordinates with ridges a scale underflowed, and the error was a singular matrix."""

    class Fit:
        family = make_family("diagonal", np.zeros(2), np.array([1.0, 0.0]), 0, np.random.default_rng(0))

    target = FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    with pytest.raises(ModelError, match=r"diverged, its scale along `x\[1\]` is 0: give another initial="):
        gaussian_of_fit(Fit(), target)

"""Factors found on PyMC models: which are found, given and refused, and that the factors are the model's density."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.stats import multivariate_t

from ppl_backends.approximations.ep import fit_ep
from ppl_backends.approximations.resolve import resolve_approximation
from ppl_backends.errors import ApproximationWarning, FactorSearchError, ModelError
from ppl_backends.importance import sample_importance
from ppl_backends.smc import sample_smc
from ppl_backends.targets.factors import (
    Factors,
    FunctionSites,
    Laplace,
    Logit,
    Normal,
    NormalMixture,
    Poisson,
    Probit,
    SiteFamily,
    StudentT,
)
from ppl_backends.targets.factors.finder import complete_gaussian
from ppl_backends.targets.pymc import PyMCTarget
from ppl_backends.targets.pymc.factors import PyMCFactors, graph
from ppl_backends.targets.pymc.factors.find import term_error
from ppl_backends.targets.pymc.factors.graph import RAW_MODE
from ppl_backends.targets.pymc.graph import log_density_terms, one_line

RNG = np.random.default_rng(0)
N, D = 60, 3
X = RNG.normal(size=(N, D))
ETA = X @ np.array([0.8, -0.5, 0.3])
BINARY = (RNG.random(N) < 1 / (1 + np.exp(-ETA))).astype(int)
COUNT = RNG.poisson(np.exp(ETA))
REAL = ETA + 0.5 * RNG.standard_t(3, size=N)
ORDERED = np.digitize(ETA + RNG.logistic(size=N), [-1, 1])
GROUP = np.arange(N) % 6
TRIALS = RNG.integers(1, 8, size=N)
SUCCESSES = RNG.binomial(TRIALS, 1 / (1 + np.exp(-ETA)))
TIME = np.linspace(0, 3, 20)


def b():
    return pm.Normal("b", 0, 2, shape=D)


def bernoulli(coefficients, design=X):
    pm.Bernoulli("y", logit_p=design @ coefficients, observed=BINARY[: len(design)])


def gaussian_process():
    kernel = np.exp(-0.5 * (TIME[:, None] - TIME) ** 2) + 1e-6 * np.eye(20)
    bernoulli(pm.Normal("z", 0, 1, shape=20), np.linalg.cholesky(kernel))


def mixture_of_two():
    eta = X @ b()
    parts = [pm.Normal.dist(eta, 0.5), pm.StudentT.dist(nu=2, mu=eta, sigma=2.0)]
    pm.Mixture("y", w=[0.8, 0.2], comp_dists=parts, observed=REAL)


def narrow_spikes():
    w = pm.Beta("w", 2, 3)
    parts = [pm.Normal.dist(0.4, 1e-6), pm.Normal.dist([-1.0, 0.0, 1.0][:D], 2.0)]
    bernoulli(pm.Mixture("b", w=pm.math.stack([1 - w, w]), comp_dists=parts, shape=D))


def mixture_of_normals():
    eta = X @ b()
    parts = [pm.Normal.dist(eta, 0.5), pm.Normal.dist(2.0 * eta - 1.0, 3.0)]
    pm.Mixture("y", w=[0.8, 0.2], comp_dists=parts, observed=REAL)


def free_tau(centred):
    tau = pm.HalfNormal("tau")
    z = pm.Normal("z", 0, tau if centred else 1, shape=6)
    pm.Poisson("y", pm.math.exp(X @ b() + (z if centred else tau * z)[GROUP]), observed=COUNT)


def student_with_scale():
    pm.StudentT("y", nu=4, mu=X @ b(), sigma=pm.HalfNormal("sigma"), observed=REAL)


def two_scales():
    z, tau, sigma = pm.Normal("z", 0, 1, shape=6), pm.HalfNormal("tau"), pm.HalfNormal("sigma")
    pm.Laplace("y", pm.Normal("a", 0, 1) + (tau * z)[GROUP], sigma, observed=REAL)


def three_scales():
    tau, omega, sigma = pm.HalfNormal("tau"), pm.HalfNormal("omega"), pm.HalfNormal("sigma")
    z, w = pm.Normal("z", 0, tau, shape=6), pm.Normal("w", 0, omega, shape=5)
    pm.Normal("y", pm.Normal("a", 0, 1) + X @ b() + z[GROUP] + w[np.arange(N) % 5], sigma, observed=REAL)


def spike_and_slab_regression():
    coefficients = pm.NormalMixture("b", w=[0.5, 0.5], mu=[0, 0], sigma=[0.1, 2.0], shape=D)
    pm.Normal("y", X @ coefficients, 1.0, observed=REAL)


def user_density():
    coefficients = pm.CustomDist("b", logp=lambda v: pt.log(pt.log1p(2 / v**2)), shape=D)  # a horseshoe of fixed scale
    bernoulli(coefficients)


def summed_potential():
    eta = X @ b()
    pm.Potential("y", pm.logp(pm.Poisson.dist(pm.math.exp(eta)), COUNT).sum())


def through_data():
    eta = pm.Normal("a", 0, 3) + pm.math.dot(pm.Data("X", X), b())
    pm.Bernoulli("y", logit_p=eta, observed=BINARY)


def random_walk():
    w = pm.GaussianRandomWalk("w", sigma=0.3, init_dist=pm.Normal.dist(0, 1), shape=N)
    pm.Poisson("y", pm.math.exp(w), observed=COUNT)


# Name → what makes the model, hyper-parameters, number of sites, families of the sites (None: whatever it is).
MODELS = {
    "logit": (lambda: bernoulli(b()), [], N, [Logit]),
    "logit by hand": (lambda: pm.Bernoulli("y", p=1 / (1 + pm.math.exp(-X @ b())), observed=BINARY), [], N, [Logit]),
    "through data": (through_data, [], N, [Logit]),
    "clipped": (lambda: pm.Bernoulli("y", logit_p=pt.clip(X @ b(), -12, 12), observed=BINARY), [], N, [None]),
    "probit": (lambda: pm.Bernoulli("y", p=pm.math.invprobit(X @ b()), observed=BINARY), [], N, [Probit]),
    "probit by erf": (
        lambda: pm.Bernoulli("y", p=0.5 * (1 + pt.erf(X @ b() / np.sqrt(2))), observed=BINARY), [], N, [Probit]
    ),
    "cloglog": (lambda: pm.Bernoulli("y", p=1 - pm.math.exp(-pm.math.exp(X @ b())), observed=BINARY), [], N, [None]),
    "binomial": (
        lambda: pm.Binomial("y", n=TRIALS, p=pm.math.sigmoid(X @ b()), observed=SUCCESSES), [], N, [Logit]
    ),
    "exposure": (
        lambda: pm.Poisson("y", mu=TRIALS * pm.math.exp(X @ b()), observed=COUNT), [], N, [Poisson]
    ),
    "negative binomial": (
        lambda: pm.NegativeBinomial("y", mu=pm.math.exp(X @ b()), alpha=3.0, observed=COUNT), [], N, [None]
    ),
    "zero-inflated": (
        lambda: pm.ZeroInflatedPoisson("y", psi=0.7, mu=pm.math.exp(X @ b()), observed=COUNT), [], N, [None]
    ),
    "student": (lambda: pm.StudentT("y", nu=4, mu=X @ b(), sigma=0.5, observed=REAL), [], N, [StudentT]),
    "laplace": (lambda: pm.Laplace("y", mu=X @ b(), b=0.5, observed=REAL), [], N, [Laplace]),
    "normal": (lambda: pm.Normal("y", mu=X @ b(), sigma=0.5, observed=REAL), [], N, [Normal]),
    "correlated errors": (
        lambda: pm.MvNormal("y", mu=X @ b(), cov=0.25 * np.eye(N) + 0.1, observed=REAL), [], 1, [None]
    ),
    "groups": (lambda: pm.Poisson("y", pm.math.exp(pm.Normal("z", 0, 1, shape=6)[GROUP]), observed=COUNT), [], N, [Poisson]),
    "shared probabilities": (
        lambda: pm.Bernoulli("y", p=pm.math.sigmoid(pm.Normal("z", 0, 1, shape=6))[GROUP], observed=BINARY), [], 6, [Logit]
    ),
    "ordered": (lambda: pm.OrderedLogistic("y", eta=X @ b(), cutpoints=[-1, 1], observed=ORDERED), [], N, [None]),
    "gaussian process": (gaussian_process, [], 20, [Logit]),
    "random walk": (random_walk, [], N, [Poisson]),
    "cauchy prior": (lambda: bernoulli(pm.Cauchy("b", 0, 1, shape=D)), [], N + D, [Logit, StudentT]),
    "laplace prior": (lambda: bernoulli(pm.Laplace("b", 0, 1, shape=D)), [], N + D, [Logit, Laplace]),
    "spike and slab": (
        lambda: bernoulli(pm.NormalMixture("b", w=[0.5, 0.5], mu=[0, 0], sigma=[0.1, 2.0], shape=D)),
        [], N + D, [Logit, NormalMixture],
    ),
    "narrow spikes": (narrow_spikes, ["w_logodds__"], N + D, [Logit, NormalMixture]),
    "spike and slab regression": (spike_and_slab_regression, [], D, [NormalMixture]),
    "mixture of normals": (mixture_of_normals, [], N, [NormalMixture]),
    "correlated prior": (
        lambda: bernoulli(pm.MvNormal("b", np.ones(D), cov=np.eye(D) + 0.5, shape=D)), [], N, [Logit]
    ),
    "user density": (user_density, [], N + D, [Logit, None]),
    "mixture": (mixture_of_two, [], N, [None]),
    "censored": (
        lambda: pm.Censored("y", pm.Normal.dist(X @ b(), 0.5), lower=None, upper=1.0, observed=np.minimum(REAL, 1.0)),
        [], N, [None],
    ),
    "truncated": (
        lambda: pm.Truncated("y", pm.Normal.dist(X @ b(), 0.5), lower=-9, upper=None, observed=REAL), [], N, [None]
    ),
    "summed potential": (summed_potential, [], N, [Poisson]),
    "matrix of outcomes": (
        lambda: pm.Bernoulli("y", logit_p=X @ pm.Normal("b", 0, 1, shape=(D, 2)), observed=np.c_[BINARY, 1 - BINARY]),
        [], 2 * N, [Logit],
    ),
    "free tau, centred": (lambda: free_tau(True), ["tau_log__"], N, [Poisson]),
    "free tau": (lambda: free_tau(False), ["tau_log__"], N, [Poisson]),
    "free scale": (student_with_scale, ["sigma_log__"], N, [StudentT]),
    "three scales": (three_scales, ["tau_log__", "omega_log__", "sigma_log__"], N, [Normal]),
    "two scales": (two_scales, ["tau_log__", "sigma_log__"], N, [Laplace]),
}  # fmt: skip

WIDE = np.c_[X, X**2, np.sin(X)]
REFUSED = {
    "positive coefficients": (lambda: bernoulli(pm.HalfNormal("b", shape=9), WIDE), "'y'.*b_log__"),
    "sine of coefficients": (lambda: bernoulli(pm.math.sin(pm.Normal("b", shape=9)), WIDE), "'y'.* of b"),
    "softmax": (
        lambda: pm.Categorical("y", logit_p=X @ pm.Normal("W", 0, 1, shape=(D, 3)), observed=ORDERED), "3 scalars.*of W"
    ),
}  # fmt: skip


def build(make):
    with pm.Model() as model:
        make()
    return model


def factors_of(make):
    target = PyMCTarget(build(make))
    return target, PyMCFactors(target.model, target._data, target._shapes)


def log_density_as_written(target, x):
    model = target.model
    terms = log_density_terms(model, [*model.basic_RVs, *model.potentials])
    total = sum(pt.sum(term) for term in terms)
    function = pytensor.function(model.value_vars, total, mode=RAW_MODE, on_unused_input="ignore")
    shapes = list(target._shapes.value.values())
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])[:-1]
    points = [[p.reshape(s) for p, s in zip(np.split(row, ends), shapes, strict=True)] for row in x]
    return np.array([float(function(*values)) for values in points])


@pytest.mark.parametrize("name", MODELS)
def test_factors_are_the_density_of_the_model(name):
    make, hyper_names, n_sites, families = MODELS[name]
    target, found = factors_of(make)
    assert list(found.hyper_names) == hyper_names
    rng = np.random.default_rng(1)
    for phi in (found.start, found.start - 0.7)[: 1 + len(hyper_names)]:
        factors = found.at(phi)
        assert factors.n_sites == n_sites
        parts = [getattr(part, "family", part) for part in factors.sites.families]
        for part, family in zip(parts, families, strict=True):
            assert isinstance(part, family or SiteFamily)
        x = 0.7 * rng.normal(size=(5, target.dim))
        x[:, found.hyper_coordinates] = phi
        value = factors.log_density(x[:, found.coordinates]) + found.log_hyper_prior(phi)
        np.testing.assert_allclose(value, log_density_as_written(target, x), rtol=1e-9)


def test_a_mixture_has_the_components_of_the_model():
    """Spikes that no grid of points would see, their weight a hyper-parameter."""
    _, found = factors_of(narrow_spikes)
    for phi in (-1.0, 0.5):
        factors, share = found.at([phi]), 1 / (1 + np.exp(-phi))
        family = getattr(factors.sites.families[1], "family", factors.sites.families[1])
        np.testing.assert_allclose(np.exp(family.log_weights), [[1 - share, share]] * D, rtol=1e-8)
        np.testing.assert_allclose(family.means, np.stack([np.full(D, 0.4), np.arange(D) - 1.0], axis=1), atol=1e-12)
        np.testing.assert_allclose(family.sds, [[1e-6, 2.0]] * D, rtol=1e-9)
        np.testing.assert_array_equal(factors.design[N:], np.eye(D))


def test_a_mixture_of_other_components_is_none_of_normals():
    _, found = factors_of(mixture_of_two)
    assert isinstance(found.at().sites.families[0], FunctionSites)


@pytest.mark.filterwarnings("ignore:.*interaction of sites with several modes", "ignore:.*by EP's own estimate")
def test_shares_of_components_of_a_model():
    family = NormalMixture([0.5, 0.5], [0.0, 0.0], [0.1, 2.0], n=D)
    own = fit_ep(Factors(np.eye(D), None, family, np.linalg.solve(X.T @ X, X.T @ REAL), X.T @ X))
    found = fit_ep(build(spike_and_slab_regression))
    np.testing.assert_allclose(found.component_shares(), own.component_shares(), rtol=1e-5)
    mixed = fit_ep(build(narrow_spikes))
    shares = mixed.component_shares()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    given = np.stack([fit.component_shares() for fit in mixed._fits])
    assert np.all((given.min(axis=0) <= shares) & (shares <= given.max(axis=0)))


def test_a_clip_far_out_is_no_logit():
    _, found = factors_of(MODELS["clipped"][0])
    assert isinstance(found.at().sites.families[0], FunctionSites)
    assert found.at().log_site(np.full((1, N), 50.0)).min() == pytest.approx(-12, abs=1e-4)


def test_wrong_sites_do_not_pass_the_proof():
    _, found = factors_of(MODELS["ordered"][0])
    [term] = found._structure.sites
    rng = np.random.default_rng(2)
    points = np.concatenate([scale * rng.normal(size=(12, D)) for scale in (0.3, 3.0)])
    assert term_error(term, points, rng) <= 1
    shifted = np.roll(term.grouping.site_of_cut, 1)  # one element of every site's cut given to its neighbour
    term.grouping = term.grouping._replace(site_of_cut=shifted)
    assert term_error(term, points, rng) > 1e3


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_factorise_is_refused_by_name(name):
    make, message = REFUSED[name]
    target = PyMCTarget(build(make))
    for _ in range(2):  # the refusal is remembered
        with pytest.raises(ModelError, match=message + ".*fit_laplace"):
            target.factors


def test_probit_holds_far_out():
    _, found = factors_of(MODELS["probit"][0])
    factors = found.at()
    s = np.array([-800.0, -40.0, 40.0, 800.0])[:, None] * np.ones(N)
    value = factors.log_site(s)
    assert np.isfinite(value).all()
    np.testing.assert_allclose(
        np.minimum(value[0], value[3]), -0.5 * 800**2 - np.log(800 * np.sqrt(2 * np.pi)), rtol=1e-6
    )


def test_an_outcome_of_no_probability_stays_so():
    """A check of parameters is part of the density, although the site function cannot raise."""
    _, found = factors_of(
        lambda: pm.Bernoulli("y", p=0.5 + 0.1 * X @ pm.Normal("b", 0, 1, shape=D), observed=np.ones(N, dtype=int))
    )
    assert (
        np.isneginf(found.at().log_site(np.full((1, N), 1e3))).all()
        | np.isneginf(found.at().log_site(np.full((1, N), -1e3))).all()
    )


def reference(target, q, n=2**14):
    """Log evidence, means and sds by importance sampling: half the points from ``q``, half from a Student t about it."""
    wide = multivariate_t(q.mean, 1.2 * q.cov, df=6, seed=5)
    x = np.concatenate([q.sample(n // 2, np.random.default_rng(5)), wide.rvs(n // 2)])
    log_w = target.log_density(x) - np.logaddexp(q.log_density(x), wide.logpdf(x)) + np.log(2)
    w = np.exp(log_w - log_w.max())
    log_z = np.log(w.mean()) + log_w.max()
    w /= w.sum()
    mean = w @ x
    return log_z, mean, np.sqrt(w @ (x - mean) ** 2), 1 / (w @ w)


@pytest.mark.parametrize(
    "name",
    [
        *("probit", "cauchy prior", "spike and slab regression", "groups", "free tau", "free scale"),
        pytest.param("three scales", marks=pytest.mark.slow),
    ],
)
def test_ep_of_a_model_against_importance_sampling(name):
    target = PyMCTarget(build(MODELS[name][0]))
    q = fit_ep(target)
    assert q.converged
    assert q.names == target.names
    # three scales have tails in which a few of 16,000 points hold most of the weight
    log_z, mean, sd, effective = reference(target, q, n=2**18 if name == "three scales" else 2**14)
    assert effective > 1500
    noise = 4 / np.sqrt(effective)
    assert np.abs((q.mean - mean) / sd).max() < 0.03 + noise
    # and their three hyper-parameters have a net of weighted points, whose sds have a standard error, too
    net = (0.5 * (q.hyper.weights**2).sum()) ** 0.5 if name == "three scales" else 0.0
    np.testing.assert_allclose(q.sd / sd, 1.0, atol=0.03 + noise + net)
    assert abs(q.log_evidence - log_z) < 0.03 + noise


def test_centred_and_non_centred_hierarchies_agree():
    """The same posterior in two parametrisations: the same evidence and the same tau, its left tail included."""
    fits = [fit_ep(PyMCTarget(build(MODELS[name][0]))) for name in ("free tau, centred", "free tau")]
    columns = [q.names.index("tau_log__") for q in fits]
    assert fits[0].log_evidence == pytest.approx(fits[1].log_evidence, abs=1e-5)
    for member in ("mean", "sd"):
        values = [getattr(q, member)[c] for q, c in zip(fits, columns, strict=True)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)
    lowest = fits[0].hyper.points.min()
    assert lowest < fits[0].hyper.mode[0] - 6  # the tail is covered
    assert "tau_log__" in fits[0].hyper.summary


def test_auto_takes_ep_where_it_applies_and_laplace_elsewhere():
    found = resolve_approximation(PyMCTarget(build(MODELS["probit"][0])), "auto")
    assert found.method == "ep"
    refused = PyMCTarget(build(REFUSED["softmax"][0]))
    assert resolve_approximation(refused, "auto").method == "laplace"
    with pytest.raises(ModelError, match="fit_laplace"):
        resolve_approximation(refused, "ep")


def test_samplers_start_from_ep_by_one_word():
    target = PyMCTarget(build(MODELS["free tau"][0]))
    q = fit_ep(target)
    exact = sample_importance(target, draws=500, chains=2, approximation="ep", random_seed=1, progressbar=False)
    attributes = exact.posterior.attrs
    assert attributes["log_evidence"] == pytest.approx(q.log_evidence, abs=0.05 + 5 * attributes["log_evidence_se"])
    tempered = sample_smc(target, draws=400, chains=2, initial="ep", random_seed=1, progressbar=False)
    attributes = tempered.posterior.attrs
    assert attributes["log_evidence"] == pytest.approx(q.log_evidence, abs=0.05 + 5 * attributes["log_evidence_se"])


def test_new_data_give_new_factors():
    target = PyMCTarget(build(MODELS["through data"][0]))
    doubled = target.with_data({"X": 2 * X})
    np.testing.assert_allclose(doubled.factors.at().design[:, 1:], 2 * target.factors.at().design[:, 1:])
    assert isinstance(doubled.factors.at(), Factors)


def test_normal_observations_beside_other_sites_are_left_out_too():
    """A Laplace prior makes the sites; given it is nearly flat, what is left out is as in ordinary regression."""

    def make():
        coefficients = pm.Laplace("b", 0, 1e4, shape=D)
        pm.Normal("y", X @ coefficients, 0.7, observed=REAL)

    q = fit_ep(PyMCTarget(build(make)))
    hat = X @ np.linalg.inv(X.T @ X) @ X.T
    spread = 0.7**2 / (1 - np.diag(hat))
    residual = (REAL - hat @ REAL) / (1 - np.diag(hat))
    np.testing.assert_allclose(
        q.loo.log_density, -0.5 * (residual**2 / spread + np.log(2 * np.pi * spread)), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", ["1|g_sigma", "float64", "%s {}", "a:b α"])
def test_names_are_not_read_as_types(name):
    with pm.Model() as model:
        sigma = pm.HalfNormal(name, 1)
        effect = pm.Normal(f"{name}[x]", 0, sigma, shape=3)
        pm.Poisson("y", pm.math.exp(effect), observed=[1, 0, 4])
    assert PyMCTarget(model).factors.hyper_names == (f"{name}_log__",)


def test_a_search_that_fails_is_said_where_laplace_takes_its_place():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2)
        pm.Poisson("y", pm.math.exp(beta), observed=[1, 0, 4])
    target = PyMCTarget(model)
    target._factors = FactorSearchError("the search for factors failed (ValueError: format number 1)")
    with pytest.warns(ApproximationWarning, match=r"format number 1\); .*'auto' uses Laplace instead of EP"):
        assert resolve_approximation(target).method == "laplace"


@pytest.mark.slow
def test_long_models_are_searched_on_a_sample_of_their_rows(monkeypatch):
    """What is found on a sample is proved on all rows, and is what the whole search finds."""
    for name in ("probit", "exposure", "free scale", "three scales", "clipped"):
        monkeypatch.setattr(graph, "MANY_ROWS", 10**9)
        _, whole = factors_of(MODELS[name][0])
        monkeypatch.setattr(graph, "MANY_ROWS", 50)
        monkeypatch.setattr(graph, "SAMPLE_ROWS", 30)
        _, sampled = factors_of(MODELS[name][0])
        assert all(term.sample is not None for term in sampled._structure.sites)
        one, other = whole.at(whole.start), sampled.at(sampled.start)
        assert [type(f) for f in one.sites.families] == [type(f) for f in other.sites.families]
        theta = np.random.default_rng(0).normal(size=(4, one.dim))
        np.testing.assert_allclose(other.log_density(theta), one.log_density(theta), rtol=1e-10)


def test_a_row_unlike_those_of_the_sample_is_found_out(monkeypatch):
    monkeypatch.setattr(graph, "MANY_ROWS", 50)
    monkeypatch.setattr(graph, "SAMPLE_ROWS", 5)
    odd = np.zeros(N, dtype=bool)
    odd[7] = True

    def make():
        coefficients = b()
        eta = X @ coefficients
        pm.Bernoulli("y", logit_p=pt.switch(odd, eta + 0.1 * coefficients[0] ** 2, eta), observed=BINARY)

    with pytest.raises(ModelError, match="differ from its log density"):
        factors_of(make)


def test_a_matrix_that_has_no_inverse_where_factors_are_sought_is_no_fault_of_the_search():
    """A precision matrix inverted in the model: fit_ep advises in one line, and "auto" uses Laplace without a warning."""
    path = 2 * np.eye(4) - np.eye(4, k=1) - np.eye(4, k=-1)
    y = np.random.default_rng(6).standard_normal((20, 4))
    with pm.Model() as model:
        tau, nugget = pm.Gamma("tau", 2.0, 2.0), pm.Gamma("nugget", 2.0, 2.0)
        covariance = pt.linalg.inv(tau * path + nugget * np.eye(4))
        pm.Potential("y", -0.5 * (pt.linalg.inv(covariance) * (y.T @ y)).sum() - 10 * pt.log(pt.linalg.det(covariance)))
    target = PyMCTarget(model)
    with pytest.raises(ModelError, match=r"known \(Singular matrix\); use fit_laplace or sample_smc") as caught:
        fit_ep(target)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, FactorSearchError)
    assert resolve_approximation(target).method == "laplace"


def test_a_sum_of_a_scalar_as_in_car_is_no_fault():
    """``pm.CAR`` sums log τ over its last axis, which a scalar does not have."""
    ring = np.roll(np.eye(6), 1, axis=1) + np.roll(np.eye(6), -1, axis=1)
    with pm.Model() as model:
        tau, alpha = pm.Gamma("tau", 2, 1), pm.Uniform("alpha", 0, 1)
        effect = pm.CAR("effect", mu=np.zeros(6), tau=tau, alpha=alpha, W=ring)
        pm.Poisson("y", pm.math.exp(effect), observed=[1, 0, 4, 2, 0, 3])
    target = PyMCTarget(model)
    factors = target.factors
    assert factors.hyper_names == ("tau_log__", "alpha_interval__")
    x = np.random.default_rng(1).normal(size=(4, 8))
    by_factors = [factors.at(p[:2]).log_density(p[None, 2:])[0] + factors.log_hyper_prior(p[:2]) for p in x]
    np.testing.assert_allclose(by_factors, target.evaluate(x).log_density, rtol=1e-10)


def test_an_error_of_pytensor_is_one_line_without_its_node():
    error = ValueError("axis 0 is out of bounds\nfor an array\nApply node that caused the error: Sum{axis=0}(Log.0)")
    assert one_line(error) == "axis 0 is out of bounds for an array"


def test_data_without_elements_leave_the_prior():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a", 3, 2), 1, observed=np.zeros(0))
    q = fit_ep(model)
    np.testing.assert_allclose([q.mean[0], q.sd[0], q.log_evidence], [3, 2, 0], atol=1e-6)


@pytest.mark.parametrize("first", ["psi", "mu"])
def test_of_variables_alike_the_first_has_factors(first):
    """The choice must not depend on the order of a set, which differs from process to process."""
    priors = {"psi": lambda: pm.Beta("psi", 1, 1), "mu": lambda: pm.HalfCauchy("mu", 5)}
    with pm.Model() as model:
        drawn = {name: priors[name]() for name in sorted(priors, key=lambda name: name != first)}
        pm.ZeroInflatedPoisson("y", **drawn, observed=np.zeros(5, dtype=int))
    [name] = PyMCTarget(model).factors.names
    assert name.startswith(first)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gaussian_part_that_is_not_finite_is_refused_in_one_line(bad):
    """A covariance that overflows at a distant hyper-parameter is no fit there; linear algebra raised a ValueError."""
    with pytest.raises(ModelError, match="Gaussian part of the model is not finite"):
        complete_gaussian(0.0, np.zeros(2), np.array([[1.0, bad], [bad, 1.0]]))

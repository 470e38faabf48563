"""Sufficient statistics of rows, found from their log likelihood, and the informed subsets chosen by them."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.subsampling.informed import Informed
from ppl_backends.kernels.subsampling.rows import QuadraticLogPrior, Rows, SiteRows
from ppl_backends.kernels.subsampling.sufficient import sufficient_statistics
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.factors import Factors, FactorsTarget, Logit
from ppl_backends.targets.factors import compiled as sites

N = 600


class Sample(Rows):
    """Rows of a location-scale family with linear predictors, in (β, log σ), about the mode of a normal one."""

    def __init__(self, design, y, density):
        self.n, self.dim = len(y), design.shape[1] + 1
        self._design, self._y, self._density = design, y, density
        beta = np.linalg.lstsq(design, y, rcond=None)[0]
        sd = float((y - design @ beta).std())
        cov = np.zeros((self.dim, self.dim))
        cov[:-1, :-1], cov[-1, -1] = sd**2 * np.linalg.inv(design.T @ design), 0.5 / self.n
        self.expansion_point = Gaussian(np.append(beta, np.log(sd)), np.linalg.cholesky(cov))

    def _at(self, x, index):
        return self._density((self._y[index] - self._design[index] @ x[:-1]) * np.exp(-x[-1])) - x[-1]

    def differences(self, x, new, index):
        return self._at(new, index) - self._at(x, index)


def normal(u):
    return -0.5 * u**2


def student(u):
    return -2.5 * np.log1p(u**2 / 4)


def sample(density, n_covariates=0, seed=0):
    rng = np.random.default_rng(seed)
    design = np.c_[np.ones(N), rng.normal(size=(N, n_covariates))]
    return Sample(design, design.sum(axis=1) + rng.normal(size=N), density)


@pytest.mark.parametrize(("n_covariates", "rank"), [(0, 2), (1, 5), (2, 9)])
def test_normal_families_have_the_statistics_of_the_textbook(n_covariates, rank):
    rows = sample(normal, n_covariates)
    found = sufficient_statistics(rows, np.random.default_rng(1))
    assert (found.rank, found.statistics.shape) == (rank, (N, rank))
    assert found.residual < 1e-10
    x = rows._design[:, 1:]
    known = np.c_[x, rows._y[:, None] * np.c_[np.ones(N), x, rows._y], x[:, :1] * x, x[:, 1:] ** 2]
    centred = found.statistics - found.statistics.mean(axis=0)
    known = known - known.mean(axis=0)
    assert known.shape[1] == rank
    left = known - centred @ np.linalg.lstsq(centred, known, rcond=None)[0]
    assert np.abs(left).max() < 1e-8 * np.abs(known).max()


def test_a_likelihood_with_few_cells_is_a_family_and_others_say_what_is_left():
    rng = np.random.default_rng(2)
    design, y, rest = (
        rng.normal(size=(N, 3)),
        rng.integers(0, 2, size=N),
        QuadraticLogPrior(0.0, np.zeros(3), -np.eye(3)),
    )
    design[:, 0] = 1.0
    cells = SiteRows((design > 0).astype(float), 0.0, y, 1.0, sites.LOGIT, rest)
    assert sufficient_statistics(cells, rng).rank == 6  # Σ y x, and the counts of three of the four cells of covariates
    with pytest.raises(ModelError, match="more than 9 independent terms in a family of 3 parameters"):
        sufficient_statistics(SiteRows(design, 0.0, y, 1.0, sites.LOGIT, rest), rng)
    with pytest.raises(ModelError, match="no sufficient statistics"):
        sufficient_statistics(sample(student, 1), rng)
    with pytest.raises(ModelError, match="8 rows are too few to recognise a family of 3 parameters"):
        sufficient_statistics(SiteRows(design[:8], 0.0, y[:8], 1.0, sites.LOGIT, rest), rng)


def test_a_rare_cell_that_the_recognition_did_not_see_is_found_out():
    rng = np.random.default_rng(3)
    design = np.zeros((20_000, 2))
    design[:, 0] = rng.integers(0, 2, size=20_000)
    design[7] = [1.0, 0.37]
    rest = QuadraticLogPrior(0.0, np.zeros(2), -np.eye(2))
    rows = SiteRows(design, 0.0, rng.integers(0, 2, size=20_000), 1.0, sites.LOGIT, rest)
    with pytest.raises(ModelError, match="of them leave"):
        sufficient_statistics(rows, np.random.default_rng(0))


def test_subsets_with_the_right_statistics_have_the_right_surrogate_everywhere():
    rows = sample(normal, 2)
    rows.log_prior_and_potentials = lambda x: 0.0
    rows.scores = lambda: (
        np.c_[
            (r := rows._y - rows._design @ rows.expansion_point.mean[:-1])[:, None] * rows._design,
            r**2 * np.exp(-rows.expansion_point.mean[-1]),
        ]
        * np.exp(-2 * rows.expansion_point.mean[-1])
    )
    found = sufficient_statistics(rows, np.random.default_rng(1)).statistics
    centred = found - found.mean(axis=0)
    whole, rng = np.arange(N), np.random.default_rng(4)
    weights = rng.normal(size=N)
    weights -= weights.mean() + centred @ np.linalg.lstsq(centred, weights, rcond=None)[0]  # neither sum nor statistics
    for _ in range(5):
        x = rows.expansion_point.mean + rng.normal(size=4)
        change = rows.differences(rows.expansion_point.mean, x, whole)
        assert abs(weights @ change) < 1e-8 * np.abs(weights * change).sum()
        scores = rows.scores() - rows.scores().mean(axis=0)
        blind = rng.normal(size=N)
        blind -= blind.mean() + scores @ np.linalg.lstsq(scores, blind, rcond=None)[0]
        assert abs(blind @ change) > 1e-5 * np.abs(blind * change).sum()  # the scores leave the curvature free


def test_steps_take_any_number_of_statistics():
    rng = np.random.default_rng(5)
    design = np.c_[np.ones(3000), rng.integers(0, 2, size=(3000, 2))].astype(float)
    y = (rng.random(3000) < 1 / (1 + np.exp(-design @ [-0.5, 1.0, 0.3]))).astype(int)
    target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, 1.0))
    options = {"subset": 300, "correction": None, "swaps": 20}
    with pytest.warns(SamplerWarning, match="is approximate"):
        algorithm = pb.steps.InformedSubsampling(summary="sufficient", **options).bind(target)
    assert algorithm.attributes["sufficient_statistics"] == 6
    with pytest.warns(SamplerWarning, match="is approximate"):
        assert "sufficient_statistics" in pb.steps.InformedSubsampling(**options).bind(target).attributes
    with pytest.warns(SamplerWarning, match="is approximate"):
        corrected = pb.steps.InformedSubsampling(subset=300, correction="gradient").bind(target)
    assert "sufficient_statistics" not in corrected.attributes
    assert algorithm.attributes["hessian_error"] < 0.05
    state = algorithm.start(algorithm.initial_point(rng), rng)
    draws = np.empty((6000, 3))
    for k in range(len(draws)):
        state, stats = algorithm.step(state, rng, False)
        draws[k] = state.x
    assert np.isnan(stats["log_likelihood_error"])
    sd = np.sqrt(np.diag(algorithm.rows.expansion_point.factor @ algorithm.rows.expansion_point.factor.T))
    assert np.abs((draws.mean(axis=0) - algorithm.rows.expansion_point.mean) / sd).max() < 0.25
    assert np.abs(draws.std(axis=0) / sd - 1).max() < 0.2
    counts = np.c_[y, y[:, None] * design[:, 1:], design[:, 1:]]
    twice = np.c_[counts, counts.sum(axis=1)]  # a redundant one
    with pytest.warns(SamplerWarning, match="is approximate"):
        algorithm = pb.steps.InformedSubsampling(summary=twice, **options).bind(target)
    assert algorithm.kernel._summaries.shape == (3000, 5)
    with pytest.raises(ModelError, match="constant"):
        pb.steps.InformedSubsampling(summary=design, **options).bind(target)
    with pytest.raises(ModelError, match="expected 'auto', 'scores' or 'sufficient'"):
        pb.steps.InformedSubsampling(summary="magic")


def test_the_curvature_correction_leaves_errors_of_third_order():
    rng = np.random.default_rng(6)
    design = np.c_[np.ones(20_000), rng.standard_t(3, size=(20_000, 2))]
    y = (rng.random(20_000) < 1 / (1 + np.exp(-design @ [-3.0, 0.5, 0.3]))).astype(int)
    rows = SiteRows(design, 0.0, y, 1.0, sites.LOGIT, QuadraticLogPrior(0.0, np.zeros(3), -np.eye(3)))
    spread = {}
    for correction in (None, "gradient", "curvature"):
        algorithm = Informed(rows, 500, spread=np.inf, rng=np.random.default_rng(1), correction=correction)
        spread[correction] = algorithm.attributes["log_likelihood_spread"]
    assert spread["curvature"] < 0.5 * spread["gradient"] < 0.25 * spread[None]
    assert algorithm.attributes["hessian_error"] == 0.0


def test_a_row_far_out_does_not_leave_the_surrogate_without_a_maximum():
    rng = np.random.default_rng(7)
    design = np.c_[np.ones(20_000), rng.normal(size=20_000)]
    design[0, 1] = 40.0
    y = (rng.random(20_000) < 1 / (1 + np.exp(-design @ [0.0, 0.0]))).astype(int)
    y[0], y[1] = 1, 1
    rows = SiteRows(design, 0.0, y, 1.0, sites.LOGIT, QuadraticLogPrior(0.0, np.zeros(2), -np.eye(2)))
    kernel = Informed(rows, 200, spread=np.inf, rng=rng, correction="curvature")
    line = np.linspace(0, 60, 121)[:, None] * rows.expansion_point.factor[:, 1]
    index = np.arange(200)
    escapes = []
    for sign in (-1, 1):
        points = rows.expansion_point.mean + sign * line
        values = np.array([kernel._surrogate(x, index, np.zeros(2)) for x in points])
        assert values.max() < values[0] + 1.0
        plain = [
            rows.log_prior_and_potentials(x) + rows.expansion.at(x - points[0]) + 100 * rows.residuals(x, index).sum()
            for x in points
        ]
        escapes.append(max(plain) - plain[0])
    assert max(escapes) > 1000.0


@pytest.mark.parametrize("value", [1.0, 0.1, 1 / 3])
def test_rows_that_are_all_equal_are_refused(value):
    log_prior = QuadraticLogPrior(0.0, np.zeros(2), -np.eye(2))
    rows = SiteRows(np.full((500, 2), value), 0.0, np.ones(500), 1.0, sites.LOGIT, log_prior)
    with pytest.raises(ModelError, match="the 500 rows have equal log likelihoods; use summary='scores'"):
        sufficient_statistics(rows, np.random.default_rng(0))

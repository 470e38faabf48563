"""Matrix completion: rank and entries recovered, a bound that never falls, intervals that cover."""

import numpy as np
import pytest
from scipy import stats

from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.mean_field import fit_matrix_completion
from ppl_backends.mean_field.entries import read_entries
from ppl_backends.mean_field.matrix_completion import _Prior, _State

OPTIONS = {"random_seed": 1, "progressbar": False}


def simulate(seed, shape=(200, 200), rank=3, noise=0.5, share=0.2):
    """Return triplets, and the whole matrix without noise."""
    rng = np.random.default_rng(seed)
    truth = 1.0 + rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))
    i, j = np.nonzero(rng.random(shape) < share)
    return i, j, truth[i, j] + noise * rng.normal(size=len(i)), truth


@pytest.mark.parametrize(("rank", "noise"), [(1, 1.0), (3, 0.5), (6, 0.5)])
def test_rank_and_noise_are_recovered(rank, noise):
    i, j, y, truth = simulate(rank, rank=rank, noise=noise)
    fit = fit_matrix_completion(i, j, y, max_rank=15, **OPTIONS)
    assert fit.rank == rank
    assert fit.noise_sd == pytest.approx(noise, rel=0.05)
    rows, columns = (index.ravel() for index in np.indices(truth.shape))
    error = np.sqrt(np.mean((fit.predict(rows, columns) - truth[rows, columns]) ** 2))
    assert error < 1.6 * noise * np.sqrt(rank * 400 / len(y))  # parameters over observations


def test_intervals_cover():
    i, j, y, truth = simulate(7, noise=0.5)
    fit = fit_matrix_completion(i, j, y, max_rank=8, **OPTIONS)
    fresh = truth[i, j] + 0.5 * np.random.default_rng(0).normal(size=len(y))
    low, high = fit.interval(i, j, 0.9)
    assert np.mean((low < fresh) & (fresh < high)) == pytest.approx(0.9, abs=0.02)
    assert (fit.predictive_sd(i, j, noise=False) < fit.predictive_sd(i, j)).all()


def test_the_bound_never_falls_while_components_stay():
    i, j, y, _ = simulate(2, shape=(40, 60))
    data = read_entries(i, j, y, None)
    for spectral in (True, False):
        state = _State(data, _Prior(1.0, 0.05, None), 5, np.random.default_rng(1), spectral)
        before, components = state.sweep(), state.k
        for _ in range(60):
            bound = state.sweep()
            assert state.k < components or bound > before - 1e-8 * abs(before)
            before, components = bound, state.k


def test_the_bound_is_the_expectation_that_defines_it():
    """E_q log p(y, u, v, γ, β) − log q, by draws from q."""
    i, j, y, _ = simulate(3, shape=(8, 7), rank=2, share=0.8)
    data, prior = read_entries(i, j, y, None), _Prior(2.0, 0.3, None)
    state = _State(data, prior, 2, np.random.default_rng(0), spectral=False)
    for _ in range(10):
        bound = state.sweep()
    rng, n = np.random.default_rng(5), 20_000
    values, factors = np.zeros(n), []
    for side in state.sides:
        draws = np.empty((n, *side.mean.shape))
        for row, (mean, cov) in enumerate(zip(side.mean, side.cov, strict=True)):
            q = stats.multivariate_normal(mean, cov)
            draws[:, row] = q.rvs(n, random_state=rng).reshape(n, -1)
            values -= q.logpdf(draws[:, row])
        factors.append(draws)
    for k in range(state.k):
        q = stats.invgamma(state.scale_shape, scale=state.scale_rate[k])
        scale = q.rvs(n, random_state=rng)
        values += stats.invgamma(prior.shape, scale=prior.rate).logpdf(scale) - q.logpdf(scale)
        for draws in factors:
            values += stats.norm.logpdf(draws[:, :, k], scale=np.sqrt(scale)[:, None]).sum(axis=1)
    q = stats.gamma(state.noise_shape, scale=1 / state.noise_rate)
    beta = q.rvs(n, random_state=rng)
    values += stats.gamma(1e-3, scale=1e3 / data.variance).logpdf(beta) - q.logpdf(beta)
    fitted = np.einsum("nik,njk->nij", *factors)[:, i, j]
    values += stats.norm.logpdf(y - data.offset, fitted, beta[:, None] ** -0.5).sum(axis=1)
    assert bound == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(n))


def test_known_noise_and_restarts():
    i, j, y, _ = simulate(4, shape=(60, 50), rank=2)
    fit = fit_matrix_completion(i, j, y, max_rank=6, noise_sd=0.5, restarts=3, **OPTIONS)
    assert fit.noise_sd == pytest.approx(0.5)
    assert fit.elbo == fit.restarts.max()
    assert fit.restarts.shape == (3,)
    again = fit_matrix_completion(i, j, y, max_rank=6, noise_sd=0.5, restarts=3, **OPTIONS)
    np.testing.assert_array_equal(fit.rows, again.rows)


def test_noise_alone_has_rank_zero():
    rng = np.random.default_rng(0)
    i, j = np.nonzero(rng.random((80, 80)) < 0.4)
    fit = fit_matrix_completion(i, j, rng.normal(size=len(i)), max_rank=4, **OPTIONS)
    assert fit.rank == 0


def test_unused_rows_fall_back_on_the_prior():
    i, j, y, _ = simulate(5, shape=(50, 40))
    fit = fit_matrix_completion(i, j, y, shape=(51, 40), max_rank=4, **OPTIONS)
    np.testing.assert_allclose(fit.predict([50], [3]), fit.offset)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [0, 0], "columns": [1, 1], "values": [1.0, 2.0]}, "more than once"),
        ({"values": [1.0, np.nan]}, "not finite"),
        ({"rows": [0, 9], "shape": (2, 2)}, "outside"),
        ({"rows": [0.0, 1.0]}, "integers"),
        ({"values": [1.0, 1.0]}, "all values are equal"),
        ({"values": [1.0]}, "shapes"),
        ({"max_rank": 3}, "shorter side"),
        ({"scale_rate": -1.0, "max_rank": 1}, "number above 0"),
    ],
)
def test_refusals(change, message):
    given = {"rows": [0, 1], "columns": [1, 0], "values": [1.0, 2.0], **OPTIONS, **change}
    with pytest.raises(ModelError, match=message):
        fit_matrix_completion(**given)


def test_running_out_of_sweeps_is_said():
    i, j, y, _ = simulate(6, shape=(40, 30))
    with pytest.warns(ApproximationWarning, match="not converged in 3 sweeps"):
        fit_matrix_completion(i, j, y, max_rank=3, max_sweeps=3, **OPTIONS)


def test_weights_are_copies_and_repeated_entries_are_observations():
    """The bound of a fit with weights is that of the copies; a twin that drops the scatter of repeats would differ."""
    i, j, y, _ = simulate(5, shape=(12, 9), rank=1, share=0.7)
    weights = np.random.default_rng(0).integers(1, 4, len(y)).astype(float)
    copies = np.repeat(np.arange(len(y)), weights.astype(int))
    fit = {"max_rank": 2, "random_seed": 1, "progressbar": False}
    weighted = fit_matrix_completion(i, j, y, weights=weights, **fit)
    copied = fit_matrix_completion(i[copies], j[copies], y[copies], weights=np.ones(len(copies)), **fit)
    np.testing.assert_allclose(copied.elbo, weighted.elbo, rtol=1e-9)
    np.testing.assert_allclose(copied.rows_cov, weighted.rows_cov, rtol=1e-6)
    noisy = y[copies] + np.where(np.arange(len(copies)) % 2, 0.5, -0.5)
    again = fit_matrix_completion(i[copies], j[copies], noisy, weights=np.ones(len(copies)), **fit)
    assert again.noise_sd > 0.4 > weighted.noise_sd
    with pytest.raises(ModelError, match="positive numbers"):
        fit_matrix_completion(i, j, y, weights=-weights, **fit)


def test_a_fit_goes_on_from_earlier_factors_of_a_smaller_matrix():
    i, j, y, _ = simulate(6, shape=(50, 40), rank=2, share=0.5)
    options = {"shape": (50, 40), "max_rank": 6, "random_seed": 1, "progressbar": False}
    early = (i < 40) & (j < 35)
    first = fit_matrix_completion(i[early], j[early], y[early], **options | {"shape": (40, 35)})
    start = first.placed(np.arange(40), np.arange(35), (50, 40))
    whole, later = (fit_matrix_completion(i, j, y, initial=initial, **options) for initial in (None, start))
    assert later.elbo == pytest.approx(whole.elbo, rel=1e-4)
    np.testing.assert_allclose(later.predict(i, j), whole.predict(i, j), atol=0.01)
    with pytest.raises(ModelError, match=r"initial is of shape \(40, 35\)"):
        fit_matrix_completion(i, j, y, initial=first, **options)

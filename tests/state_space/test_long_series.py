"""A hundred and four hundred rows: exact posteriors by few particles, estimates that err alike, first states renewed."""

import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.kernels.particle.gibbs import PathDensity
from ppl_backends.kernels.particle.metropolis import FilteredDensity
from ppl_backends.results.inference_data import group
from ppl_backends.targets.state_space.filter import Filter
from tests.state_space.models import LG_POINT, LINEAR, SV_POINT, VOLATILITY, data, repeated
from tests.state_space.toys import Series
from tests.statistics import assert_mean_is

pytestmark = pytest.mark.slow

N_PAIRS = 400
AT_ROWS, SMOOTHED = [0, 200, 399], [-1.1861, -1.0944, -2.2425]  # by quadrature


@pytest.mark.parametrize(
    ("model", "name", "point", "largest"),
    [(LINEAR, "linear_gaussian", LG_POINT, 0.5), (VOLATILITY, "stochastic_volatility", SV_POINT, 0.3)],
)
def test_estimates_from_nearby_numbers_err_alike(model, name, point, largest):
    particle_filter, rng = Filter(model, data(name)), np.random.default_rng(2)
    u = rng.standard_normal((N_PAIRS, particle_filter.n_normals(25)))
    near = 0.99 * u + np.sqrt(1 - 0.99**2) * rng.standard_normal(u.shape)
    estimates = [particle_filter.run_with_normals(repeated(point, N_PAIRS), 25, each) for each in (u, near)]
    assert np.var(estimates[0] - estimates[1]) <= largest


NAMES, MEANS = ("rho", "sigma_x", "sigma_y"), np.array([0.7073, 0.5766, 0.3855])  # by quadrature
SDS = np.array([0.1078, 0.1139, 0.1377])


def linear_gaussian_by_ten_particles():
    """Return means and sds, their Monte Carlo errors, and the least effective sample size."""
    with pm.Model() as model:
        parameters = {"rho": pm.Uniform("rho", -1, 1)}
        parameters |= {name: pm.Exponential(name, 1) for name in NAMES[1:]}
        pb.StateSpace("y", pb.state_space.linear_gaussian(), **parameters, observed=data("linear_gaussian"))
    idata = pb.sample_pmmh(model, n_particles=10, random_seed=2, progressbar=False)
    draws = np.stack([group(idata, "posterior")[name].values for name in NAMES], axis=-1)
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    batches = np.stack([draws, (draws - mean) ** 2 / (2 * sd)], axis=-1).reshape(64, -1, 3, 2).mean(axis=1)
    errors = batches.std(axis=0, ddof=1) / 8
    return np.stack([mean, sd], axis=1), errors, (sd / errors[:, 0]).min() ** 2


def test_particle_metropolis_with_ten_particles_has_the_exact_posterior():
    figures, errors, ess = linear_gaussian_by_ten_particles()
    assert ess >= 400
    assert (np.abs(figures - np.stack([MEANS, SDS], axis=1)) < 4 * errors).all()


@pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")
def test_estimates_that_are_not_kept_have_another_posterior(monkeypatch):
    beside = FilteredDensity.beside

    def renewed(self, points, x, rng):
        vars(points)["estimate"] = self.fresh(points, rng).estimate
        return beside(self, points, x, rng)

    monkeypatch.setattr(FilteredDensity, "beside", renewed)
    figures, errors, _ = linear_gaussian_by_ten_particles()
    assert (np.abs(figures - np.stack([MEANS, SDS], axis=1)) > 6 * errors).any()


class Fixed(PathDensity):
    """Paths at parameters that are known."""

    def _values(self, x):
        return repeated(SV_POINT, len(x))


def test_particle_gibbs_renews_the_first_of_four_hundred_states():
    model, y, rng = pb.state_space.stochastic_volatility(), data("stochastic_volatility"), np.random.default_rng(3)
    rest = pb.FunctionTarget(1, lambda x: (np.zeros(len(x)), np.zeros_like(x)))
    density = Fixed(Series(rest, model, y), Filter(model, y), 10, None)
    points, renewed, paths = density.start(np.zeros((32, 1)), rng), [], []
    for sweep in range(120):
        new = density.renewed(points, rng)
        renewed.append(np.mean(new.path[:, 0] != points.path[:, 0]))
        points = new
        if sweep >= 20:
            paths.append(points.path[:, AT_ROWS])
    assert np.mean(renewed) >= 0.75
    assert_mean_is(np.mean(paths, axis=0), SMOOTHED)


def swept_through_ancestors(path, y, rng, n_particles=10):
    """Return paths of a conditional filter that are traced back through ancestors, as plain particle Gibbs does."""
    (mu, rho, sigma), (n, length) = SV_POINT.values(), path.shape
    rows, states, ancestors = np.arange(n), [], []
    x = mu + sigma / np.sqrt(1 - rho**2) * rng.standard_normal((n, n_particles))
    for t in range(length):
        x[:, 0] = path[:, t]
        states.append(x)
        ends = np.cumsum(np.exp(-0.5 * (x + y[t] ** 2 * np.exp(-x))), axis=1)
        place = (ends[:, None, :] < rng.random((n, n_particles, 1)) * ends[:, None, -1:]).sum(axis=2)
        chosen = place[:, 1]
        place[:, 0] = 0
        ancestors.append(place)
        x = mu + rho * (x[rows[:, None], place] - mu) + sigma * rng.standard_normal(x.shape)
    new = np.empty_like(path)
    for t in reversed(range(length)):
        new[:, t] = states[t][rows, chosen]
        chosen = ancestors[t - 1][rows, chosen]
    return new


def test_paths_through_ancestors_never_renew_it():
    y, rng = data("stochastic_volatility"), np.random.default_rng(4)
    path, renewed = np.full((32, 400), SV_POINT["mu"]), []
    for _ in range(20):
        new = swept_through_ancestors(path, y, rng)
        renewed.append((new != path)[:, AT_ROWS].mean(axis=0))
        path = new
    first, _, last = np.mean(renewed, axis=0)
    assert first < 0.05
    assert last > 0.75

"""A hundred and four hundred rows: correlated estimates err alike, and particle Gibbs renews the first state."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.kernels.particle.gibbs import PathDensity
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

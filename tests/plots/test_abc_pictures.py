"""The picture of an ABC run shows the figures of its stages, and refuses other results."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import group
from tests.simulators.abc.toys import OBSERVED, conjugate, standard_normal
from tests.toys import conjugate_gaussian

OPTIONS = {"simulate": conjugate, "observed": OBSERVED, "epsilon": 0.02, "random_seed": 1, "progressbar": False}


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.mark.filterwarnings("ignore:sample_abc. the effective sample size of a mean")
@pytest.mark.parametrize("method", ["sequential", "smc"])
def test_a_line_a_chain_with_the_stored_figures_and_a_density_that_converges(method):
    idata = pb.sample_abc(standard_normal(), method=method, chains=2, draws=500, **OPTIONS)
    axes = pb.plot_abc_run(idata)
    stats = group(idata, "sample_stats")
    lines = 2 if method == "smc" else 1
    for axis, name in zip(axes, ("epsilon", "acceptance", "effective_size"), strict=False):
        assert len(axis.lines) == lines
        shown = axis.lines[0].get_ydata()
        np.testing.assert_array_equal(shown, stats[name].values.reshape(lines, -1)[0][: len(shown)])
    density = axes[3].lines[0].get_ydata()
    exact = -0.5 * np.log(2 * np.pi * 1.04) - 0.5 / 1.04
    assert abs(density[-1] - exact) < 0.4
    axes[0].figure.draw_without_rendering()


def test_other_results_are_refused():
    idata = pb.sample_importance(conjugate_gaussian().target, random_seed=1, progressbar=False)
    with pytest.raises(ModelError, match=r"expected a result of ppl_backends\.sample_abc"):
        pb.plot_abc_run(idata)

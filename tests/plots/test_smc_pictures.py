"""Pictures show the figures of the run, for every chain, and refuse other results."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import group
from tests.toys import conjugate_gaussian


@pytest.fixture(scope="module")
def run():
    return pb.sample_smc(conjugate_gaussian().target, draws=300, chains=3, random_seed=1, progressbar=False)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def test_run_has_a_line_a_chain_with_the_stored_figures(run):
    axes = pb.plot_smc_run(run)
    stats = group(run, "sample_stats")
    assert len(axes) == 6
    for axis, name in zip(axes, ["beta", "ess", "accept_rate"], strict=False):
        assert len(axis.lines) == 3
        for chain, line in enumerate(axis.lines):
            np.testing.assert_array_equal(line.get_ydata(), stats[name].values[chain])
    np.testing.assert_array_equal(axes[4].lines[0].get_ydata(), stats["log_marginal_likelihood"].values[0])
    axes[0].figure.draw_without_rendering()


def test_band_of_the_evidence_is_its_interval(run):
    [band] = pb.plot_smc_run(run)[5].patches
    attrs = group(run, "posterior").attrs
    low, high = band.get_y(), band.get_y() + band.get_height()
    assert (low + high) / 2 == pytest.approx(attrs["log_evidence"])
    assert (high - low) / 2 > 1.9 * attrs["log_evidence_se"]


@pytest.mark.parametrize("chains", [2, 9])
def test_legend_covers_no_interval(chains):
    wide = pb.sample_smc(conjugate_gaussian().target, draws=300, chains=chains, random_seed=3, progressbar=False)
    axis = pb.plot_smc_run(wide)[5]
    axis.figure.draw_without_rendering()
    lower_edge = axis.get_legend().get_window_extent().y0
    for each in axis.containers:
        [(_, (_, upper))] = each.lines[2][0].get_segments()
        assert axis.transData.transform((0.0, upper))[1] < lower_edge


def test_ladder_draws_the_parameters_asked_for_on_the_axes_given(run):
    names = group(run, "sample_stats")["unconstrained_parameter"].values[[3, 1]]
    figure, given = plt.subplots(1, 2)
    axes = pb.plot_ladder(run, list(names), axes=given)
    assert [axis.get_title() for axis in axes] == list(names)
    assert axes[0].figure is figure
    stats = group(run, "sample_stats").isel(chain=0, unconstrained_parameter=3)
    np.testing.assert_allclose(
        axes[0].lines[0].get_ydata()[-1], stats["ladder_mean"].values[np.isfinite(stats["beta"])][-1]
    )


def test_ladder_draws_six_parameters_by_default(run):
    assert len(pb.plot_ladder(run)) == 5
    wide = pb.sample_smc(conjugate_gaussian(8).target, draws=300, chains=2, random_seed=1, progressbar=False)
    assert len(pb.plot_ladder(wide)) == 6


def test_what_is_no_run_and_unknown_names_are_refused(run):
    with pytest.raises(ModelError, match="not among the unconstrained parameters"):
        pb.plot_ladder(run, ["gamma"])
    with pytest.raises(ModelError, match="axes has 2 elements; expected 6"):
        pb.plot_smc_run(run, axes=plt.subplots(1, 2)[1])
    importance = pb.sample_importance(
        conjugate_gaussian().target, draws=256, chains=2, random_seed=1, progressbar=False
    )
    with pytest.raises(ModelError, match="expected a result of"):
        pb.plot_smc_run(importance)


def test_ladder_that_was_kept_shows_quantiles_of_its_particles():
    idata = pb.sample_smc(
        conjugate_gaussian(2).target, draws=300, chains=2, keep_ladder=True, random_seed=1, progressbar=False
    )
    axis = pb.plot_ladder(idata, scale="linear")[0]
    ladder = group(idata, "ladder").isel(chain=0, unconstrained_parameter=0)
    reached, medians = axis.lines[0].get_data()
    assert reached[0] == 0.0
    assert reached[-1] == 1.0
    assert medians[-1] == pytest.approx(float(np.median(ladder["x"].values[len(reached) - 1])), abs=1e-9)

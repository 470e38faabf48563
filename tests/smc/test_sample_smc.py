"""``sample_smc`` as a user calls it: InferenceData, seeds, workers, options, warnings."""

from concurrent.futures import ThreadPoolExecutor

import arviz as az
import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.results.inference_data import group
from tests.toys import LOG_2PI, conjugate_gaussian, gamma_poisson

KNOWN = conjugate_gaussian()


def smc(target=KNOWN.target, **options):
    return pb.sample_smc(target, **{"draws": 400, "chains": 2, "random_seed": 3, "progressbar": False} | options)


def test_result_has_the_ladder_the_lineages_and_the_evidence(tmp_path):
    idata = smc()
    attrs = group(idata, "posterior").attrs
    assert abs(attrs["log_evidence"] - KNOWN.log_evidence) < 5 * attrs["log_evidence_se"]
    assert attrs["method"] == "tempering SMC"
    assert attrs["accuracy"] == "exact"
    stats = group(idata, "sample_stats")
    assert stats["beta"].dims == ("chain", "stage")
    assert float(stats["beta"].max()) == 1.0
    assert stats["ladder_mean"].dims == ("chain", "stage", "unconstrained_parameter")
    assert stats["ancestor"].dims == ("chain", "draw")
    assert all(variable.dtype.kind in "fi" for variable in stats.data_vars.values())
    path = tmp_path / "result.nc"
    idata.to_netcdf(str(path))
    again = az.from_netcdf(str(path))
    np.testing.assert_array_equal(group(again, "posterior")["x"], group(idata, "posterior")["x"])
    assert group(again, "posterior").attrs["log_evidence"] == attrs["log_evidence"]
    assert len(az.summary(idata)) == KNOWN.target.dim


def test_same_seed_same_result_whatever_the_workers():
    alone = smc()
    with ThreadPoolExecutor(2) as executor:
        together = smc(executor=executor)
    other = smc(random_seed=4)
    x = [group(idata, "posterior")["x"].values for idata in (alone, together, other)]
    np.testing.assert_array_equal(x[0], x[1])
    assert not np.allclose(x[0], x[2])


def test_prior_that_cannot_be_sampled_falls_back_to_laplace_with_a_warning():
    target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1) - LOG_2PI, -x))
    with pytest.warns(SamplerWarning, match="starting from the Laplace"):
        idata = smc(target)
    attrs = group(idata, "posterior").attrs
    assert attrs["initial"] == "laplace"
    assert attrs["log_evidence"] == pytest.approx(0.0, abs=1e-6)


def test_power_gives_the_tempered_posterior():
    counts = np.array([3, 0, 1, 2])
    idata = smc(gamma_poisson(counts).target, power=0.5, draws=2000)
    rate = np.exp(group(idata, "posterior")["x"].values)
    shape, scale = 1.5 + 0.5 * counts.sum(), 1 / (0.5 + 0.5 * len(counts))
    assert rate.mean() == pytest.approx(shape * scale, abs=5 * np.sqrt(shape) * scale / np.sqrt(1000))


def test_a_run_that_does_not_mix_says_so():
    """One move of a random walk per temperature on a correlated target leaves particles where they were."""
    with pytest.warns(SamplerWarning, match="did not mix"):
        idata = smc(max_moves=1, kernel="random_walk")
    assert group(idata, "posterior").attrs["log_evidence_trusted"] == 0


def test_running_out_of_time_is_marked_and_warned_of():
    with pytest.warns(SamplerWarning, match=r"stopped before beta = 1 .* repeat the call [^;]*$") as caught:
        idata = smc(max_time=0.0)
    assert len(caught) == 1
    attrs = group(idata, "posterior").attrs
    assert attrs["complete"] == 0
    assert attrs["accuracy"] == "approximate"
    with pytest.raises(ModelError, match="stopped before it reached the posterior"):
        pb.evidence(idata, KNOWN.target)
    with pytest.raises(ModelError, match="stopped early"):
        pb.compare_evidence({"unfinished": idata, "other": idata})
    assert "log_evidence" not in attrs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws=0"),
        ({"chains": 0}, "chains=0"),
        ({"kernel": "nuts"}, "kernel='nuts'"),
        ({"initial": "nowhere"}, "initial='nowhere': expected 'prior', 'auto', 'laplace'"),
        ({"ess_threshold": 1.5}, "ess_threshold=1.5"),
        ({"min_moves": 5, "max_moves": 2}, "max_moves=2"),
        ({"random_seed": "seed"}, "random_seed"),
    ],
)
def test_bad_options_are_named_in_one_line(options, message):
    with pytest.raises(ModelError, match=message) as caught:
        smc(**options)
    assert "\n" not in str(caught.value)


def test_an_integer_for_the_model_names_the_habit():
    with pytest.raises(ModelError, match=r"sample_smc\(model, draws=2000\)"):
        pb.sample_smc(2000)

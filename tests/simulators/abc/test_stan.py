"""Stan programs: generated quantities that simulate, and priors for ``simulate=``, whose density is all there is."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from tests.simulators.abc.toys import NOISE, OBSERVED, conjugate_answer
from tests.statistics import normal_bound

PROGRAM = """
data { real<lower=0> noise; }
parameters { real mu; }
model { mu ~ normal(0, 1); }
generated quantities {
  real y = normal_rng(mu, noise);
  if (mu > 2.5) reject("far out");
}
"""
OPTIONS = {"observed": OBSERVED, "epsilon": 0.3, "kernel": "gaussian", "random_seed": 1, "progressbar": False}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("abc") / "simulates.stan"
    path.write_text(PROGRAM)
    return pb.as_target(path, {"noise": NOISE})


def batched(parameters, rng):
    return parameters["mu"] + NOISE * rng.standard_normal(len(parameters["mu"]))


@pytest.mark.filterwarnings("ignore:.*generated quantities of")
@pytest.mark.parametrize("simulate", ["y", batched])
@pytest.mark.parametrize("method", ["auto", "smc"])
def test_programs_that_simulate_and_priors_with_a_simulator(program, simulate, method):
    small = {"chains": 2, "draws": 1000}
    idata = pb.sample_abc(program, simulate=simulate, method=method, **OPTIONS, **small)
    mean, sd, log_evidence = conjugate_answer(0.3)
    attrs, estimates = idata.posterior.attrs, idata["estimates"]
    assert attrs["batched"] == 1
    assert abs(attrs["log_evidence"] - log_evidence) < normal_bound(2) * attrs["log_evidence_se"]
    assert abs(estimates["mu_mean"] - mean) < normal_bound(2) * estimates["mu_mean_se"]
    assert abs(estimates["mu_sd"] / sd - 1) < 0.1
    assert idata["posterior_predictive"]["y"].shape == (2, 1000)


def test_names_and_shapes_that_do_not_fit_are_refused(program):
    with pytest.raises(ModelError, match=r"simulate='z': .* has no such variable; it has mu, y"):
        pb.sample_abc(program, simulate="z", **OPTIONS)
    with pytest.raises(ModelError, match=r"observed= has shape \(2,\); 'y' of .* has shape \(\)"):
        pb.sample_abc(program, simulate="y", **{**OPTIONS, "observed": np.zeros(2)})
    with pytest.raises(ModelError, match="simulate="):
        pb.sample_abc(program, simulate=3, **OPTIONS)

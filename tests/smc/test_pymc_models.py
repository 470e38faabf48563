"""Tempering SMC on PyMC models against reference posteriors and importance sampling."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import group

REFERENCES = Path(__file__).parents[1] / "stan" / "posteriordb" / "references.json"


def test_eight_schools_reproduces_the_reference_posterior():
    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    sigma = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        trans = pm.Normal("theta_trans", 0, 1, dims="school")
        theta = pm.Deterministic("theta", mu + tau * trans, dims="school")
        pm.Normal("y", theta, sigma, observed=y, dims="school")
    idata = pb.sample_smc(model, draws=4000, chains=4, random_seed=1, progressbar=False, log_likelihood=True)
    posterior = group(idata, "posterior")
    reference = json.loads(REFERENCES.read_text())["eight_schools-eight_schools_noncentered"]
    for name, entry in reference.items():
        mean, sd = entry["mean"], entry["sd"]
        base, _, index = name.partition("[")
        values = posterior[base].values
        values = values[..., int(index[:-1]) - 1] if index else values
        by_chain = values.mean(axis=1)
        ours = by_chain.std(ddof=1) / 2
        # Four chains give their error with three degrees of freedom: t at 1e-5 is 17; a floor keeps luck out.
        assert abs(values.mean() - mean) < 5 * np.hypot(max(ours, 0.01 * sd), entry["mcse_mean"]), name
        assert abs(values.std() / sd - 1) < max(0.08, 5 * entry["mcse_sd"] / sd), name
    assert list(posterior["theta"].coords["school"].values) == list("ABCDEFGH")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eight schools with one observation each have large Pareto k
        loo = az.loo(idata)
    assert np.isfinite(getattr(loo, "elpd_loo", None) or loo.elpd)
    with model:
        predictive = pm.sample_posterior_predictive(idata, progressbar=False, random_seed=1)
    assert group(predictive, "posterior_predictive")["y"].shape == (4, 4000, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breast_wisconsin", "plasma"])
def test_probit_evidence_of_importance_sampling_and_smc_agree(name):
    data = load_binary_regression(name)
    design = np.asarray(data.X)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, np.r_[20.0, np.full(design.shape[1] - 1, 5.0)], shape=design.shape[1])
        pm.Bernoulli("y", p=pm.math.invprobit(design @ beta), observed=np.asarray(data.y, dtype=int))
    target = pb.as_target(model)
    importance = group(pb.sample_importance(target, random_seed=1, progressbar=False), "posterior").attrs
    smc = group(pb.sample_smc(target, draws=1000, initial="prior", random_seed=1, progressbar=False), "posterior").attrs
    error = np.hypot(importance["log_evidence_se"], smc["log_evidence_se"])
    assert abs(importance["log_evidence"] - smc["log_evidence"]) < 3.5 * error
    assert 0 < importance["efficiency_factor"] <= 1


def test_data_outside_the_support_is_an_error_that_names_the_variable():
    with pm.Model() as model:
        rate = pm.HalfNormal("rate", 1)
        pm.Poisson("counts", rate, observed=[1, -2])
    with pytest.raises(ModelError, match="counts") as caught:
        pb.sample_smc(model, draws=50, chains=1, random_seed=1, progressbar=False)
    assert "\n" not in str(caught.value)


INTERRUPTED = """
import signal
import numpy as np, pymc as pm, ppl_backends as pb
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with SIGINT ignored
with pm.Model() as model:
    x = pm.Normal("x", 0, 1, shape=30)
    pm.Normal("y", x.sum(), 0.001, observed=3.0)
if __name__ == "__main__":
    target = pb.as_target(model)
    target.evaluate(np.zeros((1, target.dim)), gradient=True)  # compiles: an interrupt in there is the compiler's to keep
    evaluate, calls = target.evaluate, []

    def counted(*arguments, **options):
        calls.append(1)
        if len(calls) == 20:
            print("sampling", flush=True)
        return evaluate(*arguments, **options)

    target.evaluate = counted
    pb.sample_smc(target, draws=20_000, chains=50, random_seed=1, progressbar=False)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT to a process group")
def test_an_interrupted_run_leaves_no_process_behind(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(INTERRUPTED))
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline().strip() == "sampling"
    os.killpg(process.pid, signal.SIGINT)
    try:
        _, stderr = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert "KeyboardInterrupt" in stderr or "SMC: interrupted" in stderr  # before, or after, a first temperature
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.slow
def test_spawned_workers_give_the_same_bits():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=3)
        pm.Poisson("y", pm.math.exp(x), observed=[1, 0, 4])
    target = pb.as_target(model)
    options = {"draws": 300, "chains": 2, "initial": "laplace", "random_seed": 5, "progressbar": False}
    alone = pb.sample_smc(target, **options)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        elsewhere = pb.sample_smc(target, executor=executor, **options)
    np.testing.assert_array_equal(group(alone, "posterior")["x"], group(elsewhere, "posterior")["x"])
    assert group(alone, "posterior").attrs["log_evidence"] == group(elsewhere, "posterior").attrs["log_evidence"]

"""The path over the data: evidence and posterior are exact, blocks use only their rows, and updates continue."""

import pickle
from functools import partial
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.kernels.table import make_kernel
from ppl_backends.results.inference_data import group
from ppl_backends.smc.ibis import run_ibis
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.rows import RowsPath, next_block
from ppl_backends.smc.sampler import Settings
from ppl_backends.targets.factors import FactorsTarget, Logit, Normal
from tests.toys import LOG_2PI

RNG = np.random.default_rng(8)
DESIGN = RNG.normal([0.0, 0.5, 0.0], 1.0, size=(40, 3))
RESPONSE = DESIGN @ [1.0, -1.0, 0.5] + 0.5 * RNG.normal(size=40)
LABELS = (RNG.random(40) < 1 / (1 + np.exp(-2 * RESPONSE))).astype(int)
NOISE, PRIOR_SD = 0.5, 2.0


def gaussian(n=40):
    sites = Normal(RESPONSE[:n], NOISE)
    return FactorsTarget(pb.Factors(DESIGN[:n], 0.0, sites, 0.0, 1 / PRIOR_SD**2))


def logistic(n=40):
    return FactorsTarget(pb.Factors(DESIGN[:n], 0.0, Logit(LABELS[:n]), 0.0, 1 / PRIOR_SD**2))


def exact(n=40):
    """Log evidence, posterior mean and sd of the Gaussian regression on the first rows."""
    x, y = DESIGN[:n], RESPONSE[:n]
    marginal = NOISE**2 * np.eye(n) + PRIOR_SD**2 * x @ x.T
    log_evidence = -0.5 * (y @ np.linalg.solve(marginal, y) + np.linalg.slogdet(marginal)[1] + n * LOG_2PI)
    cov = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(3) / PRIOR_SD**2)
    return log_evidence, cov @ x.T @ y / NOISE**2, np.sqrt(np.diag(cov))


def smc(target, **options):
    return pb.sample_ibis(target, **{"draws": 1000, "chains": 4, "random_seed": 3, "progressbar": False} | options)


@pytest.fixture(scope="module")
def run():
    return smc(gaussian())


def assert_posterior(idata, n=40):
    """Moments within five standard errors, those from the lineages."""
    _, mean, sd = exact(n)
    x = group(idata, "unconstrained_posterior")["x"].values
    ess = group(idata, "sample_stats")["lineage_ess"].values.sum(axis=0)
    assert np.all(np.abs(x.mean(axis=(0, 1)) - mean) < 5 * sd / np.sqrt(ess))
    assert np.all(np.abs(x.std(axis=(0, 1)) / sd - 1) < 5 / np.sqrt(2 * ess))


def test_evidence_and_posterior_are_the_exact_ones(run):
    attrs = group(run, "posterior").attrs
    assert abs(attrs["log_evidence"] - exact()[0]) < 4 * attrs["log_evidence_se"]
    assert attrs["log_evidence_se"] < 0.15
    assert attrs["log_evidence_trusted"] == 1
    assert attrs["n_observations"] == 40
    assert_posterior(run)


def test_rows_are_let_in_in_order_and_every_stage_keeps_its_sample_size(run):
    stats = group(run, "sample_stats")
    for rows, ess in zip(stats["n_observations"].values, stats["ess"].values, strict=True):
        rows, ess = rows[np.isfinite(rows)], ess[np.isfinite(ess)]
        assert rows[0] == 0.0
        assert rows[-1] == 40.0
        assert np.all(np.diff(rows) > 0)
        assert np.all(ess >= 499)


def test_scores_of_the_rows_add_up_to_the_evidence_and_are_the_exact_predictive_densities(run):
    scores = group(run, "prequential")["log_score"].values
    single = group(run, "sample_stats")["log_evidence_single_run"].values
    np.testing.assert_allclose(scores.sum(axis=1), single, atol=1e-8)
    truth = np.diff([0.0, *(exact(n)[0] for n in range(1, 41))])
    spread = np.maximum(scores.std(axis=0, ddof=1), 0.05)
    assert np.all(np.abs(scores.mean(axis=0) - truth) < 5 * spread)


def test_tempering_gives_the_same_evidence_on_a_logistic_regression():
    over_data, tempered = smc(logistic()), pb.sample_smc(logistic(), draws=1000, random_seed=1, progressbar=False)
    one, other = group(over_data, "posterior").attrs, group(tempered, "posterior").attrs
    error = np.hypot(one["log_evidence_se"], other["log_evidence_se"])
    assert abs(one["log_evidence"] - other["log_evidence"]) < 4 * error


@pytest.mark.parametrize("kernel", ["random_walk", "mala"])
def test_other_kernels(kernel):
    assert_posterior(smc(gaussian(), kernel=kernel, draws=500))


def test_update_goes_on_where_the_run_was_also_from_a_file(tmp_path):
    path = tmp_path / "yesterday.nc"
    smc(gaussian(25)).to_netcdf(str(path))
    yesterday = az.from_netcdf(str(path))
    today = pb.update_smc(yesterday, gaussian(), random_seed=5, progressbar=False)
    attrs = group(today, "posterior").attrs
    assert abs(attrs["log_evidence"] - exact()[0]) < 4 * attrs["log_evidence_se"]
    new = exact()[0] - exact(25)[0]
    assert abs(attrs["log_evidence_new"] - new) < 4 * attrs["log_evidence_new_se"]
    assert attrs["log_evidence_new_se"] < attrs["log_evidence_se"]
    assert attrs["n_observations"] == 40
    assert_posterior(today)
    scores = group(today, "prequential")["log_score"].values
    np.testing.assert_array_equal(scores[:, :25], group(yesterday, "prequential")["log_score"].values)
    assert group(yesterday, "posterior").attrs["n_observations"] == 25


def test_many_small_updates_do_not_wear_the_particles_out():
    """Rows one by one, each of which alone would not call for a move."""
    idata = smc(gaussian(30))
    for n in range(31, 41):
        idata = pb.update_smc(idata, gaussian(n), random_seed=n, progressbar=False)
    x = group(idata, "unconstrained_posterior")["x"].values
    assert all(len(np.unique(chain[:, 0])) > 900 for chain in x)
    assert_posterior(idata)


def test_an_update_on_other_data_or_another_model_is_refused(run):
    with pytest.raises(ModelError, match="are not those of the result"):
        pb.update_smc(run, logistic(), progressbar=False)
    with pytest.raises(ModelError, match="has 25"):
        pb.update_smc(run, gaussian(25), progressbar=False)
    tempered = pb.sample_smc(gaussian(), draws=500, chains=1, random_seed=1, progressbar=False)
    with pytest.raises(ModelError, match="cannot be continued"):
        pb.update_smc(tempered, gaussian(), progressbar=False)
    with pytest.raises(ModelError, match="no new rows: the result includes all 40 observations"):
        pb.update_smc(run, gaussian(), progressbar=False)
    with pytest.raises(ModelError, match="cannot be appended"):
        pb.update_smc(run, gaussian(), {"y": [1.0]}, progressbar=False)


def test_a_run_out_of_time_can_go_on():
    with pytest.warns(pb.errors.SamplerWarning, match="stopped"):
        short = smc(gaussian(), max_time=0.0)
    attrs = group(short, "posterior").attrs
    assert attrs["complete"] == 0
    assert "log_evidence" not in attrs
    whole = group(pb.update_smc(short, gaussian(), random_seed=1, progressbar=False), "posterior").attrs
    assert abs(whole["log_evidence"] - exact()[0]) < 4 * whole["log_evidence_se"]


def test_likelihood_is_evaluated_on_the_rows_so_far_only():
    target = gaussian()
    asked, original = [], target.observations.sum
    target.observations.sum = lambda x, index, **options: (
        asked.append(int(index.max())) or original(x, index, **options)
    )
    whole, sizes = target.evaluate, []  # all rows at once: not for the particles
    target.evaluate = lambda x, gradient=False: sizes.append(len(x)) or whole(x, gradient)
    target.evaluate_prior = lambda x, gradient=False: (
        -0.5 * (x**2).sum(1) / PRIOR_SD**2 - 3 * np.log(PRIOR_SD) - 1.5 * LOG_2PI,
        -x / PRIOR_SD**2,
    )
    idata = smc(target, chains=1)
    stats = group(idata, "sample_stats")
    ends = {round(rows) - 1 for rows in stats["n_observations"].values[0][1:] if rows == round(rows)}
    assert set(asked) <= ends | {0}
    assert max(sizes, default=0) < 1000
    assert abs(group(idata, "posterior").attrs["log_evidence"] - exact()[0]) < 1.0


def test_a_chain_can_be_sent_elsewhere():
    path = RowsPath(gaussian(), PriorPath(gaussian())).for_moves(True)
    chain = partial(run_ibis, path, make_kernel("hmc"), 200, np.random.default_rng(4), None, Settings())
    here, there = (run() for run in (pickle.loads(pickle.dumps(chain)), pickle.loads(pickle.dumps(chain))))
    assert here.complete
    assert here.stage.rows == 40
    np.testing.assert_array_equal(here.x, there.x)


def test_ctrl_c_inside_a_block_leaves_the_blocks_before_it():
    target = gaussian()
    original, calls = target.observations.sum, []

    def interrupted(x, index, **options):
        calls.append(len(calls))
        if len(calls) == stop:
            raise KeyboardInterrupt
        return original(x, index, **options)

    stop, target.observations.sum = 0, interrupted
    whole = smc(target, chains=1, draws=200)
    stop, seen = len(calls) * 2 // 3, group(whole, "sample_stats")["n_observations"].values[0]
    calls.clear()
    with pytest.warns(pb.errors.SamplerWarning, match="interrupted"):
        idata = smc(target, chains=1, draws=200)
    reached = group(idata, "posterior").attrs["n_observations"]
    assert 0 < reached < 40
    assert reached in seen
    stop = 0
    assert group(pb.update_smc(idata, target, random_seed=2, progressbar=False), "posterior").attrs["complete"] == 1


def test_blocks_do_not_depend_on_how_rows_are_looked_at():
    path = RowsPath(gaussian(), PriorPath(gaussian()))
    x = path.start(500, np.random.default_rng(0)).population.x * 0.1
    blocks = [next_block(path, x, 0, 0.5, width) for width in (1, 3, 40)]
    assert len({block.stop for block in blocks}) == 1
    np.testing.assert_allclose(blocks[0].log_scores, blocks[2].log_scores, atol=1e-10)


def test_refusals():
    with pytest.raises(ModelError, match="power"):
        smc(pb.with_power(gaussian(), 0.5))
    with pytest.raises(ModelError, match="initial"):
        smc(gaussian(), initial="laplace")
    with pytest.raises(ModelError, match="min_moves <= max_moves"):
        smc(gaussian(), min_moves=3, max_moves=2)
    joint = pb.FunctionTarget(
        1,
        lambda x: (-(x[:, 0] ** 2), -2 * x),
        lambda x: (-(x[:, 0] ** 2), -2 * x),
        lambda n, rng: rng.normal(size=(n, 1)),
    )
    with pytest.raises(ModelError, match="observations one by one"):
        smc(joint)


@pytest.mark.slow
def test_pymc_model_with_new_rows_in_its_containers():
    """Prior and Potential beside the rows; new rows are appended to ``pm.Data``."""
    with pm.Model() as model:
        x, y = pm.Data("x", DESIGN[:30]), pm.Data("y", RESPONSE[:30])
        beta = pm.Normal("beta", 0, PRIOR_SD, shape=3)
        pm.Potential("more", pm.logp(pm.Normal.dist(0, 1), beta).sum())
        pm.Normal("observed", x @ beta, NOISE, observed=y)
    options = {"draws": 400, "chains": 2, "kernel": "random_walk"}
    idata = smc(model, **options)
    idata = pb.update_smc(
        idata, model, {"x": DESIGN[30:], "y": RESPONSE[30:]}, kernel="random_walk", random_seed=4, progressbar=False
    )
    attrs = group(idata, "posterior").attrs
    # The prior times the Potential is a Gaussian of its own, with a mass that is not one.
    variance = 1 / (1 / PRIOR_SD**2 + 1)
    mass = 3 * (0.5 * np.log(variance) - np.log(PRIOR_SD) - 0.5 * LOG_2PI)
    marginal = NOISE**2 * np.eye(40) + variance * DESIGN @ DESIGN.T
    truth = (
        -0.5 * (RESPONSE @ np.linalg.solve(marginal, RESPONSE) + np.linalg.slogdet(marginal)[1] + 40 * LOG_2PI) + mass
    )
    assert abs(attrs["log_evidence"] - truth) < 4 * attrs["log_evidence_se"]
    with pytest.raises(ModelError, match="is not a"):
        pb.update_smc(idata, model, {"z": [1.0]}, progressbar=False)
    with pytest.raises(ModelError, match=r"do not agree: .*; 'y' got no new rows"):
        pb.update_smc(idata, model, {"x": DESIGN[30:]}, progressbar=False)


@pytest.mark.stan
@pytest.mark.slow
def test_stan_program_with_new_rows():
    """The prior is a density only, drawn by a run of its own; rows are what ``rows=`` names."""
    pytest.importorskip("httpstan", reason="needs the stan extra")
    program = Path(__file__).parents[2] / "stan_models" / "logit_gaussian.stan"
    prior = {"P": 3, "prior_scale": [PRIOR_SD] * 3, "prior_only": 0}
    old = {"N": 30, "X": DESIGN[:30], "y": LABELS[:30]} | prior
    target = pb.as_target(program, old, rows={"N": ["X", "y"]}, cores=1)
    idata = smc(target, draws=500, chains=2)
    new = {"X": DESIGN[30:], "y": LABELS[30:]}
    idata = pb.update_smc(idata, target, new, random_seed=4, progressbar=False)
    tempered = group(pb.sample_smc(logistic(), draws=1000, random_seed=5, progressbar=False), "posterior").attrs
    attrs = group(idata, "posterior").attrs
    error = np.hypot(attrs["log_evidence_se"], tempered["log_evidence_se"])
    assert attrs["kernel"] == "hmc"
    assert abs(attrs["log_evidence"] - tempered["log_evidence"]) < 4 * error
    with pytest.raises(ModelError, match="lacks 'y'"):
        pb.update_smc(idata, target, {"X": DESIGN[30:]}, progressbar=False)

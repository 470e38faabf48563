"""Runs that are killed, interrupted, out of disk or out of workers, and their partial results."""

import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from scipy.special import digamma, gammaln

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning, WorkerError
from ppl_backends.files import write_atomically
from ppl_backends.numerics.population import Population
from ppl_backends.results.inference_data import group
from ppl_backends.smc import outcome
from ppl_backends.smc.checkpoint import _TYPES
from ppl_backends.smc.codec import unpack
from ppl_backends.smc.health import split_finished
from ppl_backends.smc.records import SMCResult, Stage
from ppl_backends.smc.rounding import RoundingEnd, collapse, collapsed_at, noise_at
from ppl_backends.targets import FunctionTarget
from tests.toys import conjugate_gaussian

OPTIONS = {"draws": 200, "chains": 3, "random_seed": 4, "progressbar": False}


class Hooked(FunctionTarget):
    """The conjugate Gaussian, with something happening at every evaluation."""

    def __init__(self, hook=None, dim=5):
        known = conjugate_gaussian(dim)
        self.known, self.hook, self.calls = known, hook, 0
        vars(self).update({name: value for name, value in vars(known.target).items() if name not in vars(self)})

    def __reduce__(self):
        return Hooked, (self.hook, self.dim)

    def evaluate(self, x, gradient=False):
        self.calls += 1
        if self.hook is not None:
            self.hook(self.calls)
        return self.known.target.evaluate(x, gradient)


def exponent_of(path):
    return unpack(path.read_bytes(), _TYPES)["progress"].stage.beta


def same(one, other):
    np.testing.assert_array_equal(group(one, "posterior")["x"], group(other, "posterior")["x"])
    for name in ("beta", "log_marginal_likelihood", "scale", "ancestor", "log_evidence_path_sampling"):
        np.testing.assert_array_equal(group(one, "sample_stats")[name], group(other, "sample_stats")[name])
    for name in ("log_evidence", "log_evidence_se", "complete", "log_evidence_trusted"):
        assert group(one, "posterior").attrs[name] == group(other, "posterior").attrs[name]


SCRIPT = """
import pathlib, sys, time
import ppl_backends as pb
from tests.smc.test_long_runs import OPTIONS, Hooked
second = pathlib.Path(sys.argv[1] + ".chain1")
pb.sample_smc(Hooked(lambda calls: time.sleep(120 if second.exists() else 0)), checkpoint=sys.argv[1], **OPTIONS)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    path = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], cwd=os.getcwd())
    deadline = time.monotonic() + 120
    while not (tmp_path / "run.chain1").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert exponent_of(tmp_path / "run.chain1") < 1
    target = Hooked()
    resumed = pb.sample_smc(target, checkpoint=path, **OPTIONS)
    whole = Hooked()
    same(resumed, pb.sample_smc(whole, **OPTIONS))
    assert target.calls < whole.calls


def test_a_finished_checkpoint_answers_at_once_and_gives_the_seed(tmp_path, monkeypatch):
    """The verdict is made again; its search for narrow modes takes a fixed number of points."""
    monkeypatch.setattr(outcome, "find_missed_mode", lambda *_: None)
    first = pb.sample_smc(Hooked(), checkpoint=tmp_path / "run", initial="laplace", **OPTIONS)
    target = Hooked()
    again = pb.sample_smc(target, checkpoint=tmp_path / "run", initial="laplace", **(OPTIONS | {"random_seed": None}))
    same(first, again)
    assert target.calls < 10


def test_running_out_of_time_and_resuming_gives_the_whole(tmp_path):
    options = OPTIONS | {"keep_ladder": True, "checkpoint": tmp_path / "run"}
    for _ in range(3):
        with pytest.warns(SamplerWarning, match="stopped before beta = 1"):
            pb.sample_smc(Hooked(), max_time=1e-9, **options)
    resumed = pb.sample_smc(Hooked(), **options)
    whole = pb.sample_smc(Hooked(), keep_ladder=True, **OPTIONS)
    same(resumed, whole)
    np.testing.assert_array_equal(group(resumed, "ladder")["x"], group(whole, "ladder")["x"])


@pytest.mark.parametrize("change", [{"min_moves": 10}, {"draws": 1000, "len_chain": 10}])
def test_time_runs_out_within_a_stage(tmp_path, change):
    """The second stage takes no more than one of its slow evaluations."""
    path, later = tmp_path / "run", []

    def hook(calls):
        if (tmp_path / "run.chain0").exists():
            later.append(calls)
        if len(later) > 8:  # few are made between two stages
            time.sleep(1.0)

    options = OPTIONS | {"chains": 1} | change
    with pytest.warns(SamplerWarning, match="stopped before beta = 1"):
        cut = pb.sample_smc(Hooked(hook), checkpoint=path, max_time=1.0, **options)
    assert len(later) == 9
    assert group(cut, "sample_stats").sizes["stage"] == 1
    whole = pb.sample_smc(Hooked(), **options)
    np.testing.assert_array_equal(
        group(cut, "sample_stats")["log_marginal_likelihood"],
        group(whole, "sample_stats")["log_marginal_likelihood"][:, :1],
    )
    same(pb.sample_smc(Hooked(), checkpoint=path, **options), whole)


def test_a_chain_that_finished_alone_is_not_trusted(tmp_path):
    """An evaluation after the first stage of the other two chains takes all their time."""
    waiting = [tmp_path / "run.chain1", tmp_path / "run.chain2"]

    def hook(calls):
        if waiting and waiting[0].exists():
            waiting.pop(0)
            time.sleep(2.5)

    with pytest.warns(SamplerWarning, match="2 of 3 chains stopped before.*only one of 3 chains finished"):
        alone = pb.sample_smc(Hooked(hook), checkpoint=tmp_path / "run", max_time=2.0, **OPTIONS)
    posterior = group(alone, "posterior")
    assert posterior.sizes["chain"] == 1
    assert posterior.attrs["log_evidence_trusted"] == 0
    whole = pb.sample_smc(Hooked(), **OPTIONS)
    np.testing.assert_array_equal(posterior["x"], group(whole, "posterior")["x"][:1])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"draws": 100}, "draws"),
        ({"random_seed": 5}, "random_seed"),
        ({"initial": "laplace"}, "initial"),
        ({"max_moves": 3}, "moves"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(tmp_path, change, named):
    options = OPTIONS | {"draws": 20, "chains": 1}
    with pytest.warns(SamplerWarning):
        pb.sample_smc(Hooked(), checkpoint=tmp_path / "run", max_time=1e-9, **options)
    with pytest.raises(ModelError, match=f"belongs to another run.*{named}") as caught:
        pb.sample_smc(Hooked(), checkpoint=tmp_path / "run", **(options | change))
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_another_model_and_a_file_that_is_none_are_refused(tmp_path):
    options = OPTIONS | {"draws": 20, "chains": 1}
    with pytest.warns(SamplerWarning):
        pb.sample_smc(Hooked(), checkpoint=tmp_path / "run", max_time=1e-9, **options)
    with pytest.raises(ModelError, match="log likelihood"):
        pb.sample_smc(conjugate_gaussian(5, seed=1).target, checkpoint=tmp_path / "run", **options)
    with pytest.raises(ModelError, match="names of the parameters"):
        pb.sample_smc(conjugate_gaussian(4).target, checkpoint=tmp_path / "run", **options)
    (tmp_path / "notes").write_text("something else")
    with pytest.raises(ModelError, match="is not a checkpoint"):
        pb.sample_smc(Hooked(), checkpoint=tmp_path / "notes", **options)


FULL_DISK = """
import resource, sys, warnings
import ppl_backends as pb
from ppl_backends.errors import CheckpointError
from tests.smc.test_long_runs import OPTIONS, Hooked
warnings.simplefilter("ignore")
path, most = sys.argv[1], int(sys.argv[2])
pb.sample_smc(Hooked(), checkpoint=path, max_time=1e-9, **OPTIONS)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
try:
    pb.sample_smc(Hooked(), checkpoint=path, **OPTIONS)
except CheckpointError as error:
    print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_a_full_disk_is_an_error_and_the_checkpoint_before_it_is_whole(tmp_path):
    path = tmp_path / "run"
    output = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), "4000"], capture_output=True, text=True, check=True
    ).stdout
    assert "could not be written" in output
    assert output.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run", "run.chain0", "run.chain1", "run.chain2"]
    same(pb.sample_smc(Hooked(), checkpoint=path, **OPTIONS), pb.sample_smc(Hooked(), **OPTIONS))


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path):
    write_atomically(tmp_path / "file", b"first")
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "file", "not bytes")
    assert (tmp_path / "file").read_bytes() == b"first"
    assert len(list(tmp_path.iterdir())) == 1


def interrupt_at(count):
    def hook(calls):
        if calls == count:
            raise KeyboardInterrupt

    return hook


def calls_per_chain():
    counting = Hooked()
    pb.sample_smc(counting, **(OPTIONS | {"chains": 1}))
    return counting.calls


def test_ctrl_c_keeps_the_chains_that_finished():
    target = Hooked(interrupt_at(int(1.3 * calls_per_chain())))
    with pytest.warns(SamplerWarning, match="interrupted: 2 of 3 chains stopped before beta = 1 and are left out"):
        idata = pb.sample_smc(target, **OPTIONS)
    posterior = group(idata, "posterior")
    assert posterior.sizes["chain"] == 1
    assert posterior.attrs["complete"] == 0
    whole = pb.sample_smc(Hooked(), **OPTIONS)
    np.testing.assert_array_equal(posterior["x"], group(whole, "posterior")["x"][:1])
    known = target.known.log_evidence
    assert abs(posterior.attrs["log_evidence"] - known) < 5 * posterior.attrs["log_evidence_se"]


def test_ctrl_c_in_the_first_chain_returns_the_temperature_reached():
    with pytest.warns(SamplerWarning, match="interrupted: all chains stopped before beta = 1"):
        idata = pb.sample_smc(Hooked(interrupt_at(calls_per_chain() // 2)), **OPTIONS)
    attrs = group(idata, "posterior").attrs
    assert attrs["complete"] == 0
    assert attrs["accuracy"] == "approximate"
    assert "log_evidence" not in attrs
    assert attrs["log_evidence_trusted"] == 0


@pytest.mark.parametrize("before_the_end", range(4))
def test_ctrl_c_in_the_bridge_or_the_search_for_lost_modes_keeps_the_draws(before_the_end):
    options = OPTIONS | {"chains": 1}
    with pytest.warns(SamplerWarning, match="interrupted before the search for lost modes had ended"):
        idata = pb.sample_smc(Hooked(interrupt_at(calls_per_chain() - before_the_end)), **options)
    posterior = group(idata, "posterior")
    assert posterior.attrs["log_evidence_trusted"] == 0
    np.testing.assert_array_equal(posterior["x"], group(pb.sample_smc(Hooked(), **options), "posterior")["x"])


def test_ctrl_c_before_anything_is_there_is_raised():
    with pytest.raises(KeyboardInterrupt):
        pb.sample_smc(Hooked(interrupt_at(3)), **OPTIONS)


def die_on_third_call(calls):
    if calls == 3:
        os._exit(1)


def test_a_worker_that_dies_says_how_to_go_on(tmp_path):
    message = r"checkpoint=.*run.* to continue"
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor,
        pytest.raises(WorkerError, match=message) as caught,
    ):
        pb.sample_smc(Hooked(die_on_third_call), executor=executor, checkpoint=tmp_path / "run", **OPTIONS)
    assert "\n" not in str(caught.value)


def test_a_dask_cluster_gives_the_same_bits():
    distributed = pytest.importorskip("distributed")
    alone = pb.sample_smc(Hooked(), **OPTIONS)
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        elsewhere = pb.sample_smc(Hooked(), executor=client.get_executor(), **OPTIONS)
    same(alone, elsewhere)


def test_a_target_that_is_nan_here_and_there_still_works():
    """The density is NaN at a twentieth of the points: the posterior is restricted to the rest, and the run says so."""
    known = conjugate_gaussian(2)
    hole = 0.05

    def log_likelihood(x):
        value, gradient = known.target.evaluate(x, True).log_likelihood, None
        gradient = known.target.evaluate(x, True).log_likelihood_gradient
        share = np.modf(np.abs(1e4 * x[:, 0]))[0]
        return np.where(share < hole, np.nan, value), gradient

    def log_prior(x):
        parts = known.target.evaluate(x, True)
        return parts.log_prior, parts.log_prior_gradient

    target = FunctionTarget(2, log_likelihood, log_prior, known.target.sample_prior)
    with pytest.warns(SamplerWarning, match="NaN or"):
        idata = pb.sample_smc(target, draws=1000, chains=4, random_seed=1, progressbar=False)
    attrs = group(idata, "posterior").attrs
    assert abs(attrs["log_evidence"] - known.log_evidence - np.log1p(-hole)) < 5 * attrs["log_evidence_se"]
    x = group(idata, "posterior")["x"].values
    spread = x.mean(axis=1).std(axis=0, ddof=1) / 2
    assert (np.abs(x.mean(axis=(0, 1)) - known.mean) < 6 * spread + 0.02 * known.sd).all()
    assert (np.modf(np.abs(1e4 * x[..., 0]))[0] >= hole).all()


def test_runs_are_whole_values():
    from ppl_backends.kernels.table import make_kernel
    from ppl_backends.smc.path import PriorPath
    from ppl_backends.smc.sampler import run_tempering

    run = run_tempering(PriorPath(Hooked().known.target), make_kernel("hmc"), 50, np.random.default_rng(0))
    copy = pickle.loads(pickle.dumps(run))
    assert isinstance(copy, SMCResult)
    np.testing.assert_array_equal(copy.x, run.x)
    assert copy.rng.random() == run.rng.random()


def equal_data(n=100, value=2.0):
    """``n`` equal normal data: the likelihood has no bound as the scale goes to zero, and the evidence is infinite."""

    def likelihood(x):
        with np.errstate(over="ignore"):
            ratio = n * ((value - x[:, 0]) * np.exp(-x[:, 1])) ** 2
            gradient = np.stack([n * (value - x[:, 0]) * np.exp(-2 * x[:, 1]), ratio - n], axis=1)
        return -0.5 * ratio - n * x[:, 1], gradient

    def prior(x):  # a normal, and a logistic of the log scale
        log_prior = -0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi) - x[:, 1] - 2 * np.log1p(np.exp(-x[:, 1]))
        return log_prior, np.stack([-x[:, 0], -np.tanh(x[:, 1] / 2)], axis=1)

    def sample_prior(m, rng):
        return np.stack([rng.standard_normal(m), rng.logistic(size=m)], axis=1)

    return FunctionTarget(2, likelihood, prior, sample_prior=sample_prior)


def test_particles_that_differ_by_rounding_end_the_run():
    options = {"draws": 100, "kernel": "random_walk", "random_seed": 1, "progressbar": False}
    with pytest.warns(
        SamplerWarning, match=r"little more than rounding in `x\[0\]`.* 1 of 1 chains stopped before beta = 1"
    ):
        idata = pb.sample_smc(equal_data(), chains=1, **options)
    posterior = group(idata, "posterior")
    assert not posterior.attrs["log_evidence_trusted"]
    assert not posterior.attrs["complete"]


def test_a_chain_that_ends_at_one_point_takes_the_evidence_from_all():
    """The chains that do not reach the point are no better."""

    at_one_point = 2.0 + 1e-14 * np.random.default_rng(0).standard_normal((50, 1))
    stage = Stage(0.5, 0.0, 50.0, 0.0, 0.0, 50, None, 0.0)

    def run(ended):
        return SMCResult(Population(at_one_point), None, None, 0.0, stages=(stage,), ended=ended)

    whole, spoiled, late = run(""), run(collapse(at_one_point, ["mu"])), run("out of time")
    kept, said = split_finished([whole, spoiled], 2, False)
    assert kept == [spoiled]
    assert "in `mu`" in said
    assert "1 of 2 chains stopped before beta = 1 (at 0.5), so there is no evidence" in said
    noisy = run(pickle.loads(pickle.dumps(RoundingEnd("differences are errors"))))
    assert split_finished([whole, noisy], 2, False)[1].startswith("differences are errors: 1 of 2 chains")
    assert split_finished([whole, late], 2, False)[0] == [whole]


def test_boolean_particles_do_not_differ_by_rounding():
    bits = np.random.default_rng(0).random((200, 3)) < 0.5
    assert collapsed_at(bits) is None
    assert collapsed_at(1.0 + 1e-14 * bits) == 0


def binomial_rates_of_huge_shapes(n=20, y=3):
    """Beta-binomial data by log gamma functions of shapes around 1e20, whose differences are rounding errors."""

    def likelihood(x):
        a, b = np.exp(x).T
        terms = [gammaln(a + y), gammaln(b + n - y), -gammaln(a + b + n), gammaln(a + b), -gammaln(a), -gammaln(b)]
        gradient = np.stack([a * (digamma(a + y) - digamma(a)), b * (digamma(b + n - y) - digamma(b))], axis=1)
        common = digamma(a + b) - digamma(a + b + n)
        return sum(terms), gradient + np.exp(x) * common[:, None]

    def prior(x):
        return -0.5 * ((x - 46) ** 2).sum(axis=1) - np.log(2 * np.pi), 46 - x

    return FunctionTarget(2, likelihood, prior, sample_prior=lambda m, rng: 46 + rng.standard_normal((m, 2)))


def test_a_run_to_rounding_errors_of_the_density_ends():
    target = binomial_rates_of_huge_shapes()
    x = np.random.default_rng(0).standard_normal((100, 2))
    assert not noise_at(target.log_density, x, target.log_density(x))
    with pytest.warns(
        SamplerWarning, match=r"changes by .* between adjacent numbers around `x\[.\]` = 4\d\.?\d? on the"
    ):
        idata = pb.sample_smc(target, draws=100, chains=1, max_moves=5, random_seed=1, progressbar=False)
    posterior = group(idata, "posterior")
    assert not posterior.attrs["log_evidence_trusted"]
    assert not posterior.attrs["complete"]

"""Checkpoints that must be refused: damaged ones, and those of another chain, model, data or setting."""

import functools
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import norm

import ppl_backends as pb
from ppl_backends.errors import CheckpointError, ModelError
from ppl_backends.results.inference_data import group
from ppl_backends.smc.checkpoint import Checkpoint
from ppl_backends.smc.path import BridgePath
from ppl_backends.targets import FunctionTarget
from tests.toys import conjugate_gaussian

pytestmark = pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")  # runs are as short as can be

OPTIONS = {"draws": 20, "chains": 3, "random_seed": 4, "progressbar": False}


def line(y, shift=0.0, prior_sd=1.0, wrong=0.0):
    """Return a normal mean with data ``y``; ``shift`` moves a linear term from the likelihood to the prior."""

    def log_likelihood(x):
        residual = y - x
        return -0.5 * (residual**2).sum(1) - shift * x[:, 0], residual.sum(1, keepdims=True) - shift + wrong

    def log_prior(x):
        return norm.logpdf(x[:, 0], 0, prior_sd) + shift * x[:, 0], shift - x / prior_sd**2

    return FunctionTarget(1, log_likelihood, log_prior, lambda n, rng: prior_sd * rng.standard_normal((n, 1)))


Y = np.linspace(-1.0, 2.0, 5)


def begin(folder, target, **options):
    """Return the files of a run that has not come far."""
    pb.sample_smc(target, checkpoint=folder / "run", max_time=1e-9, **(OPTIONS | options))
    return folder / "run"


def refused(path, target, match, **options):
    with pytest.raises(ModelError, match=match) as caught:
        pb.sample_smc(target, checkpoint=path, **(OPTIONS | options))
    assert "\n" not in str(caught.value)


# -- other models and data -------------------------------------------------------------------------------------------------


def test_another_density_is_refused(tmp_path):
    path = begin(tmp_path, line(Y))
    refused(
        path, line(np.append(Y[:-1], np.nextafter(Y[-1], 3))), r"\(log likelihood, log likelihood gradient differ\)"
    )
    refused(path, line(Y, shift=0.25), "log prior, log likelihood, .*differ")  # another split of the same joint
    refused(path, line(Y, prior_sd=1.5), "prior draws, log prior.* differ")
    refused(path, line(Y, wrong=1e-9), r"\(log likelihood gradient differ\)")
    pb.sample_smc(line(Y.copy()), checkpoint=path, **OPTIONS)


def test_one_observation_of_a_million_is_seen(tmp_path):
    y = np.random.default_rng(0).normal(size=10**6)
    moved = y.copy()
    moved[123_456] += 0.5

    def target(y):
        total, square = float(y.sum()), float((y**2).sum())
        return FunctionTarget(
            1,
            lambda x: (-0.5 * (square - 2 * x[:, 0] * total + len(y) * x[:, 0] ** 2), total - len(y) * x),
            lambda x: (norm.logpdf(x[:, 0]), -x),
            lambda n, rng: rng.standard_normal((n, 1)),
        )

    refused(begin(tmp_path, target(y)), target(moved), "log likelihood")


@functools.cache
def gaussian_model(observation=1.0, potential=False, data=0.5, scale=1.0):
    import pymc as pm

    with pm.Model() as model:
        offset = pm.Data("offset", [data])
        mu = pm.Normal("mu", 0, scale)
        if potential:
            pm.Potential("y", pm.logp(pm.Normal.dist(mu + offset, 1), np.array([observation, 2.0])))
        else:
            pm.Normal("y", mu + offset, 1, observed=[observation, 2.0])
    return model


def test_a_pymc_model_is_known_by_its_graph_and_data():
    def digests(**changes):
        return pb.as_target(gaussian_model(**changes)).digests()

    first = digests()
    gaussian_model.cache_clear()
    assert digests() == first  # the same model, built again
    for name, changes in {
        "data": {"data": np.nextafter(0.5, 1)},
        "model": {"scale": np.nextafter(1.0, 2)},
        "model and data": {"observation": np.nextafter(1.0, 2)},
    }.items():
        differing = {part for part, value in digests(**changes).items() if value != first[part]}
        assert differing == set(name.split(" and ")), name
    assert digests(potential=True)["model"] != first["model"]  # the same joint, and the same split by name
    half = pb.with_power(gaussian_model(), 0.5).digests()
    assert half["model"] == first["model"]
    assert half != pb.with_power(gaussian_model(), 0.25).digests()


def test_code_that_a_graph_cannot_show_is_known_by_its_values():
    import pymc as pm
    import pytensor.tensor as pt
    from pytensor.graph.basic import Apply
    from pytensor.graph.op import Op

    class BlackBox(Op):
        """A line whose slope is visible only in the code."""

        def __init__(self, slope):
            self.compute = lambda x: np.asarray(slope * x)

        def make_node(self, x):
            return Apply(self, [pt.as_tensor(x)], [pt.dscalar()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = self.compute(inputs[0])

        def L_op(self, inputs, outputs, gradients):
            return [gradients[0] * self(pt.constant(1.0))]

        grad = pullback = L_op

    def digests(slope):
        with pm.Model() as made:
            pm.Normal("y", BlackBox(slope)(pm.Normal("mu")), 1, observed=1.0)
        return pb.as_target(made, backend="c").digests()

    first, other = digests(1.0), digests(2.0)
    assert {name for name in first if first[name] != other[name]} == {"log likelihood", "log likelihood gradient"}
    assert first == digests(1.0)


DIGESTS = """
import tests.smc.test_checkpoint as checks
import ppl_backends as pb
print(pb.as_target(checks.gaussian_model()).digests())
"""


def test_the_digest_of_a_model_is_the_same_in_another_process():
    command, environment = [sys.executable, "-c", DIGESTS], os.environ | {"PYTHONHASHSEED": "1"}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output == f"{pb.as_target(gaussian_model()).digests()}\n"


@pytest.mark.slow
@pytest.mark.stan
def test_a_stan_program_is_known_by_its_text_data_and_split():
    pytest.importorskip("httpstan", reason="needs the stan extra")
    program = "data { vector[2] y; } parameters { real mu; } model { mu ~ normal(0, 1); y ~ normal(mu, 1); }"
    target = pb.as_target(program, {"y": [1.0, 2.0]})
    first = target.digests()
    assert target.with_data({"y": [1.0, 2.0]}).digests() == first
    moved = target.with_data({"y": [1.0, np.nextafter(2, 3)]}).digests()
    assert {name for name in first if first[name] != moved[name]} == {"data"}
    apart = pb.as_target(program, {"y": [1.0, 2.0]}, prior=None).digests()
    assert {name for name in first if first[name] != apart[name]} == {"split"}


# -- approximations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initial", ["laplace", "vi", "auto"])
def test_a_fitted_start_comes_back_to_the_bit(tmp_path, initial):
    target = conjugate_gaussian(3).target
    options = {"draws": 100, "initial": initial}
    path = begin(tmp_path, target, **options)
    whole = pb.sample_smc(target, **(OPTIONS | options))
    resumed = pb.sample_smc(target, checkpoint=path, **(OPTIONS | options))
    np.testing.assert_array_equal(group(resumed, "posterior")["x"], group(whole, "posterior")["x"])


def test_a_start_with_tails_comes_back_to_the_bit(tmp_path):
    cauchy = FunctionTarget(1, lambda x: (-np.log1p(x[:, 0] ** 2), -2 * x / (1 + x**2)))
    options = {"draws": 100, "initial": "laplace"}
    path = begin(tmp_path, cauchy, **options)
    resumed, whole = (pb.sample_smc(cauchy, checkpoint=c, **(OPTIONS | options)) for c in (path, None))
    np.testing.assert_array_equal(group(resumed, "posterior")["x"], group(whole, "posterior")["x"])
    assert group(resumed, "posterior").attrs["warnings"] == group(whole, "posterior").attrs["warnings"]


def test_a_mixture_comes_back_to_the_bit(tmp_path):
    mixture = pb.MixtureApproximation([0.3, 0.7], [[-1.0], [1.0]], [[[0.5]], [[2.0]]])
    target, settings = line(Y), {"chains": 1}
    Checkpoint.open(tmp_path / "run", target, settings, "auto", 1).begin(BridgePath(target, mixture))
    found = Checkpoint.open(tmp_path / "run", target, settings, "auto", 1)
    x = np.linspace(-3, 3, 200)[:, None]
    np.testing.assert_array_equal(found.initial.log_density(x), mixture.log_density(x))
    draws = [q.sample(10, np.random.default_rng(1)) for q in (mixture, found.initial)]
    np.testing.assert_array_equal(*draws)
    assert found.begin(BridgePath(target, found.initial)) is found


def test_another_given_start_is_refused(tmp_path):
    class MeanAndCov:
        mean, cov = np.zeros(1), np.eye(1)

    target = line(Y)
    path = begin(tmp_path, target, initial=MeanAndCov())
    refused(path, target, r"\(initial differ\)", initial=pb.GaussianApproximation([1e-12], cov=[[1.0]]))
    pb.sample_smc(target, checkpoint=path, initial=MeanAndCov(), **OPTIONS)


# -- files -----------------------------------------------------------------------------------------------------------------


def test_chains_keep_to_their_places(tmp_path):
    path = begin(tmp_path, line(Y))
    first, second = tmp_path / "run.chain0", tmp_path / "run.chain1"
    shutil.copy(second, first)
    refused(path, line(Y), "holds chain 1 in place of chain 0")
    (tmp_path / "other").mkdir()
    begin(tmp_path / "other", line(Y), random_seed=5)
    shutil.copy(tmp_path / "other" / "run.chain0", first)
    refused(path, line(Y), "run.chain0' belongs to another run")
    shutil.copy(path, first)
    refused(path, line(Y), "not a checkpoint that this version can read .*file of a call")
    shutil.copy(second, path)
    refused(path, line(Y), "not a checkpoint that this version can read .*file of a chain")
    path.unlink()
    refused(path, line(Y), "run.chain0' belongs to another run; remove it")


def test_damage_is_told_before_a_chain_runs(tmp_path):
    class Counting(FunctionTarget):
        def __init__(self):
            vars(self).update(vars(line(Y)))
            self.calls = 0

        def evaluate(self, x, gradient=False):
            self.calls += 1
            return super().evaluate(x, gradient)

    path = begin(tmp_path, line(Y))
    last = tmp_path / "run.chain2"
    last.write_bytes(last.read_bytes()[:-1])
    target = Counting()
    refused(path, target, "run.chain2' is damaged: its checksum does not match; remove it, its chain then starts again")
    assert target.calls == 1
    last.unlink()
    resumed, whole = (pb.sample_smc(line(Y), checkpoint=c, **OPTIONS) for c in (path, None))
    np.testing.assert_array_equal(group(resumed, "posterior")["x"], group(whole, "posterior")["x"])


def test_a_folder_that_cannot_be_written_is_told_before_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    calls = []
    target = FunctionTarget(1, lambda x: calls.append(x), sample_prior=lambda n, rng: np.zeros((n, 1)))
    target.digests = dict
    for path in (tmp_path / "nowhere" / "run", tmp_path / "file" / "run"):
        with pytest.raises(CheckpointError, match="could not be written") as caught:
            pb.sample_smc(target, checkpoint=path, **OPTIONS)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="could not be read"):
        pb.sample_smc(target, checkpoint=tmp_path, **OPTIONS)
    assert not calls


class Payload:
    """Code that a pickle would run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def corruptions(rng, files, foreign, made):
    """Return one file of a run, and bytes to put in its place."""
    name = rng.choice(sorted(files))
    content = bytearray(files[name])
    kind = rng.choice(["flip", "cut", "foreign", "swap", "overwrite", "insert", "remove", "pickle", "repeat"])
    at = int(rng.integers(len(content)))
    if kind == "flip":
        for place in rng.integers(len(content), size=rng.integers(1, 5)):
            content[place] ^= 1 << int(rng.integers(8))
    elif kind == "cut":
        del content[at:]
    elif kind == "foreign":
        content = bytearray(foreign[int(rng.integers(len(foreign)))][name])
    elif kind == "swap":
        content = bytearray(files[rng.choice([other for other in files if other != name])])
    elif kind == "overwrite":
        content[at : at + 16] = rng.bytes(16)
    elif kind == "insert":
        content[at:at] = rng.bytes(int(rng.integers(1, 100)))
    elif kind == "remove":
        del content[at : at + int(rng.integers(1, 100))]
    elif kind == "pickle":
        content = bytearray(pickle.dumps(Payload(str(made))))
    else:
        content *= 2
    return name, bytes(content)


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_no_corruption_is_taken_up_and_none_runs(tmp_path, count):
    others = [
        (line(Y + 1e-9), {}),
        (line(Y, shift=1e-6), {}),
        (line(Y), {"draws": 21}),
        (line(Y), {"random_seed": 5}),
        (line(Y), {"kernel": "mala"}),
        (line(Y), {"initial": "laplace"}),
        (line(Y), {"power": 0.5}),
    ]
    foreign = []
    for place, (target, options) in enumerate([(line(Y), {}), *others]):
        folder = tmp_path / f"{place}"
        folder.mkdir()
        begin(folder, target, **options)
        foreign.append({file.name: file.read_bytes() for file in folder.iterdir()})
    files, folder, made = foreign.pop(0), tmp_path / "0", tmp_path / "made"
    rng, target = np.random.default_rng(count), line(Y)
    for _ in range(count):
        name, content = corruptions(rng, files, foreign, made)
        if content == files[name]:  # the same bit twice
            continue
        (folder / name).write_bytes(content)
        refused(folder / "run", target, "run", max_time=1e-9)
        (folder / name).write_bytes(files[name])
    assert not made.exists()
    pb.sample_smc(target, checkpoint=folder / "run", max_time=1e-9, **OPTIONS)

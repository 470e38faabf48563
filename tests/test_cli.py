"""The command line, run in this process: its output and files, and errors of one line with exit code 1."""

import importlib.metadata
import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import ppl_backends as pb
from ppl_backends.cli import app

# y ~ N(mu, 1), mu ~ N(0, 1): the evidence of y is N(y; 0, I + 11ᵀ).
PROGRAM = """
data { int<lower=0> N; vector[N] y; int<lower=0, upper=1> prior_only; }
parameters { real mu; }
model { mu ~ normal(0, 1); if (!prior_only) y ~ normal(mu, 1); }
generated quantities {
  vector[N] eta = rep_vector(mu, N);
  vector[N] log_lik;
  for (n in 1 : N) log_lik[n] = normal_lpdf(y[n] | eta[n], 1);
}
"""
Y = [0.5, 1.5, 1.0, 2.0]
COVARIANCE = np.eye(4) + 1.0
LOG_EVIDENCE = -0.5 * (
    4 * np.log(2 * np.pi) + np.linalg.slogdet(COVARIANCE)[1] + np.array(Y) @ np.linalg.solve(COVARIANCE, Y)
)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_version_is_that_of_the_package():
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output.split() == ["ppl-backends", importlib.metadata.version("ppl-backends")]


@pytest.fixture
def stan_files(tmp_path):
    program, data = tmp_path / "normal.stan", tmp_path / "normal.json"
    program.write_text(PROGRAM)
    data.write_text(json.dumps({"N": len(Y), "y": Y, "prior_only": 0}))
    return program, data


def printed_evidence(output):
    (line,) = [line for line in output.splitlines() if line.startswith("log evidence")]
    return float(line.split()[2].rstrip(","))


def test_help_names_every_command():
    result = invoke("--help")
    assert result.exit_code == 0
    for command in ("demo", "doctor", "laplace", "ep", "vi", "importance", "smc"):
        assert command in result.output


def test_doctor_reports_versions_and_toolchain():
    result = invoke("doctor")
    assert result.exit_code == 0
    for component in ("Python", "pymc", "arviz", "jax", "numba", "C++ compiler"):
        assert component in result.output


@pytest.mark.slow
def test_demo(tmp_path):
    result = invoke("demo", "--draws", 1000, "--seed", 3, "--output", tmp_path / "out", "--quiet")
    assert result.exit_code == 0, result.output
    for text in ("beta[glu]", "Laplace", "importance sampling", "tempering SMC"):
        assert text in result.output
    assert (tmp_path / "out" / "pima_posterior.png").stat().st_size > 10_000
    with xr.open_dataset(tmp_path / "out" / "pima_posterior.nc", group="posterior", engine="h5netcdf") as posterior:
        assert posterior["beta"].dims == ("chain", "draw", "predictor")
        assert np.isfinite(posterior.attrs["log_evidence"])


@pytest.mark.slow
@pytest.mark.stan
def test_stan_commands(stan_files, tmp_path):
    tolerances = {"laplace": 1e-3, "ep": 1e-3, "importance": 1e-3, "smc": 0.15}  # a Gaussian posterior
    for command, tolerance in tolerances.items():
        output = tmp_path / f"{command}.nc"
        result = invoke(command, *stan_files, "--output", output, "--seed", 1, "--quiet")
        assert result.exit_code == 0, result.output
        assert printed_evidence(result.output) == pytest.approx(LOG_EVIDENCE, abs=tolerance)
        assert "mu" in result.output
        assert "eta" not in result.output  # the table is of the parameters
        assert "ess_bulk" not in result.output  # no draws are a Markov chain
        assert ("r_hat" in result.output) == (command == "smc")
        with xr.open_dataset(output, group="posterior", engine="h5netcdf") as posterior:
            assert float(posterior["mu"].mean()) == pytest.approx(sum(Y) / 5, abs=5 * np.sqrt(1 / 5 / 1000))
    result = invoke("vi", *stan_files, "--seed", 1, "--quiet")
    assert "lower bound of the log evidence" in result.output
    assert float(result.output.rpartition("lower bound of the log evidence ")[2].split(",")[0]) == pytest.approx(
        LOG_EVIDENCE, abs=1e-3
    )
    resumable = ("--kernel", "mala", "--cores", 1, "--checkpoint", tmp_path / "run.ckpt", "--draws", 500, "--chains", 1)
    runs = [invoke("smc", *stan_files, *resumable, "--seed", 1, "--quiet") for _ in range(2)]
    assert [run.exit_code for run in runs] == [0, 0]
    assert runs[0].output == runs[1].output
    assert (tmp_path / "run.ckpt").exists()
    result = invoke("smc", stan_files[0], "--quiet")  # no data
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error:")


@pytest.mark.slow
@pytest.mark.filterwarnings("always::ppl_backends.errors.SamplerWarning")
def test_a_run_stopped_before_the_posterior_gives_no_result(stan_files, tmp_path, monkeypatch):
    monkeypatch.setattr(pb, "sample_smc", partial(pb.sample_smc, max_time=0.0))
    result = invoke("smc", *stan_files, "--output", tmp_path / "part.nc", "--quiet")
    assert result.exit_code == 130
    assert "a checkpoint continues the run" in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "part.nc").exists()


@pytest.mark.filterwarnings("always::ppl_backends.errors.ApproximationWarning")
def test_an_improper_posterior_is_an_error(tmp_path):
    program = tmp_path / "flat.stan"
    program.write_text("parameters { real a; } model { }")
    result = invoke("laplace", program, "--output", tmp_path / "flat.nc", "--quiet")
    assert result.exit_code == 1
    assert result.stdout == ""
    warning, error = result.stderr.splitlines()
    assert "the posterior is improper" in warning
    assert error.startswith("error: flat.stan: the log evidence is not finite")
    assert not (tmp_path / "flat.nc").exists()


@pytest.mark.filterwarnings("always::ppl_backends.errors.ApproximationWarning")
def test_a_seed_decides_which_of_two_equal_modes_is_fitted(tmp_path):
    program = tmp_path / "modes.stan"
    program.write_text(
        "parameters { real x; } model { target += log_mix(0.5, normal_lpdf(x | -4, 1), normal_lpdf(x | 4, 1)); }"
    )
    outputs = {invoke("laplace", program, "--seed", 1, "--quiet").stdout for _ in range(8)}
    assert len(outputs) == 1
    assert "log evidence" in outputs.pop()


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly_after_the_file_is_written(stan_files, tmp_path):
    output = tmp_path / "laplace.nc"
    arguments = ["laplace", *map(str, stan_files), "--output", str(output), "--seed", "1", "--quiet"]
    command = f"import sys; from ppl_backends.cli import app; sys.argv[1:] = {arguments}; app()"
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", command], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert run.returncode == 1  # as of other programs of Typer
    assert run.stderr == ""
    with xr.open_dataset(output, group="posterior", engine="h5netcdf") as posterior:
        assert posterior.attrs["log_evidence"] == pytest.approx(LOG_EVIDENCE, abs=1e-3)


def test_a_python_file_is_sent_to_python(tmp_path):
    result = invoke("smc", tmp_path / "model.py")
    assert result.exit_code == 1
    assert "in Python call ppl_backends.sample_smc(model)" in result.stderr


@pytest.mark.parametrize("command", ["laplace", "ep", "importance", "smc"])
def test_missing_program_is_one_line(command, tmp_path):
    result = invoke(command, tmp_path / "absent.stan", "--quiet")
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "absent.stan" in result.stderr


def test_a_program_that_is_no_text_is_one_line(tmp_path):
    program = tmp_path / "binary.stan"
    program.write_bytes(b"\xff\xfe\x00")
    result = invoke("laplace", program, "--quiet")
    assert result.exit_code == 1
    assert result.stderr.startswith("error:")
    assert "not a text file" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_the_program_and_its_data_are_not_overwritten(stan_files):
    for given in stan_files:
        result = invoke("laplace", *stan_files, "--output", given, "--quiet")
        assert result.exit_code == 1
        assert "give another name" in result.stderr


@pytest.mark.parametrize("command", ["laplace", "ep", "vi", "importance", "smc"])
@pytest.mark.parametrize("place", ["nowhere/result.nc", "file/result.nc", "."])
def test_a_file_that_cannot_be_written_is_known_before_the_run(command, place, tmp_path):
    (tmp_path / "file").write_text("")
    program = tmp_path / "broken.stan"
    program.write_text("this is no program")  # it is never compiled
    result = invoke(command, program, "--output", tmp_path / place, "--quiet")
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error: --output")
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


BROKEN_ARVIZ = """
import sys
from ppl_backends.cli import app
sys.modules["arviz"] = None
app(["smc", sys.argv[1], "--quiet"])
"""


def test_arviz_that_cannot_be_imported_is_known_before_the_run(tmp_path):
    program = tmp_path / "broken.stan"
    program.write_text("this is no program")
    run = subprocess.run([sys.executable, "-c", BROKEN_ARVIZ, str(program)], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith("error: ")
    assert "arviz" in run.stderr
    assert run.stderr.count("\n") == 1


FULL_DISK = """
import resource, sys
from ppl_backends import cli
from ppl_backends.targets import FunctionTarget
import numpy as np, ppl_backends as pb
target = FunctionTarget(1, lambda x: (-0.5 * x[:, 0] ** 2, -x))
target.parameter_names = ("x",)
idata = pb.fit_laplace(target, progressbar=False).to_inference_data(draws=20_000, random_seed=1)
with cli._one_line_errors():
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    cli._finish(idata, cli.Path(sys.argv[1]), target)
"""


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_a_disk_that_is_full_at_the_end_leaves_the_summary_and_the_file_before(tmp_path):
    file = tmp_path / "result.nc"
    file.write_text("the one before")
    run = subprocess.run([sys.executable, "-c", FULL_DISK, str(file)], capture_output=True, text=True)
    assert run.returncode != 0
    assert "mean" in run.stdout
    assert file.read_text() == "the one before"


def test_unknown_command():
    assert invoke("sampel").exit_code == 2

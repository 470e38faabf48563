"""The command line, run in this process: what it prints and writes, and that errors are one line with exit code 1."""

import json

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

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
        with xr.open_dataset(output, group="posterior", engine="h5netcdf") as posterior:
            assert float(posterior["mu"].mean()) == pytest.approx(sum(Y) / 5, abs=5 * np.sqrt(1 / 5 / 1000))
    result = invoke("vi", *stan_files, "--seed", 1, "--quiet")
    assert "lower bound of the log evidence" in result.output
    assert float(result.output.rpartition("lower bound of the log evidence ")[2].split(",")[0]) == pytest.approx(
        LOG_EVIDENCE, abs=1e-3
    )
    result = invoke("smc", stan_files[0], "--quiet")  # no data
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error:")


@pytest.mark.parametrize("command", ["laplace", "ep", "importance", "smc"])
def test_missing_program_is_one_line(command, tmp_path):
    result = invoke(command, tmp_path / "absent.stan", "--quiet")
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "absent.stan" in result.stderr


def test_unknown_command():
    assert invoke("sampel").exit_code == 2

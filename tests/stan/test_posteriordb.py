"""Tempering SMC reproduces reference posteriors, with the settings and the limits of the benchmark over all of them."""

import runpy
from pathlib import Path

import pytest

from ppl_backends.results.inference_data import group

pytest.importorskip("httpstan", reason="needs stanc, from the stan extra")

BENCHMARK = Path(__file__).parents[2] / "examples" / "benchmarks" / "posteriordb_smc.py"

pytestmark = [pytest.mark.slow, pytest.mark.stan]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("eight_schools-eight_schools_noncentered", "prior"),
        ("kidiq-kidscore_momiq", "laplace"),  # its coefficients have flat priors
        ("gp_pois_regr-gp_regr", "prior"),
    ],
)
def test_reference_posterior_is_reproduced(name, start, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))  # as for a script
    benchmark = runpy.run_path(str(BENCHMARK))
    idata, _, warned = benchmark["run"](name, draws=3000, chains=4, seed=1)
    found, attrs = benchmark["compare"](name, idata), group(idata, "posterior").attrs
    assert attrs["initial"].startswith(start)
    assert attrs["log_evidence_trusted"] == 1
    assert len(warned) == (start == "laplace")  # that the prior is improper, and nothing else
    assert found.passed, found

"""Sub-sampling steps on the rows of a Stan program's data."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.kernels.subsampling.rows import ObservedRows
from ppl_backends.results.inference_data import group
from ppl_backends.steps.subsampling import rows_of

pytest.importorskip("httpstan", reason="needs the stan extra")
pytestmark = [pytest.mark.stan, pytest.mark.slow]


def test_control_variates_on_a_program_s_rows(regression):
    rows = rows_of(regression)
    assert isinstance(rows, ObservedRows)
    x, index = rows.expansion_point.sample(1, np.random.default_rng(0))[0], np.arange(rows.n)
    delta = x - rows.expansion_point.mean
    whole = rows.expansion.at(delta) + rows.residuals(x, index).sum()
    np.testing.assert_allclose(whole, regression.observations.sum(x[None])[0], rtol=1e-6)
    with pytest.warns(SamplerWarning, match="is approximate"):
        idata = pb.sample_mcmc(
            regression,
            step=pb.steps.SubsampledMetropolis(subset=40, steps=4),
            draws=1000,
            tune=0,
            chains=2,
            random_seed=1,
            progressbar=False,
        )
    assert idata["posterior"].attrs["accuracy"] == "approximate"
    assert (group(idata, "sample_stats")["log_likelihood_variance"] < 5).all()
    assert 0.05 < float(group(idata, "sample_stats")["accept"].mean()) < 0.6

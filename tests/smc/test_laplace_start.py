"""From Laplace at the wrong one of two modes."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import ppl_backends as pb
from ppl_backends.errors import ApproximationWarning
from ppl_backends.results.inference_data import group
from ppl_backends.targets import FunctionTarget

SHARES, CENTRES, SDS = np.array([1e-3, 1 - 1e-3]), np.array([0.0, 5.0]), np.array([0.3, 1.0])


def density(x):
    """A narrow normal at the origin, where the first climb begins, of a thousandth of the mass, and one at (5, 5)."""
    apart = x - CENTRES[:, None, None]
    logs = np.log(SHARES)[:, None] + norm.logpdf(apart, 0, SDS[:, None, None]).sum(axis=2)
    value = logsumexp(logs, axis=0)
    return value, np.einsum("kn,knd->nd", np.exp(logs - value), -apart / SDS[:, None, None] ** 2)


def test_the_mode_that_holds_the_mass_is_found():
    target = FunctionTarget(2, density)
    with pytest.warns(ApproximationWarning, match="another mode, where a Gaussian has 100% of the mass"):
        np.testing.assert_allclose(pb.fit_laplace(target, progressbar=False).mean, 0.0, atol=0.1)
    idata = pb.sample_smc(target, draws=1000, chains=2, initial="laplace", random_seed=1, progressbar=False)
    posterior = group(idata, "posterior")
    assert abs(posterior.attrs["log_evidence"]) < 4 * posterior.attrs["log_evidence_se"] + 2e-3
    x = np.asarray(posterior["x"]).reshape(-1, 2)
    np.testing.assert_allclose(x.mean(axis=0), 5.0, atol=0.15)
    np.testing.assert_allclose(x.std(axis=0), 1.0, atol=0.12)

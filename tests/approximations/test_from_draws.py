"""A Gaussian fitted to draws recovers their moments."""

import numpy as np
import pytest

from ppl_backends.approximations import GaussianApproximation, from_draws
from ppl_backends.errors import ModelError
from ppl_backends.importance import sample_importance
from ppl_backends.targets import FunctionTarget

MEAN, COV = np.array([1.0, -2.0]), np.array([[2.0, 0.6], [0.6, 0.5]])
TARGET = FunctionTarget(2, GaussianApproximation(MEAN, COV).log_density_and_gradient, names=["a", "b"])


@pytest.mark.parametrize("model", [TARGET, None])
def test_moments_of_the_draws(model):
    n = 4000
    exact = GaussianApproximation(MEAN, COV, target=TARGET)
    idata = exact.to_inference_data(draws=n // 4, chains=4, random_seed=1)
    if model is None:
        with pytest.raises(ModelError, match="give model="):
            from_draws(idata)
        return
    q = from_draws(idata, model)
    assert np.all(np.abs(q.mean - MEAN) < 5 * np.sqrt(np.diag(COV) / n))
    assert np.all(np.abs(q.sd / np.sqrt(np.diag(COV)) - 1) < 5 / np.sqrt(2 * n))
    assert q.names == ("a", "b")
    assert q.method == "draws"


def test_draws_that_do_not_vary_are_refused():
    idata = GaussianApproximation(MEAN, COV).to_inference_data(draws=1, random_seed=1)
    with pytest.raises(ModelError, match="do not vary"):
        from_draws(idata, TARGET)


def test_serves_as_a_proposal():
    fitted = from_draws(GaussianApproximation(MEAN, COV).to_inference_data(draws=4000, random_seed=1), TARGET)
    idata = sample_importance(TARGET, draws=500, approximation=fitted, random_seed=2, progressbar=False)
    assert abs(idata.posterior.attrs["log_evidence"]) < 6 * idata.posterior.attrs["log_evidence_se"] + 1e-12

"""Probit likelihoods far out in the tails, in value, gradient and Hessian."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import log_ndtr

import ppl_backends as pb

ETA = np.array([-800.0, -40, -12, -9, -1, 0, 1, 7, 8.5, 12, 40, 800])
Y = np.r_[np.ones(6), np.zeros(6)].astype(int)


def probabilities(eta, form):
    if form == "invprobit":
        return pm.math.invprobit(eta)
    return 0.5 * (1 + pm.math.erf(eta / np.sqrt(2))) if form == "erf" else 0.5 * pm.math.erfc(-eta / np.sqrt(2))


@pytest.mark.parametrize("form", ["invprobit", "erf", "erfc"])
def test_probit_holds_where_probabilities_round_to_zero_or_one(form):
    with pm.Model() as model:
        scale = pm.Normal("scale", 0, 1)
        pm.Bernoulli("y", p=probabilities(scale * ETA, form), observed=Y)
    target = pb.as_target(model)
    for x, h in ((1.0, 1e-5), (-1.0, 1e-5), (0.3, 1e-6)):
        exact, up, down = (log_ndtr((2 * Y - 1) * ETA * at).sum() for at in (x, x + h, x - h))
        evaluation = target.evaluate(np.array([[x]]), gradient=True)
        # invprobit holds √2 in single precision, which is good to 4e-8.
        assert evaluation.log_likelihood[0] == pytest.approx(exact, rel=1e-7)
        assert evaluation.log_likelihood_gradient[0, 0] == pytest.approx((up - down) / (2 * h), rel=1e-6)
        assert np.isfinite(target.hessian(np.array([[x]]))).all()

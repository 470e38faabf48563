"""Angles, whose density repeats along the unconstrained line."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import i0e, ive

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.targets import PyMCTarget

CONCENTRATION = 2.0


@pytest.fixture(scope="module")
def model_and_truth():
    """A direction near the end of the interval that PyMC uses; its posterior is von Mises with known constant and mean."""
    y = np.random.default_rng(1).vonmises(3.0, CONCENTRATION, 12)
    with pm.Model() as model:
        phi = pm.Uniform("phi", -np.pi, np.pi, transform=pm.distributions.transforms.circular, default_transform=None)
        pm.VonMises("y", phi, CONCENTRATION, observed=y)
    resultant = CONCENTRATION * np.exp(1j * y).sum()
    r = abs(resultant)
    log_evidence = np.log(i0e(r)) + r - len(y) * (np.log(2 * np.pi * i0e(CONCENTRATION)) + CONCENTRATION)
    return model, log_evidence, ive(1, r) / ive(0, r) * resultant / r


def test_methods_agree_with_the_posterior_on_the_circle(model_and_truth):
    model, log_evidence, moment = model_and_truth
    target = PyMCTarget(model)
    assert target.log_prior_normalizer == 0.0
    for run in (pb.sample_smc, pb.sample_importance):
        idata = run(target, draws=500, chains=4, random_seed=1, progressbar=False)
        attrs = idata.posterior.attrs
        assert attrs["log_evidence_trusted"] == 1
        assert abs(attrs["log_evidence"] - log_evidence) < 5 * attrs["log_evidence_se"] + 1e-3
        assert abs(np.exp(1j * idata.posterior["phi"].values).mean() - moment) < 0.05
        draws = idata.posterior["phi"].values
    found = pb.evidence({"phi": draws}, model, random_seed=1)  # draws of a sampler, on the circle
    assert found.trusted
    assert abs(found.log_evidence - log_evidence) < 5 * found.log_evidence_se + 1e-3
    with pytest.raises(ModelError, match="'phi': the density of an angle is periodic"):
        pb.fit_ep(target)


def test_prior_draws_and_points_of_angles_follow_the_density_on_the_line():
    with pm.Model() as model:
        pm.VonMises("angle", 2.5, 1.0, shape=2)
    target = PyMCTarget(model)
    drawn = target.sample_prior(4000, np.random.default_rng(1))
    placed = target.unconstrain(target.constrain(drawn))
    np.testing.assert_allclose(np.exp(1j * placed), np.exp(1j * drawn), atol=1e-9)
    grid = np.linspace(-12, 12, 4801)
    density = np.exp(target.log_density(np.column_stack([grid, np.full(len(grid), 2.5)])))
    far = density[np.abs(grid) > np.pi].sum() / density.sum()  # the share on other turns
    for x in (drawn, placed):
        assert abs((np.abs(x) > np.pi).mean() - far) < 5 * np.sqrt(far / 8000)

"""Improper posteriors of data that fit exactly as a scale goes to zero: told early, and not confused with funnels."""

import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.results.inference_data import group
from ppl_backends.smc.endless import EndlessWatch, rise_along

ONE = {"draws": 500, "chains": 1, "random_seed": 1, "progressbar": False}


def test_equal_observations_are_told_before_the_run_drifts_away():
    """The density of u = log σ at power 1 is exp(−20u + u + u): σ⁻²⁰, the Jacobian, and the width of μ."""
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 1)
        pm.Normal("y", mu, sigma, observed=np.full(20, 1.0))
    with pytest.warns(SamplerWarning, match=r"is improper: .* rises by 18 for every unit by which `sigma_log__`"):
        idata = pb.sample_smc(model, **ONE)
    attrs = group(idata, "posterior").attrs
    assert attrs["log_evidence_trusted"] == 0
    assert "log_evidence" not in attrs


@pytest.mark.filterwarnings("ignore:a tail of")  # of the draws of a chain that stopped in the neck
def test_two_scales_that_go_to_zero_together_are_told():
    """The density of effects has no mode given one of the scales, so both are held: 30 rows, 10 effects, two Jacobians."""
    with pm.Model() as model:
        tau, sigma = pm.HalfNormal("tau", 1), pm.Uniform("sigma", 0, 10)
        effect = pm.Normal("effect", 0, tau, shape=10)
        pm.Normal("y", effect[np.arange(30) % 10], sigma, observed=np.zeros(30))
    with pytest.warns(SamplerWarning, match=r"the posterior is improper: .* rises by 2[78] for every unit"):
        pb.sample_smc(model, **ONE)


def test_a_start_that_has_collapsed_is_refused_in_one_line():
    def density(x):
        return -0.5 * ((x - 1) ** 2).sum(axis=1), 1 - x

    target = pb.FunctionTarget(2, density, density, lambda n, rng: 1 + 1e-15 * rng.standard_normal((n, 2)))
    with pytest.raises(ModelError, match=r"no run can start from .* differ by little more than rounding"):
        pb.sample_smc(target, **ONE)


@pytest.mark.parametrize("scale", ["half normal", "log"])
def test_the_neck_of_a_funnel_has_an_end(scale):
    """The density of a centred hierarchy has no bound where its scale is zero, but the marginal of the scale falls."""
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1) if scale == "half normal" else pm.LogNormal("tau", 0, 3)
        effect = pm.Normal("effect", 0, tau, shape=8)
        pm.Normal("y", effect, 1.0, observed=np.linspace(-0.5, 0.5, 8))
    target = pb.as_target(model)
    x = target.sample_prior(500, np.random.default_rng(1))
    for side in (1.0, -1.0):
        x[:, 0] = side * np.abs(x[:, 0])
        assert rise_along(target, x, np.array([0])) == ""
    watch = EndlessWatch(target)
    assert watch.reason(x, np.zeros(500)) == ""  # the start
    x[:, 0] *= 2
    assert watch.reason(x, np.zeros(500)) == ""
    assert watch.known == {(0,)}

"""Evidence if the prior as written does not integrate to one: every start gives the same value, and says so."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import gammaln, logsumexp

import ppl_backends as pb
from ppl_backends.cli import _finish
from ppl_backends.results.inference_data import group, normalised_evidence_error
from ppl_backends.targets.integral import PriorIntegral

PYMC = int(pm.__version__.split(".")[0])
QUIET = {"progressbar": False, "random_seed": 1}
PAIRS = np.array([[0.6, -0.2], [1.2, 0.7], [-0.4, 0.3]])


def lkj_model(eta):
    packed_to_matrix = pm.expand_packed_triangular if PYMC < 6 else pm.math.expand_packed_triangular
    with pm.Model() as model:
        packed = pm.LKJCholeskyCov("chol", n=2, eta=eta, sd_dist=pm.HalfNormal.dist(1.0, shape=2), compute_corr=False)
        pm.MvNormal("y", np.zeros(2), chol=packed_to_matrix(2, packed), observed=PAIRS)
    return model


def lkj_evidence(eta):
    """Return the evidence under the normalised prior, by quadrature over both standard deviations and the correlation."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    s, r = 4.5 * (nodes + 1.0), nodes
    first, second, r = np.meshgrid(s, s, r, indexing="ij")
    log_weights = np.log(4.5**2 * weights[:, None, None] * weights[:, None] * weights)
    log_density = stats.halfnorm.logpdf(first) + stats.halfnorm.logpdf(second) + (eta - 1) * np.log1p(-(r**2))
    log_density -= gammaln(0.5) + gammaln(eta) - gammaln(eta + 0.5)
    for a, b in PAIRS:
        square = (a / first) ** 2 - 2 * r * a * b / (first * second) + (b / second) ** 2
        log_density -= 0.5 * square / (1 - r**2) + np.log(2 * np.pi * first * second) + 0.5 * np.log1p(-(r**2))
    return float(logsumexp(log_density + log_weights))


def ordered_model():
    with pm.Model() as model:
        ordered = pm.distributions.transforms.ordered
        x = pm.Normal("x", [0.0, 1.0], 1.0, transform=ordered, initval=[-1.0, 1.0])
        pm.Normal("y", x, 0.7, observed=[0.9, 0.5])
    return model


def ordered_evidence():
    """Return the evidence as written: that without the restriction times the posterior probability of the order."""
    y, mean, variance = np.array([0.9, 0.5]), np.array([0.0, 1.0]), 1 / (1 + 1 / 0.49)
    posterior = variance * (mean + y / 0.49)
    free = stats.norm.logpdf(y, mean, np.hypot(1.0, 0.7)).sum()
    return free + stats.norm.logcdf((posterior[1] - posterior[0]) / np.sqrt(2 * variance))


def results(model):
    target = pb.as_target(model)
    yield "prior", pb.sample_smc(target, draws=1000, chains=2, **QUIET)
    yield "unbiased", pb.sample_smc(target, draws=1000, chains=2, unbiased=True, **QUIET)
    yield "laplace", pb.sample_smc(target, draws=1000, chains=2, initial="laplace", **QUIET)
    yield "importance", pb.sample_importance(target, draws=1000, proposal="defensive", **QUIET)


@pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")
@pytest.mark.slow
@pytest.mark.parametrize("eta", [2.0, 5.0])
def test_methods_agree_with_lkj_as_written(eta):
    dropped = 2 * (gammaln(0.5) + gammaln(eta) - gammaln(eta + 0.5)) if PYMC < 6 else 0.0
    truth = lkj_evidence(eta)
    for name, idata in results(lkj_model(eta)):
        attrs = group(idata, "posterior").attrs
        assert attrs["log_prior_normalizer"] == pytest.approx(dropped, abs=1e-5), name
        assert abs(attrs["log_evidence"] - dropped - truth) < 4 * attrs["log_evidence_se"], name
        assert ("log_prior_normalizer_note" in attrs) == (PYMC < 6), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")
def test_the_error_of_an_estimated_integral_is_in_that_of_the_evidence():
    target = pb.as_target(ordered_model())
    inner = target.log_prior_normalizer_se
    assert inner > 0.001
    for name, idata in results(target):
        attrs = group(idata, "posterior").attrs
        assert abs(attrs["log_evidence"] - ordered_evidence()) < 4 * attrs["log_evidence_se"], name
        assert attrs["log_prior_normalizer_se"] == inner
        if name in ("prior", "unbiased"):
            assert attrs["log_evidence_tempering_se"] > inner, name
        if name != "unbiased":
            assert normalised_evidence_error(attrs) >= inner, name


def test_an_integral_whose_error_is_large_is_all_there_is_to_the_error():
    target = pb.as_target(ordered_model())
    target._integral = target.prior_integral._replace(standard_error=0.5, df=7.0)
    attrs = group(pb.sample_smc(target, draws=500, chains=2, unbiased=True, **QUIET), "posterior").attrs
    assert attrs["log_evidence_se"] == pytest.approx(0.5, rel=0.05)
    assert attrs["log_evidence_df"] == pytest.approx(7.0, rel=0.2)


def test_the_note_on_an_estimated_integral_has_its_error():
    note = PriorIntegral(-0.051, 0.031, 43.0).attrs(-35.812)["log_prior_normalizer_note"]
    assert "exp(-0.051 ± 0.031)" in note
    assert "±" not in PriorIntegral(-0.051).attrs(-35.812)["log_prior_normalizer_note"]


def test_models_are_compared_without_the_integral_of_the_prior(capsys):
    fits = {}
    for name, options in (("free", {}), ("ordered", {"transform": pm.distributions.transforms.ordered})):
        with pm.Model() as model:
            x = pm.Normal("x", 0.0, 1.0, shape=2, initval=[-1.0, 1.0], **options)
            pm.Normal("y", x.sum(), 1.0, observed=0.5)
        fits[name] = pb.sample_smc(model, draws=1000, chains=2, **QUIET)
    table = pb.compare_evidence(fits)
    assert abs(table["difference"].min()) < 5 * np.hypot(*table["se"])
    attrs = group(fits["ordered"], "posterior").attrs
    assert attrs["log_prior_normalizer"] == pytest.approx(-np.log(2))
    assert "compare models by log_evidence minus log_prior_normalizer" in attrs["log_prior_normalizer_note"]
    assert "log_prior_normalizer_note" not in group(fits["free"], "posterior").attrs

    class Program:
        parameter_names = ("x",)

    _finish(fits["ordered"], None, Program)
    shown = " ".join(capsys.readouterr().out.split())  # lines wrap
    assert f"{attrs['log_evidence'] + np.log(2):.3f}" in shown
    assert "compare models by this" in shown

"""Tempering with Gibbs moves has the evidence and the moments of posteriors that quadrature knows; others are refused."""

import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.targets.factors import Factors, FactorsTarget, Logit, NegativeBinomial, Probit, StudentT
from tests.statistics import assert_evidence_is, t_bound

RNG = np.random.default_rng(8)
A = np.c_[np.ones(30), RNG.normal(size=30)]
TRIALS = RNG.integers(1, 5, 30)
SUCCESSES = RNG.binomial(TRIALS, 1 / (1 + np.exp(-A @ [0.5, -1.0])))
COUNTS = RNG.poisson(np.exp(A @ [0.5, 0.4]))
STUDENT = StudentT([0.3, -0.2], 4.0, [2.0, 1.0])

WITH_STUDENT_PRIOR = Factors(
    [A, np.eye(2)], 0.0, [Logit(SUCCESSES, TRIALS), STUDENT], 0.0, 0.0, observed=np.arange(32) < 30
)
REGRESSIONS = {
    "binomial, normal prior": Factors(A, 0.2, Logit(SUCCESSES, TRIALS), [0.5, 0.0], [0.25, 1.0]),
    "negative binomial": Factors(A, 0.0, NegativeBinomial(COUNTS, 3.0), 0.0, [0.25, 1.0]),
}


def by_quadrature(factors):
    """Log evidence, means and standard deviations on a grid."""
    line = np.linspace(-6.0, 6.0, 801)
    theta = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    log_density = factors.log_density(theta)
    mass = np.exp(log_density - log_density.max())
    total = mass.sum()
    mean = mass @ theta / total
    sd = np.sqrt(mass @ (theta - mean) ** 2 / total)
    return log_density.max() + np.log(total * (line[1] - line[0]) ** 2), mean, sd


@pytest.mark.parametrize("name", REGRESSIONS)
def test_tempering_has_the_answers_of_quadrature(name):
    factors = REGRESSIONS[name]
    log_evidence, mean, sd = by_quadrature(factors)
    options = {"draws": 500, "chains": 8, "kernel": "polya_gamma", "random_seed": 3, "progressbar": False}
    idata = pb.sample_smc(FactorsTarget(factors), **options)
    assert idata.posterior.attrs["kernel"] == "polya_gamma"
    assert_evidence_is(
        [idata.posterior.attrs["log_evidence"]], [idata.posterior.attrs["log_evidence_se"]], log_evidence
    )
    theta = idata.posterior["theta"].values
    for figure, truth in ((theta.mean(axis=1), mean), (theta.std(axis=1), sd)):
        error = figure.std(axis=0, ddof=1) / np.sqrt(len(figure))
        assert (np.abs(figure.mean(axis=0) - truth) <= t_bound(7, 4) * error + 2e-3 * sd).all()


@pytest.mark.slow
def test_sites_of_the_prior_keep_power_one():
    with pm.Model():
        beta = pm.StudentT("beta", nu=4.0, mu=[0.3, -0.2], sigma=[2.0, 1.0], shape=2)
        pm.Binomial("y", TRIALS, logit_p=A @ beta, observed=SUCCESSES)
        idata = pb.sample_smc(kernel="polya_gamma", draws=500, chains=4, random_seed=1, progressbar=False)
    truth = by_quadrature(WITH_STUDENT_PRIOR)[0]
    assert_evidence_is([idata.posterior.attrs["log_evidence"]], [idata.posterior.attrs["log_evidence_se"]], truth)


def with_a_scale():
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        beta = pm.Normal("beta", 0, tau, shape=2)
        pm.Binomial("y", TRIALS, logit_p=A @ beta, observed=SUCCESSES)
    return model


def test_models_that_have_no_such_moves_are_refused_by_name():
    probit = FactorsTarget(Factors(A, 0.0, Probit(SUCCESSES > 0), 0.0, 1.0))
    with pytest.raises(ModelError, match="powers of Probit sites"):
        pb.sample_smc(probit, kernel="polya_gamma", progressbar=False)
    with pytest.raises(ModelError, match=r"hyper-parameters \(tau"):
        pb.sample_smc(with_a_scale(), kernel="polya_gamma", progressbar=False)
    known = FactorsTarget(REGRESSIONS["negative binomial"])
    with pytest.raises(ModelError, match="initial='prior'"):
        pb.sample_smc(known, kernel="polya_gamma", initial="laplace", progressbar=False)
    bare = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(axis=1), -x))
    with pytest.raises(ModelError, match="no known factors"):
        pb.sample_smc(bare, kernel="polya_gamma", progressbar=False)

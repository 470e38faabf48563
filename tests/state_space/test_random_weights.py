"""Importance sampling with estimated likelihoods: exact evidence and posterior with eight particles, and a biased twin."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.targets.state_space.target import StateSpaceData, StateSpaceTarget
from tests.state_space.toys import MODEL, Y, log_evidence, posterior, target
from tests.statistics import normal_bound

MEAN, SD, _ = posterior()
Q = pb.GaussianApproximation([MEAN + 0.2 * SD], [[(1.3 * SD) ** 2]])
OPTIONS = {"draws": 1024, "chains": 8, "proposal": "gaussian", "random_seed": 2, "progressbar": False}


def estimated(kind=StateSpaceTarget):
    series = StateSpaceData("y", MODEL, Y, lambda x: {"mu": x[:, 0]})
    return kind(target().rest, series, n_particles=8)


class MeanOfLogs(StateSpaceTarget):
    """A twin that averages logs of estimates, whose mean is below the log of the mean."""

    def log_likelihood_estimate(self, x, rng):
        return np.mean([super(MeanOfLogs, self).log_likelihood_estimate(x, rng) for _ in range(8)], axis=0)


def distance(kind=StateSpaceTarget):
    attrs = pb.sample_importance(estimated(kind), approximation=Q, **OPTIONS).posterior.attrs
    return (attrs["log_evidence"] - log_evidence()) / attrs["log_evidence_se"], attrs["log_evidence_se"]


def test_evidence_and_posterior_are_exact():
    idata = pb.sample_importance(estimated(), approximation=Q, **OPTIONS)
    attrs, x = idata.posterior.attrs, idata.posterior["x"].values[..., 0]
    assert attrs["accuracy"] == "exact"
    assert attrs["log_evidence_se"] < 0.1
    assert abs(attrs["log_evidence"] - log_evidence()) < normal_bound() * attrs["log_evidence_se"]
    error = SD / np.sqrt(x.size * attrs["efficiency_factor"])
    assert abs(x.mean() - MEAN) < normal_bound() * error
    assert abs(x.std() - SD) < normal_bound() * error


def test_a_biased_estimate_is_found_out():
    z, se = distance(MeanOfLogs)
    assert se < 0.1
    assert z < -normal_bound()


def test_an_approximation_has_to_be_given():
    with pytest.raises(ModelError, match=r"the likelihood can only be estimated.*give approximation=") as caught:
        pb.sample_importance(estimated(), **OPTIONS)
    assert "\n" not in str(caught.value)

"""Second runs with finer steps, and modes that the first run lost."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.kernels.table import make_kernel
from ppl_backends.results.inference_data import group
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.sampler import Settings, run_tempering
from ppl_backends.targets.function import FunctionTarget
from tests.statistics import t_bound
from tests.toys import bimodal, conjugate_gaussian

LOG_2PI = np.log(2 * np.pi)


def late_mode(dim=10):
    """From N(1, 5 I) to 0.3 N(4, Ξ₁) + 0.7 N(−4, Ξ₂), with variances from 1 to 2 and correlations of 0.7 and 0.1.

    The second mode has 1 % of the mass where the modes separate (Buchholz 2018, section 5.4.2).
    """
    sd = np.sqrt(np.linspace(1.0, 2.0, dim))
    precisions = [np.linalg.inv(np.outer(sd, sd) * ((1 - c) * np.eye(dim) + c)) for c in (0.7, 0.1)]
    parts = list(zip(np.log([0.3, 0.7]), (4.0, -4.0), precisions, strict=True))

    def log_prior(x):
        return -0.1 * ((x - 1) ** 2).sum(axis=1) - 0.5 * dim * (LOG_2PI + np.log(5)), -(x - 1) / 5

    def log_likelihood(x):
        prior, prior_slope = log_prior(x)
        values, slopes = [], []
        for log_share, mean, precision in parts:
            slopes.append(-(x - mean) @ precision)
            constant = log_share + 0.5 * (np.linalg.slogdet(precision)[1] - dim * LOG_2PI)
            values.append(constant + 0.5 * ((x - mean) * slopes[-1]).sum(axis=1))
        total = np.logaddexp(*values)
        slope = sum(np.exp(value - total)[:, None] * each for value, each in zip(values, slopes, strict=True))
        return total - prior, slope - prior_slope

    return FunctionTarget(dim, log_likelihood, log_prior, lambda n, rng: 1 + 5**0.5 * rng.standard_normal((n, dim)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ppl_backends.errors.PPLBackendsWarning")
def test_a_mode_that_few_particles_decided_is_looked_for_again():
    """The first run of a call alone has a share of the first mode of 0.5 to 0.6; the posterior has 0.3."""
    posterior = group(pb.sample_smc(late_mode(), random_seed=0, progressbar=False), "posterior")
    attrs = posterior.attrs
    assert attrs["run_again"] == 1
    share = np.mean([(posterior[name].values > 0).mean() for name in posterior.data_vars])
    assert abs(share - 0.3) < 0.1  # five standard errors if twenty independent particles of a thousand decide
    assert abs(attrs["log_evidence"]) < t_bound(attrs["log_evidence_df"]) * attrs["log_evidence_se"]
    assert attrs["log_evidence_se"] < 0.1


@pytest.mark.parametrize("known", [conjugate_gaussian(3), bimodal()])
def test_a_run_in_order_is_made_once(known):
    idata = pb.sample_smc(known.target, draws=1000, random_seed=1, progressbar=False)
    assert group(idata, "posterior").attrs["run_again"] == 0


def test_a_share_that_was_asked_for_is_kept():
    with pytest.warns(PPLBackendsWarning, match="independent ones, fewer than 100, so the Monte Carlo error"):
        idata = pb.sample_smc(late_mode(), ess_threshold=0.5, draws=1000, random_seed=1, progressbar=False)
    attrs = group(idata, "posterior").attrs
    assert attrs["run_again"] == 0
    assert attrs["log_evidence_trusted"] == 0


def test_a_finer_run_has_more_chains_of_as_many_moves():
    settings = Settings(len_chain=20).finer()
    run = run_tempering(
        PriorPath(conjugate_gaussian(3).target),
        make_kernel("hmc"),
        1000,
        np.random.default_rng(1),
        **settings._asdict(),
    )
    assert settings.len_chain == 5
    assert min(stage.ess for stage in run.stages) > 0.899 * 1000
    assert min(stage.moves.n_moves for stage in run.stages) == 20
    assert settings._replace(len_chain=None).finer().moves == settings.moves

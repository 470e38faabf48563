"""A bent tail without a mode, which a Gaussian at the mode does not cover, is found by heated draws and then sampled."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from ppl_backends.approximations.heated import region_when_heated
from ppl_backends.approximations.missed_modes import missed_region
from ppl_backends.importance import sample_importance
from ppl_backends.targets import FunctionTarget

SHARE, CENTRE, SD, SLOPE, KNEE = 0.04, 2.5, 2.5, 1.0, 1.0
SD_OF_FIRST = float(np.sqrt(1 - SHARE + SHARE * (SD**2 + CENTRE**2) - (SHARE * CENTRE) ** 2))


def bent(dim):
    """The first coordinate has a wide tail, in which the others have other means; log evidence 0, one mode."""

    def log_density(x):
        first = x[:, 0]
        parts = np.log([[1 - SHARE], [SHARE]]) + np.stack([norm.logpdf(first), norm.logpdf(first, CENTRE, SD)])
        value = logsumexp(parts, axis=0)
        belongs, residual = np.exp(parts - value), x[:, 1:] - SLOPE * np.maximum(first - KNEE, 0)[:, None]
        gradient = np.concatenate([x[:, :1], -residual], axis=1)
        gradient[:, 0] = -belongs[0] * first - belongs[1] * (first - CENTRE) / SD**2
        gradient[:, 0] += SLOPE * (first > KNEE) * residual.sum(axis=1)
        return value + norm.logpdf(residual).sum(axis=1), gradient

    return FunctionTarget(dim, log_density)


def draws_of_bent(dim, n, rng):
    wide = rng.random(n) < SHARE
    first = np.where(wide, CENTRE + SD * rng.standard_normal(n), rng.standard_normal(n))
    others = SLOPE * np.maximum(first - KNEE, 0)[:, None] + rng.standard_normal((n, dim - 1))
    return np.column_stack([first, others])


def test_heated_draws_measure_the_mass_that_draws_miss():
    rng, target = np.random.default_rng(1), bent(4)
    right, narrow = draws_of_bent(4, 4096, rng), rng.standard_normal((4096, 4))
    region = region_when_heated(target.log_density, narrow, 256, rng)
    held = float(region.contains(right).mean())
    error = np.hypot(region.error * held, (held / len(right)) ** 0.5)
    assert abs(np.exp(region.log_mass) - held) < 4 * error
    assert missed_region(region, 0.0, 0.0, 0.0, narrow).share == pytest.approx(held, abs=4 * error)
    assert missed_region(region, held, 4096 * held, 0.0, right) is None


def test_importance_sampling_samples_a_bent_tail_without_a_mode():
    sds = []
    for seed in range(1, 4):
        posterior = sample_importance(bent(4), random_seed=seed, progressbar=False).posterior
        attrs = posterior.attrs
        assert abs(attrs["log_evidence"]) < 4 * attrs["log_evidence_se"], attrs
        assert attrs["log_evidence_trusted"], attrs["warnings"]
        sds.append(posterior["x"].values[..., 0].std())
    # without the heated draws the three sds are from 15 to 18 % low
    assert np.mean(sds) == pytest.approx(SD_OF_FIRST, rel=0.06)

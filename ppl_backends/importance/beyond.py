"""The share of an evidence in regions that points of a posterior do not reach, from draws of the prior."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp

from ppl_backends.errors import PriorSamplingError
from ppl_backends.targets.integral import stated_integral
from ppl_backends.targets.protocol import BaseTarget, Evaluation

LARGEST_MISSED_SHARE = 0.02


def share_beyond(
    target: BaseTarget, q: Any, lowest: float, log_evidence: float, n: int, rng: np.random.Generator
) -> float | None:
    """Return the share of the evidence where the density q is below ``lowest``, from ``n`` draws of the prior.

    None without a prior that can be sampled. With the ``lowest`` log density of q at any of some points, this is a region
    without points. If the posterior has a share s of its mass there, the estimate has mean s, so that by Markov's inequality
    it exceeds a limit with probability at most s over that limit.
    """
    if not target.has_split:
        return None
    try:
        x = target.sample_prior(n, rng)
    except PriorSamplingError:
        return None
    beyond = x[q.log_density(x) < lowest]
    if not len(beyond):
        return 0.0
    evaluation = target.evaluate(beyond)
    assert isinstance(evaluation, Evaluation)
    integral = stated_integral(target)
    log_integral = 0.0 if integral is None else integral.log_integral
    return float(np.exp(logsumexp(evaluation.log_likelihood) + log_integral - log_evidence) / n)

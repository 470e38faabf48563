"""What draws of the prior say of an evidence: its share in regions without points, and whether it is too low."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.errors import PriorSamplingError
from ppl_backends.targets.integral import stated_integral
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation

LARGEST_MISSED_SHARE = 0.02
_ERRORS = 4.0  # standard errors by which the mean likelihood has to be higher
_MOST = 16  # times the draws, to decide it


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
    return float(_shares(target, beyond, log_evidence).sum() / n)


def reason_of_more(target: BaseTarget, log_evidence: float, error: float, n: int, rng: np.random.Generator) -> str:
    """Return the reason for distrust if the mean likelihood over draws of the prior is clearly above an evidence.

    Points with heavy tails reach another mode, with too few of them to show its mass; no region is without points then.
    There are ``n`` draws, and up to 16 times as many while the mean is more than a standard error above the evidence. The
    mean of a skewed likelihood is mostly too low, and has a large error where it is too high, so this side is safe.
    """
    if not target.has_split or target.is_estimated or not np.isfinite(log_evidence):
        return ""
    shares, relative = np.empty(0), error if np.isfinite(error) else 0.0
    while len(shares) < _MOST * n:
        try:
            x = target.sample_prior(max(n, len(shares)), rng)
        except PriorSamplingError:
            return ""
        shares = np.concatenate([shares, _shares(target, x, log_evidence)])
        ratio = float(shares.mean())
        total = float(np.hypot(shares.std(ddof=1) / len(shares) ** 0.5, ratio * relative))
        if ratio - 1.0 <= max(LARGEST_MISSED_SHARE, total):
            return ""
        if ratio - 1.0 > _ERRORS * total:
            return (
                f"the mean likelihood over draws of the prior is {ratio:.2f} ± {total:.2f} times this evidence, so a part of "
                "the posterior is missing, such as another mode"
            )
    return ""


def _shares(target: BaseTarget, x: Array, log_evidence: float) -> Array:
    """Return the likelihoods ``(n,)`` of draws ``x`` of the prior, as multiples of an evidence."""
    evaluation = target.evaluate(x)
    assert isinstance(evaluation, Evaluation)
    integral = stated_integral(target)
    log_integral = 0.0 if integral is None else integral.log_integral
    logs = np.nan_to_num(evaluation.log_likelihood, nan=-np.inf, posinf=-np.inf) + log_integral - log_evidence
    return np.exp(np.minimum(logs, 300.0))

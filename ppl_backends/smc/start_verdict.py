"""The verdict on a run, with the faults of the approximation that it started from."""

from __future__ import annotations

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.given import no_mode_reason
from ppl_backends.importance.beyond import reason_of_more
from ppl_backends.smc.health import Verdict
from ppl_backends.smc.path import TemperingPath

_PRIOR_POINTS = 2048


def with_start(verdict: Verdict, path: TemperingPath, rng: np.random.Generator) -> Verdict:
    """Return the verdict on a run; if it is not trusted, add the fault of the Gaussian that it started from.

    A run from a Gaussian without a mode is not trusted, nor one whose evidence draws of the prior show to be too low.
    """
    start = path.approximation
    if start is None:
        return verdict
    if verdict.trusted:
        found = verdict.evidence
        more = reason_of_more(path.target, found.log_evidence, found.standard_error, _PRIOR_POINTS, rng.spawn(1)[0])
        if more:
            verdict = verdict._replace(reasons=[*verdict.reasons, f"{more}: use initial='prior'"], replaced="")
    if not isinstance(start, GaussianApproximation) or not start.trouble:
        return verdict
    if not verdict.reasons and not no_mode_reason(start):
        return verdict
    said = f"the {start.method} approximation that it starts from is far from the posterior ({start.trouble})"
    replaced = "" if no_mode_reason(start) else verdict.replaced
    return verdict._replace(reasons=[*verdict.reasons, said], replaced=replaced)

"""Reasons not to trust a run of parallel tempering, each with its figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.lost_mode import LostMode, lost_mode_reason
from ppl_backends.importance.outside import reasons_of_undefined
from ppl_backends.results.convergence import (
    FEWEST_DRAWS,
    differing_chains,
    effective_in_moments,
    few_effective,
    rank_rhat,
)
from ppl_backends.smc.evidence import EvidenceEstimate
from ppl_backends.targets.protocol import Array
from ppl_backends.tempering.barrier import Barrier
from ppl_backends.tempering.evidence import SteppingStones
from ppl_backends.tempering.run import Run

_FEWEST_TUNED = 20  # scans, before which the states are still on their way from the reference
_FEWEST_TRIPS = 20  # round trips of all chains
_FEWEST_SWAPS = 0.03  # acceptance rate of the worst pair of temperatures
_UNSTABLE, _UNSTABLE_BY = 0.25, 1.0  # relative and absolute change of Λ between the halves of the draws
_DISAGREEMENT = 4.0  # standard errors


class Diagnostics(NamedTuple):
    """Figures of a run.

    Attributes
    ----------
    barrier, first_half, second_half : Barrier
        From the rejection rates of all draws, and of each half.
    round_trips : int
        Round trips of all chains.
    rhat, ess : ndarray (dim,)
        Of the draws; the smaller of the effective sample sizes of mean and standard deviation.
    stones : SteppingStones
    evidence : EvidenceEstimate
    lost : LostMode or None
    """

    barrier: Barrier
    first_half: Barrier
    second_half: Barrier
    round_trips: int
    rhat: Array
    ess: Array
    stones: SteppingStones
    evidence: EvidenceEstimate
    lost: LostMode | None


def reasons(run: Run, found: Diagnostics, names: Sequence[str], tune: int) -> list[str]:
    """Return the reasons not to trust draws and evidence after ``tune`` scans of tuning; empty if there are none."""
    said: list[str] = []
    if tune < _FEWEST_TUNED:
        said.append(
            f"{tune} scans of tuning, fewer than {_FEWEST_TUNED}, leave draws of the reference among those of the posterior: "
            "increase tune"
        )
    said += _of_swaps(run, found) + _of_draws(run, found, names) + _of_evidence(found)
    if found.lost is not None:
        said.append(lost_mode_reason(found.lost, names))
    return said + reasons_of_undefined(run.undefined, "at beta = 1")


def _of_swaps(run: Run, found: Diagnostics) -> list[str]:
    said, rate = [], 1.0 - found.barrier.rejection
    worst = int(np.argmin(rate))
    if rate[worst] < _FEWEST_SWAPS:
        said.append(
            f"{100 * rate[worst]:.3g} % of the swaps between beta = {run.betas[worst]:.3g} and "
            f"{run.betas[worst + 1]:.3g} are accepted: increase tune, or start from an approximation by initial="
        )
    if found.round_trips < _FEWEST_TRIPS:
        said.append(
            f"{found.round_trips} round trips between the reference and the posterior in {run.x.shape[1]} draws of all "
            f"chains, fewer than {_FEWEST_TRIPS}: increase draws"
        )
    first, second = found.first_half.total, found.second_half.total
    if abs(first - second) > max(_UNSTABLE_BY, _UNSTABLE * min(first, second)):
        said.append(
            f"the communication barrier is {first:.1f} in the first half of the draws and {second:.1f} in the second: "
            "increase tune"
        )
    return said


def _of_draws(run: Run, found: Diagnostics, names: Sequence[str]) -> list[str]:
    judged = len(run.x) > 1 and run.x.shape[1] >= FEWEST_DRAWS
    differ = differing_chains(found.rhat, names) if judged else ""
    few = few_effective(found.ess, names)
    return [f"{differ}: increase tune and draws"] * bool(differ) + [f"{few}: increase draws"] * bool(few)


def _of_evidence(found: Diagnostics) -> list[str]:
    said = found.evidence.reasons
    if not np.isfinite(found.evidence.standard_error):
        said.append("the log evidence has no finite standard error: increase tune and draws")
    gap, error = found.stones.gap
    if not abs(gap) <= _DISAGREEMENT * error + 1e-6:
        said.append(
            f"stepping stones from below give a log evidence {abs(gap):.2f} {'above' if gap > 0 else 'below'} this "
            f"one, {abs(gap) / max(error, 1e-300):.0f} times the error of the difference: increase tune and draws"
        )
    return said


def disagreement_by_mode(stones: EvidenceEstimate, bridges: EvidenceEstimate) -> str:
    """Return the warning about bridges in every mode that contradict the stepping stones."""
    error = float(np.hypot(stones.standard_error, bridges.standard_error))
    return (
        f"bridges in every mode give a log evidence of {bridges.log_evidence:.3f}, "
        f"{abs(stones.log_evidence - bridges.log_evidence) / error:.0f} times the error of the difference away from the "
        "stepping stones: increase tune and draws"
    )


def diagnose(run: Run, evidence: EvidenceEstimate, stones: SteppingStones, lost: LostMode | None) -> Diagnostics:
    """Return the figures that the verdict is based on."""
    half = run.rejection.shape[1] // 2
    whole, first, second = (
        Barrier(run.betas, part.mean(axis=(0, 1)))
        for part in (run.rejection, run.rejection[:, :half], run.rejection[:, half:])
    )
    ess = effective_in_moments(run.x)
    rhat = rank_rhat(run.x) if len(run.x) > 1 else np.full(run.x.shape[2], np.nan)
    return Diagnostics(whole, first, second, int(run.trips.sum()), rhat, ess, stones, evidence, lost)


@dataclass(frozen=True)
class Visits:
    """Visited states of a chain, in the form that the search for lost modes expects of a tempering run."""

    x: Array
    log_density: Array
    visited: Any

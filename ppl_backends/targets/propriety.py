"""Whether a prior is proper, seen from how its log density falls along the coordinate axes."""

from __future__ import annotations

import numpy as np

from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation

__all__ = ["improper_coordinate", "improper_note"]

_RADII = np.array([1e2, 1e4, 1e6, 1e8])


def improper_coordinate(target: BaseTarget, centre: Array | None = None) -> str | None:
    """Name of an unconstrained coordinate along which the log prior falls no faster than −log r, else None.

    Along a ray of coordinate j a proper density has to fall faster than 1/r. Between radii r₁ < r₂ the slope of the log
    density in log r tells: −2 for a Cauchy, steeper for all lighter tails, 0 for a flat prior, positive for a prior that
    is flat on a positive variable (whose Jacobian grows). A prior that is flat along an oblique direction only is not
    seen.

    Parameters
    ----------
    target : BaseTarget
        Its prior must be known apart.
    centre : ndarray (dim,), optional
        Where the other coordinates stay; zero by default.
    """
    centre = np.zeros(target.dim) if centre is None else centre
    rays = np.concatenate([np.eye(target.dim), -np.eye(target.dim)])
    points = centre + _RADII[:, None, None] * rays
    with np.errstate(all="ignore"):
        evaluation = target.evaluate(points.reshape(-1, target.dim))
    if not isinstance(evaluation, Evaluation):
        return None
    log_prior = evaluation.log_prior.reshape(len(_RADII), len(rays))
    for outer in range(len(_RADII) - 1, 0, -1):
        low, high = log_prior[outer - 1], log_prior[outer]
        known = (low > -np.inf) & (high > -np.inf)
        with np.errstate(invalid="ignore"):
            slope = np.where(known, high - low, -np.inf) / np.log(_RADII[outer] / _RADII[outer - 1])
        if (slope > -1.0 - 1e-3).any():
            return target.names[int(np.argmax(slope > -1.0 - 1e-3)) % target.dim]
    return None


def improper_note(target: BaseTarget) -> str | None:
    """What has to be said of this target's evidence, or nothing.

    That it is known up to a constant only, under an improper prior, and what the target itself says in ``evidence_note``:
    that there is a loss or a tempered likelihood where a probability of the data would be.
    """
    name = improper_coordinate(target) if target.has_split else None
    notes = [getattr(target, "evidence_note", None)]
    if name is not None:
        notes.append(f"up to a constant: the prior is improper along {name}")
    return "; ".join(note for note in notes if note) or None

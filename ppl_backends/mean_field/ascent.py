"""The loop of coordinate ascent: sweeps of exact updates that increase the evidence lower bound, from several starts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from ppl_backends.errors import ApproximationWarning, user_level
from ppl_backends.progress import ChainProgress
from ppl_backends.targets.protocol import Array


class Ascent(NamedTuple):
    """One run: the approximation, which ``sweep()`` improved in place, and the bound after each sweep."""

    state: Any
    trace: Array
    converged: bool


def ascend(
    state: Any,
    tolerance: float,
    max_sweeps: int,
    report: Callable[[int, float], None] | None = None,
) -> Ascent:
    """Sweep until the bound increases by less than ``tolerance`` times its magnitude, twice in a row."""
    trace: list[float] = []
    quiet = 0
    for sweep in range(max_sweeps):
        trace.append(state.sweep())
        if report is not None:
            report(sweep, trace[-1])
        if sweep:
            quiet = quiet + 1 if trace[-1] - trace[-2] < tolerance * (1 + abs(trace[-1])) else 0
        if quiet == 2:
            return Ascent(state, np.array(trace), True)
    return Ascent(state, np.array(trace), False)


def best_of(
    description: str,
    starts: Iterable[Any],
    n_starts: int,
    tolerance: float,
    max_sweeps: int,
    progressbar: bool,
) -> tuple[Ascent, Array]:
    """Return the run with the highest bound, and the bounds of all runs ``(n_starts,)``."""
    best: Ascent | None = None
    bounds = []
    with ChainProgress(description, 1, ("start", "sweep", "ELBO"), enabled=progressbar) as progress:
        for number, state in enumerate(starts):

            def report(sweep: int, bound: float, number: int = number) -> None:
                done = (number + min(1.0, (sweep + 1) / max_sweeps)) / n_starts
                progress.update(0, done, start=str(number + 1), sweep=str(sweep + 1), ELBO=f"{bound:.2f}")

            run = ascend(state, tolerance, max_sweeps, report)
            bounds.append(float(run.trace[-1]))
            if best is None or run.trace[-1] > best.trace[-1]:
                best = run
        progress.update(0, 1.0)
    assert best is not None
    return best, np.array(bounds)


def warn_unconverged(what: str, run: Ascent) -> None:
    """Warn that the largest number of sweeps was reached, with the last increase of the bound."""
    if not run.converged:
        rise = float(run.trace[-1] - run.trace[-2]) if len(run.trace) > 1 else float("nan")
        warnings.warn(
            f"{what}: not converged in {len(run.trace)} sweeps, the last of which raised the bound by {rise:.3g}: increase "
            "max_sweeps",
            ApproximationWarning,
            stacklevel=user_level(),
        )


def log_beta(concentrations: Array | Sequence[float]) -> Array:
    """Return the log normaliser Σ log Γ(αₖ) − log Γ(Σ αₖ) of Dirichlet distributions, over the last axis."""
    alpha = np.asarray(concentrations)
    return gammaln(alpha).sum(axis=-1) - gammaln(alpha.sum(axis=-1))

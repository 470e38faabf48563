"""Words for terms of a log density that are not finite."""

from __future__ import annotations

import numpy as np

from ppl_backends.targets.protocol import Array


def reason_of_potential(name: str, term: Array) -> str:
    """Return which value a Potential has, empty if it is finite."""
    values = np.ravel(term)
    wrong = np.flatnonzero(~np.isfinite(values))
    if not wrong.size:
        return ""
    hint = ": write a constraint into the prior, as by pm.Truncated" if values[wrong[0]] == -np.inf else ""
    return f"the Potential '{name}' is {values[wrong[0]]}{hint}"


def reason_of_variable(name: str, term: Array, observed: Array | None = None) -> str:
    """Return at which element the log density of a variable is not finite, and why if the observed value shows it.

    It is empty if all elements are finite; ``observed`` is None for free variables.
    """
    values = np.ravel(term)
    wrong = np.flatnonzero(~np.isfinite(values))
    if not wrong.size:
        return ""
    first, kind = wrong[0], "" if observed is None else "observed "
    hint = ", where a covariate may be NaN or infinite" if np.isnan(values[first]) else ""
    if observed is not None and observed.size == values.size:
        value = np.ravel(observed)[first]
        if not np.isfinite(value):
            hint = f", where the observed value is {value}: leave such rows out"
        elif values[first] == -np.inf:
            hint = f", where the observed value is {value}"
    where = f" at element {first} ({wrong.size} of {values.size})" if values.size > 1 else ""
    return f"the log density of {kind}variable '{name}' is {values[first]}{where}{hint}"

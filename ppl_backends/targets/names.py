"""Which unconstrained coordinates belong to a variable, by their names."""

from __future__ import annotations

from collections.abc import Sequence


def coordinates_by_variable(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the coordinates of each unconstrained variable: ``{"tau_log__": [0], "beta": [1, 2]}``."""
    found: dict[str, list[int]] = {}
    for j, name in enumerate(names):
        found.setdefault(name.partition("[")[0], []).append(j)
    return found


def coordinates_of(variable: str, names: Sequence[str]) -> list[int]:
    """Return the unconstrained coordinates of a variable: ``tau_log__`` of ``tau``, ``beta[0]``, ``beta[1]`` of ``beta``."""
    own = coordinates_by_variable(names).items()
    return sorted(j for name, found in own if name == variable or _transformed(name, variable) for j in found)


def _transformed(name: str, variable: str) -> bool:
    """Return whether a name is ``variable_transform__``, PyMC's form."""
    if not (name.startswith(f"{variable}_") and name.endswith("__")):
        return False
    transform = name[len(variable) + 1 : -2]
    return "_" not in transform or transform == "log_exp_m1"

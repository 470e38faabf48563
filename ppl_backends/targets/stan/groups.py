"""Groups of a result: the variables and data of a Stan program in each group, as in ArviZ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError

Names = str | Sequence[str] | Mapping[str, str]
"""Variables of a program: a name, several, or ``{name in the result: name in the program}``."""

GENERATED = ("posterior_predictive", "predictions", "log_likelihood")


@dataclass(frozen=True)
class Groups:
    """Options of ``arviz.from_cmdstanpy`` for a program: dims, coords, and groups other than ``posterior``.

    Parameters
    ----------
    coords, dims : mapping
        Labels of dimensions, and the dimensions of variables by their name in the result or in the program.
    posterior_predictive, predictions : str, sequence of str or mapping, optional
        Generated quantities that are draws of the observed data, or of data not observed. A mapping renames:
        ``{"y": "y_rep"}``.
    log_likelihood : str, sequence of str, mapping or False, optional
        Pointwise log likelihoods. By default ``log_lik`` if the program has it, under the name of the observed
        variable of its shape. False leaves it in ``posterior``.
    observed_data, constant_data : str, sequence of str or mapping, optional
        Names of data variables, or values by name. By default the data of the likelihood, if they are known, and all others.
    quantities : bool
        False leaves out transformed parameters and generated quantities, so that results have the parameters alone. A
        quantity with one value for each of a million rows does not fit in memory.
    """

    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    posterior_predictive: Names | None = None
    predictions: Names | None = None
    log_likelihood: Names | bool | None = None
    observed_data: Names | Mapping[str, Any] | None = None
    constant_data: Names | Mapping[str, Any] | None = None
    quantities: bool = True

    @property
    def generated(self) -> dict[str, dict[str, str]]:
        """Return group → name in the program → name in the result, for the named variables."""
        named = {group: _renamed(group, getattr(self, group)) for group in GENERATED}
        return {group: names for group, names in named.items() if names}

    @property
    def finds_log_likelihood(self) -> bool:
        """Return whether ``log_lik`` is the log likelihood unless said otherwise."""
        return self.log_likelihood is None or self.log_likelihood is True

    def check(self, variables: Collection[str], parameters: Collection[str], data: Collection[str], label: str) -> None:
        """Raise ModelError for names that the program does not have.

        Raises
        ------
        ModelError
            If a name is unknown, is a parameter, or is in two groups.
        """
        if self.generated and not self.quantities:
            raise ModelError(f"quantities=False leaves out the quantities that {', '.join(self.generated)} names")
        seen: dict[str, str] = {}
        known = [name for name in variables if name not in parameters]
        for group, names in self.generated.items():
            for name in names:
                if name not in known:
                    what = "is a parameter" if name in parameters else "is not a variable of the program"
                    raise ModelError(f"{label}: {group}={name!r} {what}; others are {', '.join(known) or 'none'}")
                if name in seen:
                    raise ModelError(f"{label}: {name!r} is in {seen[name]} and in {group}; name it once")
                seen[name] = group
        for group in ("observed_data", "constant_data"):
            for name in _data_names(getattr(self, group)):
                if name not in data:
                    raise ModelError(f"{label}: {group}={name!r} is not in the data ({', '.join(data)})")

    def data_of(
        self, group: str, arrays: Mapping[str, NDArray[Any]], default: Collection[str]
    ) -> dict[str, NDArray[Any]]:
        """Return the data of a group: the named ones, or ``default``."""
        given = getattr(self, group)
        if isinstance(given, Mapping):
            return {name: np.asarray(values) for name, values in given.items()}
        names = default if given is None else _data_names(given)
        return {name: array for name, array in arrays.items() if name in names}


def _renamed(group: str, given: Any) -> dict[str, str]:
    """Return name in the program → name in the result."""
    if given is None or isinstance(given, bool):
        return {}
    if isinstance(given, Mapping):
        found = {old: new for new, old in given.items()}
    else:
        found = {name: name for name in ([given] if isinstance(given, str) else given)}
    if not all(isinstance(name, str) for pair in found.items() for name in pair):
        raise ModelError(f"{group}={given!r}: expected a name, several, or a dict of new names to names of the program")
    return found


def _data_names(given: Any) -> list[str]:
    """Return the names of data variables, if names were given."""
    if given is None or isinstance(given, Mapping):
        return []
    return [given] if isinstance(given, str) else list(given)

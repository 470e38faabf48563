"""A compiled Stan program with data, in the form that the split and the search for factors use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.targets.blocks import available_cores
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.build import open_program
from ppl_backends.targets.stan.library import CompiledModel, open_model
from ppl_backends.targets.stan.observations import Rows, read_rows
from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.storage import stored_names
from ppl_backends.targets.stan.variables import collect, unconstrained_names

LOG_LIK = "log_lik"


class CompiledProgram:
    """A program, its data, and the library that evaluates it."""

    def __init__(
        self,
        source: StanProgram | Path,
        data: Mapping[str, Any],
        cores: int | None = None,
        rows: Mapping[str, Sequence[str]] | None = None,
        likelihood_data: Sequence[str] | None = None,
    ) -> None:
        self.label = source.label if isinstance(source, StanProgram) else Path(str(source)).name
        self.data, self.cores = dict(data), available_cores(cores)
        self.model: CompiledModel
        if isinstance(source, StanProgram):
            source, self.library, self.model = open_program(source, self.data)
        else:
            self.library, self.model = source, open_model(source, self.data, self.label)
        self.source = source
        self.rows: Rows | None = read_rows(rows, self.data, self.label) if rows else None
        self.likelihood_data = None if likelihood_data is None else tuple(likelihood_data)
        self.dim = self.model.dim

    def __reduce__(self) -> Any:
        """Return a recipe: another process takes the library from its cache."""
        return CompiledProgram, (self.source, self.data, self.cores, self.rows_option, self.likelihood_data)

    def with_data(self, data: Mapping[str, Any]) -> CompiledProgram:
        """Return the same program on other data."""
        return CompiledProgram(self.source, data, self.cores, self.rows_option, self.likelihood_data)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the coordinates, in the order in which they are stored."""
        return unconstrained_names(stored_names(self.model))

    @property
    def rows_option(self) -> dict[str, list[str]] | None:
        """Return ``rows`` as it was given."""
        return {self.rows.count: list(self.rows.axes)} if self.rows else None

    @property
    def program(self) -> StanProgram | None:
        """Return the program's text, if it was given."""
        return self.source if isinstance(self.source, StanProgram) else None

    def log_density(self, x: Array) -> Array:
        """Return the joint log density ``(n,)``."""
        return self.model.evaluate(x, False, self.cores)[0]

    def constrain(self, x: Array, seeds: NDArray[np.integer]) -> tuple[Array, int]:
        """Return all variables flat ``(n, columns)``, and the number of points where the program throws.

        Programs that draw no numbers get one seed, because a seed other than 0 takes Stan ten times as long.
        """
        fixed = self.program is not None and not self.program.draws_numbers
        return self.model.constrain(x, (0 * seeds if fixed else seeds).astype(np.uint32), True, self.cores)

    def values(self, x: Array, names: Sequence[str]) -> dict[str, Array]:
        """Return variables of the program at points ``(n, dim)``: name → ``(n, *shape)``."""
        flat, _ = self.constrain(x, np.arange(len(x)))
        return collect(flat, [variable for variable in self.model.variables if variable.name in names])

    @property
    def has_log_lik(self) -> bool:
        """Return whether there is a generated quantity ``log_lik``."""
        return any(variable.name == LOG_LIK for variable in self.model.variables)

    def log_lik(self, x: Array) -> Array:
        """Return the generated quantity ``log_lik`` ``(n, *shape)``."""
        return self.values(x, [LOG_LIK])[LOG_LIK]

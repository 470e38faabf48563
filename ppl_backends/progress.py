"""Progress bars in PyMC's style: one line a chain, with the figures of the method live."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

VALUE, BAR, ELAPSED = 7, 8, 8  # columns that a figure, the shortest bar and the clock take
PATIENCE = 1.0  # seconds before a bar is drawn, so that short calls draw none


class ChainProgress:
    """Progress of several chains; a context manager, which draws only if ``enabled``, on a terminal or in a notebook.

    The first update after a second draws the bars, so that shorter calls draw nothing.

    ``fields`` are names of figures beside the bar, in order; a narrow terminal leaves out those in the middle.
    """

    def __init__(self, description: str, chains: int, fields: Sequence[str], enabled: bool = True) -> None:
        self.description, self.chains, self.fields = description, chains, tuple(fields)
        console = Console()
        room = console.width - len(f"{description} · chain {chains}") - BAR - ELAPSED
        columns = [
            TextColumn("{task.description}", table_column=Column("Progress", no_wrap=True)),
            BarColumn(bar_width=24, table_column=Column("", ratio=1)),
            *(
                TextColumn("{task.fields[" + name + "]}", table_column=Column(name, no_wrap=True))
                for name in _fitting(self.fields, room)
            ),
            TimeElapsedColumn(table_column=Column("Elapsed")),
        ]
        shows = enabled and (console.is_terminal or console.is_jupyter)
        self._progress = Progress(*columns, console=console, disable=not shows, transient=False)
        self._tasks: list = []
        self._began, self._drawn = 0.0, False

    def __enter__(self) -> ChainProgress:
        self._began = perf_counter()
        blank: dict[str, Any] = dict.fromkeys(self.fields, "")
        for chain in range(self.chains):
            name = f"{self.description} · chain {chain}" if self.chains > 1 else self.description
            self._tasks.append(self._progress.add_task(name, total=1.0, **blank))
        return self

    def update(self, chain: int, completed: float, **figures: float | int | str) -> None:
        """Show that ``completed`` (a share in [0, 1]) of a chain is done, with its current figures."""
        shown: dict[str, Any] = {name: _short(name, value) for name, value in figures.items()}
        self._progress.update(self._tasks[chain], completed=completed, **shown)
        if not self._drawn and perf_counter() - self._began > PATIENCE:
            self._drawn = True
            self._progress.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._progress.stop()


def _fitting(fields: Sequence[str], room: int) -> list[str]:
    """Return the names that fit, the outer ones first."""
    kept = list(fields)
    while len(kept) > 1 and sum(len(name) + VALUE + 2 for name in kept) > room:
        kept.pop(len(kept) // 2)
    return kept


def _short(name: str, value: float | int | str) -> str:
    text = value if isinstance(value, str) else f"{value:.3g}"
    return f"{name} {text}"

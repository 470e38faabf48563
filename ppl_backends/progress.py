"""Progress bars in PyMC's style: one line per chain below a line of headings, with live figures of the method."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.table import Column, Table

VALUE, BAR, CLOCK = 7, 8, 9  # widths, in columns, of a figure, of the shortest bar and of a clock
PATIENCE = 1.0  # seconds before a bar is drawn; shorter calls draw none


class ChainProgress:
    """Progress of several chains; a context manager, which draws only if ``enabled``, on a terminal or in a notebook.

    The first update after one second draws the bars, so that shorter calls draw nothing. The clock of a chain starts
    when the chain starts. Chains that run one after another start when the previous chain ends.

    ``fields`` are headings of figures beside the bar, in order; a narrow terminal omits those in the middle.
    """

    def __init__(self, description: str, chains: int, fields: Sequence[str], enabled: bool = True) -> None:
        self.description, self.chains, self.fields = description, chains, tuple(fields)
        console = Console()
        room = console.width - len(f"{description} · chain {chains}") - BAR - 2 * CLOCK
        shown = (*_fitting(self.fields, room), "elapsed", "left")
        columns = [
            TextColumn("{task.description}", table_column=Column("", no_wrap=True)),
            BarColumn(bar_width=24, table_column=Column("", ratio=1)),
            *(
                TextColumn("{task.fields[" + name + "]}", table_column=Column(name, no_wrap=True, justify="right"))
                for name in shown
            ),
        ]
        shows = enabled and (console.is_terminal or console.is_jupyter)
        self._progress = _WithHeadings(*columns, console=console, disable=not shows, transient=False)
        self._tasks: list[TaskID] = []
        self._began, self._drawn = 0.0, False
        self._started: dict[int, float] = {}
        self._ended: dict[int, float] = {}

    def __enter__(self) -> ChainProgress:
        self._began = perf_counter()
        blank: dict[str, Any] = dict.fromkeys((*self.fields, "elapsed", "left"), "")
        for chain in range(self.chains):
            name = f"{self.description} · chain {chain}" if self.chains > 1 else self.description
            self._tasks.append(self._progress.add_task(name, total=1.0, **blank))
        return self

    def elapsed(self, chain: int) -> float:
        """Return the seconds since a chain started, or its run time if it has ended."""
        started = self._started.setdefault(chain, max(self._ended.values(), default=self._began))
        return self._ended.get(chain, perf_counter()) - started

    def update(self, chain: int, completed: float, **figures: float | int | str) -> None:
        """Show the completed share ``completed`` in [0, 1] of a chain, with its current figures."""
        seconds = self.elapsed(chain)
        if completed >= 1.0:
            self._ended.setdefault(chain, perf_counter())
        left = clock(seconds * (1.0 - completed) / completed) if completed > 0.0 else ""
        shown: dict[str, Any] = {k: v if isinstance(v, str) else f"{v:.3g}" for k, v in figures.items()}
        self._progress.update(self._tasks[chain], completed=completed, elapsed=clock(seconds), left=left, **shown)
        if not self._drawn and perf_counter() - self._began > PATIENCE:
            self._drawn = True
            self._progress.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._progress.stop()


class _WithHeadings(Progress):
    """Rich's progress display with a line of column headings."""

    def make_tasks_table(self, tasks: Any) -> Table:
        columns = [column for column in self.columns if isinstance(column, ProgressColumn)]
        headings = (column.get_table_column().copy() for column in columns)
        table = Table(*headings, box=box.SIMPLE_HEAD, padding=(0, 1))
        for task in tasks:
            table.add_row(*(column(task) for column in columns))
        return table


def clock(seconds: float) -> str:
    """Return seconds as text: 0:05, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _fitting(fields: Sequence[str], room: int) -> list[str]:
    """Return the names that fit; keep the outer ones first."""
    kept = list(fields)
    while len(kept) > 1 and sum(max(len(name), VALUE) + 2 for name in kept) > room:
        kept.pop(len(kept) // 2)
    return kept

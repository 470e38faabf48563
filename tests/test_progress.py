"""Progress bars: only on terminals, and only in calls that take longer than a second."""

import io

import pytest
from rich.console import Console

from ppl_backends import progress


@pytest.mark.parametrize(("terminal", "seconds", "drawn"), [(True, 2.0, True), (True, 0.5, False), (False, 2.0, False)])
def test_bars_are_drawn_on_terminals_in_calls_that_take_longer_than_a_second(terminal, seconds, drawn, monkeypatch):
    text, clock = io.StringIO(), [0.0]
    monkeypatch.setattr(progress, "Console", lambda: Console(file=text, force_terminal=terminal, width=100))
    monkeypatch.setattr(progress, "perf_counter", lambda: clock[0])
    with progress.ChainProgress("SMC", 2, ("ESS",)) as bars:
        bars.update(0, 0.5, ESS=100.0)
        assert not text.getvalue()
        clock[0] = seconds
        bars.update(1, 0.5, ESS=200.0)
    assert ("SMC · chain 1" in text.getvalue()) == drawn

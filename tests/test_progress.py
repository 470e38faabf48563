"""Progress bars: only on terminals, and only in calls that take longer than a second."""

import io
import re

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


def drawn(monkeypatch, calls, fields=("draws", "acceptance"), chains=2):
    """Return the text of a display whose updates come at given times."""
    text, clock = io.StringIO(), [0.0]
    monkeypatch.setattr(progress, "Console", lambda: Console(file=text, force_terminal=True, width=100))
    monkeypatch.setattr(progress, "perf_counter", lambda: clock[0])
    with progress.ChainProgress("HMC", chains, fields) as bars:
        for seconds, chain, done, figures in calls:
            clock[0] = seconds
            bars.update(chain, done, **figures)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue()).splitlines()


def test_figures_stand_under_headings_and_the_time_left_beside_the_time_elapsed(monkeypatch):
    lines = drawn(monkeypatch, [(30.0, 0, 0.25, {"draws": "250", "acceptance": 0.81})], chains=1)
    heading = next(line for line in lines if "elapsed" in line)
    assert heading.split() == ["draws", "acceptance", "elapsed", "left"]
    row = next(line for line in lines if line.strip().startswith("HMC"))
    assert row.split()[-4:] == ["250", "0.81", "0:30", "1:30"]


def test_the_clock_of_a_chain_starts_when_the_chain_before_has_ended(monkeypatch):
    lines = drawn(monkeypatch, [(60.0, 0, 1.0, {}), (75.0, 1, 0.5, {}), (75.0, 0, 1.0, {})])
    last = [line for line in lines if line.strip().startswith("HMC · chain 1")][-1]
    assert last.split()[-2:] == ["0:15", "0:15"]
    assert any("chain 0" in line and line.split()[-2:] == ["1:00", "0:00"] for line in lines[-4:])


def test_the_clocks_of_chains_that_run_together_start_together(monkeypatch):
    lines = drawn(monkeypatch, [(20.0, 0, 0.5, {}), (20.0, 1, 0.5, {})])
    assert all(line.split()[-2:] == ["0:20", "0:20"] for line in lines if "chain" in line and "0:20" in line)

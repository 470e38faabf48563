"""Fixtures for tempering."""

import pytest

from ppl_backends.smc import bridge_sampling, coordinates


@pytest.fixture
def no_change_of_variables(monkeypatch):
    """Let no run find a change of variables or heavy tails: local moves meet funnels as they are."""
    for module in (coordinates, bridge_sampling):
        monkeypatch.setattr(module, "find_noncentring", lambda *_: None)
    monkeypatch.setattr(coordinates, "tails_of_points", lambda *_: None)

"""A second run, finer than the first, where the first shows that it was too coarse.

Where modes separate, one that has little mass there and much later on is held by few chains, and particles of the others do
not cross to it. A step that keeps half of all particles may keep next to none of those. No figure shows it then; at the end
the means rest on few lineages, or differ between runs. So the second run begins four times as many chains at every
temperature, each of as many moves, and keeps nine tenths of the particles at every step.
"""

from __future__ import annotations

from dataclasses import replace

from ppl_backends.smc.sampler import Settings
from ppl_backends.smc.schedule import Schedule

__all__ = ["finer"]

_SHARE = 0.9  # of the particles, which a step keeps
_MORE_CHAINS, _SHORTEST = 4, 2  # times as many, and states that are kept of each at least


def finer(settings: Settings) -> Settings:
    """Return the settings of a finer run, where the ladder was left to the run."""
    changed, length, moves = settings._replace(schedule=Schedule(fraction=_SHARE)), settings.len_chain, settings.moves
    if length is None:
        return changed
    moves = replace(moves, minimum=min(max(moves.minimum, length - 1), moves.maximum))
    return changed._replace(len_chain=max(_SHORTEST, length // _MORE_CHAINS), moves=moves)

"""Checkpoints: a run is saved so that another process can continue it, with the result that it would have had.

A checkpoint is a small file that identifies the call (settings, digests of the model, seed, the fitted approximation),
and one file per chain beside it with the chain's :class:`~ppl_backends.smc.core.SMCState`. Every file is written under
another name, flushed to the disk and then renamed, so that at any moment each of them is complete: the last version or
the one before.

The files contain no code: they hold arrays and JSON text (:mod:`~ppl_backends.smc.codec`). The checksum of a file must
match before anything is read from it; the settings and the digests of program and data must match before anything is
used. A chain's file names the call and the chain that it belongs to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.approximations.variational.fit import VariationalApproximation
from ppl_backends.errors import CheckpointError, ModelError
from ppl_backends.files import check_writable, reason_of, write_atomically
from ppl_backends.importance.tails import PointTails
from ppl_backends.kernels.metric import SplitMetric
from ppl_backends.kernels.noncentring import NestedNonCentring, NonCentring
from ppl_backends.kernels.particle.regeneration import KeptPaths
from ppl_backends.kernels.tuning import (
    AcceptanceTuning,
    BuchholzPretuning,
    CycleParameters,
    CycleTuning,
    FearnheadTaylor,
    FirstPairs,
    StepParameters,
    Uneven,
)
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.smc.codec import DamagedError, pack, unpack
from ppl_backends.smc.coordinates import Coordinates
from ppl_backends.smc.core import SMCState
from ppl_backends.smc.evidence import LineageVariance, PathSampling
from ppl_backends.smc.filters import FilterParticles, FilterSizes, WithoutExchanges
from ppl_backends.smc.ladder import StageParticles
from ppl_backends.smc.moves import MoveSettings, MoveSummary, PlannedMoves
from ppl_backends.smc.path import PathState, Power, TemperingPath
from ppl_backends.smc.records import Ladder, Plan, Stage, Visited, WeightedPoints
from ppl_backends.smc.regeneration import BothTunings
from ppl_backends.smc.rows import Block, Prequential, Rows, RowState
from ppl_backends.smc.schedule import Schedule
from ppl_backends.smc.start import StartFigures
from ppl_backends.targets.digest import digest_of_approximation
from ppl_backends.targets.protocol import BaseTarget
from ppl_backends.targets.state_space.filter import FilterState

_FORMAT = 6
# The data needed to draw from a start, to evaluate it and to judge it, by kind; EP's is a Gaussian.
_OF_ANY = ("names", "method", "converged", "log_evidence", "diagnostics", "trouble")
_GAUSSIAN = ("mean", "factor", "directions", "upper", "accuracy", *_OF_ANY)
_MIXTURE = ("weights", "means", "_factors", "_roots", "_log_peak", "mean", "_cov", *_OF_ANY)
_STARTS: dict[type, tuple[str, ...]] = {
    GaussianApproximation: _GAUSSIAN,
    VariationalApproximation: _GAUSSIAN,
    MixtureApproximation: _MIXTURE,
}
_TYPES: tuple[type, ...] = (
    *(SMCState, StartFigures, PathState, Power, LineageVariance, PathSampling, Stage, MoveSummary),
    *(
        Ladder,
        StageParticles,
        WeightedPoints,
        Visited,
        Plan,
        PlannedMoves,
        Coordinates,
        NonCentring,
        NestedNonCentring,
        PointTails,
        Gaussian,
        SplitMetric,
    ),
    *(StepParameters, CycleParameters, FirstPairs, Uneven, Schedule, MoveSettings),
    *(AcceptanceTuning, CycleTuning, FearnheadTaylor, BuchholzPretuning),
    *(RowState, Rows, Block, Prequential, FilterParticles, FilterState, FilterSizes, WithoutExchanges),
    *(KeptPaths, BothTunings),
    *_STARTS,
)


@dataclass(frozen=True)
class ChainStore:
    """The file of one chain; ``run`` is the checksum of the file of the call that it belongs to.

    ``types`` may occur in it in addition to those of all runs.
    """

    path: Path
    run: str
    chain: int
    types: tuple[type, ...] = ()

    def load(self) -> SMCState | None:
        """Return the chain as last saved, or None; refuse a damaged file, or a file of another chain or call."""
        if not self.path.exists():
            return None
        content = _read(self.path, "chain", "its chain then starts again", self.types)
        if content["run"] != self.run:
            raise ModelError(f"checkpoint {str(self.path)!r} belongs to another run; remove it, or give another file")
        if content["chain"] != self.chain:
            raise ModelError(
                f"checkpoint {str(self.path)!r} holds chain {content['chain']} in place of chain {self.chain}; "
                "restore the file names"
            )
        return content["progress"]

    def save(self, progress: SMCState) -> None:
        """Replace the file."""
        content = {"format": _FORMAT, "kind": "chain", "run": self.run, "chain": self.chain, "progress": progress}
        try:
            write_atomically(self.path, pack(content, _TYPES + self.types))
        except OSError as error:
            kept = progress.stages[-2].beta if len(progress.stages) > 1 else 0.0
            raise CheckpointError(
                f"checkpoint {str(self.path)!r} could not be written ({reason_of(error)}); it still holds the "
                f"chain at beta {kept:.3g}: make room and call again with the same checkpoint= to continue from there"
            ) from error


@dataclass(frozen=True)
class Checkpoint:
    """All files of one call; ``run`` is the checksum of the first, empty before :meth:`begin`.

    ``seed`` is the entropy of all generators. ``initial`` is the start of the path, as given (``named`` by a name) or
    fitted. ``start`` identifies the start: it is the digest of what was given, and the shares of Student t's.
    ``types`` belong to a family of models; its chains hold them in addition to the types of all runs.
    """

    path: Path
    settings: Mapping[str, Any]
    seed: tuple[int, ...]
    initial: Any
    named: bool
    start: tuple[str, ...] = ()
    run: str = ""
    types: tuple[type, ...] = ()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike,
        target: BaseTarget,
        settings: Mapping[str, Any],
        initial: Any,
        random_seed: Any,
        types: tuple[type, ...] = (),
    ) -> Checkpoint:
        """Return the checkpoint of that name, or a new one; refuse one of another model or of other ``settings``.

        A seed of None takes the seed of an existing checkpoint.
        """
        path, named = Path(path), isinstance(initial, str)
        settings = {**settings, "initial": initial if named else "approximation"}
        settings |= {"names of the parameters": tuple(target.names), **target.digests()}
        if not path.exists():
            new = cls(path, settings, _entropy(random_seed), initial, named, types=types)
            new._check_free(settings["chains"])
            return new
        content = _read(path, "call", "the run then starts again")
        stored = content["settings"]
        differing = [name for name in {**settings, **stored} if not _same(stored, settings, name)]
        if random_seed is not None and not differing and _entropy(random_seed) != content["seed"]:
            differing = ["random_seed"]
        if differing:
            raise _of_another_run(path, differing)
        fitted = content["approximation"]
        if fitted is not None:
            initial = fitted.replaced(target=target)
        found = cls(path, settings, content["seed"], initial, named, content["start"], _checksum_of(path), types)
        for chain in range(settings["chains"]):
            found.chain(chain).load()  # fail now rather than after the chains before it have run
        return found

    def begin(self, route: TemperingPath) -> Checkpoint:
        """Return the checkpoint with its file written if it did not exist; refuse one that has another start.

        If ``route`` starts from a fitted approximation of a known kind, the file holds it.
        """
        approximation = route.approximation
        stored = _portable(approximation) if self.named else None
        given = "" if approximation is None or stored is not None else digest_of_approximation(approximation)
        start = (given, "" if route.tails is None else str(route.tails.shares.tolist()))
        if self.run:
            if start != self.start:
                raise _of_another_run(self.path, ["initial"])
            return self
        content = {
            "format": _FORMAT,
            "kind": "call",
            "settings": dict(self.settings),
            "seed": self.seed,
            "start": start,
            "approximation": stored,
        }
        try:
            write_atomically(self.path, pack(content, _TYPES))
        except OSError as error:
            raise _not_written(self.path, error) from error
        return replace(self, start=start, run=_checksum_of(self.path))

    def chain(self, index: int) -> ChainStore:
        """Return the store of one chain."""
        return ChainStore(self.path.with_name(f"{self.path.name}.chain{index}"), self.run, index, self.types)

    def _check_free(self, chains: int) -> None:
        """Raise an error if the files cannot be written, or belong to chains of another run."""
        try:
            check_writable(self.path)
        except OSError as error:
            raise _not_written(self.path, error) from error
        for chain in range(chains):
            left = self.chain(chain).path
            if left.exists():
                raise ModelError(f"checkpoint {str(left)!r} belongs to another run; remove it, or give another file")


def _read(path: Path, kind: str, removed: str, types: tuple[type, ...] = ()) -> dict[str, Any]:
    """Return the content of a file; ``removed`` says what happens if the file is removed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"checkpoint {str(path)!r} could not be read ({reason_of(error)})") from None
    try:
        found = unpack(content, _TYPES + types)
        if found["format"] != _FORMAT or found["kind"] != kind:
            raise ValueError(f"format {found['format']}, file of a {found['kind']}")
        return found
    except DamagedError:
        if content[:2] == b"PK":
            message = f"checkpoint {str(path)!r} is damaged: its checksum does not match; remove it, {removed}"
            raise ModelError(message) from None
        raise ModelError(f"{str(path)!r} is not a checkpoint; give another file") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{str(path)!r} is not a checkpoint that this version can read ({error})") from None


def _checksum_of(path: Path) -> str:
    return path.read_bytes()[-64:].decode()


def _of_another_run(path: Path, differing: list[str]) -> ModelError:
    return ModelError(
        f"checkpoint {str(path)!r} belongs to another run ({', '.join(differing)} differ); "
        "repeat the call that began it, or give another file"
    )


def _not_written(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"checkpoint {str(path)!r} could not be written ({reason_of(error)})")


def _portable(approximation: Any) -> Any:
    """Return a start as arrays and figures, without its target; None for an unknown kind."""
    known = [kind for kind in type(approximation).__mro__ if kind in _STARTS]
    if not known:
        return None
    plain: Any = object.__new__(known[0])
    vars(plain).update({name: vars(approximation)[name] for name in _STARTS[known[0]]})
    return plain


def _same(stored: Mapping[str, Any], given: Mapping[str, Any], name: str) -> bool:
    return name in stored and name in given and bool(stored[name] == given[name])


def _entropy(random_seed: Any) -> tuple[int, ...]:
    """Return a seed as integers that can be stored."""
    if isinstance(random_seed, np.random.Generator):
        return tuple(random_seed.integers(0, 2**63, size=4).tolist())
    if isinstance(random_seed, np.random.SeedSequence):
        return tuple(int(word) for word in random_seed.generate_state(4, np.uint64))
    if random_seed is None:
        return tuple(int(word) for word in np.random.SeedSequence().generate_state(4, np.uint64))
    try:
        return tuple(int(word) for word in np.atleast_1d(random_seed))
    except (TypeError, ValueError):
        raise ModelError(f"random_seed={random_seed!r}: expected a non-negative integer or a NumPy generator") from None

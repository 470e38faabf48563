"""Checkpoints: a run survives the process it runs in, and goes on as if nothing had happened.

A checkpoint is a small file with what identifies the call (settings, fingerprint of the density, seed, fitted
approximation) and, beside it, a file per chain with its :class:`~ppl_backends.smc.sampler.Progress`. Every file is
written anew under another name, flushed to the disk and then renamed, so that at any moment each of them is whole: the
last one or the one before.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from ppl_backends.errors import CheckpointError, ModelError
from ppl_backends.smc.sampler import Progress
from ppl_backends.targets.protocol import BaseTarget

__all__ = ["ChainStore", "Checkpoint", "fingerprint", "write_atomically"]

_FORMAT = 1


@dataclass(frozen=True)
class ChainStore:
    """The file of one chain.

    Attributes
    ----------
    path : Path
    run_id : tuple of int
        Seed of the call that the chain belongs to.
    """

    path: Path
    run_id: tuple[int, ...]

    def load(self) -> Progress | None:
        """The chain as last saved; None where it never was."""
        if not self.path.exists():
            return None
        content = _read(self.path)
        if content["run_id"] != self.run_id:  # left behind by an earlier call that had this name
            return None
        return content["progress"]

    def save(self, progress: Progress) -> None:
        """Replace the file."""
        content = {"format": _FORMAT, "run_id": self.run_id, "progress": progress}
        try:
            write_atomically(self.path, pickle.dumps(content, protocol=5))
        except OSError as error:
            kept = progress.stages[-2].exponent if len(progress.stages) > 1 else 0.0
            raise CheckpointError(
                f"checkpoint {str(self.path)!r} could not be written ({error.strerror or error}); it still holds the "
                f"chain at exponent {kept:.3g}: make room and call again with the same checkpoint= to go on from there"
            ) from error


@dataclass(frozen=True)
class Checkpoint:
    """All files of one call.

    Attributes
    ----------
    path : Path
    settings : mapping
    seed : tuple of int
        Entropy that every generator of the call derives from.
    initial : object
        What the path starts from: as given, or as fitted the first time.
    """

    path: Path
    settings: Mapping[str, Any]
    seed: tuple[int, ...]
    initial: Any

    @classmethod
    def open(cls, path: str | os.PathLike, settings: Mapping[str, Any], initial: Any, random_seed: Any) -> Checkpoint:
        """The checkpoint of that name, or a new one.

        Parameters
        ----------
        path : path-like
        settings : mapping
            What a call must have in common with the one that began it.
        initial : object
        random_seed : int, SeedSequence, Generator or None
            None takes up the seed of a checkpoint that exists.

        Raises
        ------
        ModelError
            If the checkpoint belongs to another model or other settings.
        """
        path = Path(path)
        if not path.exists():
            return cls(path, settings, _entropy(random_seed), initial)
        content = _read(path)
        differing = [name for name, value in settings.items() if not _same(content["settings"].get(name), value)]
        if random_seed is not None and not differing and _entropy(random_seed) != content["seed"]:
            differing = ["random_seed"]
        if differing:
            raise ModelError(
                f"checkpoint {str(path)!r} belongs to another run ({', '.join(differing)} differ); "
                "give the call that began it, or another file"
            )
        fitted = cloudpickle.loads(content["approximation"])
        return cls(path, settings, content["seed"], initial if fitted is None else fitted)

    def begin(self, approximation: Any) -> None:
        """Write the file that identifies the call, unless it is there; ``approximation`` is what the path starts from."""
        if self.path.exists():
            return
        content = {
            "format": _FORMAT,
            "settings": dict(self.settings),
            "seed": self.seed,
            "approximation": cloudpickle.dumps(approximation),
        }
        try:
            write_atomically(self.path, pickle.dumps(content, protocol=5))
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {str(self.path)!r} could not be written ({error.strerror or error})"
            ) from error

    def chain(self, index: int) -> ChainStore:
        """The store of one chain."""
        return ChainStore(self.path.with_name(f"{self.path.name}.chain{index}"), self.seed)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by new content so that it is never seen, or left, half written."""
    part = path.with_name(f"{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the rename itself is on the disk once the folder is
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def fingerprint(target: BaseTarget, *densities: Any) -> dict[str, Any]:
    """What tells one model from another: its coordinates, and log densities at fixed points.

    Parameters
    ----------
    target : BaseTarget
    *densities : objects with ``log_density(x)``
        Such as the approximation that a path starts from.
    """
    points = np.random.default_rng(0).normal(scale=0.3, size=(4, target.dim))
    values = np.concatenate([density.log_density(points) for density in (target, *densities)])
    return {"names of the parameters": tuple(target.names), "log density": values}


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = pickle.load(file)
        if content["format"] != _FORMAT:
            raise KeyError("format")
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, AttributeError, ImportError, OSError) as error:
        raise ModelError(f"{str(path)!r} is no checkpoint that this version can read ({error})") from None
    return content


def _same(stored: Any, given: Any) -> bool:
    """Equality; arrays up to rounding, since another machine may evaluate a density otherwise in the last digits."""
    if isinstance(stored, np.ndarray) and isinstance(given, np.ndarray):
        return stored.shape == given.shape and bool(np.allclose(stored, given, rtol=1e-7, atol=1e-9))
    return type(stored) is type(given) and bool(stored == given)


def _entropy(random_seed: Any) -> tuple[int, ...]:
    """A seed as integers that can be stored."""
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

"""Read text files, write files atomically, and check before a long run that a file can be written."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from ppl_backends.errors import ModelError


def read_text(path: Path) -> str:
    """Return the text of a file; raise ModelError if the file is not UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not a text file in UTF-8 (byte {error.start}); give another file") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by new content; readers and crashes never see a partly written file."""
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
    if os.name == "posix":  # the rename is on the disk once the folder is synced
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_writable(path: Path) -> None:
    """Raise OSError if a file of that name cannot be written; leave no file behind."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".writable-"):
        pass


def reason_of(error: OSError) -> str:
    """Return the system's message for an error, such as ``No space left on device``, in one line."""
    return error.strerror or " ".join(str(error).split()) or type(error).__name__

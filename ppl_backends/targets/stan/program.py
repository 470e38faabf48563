"""A Stan program as text, and stanc's information on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ppl_backends.errors import CompilationError, ModelError
from ppl_backends.files import read_text
from ppl_backends.targets.stan.toolchain import Toolchain, find_toolchain


@dataclass(frozen=True)
class StanProgram:
    """The text of a Stan program with the folders of its ``#include`` files."""

    name: str  # name of the program in messages; a file's name without its suffix
    code: str  # the program text. If it came from a file it is a snapshot: later edits of the file do not change it
    path: Path | None = None  # the file it came from
    include_paths: tuple[str, ...] = ()  # folders searched for ``#include`` files
    optimize: bool = True

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], include_paths: tuple[str, ...] = ()) -> StanProgram:
        """Return the program in a ``.stan`` file; its folder is searched for includes as well."""
        path = Path(path).expanduser()
        if not path.is_file():
            raise ModelError(f"{path}: no such Stan program")
        return cls(path.stem, read_text(path), path, (*include_paths, str(path.resolve().parent)))

    @property
    def label(self) -> str:
        """Return the name of the file in messages of stanc and of the model."""
        return f"{self.name}.stan"

    @property
    def identifier(self) -> str:
        """Return the program's name as a C++ identifier."""
        return re.sub(r"\W", "_", f"{self.name}_model")

    def stanc(self, *flags: str, toolchain: Toolchain | None = None) -> subprocess.CompletedProcess[str]:
        """Run stanc with ``flags`` on the program."""
        toolchain = toolchain or find_toolchain()
        with tempfile.TemporaryDirectory(prefix="ppl-backends-") as folder:
            source = Path(folder) / self.label
            source.write_text(self.code, encoding="utf-8")
            command = [str(toolchain.stanc), f"--name={self.identifier}", f"--filename-in-msg={self.label}"]
            # stanc writes its flags into the C++: without includes a program is the same in every folder
            if self.include_paths and "#include" in self.code:
                command.append("--include-paths=" + ",".join(self.include_paths))
            output = subprocess.run([*command, *flags, str(source)], capture_output=True, text=True, check=False)
        if output.returncode != 0:
            raise CompilationError(f"stanc: {(output.stderr or output.stdout).strip()}")
        return output

    @cached_property
    def info(self) -> dict[str, Any]:
        """Return the output of ``stanc --info``: inputs, parameters, quantities, functions and included files."""
        return dict(json.loads(self.stanc("--info").stdout))

    @cached_property
    def draws_numbers(self) -> bool:
        """Return whether generated quantities may draw random numbers, for which functions have names with _rng."""
        return "_rng" in self.code or any(name.endswith("_rng") for name in self.info["functions"])


def looks_like_code(text: str) -> bool:
    """Return whether a string is program text and not a path."""
    return "\n" in text or re.search(r"\b(model|parameters|generated quantities|data|functions)\s*\{", text) is not None

"""Find the tools that turn a Stan program into a library: stanc, Stan's headers and libraries, and a C++ compiler.

Sources are tried in this order, and :func:`report` lists their content:

1. an explicit folder, in the environment variable ``PPL_BACKENDS_STAN``: an installed CmdStan, a BridgeStan source folder,
   or the folder of the ``httpstan`` package;
2. CmdStan, if ``cmdstanpy.cmdstan_path()`` finds one;
3. the ``httpstan`` wheel, which contains stanc and every header and library that Stan needs
   (``pip install ppl-backends[stan]``).
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ppl_backends.errors import CompilationError

ENVIRONMENT_VARIABLE = "PPL_BACKENDS_STAN"
TBB_NAMES = ("libtbb.so.2", "libtbb.so", "libtbb.dylib", "tbb.dll")
HOW_TO_INSTALL = "install one with: pip install ppl-backends[stan]"


@dataclass(frozen=True)
class Toolchain:
    """A stanc binary and the headers and libraries that its C++ needs."""

    source: str  # where it was found: the environment variable, ``"CmdStan"`` or ``"httpstan"``
    root: Path
    stanc: Path
    version: str  # stan's version, such as ``"2.35.0"``
    includes: tuple[Path, ...]  # header folders, in search order
    tbb: Path  # the TBB shared library
    archives: tuple[Path, ...]  # static SUNDIALS libraries, which ODE and DAE solvers need


class Compiler(NamedTuple):
    """A C++ compiler: the command's words and the first line of its ``--version``."""

    command: tuple[str, ...]
    version: str


class Finding(NamedTuple):
    """One line of :func:`report`."""

    name: str
    found: bool
    detail: str


def find_toolchain(path: str | os.PathLike[str] | None = None) -> Toolchain:
    """Return the first usable Stan toolchain; see the module docstring for the order."""
    if path is not None:
        return _open_folder(Path(path), "explicit path")
    return _discover(os.environ.get(ENVIRONMENT_VARIABLE), os.environ.get("CMDSTAN"))


@cache
def _discover(explicit: str | None, cmdstan: str | None) -> Toolchain:
    """Search, once for each setting of the environment variables that affect it."""
    if explicit:
        return _open_folder(Path(explicit), ENVIRONMENT_VARIABLE)
    for _, locate in _SOURCES:
        try:
            return locate()
        except CompilationError:
            continue
    raise CompilationError(f"no Stan toolchain found (CmdStan, or the httpstan package); {HOW_TO_INSTALL}")


def find_compiler() -> Compiler:
    """Return the C++ compiler: the environment variable CXX, else g++, clang++ or c++ on the path."""
    return _probe_compiler(os.environ.get("CXX"))


@cache
def _probe_compiler(setting: str | None) -> Compiler:
    candidates = [setting] if setting else ["g++", "clang++", "c++"]
    for candidate in candidates:
        words = tuple(shlex.split(candidate))
        if words and shutil.which(words[0]):
            output = subprocess.run([*words, "--version"], capture_output=True, text=True, check=False)
            if output.returncode == 0:
                return Compiler(words, output.stdout.splitlines()[0])
    if setting:
        raise CompilationError(f"the C++ compiler CXX={setting!r} does not run; unset CXX or set it to a C++ compiler")
    raise CompilationError(
        "no C++ compiler found; install one (Debian: apt install g++; macOS: xcode-select --install)"
    )


def _cmdstan() -> Toolchain:
    """Return CmdStan as found by cmdstanpy."""
    try:
        import cmdstanpy

        root = cmdstanpy.cmdstan_path()
    except ImportError as error:
        raise CompilationError("the cmdstanpy package is not installed") from error
    except ValueError as error:
        raise CompilationError("cmdstanpy finds no CmdStan installation") from error
    return _open_folder(Path(root), "CmdStan")


def _httpstan() -> Toolchain:
    """Return the httpstan wheel; the package itself is not imported."""
    spec = importlib.util.find_spec("httpstan")
    if spec is None or spec.origin is None:
        raise CompilationError(f"the httpstan package is not installed; {HOW_TO_INSTALL}")
    return _open_folder(Path(spec.origin).parent, "httpstan")


_SOURCES: tuple[tuple[str, Callable[[], Toolchain]], ...] = (("CmdStan", _cmdstan), ("httpstan", _httpstan))


def _open_folder(root: Path, source: str) -> Toolchain:
    """Return a toolchain from a folder with the layout of httpstan, or of CmdStan and BridgeStan."""
    root = root.expanduser().resolve()
    if (root / "include" / "stan").is_dir():
        stanc, includes = root / "stanc", [root / "include"]
        libraries, archives = root / "lib", (root / "lib").glob("libsundials_*.a")
    else:
        name = "stanc.exe" if platform.system() == "Windows" else "stanc"
        stanc, math = root / "bin" / name, root / "stan" / "lib" / "stan_math"
        patterns = ("eigen_*", "boost_*", "sundials_*/include", "sundials_*/src/sundials", "tbb_*/include")
        vendored = [folder for pattern in patterns for folder in sorted((math / "lib").glob(pattern))]
        rapidjson = sorted((root / "stan" / "lib").glob("rapidjson_*"))
        includes = [root / "stan" / "src", math, *rapidjson, *vendored]
        libraries, archives = math / "lib" / "tbb", (math / "lib").glob("sundials_*/lib/libsundials_*.a")
    version = _header_version(includes)
    tbb = next((libraries / name for name in TBB_NAMES if (libraries / name).is_file()), None)
    missing = [
        what
        for what, found in (("stanc", stanc.is_file()), ("stan/version.hpp", version), ("the built TBB library", tbb))
        if not found
    ]
    if missing or version is None or tbb is None:
        raise CompilationError(f"{source}: {root} holds no Stan toolchain (without {missing[0]}); {HOW_TO_INSTALL}")
    return Toolchain(source, root, stanc, version, tuple(includes), tbb, tuple(sorted(archives)))


def _header_version(includes: list[Path]) -> str | None:
    """Return Stan's version from its header."""
    for folder in includes:
        header = folder / "stan" / "version.hpp"
        if header.is_file():
            numbers = dict(re.findall(r"#define STAN_(MAJOR|MINOR|PATCH) +(\d+)", header.read_text()))
            return ".".join(numbers.get(part, "0") for part in ("MAJOR", "MINOR", "PATCH"))
    return None


def report() -> list[Finding]:
    """Return the components found, in the order of the search, for ``ppl-backends doctor``."""
    explicit = os.environ.get(ENVIRONMENT_VARIABLE)
    findings = (
        [_try(ENVIRONMENT_VARIABLE, lambda: _open_folder(Path(explicit), ENVIRONMENT_VARIABLE))]
        if explicit
        else [Finding(ENVIRONMENT_VARIABLE, False, "not set")]
    )
    findings += [_try(name, locate) for name, locate in _SOURCES]
    findings.append(_try("C++ compiler", find_compiler))
    findings.append(_try("in use", find_toolchain))
    return findings


def _try(name: str, locate: Callable[[], Toolchain | Compiler]) -> Finding:
    try:
        found = locate()
    except CompilationError as error:
        return Finding(name, False, str(error))
    if isinstance(found, Compiler):
        return Finding(name, True, f"{shlex.join(found.command)}: {found.version}")
    return Finding(name, True, f"{found.source}, Stan {found.version} in {found.root}")

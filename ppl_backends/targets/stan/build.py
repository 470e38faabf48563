"""Build a shared library from a Stan program: stanc, the C++ compiler, and a cache with keys from the content.

The key is a hash of everything that the library depends on, in two parts. The first is of the program: the C++ that
stanc writes (with the program's includes), Stan's version, the compiler's flags, and the C++ of our interface
(``shim.cpp``, compiled once and linked to every program). The second is of the machine: the compiler and the folders
of Stan's headers. Without a compiler, a library of the program from any compiler is used. Concurrent builds of one
program wait for each other on a lock file, and a finished library gets its name by an atomic rename.

Compiling a small program takes about 20 s, of which 10 s are for reading Stan's headers. With the environment variable
``PPL_BACKENDS_STAN_PRECOMPILE=1`` the headers are compiled once (30 s, 0.8 GB in the cache; g++ only), and every later
build takes half the time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from ppl_backends.errors import CompilationError
from ppl_backends.files import reason_of, write_atomically
from ppl_backends.targets.stan.library import CompiledModel, open_model
from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.toolchain import Compiler, Toolchain, find_compiler, find_toolchain

SHIM = Path(__file__).with_name("shim.cpp")
ARRAYS = Path(__file__).with_name("arrays.hpp")
MODEL_HEADER = "#include <stan/model/model_header.hpp>\n"
# -O1 of stanc saves a quarter of the evaluation time; -O2 and -O3 of the compiler gain little over -O1 and take compile
# time; without optimisation the library is 25 times slower.
STANC_FLAGS = ("--O1",)
# Error that an optimised program throws at every point if stanc made of `theta ~ normal(W * lambda, 1)`, with parameters
# theta and an integer for the scale, a call of normal_id_glm that Stan's mathematical library does not support.
STANC_FAULT = "Wrong type assumed!"
COMPILER_FLAGS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-w",
    "-fvisibility=hidden",  # two Stan versions may be loaded in one process
    "-DSTAN_THREADS",
    "-D_REENTRANT",
    "-DBOOST_DISABLE_ASSERTS",
)
PRECOMPILE_VARIABLE = "PPL_BACKENDS_STAN_PRECOMPILE"


def cache_folder() -> Path:
    """Return the folder of libraries: ``stan`` in the user's cache directory for ppl-backends."""
    return Path(platformdirs.user_cache_dir("ppl-backends")) / "stan"


def build_library(program: StanProgram, cache: Path | None = None) -> Path:
    """Return the shared library of a program, from the cache or built now."""
    toolchain, cache = find_toolchain(), cache or cache_folder()
    flags = STANC_FLAGS if program.optimize else ()
    code = program.stanc(*flags, "--print-cpp", toolchain=toolchain).stdout
    if program.optimize:  # declares arrays without a size
        code = code.replace(MODEL_HEADER, MODEL_HEADER + ARRAYS.read_text(encoding="utf-8"), 1)
    key = _digest(code, SHIM.read_text(encoding="utf-8"), toolchain.version, *COMPILER_FLAGS)
    stem = f"{program.identifier}-{key}"
    with _usable(cache):
        try:
            compiler = find_compiler()
        except CompilationError:
            if built := sorted(cache.glob(f"{stem}-*.so")):
                return built[0]
            raise
        library = cache / f"{stem}-{_digest(compiler.version, *_compile_command(toolchain, compiler))}.so"
        if not library.exists():
            with _lock(library):
                if not library.exists():
                    _build(code, library, toolchain, compiler)
    return library


def program_key(library: Path) -> str:
    """Return the part of a built library's name that identifies program, flags and Stan's version, not the compiler."""
    return library.stem.rpartition("-")[0]


def open_program(program: StanProgram, data: Mapping[str, Any]) -> tuple[StanProgram, Path, CompiledModel]:
    """Return program, library and its model on data; without stanc's optimisation if that broke it."""
    library = build_library(program)
    model = open_model(library, data, program.label)
    if program.optimize and model.dim:
        model.evaluate(np.zeros((1, model.dim)), True, 1)
        if any(STANC_FAULT in message for message in model.messages):
            return open_program(dataclasses.replace(program, optimize=False), data)
        model.messages.clear()
    return program, library, model


def _build(code: str, library: Path, toolchain: Toolchain, compiler: Compiler) -> None:
    """Compile the program, and our interface if it is not cached, and link both into ``library``."""
    cache, command = library.parent, _compile_command(toolchain, compiler)
    header = _precompiled_header(cache, toolchain, compiler)
    with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as folder, ThreadPoolExecutor(1) as pool:
        shim = pool.submit(_shim_object, cache, toolchain, compiler)
        source, model, linked = Path(folder) / "model.cpp", Path(folder) / "model.o", Path(folder) / library.name
        source.write_text(code, encoding="utf-8")
        include = ("-include", str(header)) if header else ()
        _run([*command, *include, "-c", str(source), "-o", str(model)], "compiling the program")
        objects = [str(model), str(shim.result()), *map(str, toolchain.archives), str(toolchain.tbb)]
        find_tbb = f"-Wl,-rpath,{toolchain.tbb.parent}"
        _run([*compiler.command, "-shared", "-o", str(linked), *objects, find_tbb], "linking the program")
        os.replace(linked, library)


def _shim_object(cache: Path, toolchain: Toolchain, compiler: Compiler) -> Path:
    """Return our C interface as an object file: the same for every program."""
    command = _compile_command(toolchain, compiler)
    key = _digest(SHIM.read_text(encoding="utf-8"), compiler.version, toolchain.version, *command)
    return _compile_once(cache / f"shim-{key}.o", [*command, "-c", str(SHIM)])


def _precompiled_header(cache: Path, toolchain: Toolchain, compiler: Compiler) -> Path | None:
    """Return Stan's model header, precompiled, if it was asked for or made earlier."""
    if "Free Software Foundation" not in _banner(compiler):
        return None
    command = _compile_command(toolchain, compiler)
    header = cache / f"stan-{_digest(compiler.version, toolchain.version, *command)}" / "stan.hpp"
    compiled = header.with_name("stan.hpp.gch")
    if not compiled.exists():
        if os.environ.get(PRECOMPILE_VARIABLE, "0") in ("", "0"):
            return None
        header.parent.mkdir(parents=True, exist_ok=True)
        if not header.exists():  # another process may be compiling it
            write_atomically(header, MODEL_HEADER.encode())
        _compile_once(compiled, [*command, "-x", "c++-header", str(header)])
    return header


def _compile_once(target: Path, command: list[str]) -> Path:
    """Run a compiler command that makes ``target``, unless the target exists."""
    if not target.exists():
        with _lock(target):
            if not target.exists():
                with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
                    made = Path(folder) / target.name
                    _run([*command, "-o", str(made)], f"compiling {target.name}")
                    os.replace(made, target)
    return target


def _compile_command(toolchain: Toolchain, compiler: Compiler) -> list[str]:
    return [*compiler.command, *COMPILER_FLAGS, *(f"-I{folder}" for folder in toolchain.includes)]


def _banner(compiler: Compiler) -> str:
    output = subprocess.run([*compiler.command, "--version"], capture_output=True, text=True, check=False)
    return output.stdout


def _run(command: list[str], step: str) -> None:
    """Run the compiler; its first error line becomes the message."""
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    if output.returncode != 0:
        lines = [line for line in output.stderr.splitlines() if "error" in line.lower()] or output.stderr.splitlines()
        reason = lines[0].strip() if lines else f"exit status {output.returncode}"
        raise CompilationError(f"{command[0]} failed {step}: {reason}")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@contextmanager
def _usable(cache: Path) -> Iterator[None]:
    """Raise an error if nothing can be built in the cache, with the reason and the remedy."""
    try:
        yield
    except OSError as error:
        raise CompilationError(
            f"the cache folder {str(cache)!r} cannot be used ({reason_of(error)}); make it a folder that can be written, "
            "with some MB free, or name another one in the environment variable XDG_CACHE_HOME"
        ) from error


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    """Hold the lock file of ``target`` among all threads and processes; it is released if the process ends."""
    import fcntl

    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(target.name + ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Settings of the whole suite, doctests included; they must stand before NumPy, JAX and PyTensor are first imported."""

import ast
import os
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(pool, "1")  # worker processes are the parallelism here
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time goes into compiling programs that other tests, workers and subprocesses compile too.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
# Full optimisation takes a tenth to a half of the time that Numba compiles, and programs of tests run for milliseconds.
os.environ.setdefault("NUMBA_OPT", "1")
if "gcc__cxxflags" not in (flags := os.environ.get("PYTENSOR_FLAGS", "")):
    os.environ["PYTENSOR_FLAGS"] = f"{flags},gcc__cxxflags=-g0".strip(",")  # without what only debuggers read

# On its first import of a day, ArviZ writes a file by a temporary one whose name all processes share, which fails in one
# of two that do it at once. pytest-xdist imports this module before it starts workers.
import arviz  # noqa: F401
import pytest
from hypothesis import HealthCheck, settings

from ppl_backends.approximations import missed_modes

# Compilation falls into the first example, so that no deadline fits; derandomised, so that a failure repeats.
settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


# Rooms that know a model only as a target: of a file, the first test of a model, or of JAX, represents the others.
REPRESENTED = {
    *("approximations", "checks", "ep", "evidence", "importance", "kernels", "mean_field", "smc", "state_space"),
    "tempering",
}
# Rooms that compute with NumPy, SciPy and Numba.
NUMERICAL = REPRESENTED | {"gibbs", "model_search", "numerics", "orthants", "simulators", "sklearn"}
STACK = re.compile(r"pymc|\bpm\.|pytensor|jax|arviz|\baz\.|bambi|\bstan\b|stan_|_stan", re.IGNORECASE)
# All filters are JAX programs, of one library of functions: those of PyMC and Stan models represent the others.
STACK_OF_FILTERS = re.compile(STACK.pattern.replace("jax|", ""), re.IGNORECASE)


def names_of(node):
    """Return the names that a statement binds, and those that it uses; a fixture is used by the name of an argument."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}, set()
    words = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        bound = {node.name}
    else:
        bound = {word.id for word in words if isinstance(word.ctx, ast.Store)}
    return bound, {word.id for word in words} | {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}


@cache
def statements(file):
    """Return name → [(whether a statement that binds it names the stack, the names it uses)]; "" for what all tests use."""
    text, found = file.read_text(encoding="utf-8"), {}
    stack = STACK_OF_FILTERS if "state_space" in file.parts else STACK
    for node in ast.parse(text).body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        code = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            place = ROOT.joinpath(*node.module.split("."))
            helpers = [place / alias.name for alias in node.names] if place.is_dir() else [place]
            code += "".join(helper.with_suffix(".py").read_text(encoding="utf-8") for helper in helpers)
        bound, used = names_of(node)
        for name in {""} if not bound or "pytestmark" in bound or "autouse" in code else bound:
            found.setdefault(name, []).append((bool(stack.search(code)), used))
    return found


def is_in(rooms, file):
    return file.is_relative_to(ROOT / "tests") and not rooms.isdisjoint(file.relative_to(ROOT / "tests").parts)


def is_numerical(file, test):
    """Return whether a test of these rooms, with all that it uses in its file and in helpers, names nothing of the stack.

    The stack is PyMC, PyTensor, JAX, ArviZ, Bambi and Stan.
    """
    if not is_in(NUMERICAL, file):
        return False
    found, seen, open_names = statements(file), set(), {"", test}
    while open_names:
        name = open_names.pop()
        seen.add(name)
        for names_stack, used in found.get(name, ()):
            if names_stack:
                return False
            open_names |= used - seen
    return True


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items):
    represented = set()
    for item in items:
        if item.path in represented or is_numerical(item.path, getattr(item, "originalname", item.name)):
            item.add_marker("numerical")
        elif is_in(REPRESENTED, item.path) and not item.get_closest_marker("slow"):
            represented.add(item.path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker one stretch of the tests, of which idle ones steal: programs of a file are compiled once."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.fixture(autouse=True)
def few_draws_look_for_narrow_modes(monkeypatch):
    """Limit the search for narrow modes by a number of draws, not by a clock; all draws would take ten times as long."""
    monkeypatch.setattr(missed_modes, "_ALL_ROUNDS", 16)
    monkeypatch.setattr(missed_modes, "_SECONDS", float("inf"))

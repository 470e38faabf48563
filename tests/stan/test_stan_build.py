"""Toolchains, the cache of libraries, and the errors when something is missing."""

import importlib.util
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from ppl_backends.errors import CompilationError

pytest.importorskip("httpstan", reason="needs the stan extra")

from ppl_backends.targets.stan.build import build_library
from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.toolchain import find_compiler, find_toolchain, report

pytestmark = pytest.mark.stan

HTTPSTAN = Path(importlib.util.find_spec("httpstan").origin).parent
PROGRAM = StanProgram("tiny", "parameters { real x; }\nmodel { x ~ std_normal(); }")


@pytest.fixture
def cmdstan(tmp_path):
    """Return a folder laid out as CmdStan's, made of links to the wheel's parts."""
    math = tmp_path / "stan" / "lib" / "stan_math"
    for folder in (tmp_path / "bin", tmp_path / "stan" / "src", math / "lib" / "eigen_3.4.0"):
        folder.mkdir(parents=True)
    (tmp_path / "makefile").write_text("CMDSTAN_VERSION := 2.35.0\n")
    (tmp_path / "bin" / "stanc").symlink_to(HTTPSTAN / "stanc")
    (tmp_path / "stan" / "src" / "stan").symlink_to(HTTPSTAN / "include" / "stan")
    (math / "lib" / "tbb").symlink_to(HTTPSTAN / "lib")
    return tmp_path


def test_cmdstan_layout_is_understood(cmdstan):
    found = find_toolchain(cmdstan)
    assert found.version == find_toolchain(HTTPSTAN).version
    assert found.tbb.name == "libtbb.so.2"
    assert cmdstan.resolve() / "stan" / "lib" / "stan_math" / "lib" / "eigen_3.4.0" in found.includes
    assert PROGRAM.stanc("--version", toolchain=found).stdout.startswith("stanc3")


def test_order_of_the_search(cmdstan, monkeypatch):
    pytest.importorskip("cmdstanpy")
    monkeypatch.delenv("PPL_BACKENDS_STAN", raising=False)
    monkeypatch.delenv("CMDSTAN", raising=False)
    assert find_toolchain().source == "httpstan"
    monkeypatch.setenv("CMDSTAN", str(cmdstan))
    assert find_toolchain().source == "CmdStan"
    monkeypatch.setenv("PPL_BACKENDS_STAN", str(HTTPSTAN))
    assert find_toolchain().root == HTTPSTAN.resolve()
    findings = {finding.name: finding for finding in report()}
    assert findings["PPL_BACKENDS_STAN"].found
    assert str(cmdstan) in findings["CmdStan"].detail


def test_missing_parts_are_named(tmp_path, monkeypatch):
    with pytest.raises(CompilationError, match=r"without stanc.*pip install ppl-backends\[stan\]"):
        find_toolchain(tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompilationError, match="CXX='no-such-compiler' does not run"):
        find_compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    from ppl_backends.targets.stan import toolchain

    toolchain._probe_compiler.cache_clear()
    with pytest.raises(CompilationError, match="no C\\+\\+ compiler found; install one"):
        find_compiler()
    toolchain._probe_compiler.cache_clear()


def test_stanc_speaks_for_itself():
    broken = StanProgram("broken", "parameters { real x }\n")
    with pytest.raises(CompilationError, match=r"(?s)Syntax error in 'broken.stan', line 1, column 20"):
        broken.info
    with pytest.raises(CompilationError, match=r"nowhere\.stan"):
        StanProgram("including", "functions {\n#include nowhere.stan\n}\n").stanc("--info")


def test_include_belongs_to_the_key(tmp_path):
    from ppl_backends.targets.stan.build import STANC_FLAGS

    (tmp_path / "model.stan").write_text("functions {\n#include f.stan\n}\nparameters { real x; }\n")
    texts = []
    for body in ("return 1;", "return 2;"):
        (tmp_path / "f.stan").write_text(f"real f() {{ {body} }}\n")
        texts.append(StanProgram.from_file(tmp_path / "model.stan").stanc(*STANC_FLAGS, "--print-cpp").stdout)
    assert texts[0] != texts[1]


def test_a_cached_program_needs_no_compiler(tmp_path, monkeypatch):
    library = build_library(PROGRAM)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build_library(PROGRAM) == library
    with pytest.raises(CompilationError, match="CXX='no-such-compiler' does not run"):
        build_library(PROGRAM, cache=tmp_path)


@pytest.mark.parametrize("below", ["", "folder"])
def test_a_cache_that_cannot_be_used_is_one_line(tmp_path, below):
    (tmp_path / "cache").write_text("a file in the place of the folder")
    with pytest.raises(CompilationError, match=r"the cache folder .* cannot be used .* XDG_CACHE_HOME") as caught:
        build_library(PROGRAM, cache=tmp_path / "cache" / below)
    assert "\n" not in str(caught.value)


def _build(cache):
    return build_library(PROGRAM, cache=cache)


@pytest.mark.slow
def test_two_processes_build_at_once(tmp_path):
    """Both get the one library, whole; nothing else is left. What all programs share is taken from the user's cache."""
    from ppl_backends.targets.stan.build import cache_folder
    from ppl_backends.targets.stan.library import open_model

    for shared in (*cache_folder().glob("shim-*.o"), *cache_folder().glob("stan-*/")):
        (tmp_path / shared.name).symlink_to(shared)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        first, second = pool.map(_build, [tmp_path, tmp_path])
    assert first == second
    assert [path.name for path in tmp_path.glob("*.so")] == [first.name]
    assert not list(tmp_path.glob("build-*"))
    x = np.array([[0.3], [1.0]])
    np.testing.assert_allclose(
        open_model(first, {}, "tiny").evaluate(x, True, 1)[0], -0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi)
    )


@pytest.mark.slow
def test_programs_that_optimisation_breaks_are_compiled_without_it():
    from ppl_backends.targets.stan import stan_target

    code = """
    data { int J; int K; matrix[J, K] W; }
    parameters { vector[J] theta; vector[K] lambda; }
    model { lambda ~ std_normal(); theta ~ normal(W * lambda, 1); }
    """
    design, x = np.random.default_rng(0).standard_normal((6, 2)), np.random.default_rng(1).standard_normal((4, 8))
    theta, slopes = x[:, :6], x[:, 6:]
    expected = -0.5 * (slopes**2).sum(1) - 0.5 * ((theta - slopes @ design.T) ** 2).sum(1) - 4.0 * np.log(2 * np.pi)
    target = stan_target(code, {"J": 6, "K": 2, "W": design.tolist()})
    np.testing.assert_allclose(target.log_density(x), expected, rtol=1e-12)


def test_programs_that_draw_numbers_are_known(tmp_path):
    """Only they need a seed for each point; the function that draws may be in another file."""
    (tmp_path / "noise.stan").write_text("real noise_rng() { return normal_rng(0, 1); }")
    rest = "parameters { real x; } model { x ~ std_normal(); } generated quantities { real y = "
    drawing = (rest + "exponential_rng(2); }", "functions {\n#include noise.stan\n}" + rest + "noise_rng() + x; }")
    for code, draws in ((drawing[0], True), (drawing[1], True), (rest + "2 * x; }", False)):
        assert StanProgram("tiny", code, None, (str(tmp_path),)).draws_numbers is draws

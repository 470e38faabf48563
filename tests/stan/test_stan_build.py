"""Toolchains, the cache of libraries, and the errors when something is missing."""

import importlib.util
import shutil
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


def test_a_program_without_includes_is_the_same_in_every_folder(tmp_path):
    """Its library is then found in the cache; one with includes may depend on the folder."""
    (tmp_path / "other").mkdir()
    codes = []
    for code in (PROGRAM.code, "#include rest.stan\n"):
        for folder in (tmp_path, tmp_path / "other"):
            (folder / "tiny.stan").write_text(code)
            (folder / "rest.stan").write_text(PROGRAM.code)
            codes.append(StanProgram.from_file(folder / "tiny.stan").stanc("--print-cpp").stdout)
    assert codes[0] == codes[1]
    assert codes[2] != codes[3]


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
    shutil.copy(library, tmp_path / library.name)  # other builds of the program may be in the user's cache
    assert build_library(PROGRAM, cache=tmp_path) == tmp_path / library.name
    with pytest.raises(CompilationError, match="CXX='no-such-compiler' does not run"):
        build_library(PROGRAM, cache=tmp_path / "empty")


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
def test_arrays_of_data_that_take_parameters_have_memory():
    """With stanc's optimisation such an array has no size when it is assigned, and Stan's own assignment crashes."""
    from ppl_backends.targets.stan import stan_target

    code = """
    functions {
      array[] vector filled(array[] vector y, vector missing) {
        array[size(y)] vector[rows(y[1])] out = y;
        out[2][1] = missing[1];
        return out;
      }
    }
    data { int N, D; array[N] vector[D] y; array[N, D] int counts; array[0] real none; }
    parameters { vector[2] missing; }
    transformed parameters {
      array[N] vector[D] vectors = y;
      array[N, D] real table = counts;
      array[N] real firsts = y[:, 1];
      array[0] real empty = none;
      vectors[2][1] = missing[1];
      table[1, 2] = missing[2];
      firsts[3] = missing[2];
    }
    model {
      array[N] vector[D] local = filled(y, missing);
      for (n in 1:N) { vectors[n] ~ normal(0, 1); local[n] ~ normal(1, 1); table[n] ~ normal(2, 1); }
      firsts ~ normal(3, 1);
    }
    """
    rng = np.random.default_rng(0)
    y, counts, x = rng.standard_normal((3, 2)), rng.integers(0, 5, (3, 2)), rng.standard_normal((4, 2))
    target = stan_target(code, {"N": 3, "D": 2, "y": y.tolist(), "counts": counts.tolist(), "none": []})
    expected = []
    for missing in x:
        vectors, table, firsts = y.copy(), counts.astype(float), y[:, 0].copy()
        vectors[1, 0], table[0, 1], firsts[2] = missing[0], missing[1], missing[1]
        residuals = [vectors, vectors - 1, table - 2, firsts - 3]
        expected.append(sum(-0.5 * (r**2 + np.log(2 * np.pi)).sum() for r in residuals))
    np.testing.assert_allclose(target.log_density(x), expected, rtol=1e-12)


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

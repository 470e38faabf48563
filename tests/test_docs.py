"""Every Python block of the README and of the documentation runs, page by page, with nothing but what the page defines."""

import ast
import functools
import importlib
import inspect
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import ppl_backends as pb

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if not {"_build", "auto_examples", "case_studies"} & {*page.parts}
    ),
]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
    """Return the line and code of the Python blocks of a page, in order."""
    text = page.read_text()
    return [(text.count("\n", 0, found.start()) + 2, found[1]) for found in BLOCK.finditer(text)]


# Imports, which take seconds, and forks a process for every folder that it is given: JAX is imported and never used here.
FORKS = """
import os, runpy, sys
import arviz, jax, pymc, ppl_backends
for folder in sys.stdin:
    if not (child := os.fork()):
        os.chdir(folder.rstrip())
        os.dup2(os.open("output.txt", os.O_CREAT | os.O_WRONLY), 1)
        os.dup2(1, 2)
        sys.argv = [os.path.abspath("page.py")]
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="session")
def run_page():
    """Return a function that runs page.py of a folder in a process which has imported much and computed nothing."""
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    command, pipe = [sys.executable, "-c", FORKS], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1) as forks:

        def run(folder):
            forks.stdin.write(f"{folder}\n")
            return int(forks.stdout.readline())

        yield run
        forks.stdin.close()


@pytest.mark.slow
@pytest.mark.stan
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_in_order_in_a_fresh_process(page, tmp_path, run_page):
    (tmp_path / "stan_models").symlink_to(ROOT / "stan_models")
    (tmp_path / "page.py").write_text(
        "import warnings\nwarnings.simplefilter('ignore')\n" + "\n".join(code for _, code in blocks(page))
    )
    assert run_page(tmp_path) == 0, (tmp_path / "output.txt").read_text()[-2000:]


REASONS = {"reasons", "said", "troubles"}


def literal_parts(node):
    """Literal texts of the strings in an expression, without what is formatted into them."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def messages(tree):
    """Longest literal part of every warning of a module, and of every reason that a warning lists."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        values = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not call.args or not isinstance(call.func, ast.Attribute):
                continue
            owner = call.func.value
            name = (owner.id if isinstance(owner, ast.Name) else "", call.func.attr)
            if name == ("warnings", "warn") or (name[0] in REASONS and name[1] == "append"):
                text = call.args[0]
                text = values.get(text.id, text) if isinstance(text, ast.Name) else text
                yield max(literal_parts(text), key=len, default="")


def test_every_warning_is_in_the_guide():
    guide = " ".join((ROOT / "docs/guides/when_it_warns.md").read_text().split())
    trees = [ast.parse(file.read_text()) for file in sorted((ROOT / "ppl_backends").rglob("*.py"))]
    openings = {" ".join(part.strip(" ;:,.()'").split()[:6]) for tree in trees for part in messages(tree)}
    assert len(openings) > 50
    missing = sorted(opening for opening in openings if len(opening.split()) > 2 and opening not in guide)
    assert not missing, "add these messages to docs/guides/when_it_warns.md, with what they mean and what to do"


def anchors(page):
    """Return anchors of the headings of a page, as MyST and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
    for link in links:
        if "://" in link or "auto_examples" in link:  # the gallery is built with the documentation
            continue
        path, _, anchor = link.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), link
        assert not anchor or anchor in anchors(found), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_of_the_package_in_a_page_exist(page):
    for name in sorted(set(re.findall(r"\bpb\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", page.read_text()))):
        found = pb
        for part in name.split("."):
            found = getattr(found, part, None)
            assert found is not None, f"pb.{name}"
            if not inspect.ismodule(found):
                break


sys.path.insert(0, str(ROOT / "docs"))
import api_pages  # noqa: E402

EVIDENCES = ROOT / "docs/reference_evidences.md"
LISTED = [name for name, _ in api_pages.listed((ROOT / "docs/api.md").read_text())]
MODULES_WITH_PAGES = ("approximations.ep", "datasets", "errors", "marginal_likelihood", "targets", *pb._ROOMS)


def resolve(name):
    """Return object of a dotted name."""
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:k]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[k:], found)
    raise AssertionError(name)


def test_every_public_name_has_a_page():
    listed = {id(resolve(name)) for name in LISTED}
    own = re.findall(r"^\.\. auto\w+:: (\w+)$", EVIDENCES.read_text(), re.MULTILINE)
    listed |= {id(resolve(f"ppl_backends.datasets.{name}")) for name in own}
    public = {f"pb.{name}": getattr(pb, name) for name in pb._LAZY}
    for module in MODULES_WITH_PAGES:
        found = importlib.import_module(f"ppl_backends.{module}")
        public |= {f"{module}.{name}": getattr(found, name) for name in found.__all__}
    missing = [
        name
        for name, found in public.items()
        if (inspect.isclass(found) or inspect.isfunction(found)) and id(found) not in listed
    ]
    assert len(public) > 100
    assert not missing, "add these names to docs/api.md"


@pytest.mark.parametrize("name", LISTED)
def test_every_public_name_has_an_example(name):
    assert ">>> " in inspect.getdoc(resolve(name)), "its docstring needs a section Examples"


def test_an_inventory_names_what_its_list_names(tmp_path):
    names = tmp_path / "numpy.txt"
    names.write_text("# https://numpy.org/doc/stable/\nnumpy.ndarray class reference/generated/$.html\n")
    head, _, body = Path(api_pages.write_inventory(names, tmp_path)).read_bytes().rpartition(b"zlib.\n")
    assert head.startswith(b"# Sphinx inventory version 2\n")
    assert zlib.decompress(body) == b"numpy.ndarray py:class 1 reference/generated/numpy.ndarray.html#$ -\n"

"""The structure of the package: sizes of files, functions and signatures, and capabilities that are declared, not probed."""

import ast
from pathlib import Path

import pytest

import ppl_backends as pb

PACKAGE = Path(pb.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION, MOST_PARAMETERS, MOST_PROBES = 500, 60, 12, 10

# Where objects of others are met, whose members differ between versions and kinds.
FOREIGN = {
    "targets/pymc/": "operations and variables of PyTensor and PyMC",
    "targets/convert.py": "a target that a user wrote",
    "targets/stan/library.py": "a compiled library, and a handle that may not have been made",
    "targets/blocks.py": "os on platforms without affinities",
    "targets/stan/target.py": "a model of CmdStanPy",
    "steps/adapter.py": "variables of PyMC",
    "model_search/forms.py": "data frames of whatever library",
    "simulators/abc/": "operations and simulators of PyMC",
    "simuk.py": "released versions of simuk and later ones",
    "bambi.py": "objects of libraries that hold a Bambi model",
    "pymc/methods.py": "modes of PyTensor",
}

PUBLIC = {
    *(name for name in pb.__all__ if callable(getattr(pb, name, None))),
    *(name for room in (pb.steps, pb.gibbs, pb.mean_field, pb.simulators, pb.sklearn) for name in room.__all__),
}


def functions(tree):
    """Name of the function, or of the class for an ``__init__``, and its node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from ((node.name, child) for child in node.body if getattr(child, "name", "") == "__init__")
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            yield node.name, node


def n_lines(function):
    """Return lines of a function's body without its docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    start = first.end_lineno + 1 if documented else first.lineno
    return function.end_lineno - start + 1


def probes(tree):
    """Calls of ``hasattr``, and of ``getattr`` with a default."""
    for node in ast.walk(tree):
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if called == "hasattr" or (called == "getattr" and len(node.args) == 3):
            yield node.lineno


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_files_functions_and_signatures_are_of_a_readable_size(file):
    source = file.read_text()
    assert len(source.splitlines()) <= LONGEST_FILE
    for name, function in functions(ast.parse(source)):
        assert n_lines(function) <= LONGEST_FUNCTION, name
        if name not in PUBLIC:
            given = function.args.args + function.args.kwonlyargs
            assert len([each for each in given if each.arg != "self"]) <= MOST_PARAMETERS, name


def test_warnings_point_at_the_line_of_the_user():
    """``user_level()`` counts the frames of the package; a fixed number is wrong when a host calls the same function."""
    found = [
        f"{file.relative_to(PACKAGE)}:{node.value.lineno}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "stacklevel" and isinstance(node.value, ast.Constant)
    ]
    assert not found


def test_capabilities_are_declared_not_probed():
    found = [f"{file.relative_to(PACKAGE)}:{line}" for file in FILES for line in probes(ast.parse(file.read_text()))]
    ours = [place for place in found if not place.startswith(tuple(FOREIGN))]
    assert len(ours) <= MOST_PROBES, ours


def test_public_methods_are_documented_here_or_where_they_are_first_defined():
    trees = [ast.parse(file.read_text()) for file in FILES]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]

    def documented(kind, method):
        if any(getattr(node, "name", "") == method and ast.get_docstring(node) for node in kind.body):
            return True
        bases = {ast.unparse(base).split("[")[0] for base in kind.bases}
        return "Protocol" in bases or any(
            documented(base, method) for base in classes if base.name in bases - {kind.name}
        )

    bare = [
        f"{kind.name}.{node.name}"
        for kind in classes
        for node in kind.body
        if isinstance(node, ast.FunctionDef)
        and "_" not in (kind.name[0], node.name[0])
        and not documented(kind, node.name)
    ]
    assert not bare


# A docstring's first line says what the function does or returns. A verb that is missing here is added.
VERBS = """
    Accept Adapt Add Alternate Apply Ask Assemble Assert Assign Average Begin Bind Bound Break Bridge Build Cache
    Calibrate Call Cast Centre Check Choose Clear Climb Clip Close Collect Combine Compare Compile Complete Compute
    Condition Construct Convert Copy Correct Count Create Cut Declare Decode Decompose Define Delete Derive Detect
    Differentiate Discard Display Divide Do Draw Drop Emit Encode End Enter Estimate Evaluate Evict Exchange Exit
    Expand Explain Export Extend Extract Factor Factorise Fill Filter Find Finish Fit Flatten Follow Forecast Format
    Gather Generate Get Give Group Grow Guard Hold Import Infer Initialise Insert Install Integrate Interpolate Invert
    Iterate Join Judge Keep Let Limit Linearise List Load Log Look Lower Make Map Mark Marginalise Match Maximise
    Measure Merge Minimise Move Multiply Name Normalise Open Optimise Order Pack Pad Parse Permute Pickle Place Plot
    Pool Predict Prepare Print Propagate Propose Prove Put Raise Reach Read Rebuild Record Reduce Refine Refit Refresh
    Refuse Register Reject Release Remove Rename Renew Reorder Repeat Replace Report Rescale Resample Reset Reshape
    Resolve Restart Restore Return Reverse Reweight Round Run Sample Save Scale Search Select Send Set Show Shrink
    Simulate Skip Smooth Solve Sort Split Stack Start Step Stop Store Subtract Sum Summarise Swap Sweep Switch
    Symmetrise Take Test Train Transform Translate Try Tune Turn Unpack Update Use Validate Verify Wait Warn Weigh
    Weight Whiten Widen Wrap Write Yield
"""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_docstrings_of_functions_begin_with_a_verb(file):
    first_lines = {
        f"{node.name}, line {node.lineno}": ast.get_docstring(node).split("\n")[0]
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
    }
    others = {where: line for where, line in first_lines.items() if line.split()[0].rstrip(":,.") not in VERBS.split()}
    assert not others, "begin with a verb, as in 'Return …' or 'Draw …'; add it to VERBS if it is missing"

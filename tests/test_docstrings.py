"""Docstrings of public names: every parameter has an entry, and every entry names a parameter."""

import dataclasses
import inspect
import re
from typing import Protocol

import pytest

from ppl_backends.orthants.distributions import _Distribution
from tests.test_docs import LISTED, ROOT, resolve

SECTIONS = re.compile(r"^(Parameters|Other Parameters|Attributes)\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}$|\Z)", re.M | re.S)
COMMON_ROWS = re.search(r"^\| argument \|.*?\n\n", (ROOT / "docs/targets.md").read_text(), re.M | re.S)[0]
COMMON = {name for cell in re.findall(r"^\| (`.*?) \|", COMMON_ROWS, re.M) for name in re.findall(r"`(\w+)`", cell)}


def entries(found, *sections):
    """Names that the sections of a NumPy docstring describe."""
    texts = [text for title, text in SECTIONS.findall(inspect.getdoc(found) or "") if title in sections]
    lines = [line.split(" : ")[0] for text in texts for line in text.splitlines() if line and line[0] != " "]
    return {name.strip(" `*") for line in lines for name in line.split(",")}


def described(found):
    """Names of parameters that a docstring describes."""
    return entries(found, "Parameters", "Other Parameters")


def parameters(found):
    """Names of the parameters of a callable; those of a distribution of PyMC are at its ``_parameters``."""
    if inspect.isclass(found) and issubclass(found, BaseException):
        return set()
    given = dict(inspect.signature(found).parameters)
    if "__new__" in vars(found) and "__init__" in vars(found):
        given = dict(inspect.signature(found.__init__).parameters)
    if is_distribution(found):
        own = inspect.signature(found._parameters).parameters
        given = {"name": given["name"], **{k: v for k, v in own.items() if k != "options"}, "kwargs": given["kwargs"]}
    passed_on = {each.name for each in given.values() if each.kind is each.VAR_KEYWORD}
    refers = "options of :func:" in (inspect.getdoc(found) or "")
    return {*given} - {"cls", "self"} - (passed_on if refers else set())


def is_distribution(found):
    """Return whether it is a distribution of PyMC, whose own parameters are those of ``_parameters``."""
    return inspect.isclass(found) and issubclass(found, _Distribution)


def is_result(found):
    """Return whether a class describes attributes and no parameters: a method makes it, not its user."""
    return inspect.isclass(found) and not described(found) and bool(entries(found, "Attributes"))


def undescribed(found):
    """Parameters of a callable without an entry; of a result, its own fields that are not among its attributes."""
    if inspect.isclass(found) and Protocol in found.__mro__:
        return set()
    if not is_result(found):
        return parameters(found) - described(found)
    is_record = dataclasses.is_dataclass(found) or issubclass(found, tuple)
    fields = inspect.get_annotations(found) if is_record else {}
    return {name for name in fields if name[0] != "_"} - entries(found, "Attributes")


def public_methods(kind):
    """Name and function of every public method that a class, or one of the package above it, defines."""
    for name, method in inspect.getmembers(kind, lambda member: inspect.isroutine(member)):
        function = inspect.unwrap(getattr(method, "__func__", method))
        if name[0] != "_" and getattr(function, "__module__", "").startswith("ppl_backends"):
            yield name, method


@pytest.mark.parametrize("name", LISTED)
def test_every_parameter_of_a_public_name_has_an_entry(name):
    assert not undescribed(resolve(name)), "add these to the section Parameters, or Attributes of a result"


@pytest.mark.parametrize("name", [name for name in LISTED if callable(resolve(name))])
def test_every_entry_of_a_docstring_is_a_parameter(name):
    assert described(resolve(name)) <= parameters(resolve(name))


@pytest.mark.parametrize("name", [name for name in LISTED if inspect.isclass(resolve(name))])
def test_parameters_of_public_methods_are_described(name):
    bare, unknown = {}, {}
    for method, function in public_methods(resolve(name)):
        given = parameters(function)
        named = {*re.findall(r"``\*{0,2}(\w+)", inspect.getdoc(function) or "")}
        bare |= {method: missing} if (missing := given - described(function) - named - COMMON) else {}
        unknown |= {method: extra} if (extra := described(function) - given) else {}
    assert not bare, "describe these, or name them in the docstring as ``name``"
    assert not unknown


def test_entries_of_a_docstring_are_read():
    def example(a, b, *, c, **options):
        """Return nothing.

        Parameters
        ----------
        a, b : int
            A line with c : colon.
        **options
            More.

        Returns
        -------
        d : int
        """

    assert described(example) == {"a", "b", "options"}
    assert undescribed(example) == {"c"}

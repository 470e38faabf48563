"""The page of tables and figures of the sources: every item has a row, every row a verdict, and every command is a script."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reproduction.md").read_text()
VERDICTS = ("reproduced", "not reproduced", "data not available", "illustration", "not compared")
COMMANDS = sorted(set(re.findall(r"`([a-z_0-9]+\.py[^`]*)`", PAGE)))


def numbers(chapter, last):
    """The numbers of a chapter's items."""
    return [f"{chapter}.{k}" for k in range(1, last + 1)]


ITEMS = {  # by section: the numbers of figures, and of tables, in the captions
    "Chopin & Ridgway": ([*numbers(5, 5), "6.1"], ["1", "2", "3"]),
    "Ridgway (2015)": (
        [*numbers(1, 7), *numbers(3, 9), "3.D.1", *numbers(4, 3), "4.C.1", *numbers(6, 5)],
        ["4.1", "4.C.1"],
    ),
    "Alquier, Ridgway": (["1", "2", "5.1", "5.B.1"], ["1", "2", "5.1", "5.2"]),
    "Buchholz": (
        [*numbers(1, 4), *numbers(2, 4), *numbers(3, 11), *numbers(4, 5), *numbers(5, 9)],
        [*numbers(3, 3), "4.1", *numbers(5, 3)],
    ),
}


def rows(page=PAGE):
    """Cells of the rows of the tables with a verdict."""
    tables = re.findall(r"\| item \|.*\n\| --- .*\n((?:\|.*\n?)+)", page)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in "".join(tables).splitlines()]


@pytest.mark.parametrize("section", ITEMS)
def test_every_numbered_item_has_a_row(section):
    page = next(part for part in PAGE.split("\n## ") if part.startswith(section))
    found = {"Figure": set(), "Table": set()}
    for item, *_ in rows(page):
        for kind, text in re.findall(r"(Figure|Table)s?([^FT]*)", item):
            found[kind] |= set(re.findall(r"\d(?:\.[A-Z])?(?:\.\d+)?", text))
    for kind, expected in zip(found, ITEMS[section], strict=True):
        assert set(expected) <= found[kind], f"{kind}: {set(expected) - found[kind]}"


def test_every_row_has_a_verdict_and_what_was_done():
    for row in rows():
        assert len(row) == 5, row
        assert row[4].startswith(VERDICTS), row
        if row[4].startswith("reproduced"):
            assert row[2], row
            assert row[3], row


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_scripts_with_these_options(command):
    script, *arguments = command.split()
    text = (ROOT / "examples" / "benchmarks" / script).read_text()
    for option in (word for word in arguments if word.startswith("--")):
        assert f'"{option}"' in text, option


def test_pages_have_no_leftovers_of_a_merge():
    for page in sorted((ROOT / "docs").rglob("*.md")):
        assert not re.search(r"^(<{7} |={7}$|>{7} )", page.read_text(), re.MULTILINE), page.name

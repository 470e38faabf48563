"""Tables that print whole: pandas leaves out columns of a table that is wider than the terminal."""

from __future__ import annotations

import shutil

import pandas as pd

DIGITS_OF_ERRORS = 2
WIDTH_OF_FILES = 140  # characters of a line where the output is no terminal


class WholeTable(pd.DataFrame):
    """A data frame whose printed form has all of its columns, in several parts if the terminal is narrow.

    Selections of rows or columns are plain data frames.
    """

    def __repr__(self) -> str:
        return whole(self)


def whole(table: pd.DataFrame, digits: int = 6) -> str:
    """Return a table as text with all of its columns, and its first and last rows where it has many.

    Figures have so many significant ``digits``; those of columns that end in "se" have two.
    """
    figures = table.select_dtypes("floating").columns
    formats = {name: f"{{:.{DIGITS_OF_ERRORS if str(name).endswith('se') else digits}g}}".format for name in figures}
    text: str = pd.DataFrame(table).to_string(
        line_width=shutil.get_terminal_size((WIDTH_OF_FILES, 24)).columns,
        max_rows=pd.get_option("display.max_rows"),
        formatters=formats,
    )
    return text

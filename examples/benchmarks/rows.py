"""Rows of figures in a file, one line of JSON each. A script appends every row at once and skips what the file has."""

import json


def read_rows(file):
    """Return the rows of a file, or none where there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file and file.exists() else []


def append_row(file, /, **row):
    """Append a row, unless ``file`` is None."""
    if file:
        with file.open("a") as out:
            out.write(json.dumps(row, default=lambda value: value.item()) + "\n")


def keys_of(rows, *names):
    """Return the set of tuples of what the rows have under ``names``."""
    return {tuple(row[name] for name in names) for row in rows}

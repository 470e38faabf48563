"""Give every name of ``api.md`` a page of its own, and write the inventories of other projects' documentation.

``api.md`` lists names by ``autofunction`` and ``autoclass`` directives under headings. Each directive moves to a page
``reference/<name>``; in its place stands a table of names with the first sentence of what they do.
"""

import re
import zlib
from pathlib import Path

DIRECTIVE = re.compile(r"^\.\. auto(?:function|class|exception):: (\S+)\n((?:   .*\n)*)", re.MULTILINE)
HERE = Path(__file__).parent
HEADER = """# Sphinx inventory version 2
# Project: {name}
# Version:\x20
# The remainder of this file is compressed using zlib.
"""


def listed(text: str) -> list[tuple[str, str]]:
    """Return the full name of every object that a listing describes, with its directive."""
    return [(_full(found[1]), found[0].replace(found[1], _full(found[1]), 1)) for found in DIRECTIVE.finditer(text)]


def _full(name: str) -> str:
    return name if name.startswith("ppl_backends.") else f"ppl_backends.{name}"


def _short(name: str) -> str:
    return name.removeprefix("ppl_backends.")


def write_pages(listing: Path, folder: Path) -> None:
    """Write the page of every name; a page that has not changed keeps its time, so that it is not built again."""
    folder.mkdir(exist_ok=True)
    pages = {}
    for name, directive in listed(listing.read_text()):
        title = _short(name)
        examples = f".. minigallery:: {name}\n   :add-heading: In the gallery\n"
        pages[folder / f"{name}.rst"] = f"{title}\n{'=' * len(title)}\n\n{directive}\n{examples}"
    for page in folder.glob("*.rst"):
        if page not in pages:
            page.unlink()
    for page, text in pages.items():
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def as_table(text: str) -> str:
    """Replace the directives of a listing by tables whose entries lead to the pages."""
    rows = re.compile(rf"(?:{DIRECTIVE.pattern}\n*)+", re.MULTILINE)

    def table(found: re.Match) -> str:
        names = [name for name, _ in listed(found[0])]
        lines = [".. autosummary::", "   :nosignatures:", "", *(f"   {_short(name)}" for name in names), ""]
        lines += [".. toctree::", "   :hidden:", "", *(f"   reference/{name}" for name in names), ""]
        return "\n".join(lines) + "\n"

    return rows.sub(table, text)


def write_inventory(names: Path, folder: Path) -> str:
    """Compress a list of lines ``name role page`` into an inventory that ``sphinx.ext.intersphinx`` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for line in names.read_text().splitlines():
        if line and not line.startswith("#"):
            name, role, page = line.split()
            lines.append(f"{name} py:{role} 1 {page.replace('$', name)}#$ -\n")
    target = folder / f"{names.stem}.inv"
    target.write_bytes(HEADER.format(name=names.stem).encode() + zlib.compress("".join(lines).encode()))
    return str(target)


def intersphinx_mapping(folder: Path) -> dict:
    """Return the mapping for ``sphinx.ext.intersphinx``: no network is needed, the names linked to are listed here."""
    mapping = {}
    for names in sorted((HERE / "inventories").glob("*.txt")):
        address = names.read_text().splitlines()[0].removeprefix("# ")
        mapping[names.stem] = (address, write_inventory(names, folder))
    return mapping


def setup(app):
    """Write the pages before the sources are looked for, and turn the listing into tables as it is read."""
    write_pages(HERE / "api.md", HERE / "reference")

    def tables(app, docname, source):
        if docname == "api":
            source[0] = as_table(source[0])

    app.connect("source-read", tables)
    return {"parallel_read_safe": True}

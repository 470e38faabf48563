"""Every Python block of the README and of the documentation runs, page by page, with nothing but what the page defines."""

import re
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/[gm]*/").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
    """Line and code of the Python blocks of a page, in order."""
    text = page.read_text()
    return [(text.count("\n", 0, found.start()) + 2, found[1]) for found in BLOCK.finditer(text)]


@pytest.mark.slow
@pytest.mark.stan
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    (tmp_path / "stan_models").symlink_to(ROOT / "stan_models")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line, code in blocks(page):
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
    plt.close("all")

"""Sphinx configuration: ``sphinx-build -W docs docs/_build/html`` builds the site, gallery included."""

import os
import sys
from pathlib import Path

for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(pool, "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import ppl_backends

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import api_pages

project = "ppl_backends"
author = "the ppl_backends developers"
release = ppl_backends.__version__

extensions = [
    "api_pages",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "_build",
    "auto_examples/*.ipynb",
    "case_studies/*.ipynb",
    "auto_examples/backreferences",
    "inventories",
]
intersphinx_mapping = api_pages.intersphinx_mapping(HERE / "_build" / "inventories")
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_preprocess_types = True
napoleon_type_aliases = {
    "InferenceData": ":class:`~arviz.InferenceData`",
    "pm.Model": ":class:`pymc.Model`",
    "ndarray": ":class:`~numpy.ndarray`",
    "Executor": ":class:`~concurrent.futures.Executor`",
    "DataFrame": ":class:`~pandas.DataFrame`",
    "Evidence": ":class:`~ppl_backends.marginal_likelihood.Evidence`",
}

sphinx_gallery_conf = {
    "examples_dirs": ["../examples/gallery", "../examples/case_studies"],
    "gallery_dirs": ["auto_examples", "case_studies"],
    "doc_module": ("ppl_backends",),
    "reference_url": {"ppl_backends": None},
    "backreferences_dir": "auto_examples/backreferences",
    "filename_pattern": r"/plot_",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "parallel": 2,
}

html_theme = "furo"
html_title = "ppl_backends"

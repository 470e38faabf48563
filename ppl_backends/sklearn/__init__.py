"""Estimators with scikit-learn's interface, for use without PyMC or Stan; needs the ``sklearn`` extra."""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {"GibbsClassifier": "gibbs", "GibbsRanker": "gibbs", "MatrixCompletion": "completion"}

__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ppl_backends.sklearn' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"ppl_backends.sklearn.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "sklearn":
            raise ImportError(f"{name} needs scikit-learn: pip install 'ppl-backends[sklearn]'") from None
        raise


def __dir__() -> list[str]:
    return sorted(__all__)

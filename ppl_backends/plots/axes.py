"""The axes of a plot: those that the caller gives, or those of a new figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.errors import ModelError


def panels(axes: Any, number: int, columns: int = 3, size: tuple[float, float] = (4.0, 2.9)) -> Any:
    """Return ``number`` axes as a flat array; those of a new figure have a ``size`` in inches and stand in ``columns``."""
    if axes is not None:
        flat = np.ravel(np.asarray(axes, dtype=object))
        if len(flat) < number:
            raise ModelError(f"axes has {len(flat)} elements; expected {number}")
        return flat[:number]
    import matplotlib.pyplot as plt

    columns = min(number, columns)
    rows = -(-number // columns)
    shape = (size[0] * columns, size[1] * rows)
    figure, grid = plt.subplots(rows, columns, figsize=shape, layout="constrained", squeeze=False)
    for spare in grid.ravel()[number:]:
        figure.delaxes(spare)
    return grid.ravel()[:number]


def table_of_panels(axes: Any, rows: int, columns: int) -> Any:
    """Return axes in rows and columns; refuse any other number of them."""
    number = rows * columns
    if axes is not None and np.size(axes) > number:
        raise ModelError(f"axes has {np.size(axes)} elements; expected {number}")
    return panels(axes, number, columns, (3.4, 2.9)).reshape(rows, columns)

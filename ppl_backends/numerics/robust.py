"""Centre and width of points from their quantiles, which outliers and heavy tails hardly change."""

from __future__ import annotations

import numpy as np

from ppl_backends.numerics.arrays import Array

ONE_SD = np.array([0.158655, 0.5, 0.841345])  # probabilities below −1, 0 and 1 under a standard normal


def median_and_width(x: Array) -> tuple[Array, Array]:
    """Return median and half the distance between the 16 % and 84 % quantiles, of every column: mean and sd of a normal."""
    low, median, high = np.quantile(x, ONE_SD, axis=0)
    return median, 0.5 * (high - low)

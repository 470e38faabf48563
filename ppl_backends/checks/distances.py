r"""Comparison of weighted samples by quantity: moments, and cumulative Jensen–Shannon distances, with their errors.

The distance is √{CJS(P‖Q) / (∫P + ∫Q)} of the distribution functions, the larger of its values for θ and −θ
(Kallioinen et al. 2023, section 2.3; Nguyen & Vreeken 2015). Errors come from a bootstrap of the independent units
from which both samples descend. A distance between samples is biased upwards, because noise cannot make it negative.
The bootstrap estimates this bias too: in squares, the mean distance of resamples exceeds the sample's distance by as
much as the latter exceeds the true one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ppl_backends.targets.protocol import Array, Index

Sample = tuple[Array, Array, Index]
"""Values ``(n, k)``, weights ``(n,)`` and units ``(n,)``."""

_GRID = 1000  # largest number of points at which distribution functions are compared


class Compared(NamedTuple):
    """Moments and distances ``(k,)`` by sample; the key None is the sample with which the others are compared."""

    mean: dict
    sd: dict
    mean_se: dict
    sd_se: dict
    distance: dict
    distance_se: dict

    def by_name(self) -> dict[str, dict]:
        """Return the figures by name."""
        return self._asdict()


def compare(base: Sample, others: Mapping, n_units: int, n_replicates: int, rng: np.random.Generator) -> Compared:
    """Compare samples with the one that they descend from; every replicate draws the same units for all of them."""
    counts = np.concatenate(
        [np.ones((1, n_units)), rng.multinomial(n_units, np.full(n_units, 1 / n_units), size=n_replicates)]
    )
    found = Compared({}, {}, {}, {}, {}, {})
    for key, sample in {None: base, **others}.items():
        for name, figures in zip(("mean", "sd"), _moments(sample, counts), strict=True):
            getattr(found, name)[key] = figures[0]
            getattr(found, f"{name}_se")[key] = figures[1:].std(axis=0, ddof=1)
    for key, sample in others.items():
        pairs = [_distance(base, sample, column, counts) for column in range(base[0].shape[1])]
        found.distance[key], found.distance_se[key] = np.array(pairs).T
    return found


def _moments(sample: Sample, counts: Array) -> tuple[Array, Array]:
    """Return weighted means and standard deviations ``(replicates, k)``."""
    values, weight, unit = sample
    centre = weight @ values
    away = values - centre

    def by_unit(of: Array) -> Array:
        table = np.zeros((counts.shape[1], *of.shape[1:]))
        np.add.at(table, unit, of)
        return counts @ table

    total = by_unit(weight)[:, None]
    mean = by_unit(weight[:, None] * away) / total
    square = by_unit(weight[:, None] * away**2) / total
    return centre + mean, np.sqrt(np.maximum(square - mean**2, 0.0))


def _distance(base: Sample, other: Sample, column: int, counts: Array) -> tuple[float, float]:
    """Return the distance of one quantity after subtraction of its bias, and its standard error; NaN if it is not finite."""
    pooled = np.concatenate([base[0][:, column], other[0][:, column]])
    if not np.isfinite(pooled).all():
        return np.nan, np.nan
    if np.ptp(pooled) == 0:
        return 0.0, 0.0
    grid = np.unique(np.quantile(pooled, np.linspace(0, 1, min(len(pooled), _GRID)), method="inverted_cdf"))
    below = [_distribution(sample, column, grid, counts) for sample in (base, other)]
    squares = np.maximum(*(_divergence(p, q, np.diff(grid)) for p, q in (below, [1 - p for p in below])))
    noise = max(0.0, float(squares[1:].mean() - squares[0]))
    distance = float(np.sqrt(max(0.0, squares[0] - noise)))
    spread = float(squares[1:].std(ddof=1))
    # d distance = d square / (2 distance), and √ of the spread if the distance is nearly zero
    return distance, spread / (2 * distance) if distance**2 > spread else float(np.sqrt(spread))


def _distribution(sample: Sample, column: int, grid: Array, counts: Array) -> Array:
    """Return distribution functions ``(replicates, grid − 1)`` on the steps of the grid."""
    values, weight, unit = sample
    place = np.searchsorted(grid, values[:, column])
    n_units, n_places = counts.shape[1], len(grid)
    table = np.bincount(unit * n_places + place, weight, minlength=n_units * n_places).reshape(n_units, n_places)
    cumulative = np.cumsum(counts @ table, axis=1)
    return np.clip(cumulative[:, :-1] / cumulative[:, -1:], 0.0, 1.0)


def _divergence(p: Array, q: Array, widths: Array) -> Array:
    """Return the normalised squared distance of distribution functions ``(replicates, steps)``."""
    middle = 0.5 * (p + q)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_p = np.where(p > 0, p * np.log2(p / middle), 0.0)
        of_q = np.where(q > 0, q * np.log2(q / middle), 0.0)
    bound = (p + q) @ widths
    return np.divide((of_p + of_q) @ widths, bound, out=np.zeros(len(p)), where=bound > 0)

"""Risks of pair losses from scores, for a batch of parameter points: sums over all pairs of the two classes.

For the AUC and its hinge variant, one sort of the n scores gives the sums over n₊n₋ pairs, at a cost of O(n log n) per
point; other pair losses are summed pair by pair, in blocks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from ppl_backends.errors import ModelError
from ppl_backends.gibbs.losses import Loss
from ppl_backends.targets.factors.sites import Array

Mask = NDArray[np.bool_]
BLOCK_BYTES = 2**25


def pair_scale(positive: Mask) -> float:
    """Return 2/(n(n − 1)), which turns a sum over pairs of the two classes into a mean over ordered pairs."""
    n = len(positive)
    return 2.0 / (n * (n - 1))


def auc_risk(scores: Array, positive: Mask) -> Array:
    """Return the share of the n(n − 1) ordered pairs in the wrong order, with ties counted as one half, ``(k,)``.

    It is 1 − AUC times 2n₊n₋/(n(n − 1)).

    Parameters
    ----------
    scores : ndarray (k, n)
    positive : ndarray of bool (n,)

    Examples
    --------
    >>> import numpy as np
    >>> auc_risk(np.array([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]]), np.array([False, True, True])).round(4)
    array([0.    , 0.6667])
    """
    scores, positive = _scores_and_labels(scores, positive)
    n_positive = int(positive.sum())
    order = np.argsort(scores, axis=1)
    in_order = np.take_along_axis(scores, order, axis=1)
    rank_sum = (positive[order] * np.arange(1.0, scores.shape[1] + 1)).sum(axis=1)
    tied = (np.diff(in_order, axis=1) == 0).any(axis=1)
    if tied.any():
        rank_sum[tied] = rankdata(scores[tied], axis=1)[:, positive].sum(axis=1)
    concordant = rank_sum - 0.5 * n_positive * (n_positive + 1)
    return pair_scale(positive) * (n_positive * (len(positive) - n_positive) - concordant)


def _scores_and_labels(scores: Array, positive: Mask) -> tuple[Array, Mask]:
    """Return scores ``(k, n)`` and labels ``(n,)`` of at least two rows; raise ModelError for other input."""
    try:
        found = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise ModelError("auc_risk: scores: expected an array of numbers (k, n)") from None
    labels = np.asarray(positive)
    if found.ndim != 2 or found.shape[1] < 2:
        raise ModelError(f"auc_risk: scores has shape {found.shape}: expected (k, n) with n of at least 2")
    if labels.dtype != bool or labels.shape != found.shape[1:]:
        raise ModelError(
            f"auc_risk: positive has shape {labels.shape} and type {labels.dtype}: expected bool ({found.shape[1]},)"
        )
    if np.isnan(found).any():
        raise ModelError("auc_risk: scores has values that are NaN and cannot be ordered")
    return found, labels


def auc_hinge_risk(scores: Array, positive: Mask, gradient: bool = False) -> tuple[Array, Array | None]:
    """Return the mean over ordered pairs of (1 − sᵢ + sⱼ)₊, yᵢ > yⱼ, ``(k,)``, and its gradient in the scores ``(k, n)``.

    A pair has a positive loss if sⱼ > sᵢ − 1. After the positive scores are reduced by one, one sort and its running
    counts and sums give the number of these pairs and their losses.
    """
    moved = scores - positive
    order = np.argsort(moved, axis=1)
    in_order, is_positive = np.take_along_axis(moved, order, axis=1), positive[order]
    negative_sum = np.cumsum(np.where(is_positive, 0.0, in_order), axis=1)
    negatives_above = (~positive).sum() - np.cumsum(~is_positive, axis=1)
    lost = negative_sum[:, -1:] - negative_sum - negatives_above * in_order
    scale = pair_scale(positive)
    value = scale * np.where(is_positive, lost, 0.0).sum(axis=1)
    if not gradient:
        return value, None
    positives_below = np.cumsum(is_positive, axis=1)
    slope = np.empty_like(scores)
    np.put_along_axis(slope, order, scale * np.where(is_positive, -negatives_above, positives_below), axis=1)
    return value, slope


def pair_risk(
    scores: Array, positive: Mask, loss: Loss, gradient: bool = False, weights: Array | None = None
) -> tuple[Array, Array | None]:
    """Return mean over ordered pairs of any loss of sᵢ − sⱼ, yᵢ > yⱼ, ``(k,)``, and its gradient in the scores ``(k, n)``.

    The label of a pair is the product of the ``weights`` ``(n,)``, one by default.
    """
    weights = np.ones(len(positive)) if weights is None else weights
    above, below = scores[:, positive], scores[:, ~positive]
    value = np.zeros(len(scores))
    slope = np.zeros_like(scores) if gradient else None
    at_above, at_below = np.flatnonzero(positive), np.flatnonzero(~positive)
    step = max(1, BLOCK_BYTES // (8 * len(scores) * max(1, below.shape[1])))
    for start in range(0, above.shape[1], step):
        rows = slice(start, start + step)
        difference = above[:, rows, None] - below[:, None, :]
        labels = np.outer(weights[at_above[rows]], weights[at_below])
        value += loss.value(difference, labels).sum(axis=(1, 2))
        if slope is not None:
            part = loss.slope(difference, labels)
            slope[:, at_above[rows]] += part.sum(axis=2)
            slope[:, at_below] -= part.sum(axis=1)
    scale = pair_scale(positive)
    return scale * value, None if slope is None else scale * slope

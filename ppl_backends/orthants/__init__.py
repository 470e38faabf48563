"""Rectangles of Gaussian and Student vectors: probabilities with an error bar, and draws.

>>> import numpy as np
>>> from ppl_backends.orthants import rectangle_probability
>>> distance = np.abs(np.subtract.outer(np.arange(50), np.arange(50)))
>>> result = rectangle_probability(0.7**distance, lower=0, upper=15, random_seed=1)
>>> round(result.log_p, 1), result.method, result.trusted
(-12.1, 'tilting', True)
"""

from ppl_backends.orthants.estimate import estimate_log_likelihood
from ppl_backends.orthants.gradients import RectangleGradient, rectangle_gradient
from ppl_backends.orthants.rectangle import RectangleProbability, rectangle_probability
from ppl_backends.orthants.target import (
    Rectangles,
    RectangleTarget,
    choice_rectangles,
    ordinal_rectangles,
    probit_rectangles,
    ranking_rectangles,
)
from ppl_backends.orthants.truncated import TruncatedDraws, sample_truncated

__all__ = [
    "RectangleGradient",
    "RectangleProbability",
    "RectangleTarget",
    "Rectangles",
    "TruncatedDraws",
    "choice_rectangles",
    "estimate_log_likelihood",
    "ordinal_rectangles",
    "probit_rectangles",
    "ranking_rectangles",
    "rectangle_gradient",
    "rectangle_probability",
    "sample_truncated",
]

"""Mean-field coordinate ascent with exact updates for structured models: matrix completion and mixtures."""

from ppl_backends.mean_field.matrix_completion import MatrixFactors, fit_matrix_completion
from ppl_backends.mean_field.mixtures import (
    CategoricalMixture,
    GaussianMixture,
    fit_categorical_mixture,
    fit_gaussian_mixture,
)

__all__ = [
    "CategoricalMixture",
    "GaussianMixture",
    "MatrixFactors",
    "fit_categorical_mixture",
    "fit_gaussian_mixture",
    "fit_matrix_completion",
]

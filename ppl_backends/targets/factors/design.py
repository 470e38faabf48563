"""Designs: the rows aᵢ of linear predictors, dense, sparse, or given by their structure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from scipy import sparse

from ppl_backends.numerics.arrays import Array


class Design(ABC):
    """Interface of a matrix A ``(n, d)`` of rows for EP; subclasses need not store its elements."""

    shape: tuple[int, int]

    @abstractmethod
    def __matmul__(self, theta: Array) -> Array:
        """Return a θ ``(n,)``."""

    @property
    @abstractmethod
    def T(self) -> Any:
        """Return Aᵀ, for products with ``(n,)``."""

    @abstractmethod
    def gram(self, weights: Array) -> Array:
        """Return Aᵀ diag(weights) A as a dense matrix."""

    @abstractmethod
    def row_variances(self, factor: Array) -> Array:
        """Return the variances ``(n,)`` of aᵢᵀθ for θ with covariance L Lᵀ, L the ``factor``."""


class _Dense(Design):
    def __init__(self, matrix: Any) -> None:
        self.matrix, self.shape = matrix, matrix.shape

    def __matmul__(self, theta: Array) -> Array:
        return np.asarray(self.matrix @ theta)

    @property
    def T(self) -> Any:
        return self.matrix.T

    def gram(self, weights: Array) -> Array:
        return self.matrix.T @ (self.matrix * weights[:, None])

    def row_variances(self, factor: Array) -> Array:
        spread = np.asarray(self.matrix @ factor)
        return np.einsum("nd,nd->n", spread, spread)


class _Sparse(_Dense):
    def gram(self, weights: Array) -> Array:
        return (self.matrix.T @ sparse.diags(weights) @ self.matrix).toarray()


def as_design(design: Any) -> Design:
    """Return an array, a sparse matrix or a design as a design."""
    if isinstance(design, Design):
        return design
    return _Sparse(design) if sparse.issparse(design) else _Dense(design)

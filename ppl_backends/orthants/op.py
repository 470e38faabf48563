"""log P(lower ≤ X ≤ upper) in PyTensor graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, grad_not_implemented
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch import numba_funcify
from pytensor.link.numba.dispatch.basic import numba_njit

from ppl_backends.errors import ModelError
from ppl_backends.options import integer
from ppl_backends.orthants.batch import MOST_VARIABLES, RowDerivatives, best_log_rectangles, fixed_points
from ppl_backends.orthants.intervals import Array
from ppl_backends.orthants.row_kernels import compute_rows
from ppl_backends.targets.pymc.factors import declare_rectangles
from ppl_backends.targets.pymc.jax_backend import declare_operation


def log_rectangle(mean: Any, cholesky: Any, lower: Any, upper: Any, *, n_points: int = 256, seed: int = 0) -> Any:
    """Return log P(lower ≤ X ≤ upper) as a PyTensor variable, X ~ N(mean, cholesky @ cholesky.T), with gradients.

    Two or three variables need no points, except in tails and for near-singular factors. Otherwise the points are
    fixed, which gives a smooth function of the arguments, as NUTS and optimisers need. It is for up to about ten
    dimensions; every row of bounds is one rectangle.

    Parameters
    ----------
    mean, lower, upper : tensor (dim,) or (n, dim)
        Broadcast against each other.
    cholesky : tensor (dim, dim) or (n, dim, dim)
        Lower triangular, with a positive diagonal; one for all rows, or one each.
    n_points : int
        Rounded up to a power of two.
    seed : int
        Seed of the scramble of the points.

    Returns
    -------
    TensorVariable
        A scalar, or ``(n,)``.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor
    >>> from ppl_backends.math import log_rectangle
    >>> value = log_rectangle(np.zeros(2), np.eye(2), np.zeros(2), np.full(2, np.inf))
    >>> round(float(value.eval()), 4)
    -1.3863
    """
    n_points, seed = integer(1).check("n_points", n_points), integer(0).check("seed", seed)
    vectors = [pt.as_tensor(v).astype("float64") for v in (mean, lower, upper)]
    cholesky = pt.as_tensor(cholesky).astype("float64")
    if cholesky.ndim not in (2, 3) or max(v.ndim for v in vectors) > 2:
        raise ModelError(
            "log_rectangle takes a Cholesky factor (dim, dim), or (n, dim, dim), and mean and bounds (dim,) or (n, dim)"
        )
    single = max(v.ndim for v in vectors) < 2 and cholesky.ndim == 2
    factors = cholesky if cholesky.ndim == 3 else cholesky[None]
    shape = pt.zeros_like(factors[:, :, 0])
    rows = [vector + shape for vector in vectors]
    factors = factors + pt.zeros_like(sum(rows))[:, :, None]
    rows = [vector + pt.zeros_like(factors[:, :, 0]) for vector in rows]
    log_p = _LogRectangle(2 ** int(np.ceil(np.log2(n_points))), seed)(rows[0], factors, rows[1], rows[2])[0]
    return log_p[0] if single else log_p


class _LogRectangle(Op):
    """Log probabilities ``(n,)`` with their derivatives as further outputs, so that one pass gives both."""

    __props__ = ("n_points", "seed")

    def __init__(self, n_points: int, seed: int) -> None:
        self.n_points, self.seed = n_points, seed

    def make_node(self, mean: Any, cholesky: Any, lower: Any, upper: Any) -> Apply:
        outputs = [pt.dvector(), pt.dmatrix(), pt.dmatrix(), pt.dmatrix(), pt.dtensor3()]
        return Apply(self, [mean, cholesky, lower, upper], outputs)

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        for storage, value in zip(output_storage, self.rows(*inputs), strict=True):
            storage[0] = value

    def rows(self, mean: Array, cholesky: Array, lower: Array, upper: Array) -> RowDerivatives:
        """Return log P with derivatives for rows given as NumPy arrays."""
        if mean.shape[1] > MOST_VARIABLES:
            raise ModelError(
                f"log_rectangle: rows have {mean.shape[1]} variables; at most {MOST_VARIABLES} are expected"
            )
        return best_log_rectangles(mean, cholesky, lower, upper, fixed_points(self.n_points, self.seed))

    def infer_shape(self, *arguments: Any) -> Any:  # PyTensor 2 passes (graph, node, shapes), PyTensor 3 (node, shapes)
        n, dim = arguments[-1][0]
        return [(n,), (n, dim), (n, dim), (n, dim), (n, dim, dim)]

    def L_op(self, inputs: Any, outputs: Any, output_gradients: Any) -> Any:
        log_p, *others = output_gradients
        if not all(isinstance(other.type, DisconnectedType) for other in others):
            return [grad_not_implemented(self, i, x, "second derivatives") for i, x in enumerate(inputs)]
        _, by_mean, by_lower, by_upper, by_cholesky = outputs
        return [
            log_p[:, None] * by_mean,
            log_p[:, None, None] * by_cholesky,
            log_p[:, None] * by_lower,
            log_p[:, None] * by_upper,
        ]

    grad = pullback = L_op


@numba_funcify.register(_LogRectangle)
def _in_numba(op: _LogRectangle, **_: Any) -> Any:
    """Return the operation in graphs that PyTensor compiles with Numba."""
    points = fixed_points(op.n_points, op.seed)

    @numba_njit
    def log_rectangle(mean, cholesky, lower, upper):
        n, dim = mean.shape
        if dim > MOST_VARIABLES:
            raise ValueError("log_rectangle: rows have too many variables")
        mean, cholesky = np.ascontiguousarray(mean), np.ascontiguousarray(cholesky)
        lower, upper = np.ascontiguousarray(lower), np.ascontiguousarray(upper)
        log_p, by_cholesky = np.empty(n), np.zeros((n, dim, dim))
        by_mean, by_lower, by_upper = np.zeros((n, dim)), np.zeros((n, dim)), np.zeros((n, dim))
        compute_rows(mean, cholesky, lower, upper, points, log_p, by_mean, by_lower, by_upper, by_cholesky)
        return log_p, by_mean, by_lower, by_upper, by_cholesky

    return log_rectangle


def _register_jax(jax_funcify: Any) -> None:
    """Register the operation with PyTensor's translation to JAX."""
    from ppl_backends.orthants.jax_rows import in_jax

    jax_funcify.register(_LogRectangle, lambda op, **_: in_jax(fixed_points(op.n_points, op.seed)))


declare_rectangles(_LogRectangle)
declare_operation(_register_jax, differenced=_LogRectangle)

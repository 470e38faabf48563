"""Operations that our graphs have in place of PyTensor's, translated to JAX in a way of our own.

PyTensor's translations are a table for the whole process, which other code relies on. A graph of ours is therefore rewritten
just before it is translated, and the operations put into it are entered in the table; those of PyTensor stay as they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.scalar.math import Erfcinv, Erfcx
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot

from ppl_backends.targets.pymc import log_sum_exp, normal_tails, softplus

__all__ = ["jax_translation", "use_own_operations"]


class VectorSideDot(Dot):
    """A product, that of a matrix and a vector written from the vector's side.

    With a batch of vectors as rows that is one product of matrices without transposes, up to twice as fast.
    """


class OwnErfcx(Erfcx):
    """``erfcx``, of truncated and censored densities, for which PyTensor may need TensorFlow Probability."""


class OwnErfcinv(Erfcinv):
    """``erfcinv``, for which PyTensor may need TensorFlow Probability."""


@node_rewriter([Dot, Blockwise, Elemwise])
def _own_operation(fgraph: Any, node: Any) -> Any:
    """Replace an operation of PyTensor's by our own."""
    op: Any = node.op
    if type(op) is Dot:
        return [VectorSideDot()(*node.inputs)]
    if isinstance(op, Blockwise) and type(op.core_op) is Dot:
        return [Blockwise(VectorSideDot(), signature=op.signature)(*node.inputs)]
    own = {Erfcx: OwnErfcx, Erfcinv: OwnErfcinv}.get(type(op.scalar_op)) if isinstance(op, Elemwise) else None
    if own is None:
        return None
    return [Elemwise(own(op.scalar_op.output_types_preference, name=own.__name__))(*node.inputs)]


def use_own_operations(graph: Any) -> None:
    """Put our operations into a function graph that is about to be translated."""
    in2out(_own_operation, ignore_newtrees=True).rewrite(graph)


@cache
def jax_translation() -> Any:
    """Return PyTensor's translation to JAX, which knows our operations from the first call on."""
    import jax
    import jax.numpy as jnp
    from pytensor.link.jax.dispatch import jax_funcify

    def dot(x: Any, y: Any) -> Any:
        column = y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1)
        return jnp.dot(y.T, x.T).T if x.ndim == 2 and column else jnp.dot(x, y)

    def erfcx(x: Any) -> Any:
        # exp(x^2) erfc(x) below 10; above, the asymptotic series 1 - 1/(2x^2) + 1*3/(2x^2)^2 - ...
        near, far = jnp.minimum(x, 10.0), jnp.maximum(x, 10.0)
        term, series = 1.0, 1.0
        for k in range(1, 13):
            term = -term * (2 * k - 1) / (2 * far**2)
            series = series + term
        return jnp.where(x < 10.0, jnp.exp(near**2) * jax.scipy.special.erfc(near), series / (far * np.sqrt(np.pi)))

    def erfcinv(p: Any) -> Any:
        return -jax.scipy.special.ndtri(p / 2) / np.sqrt(2)

    jax_funcify.register(VectorSideDot, lambda op, **_: dot)
    jax_funcify.register(OwnErfcx, lambda op, **_: erfcx)
    jax_funcify.register(OwnErfcinv, lambda op, **_: erfcinv)
    for module in (softplus, normal_tails, log_sum_exp):
        module.register_jax(jax_funcify)
    return jax_funcify

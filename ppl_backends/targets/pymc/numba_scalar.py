"""Scalar operations of our own, made known to PyTensor's translation to Numba, in all its versions."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["register_numba_scalar"]


def register_numba_scalar(operation: type, function: Callable) -> None:
    """Translate a scalar operation to a Numba function.

    Without this PyTensor calls the operation's Python method for every element. The name of the function is part of the
    key under which PyTensor caches machine code on disk: a function that changes needs a new name.
    """
    from pytensor.link.numba import dispatch

    try:
        from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key
    except ImportError:  # PyTensor < 2.36
        dispatch.numba_funcify.register(operation, lambda op, *_, **__: function)
        return
    key = f"ppl_backends.{function.__name__}"
    register_funcify_and_cache_key(operation)(lambda op, *_, **__: (function, key))

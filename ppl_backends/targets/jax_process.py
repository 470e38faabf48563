"""JAX in this process: always in float64, and refused in a process that was forked from one that used JAX.

A forked child process that calls JAX hangs.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_first_process: int | None = None  # the process in which JAX was first used


def jax_module() -> Any:
    """Return JAX; raise an error in a forked child."""
    global _first_process
    if _first_process is None:
        _first_process = os.getpid()
    check_process()
    import jax

    return jax


def double_precision() -> AbstractContextManager[Any]:
    """Return a context in which JAX computes in float64, for any configuration outside."""
    jax = jax_module()
    if jax.config.jax_enable_x64:
        return nullcontext()
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def check_process() -> None:
    """Raise an error in a process that was forked after JAX was used.

    Raises
    ------
    RuntimeError
        One line with the remedy.
    """
    if _first_process is not None and _first_process != os.getpid():
        raise RuntimeError(
            "JAX was used in the parent of this forked process and would hang here: use cores=1 in pm.sample, start workers "
            "with the 'spawn' method, or use as_target(model, backend='numba') if there is no state-space model"
        )

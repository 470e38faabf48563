"""JAX in this process: in float64 whatever else uses it, and refused in a process that was forked from one where it ran.

JAX does not survive a fork: a child process that calls into it hangs.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_first_process: int | None = None  # the process in which JAX was first used


def jax_module() -> Any:
    """Return JAX; refused in a forked child."""
    global _first_process
    if _first_process is None:
        _first_process = os.getpid()
    check_process()
    import jax

    return jax


def double_precision() -> AbstractContextManager[Any]:
    """Return a context in which JAX computes in float64, whatever its configuration is outside."""
    jax = jax_module()
    if jax.config.jax_enable_x64:
        return nullcontext()
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def check_process() -> None:
    """Raise in a process that was forked after JAX was used.

    Raises
    ------
    RuntimeError
        One line that says what to do instead.
    """
    if _first_process is not None and _first_process != os.getpid():
        raise RuntimeError(
            "JAX was used in the parent of this forked process and would hang here: take cores=1 in pm.sample, start workers "
            "with the 'spawn' method, or use as_target(model, backend='numba') where there is no state-space model"
        )

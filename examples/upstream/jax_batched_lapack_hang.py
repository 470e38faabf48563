"""A jitted program with several batched triangular solves never returns.

Versions: jaxlib 0.10.0 to 0.11.0 on CPU (0.10.2 is the last for Python 3.11); not before, and not since 0.11.1.

Expected: prints "done" within seconds.
What happens: prints "start" and hangs, in every run on a machine or affinity mask of two cores; Ctrl-C does not help. On
more cores it takes as many independent solves as there are cores.

Why: the four solves do not depend on each other, so the thunk executor runs them on the intra-op pool at once. Each
``lapack_dtrsm_ffi`` cuts its batch into chunks, schedules these on the same pool and blocks its thread in
``BlockingCounter::Wait`` (``ParallelBatchMap`` in ``jaxlib/cpu/lapack_kernels.cc``). When all threads of the pool wait,
none is left to run a chunk. ``--xla_cpu_multi_thread_eigen=false`` does not help; ``NPROC=8`` in the environment,
before JAX is imported, makes the pool large enough for this program.

Run: taskset -c 0,1 timeout 60 python jax_batched_lapack_hang.py
"""

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

rng = np.random.default_rng(0)
batch, n = 64, 80
factor = np.tril(rng.normal(size=(batch, n, n))) + 10 * np.eye(n)
right = rng.normal(size=(4, batch, n, n))


@jax.jit
def solves(factor, right):
    """Return four solves that do not depend on each other."""
    return [jax.lax.linalg.triangular_solve(factor, b, left_side=True, lower=True) for b in right]


print(f"jax {jax.__version__}: start", flush=True)
for _ in range(100):
    jax.block_until_ready(solves(factor, right))
print("done")

"""The jitted Hessian of a Gaussian process's log density is wrong by orders of magnitude.

Versions: jaxlib 0.10.2 and 0.12.0 on CPU, x86-64 with FMA.

Expected: relative errors against differences of the eager gradient of about 1e-9, jitted as eager.
What happens: the jitted Hessian has relative errors of 2 to 40; eager is right. With other kernels (Matern) and sizes the
jitted gradient is wrong in the same way.

Why: ``squared`` is zero on its diagonal in exact arithmetic, and 0 or 1e-16 in floating point. Fusion copies its cheap
operations into several loops, and in each LLVM contracts products and sums to fused multiply-adds in its own way, so that
``squared > 0`` finds the same element positive in one loop and zero in another. Its derivative then passes on one path
(through the product) and not on the other (through the squared norms), and terms that cancel exactly remain. Either of
``XLA_FLAGS=--xla_disable_hlo_passes=fusion`` and ``--xla_cpu_max_isa=AVX`` (no FMA) makes it right. So does
``jax.lax.optimization_barrier`` around ``squared`` with 0.12; with 0.10.2 the CPU compiler drops the barrier before
fusion, unless ``--xla_disable_hlo_passes=cse_barrier_expander`` is set as well.

Run: python jax_clip_wrong_derivative.py
"""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

n = 20
inputs = np.linspace(0, 10, n)[:, None]
outputs = np.sin(inputs[:, 0])


def log_density(t):
    """Return the log density of a Gaussian process with squared-exponential kernel."""
    length, scale, sigma = jnp.exp(t)
    scaled = inputs / length
    norms = (scaled**2).sum(axis=1)
    squared = -2 * scaled @ scaled.T + norms[:, None] + norms[None, :]
    covariance = scale**2 * jnp.exp(-0.5 * jnp.where(squared > 0, squared, 0.0)) + sigma**2 * jnp.eye(n)
    factor = jnp.linalg.cholesky(covariance)
    z = jax.scipy.linalg.solve_triangular(factor, outputs, lower=True)
    return -0.5 * z @ z - jnp.log(jnp.diag(factor)).sum()


print(f"jax {jax.__version__}: largest relative error")
step = 1e-5 * np.eye(3)
for seed in range(4):
    t = np.random.default_rng(seed).normal(size=3)
    gradient, hessian = jax.grad(log_density), jax.hessian(log_density)
    differences = np.stack([(gradient(t + h) - gradient(t - h)) / 2e-5 for h in step])
    errors = {
        "gradient, jitted": jax.jit(gradient)(t) - gradient(t),
        "Hessian, eager": hessian(t) - differences,
        "Hessian, jitted": jax.jit(hessian)(t) - differences,
    }
    size = {"g": np.abs(gradient(t)).max(), "H": np.abs(differences).max()}
    print("  ".join(f"{name} {np.abs(error).max() / size[name[0]]:.1e}" for name, error in errors.items()))

"""Logistic regression by peers: numpyro's HMCECS or nutpie, on data that ``subsampling_logistic.py --save`` wrote.

    python examples/benchmarks/peers/subsampling_peers.py hmcecs|nutpie data.npz [draws] [warmup]

The script prints one Markdown row in CPU seconds. The time of HMCECS includes compilation and warm-up, because its
sampling cannot be timed separately. The time of nutpie does not include compilation.
"""

import sys
import time

import arviz as az
import numpy as np


def hmcecs(design: np.ndarray, y: np.ndarray, mode: np.ndarray, draws: int, warmup: int) -> tuple[np.ndarray, float]:
    """Return energy-conserving sub-sampling around NUTS: Taylor proxy, subsets of 1,000 rows in 20 blocks."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import HMCECS, MCMC, NUTS

    numpyro.enable_x64()
    x, outcome = jnp.asarray(design), jnp.asarray(y)

    def model() -> None:
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", len(y), subsample_size=1000):
            rows, seen = numpyro.subsample(x, event_dim=1), numpyro.subsample(outcome, event_dim=0)
            numpyro.sample("y", dist.Bernoulli(logits=rows @ beta), obs=seen)

    clock = time.process_time()
    proxy = HMCECS.taylor_proxy({"beta": jnp.asarray(mode)})
    kernel = HMCECS(NUTS(model, dense_mass=True), num_blocks=20, proxy=proxy)
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=draws, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(0), init_params={"beta": jnp.asarray(mode)})
    found = np.asarray(mcmc.get_samples()["beta"])[None]
    return found, time.process_time() - clock


def nutpie_nuts(
    design: np.ndarray, y: np.ndarray, mode: np.ndarray, draws: int, warmup: int
) -> tuple[np.ndarray, float]:
    """Return full-data NUTS of a PyMC model compiled by Numba."""
    import nutpie
    import pymc as pm

    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=design.shape[1])
        pm.Bernoulli("y", logit_p=pm.math.dot(design, beta), observed=y)
    compiled = nutpie.compile_pymc_model(model)
    clock = time.process_time()
    idata = nutpie.sample(compiled, draws=draws, tune=warmup, chains=1, cores=1, progress_bar=False, seed=1)
    return idata.posterior["beta"].values, time.process_time() - clock


def main() -> None:
    """Print one row."""
    method, path = sys.argv[1:3]
    draws = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    warmup = int(sys.argv[4]) if len(sys.argv) > 4 else 300
    data = np.load(path)
    run = {"hmcecs": hmcecs, "nutpie": nutpie_nuts}[method]
    x, seconds = run(data["design"], data["y"], data["mean"], draws, warmup)
    ess = min(float(np.asarray(az.ess(x[..., j]))) for j in range(x.shape[-1]))
    bias = np.abs(x.mean(axis=(0, 1)) - data["mean"]) / data["sd"]
    ratio = x.std(axis=(0, 1)) / data["sd"]
    print(
        f"| {method} | {len(data['y']):,} | {seconds:.1f} s | {ess:.0f} | {ess / seconds:.3g} | {bias.max():.3f} "
        f"({1 / np.sqrt(ess):.3f}) | {ratio.min():.3f}–{ratio.max():.3f} |"
    )


if __name__ == "__main__":
    main()

"""Peers of ``evidence_suite.py``, each with the defaults of its documentation.

Every function takes a problem, its counted log likelihood and a seed, and returns log evidence and standard error.

dynesty    static sampler, 500 live points, called point by point
nautilus   1,000 live points, stops at an effective size of 10,000; the error is that of the effective size
ultranest  reactive sampler, 400 live points, regions and no step sampler
pocomc     preconditioned Monte Carlo, 256 active and 512 effective particles, 4,096 samples, 4,096 points for the
           evidence; the error is its own
blackjax   nested slice sampling (``blackjax.nss``), 500 live points of which 50 are replaced at a time, max(5, 2d)
           slice moves, until the live points hold e⁻³ of the evidence; JAX calls the likelihood in NumPy

All but dynesty evaluate in batches.
"""

import numpy as np

LOWEST = -1e300  # several samplers refuse −inf


def finite(counted):
    """Return the log likelihood of batches, without NaN and infinities."""
    return lambda x: np.maximum(np.nan_to_num(counted(np.atleast_2d(x))[0], nan=LOWEST), LOWEST)


def dynesty(problem, counted, seed):
    """Run the static nested sampler."""
    import dynesty as package

    sampler = package.NestedSampler(
        lambda x: float(counted(x[None])[0][0]),
        lambda u: problem.from_uniform(u[None])[0],
        problem.dim,
        nlive=500,
        rstate=np.random.default_rng(seed),
    )
    sampler.run_nested(print_progress=False)
    return float(sampler.results.logz[-1]), float(sampler.results.logzerr[-1])


def nautilus(problem, counted, seed):
    """Run importance nested sampling with neural networks."""
    from nautilus import Sampler

    sampler = Sampler(
        problem.from_uniform, finite(counted), problem.dim, n_live=1000, vectorized=True, pass_dict=False, seed=seed
    )
    sampler.run(verbose=False)
    return float(sampler.log_z), float(1 / np.sqrt(sampler.n_eff))


def ultranest(problem, counted, seed):
    """Run the reactive nested sampler."""
    import logging

    from ultranest import ReactiveNestedSampler

    np.random.seed(seed)  # noqa: NPY002 (it has no generator of its own)
    names = [f"x{k}" for k in range(problem.dim)]
    sampler = ReactiveNestedSampler(names, finite(counted), problem.from_uniform, vectorized=True)
    logging.getLogger("ultranest").setLevel(logging.ERROR)
    found = sampler.run(show_status=False, viz_callback=False)
    return float(found["logz"]), float(found["logzerr"])


def pocomc(problem, counted, seed):
    """Run preconditioned Monte Carlo."""
    from pocomc import Prior, Sampler
    from scipy import stats

    if problem.sd is None:
        marginals = [stats.uniform(low, high - low) for low, high in zip(problem.low, problem.high, strict=True)]
    else:
        marginals = [stats.norm(0, problem.sd)] * problem.dim
    sampler = Sampler(Prior(marginals), finite(counted), vectorize=True, random_state=seed)
    sampler.run(progress=False)
    return tuple(float(figure) for figure in sampler.evidence())


def blackjax(problem, counted, seed):
    """Run nested slice sampling."""
    import blackjax as package
    import jax
    import jax.numpy as jnp
    from blackjax.ns.utils import finalise, log_weights

    jax.config.update("jax_enable_x64", True)
    likelihood, scalar = finite(counted), jax.ShapeDtypeStruct((), np.float64)

    def many(x):  # any leading dimensions
        x = np.asarray(x)
        return likelihood(x.reshape(-1, problem.dim)).reshape(x.shape[:-1])

    def log_likelihood(x):
        return jax.pure_callback(many, scalar, x, vmap_method="expand_dims")

    def log_prior(x):
        if problem.sd is not None:
            return -0.5 * (x**2).sum() / problem.sd**2
        return jnp.where(((x > problem.low) & (x < problem.high)).all(), 0.0, -jnp.inf)

    algorithm = package.nss(log_prior, log_likelihood, num_inner_steps=max(5, 2 * problem.dim), num_delete=50)
    start = problem.from_uniform(np.random.default_rng(seed).random((500, problem.dim)))
    key = jax.random.key(seed)
    state, dead, step = algorithm.init(jnp.asarray(start)), [], jax.jit(algorithm.step)
    while state.integrator.logZ_live - state.integrator.logZ > -3:
        key, now = jax.random.split(key)
        state, info = step(now, state)
        dead.append(info)
    weights = log_weights(key, finalise(state, dead, update_info=False))
    values = np.asarray(jax.nn.logsumexp(weights, axis=0))
    return float(values.mean()), float(values.std())


PEERS = {
    "dynesty": dynesty,
    "nautilus": nautilus,
    "UltraNest": ultranest,
    "pocoMC": pocomc,
    "blackjax NSS": blackjax,
}
MODULES = {
    "dynesty": ["dynesty"],
    "nautilus": ["nautilus"],
    "UltraNest": ["ultranest"],
    "pocoMC": ["pocomc", "torch"],
    "blackjax NSS": ["jax", "blackjax"],
}

"""The samplers that are compared: ours, PyMC's, blackjax's, nutpie's and that of ``particles``, all with one interface.

A sampler is made for a problem by name, which may compile, and then called with a seed. It returns CPU seconds, the log
evidence if it has one, and the posterior means of the problem's quantities. ``effort`` multiplies the default number of
draws of a peer.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from scipy import special

import ppl_backends as pb
from ppl_backends.results.inference_data import group

from .problems import PROBLEMS

WORKER = Path(__file__).with_name("particles_worker.py")


def means(name, posterior):
    """Return the posterior means of the problem's quantities."""
    values = {str(k): v.values.reshape(-1, *v.shape[2:]) for k, v in posterior.data_vars.items()}
    return PROBLEMS[name]().quantities(values).mean(axis=0).tolist()


class Ours:
    """``ppl_backends.sample_smc`` with its defaults; fitting the start is part of a run."""

    def __init__(self, name, models, initial):
        self.name, self.initial = name, initial
        self.target = pb.as_target(models[name](), cores=1)
        pb.sample_smc(self.target, chains=1, initial=initial, random_seed=10_000, progressbar=False)  # compiles

    def __call__(self, seed):
        """Return one run."""
        clock = time.process_time()
        idata = pb.sample_smc(self.target, initial=self.initial, random_seed=seed, progressbar=False)
        seconds = time.process_time() - clock
        posterior = group(idata, "posterior")
        return {
            "seconds": seconds,
            "log_evidence": posterior.attrs["log_evidence"],
            "log_evidence_se": posterior.attrs["log_evidence_se"],
            "log_evidence_bridge": posterior.attrs.get("log_evidence_bridge"),
            "trusted": posterior.attrs["log_evidence_trusted"],
            "start": posterior.attrs["initial"],
            "kernel": posterior.attrs["kernel"],
            "mean": means(self.name, posterior),
        }


class PyMC:
    """``pymc.sample_smc`` with its defaults: 2,000 draws, independent Metropolis–Hastings, two chains."""

    def __init__(self, name, models, effort=1.0):
        from pymc.smc.kernels import IMH

        class TimedIMH(IMH):
            """Records what its set-up and compilation take."""

            setup_seconds = 0.0

            def __init__(self, *args, **kwargs):
                clock = time.process_time()
                super().__init__(*args, **kwargs)
                TimedIMH.setup_seconds += time.process_time() - clock

        self.name, self.kernel, self.model = name, TimedIMH, models[name]()
        self.draws = round(2000 * effort)

    def __call__(self, seed):
        """Return one run."""
        import pymc as pm

        self.kernel.setup_seconds, clock = 0.0, time.process_time()
        with self.model:
            idata = pm.sample_smc(
                self.draws, kernel=self.kernel, chains=2, cores=1, random_seed=seed, progressbar=False
            )
        seconds = time.process_time() - clock - self.kernel.setup_seconds
        final = [_last(chain) for chain in group(idata, "sample_stats")["log_marginal_likelihood"].values]
        return {
            "seconds": seconds,
            "log_evidence": float(np.logaddexp.reduce(final) - np.log(len(final))),
            "mean": means(self.name, group(idata, "posterior")),
        }


def _last(nested):
    """Return the last number of PyMC's nested, ragged lists of stages."""
    while isinstance(nested, (list, np.ndarray)):
        nested = nested[-1]
    return float(nested)


class Nutpie:
    """NUTS by nutpie with its defaults on four chains; posterior means alone, warm-up included in the time."""

    def __init__(self, name, models, effort=1.0):
        import nutpie

        self.name, self.sample, self.draws = name, nutpie.sample, round(1000 * effort)
        self.model = nutpie.compile_pymc_model(models[name]())

    def __call__(self, seed):
        """Return one run."""
        clock = time.process_time()
        idata = self.sample(self.model, draws=self.draws, chains=4, cores=1, seed=seed, progress_bar=False)
        return {"seconds": time.process_time() - clock, "mean": means(self.name, group(idata, "posterior"))}


class Blackjax:
    """Adaptive tempered SMC with HMC by blackjax: 1,000 particles, ten moves of ten leapfrog steps per stage, unit mass.

    Its step size has no default. It is set to one and a half times the smallest standard deviation, in any direction,
    of the Gaussian at the mode, which a user would not know beforehand.
    """

    moves, leapfrog = 10, 10

    def __init__(self, name, models, effort=1.0):
        import blackjax
        import blackjax.smc.resampling
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_enable_x64", True)
        self.problem, self.jax, self.n = PROBLEMS[name](), jax, round(1000 * effort)
        problem, mean, sd = self.problem, jnp.asarray(self.problem.mean), jnp.asarray(self.problem.sd)

        def log_prior(x):
            return (-0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd) - 0.5 * jnp.log(2 * jnp.pi)).sum()

        def log_likelihood(x):
            return problem.log_likelihood(jnp, jax.scipy.special, x[None])[0]

        step_size = 1.5 * _smallest_sd(jax, lambda x: log_prior(x) + log_likelihood(x), problem.dim)
        parameters = {
            "step_size": step_size,
            "inverse_mass_matrix": jnp.ones(problem.dim),
            "num_integration_steps": self.leapfrog,
        }
        self.sampler = blackjax.adaptive_tempered_smc(
            log_prior,
            log_likelihood,
            blackjax.hmc.build_kernel(),
            blackjax.hmc.init,
            blackjax.smc.extend_params(parameters),
            blackjax.smc.resampling.systematic,
            0.5,
            num_mcmc_steps=self.moves,
        )
        self.step = jax.jit(self.sampler.step)
        self._run(0, stages=2)  # compiles, for both types of the state

    def __call__(self, seed):
        """Return one run; the means are of its weighted particles."""
        problem, clock = self.problem, time.process_time()
        state, log_evidence = self._run(seed)
        theta, weights = np.asarray(state.particles), np.asarray(state.weights)
        mean = weights @ problem.quantities(problem.values(special, theta))
        return {"seconds": time.process_time() - clock, "log_evidence": log_evidence, "mean": mean.tolist()}

    def _run(self, seed, stages=10_000):
        """Return the last state and the log evidence, from draws of the prior."""
        key, problem = self.jax.random.PRNGKey(seed), self.problem
        z = np.random.default_rng(seed).standard_normal((self.n, problem.dim))
        state, log_evidence = self.sampler.init(self.jax.numpy.asarray(problem.mean + problem.sd * z)), 0.0
        for _ in range(stages):
            if float(state.tempering_param) >= 1.0:
                break
            key, now = self.jax.random.split(key)
            state, info = self.step(now, state)
            log_evidence += float(info.log_likelihood_increment)
        return state, log_evidence


def _smallest_sd(jax, log_density, dim):
    """Return the sd of the Gaussian at the mode, in the direction where it is smallest."""
    from scipy.optimize import minimize

    value = jax.jit(jax.value_and_grad(lambda x: -log_density(x)))
    found = minimize(
        lambda x: [np.asarray(part, float) for part in value(x)], np.full(dim, 0.1), jac=True, method="L-BFGS-B"
    )
    curvature = np.asarray(jax.hessian(lambda x: -log_density(x))(found.x))
    return float(np.linalg.eigvalsh(curvature)[-1] ** -0.5)


class Particles:
    """Waste-free tempering by ``particles`` with a random walk: ``starts`` times ``length`` particles."""

    def __init__(self, name, models, effort=1.0, starts=200, length=10):
        python = os.environ.get("PARTICLES_PYTHON", sys.executable)
        self.request = {"problem": name, "starts": starts, "length": round(length * effort)}
        self.worker = subprocess.Popen(
            [python, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._ask(seed=1, starts=20, length=20)

    def __call__(self, seed):
        """Return one run."""
        return self._ask(seed=seed)

    def _ask(self, **changes):
        self.worker.stdin.write(json.dumps(self.request | changes) + "\n")
        self.worker.stdin.flush()
        answer = json.loads(self.worker.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self):
        """End the worker."""
        self.worker.stdin.close()
        self.worker.wait(timeout=10)


SAMPLERS = {
    "auto": lambda name, models: Ours(name, models, "auto"),
    "prior": lambda name, models: Ours(name, models, "prior"),
    "pymc": PyMC,
    "particles": Particles,
    "particles-long": lambda name, models: Particles(name, models, starts=50, length=400),
    "blackjax": Blackjax,
    "nutpie": Nutpie,
}

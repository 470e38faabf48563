"""Methods by name, for host libraries: they take a PyMC model and one run configuration, and return InferenceData."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError, PPLBackendsWarning
from ppl_backends.options import shown
from ppl_backends.results.inference_data import as_inference_data, group, group_names
from ppl_backends.targets.convert import is_instance

BACKENDS = {"jax": "jax", "numba": "numba", "cvm": "c", "c": "c", "cxx_only": "c", "fast_run": "c"}
"""Backends of targets by PyTensor's names of modes and linkers in lower case."""

APPROXIMATE_CHAINS = 4
"""Default number of chains of independent draws of an approximation."""


@dataclass(frozen=True)
class Method:
    """A public function of this package, and the parts of a run configuration that it has arguments for.

    ``call`` is ``"module:function"``. ``fits`` is True if the function returns an approximation, from which draws are
    taken.
    """

    call: str
    title: str
    fits: bool = False
    takes: frozenset[str] = frozenset()

    @property
    def function(self) -> Callable[..., Any]:
        """Return the public function."""
        module, name = self.call.split(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return found


_POINTWISE = frozenset({"log_likelihood", "log_prior"})

METHODS = {
    "smc": Method("ppl_backends.smc:sample_smc", "tempering SMC", takes=_POINTWISE | {"cores"}),
    "ibis": Method("ppl_backends.smc.ibis:sample_ibis", "SMC over the data", takes=_POINTWISE | {"cores"}),
    "importance": Method(
        "ppl_backends.importance:sample_importance", "importance sampling", takes=_POINTWISE | {"cores"}
    ),
    "mcmc": Method(
        "ppl_backends.mcmc.sample:sample_mcmc",
        "calibrated MCMC",
        takes=frozenset({"log_likelihood", "cores", "tune", "initvals"}),
    ),
    "abc": Method("ppl_backends.simulators.abc:sample_abc", "ABC", takes=frozenset({"cores"})),
    "smc2": Method("ppl_backends.state_space:sample_smc2", "SMC²", takes=frozenset({"log_prior", "cores"})),
    "pmmh": Method("ppl_backends.state_space:sample_pmmh", "PMMH", takes=frozenset({"tune", "initvals"})),
    "particle_gibbs": Method(
        "ppl_backends.state_space:sample_particle_gibbs", "particle Gibbs", takes=frozenset({"tune", "initvals"})
    ),
    "laplace": Method("ppl_backends.approximations:fit_laplace", "Laplace", fits=True, takes=frozenset({"initvals"})),
    "ep": Method("ppl_backends.approximations.ep:fit_ep", "expectation propagation", fits=True),
    "vi": Method("ppl_backends.approximations.variational:fit_vi", "variational inference", fits=True),
    "inla": Method("ppl_backends.approximations.inla:fit_inla", "nested Laplace", fits=True),
}


@dataclass(frozen=True)
class Run:
    """The run configuration of ``pm.sample``: the arguments that every sampler gets.

    Fields have the names and the defaults of ``pm.sample``.
    """

    model: Any = None
    draws: int = 1000
    tune: int | None = None
    chains: int | None = None
    cores: int | None = None
    initvals: Any = None
    random_seed: Any = None
    progressbar: Any = True
    quiet: bool = False
    discard_tuned_samples: bool = True
    keep_warning_stat: bool = False
    var_names: Sequence[str] | None = None
    idata_kwargs: Mapping[str, Any] | None = None
    compute_convergence_checks: bool = True
    compile_kwargs: Mapping[str, Any] | None = None
    blas_cores: Any = "auto"
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def check(self, method: Method) -> None:
        """Refuse arguments that a method does not support, and log those that it does not need.

        Raises
        ------
        ModelError
            If an argument asks for something that the method does not have; the message names the argument.
        """
        for name, value in self.unknown.items():
            raise ModelError(f"{name}={shown(value)}: {method.title} does not support this argument of pm.sample")
        if not self.discard_tuned_samples:
            raise ModelError("discard_tuned_samples=False: draws of the tuning are not kept; leave it out")
        if self.keep_warning_stat:
            raise ModelError("keep_warning_stat=True: there is no such statistic here; leave it out")
        if self.initvals is not None and "initvals" not in method.takes:
            raise ModelError(f"initvals: {method.title} starts from a distribution, not from points; leave it out")
        unread = set(self.idata_kwargs or {}) - _POINTWISE
        if unread:
            raise ModelError(f"idata_kwargs has {sorted(unread)[0]!r}; known are log_likelihood and log_prior")
        self._check_names()
        if self.tune is not None and "tune" not in method.takes and not self.quiet:
            logging.getLogger("pymc").info("%s has no warm-up: tune=%s is not used", method.title, self.tune)

    def _check_names(self) -> None:
        """Refuse unknown variables before the run; the result of a state-space model has others than the model."""
        if self.var_names is None or not is_instance(self.model, "pymc", "Model"):
            return
        from ppl_backends.targets.pymc.graph import state_space_variables

        known = [variable.name for variable in (*self.model.free_RVs, *self.model.deterministics)]
        for name in self.var_names:
            if name not in known and not state_space_variables(self.model):
                raise ModelError(f"var_names: the posterior has no variable {name!r}; it has {', '.join(known)}")

    def options(self, method: Method) -> dict[str, Any]:
        """Return the arguments of the public function for this configuration."""
        wanted: dict[str, Any] = {
            name: bool((self.idata_kwargs or {}).get(name, False)) for name in _POINTWISE & method.takes
        }
        if not method.fits:
            wanted["draws"] = self.draws
            if self.chains is not None:
                wanted["chains"] = self.chains
        for name in ("tune", "cores", "initvals"):
            value = getattr(self, name)
            if value is not None and name in method.takes:
                wanted[name] = value
        backend = backend_of(self.compile_kwargs)
        if backend is not None:
            wanted["backend"] = backend
        return wanted | {
            "random_seed": seed_of(self.random_seed),
            "progressbar": bool(self.progressbar) and not self.quiet,
        }


def backend_of(compile_kwargs: Mapping[str, Any] | None) -> str | None:
    """Return the backend of a target for PyMC's ``compile_kwargs``; None if they name no mode.

    Raises
    ------
    ModelError
        If they hold anything but a known mode.
    """
    given = {name: value for name, value in (compile_kwargs or {}).items() if value is not None}
    if not given:
        return None
    mode = given.pop("mode", None)
    if given:
        raise ModelError(f"compile_kwargs has {sorted(given)[0]!r}; only mode is known: 'JAX', 'NUMBA' or 'C'")
    linker = type(getattr(mode, "linker", mode)).__name__.removesuffix("Linker")
    name = (mode if isinstance(mode, str) else linker).lower()
    if name not in BACKENDS and name != "vm":
        raise ModelError(f"compile_kwargs: mode={shown(mode)} is not known; expected 'JAX', 'NUMBA' or 'C'")
    return BACKENDS.get(name, "c")


def seed_of(random_seed: Any) -> Any:
    """Return a seed of PyMC (an integer, several integers, or a NumPy generator) as a seed of this package."""
    if isinstance(random_seed, np.random.RandomState):
        return int(random_seed.randint(2**31))
    if isinstance(random_seed, np.ndarray | list | tuple):
        return np.random.default_rng([int(value) for value in random_seed])
    return random_seed


def find_method(name: Any) -> Method:
    """Return a method by its name.

    Raises
    ------
    ModelError
        If no method has this name.
    """
    if not isinstance(name, str) or name not in METHODS:
        raise ModelError(f"method={shown(name)}: expected one of {', '.join(METHODS)}")
    return METHODS[name]


def run_method(name: str, run: Run, options: Mapping[str, Any]) -> Any:
    """Return the draws of a method on a PyMC model, in the form that ``pm.sample`` returns.

    Parameters
    ----------
    name : str
        One of :data:`METHODS`.
    run : Run
    options : mapping
        Further arguments of the public function, such as ``kernel`` of ``sample_smc``. They have precedence.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
    """
    from threadpoolctl import threadpool_limits

    method = find_method(name)
    run.check(method)
    limit = run.blas_cores if isinstance(run.blas_cores, int) else None
    with warnings.catch_warnings(), threadpool_limits(limits=limit):
        if not run.compute_convergence_checks:
            warnings.simplefilter("ignore", PPLBackendsWarning)
        result = method.function(run.model, **(run.options(method) | dict(options)))
        if method.fits:
            chains = APPROXIMATE_CHAINS if run.chains is None else run.chains
            result = result.to_inference_data(draws=run.draws, chains=chains, random_seed=seed_of(run.random_seed))
    return _selected(_with_pointwise(result, run, method), run.var_names)


def _with_pointwise(idata: Any, run: Run, method: Method) -> Any:
    """Add the pointwise groups that the host asks for and the method does not store."""
    from pymc.stats import compute_log_likelihood, compute_log_prior

    for name, compute in (("log_likelihood", compute_log_likelihood), ("log_prior", compute_log_prior)):
        if (run.idata_kwargs or {}).get(name) and name not in method.takes:
            idata = compute(idata, model=run.model, progressbar=False)
    return idata


def _selected(idata: Any, var_names: Sequence[str] | None) -> Any:
    """Return a result with only the named variables in its posterior."""
    if var_names is None:
        return idata
    groups = {name: group(idata, name) for name in group_names(idata)}
    missing = [name for name in var_names if name not in groups["posterior"]]
    if missing:
        raise ModelError(f"var_names: the posterior has no variable {missing[0]!r}")
    groups["posterior"] = groups["posterior"][list(var_names)]
    return as_inference_data(groups)

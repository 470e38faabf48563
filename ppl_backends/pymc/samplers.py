"""Samplers for ``pm.sample(sampler=…)``: PyMC's contract for whole-model samplers, if the installed PyMC has it.

The constructor takes the algorithm's options and no model. ``sample_from_init`` takes exactly the run
configuration that ``pm.sample`` forwards. Its signature is copied from the installed contract, so that both always
agree.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from ppl_backends.errors import ModelError
from ppl_backends.pymc.methods import METHODS, Run, backend_of, run_method
from ppl_backends.targets.convert import pymc_model

try:
    from pymc.sampling.samplers.base import Sampler as _Contract  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # PyMC without the contract: only pb.pymc.sample uses the samplers
    _Contract = object

HAS_CONTRACT = _Contract is not object
"""Whether the installed PyMC has ``pm.sample(sampler=…)``."""


def run_signature(contract: type) -> inspect.Signature:
    """Return the signature of ``sample_from_init``: the contract's if there is one, else that of the run configuration."""
    if contract is not object:
        return inspect.signature(contract.sample_from_init)  # type: ignore[attr-defined]
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [
        inspect.Parameter(each.name, keyword, default=each.default) for each in fields(Run) if each.name != "unknown"
    ]
    return inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *own])


_SIGNATURE = run_signature(_Contract)


class Sampler(_Contract):  # type: ignore[misc, valid-type, unused-ignore]
    """Base of the samplers; a subclass names its method.

    Parameters
    ----------
    **options
        Arguments of the method's own function, such as ``kernel`` of :func:`~ppl_backends.sample_smc`. Arguments of
        ``pm.sample`` (``draws``, ``chains``, ``random_seed``, …) are not accepted.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> isinstance(pb.pymc.SMC(kernel="barker"), pb.pymc.Sampler)
    True
    """

    method = ""

    def __init__(self, **options: Any) -> None:
        options = _with_backend(type(self).__name__, options)
        function = METHODS[self.method].function
        parameters = inspect.signature(function).parameters
        known = {name for name in parameters if name not in _RUN} - {"model", "data"}
        known |= {"backend"} if "target_options" in parameters else set()
        known -= {"target_options"}
        for name, value in options.items():
            if name in _RUN:
                raise ModelError(f"{type(self).__name__}({name}=…): give {name} to pm.sample or pb.pymc.sample")
            if name not in known:
                raise ModelError(f"{type(self).__name__} has no option {name!r}; known are {', '.join(sorted(known))}")
            checks = function.options  # type: ignore[attr-defined]
            if name in checks:
                checks[name].check(name, value)
        self.options = dict(options)

    def sample_from_init(self, **run: Any) -> Any:
        """Draw from the posterior of a PyMC model with this configuration; ``pm.sample(sampler=…)`` calls it.

        Parameters
        ----------
        model : pymc.Model, optional
            The model on the context stack by default.
        draws, chains : int, optional
        tune : int, optional
            Used only by Markov chains. SMC, importance sampling and approximations have no warm-up and log that it is
            not used.
        cores : int, optional
            Threads that evaluate the density.
        initvals : dict or list of dict, optional
            Starting values, if the method starts from points; otherwise they are an error.
        random_seed : int, sequence of int or numpy.random.Generator, optional
        progressbar, quiet : bool
        discard_tuned_samples, keep_warning_stat : bool
            Only their default values are accepted.
        var_names : sequence of str, optional
            Variables to keep in the posterior.
        idata_kwargs : dict, optional
            ``log_likelihood`` and ``log_prior``.
        compute_convergence_checks : bool
            Whether to give the method's verdict as warnings; the result stores the verdict in any case.
        compile_kwargs : dict, optional
            Only ``mode``, which chooses the compiler of the model.
        blas_cores : int, "auto" or None
            Threads of BLAS.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
        """
        bound = _SIGNATURE.bind(self, **run)
        bound.apply_defaults()
        known = {name: value for name, value in bound.arguments.items() if name in _RUN}
        defaults = {name: each.default for name, each in _SIGNATURE.parameters.items() if name not in {*_RUN, "self"}}
        unknown = {name: bound.arguments[name] for name in defaults if bound.arguments[name] != defaults[name]}
        known["model"] = checked_model(known.get("model"))
        return run_method(self.method, Run(**known, unknown=unknown), self.options)

    sample_from_init.__signature__ = _SIGNATURE  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}({options})"


def _with_backend(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options with ``backend`` in place of ``compile_kwargs``, where the contract leaves these to the sampler."""
    if "compile_kwargs" not in options or "compile_kwargs" in _SIGNATURE.parameters:
        return options
    if "backend" in options:
        raise ModelError(f"{name}: backend and compile_kwargs both choose the compiler; give one of them")
    backend = backend_of(options["compile_kwargs"])
    others = {each: value for each, value in options.items() if each != "compile_kwargs"}
    return others if backend is None else others | {"backend": backend}


_RUN = {each.name for each in fields(Run)} - {"unknown"} | {"log_likelihood", "log_prior"}


def checked_model(model: Any) -> Any:
    """Return the pm.Model given, or on the context stack; refuse one without free variables."""
    found = pymc_model(model)
    if found is None:
        raise ModelError(f"model is of type {type(model).__name__}: expected a pm.Model")
    if not found.free_RVs:
        raise ModelError("the model has no free variables: there is nothing to sample")
    return found

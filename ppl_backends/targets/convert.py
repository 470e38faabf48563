"""Convert a user's model of any kind to a target."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.numerics.differences import central_differences
from ppl_backends.options import checked, choice
from ppl_backends.targets.observations import Observations
from ppl_backends.targets.protocol import (
    Array,
    BaseTarget,
    Evaluation,
    JointEvaluation,
    as_points,
    prior_draws,
    sanitize,
    undefined,
)


@checked(backend=choice("auto", "jax", "numba", "c"))
def as_target(
    model: Any = None, data: Any = None, *, backend: str = "auto", cores: int | None = None, **options: Any
) -> BaseTarget:
    """Return a model as a target: its batched log density on the unconstrained space.

    Parameters
    ----------
    model : pm.Model, Bambi model, path, str, CmdStanModel or target, optional
        By default the PyMC model on the context stack. A path that ends in ``.stan``, the text of a Stan program or a
        ``cmdstanpy.CmdStanModel`` is compiled as Stan. Any object with ``dim`` and ``evaluate`` or ``log_density``
        counts as a target; missing members of the protocol are derived if possible.
    data : dict or path, optional
        For Stan the program's data; for PyMC new values of ``pm.Data`` containers, by name.
    backend : {"auto", "jax", "numba", "c"}
        Compiler of a PyMC model; see :class:`~ppl_backends.targets.pymc.target.PyMCTarget`.
    cores : int, optional
        Threads that evaluate a batch of points; all available cores by default.
    **options
        For Stan, passed to its target.

    Returns
    -------
    BaseTarget
        The same object for a PyMC model that has not changed since the last call, with its compiled functions.

    Raises
    ------
    ModelError
        If ``model`` is none of these, or the model cannot be used; the message has the reason.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     _ = pm.Normal("y", mu, 1, observed=[1.0])
    >>> as_target(model).dim
    1
    """
    if _is_stan(model):
        return _stan_target(model, data, backend, cores, options)
    source = pymc_model(model)
    if source is not None:
        return _pymc_target(source, data, backend, cores, options)
    if data is not None:
        raise ModelError("data= is for Stan programs and PyMC models: a target already holds its data")
    if options:
        raise ModelError(f"unknown option {next(iter(options))!r}; a target takes none")
    if isinstance(model, BaseTarget):
        return model
    if is_instance(model, "ppl_backends", "Factors"):
        from ppl_backends.targets.factors import FactorsTarget

        return FactorsTarget(model)
    if hasattr(model, "dim") and (hasattr(model, "evaluate") or hasattr(model, "log_density")):
        return AdaptedTarget(model)
    raise ModelError(
        f"model is of type {type(model).__name__}: expected a pm.Model, a Bambi model, a .stan path, the text of a "
        "Stan program, a cmdstanpy.CmdStanModel, or an object with dim and log_density"
    )


def is_model(value: Any) -> bool:
    """Return whether a value is a model of PyMC, Bambi or Stan, or a target of this package."""
    if isinstance(value, BaseTarget | os.PathLike) or is_instance(value, "cmdstanpy", "CmdStanModel"):
        return True
    text = isinstance(value, str) and (Path(value).suffix == ".stan" or "{" in value)
    return text or is_instance(value, "pymc", "Model") or is_instance(value, "bambi", "Model")


def _is_stan(model: Any) -> bool:
    """Return whether it is a path, program text, or a compiled CmdStan model."""
    if isinstance(model, str | os.PathLike):
        text = os.fspath(model)
        if isinstance(text, str) and (Path(text).suffix in (".stan", ".so", ".dylib", ".dll") or "{" in text):
            return True
        raise ModelError(f"model={text!r} is neither a path that ends in .stan nor the text of a Stan program")
    return is_instance(model, "cmdstanpy", "CmdStanModel")


def is_instance(model: Any, module: str, name: str) -> bool:
    """Return ``isinstance`` without an import; the library of an object is already loaded."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(model, kind)


def _context_model() -> Any:
    if "pymc" in sys.modules:
        import pymc as pm

        try:
            return pm.modelcontext(None)
        except TypeError:
            pass
    raise ModelError("no model: pass one as the first argument, or call inside 'with pm.Model():'")


def pymc_model(model: Any = None) -> Any:
    """Return the pm.Model given, that of a Bambi model or, by default, that on the context stack; else None."""
    if model is None:
        return _context_model()
    if is_instance(model, "pymc", "Model"):
        return model
    if is_instance(model, "bambi", "Model"):
        if not model.built:
            model.build()
        return model.backend.model
    return None


def _stan_target(model: Any, data: Any, backend: str, cores: int | None, options: Mapping[str, Any]) -> BaseTarget:
    from ppl_backends.targets.stan import stan_target
    from ppl_backends.targets.stan.groups import Groups

    if backend != "auto":
        raise ModelError(f"backend={backend!r} is for PyMC models; Stan programs are compiled with C++")
    known = [
        name for name in inspect.signature(stan_target).parameters if name not in ("model", "data", "cores", "groups")
    ]
    known += [each.name for each in fields(Groups)]
    for name in options:
        if name not in known:
            raise ModelError(f"unknown option {name!r} for a Stan program; known are cores, {', '.join(known)}")
    return stan_target(model, data=data, cores=cores, **options)


def naming(log_likelihood: Any) -> dict[str, Any]:
    """Return the target option for names of log likelihoods; empty if they are asked for by a flag."""
    return {} if isinstance(log_likelihood, bool) else {"log_likelihood": log_likelihood}


def _pymc_target(model: Any, data: Any, backend: str, cores: int | None, options: Mapping[str, Any]) -> BaseTarget:
    from ppl_backends.targets.pymc import PyMCTarget
    from ppl_backends.targets.pymc.graph import state_space_variables, unnormalized_variables
    from ppl_backends.targets.pymc.kept import kept_target
    from ppl_backends.targets.pymc.state_space import state_space_target
    from ppl_backends.targets.pymc.unnormalized import unnormalized_target

    if options:
        raise ModelError(
            f"unknown option {next(iter(options))!r}: this call does not take it; a PyMC model takes backend and cores"
        )
    if data is None and unnormalized_variables(model):
        return unnormalized_target(model)
    make = state_space_target if state_space_variables(model) else PyMCTarget
    target: BaseTarget = kept_target(model, make, backend=backend, cores=cores)
    if data is None:
        return target
    if not isinstance(data, Mapping):
        raise ModelError(f"data of a PyMC model is {type(data).__name__}: expected a dict of pm.Data names to values")
    return target.with_data(data)


COMPLETED = frozenset(
    {"dim", "names", "has_gradient", "evaluate", "log_density", "log_density_and_gradient", "sample_prior"}
    | {"observations", "full", "free", "embed", "digests", "with_fixed_batch_size"}
)
"""Members of the protocol that an adapted target defines; all others are the object's, if it has them."""


class AdaptedTarget(BaseTarget):
    """Complete an object that has ``dim`` and ``evaluate`` or ``log_density`` to a full target.

    Gradients come from the object's ``evaluate`` or ``log_density_and_gradient``, and otherwise from central
    differences. All other members of the protocol that the object has are used unchanged.
    """

    def __init__(self, given: Any) -> None:
        self._given = given
        self.dim = int(given.dim)
        self.names = tuple(getattr(given, "names", [f"x[{j}]" for j in range(self.dim)]))
        if len(self.names) != self.dim or len(set(self.names)) != self.dim:
            raise ModelError(f"target has dim={self.dim} and {len(set(self.names))} different names; expected one each")
        self.label = type(given).__name__
        self._evaluates = hasattr(given, "evaluate")
        self.has_gradient = self._evaluates or hasattr(given, "log_density_and_gradient")
        for member in vars(BaseTarget):
            if not member.startswith("_") and member not in COMPLETED and hasattr(given, member):
                setattr(self, member, getattr(given, member))
        self._sample_prior = getattr(given, "sample_prior", None)
        rows = getattr(given, "observations", None)
        self.observations = rows if rows is None or isinstance(rows, Observations) else AdaptedObservations(rows)

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        if self._sample_prior is None:
            return super().sample_prior(n, rng)
        return prior_draws(self, self._sample_prior(n, rng), n)

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        """Return the result of the object's ``evaluate``, or the joint density."""
        x = as_points(x, self.dim)
        if self._evaluates:
            return self._given.evaluate(x, gradient)
        if gradient and self.has_gradient:
            return JointEvaluation(*sanitize(*map(np.asarray, self._given.log_density_and_gradient(x))))
        value, _ = sanitize(self._log_density(x))
        if not gradient:
            return JointEvaluation(value)
        slope = central_differences(self._log_density, x)
        return JointEvaluation(value, np.where(np.isfinite(slope).all(axis=1, keepdims=True), slope, 0.0))

    def _log_density(self, x: Array) -> Array:
        return np.asarray(self._given.log_density(x), dtype=np.float64)

    def undefined(self, x: Array) -> NDArray[np.bool_]:
        x = as_points(x, self.dim)
        if not self._evaluates:
            return undefined(self._log_density(x))
        parts = self._given.evaluate(x, False)
        known = [parts.log_density] if parts.log_prior is None else [parts.log_prior, parts.log_likelihood]
        return undefined(*map(np.asarray, known))


class AdaptedObservations(Observations):
    """Complete an object that has ``n`` and ``log_likelihood``; its other members are used unchanged."""

    def __init__(self, given: Any) -> None:
        self.n = int(given.n)
        self.log_likelihood = given.log_likelihood  # type: ignore[method-assign]
        for member in ("sum", "score_and_hessian", "log_prior_and_potentials", "check"):
            if hasattr(given, member):
                setattr(self, member, getattr(given, member))
        self.no_gradient = "" if hasattr(given, "sum") else "they have no sum(x, index, weights, gradient)"

"""Whatever a user hands in as a model becomes a target."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.options import checked, choice
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

__all__ = ["as_target"]

# What a third party's target may bring along, beside its density.
MEMBERS = (
    "coords",
    "constant_data",
    "constrain",
    "dims",
    "evaluate_potentials",
    "evaluate_prior",
    "explain",
    "factors",
    "undefined",
    "has_potentials",
    "has_split",
    "hessian",
    "initial_points",
    "label",
    "log_likelihood_estimate",
    "log_prior_normalizer",
    "log_prior_normalizer_df",
    "log_prior_normalizer_se",
    "observations",
    "observed_data",
    "pointwise_log_likelihood",
    "simulate",
    "unconstrain",
    "with_data",
)


@checked(backend=choice("auto", "jax", "numba", "c"))
def as_target(
    model: Any = None, data: Any = None, *, backend: str = "auto", cores: int | None = None, **options: Any
) -> BaseTarget:
    """A model as a target: its batched log density on the unconstrained space.

    Parameters
    ----------
    model : pm.Model, Bambi model, path, str, CmdStanModel or target, optional
        By default the PyMC model on the context stack. A path that ends in ``.stan``, the text of a Stan program or a
        ``cmdstanpy.CmdStanModel`` is compiled as Stan. Any object with ``dim`` and ``evaluate`` or ``log_density``
        counts as a target; what it lacks of the protocol is derived where possible.
    data : dict or path, optional
        For Stan the program's data; for PyMC new values of ``pm.Data`` containers, by name.
    backend : {"auto", "jax", "numba", "c"}
        What compiles a PyMC model; see :class:`~ppl_backends.targets.pymc.target.PyMCTarget`.
    cores : int, optional
        Threads that evaluate a batch of points; all available cores by default.
    **options
        For Stan, passed on to its target.

    Returns
    -------
    BaseTarget

    Raises
    ------
    ModelError
        If ``model`` is none of these, or the model cannot be used; one line that says why.

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
        from ppl_backends.targets.stan import stan_target

        if backend != "auto":
            raise ModelError(f"backend={backend!r} is for PyMC models; Stan programs are compiled with C++")
        known = [name for name in inspect.signature(stan_target).parameters if name not in ("model", "data", "cores")]
        for name in options:
            if name not in known:
                raise ModelError(f"unknown option {name!r} for a Stan program; known are cores, {', '.join(known)}")
        return stan_target(model, data=data, cores=cores, **options)
    pymc_model = _context_model() if model is None else _pymc_model(model)
    if pymc_model is not None:
        return _pymc_target(pymc_model, data, backend, cores, options)
    if data is not None:
        raise ModelError("data= is for Stan programs and PyMC models: a target already holds its data")
    if options:
        raise ModelError(f"unknown option {next(iter(options))!r}; a target takes none")
    if isinstance(model, BaseTarget):
        return model
    if _is_instance(model, "ppl_backends", "Factors"):
        from ppl_backends.targets.factors import FactorsTarget

        return FactorsTarget(model)
    if hasattr(model, "dim") and (hasattr(model, "evaluate") or hasattr(model, "log_density")):
        return AdaptedTarget(model)
    raise ModelError(
        f"model is of type {type(model).__name__}: expected a pm.Model, a Bambi model, a .stan path, the text of a "
        "Stan program, a cmdstanpy.CmdStanModel, or an object with dim and log_density"
    )


def _is_stan(model: Any) -> bool:
    """A path, program text, or a compiled CmdStan model."""
    if isinstance(model, str | os.PathLike):
        text = os.fspath(model)
        if isinstance(text, str) and (Path(text).suffix in (".stan", ".so", ".dylib", ".dll") or "{" in text):
            return True
        raise ModelError(f"model={text!r} is neither a path that ends in .stan nor the text of a Stan program")
    return _is_instance(model, "cmdstanpy", "CmdStanModel")


def _is_instance(model: Any, module: str, name: str) -> bool:
    """``isinstance`` that imports nothing: an object's library is loaded already."""
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


def _pymc_model(model: Any) -> Any:
    """The pm.Model that ``model`` is, or that a Bambi model wraps; None for anything else."""
    if _is_instance(model, "pymc", "Model"):
        return model
    if _is_instance(model, "bambi", "Model"):
        if not model.built:
            model.build()
        return model.backend.model
    return None


def _pymc_target(model: Any, data: Any, backend: str, cores: int | None, options: Mapping[str, Any]) -> BaseTarget:
    from ppl_backends.targets.pymc import PyMCTarget
    from ppl_backends.targets.pymc.graph import unnormalized_variables
    from ppl_backends.targets.pymc.unnormalized import unnormalized_target

    if options:
        raise ModelError(f"unknown option {next(iter(options))!r} for a PyMC model; known are backend and cores")
    if data is None and unnormalized_variables(model):
        return unnormalized_target(model)
    target = PyMCTarget(model, backend=backend, cores=cores)
    if data is None:
        return target
    if not isinstance(data, Mapping):
        raise ModelError(f"data of a PyMC model is {type(data).__name__}: expected a dict of pm.Data names to values")
    return target.with_data(data)


class AdaptedTarget(BaseTarget):
    """Completes an object that has ``dim`` and ``evaluate`` or ``log_density`` to a full target.

    Gradients come from the object's ``evaluate`` or ``log_density_and_gradient``, and otherwise from central
    differences. Everything else that the object has is used as it is.
    """

    def __init__(self, given: Any) -> None:
        self._given = given
        self.dim = int(given.dim)
        self.names = tuple(getattr(given, "names", [f"x[{j}]" for j in range(self.dim)]))
        if len(self.names) != self.dim or len(set(self.names)) != self.dim:
            raise ModelError(f"target has dim={self.dim} and {len(set(self.names))} different names; expected one each")
        self.label = type(given).__name__
        self.has_gradient = hasattr(given, "evaluate") or hasattr(given, "log_density_and_gradient")
        for member in MEMBERS:
            if hasattr(given, member):
                setattr(self, member, getattr(given, member))

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        """Draws by the object itself, where it can."""
        own = getattr(self._given, "sample_prior", None)
        return super().sample_prior(n, rng) if own is None else prior_draws(self, own(n, rng), n)

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        x = as_points(x, self.dim)
        if hasattr(self._given, "evaluate"):
            return self._given.evaluate(x, gradient)
        if gradient and self.has_gradient:
            return JointEvaluation(*sanitize(*map(np.asarray, self._given.log_density_and_gradient(x))))
        value, _ = sanitize(np.asarray(self._given.log_density(x), dtype=np.float64))
        return JointEvaluation(value, self._differences(x) if gradient else None)

    def undefined(self, x: Array) -> NDArray[np.bool_]:
        """Return where the object's log density is NaN or +inf ``(n,)``."""
        x = as_points(x, self.dim)
        if hasattr(self._given, "evaluate"):
            parts = self._given.evaluate(x, False)
            known = [parts.log_density] if parts.log_prior is None else [parts.log_prior, parts.log_likelihood]
            return undefined(*map(np.asarray, known))
        return undefined(np.asarray(self._given.log_density(x), dtype=np.float64))

    def _differences(self, x: Array) -> Array:
        """Gradient by central differences, in one call."""
        step = np.cbrt(np.finfo(float).eps) * np.maximum(1.0, np.abs(x))  # (n, dim)
        shift = step[:, :, None] * np.eye(self.dim)  # (n, dim, dim)
        both = np.stack([x[:, None] + shift, x[:, None] - shift]).reshape(-1, self.dim)
        up, down = np.asarray(self._given.log_density(both), dtype=np.float64).reshape(2, len(x), self.dim)
        gradient = (up - down) / (2 * step)
        return np.where(np.isfinite(gradient).all(axis=1, keepdims=True), gradient, 0.0)

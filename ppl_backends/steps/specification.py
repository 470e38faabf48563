"""Base of the step methods of ``pb.steps``: options that are bound to a target later."""

from __future__ import annotations

import sys
from typing import Any

from ppl_backends.errors import ModelError
from ppl_backends.kernels.algorithm import Algorithm
from ppl_backends.options import shown
from ppl_backends.targets.protocol import BaseTarget


class Step:
    """Base of the step methods: a class with its options, which :meth:`bind` turns into an algorithm.

    Inside a ``pm.Model`` context, or with ``model=``, the call ``X(vars, ...)`` returns a PyMC step method for
    ``pm.sample(step=...)``. Elsewhere it returns the options themselves, which
    :func:`~ppl_backends.mcmc.sample.sample_mcmc` binds to its target.

    Subclasses define ``__init__(self, vars=None, *, ..., model=None)``, which stores its options, and :meth:`bind`.

    Parameters
    ----------
    vars : list of variables or of their names, optional
        Variables of a PyMC model that the step moves; all free ones by default.
    model : pm.Model, optional
        The model on the context stack by default.
    **options
        Those of the subclass.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> options = pb.steps.HMC(target_accept=0.9)  # outside of a model context: options that sample_mcmc binds to its target
    >>> isinstance(options, pb.steps.Step)
    True
    """

    def __new__(cls, vars: Any = None, *, model: Any = None, **options: Any) -> Any:
        """Return the options, or a PyMC step method if there is a model."""
        specification = object.__new__(cls)
        model = model if model is not None else model_on_context()
        if model is None:
            if vars is not None:
                raise ModelError(
                    f"{cls.__name__}(vars={shown(vars)}): vars are variables of a PyMC model, for pm.sample; make the step "
                    "inside the model context, or leave out vars, so that sample_mcmc moves all variables"
                )
            return specification
        from ppl_backends.steps.adapter import pymc_step

        specification.__init__(vars, model=model, **options)  # type: ignore[misc]
        return pymc_step(cls.__name__, specification.make_target, specification.bind, vars, model)

    @classmethod
    def specification(cls, **given: Any) -> Any:
        """Return the step's options, those ``given``, whether or not there is a model on the context stack."""
        specification = object.__new__(cls)
        specification.__init__(**given)  # type: ignore[misc]
        return specification

    def bind(self, target: BaseTarget) -> Algorithm:
        """Return the algorithm on ``target``, which may be a conditional one."""
        raise NotImplementedError(f"{type(self).__name__} must define bind(target)")

    def make_target(self, model: Any) -> BaseTarget:
        """Return the target of a ``pm.Model``, in a form that runs in forked workers."""
        from ppl_backends.steps.adapter import forkable_target

        return forkable_target(model)

    def __repr__(self) -> str:
        """Return the step's name and options, and how to use it in PyMC."""
        return (
            f"{type(self).__name__} made outside of a model: for pm.sample make it inside the context, or with model="
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return only the options, even if a model is on the context stack."""
        return _restore, (type(self), self.__dict__)


def is_bound(step: Any) -> bool:
    """Return whether it is a step method that was made inside a model context and has its target."""
    adapter = sys.modules.get("ppl_backends.steps.adapter")  # imports PyMC; without it there is no such step
    return adapter is not None and isinstance(step, adapter.PyMCStep)


def _restore(kind: type[Step], options: dict[str, Any]) -> Step:
    step: Step = object.__new__(kind)
    step.__dict__.update(options)
    return step


def model_on_context() -> Any:
    """Return the innermost ``pm.Model`` context, or None."""
    pymc = sys.modules.get("pymc")
    return None if pymc is None else pymc.Model.get_context(error_if_none=False)

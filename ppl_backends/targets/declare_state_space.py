"""``pb.StateSpace`` and ``pb.with_state_space``: a state-space likelihood in a PyMC model, or with any prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import Array, BaseTarget
from ppl_backends.targets.state_space.filter import Filter
from ppl_backends.targets.state_space.model import StateSpaceModel
from ppl_backends.targets.state_space.target import (
    ParametersByName,
    StateSpaceData,
    StateSpaceTarget,
    as_numbers,
    check_dims,
)


def StateSpace(
    name: str,
    model: StateSpaceModel,
    *,
    observed: Any = None,
    covariates: Mapping[str, Any] | None = None,
    dims: str | Sequence[str] | None = None,
    **parameters: Any,
) -> Any:
    """Declare the likelihood of a state-space model as an observed variable of the ``pm.Model`` on the context stack.

    Parameters
    ----------
    name : str
    model : StateSpaceModel
    observed : array (n_rows,) or (n_rows, k)
        Rows in their order. A row of NaN is missing.
    covariates : dict of str to array (n_rows, ...), optional
        Covariates of every row, which the model's functions get as attributes of ``p``.
    dims : str or sequence of str, optional
        Names of the axes of ``observed``, the first of which is time; coordinates are the model's.
    **parameters : variable or number
        The parameters of the state-space model, by name.

    Returns
    -------
    TensorVariable

    Raises
    ------
    ModelError
        If ``model`` is not a StateSpaceModel, there are no data, covariates have other lengths, or a function of the
        model fails, uses an unknown parameter, or returns another shape.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     rho = pm.Uniform("rho", -1, 1)
    ...     _ = pb.StateSpace("y", pb.state_space.linear_gaussian(), rho=rho, sigma_x=0.5, sigma_y=0.5, observed=[0.1, 0.4])
    >>> target = pb.as_target(model)
    >>> target.evaluate(np.zeros((1, 1))).log_likelihood.round(4)
    array([-1.3147])
    """
    from ppl_backends.targets.pymc.state_space import state_space_variable  # PyMC only where it is used

    y, held = _rows(name, model, observed, covariates)
    return state_space_variable(name, model, parameters, y, held, _names(dims))


def with_state_space(
    model: Any,
    state_space: StateSpaceModel,
    *,
    parameters: Mapping[str, str],
    observed: Any,
    name: str = "y",
    covariates: Mapping[str, Any] | None = None,
    dims: str | Sequence[str] | None = None,
    coords: Mapping[str, Any] | None = None,
    data: Any = None,
) -> BaseTarget:
    """Return a target with the prior of any model and the likelihood of a state-space model.

    Parameters
    ----------
    model : pm.Model, path, str, CmdStanModel or target
        Its density is the prior, and its observed variables are further terms of the likelihood.
    state_space : StateSpaceModel
    parameters : dict of str to str
        Parameter of the state-space model → variable of ``model`` in model space.
    observed : array (n_rows,) or (n_rows, k)
        A row of NaN is missing.
    name : str
        Name of the observed rows in results.
    covariates : dict of str to array (n_rows, ...), optional
    dims : str or sequence of str, optional
        Names of the axes of ``observed``, the first of which is time; the first axis is ``time`` by default.
    coords : dict of str to sequence, optional
        Coordinates of these axes, as dates of the rows.
    data : dict or path, optional
        Data of a Stan program.

    Returns
    -------
    StateSpaceTarget

    Raises
    ------
    ModelError
        If a variable is unknown, or the data do not fit.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> walk = pb.state_space.linear_gaussian(lambda p: (p.level[0], 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0))
    >>> target = pb.with_state_space(prior, walk, parameters={"level": "x"}, observed=[0.3, 0.8])
    >>> target.log_density(np.zeros((1, 1))).round(4)
    array([-2.7496])
    """
    y, held = _rows(name, state_space, observed, covariates)
    prior = as_target(model, data)
    if not isinstance(parameters, Mapping):
        raise ModelError(
            f"parameters is of type {type(parameters).__name__}; expected a dict of variables by parameter"
        )
    by_name = ParametersByName(prior, parameters)
    Filter(state_space, y, held).state_shape(by_name(np.zeros((1, prior.dim))))  # checks rows, names and functions
    axes, columns = _axes(name, y, dims, coords)
    labels = columns.pop(axes[0], None) if axes else None
    return StateSpaceTarget(prior, StateSpaceData(name, state_space, y, by_name, held, axes, labels, columns))


def _axes(name: str, y: Array, dims: Any, coords: Any) -> tuple[tuple[str, ...], dict[str, Array]]:
    """Return names of the axes of the rows, and their coordinates, after a check."""
    axes, held = _names(dims), dict(coords or {})
    if held and not axes:
        axes = ("time", f"{name}_dim_1")[: y.ndim]
    strange = [axis for axis in held if axis not in axes]
    if strange:
        raise ModelError(f"'{name}': coords has {strange[0]!r}, which is not among dims: {', '.join(axes)}")
    check_dims(name, y, axes, {axis: len(held[axis]) if axis in held else None for axis in axes}, "coords=")
    return axes, {axis: np.asarray(values) for axis, values in held.items()}


def _names(dims: Any) -> tuple[str, ...]:
    return (dims,) if isinstance(dims, str) else tuple(dims or ())


def _rows(name: Any, model: Any, observed: Any, covariates: Any) -> tuple[Array, dict[str, Array]]:
    """Return the data and the covariates as arrays of floats; raise an error without a state-space model or data."""
    if not isinstance(name, str):
        raise ModelError(f"pb.StateSpace: the name comes first, and {type(name).__name__} is not a str")
    if not isinstance(model, StateSpaceModel):
        raise ModelError(f"'{name}': expected a pb.StateSpaceModel, not {type(model).__name__}")
    if observed is None:
        raise ModelError(f"'{name}': observed= is missing, the rows of data")
    if covariates is not None and not isinstance(covariates, Mapping):
        raise ModelError(
            f"'{name}': covariates is of type {type(covariates).__name__}; expected a dict of arrays by name"
        )
    held = {key: as_numbers(f"'{name}': covariate {key!r}", value) for key, value in (covariates or {}).items()}
    return as_numbers(f"'{name}': observed", observed), held

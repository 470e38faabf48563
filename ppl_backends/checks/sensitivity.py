r"""Power-scaling sensitivity: how posteriors change if prior or likelihood is raised to a power.

The posterior under the power α of a component c (the prior, the prior of one variable, the likelihood) is π_α(θ) ∝
π(θ) c(θ)^{α−1} (Kallioinen et al. 2023, section 2). Its draws are those of the posterior with Pareto-smoothed weights
c(θ)^{α−1}, if their Pareto k is small enough. Otherwise the kernels of tempering SMC move the draws along the path
π(θ) c(θ)^{β(α−1)}.

The density of a prior is its density in model space: c(θ) has no Jacobian, so that the power of a half-normal with
scale s is a half-normal with scale s/√α.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from ppl_backends.checks.distances import Compared, compare
from ppl_backends.checks.moving import (
    Change,
    Cloud,
    cloud_of,
    largest_k,
    memory_of,
    move_draws,
    units_after,
)
from ppl_backends.checks.predictive import no_rows
from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.marginal_likelihood.draws import read_draws
from ppl_backends.marginal_likelihood.necks import check_draws
from ppl_backends.numerics.arrays import real_parts
from ppl_backends.numerics.weights import effective_sample_size, normalised_weights, smoothed_weights
from ppl_backends.numerics.weights import systematic_resampling as resample
from ppl_backends.options import checked, choice, increasing, integer, none, number, several_names
from ppl_backends.random import spawn_generators
from ppl_backends.results.inference_data import build_inference_data, dims_of
from ppl_backends.results.tables import whole
from ppl_backends.smc.health import MEMORY_LEFT
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, Index

PRIOR, LIKELIHOOD = "prior", "likelihood"
CONFLICT = "potential prior-data conflict"
STRONG = "potential strong prior or weak likelihood"
FINE = "-"
UNKNOWN = "unknown: not all draws are finite"
LARGEST_K = 0.5
"""Pareto k above which draws are moved: the weights then have infinite variance, and sds from them are off by 15 %."""
LEAST_EFFICIENCY = 0.5
"""Effective sample size of the weights, as a share of the draws, below which draws are moved.

The estimate of k varies from run to run. Log weights of a shifted posterior are nearly normal, and with an efficiency of
0.2 k was between 0.2 and 0.7, means were off by up to five standard errors, and sds by up to a quarter.
"""
_REPLICATES = 100


class Scaled(NamedTuple):
    """Draws of the posterior under a power of a component.

    ``weight`` sums to one. Draws of different ``unit`` are independent. ``pareto_k`` is that of the weights of the
    posterior's draws. These draws are the posterior's, unless they were ``moved`` in some ``stages``; then ``memory`` is
    their remaining correlation with the positions before the moves.
    """

    x: Array
    weight: Array
    unit: Index
    pareto_k: float
    ess: float
    moved: bool
    stages: int = 0
    memory: float = 0.0


@dataclass(frozen=True)
class Sensitivity:
    """Sensitivity of a posterior to its prior and its likelihood.

    Attributes
    ----------
    table : pandas.DataFrame
        One row per quantity. Columns ``prior`` and ``likelihood`` are gradients of the cumulative Jensen–Shannon
        distance per unit of log2 α, ``prior_se`` and ``likelihood_se`` are their Monte Carlo errors, and ``diagnosis``
        is a verdict from both. A model of several variables has columns ``prior[name]`` and ``prior[name]_se`` for the
        prior of each.
    sources : pandas.DataFrame
        One row per component and power: ``pareto_k`` of the weights, ``ess``, and ``source``, which is ``"weights"``,
        or ``"moves"`` with the number of ``stages`` and the remaining autocorrelation (``memory``).
    moments : xarray.Dataset
        With dims (component, power, quantity): ``mean``, ``sd``, ``mean_se``, ``sd_se``, ``distance`` and ``distance_se``.
        The power 1 is the posterior itself.
    target : Target
        The model.
    draws : dict of (str, float) to record
        Draws of the posterior under each power of each component, with their weights; see :meth:`posterior`.
    quantities : callable
        Gives the quantities ``(n, k)`` at points ``(n, dim)`` of the unconstrained space.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     _ = pm.Normal("y", mu, 1, observed=np.array([7.5, 8.0, 8.5]))
    >>> idata = pb.sample_smc(model, draws=500, random_seed=1, progressbar=False)
    >>> result = pb.sensitivity(idata, model, random_seed=1)
    >>> list(result.table.index), "pareto_k" in result.sources
    (['mu'], True)
    """

    table: pd.DataFrame
    sources: pd.DataFrame
    moments: xr.Dataset
    target: BaseTarget
    draws: dict[tuple[str, float], Scaled]
    quantities: Callable[[Array], Array]

    def __getitem__(self, column: str) -> pd.Series:
        """Return a column of the table."""
        return self.table[column]

    @checked()
    def posterior(self, component: str, power: float, *, draws: int = 2000, random_seed: Any = None) -> Any:
        """Return the posterior under a power of a component as InferenceData with equally weighted draws.

        Parameters
        ----------
        component : str
            ``"prior"``, ``"likelihood"`` or ``"prior[name]"``.
        power : float
            One of the computed powers.
        draws : int
        random_seed : int or Generator, optional

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
        """
        scaled, [rng] = self._scaled(component, power), spawn_generators(random_seed, 1)
        doubtful = _doubts({(component, power): scaled})
        chosen = rng.permutation(resample(scaled.weight, draws, rng))
        return build_inference_data(
            self.target,
            scaled.x[chosen][None],
            method="power scaling",
            accuracy="approximate" if doubtful else "exact",
            sampling_time=0.0,
            rng=rng,
            attrs={"component": component, "power": power, "pareto_k": scaled.pareto_k, "moved": int(scaled.moved)},
        )

    def values(self, component: str, power: float, quantity: str) -> tuple[Array, Array]:
        """Return the values ``(n,)`` of ``quantity`` under a ``power`` of a ``component``, and their weights."""
        scaled, known = self._scaled(component, power), list(self.table.index)
        if quantity not in known:
            raise ModelError(f"quantity={quantity!r}: expected one of {', '.join(known[:8])}")
        return self.quantities(scaled.x)[:, known.index(quantity)], scaled.weight

    def _scaled(self, component: str, power: float) -> Scaled:
        """Return the draws under a power of a component, or raise ModelError with the components and powers."""
        if (component, power) not in self.draws:
            components, powers = (", ".join(map(str, dict.fromkeys(known))) for known in zip(*self.draws, strict=True))
            raise ModelError(
                f"component={component!r}, power={power!r}: expected one of the components {components} and powers {powers}"
            )
        return self.draws[component, power]

    def __repr__(self) -> str:
        return whole(self.table, digits=3)

    def _repr_html_(self) -> str:
        return self.table.to_html()


@checked(
    powers=increasing(above=0),
    var_names=none | several_names(),
    prior_variables=none | several_names(),
    method=choice("auto", "weights", "moves"),
    draws=integer(100),
    threshold=number(above=0),
)
def sensitivity(
    idata: Any,
    model: Any = None,
    *,
    data: Any = None,
    powers: Sequence[float] = (0.8, 1.25),
    var_names: Sequence[str] | None = None,
    prior_variables: Sequence[str] | None = None,
    method: str = "auto",
    draws: int = 2000,
    threshold: float = 0.05,
    cores: int | None = None,
    random_seed: Any = None,
    **target_options: Any,
) -> Sensitivity:
    r"""Return how the posterior changes if its prior or its likelihood is raised to a power.

    Parameters
    ----------
    idata : InferenceData, CmdStanMCMC or mapping
        Draws of the posterior, from any sampler; a mapping holds arrays ``(chain, draw, *shape)`` by name.
    model : pymc.Model, Stan program or Target, optional
        The PyMC model on the context stack by default. It must separate prior and likelihood.
    data : dict or path, optional
        Data of a Stan program.
    powers : sequence of float
        Powers α, some below and some above 1.
    var_names : sequence of str, optional
        Variables of the table; the parameters by default.
    prior_variables : sequence of str, optional
        Variables whose priors form the component ``"prior"``; all by default. In a hierarchical model name the
        hyper-parameters, because the distribution of a group's members is part of the model.
    method : {"auto", "weights", "moves"}
        ``"auto"`` weights the draws. It moves them if Pareto k is above 0.5, or above 1 − 1/log10(draws) if that is
        smaller, or if the effective sample size of the weights is less than half of the draws.
    draws : int
        Largest number of draws to move.
    threshold : float
        Smallest sensitivity with a diagnosis.
    cores, random_seed
        As for :func:`~ppl_backends.sample_smc`.
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    Sensitivity
        Its ``table`` is that of priorsense and ArviZ with Monte Carlo errors; it also holds the posteriors under each power.

    Raises
    ------
    ModelError
        If the model does not separate prior and likelihood, its likelihood is a Potential, the draws are not of the model,
        or a name is unknown.

    Warns
    -----
    SamplerWarning
        If the draws are not trustworthy, Pareto k of ``method="weights"`` is above 0.7, or moved draws did not mix.

    References
    ----------
    Kallioinen, N., Paananen, T., Bürkner, P.-C. and Vehtari, A. (2023). Detecting and diagnosing prior and likelihood
    sensitivity with power-scaling. *Statistics and Computing* 34(57).

    Examples
    --------
    Data with a mean of 8 conflict with a prior around 0:

    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     _ = pm.Normal("y", mu, 1, observed=np.array([7.5, 8.0, 8.5]))
    >>> idata = pb.sample_smc(model, draws=1000, random_seed=1, progressbar=False)
    >>> pb.sensitivity(idata, model, random_seed=1)["diagnosis"].to_dict()
    {'mu': 'potential prior-data conflict'}
    """
    target = as_target(model, data, cores=cores, **target_options)
    if not target.has_split or target.is_estimated:
        raise ModelError(f"{target.split_problem or target.label + ': the likelihood is an estimate'}")
    if target.has_potentials and target.observations is not None and not target.observations.n:
        raise ModelError(f"{target.label}: there is no likelihood besides the Potentials{no_rows(target)}")
    found = read_draws(idata, target, model)
    components = _components(target, prior_variables)
    asked = [(name, power) for name in components for power in powers if power != 1]
    if not asked:
        raise ModelError(f"powers={tuple(powers)}: expected one that is not 1")
    *rngs, check_rng = spawn_generators(random_seed, len(asked) + 1)
    convergence, _, reasons = check_draws(found, target, check_rng)
    cloud = cloud_of(found, convergence.effective)
    scaled = dict[tuple[str, float], Scaled]()
    log_terms = {name: component.values(cloud.x) for name, component in components.items()}
    for (name, power), rng in zip(asked, rngs, strict=True):
        scaled[name, power] = _scale(target, cloud, components[name], log_terms[name], power, method, draws, rng)
    reasons += _doubts(scaled)
    for reason in reasons:
        warnings.warn(f"sensitivity: {reason}", SamplerWarning, stacklevel=user_level())
    whole = Scaled(cloud.x, np.full(len(cloud.x), 1 / len(cloud.x)), cloud.unit, -np.inf, float(len(cloud.x)), False)
    quantities = _quantities(target, var_names)
    compared = compare(
        (quantities(whole.x), whole.weight, whole.unit),
        {key: (quantities(each.x), each.weight, each.unit) for key, each in scaled.items()},
        cloud.n_units,
        _REPLICATES,
        np.random.default_rng(0),
    )
    labels = quantities.labels(whole.x[:1])
    table = _table(compared, labels, list(components), [power for power in powers if power != 1], threshold)
    moments = _moments(compared, labels, list(components), sorted({*powers, 1.0}))
    kept = scaled | {(name, 1.0): whole for name in components}
    return Sensitivity(table, _sources(scaled), moments, target, kept, quantities)


class Component(NamedTuple):
    """A part of the log density: its values at points ``(n,)``, and the same with gradients."""

    values: Any
    evaluate: Change


def _components(target: BaseTarget, prior_variables: Sequence[str] | None) -> dict[str, Component]:
    """Return the prior, the likelihood, and the priors of single variables if they are known."""
    terms = target.prior_terms
    unknown = sorted(set(prior_variables or ()) - set(terms.names))
    if unknown:
        raise ModelError(
            f"prior_variables: {unknown[0]!r} is not a variable with a separate prior; those are {', '.join(terms.names)}"
        )

    def part(names: Sequence[str]) -> Component:
        weights = np.isin(np.array(terms.names), np.array(names)).astype(np.float64)
        return Component(
            lambda x: terms.values(x) @ weights if len(weights) else np.zeros(len(x)),
            lambda x, gradient: terms.sum(x, weights, gradient),
        )

    found = {PRIOR: part(terms.names if prior_variables is None else prior_variables)}
    found[LIKELIHOOD] = Component(lambda x: _likelihood(target, x, False)[0], partial(_likelihood, target))
    single = terms.names if len(terms.names) > 1 else ()
    return found | {f"{PRIOR}[{name}]": part([name]) for name in single}


def _likelihood(target: BaseTarget, x: Array, gradient: bool) -> tuple[Array, Array | None]:
    """Return the log likelihood of the observed variables, without Potentials."""
    parts = target.evaluate(x, gradient)
    assert isinstance(parts, Evaluation)
    value, slope = parts.log_likelihood, parts.log_likelihood_gradient
    if target.has_potentials:
        potential, potential_slope = target.evaluate_potentials(x, gradient)
        value = value - potential
        slope = None if slope is None or potential_slope is None else slope - potential_slope
    return value, slope


def _scale(
    target: BaseTarget,
    cloud: Cloud,
    component: Component,
    log_term: Array,
    power: float,
    method: str,
    draws: int,
    rng: np.random.Generator,
) -> Scaled:
    """Return draws of the posterior under a power of a component: weighted, or moved."""
    log_weights = (power - 1.0) * log_term
    smoothed, k = smoothed_weights(log_weights)
    weight, _ = normalised_weights(smoothed)
    scaled = Scaled(cloud.x, weight, cloud.unit, k, effective_sample_size(smoothed), False)
    even = scaled.ess >= LEAST_EFFICIENCY * len(log_term)
    if method == "weights" or (method == "auto" and even and k <= min(LARGEST_K, largest_k(len(log_term)))):
        return scaled

    def change(x: Array, gradient: bool) -> tuple[Array, Array | None]:
        value, slope = component.evaluate(x, gradient)
        return (power - 1.0) * value, None if slope is None else (power - 1.0) * slope

    run = move_draws(target, change, cloud.thinned(draws), rng)
    n, unit = len(run.x), units_after(run, cloud.n_units)
    return Scaled(run.x, np.full(n, 1 / n), unit, k, float(n), True, len(run.stages), memory_of(run))


def _doubts(scaled: dict[tuple[str, float], Scaled]) -> list[str]:
    """Return reasons for distrust of weights with a heavy tail, and of moved draws that did not mix."""
    said = []
    for (name, power), each in scaled.items():
        limit = largest_k(len(each.weight))
        if each.memory > MEMORY_LEFT:
            said.append(
                f"the draws moved to the power {power:g} of the {name} did not mix (autocorrelation {each.memory:.2f}): "
                "increase draws, or fit that power itself"
            )
        elif not each.moved and each.pareto_k > limit:
            said.append(
                f"Pareto k of the weights of the power {power:g} of the {name} is {each.pareto_k:.2f}, above {limit:.2f}: "
                "use method='moves'"
            )
    return said


class _Quantities:
    """Variables of a model, element by element, as functions of points."""

    def __init__(self, target: BaseTarget, names: Sequence[str]) -> None:
        self._target, self._names = target, names

    def __call__(self, x: Array) -> Array:
        """Return the elements ``(n, k)``."""
        values = self._target.constrain(x)
        return np.concatenate([real_parts(values[name]).reshape(len(x), -1) for name in self._names], axis=1)

    def labels(self, x: Array) -> list[str]:
        """Return the names of the elements, by the labels of their coordinates."""
        values, labels = self._target.constrain(x), []
        for name in self._names:
            shape = real_parts(values[name]).shape[1:]
            coords = [self._target.coords.get(dim, ()) for dim in dims_of(name, len(shape), self._target.dims)]
            axes = [c if len(c) == size else np.arange(size) for c, size in zip(coords, shape, strict=True)]
            for index in np.ndindex(*shape):
                place = ", ".join(str(axis[i]) for axis, i in zip(axes, index, strict=True))
                labels.append(f"{name}[{place}]" if shape else name)
        return labels


def _quantities(target: BaseTarget, var_names: Sequence[str] | None) -> _Quantities:
    """Return the variables asked for; the parameters by default."""
    known = target.constrain(target.initial_points(1, np.random.default_rng(0)))
    names = list(var_names or target.parameter_names or known)
    unknown = [name for name in names if name not in known]
    if unknown:
        shown = ", ".join(list(known)[:8])
        raise ModelError(f"var_names: {unknown[0]!r} is not a variable of {target.label} ({shown})")
    return _Quantities(target, names)


def _table(
    compared: Compared, labels: list[str], components: list[str], powers: Sequence[float], threshold: float
) -> pd.DataFrame:
    """Return gradients of the distance per unit of log2 α, averaged over the powers, with their errors and diagnoses."""
    columns: dict[str, Any] = {}
    for name in components:
        steps = np.abs(np.log2(powers))[:, None]
        distances = np.stack([compared.distance[name, power] for power in powers])  # (powers, quantities)
        errors = np.stack([compared.distance_se[name, power] for power in powers])
        columns[name] = (distances / steps).mean(axis=0)
        columns[f"{name}_se"] = np.sqrt(((errors / steps) ** 2).sum(axis=0)) / len(powers)
    table = pd.DataFrame(columns, index=pd.Index(labels, name="quantity"))
    prior, likelihood = table[PRIOR] >= threshold, table[LIKELIHOOD] >= threshold
    diagnosis = np.where(prior & likelihood, CONFLICT, np.where(prior, STRONG, FINE))
    diagnosis = np.where(table[[PRIOR, LIKELIHOOD]].isna().any(axis=1), UNKNOWN, diagnosis)
    table.insert(4, "diagnosis", diagnosis)
    return table


def _moments(compared: Compared, labels: list[str], components: list[str], powers: Sequence[float]) -> xr.Dataset:
    """Return means, standard deviations and distances of every quantity under every power."""
    shape = (len(components), len(powers), len(labels))
    dims = ("component", "power", "quantity")
    found = {name: (dims, np.zeros(shape)) for name in ("mean", "sd", "mean_se", "sd_se", "distance", "distance_se")}
    for i, component in enumerate(components):
        for j, power in enumerate(powers):
            key = None if power == 1 else (component, power)
            for name, table in compared.by_name().items():
                found[name][1][i, j] = table.get(key, 0.0)
    return xr.Dataset(found, coords={"component": components, "power": list(powers), "quantity": labels})


def _sources(scaled: dict[tuple[str, float], Scaled]) -> pd.DataFrame:
    """Return the sources of the draws of every component and power."""
    rows = {
        key: {
            "source": "moves" if each.moved else "weights",
            "pareto_k": each.pareto_k,
            "ess": each.ess,
            "stages": each.stages,
            "memory": each.memory,
        }
        for key, each in scaled.items()
    }
    index = pd.MultiIndex.from_tuples(list(rows), names=["component", "power"])
    return pd.DataFrame(list(rows.values()), index=index)

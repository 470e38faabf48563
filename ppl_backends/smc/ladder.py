r"""The particles of every temperature, kept for other powers and priors, and for the path's integral.

The particles at β are a sample of π_β(θ) ∝ base(θ) exp{β·increment(θ)}. Weights γ / π_β turn them into a sample of
another density γ. The temperature with the most even weights is used. Pareto-smoothed importance sampling (Vehtari et
al. 2024) smooths the weights, and its shape k shows whether they can be used.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.special import logsumexp

from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.numerics.weights import (
    LARGEST_PARETO_K,
    effective_sample_size,
    log_mean_exp,
    normalised_weights,
    smoothed_weights,
)
from ppl_backends.options import checked, none, number
from ppl_backends.results.inference_data import group, inference_data
from ppl_backends.smc.evidence import log_relative
from ppl_backends.smc.path import PathState
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.power import with_power
from ppl_backends.targets.protocol import Array


class StageParticles(NamedTuple):
    """Particles at one beta, with log γ_β and its derivative in β, the increment.

    ``log_evidence`` is the running one at this β; ``log_weight`` is normalised to mean one, 0 for particles of equal weight.
    """

    beta: float
    log_evidence: float
    x: Array
    log_density: Array
    increment: Array
    log_weight: Array

    @classmethod
    def of(cls, state: PathState, log_evidence: float, weights: Array | None = None) -> StageParticles:
        """Return the particles of a state with normalised ``weights``, equal ones by default."""
        log_weight = np.zeros(len(state.x)) + log_relative(weights)
        return cls(state.beta, log_evidence, state.x, state.log_density, state.increment, log_weight)


def ladder_group(ladders: Sequence[Sequence[StageParticles]]) -> dict[str, tuple[tuple[str, ...], Array]]:
    """Return the chains' ladders with dims (chain, stage, particle), NaN where a chain has fewer temperatures."""
    longest = max(len(ladder) for ladder in ladders)
    n, dim = ladders[0][0].x.shape
    scalar = np.full((2, len(ladders), longest), np.nan)
    vector = np.full((3, len(ladders), longest, n), np.nan)
    x = np.full((len(ladders), longest, n, dim), np.nan)
    for chain, ladder in enumerate(ladders):
        for stage, rung in enumerate(ladder):
            scalar[:, chain, stage] = rung.beta, rung.log_evidence
            vector[:, chain, stage] = rung.log_density, rung.increment, rung.log_weight
            x[chain, stage] = rung.x
    on_stage, on_particle = ("chain", "stage"), ("chain", "stage", "particle")
    return {
        "x": ((*on_particle, "unconstrained_parameter"), x),
        **dict(zip(("beta", "log_marginal_likelihood"), ((on_stage, table) for table in scalar), strict=True)),
        **dict(
            zip(("log_density", "increment", "log_weight"), ((on_particle, table) for table in vector), strict=True)
        ),
    }


class Reweighted(NamedTuple):
    """A weighted sample of another density.

    Attributes
    ----------
    x : ndarray (n, dim)
        Points on the unconstrained space, of all chains.
    log_weight : ndarray (n,)
        Smoothed, normalised to sum to one.
    pareto_k : float
        Pareto k of the weights; above 0.7 they are unreliable.
    ess : float
        Effective sample size of the weights.
    log_evidence : float
        Log evidence of the new density.
    betas : ndarray (chains,)
        The β that the points of each chain come from.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.smc.ladder import Reweighted
    >>> points = Reweighted(np.array([[0.0], [1.0]]), np.log([0.75, 0.25]), 0.1, 1.6, -3.0, np.array([0.0, 1.0]))
    >>> points.mean()
    array([0.25])
    """

    x: Array
    log_weight: Array
    pareto_k: float
    ess: float
    log_evidence: float
    betas: Array

    @property
    def unreliable(self) -> bool:
        """Return whether Pareto k is above 0.7, or cannot be fitted (NaN) to weights that are far from even."""
        not_to_be_fitted = np.isnan(self.pareto_k) and self.ess < 0.5 * len(self.log_weight)
        return bool(self.pareto_k > LARGEST_PARETO_K or not_to_be_fitted)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` points drawn in proportion to their weights ``(n, dim)``."""
        return self.x[rng.choice(len(self.x), size=n, p=np.exp(self.log_weight))]

    def mean(self, values: Array | None = None) -> Array:
        """Return the weighted mean of ``values`` ``(n, ...)``, by default of the points."""
        return np.tensordot(np.exp(self.log_weight), self.x if values is None else values, axes=1)


@checked(idata=inference_data("posterior"), power=none | number(at_least=0))
def reweight(idata: Any, *, power: float | None = None, model: Any = None, data: Any = None) -> Reweighted:
    """Return the posterior under another power of the likelihood, or under another model of the same parameters.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~ppl_backends.sample_smc` with ``keep_ladder=True``.
    power : float, optional
        α of p(θ)L(θ)^α; without ``model`` the run must have started from the prior.
    model : pymc.Model, Stan program or Target, optional
        Model with the same unconstrained coordinates, for example with another prior.
    data : dict or path, optional
        Data of a Stan program.

    Returns
    -------
    Reweighted
        It emits a :class:`~ppl_backends.errors.SamplerWarning` if Pareto k is above 0.7.

    Raises
    ------
    ModelError
        If no ladder was kept, or neither ``power`` nor ``model`` is given.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> target = pb.FunctionTarget(
    ...     1,
    ...     lambda x: (-2 * (x[:, 0] - 1) ** 2, -4 * (x - 1)),
    ...     lambda x: (-0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi), -x),
    ...     sample_prior=lambda n, rng: rng.standard_normal((n, 1)),
    ... )
    >>> idata = pb.sample_smc(target, draws=1000, keep_ladder=True, random_seed=1, progressbar=False)
    >>> half = pb.reweight(idata, power=0.5)
    >>> bool(abs(half.mean()[0] - 2 / 3) < 0.1)
    True
    """
    if power is None and model is None:
        raise ModelError("reweight: give power=, model= or both")
    ladder = _ladder(idata)
    if model is None:
        if group(idata, "posterior").attrs["initial"] != "prior":
            raise ModelError("reweight: power= alone needs a run from the prior; give the model as well (model=)")
        new = None
    else:
        new = with_power(as_target(model, data), 1.0 if power is None else power)
        if new.dim != ladder.sizes["unconstrained_parameter"]:
            raise ModelError(
                f"reweight: the model has dimension {new.dim}; the ladder has {ladder.sizes['unconstrained_parameter']}"
            )
    points, weights, betas = [], [], []
    for chain in range(ladder.sizes["chain"]):
        rungs = ladder.isel(chain=chain)
        candidates = []
        for stage in np.flatnonzero(np.isfinite(rungs["beta"].values)):
            rung = {str(name): rungs[name].values[stage] for name in rungs.data_vars}
            candidates.append((rung, _log_weights(rung, power, new)))
        sizes = [effective_sample_size(log_weights) for _, log_weights in candidates]
        rung, log_weights = candidates[int(np.argmax(sizes))]
        points.append(rung["x"])
        weights.append(log_weights)
        betas.append(float(rung["beta"]))
    log_weights = np.concatenate(weights)
    log_evidence = float(log_mean_exp(log_weights))
    smoothed, pareto_k = smoothed_weights(log_weights)
    log_weight, ess = smoothed - logsumexp(smoothed), effective_sample_size(smoothed)
    found = Reweighted(np.concatenate(points), log_weight, pareto_k, ess, log_evidence, np.array(betas))
    if found.unreliable:
        message = (
            f"reweight: Pareto k is {pareto_k:.2f}, and above 0.7 weights cannot be trusted: run sample_smc on the new "
            "model"
        )
        warnings.warn(message, SamplerWarning, stacklevel=user_level())
    return found


def _log_weights(rung: dict[str, Array], power: float | None, new: Any) -> Array:
    """Return log γ(x) − log π_β(x), with π_β normalised by the running evidence."""
    given = rung["log_weight"] + rung["log_marginal_likelihood"]
    if new is not None:
        return given + new.log_density(rung["x"]) - rung["log_density"]
    assert power is not None
    return _added(given, float(power - rung["beta"]), rung["increment"])


def _added(log_weight: Array, step: float, increment: Array) -> Array:
    """Return log weights plus a step times the increment; points of weight zero keep it."""
    moved = log_weight + step * np.where(log_weight > -np.inf, increment, 0.0) if step else log_weight
    return np.asarray(moved)


@checked(idata=inference_data("posterior"))
def thermodynamic_integration(idata: Any) -> xr.Dataset:
    r"""Return the mean increment along the path, and the log evidence as its integral.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~ppl_backends.sample_smc` with ``keep_ladder=True``.

    Returns
    -------
    xarray.Dataset
        With dims (chain, stage): ``beta``; ``increment_mean`` and ``increment_sd``, the moments of the increment (of
        the log likelihood, from the prior) at β; and ``log_evidence``, the integral of the mean from 0 to β. Each step
        is integrated in closed form over particles reweighted from its nearer end.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> target = pb.FunctionTarget(
    ...     1,
    ...     lambda x: (-2 * (x[:, 0] - 1) ** 2, -4 * (x - 1)),
    ...     lambda x: (-0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi), -x),
    ...     sample_prior=lambda n, rng: rng.standard_normal((n, 1)),
    ... )
    >>> idata = pb.sample_smc(target, draws=1000, keep_ladder=True, random_seed=1, progressbar=False)
    >>> curve = pb.thermodynamic_integration(idata)
    >>> bool(abs(curve["log_evidence"].isel(stage=-1).mean() - (-0.5 * np.log(5) - 0.4)) < 0.1)
    True
    """
    ladder = _ladder(idata)
    beta, increment = ladder["beta"].values, ladder["increment"].values
    log_weight = ladder["log_weight"].values
    mean, sd, total = (np.full(beta.shape, np.nan) for _ in range(3))
    for chain in range(len(beta)):
        total[chain, 0] = ladder["log_marginal_likelihood"].values[chain, 0]
        for stage in np.flatnonzero(np.isfinite(beta[chain])):
            weights, _ = normalised_weights(log_weight[chain, stage])
            inside = np.isfinite(increment[chain, stage])
            share, values = weights[inside] / weights[inside].sum(), increment[chain, stage][inside]
            mean[chain, stage] = share @ values
            sd[chain, stage] = np.sqrt(share @ (values - mean[chain, stage]) ** 2)
            if stage > 0:
                half = 0.5 * (beta[chain, stage] - beta[chain, stage - 1])
                ends = [
                    logsumexp(_added(log_weight[chain, at], sign * half, increment[chain, at]))
                    for at, sign in ((stage - 1, 1.0), (stage, -1.0))
                ]
                total[chain, stage] = total[chain, stage - 1] + ends[0] - ends[1]
    on = ("chain", "stage")
    figures = {"beta": beta, "increment_mean": mean, "increment_sd": sd, "log_evidence": total}
    return xr.Dataset({name: (on, values) for name, values in figures.items()}, coords={dim: ladder[dim] for dim in on})


def _ladder(idata: Any) -> xr.Dataset:
    try:
        return group(idata, "ladder")
    except KeyError:
        raise ModelError("the particles of the ladder were not kept; call sample_smc(..., keep_ladder=True)") from None

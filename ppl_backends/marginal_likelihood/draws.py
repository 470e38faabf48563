"""Draws of any sampler as points on the unconstrained space, and reasons not to trust them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.marginal_likelihood.bambi_draws import sampled_draws
from ppl_backends.numerics.weights import FEWEST_INDEPENDENT, few_independent
from ppl_backends.results.convergence import LARGEST_RHAT, effective_draws, rank_rhat, slowest
from ppl_backends.results.inference_data import (
    as_inference_data,
    group,
    is_before_posterior,
    is_inference_data,
    unconstrained_draws,
)
from ppl_backends.targets.convert import is_instance
from ppl_backends.targets.protocol import Array, BaseTarget, Index

_FEWEST = 40  # draws per chain
_LOOKED_AT = 50  # slowest coordinates, for which R̂ and effective sample sizes are computed
_LARGEST_DIVERGENT = 0.005  # of the draws
_LARGEST_REPAIRED = 0.005  # of the draws
_LARGEST_MISMATCH = 0.1  # nats; an evidence is off by half its square
_LOG_DENSITIES = ("lp", "logp")  # names of the log density in samplers' results


class Draws(NamedTuple):
    """Points ``(chain, draw, dim)`` with their log densities ``(chain, draw)``.

    ``ancestor`` labels draws of SMC and importance sampling; draws with different labels are independent. ``repaired``
    counts draws without a finite density, which were replaced by the draws before them. ``mismatch`` is the standard
    deviation of the sampler's log densities minus the model's, NaN if the sampler stored none. ``missing`` counts the
    repaired draws that were NaN as they were given.
    """

    x: Array
    log_density: Array
    ancestor: Index | None
    divergent: int
    repaired: int
    mismatch: float
    missing: int = 0

    @property
    def n(self) -> int:
        """Return the number of draws of all chains."""
        return self.log_density.size

    def ancestor_of(self, kept: slice) -> Index | None:
        """Return the labels of the draws at some times."""
        return None if self.ancestor is None else self.ancestor[:, kept]

    def at(self, x: Array, log_density: Array, kept: slice) -> Draws:
        """Return the draws ``kept``, moved to points ``(n, dim)``."""
        shape = self.log_density[:, kept].shape
        return self._replace(
            x=x.reshape(*shape, -1), log_density=log_density.reshape(shape), ancestor=self.ancestor_of(kept)
        )


def read_draws(source: Any, target: BaseTarget, model: Any = None) -> Draws:
    """Return draws of InferenceData, of a ``CmdStanMCMC``, or arrays ``(chain, draw, *shape)`` by name, as points.

    Draws that Bambi has processed are taken back to the parameters of a Bambi ``model``.
    """
    idata = sampled_draws(_as_inference_data(source), model)
    names, x = unconstrained_draws(idata, target)
    if x.shape[2] != target.dim:
        raise ModelError(f"the draws have {x.shape[2]} unconstrained coordinates, {target.label} has {target.dim}")
    chains, length, _ = x.shape
    if length < _FEWEST:
        raise ModelError(f"idata has {length} draws a chain: expected at least {_FEWEST}")
    with np.errstate(all="ignore"):
        log_density = target.log_density(x.reshape(chains * length, -1)).reshape(chains, length)
    good = np.isfinite(log_density) & np.isfinite(x).all(axis=2)
    _refuse_most(target, x, good)
    if not good.any(axis=1).all():
        empty = int(np.argmin(good.any(axis=1)))
        raise ModelError(
            f"{target.label}: the log density is not finite at any draw of chain {empty}: leave this chain out"
        )
    stuck = np.ptp(x, axis=1).max(axis=0) == 0
    if stuck.any():
        raise ModelError(f"the draws of {names[int(np.argmax(stuck))]} do not vary")
    before = _last_good(good)
    rows = np.arange(chains)[:, None]
    log_density, stats = log_density[rows, before], _stats(idata)
    return Draws(
        x[rows, before],
        log_density,
        np.asarray(stats["ancestor"]) if "ancestor" in stats else None,
        int(np.sum(stats["diverging"])) if "diverging" in stats else 0,
        int((~good).sum()),
        np.nan if target.circular else _mismatch(stats, log_density),  # the sampler's turns and lengths are not known
        _missing(idata, x),
    )


def _missing(idata: Any, x: Array) -> int:
    """Return how many draws have a coordinate that is NaN because a given value is; rounding to an edge has no such value."""
    lost = np.isnan(x).any(axis=2)
    if not lost.any():
        return 0
    posterior = group(idata, "posterior").transpose("chain", "draw", ...)
    given = [np.isnan(values.values) for values in posterior.data_vars.values() if values.dtype.kind == "f"]
    return int((lost & np.any([each.reshape(*lost.shape, -1).any(axis=2) for each in given], axis=0)).sum())


def _refuse_unfinished(attrs: Mapping[Any, Any]) -> None:
    """Refuse draws of a run from the prior, or over rows, that was stopped before it reached the posterior."""
    if is_before_posterior(attrs):
        raise ModelError(
            f"idata is of a run of {attrs.get('method', 'SMC')} that stopped before it reached the posterior (attribute "
            "complete is 0): repeat the call that made it; with a checkpoint it continues"
        )


def _as_inference_data(source: Any) -> Any:
    """Return the given draws as InferenceData."""
    if is_inference_data(source):
        try:
            posterior = group(source, "posterior")
        except KeyError:
            raise ModelError("idata has no group posterior: expected draws of a sampler") from None
        _require_chains(posterior)
        _refuse_unfinished(posterior.attrs)
        return source
    if isinstance(source, xr.Dataset):
        _require_chains(source)
        return as_inference_data({"posterior": source})
    if is_instance(source, "cmdstanpy", "CmdStanMCMC"):
        import arviz as az

        return az.from_cmdstanpy(posterior=source)
    if not isinstance(source, Mapping) or not source:
        raise ModelError(
            f"idata is of type {type(source).__name__}: expected InferenceData, a CmdStanMCMC, or a dict of arrays "
            "(chain, draw, *shape) by name"
        )
    arrays = {name: np.asarray(values) for name, values in source.items()}
    shapes = {array.shape[:2] for array in arrays.values()}
    if len(shapes) > 1 or any(array.ndim < 2 for array in arrays.values()):
        raise ModelError(f"idata has arrays of {sorted(shapes)} chains and draws: expected (chain, draw, *shape)")
    dims = {
        name: ("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(array.ndim - 2)))
        for name, array in arrays.items()
    }
    return as_inference_data({"posterior": xr.Dataset({name: (dims[name], arrays[name]) for name in arrays})})


def _require_chains(posterior: xr.Dataset) -> None:
    """Refuse draws that are stacked, or of one chain without its dimension."""
    missing = [name for name in ("chain", "draw") if name not in posterior.sizes]
    if missing:
        raise ModelError(
            f"the draws have no dimension {' and '.join(missing)}: expected chain and draw; one chain is idata.sel(chain=[0])"
        )


def _stats(idata: Any) -> Any:
    """Return the group ``sample_stats``, empty if there is none."""
    try:
        return group(idata, "sample_stats").transpose("chain", "draw", ..., missing_dims="ignore")
    except KeyError:
        return xr.Dataset()


def _refuse_most(target: BaseTarget, x: Array, good: NDArray[np.bool_]) -> None:
    """Refuse draws if at most half have a finite density, and name the reason."""
    if good.mean() > 0.5:
        return
    bad = x[~good]
    infinite, missing = ~np.isfinite(bad).all(axis=0), np.isnan(bad).any(axis=0)
    if missing.any():
        said = f"{target.names[int(np.argmax(missing))]} is NaN"
    elif infinite.any():
        said = f"{target.names[int(np.argmax(infinite))]} lies at or beyond the edge of its support"
    else:
        said = target.explain(bad[0]) or "are they of this model and these data?"
    raise ModelError(f"{target.label}: the log density is not finite at {len(bad)} of {good.size} draws; {said}")


def _last_good(good: NDArray[np.bool_]) -> Index:
    """Return for each draw the last one up to it with a finite density ``(chain, draw)``, or else the first such draw."""
    at = np.where(good, np.arange(good.shape[1]), -1)
    found = np.maximum.accumulate(at, axis=1)
    return np.where(found < 0, np.argmax(good, axis=1)[:, None], found)


def _mismatch(stats: Any, log_density: Array) -> float:
    """Return a robust standard deviation of the sampler's log densities minus the model's, NaN if it stored none."""
    for name in _LOG_DENSITIES:
        if name in stats and stats[name].shape == log_density.shape:
            difference = stats[name].values - log_density
            low, high = np.nanquantile(difference, [0.158655, 0.841345])
            return float(0.5 * (high - low))
    return float("nan")


class Convergence(NamedTuple):
    """The largest R̂ and the smallest ESS over the coordinates and the log density, with the names of their coordinates.

    R̂ of a single chain is NaN.
    """

    rhat: float
    worst: str
    effective: float
    slowest: str

    @property
    def chains_disagree(self) -> bool:
        """Return whether the largest R̂ is above its limit."""
        return self.rhat > LARGEST_RHAT


def convergence_of(draws: Draws, names: tuple[str, ...]) -> Convergence:
    """Return the figures of the slowest coordinates and of the log density."""
    looked_at = slowest(draws.x, _LOOKED_AT)
    values = np.concatenate([draws.x[:, :, looked_at], draws.log_density[:, :, None]], axis=2)
    labels = [*(names[j] for j in looked_at), "the log density"]
    effective = effective_draws(values)
    rhat = np.full(len(labels), np.nan)
    if len(values) > 1:
        rhat = rank_rhat(values)
        rhat = np.where(np.isnan(rhat), 1.0, rhat)  # all draws are equal
    worst, fewest = int(np.argmax(rhat)), int(np.argmin(effective))
    return Convergence(float(rhat[worst]), labels[worst], float(effective[fewest]), labels[fewest])


def distrust_of_draws(draws: Draws, found: Convergence) -> list[str]:
    """Return reasons, each with its figure, not to trust estimates from the draws."""
    reasons = []
    if found.chains_disagree:
        reasons.append(
            f"the chains disagree: R-hat of {found.worst} is {found.rhat:.2f}, above {LARGEST_RHAT}: sample longer chains"
        )
    copies = len(draws.x) - len({chain.tobytes() for chain in draws.x})
    if copies:
        reasons.append(
            f"{copies} of {len(draws.x)} chains repeat the draws of another chain: sample with different seeds"
        )
    if few_independent(found.effective):
        reasons.append(
            f"the effective sample size of {found.slowest} is {found.effective:.0f}, below {FEWEST_INDEPENDENT:.0f}: sample "
            "more draws"
        )
    if draws.divergent > _LARGEST_DIVERGENT * draws.n:
        reasons.append(
            f"{draws.divergent} of {draws.n} draws end a divergent trajectory, so a part of the posterior may be missing: "
            "reparametrise the model or increase target_accept"
        )
    if draws.missing:
        reasons.append(
            f"{draws.missing} of {draws.n} draws are NaN, which no sampler returns, and the draws before them replace them: "
            "look for what changed the draws"
        )
    if draws.repaired > _LARGEST_REPAIRED * draws.n:
        reasons.append(f"the log density is not finite at {draws.repaired} of {draws.n} draws")
    if draws.mismatch > _LARGEST_MISMATCH:
        reasons.append(
            f"the log densities that the sampler stored differ from the model's by an sd of {draws.mismatch:.2g}: the draws "
            "may be of another model or other data"
        )
    return reasons

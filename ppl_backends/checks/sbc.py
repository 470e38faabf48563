r"""Simulation-based calibration: a method's intervals must contain the truth as often as they claim.

A parameter θ* is drawn from the prior, and data y* given θ*. If a method draws θ_1, …, θ_L from the posterior p(θ |
y*), the rank of θ* among them is uniform on {0, …, L} (Talts et al. 2018, Theorem 1), for every function of θ, and
intervals of probability q contain θ* in a share q of all simulations. New data replace the old ones without a new
compilation and without a new search for the factors of the model.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from ppl_backends.checks.methods import METHODS, draws_of
from ppl_backends.checks.uniformity import chi_squared, ecdf_p_values
from ppl_backends.errors import ModelError, PPLBackendsWarning, PriorSamplingError, SamplerWarning, user_level
from ppl_backends.options import checked, choice, function, instance, integer, none, several_names
from ppl_backends.parallel import map_independent
from ppl_backends.progress import ChainProgress
from ppl_backends.random import spawn_generators, spawn_seeds
from ppl_backends.results.inference_data import as_inference_data, library_attrs
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import Array, BaseTarget

LEVELS = (0.5, 0.8, 0.9, 0.95)
UNIFORM = 0.001  # smallest p-value, over all quantities, of a method that is called calibrated
_PIECES = 64  # batches of simulations that an executor distributes

Generate = Callable[[np.random.Generator], tuple[Mapping[str, Any], Mapping[str, Any]]]


@dataclass(frozen=True)
class Calibration:
    """Result of simulation-based calibration.

    Attributes
    ----------
    ranks : ndarray (simulations, quantities) of int
        Rank of the true value among the draws, from 0 to ``n_ranks − 1``.
    n_ranks : int
        Number of possible ranks: draws plus one.
    truth, mean, sd : ndarray (simulations, quantities)
        True values, and moments of the draws.
    coverage : pandas.DataFrame
        For each quantity, the share of simulations whose central interval of each level contains the true value.
    table : pandas.DataFrame
        By quantity: ``chi2``, ``p_chi2``, ``p_ecdf``, the mean and sd of z = (truth − mean) / sd, and coverage.
    labels : tuple of str
        Names of the quantities.
    method : str
    failed : int
        Number of simulations without a result; they are left out.
    warned : int
        Simulations in which the method warned.
    cpu_seconds : float
        CPU time of this process.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     beta = pm.Normal("beta", 0, 1, shape=2)
    ...     _ = pm.Bernoulli("y", logit_p=beta[0] + beta[1] * np.linspace(-1, 1, 20), observed=np.ones(20, dtype=int))
    >>> result = pb.sbc(model, method="ep", n=100, random_seed=1, progressbar=False)
    >>> result.failed, bool(result.ranks.max() < result.n_ranks)
    (0, True)
    """

    ranks: Array
    n_ranks: int
    truth: Array
    mean: Array
    sd: Array
    labels: tuple[str, ...]
    method: str
    failed: int
    warned: int
    cpu_seconds: float

    @cached_property
    def table(self) -> pd.DataFrame:
        """Return the figures of every quantity."""
        statistic, p_value = chi_squared(self.ranks, self.n_ranks)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (self.truth - self.mean) / self.sd
        columns = {
            "chi2": statistic,
            "p_chi2": p_value,
            "p_ecdf": ecdf_p_values(self.ranks, self.n_ranks),
            "z_mean": z.mean(axis=0),
            "z_sd": z.std(axis=0, ddof=1),
        }
        table = pd.DataFrame(columns, index=pd.Index(self.labels, name="quantity"))
        return table.join(self.coverage)

    @property
    def coverage(self) -> pd.DataFrame:
        """Return the share of intervals of each level that contain the true value.

        An interval between two draws may end inside a rank. That rank then counts by its part inside, so the expected
        share under uniform ranks is the level.
        """
        shares = {}
        for level in LEVELS:
            outside = (1 - level) * self.n_ranks / 2
            part = np.minimum(self.ranks + 1, self.n_ranks - outside) - np.maximum(self.ranks, outside)
            shares[f"coverage_{level:g}"] = np.clip(part, 0.0, 1.0).mean(axis=0)
        return pd.DataFrame(shares, index=pd.Index(self.labels, name="quantity"))

    @property
    def p_value(self) -> float:
        """Return the smallest p-value of χ² over the quantities, times their number (Bonferroni)."""
        return float(min(1.0, self.table["p_chi2"].min() * len(self.labels)))

    @property
    def calibrated(self) -> bool:
        """Return whether χ² and the distribution functions show no deviation of any quantity's ranks from uniform."""
        smallest = self.table[["p_chi2", "p_ecdf"]].min()
        return bool(smallest["p_chi2"] * len(self.labels) > UNIFORM and smallest["p_ecdf"] * len(self.labels) > UNIFORM)

    def to_inference_data(self) -> Any:
        """Return groups ``prior`` (the true values) and ``calibration`` (ranks and moments) by simulation and quantity."""
        coords = {"simulation": np.arange(len(self.ranks)), "quantity": list(self.labels)}
        on = ("simulation", "quantity")
        attrs = library_attrs() | {
            "method": self.method,
            "n_ranks": self.n_ranks,
            "failed": self.failed,
            "warned": self.warned,
        }
        figures = {"rank": (on, self.ranks), "mean": (on, self.mean), "sd": (on, self.sd)}
        prior = {"theta": (("chain", "draw", "quantity"), self.truth[None])}
        draws = {"chain": [0], "draw": np.arange(len(self.ranks)), "quantity": list(self.labels)}
        return as_inference_data(
            {"prior": xr.Dataset(prior, coords=draws), "calibration": xr.Dataset(figures, coords=coords, attrs=attrs)}
        )

    def __repr__(self) -> str:
        said = "calibrated" if self.calibrated else "NOT calibrated"
        return (
            f"Calibration of {self.method}: {said} (smallest p of χ² {self.p_value:.2g} over {len(self.labels)} quantities, "
            f"{len(self.ranks)} simulations, {self.failed} failed, {self.warned} warned)\n{self.table.round(3)}"
        )


@checked(
    method=choice(*METHODS) | function("a function (target, n, rng) that returns draws"),
    n=integer(20),
    ranks=integer(9),
    generate=none | function("a function of a generator that returns (parameters, data)"),
    var_names=none | several_names(),
    options=none | instance(Mapping, "a mapping of options of the method"),
)
def sbc(
    model: Any = None,
    *,
    data: Any = None,
    method: Any = "smc",
    n: int = 1000,
    ranks: int = 99,
    generate: Generate | None = None,
    var_names: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    **target_options: Any,
) -> Calibration:
    r"""Return ranks and coverage of a method over data drawn from the model itself.

    Parameters
    ----------
    model : pymc.Model, Stan program or Target, optional
        The PyMC model on the context stack by default. Its prior must be proper. Only the shapes of the observed
        values matter.
    data : dict or path, optional
        Data of a Stan program.
    method : {"smc", "importance", "mcmc", "laplace", "ep", "vi", "inla"} or callable
        A callable gets (target, n, rng), where the target has the drawn data, and returns at least ``n`` draws:
        InferenceData, an approximation, or an array ``(n, dim)`` on the unconstrained space.
    n : int
        Number of simulations.
    ranks : int
        Number of draws L among which the true value is ranked; L + 1 should have many divisors.
    generate : callable, optional
        ``generate(rng) -> (parameters, data)``, both by name: a function that draws parameters from the prior, and
        data given them. A Stan program needs it, because it can draw neither. The data replace those of the same
        names.
    var_names : sequence of str, optional
        Variables to rank; the parameters by default.
    options : mapping, optional
        Options of the method, e.g. ``{"draws": 1000}``.
    executor : concurrent.futures.Executor, optional
        Runs the simulations elsewhere; the result is the same.
    random_seed, progressbar
        As for :func:`~ppl_backends.sample_smc`.
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    Calibration
        :func:`~ppl_backends.plot_sbc` plots it.

    Raises
    ------
    ModelError
        If data cannot be drawn from the model, or no simulation has a result.

    Warns
    -----
    SamplerWarning
        If the method failed in some simulations.

    References
    ----------
    Talts, S., Betancourt, M., Simpson, D., Vehtari, A. and Gelman, A. (2018). Validating Bayesian inference algorithms with
    simulation-based calibration. Säilynoja, T., Bürkner, P.-C. and Vehtari, A. (2022). Graphical test for discrete
    uniformity and its applications. *Statistics and Computing* 32.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     beta = pm.Normal("beta", 0, 1, shape=2)
    ...     _ = pm.Bernoulli("y", logit_p=beta[0] + beta[1] * np.linspace(-1, 1, 20), observed=np.ones(20, dtype=int))
    >>> result = pb.sbc(model, method="ep", n=100, random_seed=1, progressbar=False)
    >>> result.ranks.shape, result.calibrated
    ((100, 2), True)
    """
    began = time.process_time()
    target = as_target(model, data, **target_options)
    simulation = Simulation(target, method, dict(options or {}), ranks, generate, tuple(var_names or ()))
    labels = simulation.labels()
    seeds = spawn_seeds(random_seed, n)
    pieces = [seeds[k::_PIECES] for k in range(min(_PIECES, n))]
    with ChainProgress("calibration", 1, ("simulations",), progressbar and executor is None) as bar:
        done: list[list[Any]] = [] if executor is None else map_independent(simulation.run, pieces, executor)
        while len(done) < len(pieces):
            done.append(simulation.run(pieces[len(done)]))
            bar.update(0, len(done) / len(pieces), simulations=str(sum(map(len, done))))
    outcomes = [done[k % len(pieces)][k // len(pieces)] for k in range(n)]
    found = [outcome for outcome in outcomes if isinstance(outcome, Outcome)]
    failed = [outcome for outcome in outcomes if not isinstance(outcome, Outcome)]
    if not found:
        raise ModelError(f"{target.label}: no simulation has a result; the first failed with: {failed[0]}")
    if failed:
        text = f"sbc: {len(failed)} of {n} simulations failed and are left out (the first with: {failed[0]}): change options="
        warnings.warn(text, SamplerWarning, stacklevel=user_level())
    rank, true, mean, sd = (np.stack([outcome[k] for outcome in found]) for k in range(4))
    return Calibration(
        ranks=rank,
        n_ranks=ranks + 1,
        truth=true,
        mean=mean,
        sd=sd,
        labels=labels,
        method=method if isinstance(method, str) else "a function",
        failed=len(failed),
        warned=sum(outcome.warned for outcome in found),
        cpu_seconds=time.process_time() - began,
    )


class Outcome(NamedTuple):
    """Ranks, true values, and moments of the draws ``(quantities,)`` of one simulation."""

    rank: Array
    truth: Array
    mean: Array
    sd: Array
    warned: bool


@dataclass(frozen=True)
class Simulation:
    """Draw and fit data sets repeatedly."""

    target: BaseTarget
    method: Any
    options: Mapping[str, Any]
    n_draws: int
    generate: Generate | None
    var_names: tuple[str, ...]

    def run(self, seeds: Sequence[np.random.SeedSequence]) -> list[Outcome | str]:
        """Return for every seed an outcome, or the reason why there is none."""
        return [self.once(*spawn_generators(seed, 3)) for seed in seeds]

    def once(
        self, data_rng: np.random.Generator, method_rng: np.random.Generator, tie_rng: np.random.Generator
    ) -> Outcome | str:
        """Draw parameters and data, fit, and rank the parameters among the draws; ties are broken at random."""
        truth, target = self.draw(data_rng)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", PPLBackendsWarning)
                x = draws_of(self._fit(target, method_rng), target, self.n_draws, method_rng)
        except (ModelError, ArithmeticError, np.linalg.LinAlgError) as error:
            return str(error)
        values, true = self._quantities(target, x), self._quantities(target, truth)
        below = (values < true).sum(axis=0) + tie_rng.integers(0, (values == true).sum(axis=0) + 1)
        warned = any(issubclass(each.category, PPLBackendsWarning) for each in said)
        return Outcome(below, true[0], values.mean(axis=0), values.std(axis=0, ddof=1), warned)

    def draw(self, rng: np.random.Generator) -> tuple[Array, BaseTarget]:
        """Return a point of the prior ``(1, dim)``, and the target on data drawn given it."""
        if self.generate is not None:
            parameters, data = self.generate(rng)
            target = self.target.with_data(data)
            return target.unconstrain({name: np.asarray(value)[None] for name, value in parameters.items()}), target
        x = self.target.sample_prior(1, rng)
        if self.target.predictive is not None:
            drawn = self.target.predictive.draw(x, rng)
            return x, self.target.predictive.on({name: values[0] for name, values in drawn.items()})
        return x, self.target.with_data({name: np.asarray(v)[0] for name, v in self.target.simulate(x, rng).items()})

    def _fit(self, target: BaseTarget, rng: np.random.Generator) -> Any:
        if not isinstance(self.method, str):
            return self.method(target, self.n_draws, rng, **self.options)
        return METHODS[self.method](target, self.n_draws, **{"random_seed": rng, "progressbar": False, **self.options})

    def _names(self, values: Mapping[str, Any]) -> list[str]:
        return list(self.var_names or self.target.parameter_names or values)

    def _quantities(self, target: BaseTarget, x: Array) -> Array:
        """Return the elements of the variables at points ``(n, quantities)``."""
        values = target.constrain(x)
        return np.concatenate([np.reshape(values[name], (len(x), -1)) for name in self._names(values)], axis=1)

    def labels(self) -> tuple[str, ...]:
        """Return the names of the quantities; check first that the model can generate data."""
        target = self.target
        if self.generate is None:
            if target.predictive is None and target.simulate is None:
                raise ModelError(
                    f"{target.label}: no data can be drawn from it; give generate=, which draws parameters and data"
                )
            try:
                target.sample_prior(1, np.random.default_rng(0))
            except PriorSamplingError as error:
                raise ModelError(f"sbc draws from the prior, which has to be proper; {error}") from None
        truth, _ = self.draw(np.random.default_rng(0))
        values = target.constrain(truth)
        unknown = [name for name in self._names(values) if name not in values]
        if unknown:
            raise ModelError(
                f"var_names: {unknown[0]!r} is not a variable of {target.label} ({', '.join(list(values)[:8])})"
            )
        labels = []
        for name in self._names(values):
            shape = np.shape(values[name])[1:]
            labels += [f"{name}[{', '.join(map(str, index))}]" if shape else name for index in np.ndindex(*shape)]
        return tuple(labels)

r"""Steps and lengths of the moves, tuned by the particles that they move.

``"acceptance"``: one step ε for all, adapted to the optimal acceptance rate; HMC's number of steps L follows from ε.

``"ft"`` (Fearnhead & Taylor 2013; Buchholz 2018, Algorithm 16): every particle has its own (ε, L). The performance of
a pair in the first move of a temperature is the expected squared jump per gradient, Λ = acceptance · |Δ|² / L; pairs
are resampled in proportion to it, and jittered.

``"pr"`` (Buchholz 2018, Algorithm 17): every temperature starts with a trial. Pairs are drawn uniformly up to (ε*,
L*), one trajectory from each particle measures their performance and is then discarded; pairs of the moves are drawn
in proportion to their Λ. ε* solves the median regression |ΔE| = a ε² for acceptance 0.9; L* grows if many of the pairs
chosen have an L close to it, and shrinks if few have.

A random walk and a Langevin move are tuned in the same way, with L = 1, and with their own acceptance rates in place of 0.9.

If the posterior is much narrower in one region than elsewhere, as in the neck of a funnel, trajectories with a common
step are rejected there: particles rarely enter, and those inside stay. So if many trajectories of a temperature have a
large energy error, a random quarter of the particles makes a quarter of the step in every move (:class:`Uneven`; Neal
2011, section 5.4.2.2), with the same number of steps and therefore at the same cost.

The mixed kernel alternates between two kinds of proposals. With ``"acceptance"`` each has its own step, and its share
of the moves is its share of the recent expected squared jump of both, between a quarter and three quarters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.metric import AnyMetric
from ppl_backends.kernels.protocol import Density, Kernel, KernelInfo, KernelParameters, S
from ppl_backends.targets.protocol import Array, Index

# Change of log scale per unit of acceptance above target: about the inverse slope of a walk's acceptance curve. If a
# trajectory becomes unstable in one direction, the curve is several times as steep.
_GAIN, _LEAST_GAIN = 1.5, 0.3
_JITTER = 0.015  # standard deviation of ε's jitter, in whitened units
_FIRST_LENGTH = 25  # initial L*
_LENGTH_STEP = 5
_LONGEST = 200
_MANY, _FEW = 0.1, 0.05  # shares of pairs near L*, above and below which it is changed
_LEAST_SHARE = 0.25  # of the moves, for either kind of a mixed kernel's proposals
_SHARE_OF_SHORT, _SHORT = 0.25, 0.25  # share of the particles with short steps, and the factor of these steps


class StepParameters(NamedTuple):
    """A step and a number of steps for every particle.

    Attributes
    ----------
    scale : ndarray (n,)
    n_steps : ndarray (n,)
    """

    scale: Array
    n_steps: Index

    def take(self, index: Index) -> StepParameters:
        """Return the pairs ``index``."""
        return StepParameters(self.scale[index], self.n_steps[index])


class FirstPairs(NamedTuple):
    """Start a tuning with pairs of a step and a number of steps that are uniform up to these.

    Steps are in units of the metric, which are standard deviations if it is diagonal.

    Attributes
    ----------
    tuning : {"ft", "pr"}
    step : float
        The largest step.
    length : int
        The largest number of steps of a trajectory; kernels other than HMC make one.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.targets.factors import Logit
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(20, 2)), rng.integers(0, 2, size=20)
    >>> model = pb.Factors(X, 0.0, Logit(y), prior_mean=0.0, prior_precision=0.25)
    >>> thesis = {"tuning": pb.FirstPairs("pr", 0.1, 100), "metric": "diagonal"}
    >>> idata = pb.sample_smc(model, draws=200, chains=2, random_seed=1, progressbar=False, **thesis)
    >>> idata.posterior.attrs["tuning"], idata.posterior.attrs["metric"]
    ('pr', 'diagonal')
    """

    tuning: str
    step: float
    length: int


class CycleParameters(NamedTuple):
    """The next proposal of a mixed kernel, and its step.

    Attributes
    ----------
    part : int
    scale : float
    """

    part: int
    scale: float


class Uneven(NamedTuple):
    """One step for all particles except a random quarter, which makes a quarter of the step.

    Attributes
    ----------
    scale : float
    """

    scale: float

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """Return the steps ``(n,)`` of one move."""
        return self.scale * np.where(rng.random(n) < _SHARE_OF_SHORT, _SHORT, 1.0)


Parameters = float | StepParameters | CycleParameters | Uneven


def move_once(
    kernel: Kernel,
    rng: np.random.Generator,
    state: S,
    density: Density[S],
    parameters: Parameters,
    metric: AnyMetric,
) -> tuple[S, KernelInfo]:
    """Move every particle once, with one step for all or a separate step for each."""
    return kernel.step(rng, state, density, with_metric(parameters, metric, len(state.x), rng))


def with_metric(parameters: Parameters, metric: AnyMetric, n: int, rng: np.random.Generator) -> KernelParameters:
    """Return the parameters with which a kernel moves ``n`` particles, from the tuning's next parameters."""
    if isinstance(parameters, Uneven):
        return KernelParameters(metric, parameters.draw(n, rng))
    if isinstance(parameters, CycleParameters):
        return KernelParameters(metric, parameters.scale, part=parameters.part)
    if isinstance(parameters, StepParameters):
        return KernelParameters(metric, parameters.scale, n_steps=parameters.n_steps)
    return KernelParameters(metric, parameters)


@dataclass(frozen=True)
class AcceptanceTuning:
    """One step for all, adapted to the acceptance rate; the gain decreases with every crossing of its target (Kesten 1958),
    and is reset after a rate below half of it.

    Attributes
    ----------
    scale : float
    target : float
    largest : float
        Largest scale.
    above : bool or None
        Whether the last rate was above its target.
    crossings : int
    """

    scale: float
    target: float
    largest: float = np.inf
    above: bool | None = None
    crossings: int = 0

    def prepare(self, trial: Callable[[Parameters], KernelInfo], n: int, rng: np.random.Generator) -> AcceptanceTuning:
        """Do nothing: this tuning makes no trial moves."""
        return self

    def parameters(self) -> Parameters:
        """Return the parameters of the next move."""
        return self.scale

    def learn(self, info: KernelInfo, first: bool) -> AcceptanceTuning:
        """Adapt to the acceptance rate of a move."""
        excess = float(info.acceptance.mean()) - self.target
        crossings = self.crossings + (self.above is not None and self.above != (excess > 0))
        if excess < -0.5 * self.target:  # the metric has become a worse one
            crossings = 0
        gain = max(_LEAST_GAIN, _GAIN / (1 + crossings))
        scale = min(self.largest, self.scale * float(np.exp(gain * excess)))
        return replace(self, scale=scale, above=excess > 0, crossings=crossings)


@dataclass(frozen=True)
class CycleTuning:
    """Two kinds of proposals alternately, each with a step that follows its acceptance rate.

    Attributes
    ----------
    parts : tuple of AcceptanceTuning
    jump : tuple of float
        Expected squared jump of each, averaged over its moves with half the weight on the last; NaN before the first.
    due : float
        Moves that the second is due.
    """

    parts: tuple[AcceptanceTuning, AcceptanceTuning]
    jump: tuple[float, float] = (np.nan, np.nan)
    due: float = 0.0

    @property
    def share(self) -> float:
        """Return the share of the moves that the second kernel makes."""
        total = sum(self.jump)
        share = self.jump[1] / total if total > 0 else 0.5
        return min(max(share, _LEAST_SHARE), 1.0 - _LEAST_SHARE)

    def prepare(self, trial: Callable[[Parameters], KernelInfo], n: int, rng: np.random.Generator) -> CycleTuning:
        """Do nothing: this tuning makes no trial moves."""
        return self

    def parameters(self) -> CycleParameters:
        """Return the parameters of the next move."""
        part = int(self.due + self.share >= 1.0)
        return CycleParameters(part, self.parts[part].scale)

    def learn(self, info: KernelInfo, first: bool) -> CycleTuning:
        """Adapt to the acceptance rate and the jumps of a move."""
        part = self.parameters().part
        parts, jump = list(self.parts), list(self.jump)
        parts[part] = parts[part].learn(info, first)
        latest = float(_performance(info, 1).mean())
        jump[part] = latest if np.isnan(jump[part]) else 0.5 * (jump[part] + latest)
        return CycleTuning((parts[0], parts[1]), (jump[0], jump[1]), self.due + self.share - part)


@dataclass(frozen=True)
class FearnheadTaylor:
    """Fearnhead & Taylor's tuning: pairs with good performance are kept.

    Attributes
    ----------
    pairs : StepParameters
    performance : ndarray (n,)
        Λ of every pair in the first move with it.
    longest : int
        1 if L is not a parameter.
    """

    pairs: StepParameters
    performance: Array
    longest: int

    def prepare(self, trial: Callable[[Parameters], KernelInfo], n: int, rng: np.random.Generator) -> FearnheadTaylor:
        """Resample the pairs by their performance, and jitter them."""
        pairs = self.pairs.take(_proportional(self.performance, n, rng))
        scale = np.abs(pairs.scale + _JITTER * rng.standard_normal(n))
        n_steps = np.clip(pairs.n_steps + rng.integers(-1, 2, size=n), 1, self.longest)
        return replace(self, pairs=StepParameters(scale, n_steps), performance=np.ones(n))

    def parameters(self) -> Parameters:
        """Return the parameters of the next move."""
        return self.pairs

    def learn(self, info: KernelInfo, first: bool) -> FearnheadTaylor:
        """Record the performance of the pairs in the first move of a temperature."""
        return replace(self, performance=_performance(info, self.pairs.n_steps)) if first else self


@dataclass(frozen=True)
class BuchholzPretuning:
    """Buchholz's tuning: a trial at every temperature.

    Attributes
    ----------
    pairs : StepParameters
    largest : float
        ε*, the largest step tried.
    longest : int
        L*; 1 if L is not a parameter.
    acceptance : float
        Target acceptance of ε*.
    """

    pairs: StepParameters
    largest: float
    longest: int
    acceptance: float

    def prepare(self, trial: Callable[[Parameters], KernelInfo], n: int, rng: np.random.Generator) -> BuchholzPretuning:
        """Try pairs on every particle, and draw those of the moves by their performance."""
        tried = StepParameters(rng.uniform(0.0, self.largest, n), rng.integers(1, self.longest + 1, size=n))
        info = trial(tried)
        chosen = tried.take(_proportional(_performance(info, tried.n_steps), n, rng))
        largest = _largest_step(tried.scale, np.abs(info.log_ratio), abs(np.log(self.acceptance)), self.largest)
        return replace(self, pairs=chosen, largest=largest, longest=self._next_longest(chosen.n_steps))

    def _next_longest(self, chosen: Index) -> int:
        if self.longest == 1:
            return 1
        near = float(np.mean(chosen > self.longest - _LENGTH_STEP))
        change = _LENGTH_STEP if near > _MANY else -_LENGTH_STEP if near < _FEW else 0
        return int(np.clip(self.longest + change, _LENGTH_STEP, _LONGEST))

    def parameters(self) -> Parameters:
        """Return the parameters of the next move."""
        return self.pairs

    def learn(self, info: KernelInfo, first: bool) -> BuchholzPretuning:
        """Do nothing: the trial moves decide."""
        return self


KernelTuning = AcceptanceTuning | CycleTuning | FearnheadTaylor | BuchholzPretuning


def acceptance_tuning(kernel: Kernel, scale: float, dim: int) -> AcceptanceTuning | CycleTuning:
    """Return tuning by acceptance rates from ``scale``; each part of a mixed kernel starts at its own scale."""
    if kernel.parts:
        walk, independent = (acceptance_tuning(part, part.initial_scale(dim), dim) for part in kernel.parts)
        return CycleTuning((walk, independent))  # type: ignore[arg-type]
    return AcceptanceTuning(scale, kernel.target_acceptance, kernel.largest_scale)


def make_tuning(how: str | FirstPairs, kernel: Kernel, n: int, dim: int, rng: np.random.Generator) -> KernelTuning:
    """Return the tuning of that name, or one that starts with given pairs, for moves of ``n`` particles.

    Raises
    ------
    ModelError
        If there is no such tuning.
    """
    scale = kernel.initial_scale(dim)
    if how == "acceptance":
        return acceptance_tuning(kernel, scale, dim)
    first = FirstPairs(how, 1.5 * scale, _FIRST_LENGTH) if isinstance(how, str) else how
    if first.tuning not in ("ft", "pr") or not first.step > 0 or first.length < 1:
        raise ModelError(
            f"tuning={how!r}: expected 'acceptance', 'ft', 'pr' or FirstPairs with a step and a length above 0"
        )
    longest = first.length if kernel.has_lengths else 1
    pairs = StepParameters(rng.uniform(0.0, first.step, n), rng.integers(1, longest + 1, size=n))
    if first.tuning == "ft":
        return FearnheadTaylor(pairs, np.ones(n), max(_LONGEST, longest) if kernel.has_lengths else 1)
    return BuchholzPretuning(pairs, first.step, longest, kernel.target_acceptance)


def _performance(info: KernelInfo, n_steps: Any) -> Array:
    """Return Λ, the expected squared jump per gradient."""
    return np.nan_to_num(info.acceptance * info.squared_jump / n_steps, posinf=0.0)


def _proportional(performance: Array, n: int, rng: np.random.Generator) -> Index:
    """Draw ``n`` indices in proportion to performance; uniformly if all performances are zero."""
    total = performance.sum()
    share = performance / total if total > 0 else np.full(len(performance), 1.0 / len(performance))
    return rng.choice(len(performance), size=n, p=share)


def _largest_step(scale: Array, energy_error: Array, wanted: float, before: float) -> float:
    """Return ε* of the median regression |ΔE| = a ε²: a is the median of |ΔE|/ε², weighted by ε²; changed at most by
    a factor of two upwards and four downwards.

    If no error is finite, the step is halved.
    """
    usable = np.isfinite(energy_error) & (scale > 0)
    if not usable.any():
        return 0.5 * before
    square = scale[usable] ** 2
    slope = energy_error[usable] / square
    order = np.argsort(slope)
    cumulative = np.cumsum(square[order])
    a = slope[order][np.searchsorted(cumulative, 0.5 * cumulative[-1])]
    step = np.sqrt(wanted / a) if a > 0 else np.inf
    return float(np.clip(step, 0.25 * before, 2.0 * before))

"""Metropolis–Hastings kernels over a batch of points.

Every kernel has the same shape: a frozen description (name, gradient or not, acceptance rate to aim for, a scale to begin
with) and one method :meth:`step` that moves all points once. The density reaches a kernel as a function from points to a
:class:`State`; whether it is a posterior, a tempered one or a conditional is not the kernel's business. A proposal whose
log density is not finite is rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.kernels.metric import AnyMetric
from ppl_backends.targets.protocol import Array

__all__ = [
    "KERNELS",
    "Cycle",
    "Hmc",
    "Independent",
    "Kernel",
    "KernelInfo",
    "Mala",
    "RandomWalk",
    "State",
    "make_kernel",
    "trajectory",
]


class State(Protocol):
    """Points with what is known of the density there."""

    @property
    def x(self) -> Array:
        """``(n, dim)``."""
        ...

    @property
    def log_density(self) -> Array:
        """``(n,)``."""
        ...

    @property
    def gradient(self) -> Array:
        """``(n, dim)``."""
        ...

    def where(self: S, accepted: NDArray[np.bool_], proposal: S) -> S:
        """The proposal where ``accepted`` ``(n,)``, else this."""
        ...


S = TypeVar("S", bound="State")


class RaggedState(State, Protocol):
    """A state of which rows can be taken and put back, as trajectories of several lengths need."""

    def take(self: R, index: NDArray[np.intp]) -> R:
        """Rows ``index``."""
        ...

    def scatter(self: R, index: NDArray[np.intp], rows: R) -> R:
        """A copy with ``rows`` in place of the rows ``index``."""
        ...


R = TypeVar("R", bound="RaggedState")


class KernelInfo(NamedTuple):
    """What one step did.

    Attributes
    ----------
    acceptance : ndarray (n,)
        Acceptance probability of every point's proposal.
    squared_jump : ndarray (n,)
        Squared length of the proposed displacement in whitened coordinates; times acceptance it is the expected squared
        jumping distance.
    gradients : float
        Evaluations of the density per point.
    log_ratio : ndarray (n,) or None
        Log of the acceptance ratio; −ΔE for a trajectory, −inf where it is not a number.
    """

    acceptance: Array
    squared_jump: Array
    gradients: float
    log_ratio: Array | None = None


class Kernel(Protocol):
    """The common shape of all kernels."""

    name: str
    uses_gradient: bool
    target_acceptance: float
    largest_scale: float

    def initial_scale(self, dim: int) -> float:
        """Scale to begin with where the metric is the target's covariance."""
        ...

    def step(
        self,
        rng: np.random.Generator,
        state: S,
        evaluate: Callable[[Array], S],
        scale: float | Array,
        metric: AnyMetric,
    ) -> tuple[S, KernelInfo]:
        """Move every point once, leaving the density of ``evaluate`` invariant."""
        ...


def _accept(
    rng: np.random.Generator, state: S, proposal: S, log_ratio: Array, squared_jump: Array
) -> tuple[S, KernelInfo]:
    """Metropolis–Hastings acceptance; ratios that are not a number reject."""
    log_ratio = np.where(np.isnan(log_ratio), -np.inf, log_ratio)
    accepted = np.log(rng.random(len(log_ratio))) < log_ratio
    probability = np.exp(np.minimum(log_ratio, 0.0))
    return state.where(accepted, proposal), KernelInfo(probability, squared_jump, 1, log_ratio)


def trajectory(
    rng: np.random.Generator,
    state: S,
    evaluate: Callable[[Array], S],
    h: float | Array,
    kicks: Array,
    metric: AnyMetric,
    force: Callable[[Array], Array],
) -> tuple[S, KernelInfo]:
    """Steps of length ``h`` with new momenta, accepted or not; ``force`` of whitened gradients.

    ``kicks``, of :func:`leapfrog` or :func:`two_stage`, has the shares of h for which the force acts before the first
    step, between steps and after the last. They read the same from either end, so the trajectory is reversible.

    A step that would leave the support is not made, and turns the momentum round instead (the guided walk of Gustafson 1998):
    (y, p) ↦ (y + hp, p) where the end is inside and (y, −p) elsewhere is a bijection that preserves volume and that reversing
    p inverts, as the plain step is. Such steps count as rejected in the acceptance, so that tuning shortens them.
    """
    start = balanced_normals(rng, state.x.shape)
    momentum = start + kicks[0] * h * force(metric.whiten_gradient(state.gradient))
    proposal, jump, turned = state, np.zeros_like(start), np.zeros(len(start))
    for kick in kicks[1:]:
        step = h * momentum
        ahead = evaluate(proposal.x + metric.colour(step))
        outside = ahead.log_density == -np.inf
        if outside.any():
            ahead, turned = ahead.where(outside, proposal), turned + outside
            step[outside], momentum[outside] = 0.0, -momentum[outside]
        proposal, jump = ahead, jump + step
        momentum = momentum + kick * h * force(metric.whiten_gradient(proposal.gradient))
    kinetic = 0.5 * ((start**2).sum(axis=1) - (momentum**2).sum(axis=1))
    log_ratio = proposal.log_density - state.log_density + kinetic
    moved, info = _accept(rng, state, proposal, log_ratio, (jump**2).sum(axis=1))
    n_steps = len(kicks) - 1
    return moved, info._replace(acceptance=info.acceptance * (1.0 - turned / n_steps), gradients=n_steps)


def balanced_normals(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Standard normal rows that add up to zero: each is exactly N(0, I), two have correlation −1/(n − 1).

    Every point moves by its kernel as with independent momenta. After a quarter of a period on a Gaussian a point is its
    momentum, so that the mean over points is next to exact there (antithetic coupling of many chains; Craiu & Meng 2005).
    """
    normals = rng.standard_normal(shape)
    n = len(normals)
    return normals if n == 1 else (normals - normals.mean(axis=0)) * np.sqrt(n / (n - 1.0))


def leapfrog(n_steps: int) -> Array:
    """Shares of the step that the force acts for: a half, wholes, a half."""
    return _alternating(n_steps, 0.5)


def two_stage(n_steps: int) -> Array:
    """The same for an even number of steps that are integrated in pairs (Blanes, Casas & Sanz-Serna 2014).

    Leapfrog steps whose kicks are longer and shorter by turns, by 15 %. On a standard normal the mean energy error is 5 times
    smaller at h = 0.3, 20 times at 0.7 and 70 times at 1, so that many more dimensions take the same step; the scheme
    becomes unstable at h = 1.3, where leapfrog does at 2.
    """
    return _alternating(n_steps, 2 * _OUTER_KICK)


def _alternating(n_steps: int, outer: float) -> Array:
    kicks = np.where(np.arange(n_steps + 1) % 2 == 1, 2.0 * (1.0 - outer), 2.0 * outer)
    kicks[[0, -1]] = outer
    return kicks


class RandomWalk:
    """Random-walk Metropolis: x' = x + h L z. Optimal scale 2.38/√d, acceptance 0.234 (Roberts, Gelman & Gilks 1997)."""

    name = "random_walk"
    uses_gradient = False
    target_acceptance = 0.234
    largest_scale = np.inf

    def initial_scale(self, dim: int) -> float:
        """2.38 / √dim."""
        return 2.38 / np.sqrt(dim)

    def step(
        self,
        rng: np.random.Generator,
        state: S,
        evaluate: Callable[[Array], S],
        scale: float | Array,
        metric: AnyMetric,
    ) -> tuple[S, KernelInfo]:
        """One symmetric proposal for every point."""
        h = _column(scale)
        z = rng.standard_normal(state.x.shape)
        proposal = evaluate(state.x + metric.colour(h * z))
        log_ratio = proposal.log_density - state.log_density
        return _accept(rng, state, proposal, log_ratio, ((h * z) ** 2).sum(axis=1))


class Independent:
    """Proposals from N(m, Σ), fitted to the points: y' = √(1−h²) y + h z in whitened coordinates y about m.

    At h = 1, the largest scale and the first, they are independent of where the point is, and one accepted is all it takes
    to forget; where too few are, h falls below, and the proposal is the autoregressive one that leaves N(m, Σ) invariant
    (Neal 1998), in the limit a random walk. A target with heavier tails than N(m, Σ) holds on to the points in them.
    """

    name = "independent"
    uses_gradient = False
    target_acceptance = 0.234
    largest_scale = 1.0

    def initial_scale(self, dim: int) -> float:
        """1: independent proposals."""
        return 1.0

    def step(
        self,
        rng: np.random.Generator,
        state: S,
        evaluate: Callable[[Array], S],
        scale: float | Array,
        metric: AnyMetric,
    ) -> tuple[S, KernelInfo]:
        """One proposal for every point."""
        h = np.minimum(_column(scale), 1.0)
        y = metric.whiten(state.x)
        proposed = np.sqrt(1.0 - h**2) * y + h * balanced_normals(rng, y.shape)
        proposal = evaluate(metric.place(proposed))
        reference = 0.5 * ((proposed**2).sum(axis=1) - (y**2).sum(axis=1))
        log_ratio = proposal.log_density - state.log_density + reference
        return _accept(rng, state, proposal, log_ratio, ((proposed - y) ** 2).sum(axis=1))


class Cycle:
    """Random-walk and independent proposals in turn, for targets without gradients.

    Independent proposals forget at once where the target is close to the Gaussian fitted to it, and hold on to points in its
    tails; a random walk moves those, and is slow elsewhere. Each is a Metropolis step with a scale of its own, which
    :class:`~ppl_backends.smc.tuning.CycleTuning` keeps, with the share of either; :meth:`step` by itself tosses a coin.
    """

    name = "mixed"
    uses_gradient = False
    target_acceptance = 0.234
    largest_scale = np.inf
    parts = (RandomWalk(), Independent())

    def initial_scale(self, dim: int) -> float:
        """2.38 / √dim, cut to 1 by the independent proposals."""
        return RandomWalk().initial_scale(dim)

    def step(
        self,
        rng: np.random.Generator,
        state: S,
        evaluate: Callable[[Array], S],
        scale: float | Array,
        metric: AnyMetric,
    ) -> tuple[S, KernelInfo]:
        """One proposal for every point, all of the same kind, drawn at random."""
        return self.parts[int(rng.integers(2))].step(rng, state, evaluate, scale, metric)


class Mala:
    """Metropolis-adjusted Langevin: x' = x + (h²/2) Σ ∇log π(x) + h L z (Roberts & Tweedie 1996).

    In whitened coordinates y' = y + (h²/2) g + h z with g = Lᵀ∇log π, so the reverse move needs the noise
    z' = −(z + (h/2)(g + g')) and the proposal densities enter the ratio as (|z|² − |z'|²)/2. The drift is cut to the length
    h√d of the noise (truncated Langevin), which leaves the bulk alone and keeps points in the tails from overshooting for
    ever. Optimal acceptance 0.574 at h ∝ d^(−1/6) (Roberts & Rosenthal 1998).
    """

    name = "mala"
    uses_gradient = True
    target_acceptance = 0.574
    largest_scale = np.inf

    def initial_scale(self, dim: int) -> float:
        """1.65 / dim^(1/6)."""
        return 1.65 / dim ** (1.0 / 6.0)

    def step(
        self,
        rng: np.random.Generator,
        state: S,
        evaluate: Callable[[Array], S],
        scale: float | Array,
        metric: AnyMetric,
    ) -> tuple[S, KernelInfo]:
        """One Langevin proposal for every point."""
        h = _column(scale)
        z = balanced_normals(rng, state.x.shape)
        drift = _cut(metric.whiten_gradient(state.gradient), h)
        jump = 0.5 * h**2 * drift + h * z
        proposal = evaluate(state.x + metric.colour(jump))
        reverse_drift = _cut(metric.whiten_gradient(proposal.gradient), h)
        reverse_z = z + 0.5 * h * (drift + reverse_drift)
        log_ratio = proposal.log_density - state.log_density + 0.5 * ((z**2).sum(axis=1) - (reverse_z**2).sum(axis=1))
        return _accept(rng, state, proposal, log_ratio, (jump**2).sum(axis=1))


_TRAJECTORY = (0.35, 0.65)  # of half a period


class Hmc:
    """Hamiltonian Monte Carlo: L steps of length h, mass Σ⁻¹ (Neal 2011; Buchholz 2018, Algorithm 15).

    In whitened coordinates the mass is the identity: p ← p + (h/2) g, then L times y ← y + h p with p ← p + h g between,
    and a last p ← p + (h/2) g; accepted with probability min{1, exp(−ΔE)}, E = −log π + |p|²/2. (The thesis prints both the
    sign and max for min.) Those are leapfrog's kicks, which :meth:`step_each` has; :meth:`step` has those of
    :func:`two_stage`.

    Where Σ is the target's covariance a quarter of a period, hL = π/2, gives independent points, so L follows from h. The
    length is drawn anew at every step, the same for all points, which keeps trajectories from closing: from 0.35 π to
    0.65 π, over which the correlation of a coordinate with its start, cos hL, and that of its square, cos² hL, are next to
    nothing on average (0 and 0.07). It is covered by as few pairs of steps no longer than ``scale`` as do; where points have
    steps of their own, those with shorter ones go less far. The force is cut
    as in :class:`Mala`: any force that depends on the position alone leaves the scheme reversible and volume preserving.
    """

    name = "hmc"
    uses_gradient = True
    target_acceptance = 0.9
    largest_scale = 0.5 * np.pi * _TRAJECTORY[1]  # one pair of steps for every length

    def initial_scale(self, dim: int) -> float:
        """1.2 / dim^(1/4)."""
        return 1.2 / dim**0.25

    @staticmethod
    def n_steps(scale: float, share: float = 0.5) -> int:
        """Return the number of steps no longer than ``scale`` that cover a share of half a period, in pairs."""
        return 2 * int(np.clip(np.ceil(np.pi * share / (2.0 * scale)), 1, _MOST_PAIRS))

    def step(
        self,
        rng: np.random.Generator,
        state: S,
        evaluate: Callable[[Array], S],
        scale: float | Array,
        metric: AnyMetric,
    ) -> tuple[S, KernelInfo]:
        """One trajectory for every point."""
        h = _column(scale)
        share, longest = rng.uniform(*_TRAJECTORY), float(np.max(h))
        n_steps = self.n_steps(longest, share)
        h = h * min(1.0, np.pi * share / (n_steps * longest))
        return trajectory(rng, state, evaluate, h, two_stage(n_steps), metric, lambda gradient: _cut(gradient, h))

    def step_each(
        self,
        rng: np.random.Generator,
        state: R,
        evaluate: Callable[[Array], R],
        scale: Array,
        n_steps: NDArray[np.intp],
        metric: AnyMetric,
    ) -> tuple[R, KernelInfo]:
        """One trajectory for every point, with its own step ``scale`` ``(n,)`` and its own number of steps ``(n,)``.

        Leapfrog step k evaluates the points with L ≥ k alone.
        """
        n, h = len(state.x), np.broadcast_to(_column(scale), (len(state.x), 1))
        start = balanced_normals(rng, state.x.shape)
        momentum = start + 0.5 * h * _cut(metric.whiten_gradient(state.gradient), h)
        proposal, jump, x, rows = state, np.zeros_like(start), state.x.copy(), np.arange(n)
        for step in range(1, int(n_steps.max()) + 1):
            rows = rows[n_steps[rows] >= step]
            ours, width = metric.take(rows, n), h[rows]
            jump[rows] += width * momentum[rows]
            moved = evaluate(x[rows] + ours.colour(width * momentum[rows]))
            x[rows] = moved.x
            last = n_steps[rows] == step
            kick = np.where(last[:, None], 0.5, 1.0) * width
            momentum[rows] += kick * _cut(ours.whiten_gradient(moved.gradient), width)
            if last.any():
                proposal = proposal.scatter(rows[last], moved.take(np.flatnonzero(last)))
        kinetic = 0.5 * ((start**2).sum(axis=1) - (momentum**2).sum(axis=1))
        log_ratio = proposal.log_density - state.log_density + kinetic
        after, info = _accept(rng, state, proposal, log_ratio, (jump**2).sum(axis=1))
        return after, info._replace(gradients=float(n_steps.mean()))


_MOST_PAIRS = 50
_OUTER_KICK = 0.21178  # of a pair of steps


def _column(scale: float | Array) -> Array:
    """A scale per point as a column that broadcasts over coordinates."""
    return np.reshape(np.asarray(scale, dtype=np.float64), (-1, 1))


def _cut(gradient: Array, h: Array) -> Array:
    """Whitened gradients, shortened so that the drift (h²/2)|g| is at most the length h√d of the noise."""
    longest = 2.0 * np.sqrt(gradient.shape[1]) / h
    with np.errstate(over="ignore"):  # of a length that overflows nothing is left
        length = np.linalg.norm(gradient, axis=1, keepdims=True)
    return gradient * np.minimum(1.0, longest / np.maximum(length, 1e-300))


KERNELS: dict[str, type] = {kernel.name: kernel for kernel in (RandomWalk, Independent, Cycle, Mala, Hmc)}


def make_kernel(name: str) -> Kernel:
    """The kernel of that name.

    Raises
    ------
    ModelError
        If there is none.
    """
    if name not in KERNELS:
        raise ModelError(f"kernel={name!r} is unknown; choose 'auto' or one of {', '.join(map(repr, KERNELS))}")
    return KERNELS[name]()

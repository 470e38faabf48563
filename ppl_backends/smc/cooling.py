"""Search for narrow modes by cooling: some of the last particles move under p(x)^β with β from 1 to 256.

A narrow mode with most of the mass occupies a tiny part of the region of particles in a wide mode. Cooled particles
concentrate where the wide mode is dense, and the narrow mode, whose density is much higher, attracts them from a
larger distance. Nothing is weighted here: the densest points that the moves evaluate are starting points of climbs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ppl_backends.approximations.densest import Densest
from ppl_backends.kernels.calibrated import Evaluated
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.metric import metric_from_points
from ppl_backends.kernels.protocol import KernelParameters
from ppl_backends.targets.protocol import Array, Index

_POWERS = 2.0 ** np.concatenate([np.arange(0.5, 4.1, 0.5), np.arange(5.0, 8.1)])
_PARTICLES, _MOVES = 1024, 3


def densest_when_cooled(
    density: Callable[[Array], tuple[Array, Array]],
    particles: Array,
    labels: Index,
    rows: int,
    evaluations: float,
    rng: np.random.Generator,
) -> list[Densest]:
    """Return notable points evaluated; ``density`` gives the log density and its gradient at points ``(n, dim)``.

    ``labels`` ``(n,)`` are of the particles' modes. The number of particles moved, in calls of ``rows``, follows from the
    number of ``evaluations``.
    """
    dim, kernel = particles.shape[1], Hmc()
    metric = metric_from_points(particles)
    each = len(_POWERS) * _MOVES * kernel.n_steps(kernel.initial_scale(dim))
    calls = min(max(_PARTICLES // rows, 1), int(min(evaluations, 1e9) / (each * rows)))
    if not calls:
        return []
    chosen = np.unique(np.linspace(0, len(particles) - 1, calls * rows).astype(np.intp))
    members = [np.flatnonzero(labels[chosen] == label) for label in np.unique(labels[chosen])]
    x, found = particles[chosen], list[Densest]()
    value, gradient = density(x)
    for power in _POWERS:
        seen = list[tuple[Array, Array, Array]]()

        def cooled(
            points: Array,
            _: np.random.Generator,
            power: float = power,
            seen: list[tuple[Array, Array, Array]] = seen,
        ) -> Evaluated:
            value, gradient = density(points)
            seen.append((points, value, gradient))
            return Evaluated(points, power * value, power * gradient)

        state = Evaluated(x, power * value, power * gradient)
        # Steps in units of the cooled scale, and one length for all
        used = KernelParameters(metric, kernel.initial_scale(dim) / power**0.5)
        short = Hmc(length=kernel.length / power**0.5)
        for _ in range(_MOVES):
            state, _ = short.step(rng, state, cooled, used)
        x, value, gradient = state.x, state.log_density / power, state.gradient / power
        for own in members:  # the gradient is smooth in one mode
            points = [np.concatenate([part[own] for part in parts]) for parts in zip(*seen, strict=True)]
            found.append(Densest(metric))
            found[-1].see(*points[:2])
            found[-1].see_gradients(*points)
    return found

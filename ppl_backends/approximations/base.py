"""Base of approximations of a posterior: a distribution on the unconstrained space with the figures of its method."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError
from typing import Any, Self

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.options import check_memory, checked
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.results.inference_data import build_inference_data
from ppl_backends.targets.integral import stated_integral
from ppl_backends.targets.protocol import Array, BaseTarget


class Approximation:
    """A distribution q near a posterior; complete when constructed, and immutable.

    Figures that a method does not have are NaN. ``trouble`` says why it did not converge, or that it is far from the
    posterior. ``more`` holds what only this kind of approximation has.
    """

    mean: Any
    names: tuple[str, ...]
    target: BaseTarget | None
    method: str
    converged: bool
    log_evidence: float
    log_evidence_se: float
    diagnostics: dict[str, float]
    accuracy: str
    trouble: str
    elbo = elbo_se = pareto_k = float("nan")
    overlapping = False  # whether several Gaussians together form one broad hump instead of separate modes

    def _describe(
        self,
        dim: int,
        *,
        names: Sequence[str] | None = None,
        target: BaseTarget | None = None,
        method: str = "given",
        converged: bool = True,
        log_evidence: float = float("nan"),
        log_evidence_se: float = float("nan"),
        diagnostics: Mapping[str, float] | None = None,
        accuracy: str = "approximate",
        trouble: str = "",
        **more: Any,
    ) -> None:
        if names is None:
            names = target.names if target is not None else [f"x[{j}]" for j in range(dim)]
        if len(names) != dim:
            raise ModelError(f"{len(names)} names for a {type(self).__name__} over {dim} coordinates")
        vars(self).update(
            names=tuple(names),
            target=target,
            method=method,
            converged=bool(converged),
            log_evidence=float(log_evidence),
            log_evidence_se=float(log_evidence_se),
            diagnostics=dict(diagnostics or {}),
            accuracy=accuracy,
            trouble=trouble,
            **more,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to {name}: an approximation is complete when constructed")

    def replaced(self, **fields: Any) -> Self:
        """Return the same approximation with other values of the attributes in ``fields``."""
        other = copy.copy(self)
        vars(other).update(fields)
        return other

    @property
    def dim(self) -> int:
        """Return the number of coordinates."""
        return len(self.mean)

    @property
    def representation(self) -> str:
        """Return ``"dense"``, ``"diagonal"``, ``"low_rank"``, ``"mixture"`` or ``"given"``."""
        raise NotImplementedError

    @property
    def gaussian(self) -> Gaussian:
        """Return the Gaussian with its mean and covariance."""
        return Gaussian.from_covariance(self.mean, self.cov)

    @property
    def cov(self) -> Array:
        """Return the covariance ``(dim, dim)``."""
        raise NotImplementedError

    @property
    def sd(self) -> Array:
        """Return the marginal standard deviations ``(dim,)``."""
        return np.sqrt(np.diagonal(self.cov))

    @property
    def cholesky(self) -> Array:
        """Return the lower factor ``(dim, dim)`` of the covariance, or the standard deviations ``(dim,)`` if diagonal."""
        return self.gaussian.cholesky

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` independent draws ``(n, dim)``."""
        raise NotImplementedError

    def from_uniform(self, u: Array) -> Array:
        """Return points of q from points of the unit cube ``(n, dim)``."""
        raise NotImplementedError

    def log_density(self, x: Array) -> Array:
        """Return the normalised log density ``(n,)`` at points ``(n, dim)``."""
        raise NotImplementedError

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the normalised log density ``(n,)`` and its gradient ``(n, dim)``."""
        raise NotImplementedError

    def _draws(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` independent draws ``(n, dim)`` for ``to_inference_data``."""
        return self.sample(n, rng)

    def _attributes(self) -> dict[str, Any]:
        """Return the attributes that ``to_inference_data`` stores in addition to the common ones."""
        return {}

    @checked()
    def to_inference_data(self, draws: int = 1000, chains: int = 1, random_seed: SeedLike = None) -> Any:
        """Return independent draws in model space as InferenceData, marked as approximate.

        Parameters
        ----------
        draws : int
            Draws per chain. The chains are independent too, so convergence diagnostics are meaningless.
        chains : int
        random_seed : int or numpy.random.Generator, optional

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
            ``posterior`` has the attributes ``method``, ``accuracy``, ``converged`` and, if known, ``log_evidence``
            and ``log_evidence_se``.
        """
        target = self.target if self.target is not None else _unnamed_target(self.names)
        check_memory(draws, chains, target.values_per_draw)
        started = time.perf_counter()
        rng, generated = spawn_generators(random_seed, 2)
        integral = stated_integral(target)
        return build_inference_data(
            target,
            self._draws(chains * draws, rng).reshape(chains, draws, self.dim),
            method=self.method,
            accuracy=self.accuracy,
            sampling_time=time.perf_counter() - started,
            rng=generated,
            attrs={
                "converged": int(self.converged),
                "log_evidence": self.log_evidence if np.isfinite(self.log_evidence) else None,
                "log_evidence_se": self.log_evidence_se if np.isfinite(self.log_evidence_se) else None,
                **({} if integral is None else integral.attrs(self.log_evidence)),
                **self._attributes(),
            },
            looks_beyond=self.target is not None and not self.target.is_estimated,
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(dim={self.dim}, representation={self.representation!r}, method={self.method!r}, "
            f"converged={self.converged}, log_evidence={self.log_evidence:.6g})"
        )


def _unnamed_target(names: Sequence[str]) -> BaseTarget:
    """Return a placeholder target for an approximation without target: one variable ``x`` on the unconstrained space."""
    target = BaseTarget()
    target.dim, target.names = len(names), tuple(names)
    return target

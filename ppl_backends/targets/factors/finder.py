"""The factors of a posterior, N(θ; m₀(φ), Q₀(φ)⁻¹) · ∏ᵢ tᵢ(aᵢ(φ)ᵀθ + bᵢ(φ); φ), assembled from a program's quantities.

A program nominates candidates: PyMC's graph provides quantities that may be linear predictors and variables that may
have to be given; a Stan program provides its quantities by name. Every candidate is checked on numbers:

1. Predictors are affine: their values at the origin and the unit vectors are offset and design, and random points agree.
2. The quadratic part of the log density is the Gaussian part, computed from slopes at the same points
   (:func:`complete_gaussian`).
3. Everything else is a function of one predictor per site, at any value of it: a known family if its values agree with one
   (:mod:`~ppl_backends.targets.factors.recognise`), otherwise as the program computes it, or tabulated.
4. The factors together equal the program's log density at random points.

A variable that prevents this must be given as a hyper-parameter (:class:`ConditionalFactors`);
:func:`find_with_fewest_given` finds these. :mod:`~ppl_backends.targets.factors.proof` measures the errors of the
result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors.factorisation import Factors
from ppl_backends.targets.factors.prior import GaussianPrior
from ppl_backends.targets.factors.recognise import Recognised
from ppl_backends.targets.factors.sites import Array, FunctionSites, ScaledSites, SiteFamily

Found = TypeVar("Found")


class ConditionalFactors(ABC):
    """p(θ, y | φ) = exp(c(φ)) · N(θ; m₀(φ), Q₀(φ)⁻¹) · ∏ᵢ tᵢ(aᵢ(φ)ᵀθ + bᵢ(φ); φ), φ the coordinates that must be given."""

    def __init__(self, names: Sequence[str], held: NDArray[np.integer], start: Array) -> None:
        self.hyper_coordinates, self.start = np.asarray(held, dtype=np.intp), start
        self.coordinates = np.setdiff1d(np.arange(len(names)), self.hyper_coordinates)
        self.hyper_names = tuple(str(names[j]) for j in self.hyper_coordinates)
        self.names = tuple(str(names[j]) for j in self.coordinates)
        self._latest: tuple[Array, Factors] | None = None

    def at(self, phi: Any = ()) -> Factors:
        """Return the factors of θ given φ ``(len(hyper_names),)``."""
        x = self._point(phi)
        if self._latest is None or not np.array_equal(self._latest[0], x):
            self._latest = x, self._given(x)
        return self._latest[1]

    def log_hyper_prior(self, phi: Any = ()) -> float:
        """Return the log prior of φ with the Jacobians of its transforms, unless the factors' constant contains it."""
        return 0.0

    def _point(self, phi: Any) -> Array:
        """Return a full point with the values φ and θ = 0."""
        phi = np.asarray(phi, dtype=np.float64).ravel()
        if len(phi) != len(self.hyper_names):
            raise ModelError(f"phi has {len(phi)} values; expected {len(self.hyper_names)}: {self.hyper_names}")
        x = np.zeros(len(self.names) + len(phi))
        x[self.hyper_coordinates] = phi
        return x

    @abstractmethod
    def _given(self, x: Array) -> Factors:
        """Return the factors given the φ in the point ``x``."""


class Refusal(ModelError):
    """Raised if there are no factors unless more variables are given; holds the coordinate responsible, if known."""

    def __init__(self, message: str, coordinate: int = -1) -> None:
        super().__init__(message)
        self.coordinate = coordinate

    def __reduce__(self) -> tuple[type[Refusal], tuple[str, int]]:
        return Refusal, (str(self), self.coordinate)


def find_with_fewest_given(
    analyse: Callable[[frozenset[Any]], Found],
    nominate: Callable[[frozenset[Any], Refusal], frozenset[Any]],
    release: Callable[[frozenset[Any]], Iterable[Any]] = lambda held: (),
) -> tuple[frozenset[Any], Found]:
    """Return the variables that must be given, and the factors found with them.

    At first no variable is given. If that is refused, those that ``nominate`` returns are given, until ``analyse``
    finds factors. Then each that ``release`` names is released again, if ``analyse`` allows it.
    """
    held: frozenset[Any] = frozenset()
    while True:
        try:
            found = analyse(held)
            break
        except Refusal as refusal:
            held = nominate(held, refusal)
    for each in release(held):
        with suppress(Refusal):
            found, held = analyse(held - {each}), held - {each}
    return held, found


class SiteGroup(NamedTuple):
    """Sites t(aᵢᵀθ + bᵢ) of one family."""

    design: Any
    offset: Array
    family: SiteFamily
    observed: bool

    @classmethod
    def of_known(cls, known: Recognised, design: Any, offset: Array, observed: bool) -> SiteGroup:
        """Return recognised sites of the predictors with this design and offset."""
        family = ScaledSites(known.family, known.constant) if np.any(known.constant) else known.family
        if not np.all(np.equal(known.scale, 1.0)):
            scale = np.broadcast_to(known.scale, offset.shape)
            design = sparse.diags(scale) @ design if sparse.issparse(design) else design * scale[:, None]
        return cls(design, offset * known.scale + known.shift, family, observed)


class GaussianPart(NamedTuple):
    """exp(``log_constant`` + ``tilt``ᵀθ) · N(θ; mean, precision⁻¹), the Gaussian normalised on the range of its precision."""

    mean: Array  # (d,)
    precision: Array  # (d,) or (d, d)
    tilt: Array | None  # (d,) A slope in directions that the precision does not cover, if there is one
    log_constant: float


def complete_gaussian(value: float, slope: Array, precision: Array) -> GaussianPart:
    """Return the Gaussian part of the given value, slope and curvature −``precision`` at the origin."""
    d = len(slope)
    if not (np.isfinite(value) and np.isfinite(slope).all() and np.isfinite(precision).all()):
        raise ModelError("the Gaussian part of the model is not finite at these hyper-parameters")
    diagonal = np.diagonal(precision).copy()
    if not np.any(precision - np.diag(diagonal)):
        precision = diagonal
        covered = diagonal > 0
        mean = np.where(covered, slope / np.where(covered, diagonal, 1.0), 0.0)
        remainder = np.where(covered, 0.0, slope)
    else:
        mean = _solve(precision, slope)
        remainder = slope - precision @ mean
    tilt = remainder if np.abs(remainder).max(initial=0.0) > 1e-9 * (1 + np.abs(slope).max(initial=0.0)) else None
    gaussian = GaussianPrior(mean, precision, d)
    return GaussianPart(mean, precision, tilt, value - float(gaussian.log_density(np.zeros((1, d)))[0]))


def _solve(precision: Array, slope: Array) -> Array:
    try:
        return cho_solve(cho_factor(precision), slope)
    except LinAlgError:
        values, vectors = np.linalg.eigh(precision)
        kept = values > len(values) * np.finfo(float).eps * max(values[-1], 0.0)
        return vectors[:, kept] @ ((vectors[:, kept].T @ slope) / values[kept])


def assemble(gaussian: GaussianPart, groups: Sequence[SiteGroup], **options: Any) -> Factors:
    """Return the factors of a Gaussian part and groups of sites; a tilt becomes a separate site."""
    groups = list(groups)
    if gaussian.tilt is not None or not groups:
        row = np.zeros(len(gaussian.mean)) if gaussian.tilt is None else gaussian.tilt
        line = FunctionSites(np.positive, 1, derivatives=_derivatives_of_line)
        groups.append(SiteGroup(row[None], np.zeros(1), line, False))
    designs, offsets, families, observed = zip(*groups, strict=True)
    which = np.repeat(observed, [family.n for family in families])
    return Factors(
        designs, np.concatenate(offsets), families, gaussian.mean, gaussian.precision, observed=which, **options
    )


def _derivatives_of_line(s: Array) -> tuple[Array, Array]:
    return np.ones_like(s), np.zeros_like(s)

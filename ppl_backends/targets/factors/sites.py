"""Sites t(s): the factors of a posterior that depend on the parameters through one scalar, s = aᵀθ + b.

A family holds ``n`` sites of one kind with their data. All its functions are vectorised over nodes × sites. ``rows``
selects sites, repeats allowed, so that a quadrature can spend its nodes on the sites that need them.

If the moments of t(s)·N(s; m, v) have a closed form, the family provides them (:meth:`SiteFamily.tilted`); otherwise
quadrature computes them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array

Rows = NDArray[np.integer] | None
Fraction = float | str  #: of power EP: one for all sites, or :data:`STUDENT`; below 0 it is that of Student sites
STUDENT = "student"
Piece = tuple["SiteFamily", Any, Rows]

LOGIT, PROBIT, POISSON, NORMAL = 0, 1, 2, 3  # numbers of the compiled families


class TiltedMoments(NamedTuple):
    """Log normaliser, mean and variance of t(s)ᵖ·N(s; m, v), each ``(n,)``."""

    log_z: Array
    mean: Array
    variance: Array


class CompiledFamily(NamedTuple):
    """Sites in the form of :mod:`~ppl_backends.targets.factors.compiled`: the number of the family, y and extra ``(n,)``."""

    family: int
    y: Array
    extra: Array


class SiteFamily:
    """``n`` sites of one kind; subclasses define :meth:`log_site` and, if they can, its derivatives and moments.

    Parameters
    ----------
    **parameters : array_like
        The data of the sites, broadcast to a common leading length.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Poisson, SiteFamily
    >>> sites = Poisson([3, 0])
    >>> isinstance(sites, SiteFamily), sites.n, sites.log_site(np.zeros((1, 2))).round(2)
    (True, 2, array([[-2.79, -1.  ]]))
    """

    n: int
    log_concave: bool = False  #: whether all sites are known to be log-concave
    program_points: int = 0  #: points at which a program was evaluated to set up each site

    def __init__(self, **parameters: Any) -> None:
        arrays = {name: np.asarray(value, dtype=np.float64) for name, value in parameters.items()}
        self.n = max(np.atleast_1d(array).shape[0] for array in arrays.values())
        for name, array in arrays.items():
            if array.ndim and array.shape[0] not in (1, self.n):
                raise ModelError(
                    f"{type(self).__name__}: {name} has length {array.shape[0]}; expected {self.n}, as the others"
                )
            if not np.isfinite(array).all() and not (name == "penalty" and not np.isnan(array).any()):
                raise ModelError(f"{type(self).__name__}: {name} has values that are not finite")
            shape = (self.n, *array.shape[1:])
            self.__dict__[name] = np.ascontiguousarray(np.broadcast_to(array, shape))
        self._fields = tuple(arrays)

    def take(self, rows: NDArray[np.integer]) -> SiteFamily:
        """Return the sites at ``rows`` as a family."""
        taken = copy.copy(self)
        taken.n = len(rows)
        for name in self._fields:
            taken.__dict__[name] = self.__dict__[name][rows]
        return taken

    def compiled(self) -> CompiledFamily | None:
        """Return the sites up to constants in compiled form; None if the family has none."""
        return None

    def pieces(self, rows: Rows) -> list[Piece]:
        """Return the families of ``rows``: each with the columns that it fills and its row numbers."""
        return [(self, slice(None), rows)]

    def _at(self, rows: Rows, *names: str) -> list[Array]:
        return [self.__dict__[name] if rows is None else self.__dict__[name][rows] for name in names]

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        """Return log t at ``s`` ``(k, n)``, or ``(k, len(rows))``; ``-inf`` outside the support."""
        raise NotImplementedError(f"{type(self).__name__} must define log_site(s, rows)")

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        """Return the first two derivatives of log t in s, shaped as ``s``; by central differences unless overridden."""
        step = 1e-4 * np.maximum(1.0, np.abs(s))
        with np.errstate(invalid="ignore"):
            up, middle, down = (self.log_site(s + shift, rows) for shift in (step, 0.0, -step))
            first, second = (up - down) / (2 * step), (up - 2 * middle + down) / step**2
        return np.where(np.isfinite(first), first, 0.0), np.where(np.isfinite(second), second, 0.0)

    def fractions(self, asked: Fraction, rows: Rows = None) -> Any:
        """Return the power p of power EP that a site uses, a number or ``(n,)``: ``asked`` if positive, else 1."""
        return 1.0 if isinstance(asked, str) or asked < 0 else asked

    def tilted(self, mean: Array, variance: Array, power: Any, rows: Rows = None) -> TiltedMoments | None:
        """Return the moments of t(s)ᵖ·N(s; mean, variance) if they have a closed form, else None.

        The power is a number, or ``(n,)`` if :meth:`fractions` returns an array.
        """
        return None


class FunctionSites(SiteFamily):
    """Sites given as a function, e.g. compiled from a model.

    Parameters
    ----------
    function : callable
        ``function(s)`` with ``s`` ``(k, n)`` returns log t ``(k, n)``, for any k.
    n : int
    takes_rows : bool
        The function is called ``function(s, rows)``, with repeats among ``rows`` and ``rows=None`` for all sites.
    derivatives : callable, optional
        Called in the same way; returns the first and second derivative.

    Notes
    -----
    A function without ``rows`` is evaluated on a full block of nodes × sites; entries for rows that are not needed
    repeat a point of a needed row.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import FunctionSites
    >>> sites = FunctionSites(lambda s: -np.abs(s), n=2)
    >>> sites.log_site(np.array([[0.0, 3.0]]))
    array([[-0., -3.]])
    """

    def __init__(
        self,
        function: Callable[..., Array],
        n: int,
        takes_rows: bool = False,
        derivatives: Callable[..., tuple[Array, Array]] | None = None,
    ) -> None:
        self.n, self._function, self._takes_rows, self._derivatives = n, function, takes_rows, derivatives
        self._full_size = n
        self._subset: NDArray[np.integer] | None = None  # the sites of the function that are kept

    def take(self, rows: NDArray[np.integer]) -> SiteFamily:
        taken = copy.copy(self)
        taken.n = len(rows)
        taken._subset = rows if self._subset is None else self._subset[rows]
        return taken

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        value = np.asarray(self._call(self._function, s, rows)[0], dtype=np.float64)
        return np.where(np.isnan(value), -np.inf, value)

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        if self._derivatives is None:
            return super().derivatives(s, rows)
        first, second = self._call(self._derivatives, s, rows)
        return np.where(np.isfinite(first), first, 0.0), np.where(np.isfinite(second), second, 0.0)

    def _call(self, function: Callable[..., Any], s: Array, rows: Rows) -> tuple[Array, ...]:
        if self._subset is not None:
            rows = self._subset if rows is None else self._subset[rows]
        with np.errstate(all="ignore"):
            if self._takes_rows or rows is None:
                value = function(s, rows) if self._takes_rows else function(s)
                return value if isinstance(value, tuple) else (value,)
            return self._on_full_block(function, s, rows)

    def _on_full_block(self, function: Callable[..., Any], s: Array, rows: NDArray[np.integer]) -> tuple[Array, ...]:
        order = np.argsort(rows, kind="stable")
        sorted_rows = rows[order]
        first = np.searchsorted(sorted_rows, sorted_rows)
        copy_of = np.empty(len(rows), dtype=int)  # number of earlier occurrences of the row
        copy_of[order] = np.arange(len(rows)) - first
        copies, size = int(copy_of.max(initial=0)) + 1, self._full_size
        block = np.full((copies, len(s), size), s.flat[0])
        block[copy_of, :, rows] = s.T
        value = function(block.reshape(-1, size))
        values = value if isinstance(value, tuple) else (value,)
        return tuple(np.asarray(v).reshape(copies, len(s), size)[copy_of, :, rows].T for v in values)


class ScaledSites(SiteFamily):
    """Sites exp(cᵢ) tᵢ(s), with the tᵢ of another family."""

    log_scale: Array

    def __init__(self, family: SiteFamily, log_scale: Any) -> None:
        super().__init__(log_scale=log_scale)
        if self.n != family.n:
            raise ModelError(f"ScaledSites: log_scale has length {self.n}; expected {family.n}, as the family")
        self.family, self.log_concave, self.program_points = family, family.log_concave, family.program_points

    def take(self, rows: NDArray[np.integer]) -> SiteFamily:
        return ScaledSites(self.family.take(rows), self.log_scale[rows])

    def compiled(self) -> CompiledFamily | None:
        return self.family.compiled()

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        (log_scale,) = self._at(rows, "log_scale")
        return self.family.log_site(s, rows) + log_scale

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        return self.family.derivatives(s, rows)

    def fractions(self, asked: Fraction, rows: Rows = None) -> Any:
        return self.family.fractions(asked, rows)

    def tilted(self, mean: Array, variance: Array, power: Any, rows: Rows = None) -> TiltedMoments | None:
        moments = self.family.tilted(mean, variance, power, rows)
        if moments is None:
            return None
        (log_scale,) = self._at(rows, "log_scale")
        return moments._replace(log_z=moments.log_z + power * log_scale)


def plain(family: SiteFamily) -> SiteFamily:
    """Return the family of which a scaled one is a multiple."""
    while isinstance(family, ScaledSites):
        family = family.family
    return family


class PoweredSites(SiteFamily):
    """Sites tᵢ(s)^eᵢ, with the tᵢ of another family: a tempered likelihood."""

    power: Array

    def __init__(self, family: SiteFamily, power: Any) -> None:
        super().__init__(power=power)
        if self.n != family.n:
            raise ModelError(f"PoweredSites: power has length {self.n}; expected {family.n}, as the family")
        self.family, self.program_points = family, family.program_points

    def take(self, rows: NDArray[np.integer]) -> SiteFamily:
        return PoweredSites(self.family.take(rows), self.power[rows])

    def compiled(self) -> CompiledFamily | None:
        """Return the family's compiled form if a power is a factor of its data."""
        own = self.family.compiled()
        if own is None or own.family == PROBIT:
            return None
        y = own.y if own.family == NORMAL else self.power * own.y
        return CompiledFamily(own.family, y, self.power * own.extra)

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        (power,) = self._at(rows, "power")
        value = self.family.log_site(s, rows)
        return np.where(power == 0, 0.0, power * np.where(power == 0, 0.0, value))

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        (power,) = self._at(rows, "power")
        first, second = self.family.derivatives(s, rows)
        return power * first, power * second

    def tilted(self, mean: Array, variance: Array, power: float, rows: Rows = None) -> TiltedMoments | None:
        """Return the closed form if the powers are equal and the family has one at that power."""
        (powers,) = self._at(rows, "power")
        if not len(powers) or np.any(powers != powers[0]):
            return None
        return self.family.tilted(mean, variance, power * float(powers[0]), rows)


class StackedSites(SiteFamily):
    """Families one after another, e.g. a likelihood and then a Cauchy prior along every coordinate.

    Parameters
    ----------
    families : sequence of SiteFamily
        Their sites follow each other in this order.

    Examples
    --------
    >>> from ppl_backends.approximations.ep import Logit, StackedSites, StudentT
    >>> StackedSites([Logit([0, 1, 1]), StudentT([0.0, 0.0])]).n
    5
    """

    def __init__(self, families: Sequence[SiteFamily]) -> None:
        self.families = list(families)
        self._ends = np.cumsum([family.n for family in self.families])
        self.n = int(self._ends[-1])

    def take(self, rows: NDArray[np.integer]) -> SiteFamily:
        which, local = self._locate(rows)
        if np.any(np.diff(which) < 0):
            raise ModelError("sites of several families can only be taken in increasing order")
        kept = [family.take(local[which == k]) for k, family in enumerate(self.families) if np.any(which == k)]
        return kept[0] if len(kept) == 1 else StackedSites(kept)

    def compiled(self) -> CompiledFamily | None:
        """Return the compiled form of all families together, if they are of one kind."""
        parts = [family.compiled() for family in self.families]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or len({part.family for part in known}) > 1:
            return None
        return CompiledFamily(known[0].family, *(np.concatenate(each) for each in list(zip(*known, strict=True))[1:]))

    def _locate(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        which = np.searchsorted(self._ends, rows, side="right")
        return which, rows - np.concatenate([[0], self._ends])[which]

    def pieces(self, rows: Rows) -> list[Piece]:
        if rows is None:
            starts = np.concatenate([[0], self._ends])
            return [(f, slice(a, b), None) for f, a, b in zip(self.families, starts, self._ends, strict=False)]
        which, local = self._locate(rows)
        columns = [np.flatnonzero(which == k) for k in range(len(self.families))]
        return [(f, c, local[c]) for f, c in zip(self.families, columns, strict=True) if len(c)]

    def fractions(self, asked: Fraction, rows: Rows = None) -> Any:
        if not isinstance(asked, str) and asked > 0:
            return asked
        power = np.empty(self.n if rows is None else len(rows))
        for family, columns, local in self.pieces(rows):
            power[columns] = family.fractions(asked, local)
        return power

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        value = np.empty_like(s)
        for family, columns, local in self.pieces(rows):
            value[:, columns] = family.log_site(s[:, columns], local)
        return value

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        first, second = np.empty_like(s), np.empty_like(s)
        for family, columns, local in self.pieces(rows):
            first[:, columns], second[:, columns] = family.derivatives(s[:, columns], local)
        return first, second

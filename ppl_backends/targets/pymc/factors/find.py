"""The factors of a PyMC model: found on its graph, checked on numbers, evaluated at any hyper-parameters."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random.basic import MvNormalRV, NormalRV

from ppl_backends.errors import FactorSearchError, ModelError
from ppl_backends.targets.factors import Factors, FunctionSites, GaussianPrior, Normal
from ppl_backends.targets.factors.factorisation import stacked_design
from ppl_backends.targets.factors.finder import ConditionalFactors, GaussianPart, SiteGroup, assemble, complete_gaussian
from ppl_backends.targets.factors.proof import SHUFFLES, affine_error, gaussian_error, sites_error
from ppl_backends.targets.factors.recognise import Recognised, recognise
from ppl_backends.targets.factors.utilities import with_utilities
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.circle import is_circular
from ppl_backends.targets.pymc.factors.compiled import CompiledSites, SiteGraph
from ppl_backends.targets.pymc.factors.graph import RAW_MODE, PointFunction, Term, TermGraph
from ppl_backends.targets.pymc.factors.mixtures import normal_mixture
from ppl_backends.targets.pymc.factors.structure import MAX_HYPER, Structure, find_structure
from ppl_backends.targets.pymc.factors.terms import Geometry, SiteTerm
from ppl_backends.targets.pymc.graph import DataValues, ModelShapes, flat_names, io_toposort, no_c_compiler, one_line

PROOF_POINTS, FEW_PROOF_POINTS = 12, 4  # at each scale; few if there are many sites to show a fault
MANY_SITES = 10_000
MOST_REFUSALS = 4  # of the families, at different φ
PROOF_SCALES = (0.3, 3.0, 30.0)
SWAP_POINTS, SWAP_TOLERANCE = 3, 1e-6  # for factors on other data, which are compared with the whole density


class PyMCFactors(ConditionalFactors):
    """The factors of a PyMC model, as a function of the hyper-parameters that it needs."""

    def __init__(
        self,
        model: pm.Model,
        data: DataValues,
        shapes: ModelShapes,
        backend: str = "auto",
        likelihood_only: bool = False,
        late: Sequence[Variable] = (),
    ) -> None:
        rng = np.random.default_rng(0)
        angles = [repr(rv.name) for rv in model.free_RVs if is_circular(model, rv) and not likelihood_only]
        if angles:
            raise ModelError(f"{', '.join(angles)}: the density of an angle is periodic, and that of a Gaussian is not")
        self._graph, self._data = TermGraph(model, data, shapes, likelihood_only, late), data
        self._rectangles = take_rectangles(self._graph)
        if self._rectangles and likelihood_only:
            raise ModelError("rectangles are not sites of one predictor each")
        self._structure = find_structure(self._graph, rng, 0 if likelihood_only else MAX_HYPER)
        held = self._structure.held
        hyper = self._graph.coordinates(held)
        super().__init__(flat_names(shapes.value), hyper, self._graph.start[hyper])
        self._gaussian = QuadraticTerms(self._graph, self._structure.gaussian, held)
        self._constants, self._hyper_priors = _constant_functions(self._graph, self._structure)
        self._backend, self._compiled = backend, dict[int, SiteGraph]()
        self._families: dict[int, tuple[list[Array], Recognised | None]] = {}
        self._refusals = defaultdict[int, float](float)
        self._prove(rng)

    def on(self, data: DataValues, log_density: Callable[[Array], Array]) -> PyMCFactors:
        """Return the same factors on other late data; compare them with the log density at random points."""
        other = copy.copy(self)
        other._data, other._latest, other._families, other._refusals = data, None, {}, defaultdict(float)
        other._gaussian = self._gaussian.unknown()
        rng, d = np.random.default_rng(0), len(self.coordinates)
        factors, points = other.at(self.start), np.tile(self._point(self.start), (SWAP_POINTS, 1))
        theta = 0.5 * rng.normal(size=(SWAP_POINTS, d))
        points[:, self.coordinates] = theta
        wanted = log_density(points) - other.log_hyper_prior(self.start)
        error = np.abs(factors.log_density(theta) - wanted)
        if not (error <= SWAP_TOLERANCE * (1 + np.abs(wanted))).all():
            raise ModelError(f"the factors on other data differ from the log density by {np.nanmax(error):.2g}")
        return other

    def _given(self, x: Array) -> Factors:
        with self._graph.lock:
            if self._graph.load(self._data):
                for term in (*self._structure.sites, *self._structure.normal):
                    term.renew()
            return self._given_loaded(x)

    def _given_loaded(self, x: Array) -> Factors:
        gaussian, groups = self._gaussian.at(x), []
        log_constant = gaussian.log_constant + self._sum(self._constants, x)
        for term in self._structure.sites:
            geometry = term.geometry(x)
            groups.append(self._group(term, x, geometry))
            log_constant += term.constant(x, geometry)
        normal_rows = None if self._rectangles else self._normal_rows(x)
        factors = assemble(gaussian, groups, log_constant=log_constant, names=self.names, normal_rows=normal_rows)
        for rectangles in self._rectangles:
            factors = with_utilities(factors, partial(self._rows, rectangles, x))
        return factors

    def _rows(self, rectangles: PointFunction, x: Array, theta: Array) -> list[Array]:
        """Return mean, Cholesky factors and bounds of rectangles at θ ``(k, d)``, given the rest of the point ``x``."""
        points = np.tile(x, (len(theta), 1))
        points[:, self.coordinates] = theta
        return rectangles(points)

    def _normal_rows(self, x: Array) -> tuple[Any, Array, Normal, Array] | None:
        """Return designs, offsets, data and scales of the normal observations in the Gaussian part, or None."""
        geometries = [term.geometry(x) for term in self._structure.normal]
        known = [self._recognised(term, x, g) for term, g in zip(self._structure.normal, geometries, strict=True)]
        rows = [
            (g, k) for g, k in zip(geometries, known, strict=True) if k is not None and isinstance(k.family, Normal)
        ]
        if not rows:
            return None
        family = Normal(*(np.concatenate([getattr(k.family, name) for _, k in rows]) for name in ("y", "sd")))
        design, offset = stacked_design([g.design for g, _ in rows]), np.concatenate([g.offset for g, _ in rows])
        return design, offset, family, np.concatenate([k.constant for _, k in rows])

    def log_hyper_prior(self, phi: Any = ()) -> float:
        return self._sum(self._hyper_priors, self._point(phi))

    def _sum(self, function: PointFunction | None, x: Array) -> float:
        """Return the sum of constant terms, ``-inf`` if it is not a number."""
        if function is None:
            return 0.0
        total = sum(float(value.sum()) for value in function(x[None]))
        return total if np.isfinite(total) else -np.inf

    def _group(self, term: SiteTerm, x: Array, geometry: Geometry) -> SiteGroup:
        """Return the sites of a term given φ, of a known family or compiled."""
        observed = term.term.prior_of is None
        known = self._recognised(term, x, geometry)
        if known is not None:
            return SiteGroup.of_known(known, geometry.design, geometry.offset, observed)
        if id(term) not in self._compiled:
            self._compiled[id(term)] = SiteGraph(term, self._backend)
        function = CompiledSites(self._compiled[id(term)], geometry, term.hyper(x))
        return SiteGroup(geometry.design, geometry.offset, FunctionSites(function, term.n_sites), observed)

    def _recognised(self, term: SiteTerm, x: Array, geometry: Geometry) -> Recognised | None:
        """Return the known family of a term; that of the latest φ if nothing that its sites use has changed.

        A term that was of no known family at several φ, and of one at none, is not looked at again. Which sites represent
        it may then depend on the φ before, but their values do not.
        """
        if self._refusals[id(term)] >= MOST_REFUSALS:
            return None
        reads = [geometry.slope, geometry.intercept, x[self._graph.coordinates(set(term.read))]]
        latest = self._families.get(id(term))
        if latest is None or not all(map(np.array_equal, latest[0], reads)):
            latest = reads, _recognise(term, x, geometry)
            self._families[id(term)] = latest
            if latest[1] is None:
                self._refusals[id(term)] += 1
            else:
                self._refusals[id(term)] = -np.inf  # some φ may hide the family
        return latest[1]

    def _prove(self, rng: np.random.Generator) -> None:
        """Compare every factor with the terms as written, at two φ and over the range of every site."""
        many = sum(term.n_sites for term in self._structure.sites) > MANY_SITES
        each = FEW_PROOF_POINTS if many else PROOF_POINTS
        for jitter in (0.0, 0.5) if len(self.start) else (0.0,):
            x = self._point(self.start + jitter * rng.normal(size=len(self.start)))
            part = self._gaussian.at(x)
            gaussian = GaussianPrior(part.mean, part.precision, len(self.coordinates))
            theta = [scale * rng.normal(size=(each, len(self.coordinates))) for scale in PROOF_SCALES]
            if gaussian.proper:
                theta.append(gaussian.sample(2 * each, rng))
            points = np.tile(x, (sum(map(len, theta)), 1))
            points[:, self.coordinates] = values = np.concatenate(theta)
            density = gaussian.log_density(values) + part.log_constant
            density += 0.0 if part.tilt is None else values @ part.tilt
            size = np.abs(values) @ np.abs(gaussian.apply(values)).max(axis=0) + np.abs(density)
            error = gaussian_error(density, self._gaussian.value(points), size)
            _refuse_if(error, ", ".join(term.name for term in self._structure.gaussian))
            for term in self._structure.sites:
                error = term_error(term.sample or term, points, rng)
                if term.sample is not None:  # rows of a long term only need to be like those of the sample
                    two, geometry = points[[0, -1]], term.geometry(x)
                    error = max(
                        error,
                        affine_error(geometry.design, geometry.offset, two[:, self.coordinates], term.scalars(two)),
                    )
                    if self._recognised(term, x, geometry) is None:
                        error = max(error, term_error(term, two, rng, 1))
                _refuse_if(error, term.term.name)


def factors_or_refusal(
    model: pm.Model, data: DataValues, shapes: ModelShapes, backend: str, late: Sequence[Variable]
) -> PyMCFactors | ModelError:
    """Return the factors of a model, or the error that says why none are known."""
    try:
        return PyMCFactors(model, data, shapes, backend, late=late)
    except ModelError as refusal:
        return refusal
    except (NotImplementedError, np.linalg.LinAlgError) as missing:  # no batches, or a singular matrix
        return ModelError(f"no factors are known ({str(missing).partition(chr(10))[0]})")
    except Exception as error:
        return FactorSearchError(f"the search for factors failed ({type(error).__name__}: {one_line(error)})")


def has_normal_priors(model: pm.Model) -> bool:
    """Return whether every free variable is normal or flat; its parameters may depend on other variables."""
    return all(isinstance(rv.owner.op, (NormalRV, MvNormalRV, FlatRV)) for rv in model.free_RVs)


_RECTANGLES: list[type[Op]] = []


def declare_rectangles(operation: type[Op]) -> None:
    """Declare that the first output of an operation is log rectangle probabilities of mean, factors and bounds."""
    _RECTANGLES.append(operation)


def take_rectangles(graph: TermGraph) -> list[PointFunction]:
    """Take likelihoods that are rectangle probabilities out of a graph; return their parameters as functions of points."""
    found, kept = [], []
    for term in graph.terms:
        order = io_toposort(list(graph.values.values()), [term.value]) if term.prior_of is None else []
        nodes = [node for node in order if isinstance(node.op, tuple(_RECTANGLES))]
        if len(nodes) == 1 and _is_itself(graph, term.value, nodes[0].outputs[0]):
            found.append(PointFunction(graph, set(), nodes[0].inputs))
        else:
            kept.append(term)
    graph.terms = kept
    return found


def _is_itself(graph: TermGraph, value: Variable, log_p: Variable) -> bool:
    """Return whether a term consists of a single quantity, checked at two points."""
    other, inputs, rng = log_p.type(), list(graph.values.values()), np.random.default_rng(0)
    with no_c_compiler():
        replaced = clone_replace([value], replace={log_p: other}, rebuild_strict=False)
        function = pytensor.function(
            [*inputs, other], [pt.flatten(replaced[0])], mode=RAW_MODE, on_unused_input="ignore"
        )
    n = int(np.prod(value.type.shape)) if None not in value.type.shape else 0
    for _ in range(2):
        point, given = graph.start + rng.normal(size=graph.dim), rng.normal(size=max(n, 1))
        values = [point[graph.columns[v.name]].reshape(v.type.shape) for v in inputs]
        if not np.array_equal(function(*values, given)[0], given):
            return False
    return True


def term_error(term: SiteTerm, points: Array, rng: np.random.Generator, shuffles: int = SHUFFLES) -> float:
    """Return the error of a term's sites at points ``(k, dim)`` that share the hyper-parameters."""
    geometry = term.geometry(points[0])
    return sites_error(
        lambda s: term.log_site(s, points[0], geometry), term.scalars(points), term.written(points), rng, shuffles
    )


def _recognise(term: SiteTerm, x: Array, geometry: Geometry) -> Recognised | None:
    """Return the known family of a term; if a sample of its rows was used, all must be like those."""
    mixture = normal_mixture(term, x, geometry)
    if mixture is not None:
        return mixture
    like = None
    if term.sample is not None:
        like = _recognise(term.sample, x, term.sample.geometry(x))
        if like is None:
            return None
    return recognise(lambda s: term.log_site(s, x, geometry), term.n_sites, like)


def _refuse_if(error: float, name: str) -> None:
    if not error <= 1:
        raise ModelError(
            f"no factors with one linear predictor each: those found for '{name}' differ from its log density by {error:.2g} "
            "times what rounding explains"
        )


def _constant_functions(graph: TermGraph, structure: Structure) -> tuple[PointFunction | None, PointFunction | None]:
    """Return terms without θ: those that do not belong to the prior of φ, and those that do."""
    priors = [term.value for term in structure.constant if term.prior_of in structure.held]
    others = [term.value for term in structure.constant if term.prior_of not in structure.held]
    return tuple(PointFunction(graph, set(), terms) if terms else None for terms in (others, priors))  # type: ignore[return-value]


class QuadraticTerms:
    """The quadratic terms of a model."""

    def __init__(self, graph: TermGraph, terms: Sequence[Term], held: Set[str]) -> None:
        self.graph, self.terms = graph, list(terms)
        self.moving = np.setdiff1d(np.arange(graph.dim), graph.coordinates(held))
        inputs = [v for name, v in graph.values.items() if name not in held]
        with no_c_compiler():
            total = sum((pt.sum(term.value) for term in self.terms), start=pt.constant(0.0, dtype="float64"))
            gradient = pt.grad(total, inputs, disconnected_inputs="ignore") if self.terms else []
            flat = [pt.flatten(g) for g in gradient] or [pt.zeros(len(self.moving))]
            self._function = PointFunction(graph, held, [total, pt.concatenate(flat)])
        self._depends_on_hyper = graph.depends([term.value for term in self.terms], held)
        self._fixed: GaussianPart | None = None

    def unknown(self) -> QuadraticTerms:
        """Return the same terms for other late data."""
        other = copy.copy(self)
        other._fixed = None
        return other

    def value(self, x: Array) -> Array:
        """Return the sum of the terms ``(k,)`` at points ``(k, dim)`` that share the hyper-parameters."""
        return self._function(x)[0]

    def at(self, x: Array) -> GaussianPart:
        """Return the Gaussian given the hyper-parameters in the point ``x`` ``(dim,)``."""
        if self._fixed is not None:
            return self._fixed
        d = len(self.moving)
        points = np.tile(x, (d + 1, 1))
        points[:, self.moving] = 0.0
        points[1 + np.arange(d), self.moving] = 1.0
        value, gradient = self._function(points)
        slope, hessian = gradient[0], gradient[0] - gradient[1:]
        precision = 0.5 * (hessian + hessian.T)
        part = complete_gaussian(float(value[0]), slope, precision)
        if not self._depends_on_hyper:
            self._fixed = part
        return part

"""The factors of a PyMC model: found on its graph, proved on numbers, evaluated at any hyper-parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
from scipy import sparse

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors import Factors, FunctionSites, GaussianPrior, Normal
from ppl_backends.targets.factors.finder import ConditionalFactors, SiteGroup, assemble
from ppl_backends.targets.factors.recognise import Recognised, recognise
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.factors.compiled import CompiledSites, SiteGraph
from ppl_backends.targets.pymc.factors.gaussian import QuadraticTerms
from ppl_backends.targets.pymc.factors.graph import PointFunction, TermGraph
from ppl_backends.targets.pymc.factors.proof import affine_error, gaussian_error, sites_error
from ppl_backends.targets.pymc.factors.structure import MAX_HYPER, Structure, find_structure
from ppl_backends.targets.pymc.factors.terms import Geometry, SiteTerm
from ppl_backends.targets.pymc.graph import DataValues, ModelShapes, flat_names

__all__ = ["PyMCFactors"]

PROOF_POINTS, FEW_PROOF_POINTS = 12, 4  # at each scale; few where there are many sites to see a fault
MANY_SITES = 10_000
PROOF_SCALES = (0.3, 3.0, 30.0)


class PyMCFactors(ConditionalFactors):
    """The factors of a PyMC model, as a function of the hyper-parameters that it needs.

    Parameters
    ----------
    model : pm.Model
    data : dict
        Values of the shared variables.
    shapes : ModelShapes
    backend : {"auto", "jax", "numba", "c", "python"}
        What compiles the sites that belong to no known family; ``"python"`` interprets them.
    likelihood_only : bool
        The sites of the observed variables alone, as functions of all coordinates, under a flat prior.

    Raises
    ------
    ModelError
        If the model does not factorise in this way; names the variable in the way.
    """

    def __init__(
        self,
        model: pm.Model,
        data: DataValues,
        shapes: ModelShapes,
        backend: str = "auto",
        likelihood_only: bool = False,
    ) -> None:
        rng = np.random.default_rng(0)
        self._graph = TermGraph(model, data, shapes, likelihood_only)
        self._structure = find_structure(self._graph, rng, 0 if likelihood_only else MAX_HYPER)
        held = self._structure.held
        hyper = self._graph.coordinates(held)
        super().__init__(flat_names(shapes.value), hyper, self._graph.start[hyper])
        self._gaussian = QuadraticTerms(self._graph, self._structure.gaussian, held)
        self._constants, self._hyper_priors = _constant_functions(self._graph, self._structure)
        self._backend, self._compiled = backend, dict[int, SiteGraph]()
        self._families: dict[int, tuple[list[Array], Recognised | None]] = {}
        self._prove(rng)

    def _given(self, x: Array) -> Factors:
        gaussian, groups = self._gaussian.at(x), []
        log_constant = gaussian.log_constant + self._sum(self._constants, x)
        for term in self._structure.sites:
            geometry = term.geometry(x)
            groups.append(self._group(term, x, geometry))
            log_constant += term.constant(x, geometry)
        return assemble(gaussian, groups, log_constant=log_constant, names=self.names, normal_rows=self._normal_rows(x))

    def _normal_rows(self, x: Array) -> tuple[Any, Array, Normal, Array] | None:
        """Designs, offsets, data and scales of the normal observations in the Gaussian part; None where there are none."""
        designs, offsets, y, sd, log_scale = [], [], [], [], []
        for term in self._structure.normal:
            geometry = term.geometry(x)
            known = self._recognised(term, x, geometry)
            if known is not None and isinstance(known.family, Normal):
                designs.append(geometry.design)
                offsets.append(geometry.offset)
                y.append(known.family.y)
                sd.append(known.family.sd)
                log_scale.append(known.constant)
        if not designs:
            return None
        any_sparse = any(sparse.issparse(design) for design in designs)
        design = sparse.vstack(designs, format="csr") if any_sparse else np.vstack(designs)
        family = Normal(np.concatenate(y), np.concatenate(sd))
        return design, np.concatenate(offsets), family, np.concatenate(log_scale)

    def log_hyper_prior(self, phi: Any = ()) -> float:
        """Log prior density of φ, with the Jacobians of its transforms."""
        return self._sum(self._hyper_priors, self._point(phi))

    def _sum(self, function: PointFunction | None, x: Array) -> float:
        """Sum of constant terms, ``-inf`` where it is not a number."""
        if function is None:
            return 0.0
        total = sum(float(value.sum()) for value in function(x[None]))
        return total if np.isfinite(total) else -np.inf

    def _group(self, term: SiteTerm, x: Array, geometry: Geometry) -> SiteGroup:
        """The sites of a term given φ, of a known family or compiled."""
        observed = term.term.prior_of is None
        known = self._recognised(term, x, geometry)
        if known is not None:
            return SiteGroup.of_known(known, geometry.design, geometry.offset, observed)
        if id(term) not in self._compiled:
            self._compiled[id(term)] = SiteGraph(term, self._backend)
        function = CompiledSites(self._compiled[id(term)], geometry, term.hyper(x))
        return SiteGroup(geometry.design, geometry.offset, FunctionSites(function, term.n_sites), observed)

    def _recognised(self, term: SiteTerm, x: Array, geometry: Geometry) -> Recognised | None:
        """The known family of a term; that of the latest φ where nothing that its sites read has changed."""
        reads = [geometry.slope, geometry.intercept, x[self._graph.coordinates(set(term.read))]]
        latest = self._families.get(id(term))
        if latest is None or not all(map(np.array_equal, latest[0], reads)):
            latest = reads, _recognise(term, x, geometry)
            self._families[id(term)] = latest
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
            size = np.abs(values) @ np.abs(_apply(part.precision, values)).max(axis=0) + np.abs(density)
            error = gaussian_error(density, self._gaussian.value(points), size)
            _refuse_if(error, ", ".join(term.name for term in self._structure.gaussian))
            for term in self._structure.sites:
                error = sites_error(term.sample or term, points, (term.sample or term).geometry(x), rng)
                if term.sample is not None:  # the rows of a long term need no more than to be like those of the sample
                    two = points[[0, -1]]
                    error = max(error, affine_error(term, two))
                    if self._recognised(term, x, term.geometry(x)) is None:
                        error = max(error, sites_error(term, two, term.geometry(x), rng, 1))
                _refuse_if(error, term.term.name)


def _recognise(term: SiteTerm, x: Array, geometry: Geometry) -> Recognised | None:
    """The known family of a term; where a sample of its rows was taken all have to be as those are."""
    like = None
    if term.sample is not None:
        like = _recognise(term.sample, x, term.sample.geometry(x))
        if like is None:
            return None
    return recognise(lambda s: term.log_site(s, x, geometry), term.n_sites, like)


def _apply(precision: Array, rows: Array) -> Array:
    return rows * precision if precision.ndim == 1 else rows @ precision


def _refuse_if(error: float, name: str) -> None:
    if not error <= 1:
        raise ModelError(
            f"no factors with one linear predictor each: those found for '{name}' differ from its log density by {error:.2g} "
            "times what rounding explains"
        )


def _constant_functions(graph: TermGraph, structure: Structure) -> tuple[PointFunction | None, PointFunction | None]:
    """Terms without θ: those that do not belong to the prior of φ, and those that do."""
    priors = [term.value for term in structure.constant if term.prior_of in structure.held]
    others = [term.value for term in structure.constant if term.prior_of not in structure.held]
    return tuple(PointFunction(graph, set(), terms) if terms else None for terms in (others, priors))  # type: ignore[return-value]

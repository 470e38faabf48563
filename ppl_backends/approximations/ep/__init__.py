"""Expectation propagation for posteriors whose every non-Gaussian factor sees one linear predictor.

=================  ====================================================================================
``sites``          sites t(s), their interface, and sites given as functions
``families``       known families, with closed-form moments where there are any
``factors``        the factorisation, and that as a target
``moments``        moments of tilted distributions, all sites in one call
``shards``         the work of a sweep on a piece of the data
``parallel``       the algorithm; ``sequential`` its one-site-at-a-time twin
``reduction``      the kernel form for fewer sites than coordinates
``evidence``       log evidence and its gradient in hyper-parameters
``marginals``      marginals beyond Gaussian
``fit``            ``fit_ep``, what users call
=================  ====================================================================================
"""

from ppl_backends.approximations.ep.evidence import evidence_gradient
from ppl_backends.approximations.ep.factors import Factors, FactorsTarget
from ppl_backends.approximations.ep.families import (
    Laplace,
    Logit,
    NegativeBinomial,
    Normal,
    NormalMixture,
    Poisson,
    Probit,
    Step,
    StudentT,
)
from ppl_backends.approximations.ep.fit import fit_ep, fit_ep_sharded
from ppl_backends.approximations.ep.marginals import Marginals
from ppl_backends.approximations.ep.result import EPApproximation, EPSites, LeaveOneOut
from ppl_backends.approximations.ep.shards import ArrayShard, FileShard
from ppl_backends.approximations.ep.sites import FunctionSites, SiteFamily, StackedSites

__all__ = [
    "ArrayShard",
    "EPApproximation",
    "EPSites",
    "Factors",
    "FactorsTarget",
    "FileShard",
    "FunctionSites",
    "Laplace",
    "LeaveOneOut",
    "Logit",
    "Marginals",
    "NegativeBinomial",
    "Normal",
    "NormalMixture",
    "Poisson",
    "Probit",
    "SiteFamily",
    "StackedSites",
    "Step",
    "StudentT",
    "evidence_gradient",
    "fit_ep",
    "fit_ep_sharded",
]

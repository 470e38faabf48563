"""Expectation propagation for posteriors in which every non-Gaussian factor depends on one linear predictor.

=================  ====================================================================================
``moments``        moments of tilted distributions, all sites in one call
``shards``         the work of a sweep on a piece of the data
``parallel``       the algorithm; ``sequential`` its one-site-at-a-time twin
``reduction``      the kernel form for fewer sites than coordinates
``evidence``       log evidence and its gradient in hyper-parameters
``marginals``      marginals beyond Gaussian
``hyper``          integration over hyper-parameters, on a ``design`` of them
``fit``            ``fit_ep``, what users call
=================  ====================================================================================

The factors themselves, and known families of sites, are in :mod:`ppl_backends.targets.factors`.
"""

from ppl_backends.approximations.ep.evidence import evidence_gradient
from ppl_backends.approximations.ep.fit import fit_ep, fit_ep_sharded
from ppl_backends.approximations.ep.hyper import EPMixture
from ppl_backends.approximations.ep.result import EPApproximation, LeaveOneOut
from ppl_backends.approximations.ep.shards import ArrayShard, EPSites, FileShard
from ppl_backends.approximations.hyper import HyperParameters
from ppl_backends.approximations.marginals import Marginals
from ppl_backends.targets.factors import (
    Factors,
    FactorsTarget,
    FunctionSites,
    Laplace,
    Logit,
    NegativeBinomial,
    Normal,
    NormalMixture,
    Poisson,
    Probit,
    SiteFamily,
    StackedSites,
    Step,
    StudentT,
)

__all__ = [
    "ArrayShard",
    "EPApproximation",
    "EPMixture",
    "EPSites",
    "Factors",
    "FactorsTarget",
    "FileShard",
    "FunctionSites",
    "HyperParameters",
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

"""Posteriors in which every non-Gaussian factor depends on one linear predictor.

The form is p(θ, y) = exp(c) · N(θ; m₀, Q₀⁻¹) · ∏ᵢ tᵢ(aᵢᵀθ + bᵢ).

=================  ====================================================================================
``sites``          sites t(s), their interface, and sites given as functions
``families``       known families, with closed-form moments where there are any
``truncated``      moments of truncated normal distributions, of which those of some families are made
``prior``          the Gaussian part
``factorisation``  the factors together, and that as a target
``finder``         factors assembled from a program's quantities, and the variables that must be given
``recognise``      known families by the values of their sites
``proof``          checks of the factors against the program
=================  ====================================================================================
"""

from ppl_backends.targets.factors.factorisation import Factors, FactorsTarget
from ppl_backends.targets.factors.families import (
    Laplace,
    Logit,
    NegativeBinomial,
    Normal,
    NormalMixture,
    Poisson,
    Probit,
    Step,
)
from ppl_backends.targets.factors.prior import GaussianPrior
from ppl_backends.targets.factors.sites import FunctionSites, PoweredSites, ScaledSites, SiteFamily, StackedSites
from ppl_backends.targets.factors.student import StudentT

__all__ = [
    "Factors",
    "FactorsTarget",
    "FunctionSites",
    "GaussianPrior",
    "Laplace",
    "Logit",
    "NegativeBinomial",
    "Normal",
    "NormalMixture",
    "Poisson",
    "PoweredSites",
    "Probit",
    "ScaledSites",
    "SiteFamily",
    "StackedSites",
    "Step",
    "StudentT",
]

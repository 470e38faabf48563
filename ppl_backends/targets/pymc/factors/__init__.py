"""Factors of PyMC models: a Gaussian part, and sites that each depend on one linear predictor.

==============  =======================================================================================
``graph``       the log density as written, as elementwise terms over batches of points
``structure``   affine and quadratic parts, sites of one scalar, and the variables that must be given
``terms``       the sites of a term: directions, offsets, values
``compiled``    the functions of sites of no known family
``find``        all of it, checked, as the ``factors`` of a target
==============  =======================================================================================
"""

from ppl_backends.targets.pymc.factors.find import (
    PyMCFactors,
    declare_rectangles,
    factors_or_refusal,
    has_normal_priors,
)

__all__ = ["PyMCFactors", "declare_rectangles", "factors_or_refusal", "has_normal_priors"]

"""Factors of PyMC models: a Gaussian part, and sites that each see one linear predictor.

==============  =======================================================================================
``graph``       the log density as written, as elementwise terms over batches of points
``structure``   what is affine, quadratic, or a site of one scalar, and which variables have to be given
``terms``       the sites of a term: directions, offsets, values
``compiled``    the functions of sites of no known family
``find``        all of it, proved, as the ``factors`` of a target
==============  =======================================================================================
"""

from ppl_backends.targets.pymc.factors.find import PyMCFactors, declare_rectangles

__all__ = ["PyMCFactors", "declare_rectangles"]

"""Factors of PyMC models: a Gaussian part, and sites that each see one linear predictor.

==============  =======================================================================================
``graph``       the log density as written, as elementwise terms over batches of points
``affine``      which quantities are affine and which terms quadratic, by differences
``cuts``        affine quantities through which alone a term depends on the parameters
``grouping``    which elements of a cut go together in one site
``terms``       the sites of a term: directions, offsets, values
``linear``      the matrix of an affine function, sparse where it is
``gaussian``    the quadratic terms together
``structure``   the search for the variables that have to be given
``compiled``    the functions of all others
``proof``       every factor against the terms as written
``find``        all of it, as the ``factors`` of a target
==============  =======================================================================================
"""

from ppl_backends.targets.pymc.factors.find import PyMCFactors

__all__ = ["PyMCFactors"]

"""Factors of Stan programs: a Gaussian part, and sites that each depend on one linear predictor.

==============  =======================================================================================
``quantities``  quantities of the program at many points, and the choice of the linear predictor
``sites``       ``log_lik`` as a function of it, of a known family or tabulated
``find``        all of it with the prior, checked, as the ``factors`` of a target
==============  =======================================================================================
"""

from ppl_backends.targets.stan.factors.find import StanFactors, find_factors
from ppl_backends.targets.stan.factors.sites import TabulatedSites

__all__ = ["StanFactors", "TabulatedSites", "find_factors"]

"""Factors of Stan programs: a Gaussian part, and sites that each see one linear predictor.

==============  =======================================================================================
``quantities``  what the program computes at many points, with hyper-parameters held
``predictor``   the quantity that is the linear predictor, and its design
``sites``       ``log_lik`` as a function of it, of a known family or tabulated
``prior``       the Gaussian part, and sites along single coordinates
``find``        all of it, as the ``factors`` of a target
==============  =======================================================================================
"""

from ppl_backends.targets.stan.factors.find import StanFactors, find_factors
from ppl_backends.targets.stan.factors.sites import TabulatedSites

__all__ = ["StanFactors", "TabulatedSites", "find_factors"]

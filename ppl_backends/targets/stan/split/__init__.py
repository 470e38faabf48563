"""Prior and likelihood of a Stan program apart: :func:`split_program`.

===============  ====================================================================================
``prior``        the answer: the prior part, opened and checked against the joint density
``routes``       how the prior can be evaluated alone, in order of preference
``derivation``   which statements are likelihood
``propriety``    whether the statements make the prior proper
``dataflow``     what flows into each increment, from stanc's MIR (``mir``)
``statements``   the program's text, statement by statement
===============  ====================================================================================
"""

from ppl_backends.targets.stan.split.prior import PriorPart, ProgramSplit, split_program

__all__ = ["PriorPart", "ProgramSplit", "split_program"]

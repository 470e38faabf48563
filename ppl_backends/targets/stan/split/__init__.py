"""Separation of prior and likelihood of a Stan program: :func:`split_program`.

===============  ====================================================================================
``prior``        the result: the prior part, opened and checked against the joint density
``routes``       ways to evaluate the prior, in order of preference
``derivation``   which statements are likelihood
``propriety``    whether the statements make the prior proper
``dataflow``     the variables that flow into each increment, from stanc's MIR (``mir``)
``statements``   the program's text, statement by statement
===============  ====================================================================================
"""

from ppl_backends.targets.stan.split.prior import PriorPart, ProgramSplit, split_program

__all__ = ["PriorPart", "ProgramSplit", "split_program"]

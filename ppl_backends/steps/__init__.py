"""Step methods for ``pm.sample(step=...)`` and :func:`ppl_backends.sample_mcmc`."""

from ppl_backends.steps.calibrated import HMC, MALA, Independent, RandomWalk
from ppl_backends.steps.exchange import Exchange, MALAExchange, NoisyExchange, NoisyLangevin, NoisyMALAExchange
from ppl_backends.steps.specification import Step

__all__ = [
    "HMC",
    "MALA",
    "Exchange",
    "Independent",
    "MALAExchange",
    "NoisyExchange",
    "NoisyLangevin",
    "NoisyMALAExchange",
    "RandomWalk",
    "Step",
]

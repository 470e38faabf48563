"""Step methods for ``pm.sample(step=...)`` and :func:`ppl_backends.sample_mcmc`."""

from ppl_backends.steps.augmentation import AlbertChib, PolyaGamma
from ppl_backends.steps.calibrated import HMC, STEPS, Independent, RandomWalk
from ppl_backends.steps.check import check_acceptance, check_subsets
from ppl_backends.steps.exchange import Exchange, MALAExchange, NoisyExchange, NoisyLangevin, NoisyMALAExchange
from ppl_backends.steps.model_search import ModelSearch
from ppl_backends.steps.particle import ParticleGibbs, ParticleMetropolis
from ppl_backends.steps.pseudo_marginal import PseudoMarginal
from ppl_backends.steps.specification import Step
from ppl_backends.steps.subsampling import (
    InformedSubsampling,
    ScalableMetropolis,
    SubsampledHMC,
    SubsampledMetropolis,
    TunaMetropolis,
)

__all__ = [
    "HMC",
    "AlbertChib",
    "Exchange",
    "Independent",
    "InformedSubsampling",
    "MALAExchange",
    "ModelSearch",
    "NoisyExchange",
    "NoisyLangevin",
    "NoisyMALAExchange",
    "ParticleGibbs",
    "ParticleMetropolis",
    "PolyaGamma",
    "PseudoMarginal",
    "RandomWalk",
    "ScalableMetropolis",
    "Step",
    "SubsampledHMC",
    "SubsampledMetropolis",
    "TunaMetropolis",
    "check_acceptance",
    "check_subsets",
    *STEPS,
]

globals().update(STEPS)

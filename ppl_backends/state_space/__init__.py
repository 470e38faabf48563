"""State-space models: ready-made models, and posteriors, states and evidence by particle filters."""

from ppl_backends.state_space.particle_filter import particle_filter
from ppl_backends.state_space.particle_gibbs import sample_particle_gibbs
from ppl_backends.state_space.pmmh import sample_pmmh
from ppl_backends.state_space.smc2 import sample_smc2
from ppl_backends.targets.state_space.ready import (
    linear_gaussian,
    lotka_volterra,
    stochastic_volatility,
    theta_logistic,
)

__all__ = [
    "linear_gaussian",
    "lotka_volterra",
    "particle_filter",
    "sample_particle_gibbs",
    "sample_pmmh",
    "sample_smc2",
    "stochastic_volatility",
    "theta_logistic",
]

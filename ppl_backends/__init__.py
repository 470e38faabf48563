"""Approximations and samplers for the compiled log density of PyMC and Stan models."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("ppl-backends")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0.0.0"

# Names are imported on first use, so that `import ppl_backends` does not import PyMC or JAX.
_LAZY = {
    "Factors": "ppl_backends.targets.factors",
    "FirstPairs": "ppl_backends.kernels.tuning",
    "FunctionTarget": "ppl_backends.targets",
    "GaussianApproximation": "ppl_backends.approximations",
    "GibbsPosterior": "ppl_backends.gibbs.posterior",
    "LatentGaussian": "ppl_backends.targets.latent_gaussian",
    "MixtureApproximation": "ppl_backends.approximations",
    "MultinomialProbit": "ppl_backends.orthants.distributions",
    "MultivariateOrdinal": "ppl_backends.orthants.distributions",
    "MultivariateProbit": "ppl_backends.orthants.distributions",
    "StateSpace": "ppl_backends.targets.declare_state_space",
    "StateSpaceModel": "ppl_backends.targets.state_space",
    "Target": "ppl_backends.targets",
    "ThurstoneRanking": "ppl_backends.orthants.distributions",
    "TruncatedMvNormal": "ppl_backends.orthants.distributions",
    "Unnormalized": "ppl_backends.targets.declare",
    "as_target": "ppl_backends.targets.convert",
    "certify": "ppl_backends.gibbs.certificates",
    "compare_evidence": "ppl_backends.compare",
    "evidence": "ppl_backends.marginal_likelihood",
    "fit_ep": "ppl_backends.approximations.ep",
    "fit_gibbs_vi": "ppl_backends.gibbs.fit",
    "fit_inla": "ppl_backends.approximations.inla",
    "fit_laplace": "ppl_backends.approximations",
    "fit_laplace_em": "ppl_backends.approximations",
    "fit_vi": "ppl_backends.approximations.variational",
    "from_draws": "ppl_backends.approximations",
    "plot_abc_run": "ppl_backends.plots",
    "lfo": "ppl_backends.checks.lfo",
    "loo_moment_match": "ppl_backends.checks.loo",
    "particle_filter": "ppl_backends.state_space",
    "plot_evidence": "ppl_backends.compare",
    "plot_inclusion": "ppl_backends.plots",
    "plot_ladder": "ppl_backends.plots",
    "plot_sbc": "ppl_backends.plots",
    "plot_sensitivity": "ppl_backends.plots",
    "plot_smc_run": "ppl_backends.plots",
    "rectangle_probability": "ppl_backends.orthants",
    "reweight": "ppl_backends.smc.ladder",
    "sample_abc": "ppl_backends.simulators.abc",
    "sample_ibis": "ppl_backends.smc.ibis",
    "sample_importance": "ppl_backends.importance",
    "sample_mcmc": "ppl_backends.mcmc.sample",
    "sample_particle_gibbs": "ppl_backends.state_space",
    "sample_pmmh": "ppl_backends.state_space",
    "sample_smc": "ppl_backends.smc",
    "sample_smc2": "ppl_backends.state_space",
    "sample_tempering": "ppl_backends.tempering",
    "sample_truncated": "ppl_backends.orthants",
    "sbc": "ppl_backends.checks.sbc",
    "select_variables": "ppl_backends.model_search",
    "sensitivity": "ppl_backends.checks.sensitivity",
    "thermodynamic_integration": "ppl_backends.smc.ladder",
    "update_smc": "ppl_backends.smc.ibis",
    "with_power": "ppl_backends.targets.power",
    "with_state_space": "ppl_backends.targets.declare_state_space",
}

_ROOMS = (
    "bambi",
    "datasets",
    "gibbs",
    "math",
    "mean_field",
    "model_search",
    "orthants",
    "pymc",
    "simulators",
    "simuk",
    "sklearn",
    "stan",
    "state_space",
    "steps",
)

__all__ = ["__version__", *_LAZY, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"ppl_backends.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'ppl_backends' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

r"""Gibbs posteriors π(θ) exp{−λ r_n(θ)}, with a loss in place of a likelihood.

==================  =========================================================================================
``posterior``       the posterior as a target: every sampler and approximation applies
``losses``          losses, their sites for EP, and their expectations under a Gaussian score
``auc``             risks of pairs in O(n log n)
``expression``      risks as PyTensor expressions, and Gibbs posteriors inside a PyMC model
``pair_ep``         EP for losses of pairs, in pieces
``scores``          Gaussian processes as scores, predicted at new rows
``gaussian_vi``     Gaussian variational approximations with exact expectations
``fit``             deterministic annealing along λ, for losses that are not convex; sampled pairs
``certificates``    PAC-Bayes bounds on the risk of an approximation
``kl_inverse``      the kl-inverse bound, also for pairs
``learning_rate``   choosing λ, and the scale of the prior
``theory``          λ and priors suggested by theory
==================  =========================================================================================
"""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "Certificate": "certificates",
    "FunctionLoss": "losses",
    "GaussianProcess": "scores",
    "GibbsPosterior": "posterior",
    "Hinge": "losses",
    "Logistic": "losses",
    "Loss": "losses",
    "PairLoss": "losses",
    "Scores": "scores",
    "Quantile": "losses",
    "GibbsVI": "gaussian_vi",
    "SpikeSlab": "priors",
    "Squared": "losses",
    "TuningRecord": "posterior",
    "ZeroOne": "losses",
    "auc_risk": "auc",
    "certify": "certificates",
    "choose_learning_rate": "learning_rate",
    "choose_prior_scale": "learning_rate",
    "expected_risk": "gaussian_vi",
    "fit_gibbs_vi": "fit",
    "fit_gibbs_vi_path": "fit",
    "fit_pair_ep": "pair_ep",
    "fit_pair_ep_path": "pair_ep",
    "gibbs_potential": "expression",
    "inclusion_probabilities": "pair_ep",
}

__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ppl_backends.gibbs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ppl_backends.gibbs.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

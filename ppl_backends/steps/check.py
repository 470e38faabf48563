"""Error of a sub-sampled acceptance probability: E|a − â|, by full passes at a few states."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.options import checked, integer
from ppl_backends.random import spawn_generators
from ppl_backends.results.convergence import effective_draws
from ppl_backends.results.inference_data import flat_draws, group, inference_data
from ppl_backends.steps.specification import Step
from ppl_backends.targets.convert import as_target

FEWEST_SUBSETS = 50


@checked(idata=inference_data("posterior"), states=integer(2))
def check_acceptance(
    model: Any = None,
    idata: Any = None,
    *,
    step: Any,
    data: Any = None,
    states: int = 20,
    random_seed: Any = None,
    **target_options: Any,
) -> dict[str, float]:
    """Compare a noisy run's acceptance probabilities with exact ones on a subsample of its states.

    Parameters
    ----------
    model : pymc.Model, Stan program or Target, optional
    idata : InferenceData
        The run.
    step : Step
        The step method of the run: one that sub-samples, or one for likelihoods without their constant, whose exact
        acceptance is estimated from at least 20 times as many draws.
    data : dict or path, optional
        Data of a Stan program.
    states : int
        Number of states, at least 2; each needs two full passes over the data.
    random_seed : int or Generator, optional
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    dict
        ``mean_absolute_error``, the estimate of E|a − â|, with its standard error ``mean_absolute_error_se``;
        ``mean_acceptance`` and ``mean_exact_acceptance``.

    Examples
    --------
    >>> import warnings, numpy as np, ppl_backends as pb
    >>> from ppl_backends.simulators import ERGM
    >>> graphs = ERGM(5, ["edges"], moves="enumerate")
    >>> prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> target = pb.Unnormalized(simulator=graphs, observed=np.zeros((5, 5)), prior=prior)
    >>> step = pb.steps.NoisyExchange(n_draws=20)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # it is approximate, and says so
    ...     idata = pb.sample_mcmc(target, step=step, draws=50, chains=1, random_seed=1, progressbar=False)
    >>> sorted(pb.steps.check_acceptance(target, idata, step=step, states=5, random_seed=1))
    ['mean_absolute_error', 'mean_absolute_error_se', 'mean_acceptance', 'mean_exact_acceptance']
    """
    if idata is None:
        raise ModelError("idata is missing: pass the run to check")
    if isinstance(step, Step):
        target = as_target(model, data, **target_options)
        algorithm = step.bind(target)
    else:  # built inside a model context
        target, algorithm = step.target, step.algorithm
    [rng] = spawn_generators(random_seed, 1)
    drawn = flat_draws(idata)
    total = len(next(iter(drawn.values())))
    picked = rng.choice(total, size=min(states, total), replace=False)
    values = {name: draws[picked] for name, draws in drawn.items()}
    estimated, exact = algorithm.acceptance_pairs(target.unconstrain(values), rng)
    gap = np.abs(estimated - exact)
    return {
        "mean_absolute_error": float(gap.mean()),
        "mean_absolute_error_se": float(gap.std(ddof=1) / np.sqrt(len(gap))),
        "mean_acceptance": float(estimated.mean()),
        "mean_exact_acceptance": float(exact.mean()),
    }


@checked(idata=inference_data("posterior", "sample_stats"))
def check_subsets(idata: Any) -> dict[str, float]:
    """Check whether the subsets of an informed sub-sampling run moved and kept their distribution.

    If its subsets do not move, a chain samples the surrogate of one subset: its effective sample size is large but
    does not show the shift. The effective sample size of z(U) shows it.

    Parameters
    ----------
    idata : InferenceData
        A run of ``InformedSubsampling``.

    Returns
    -------
    dict
        ``ess_of_z``, effective sample size of the first coordinate of z(U); ``z_norm``, root mean square of ‖z(U)‖;
        ``z_norm_uniform``, the same for uniform subsets, if the run stored it; ``swap_acceptance``; ``distinct_rows``,
        the smallest number of rows that a chain used.

    Examples
    --------
    >>> import warnings, numpy as np, ppl_backends as pb
    >>> from ppl_backends.approximations.ep import Factors, FactorsTarget, Logit
    >>> rng = np.random.default_rng(0)
    >>> design, y = np.c_[np.ones(500), rng.integers(0, 2, 500)], rng.integers(0, 2, 500)
    >>> target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, 1.0))
    >>> step = pb.steps.InformedSubsampling(subset=100, correction=None)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # it is approximate, and says so
    ...     idata = pb.sample_mcmc(target, step=step, draws=100, chains=1, random_seed=1, progressbar=False)
    ...     found = pb.steps.check_subsets(idata)
    >>> sorted(found)
    ['distinct_rows', 'ess_of_z', 'swap_acceptance', 'z_norm', 'z_norm_uniform']
    """
    stats = group(idata, "sample_stats")
    if "z_first" not in stats:
        raise ModelError("the run has no statistics of informed subsets: it is not one of InformedSubsampling")
    z = np.asarray(stats["z_first"].values)
    found = {
        "ess_of_z": float(effective_draws(z[:, :, None])[0]) if z.std() > 0 else 0.0,
        "z_norm": float(np.sqrt(np.mean(np.square(stats["z_norm"].values)))),
        "swap_acceptance": float(stats["swap_accept"].mean()),
        "distinct_rows": float(stats["distinct_rows"].values[:, -1].min()),
    }
    uniform = group(idata, "posterior").attrs.get("z_norm_uniform")
    if uniform is not None:
        found["z_norm_uniform"] = float(uniform)
    if not found["ess_of_z"] >= FEWEST_SUBSETS:
        warnings.warn(
            f"the subsets hardly moved: z(U) has an effective sample size of {found['ess_of_z']:.0f}, so the ESS of "
            "the parameters does not show how far the posterior is shifted: use more swaps, a larger subset, or "
            "correction='gradient'",
            SamplerWarning,
            stacklevel=user_level(),
        )
    return found

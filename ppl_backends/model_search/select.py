"""``select_variables``: the coefficients that a regression needs, by the evidence of models with and without them."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.model_search.certificate import (
    LARGEST_CHANGE,
    LARGEST_SHIFT,
    Certificate,
    certify_convergence,
    certify_evidence,
    certify_modes,
)
from ppl_backends.model_search.enumeration import Enumerated, enumerate_models
from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.table import EVIDENCES, MOST_ENUMERATED, can_enumerate, make_evidence
from ppl_backends.model_search.forms import LINKS, Form, design_form
from ppl_backends.model_search.model_form import labels, model_form
from ppl_backends.model_search.path import ModelPath
from ppl_backends.model_search.results import Listed, Searched, search_inference_data
from ppl_backends.model_search.sampler import SAVED, Runs, run_searches, stage_stats
from ppl_backends.model_search.space import ModelSpace, make_space
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.options import checked, choice, entries, function, integer, mapping, none
from ppl_backends.progress import ChainProgress
from ppl_backends.random import spawn_generators
from ppl_backends.smc.checkpoint import Checkpoint
from ppl_backends.targets.digest import digest, digest_of_numbers

_COMPARED = 48  # models at which prior functions are compared


@checked(
    family=choice(*LINKS),
    link=choice(None, "logit", "probit", "log", "identity"),
    model_prior=choice("uniform", "beta_binomial") | function("a function of columns (n, p)"),
    evidence=choice("auto", *EVIDENCES),
    points=integer(1),
    method=choice("auto", "enumerate", "smc"),
    draws=integer(2),
    select=none | mapping,
    always=none | entries(),
    groups=none | mapping,
    heredity=choice(None, "strong", "weak") | mapping,
)
def select_variables(
    model: Any = None,
    *,
    select: Mapping[str, Any] | None = None,
    data: Any = None,
    X: Any = None,
    y: Any = None,
    family: str = "binomial",
    link: str | None = None,
    prior: Any = None,
    model_prior: Any = "uniform",
    always: Any = None,
    groups: Mapping[str, list[str]] | None = None,
    heredity: Any = None,
    evidence: str = "auto",
    points: int = 64,
    method: str = "auto",
    draws: int = 2000,
    chains: int = 4,
    executor: Executor | None = None,
    checkpoint: str | os.PathLike | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
) -> Any:
    r"""Search the subsets of a regression's coefficients, each weighted by its evidence.

    The posterior probability of a model γ is p(γ | y) ∝ p(γ) p(y | γ); a coefficient's *inclusion* is the sum of the
    probabilities of the models that contain it. All models are enumerated if that takes at most a minute; otherwise
    SMC on {0, 1}^m finds them, from the prior p(γ) over p(γ) p(y | γ)^β.

    Parameters
    ----------
    model : pymc.Model, Stan program or Target, optional
        A regression with ``select``; the PyMC model on the context stack by default.
    select : mapping of str to bool or mask, optional
        Variables of the model, with True for coefficients that may be switched off together with their prior; True for
        all. Their priors must be independent, hyper-parameters must have values, and the likelihood must depend on
        linear predictors.
    data : dict or path, optional
        Data of a Stan program.
    X, y : array or data frame (n, p), and array (n,), optional
        Data that replace a model. A constant column of ``X`` is the intercept, which is in every model; without one an
        intercept is added.
    family : {"binomial", "gaussian", "poisson"}
        Outcomes 0/1, numbers, or counts.
    link : {"logit", "probit", "log", "identity"}, optional
        ``"logit"`` for binomial by default.
    prior : "g", "hyper-g", "cauchy", float or array, optional
        Prior of the coefficients. Gaussian family: Zellner's g-prior with g = n (default) or the hyper-g prior, with a
        flat intercept and log σ. Others: normal with the given standard deviations, 5 for slopes and 20 for the
        intercept by default; or Cauchy, of scale 2.5 and 10.
    model_prior : {"uniform", "beta_binomial"} or callable
        Prior of models; a function takes columns ``(n, p)``, the first of which is the intercept if it was added to ``X``,
        and returns log probabilities ``(n,)``, which up to 20 candidates need not be normalised.
    always : names, integers or mask, optional
        Columns in every model.
    groups : mapping of str to list of str, optional
        Columns of ``X`` that are switched together, by name or number, such as the dummies of a factor. An element of a
        model's variable is ``"beta[0]"``, or ``"beta[age]"`` by the label of its coords, and ``"beta"`` is all its elements.
    heredity : {"strong", "weak"} or mapping, optional
        Whether a product needs all its parents, or one of them. Products are named ``"a:b"`` (``"beta[a:b]"`` in a
        model), and ``"a:b:c"`` also needs the products of two that are candidates. A dictionary names parents,
        ``{"child": ["parent", ...]}``. A name of a column in a group stands for the group.
    evidence : {"auto", "exact", "ep", "laplace", "importance_laplace", "importance_ep"}
        Evidence of a model. Exact for the Gaussian family; else by expectation propagation, by Laplace, or by an
        unbiased estimate with ``points`` importance points from either. ``"auto"`` is exact, else EP if it takes at
        most a minute, else Laplace.
    points : int
        Points of an importance estimate.
    method : {"auto", "enumerate", "smc"}
        Up to 24 candidates can be enumerated, whose 2^24 models take 1.6 GB.
    draws : int
        Models kept per chain, which are particles of SMC.
    chains : int
        Independent runs of SMC.
    executor : concurrent.futures.Executor, optional
        Runs the chains elsewhere.
    checkpoint : path, optional
        File that saves a run of SMC after every temperature (with one more file per chain beside it). The same call
        with the same file continues an unfinished run, with the result that it would have had.
    random_seed : int or Generator, optional
    progressbar : bool

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``posterior`` with ``gamma`` and the coefficients averaged over models (0 where off), and attributes
        ``log_evidence`` (log of the prior-weighted mean over models; with a g-prior relative to the model with only
        the intercept), its standard error and the method. Group ``selection`` with ``inclusion`` and ``inclusion_se``
        in the coefficients' dims, and the most probable models with their evidences and probabilities.

    Raises
    ------
    ModelError
        If an option does not apply to the data, or there are too many models to enumerate.

    References
    ----------
    Schäfer, C. and Chopin, N. (2013). Sequential Monte Carlo on large binary sampling spaces. *Statistics and Computing* 23.
    Chopin, N. and Ridgway, J. (2017). Leave Pima Indians alone. *Statistical Science* 32(1), section 6.

    Examples
    --------
    >>> import numpy as np
    >>> import ppl_backends as pb
    >>> rng = np.random.default_rng(1)
    >>> X = rng.standard_normal((100, 4))
    >>> y = X[:, 0] - 0.5 * X[:, 2] + rng.standard_normal(100)
    >>> idata = pb.select_variables(X=X, y=y, family="gaussian", random_seed=1, progressbar=False)
    >>> idata.selection["inclusion"].values.round(2)
    array([1.  , 0.1 , 1.  , 0.12])
    """
    clock = time.perf_counter()
    if select is not None:
        _refuse_design(X=X, y=y, family=None if family == "binomial" else family, link=link, prior=prior, always=always)
        form = model_form(model, data, select)
    elif X is None or y is None or model is not None:
        raise ModelError("write select_variables(X=X, y=y), or select_variables(model, select={'beta': True})")
    else:
        form = design_form(X, y, family, link, prior, always)
    names = labels(form) if select is not None else {name: name for name in form.names}
    known: dict[Any, str] = names if select is not None else names | dict(enumerate(form.target.coords["predictor"]))
    space = make_space(
        tuple(names.values()), form.always, _renamed(groups, known) or None, _renamed(heredity, known), model_prior
    )
    one = space.n_candidates == 0
    enumerated = (
        one or method == "enumerate" or (method == "auto" and can_enumerate(evidence, form, space.n_candidates, points))
    )
    if enumerated and space.n_candidates > MOST_ENUMERATED:
        raise ModelError(
            f"method='enumerate': 2^{space.n_candidates} models are too many, because 2^{MOST_ENUMERATED} take 1.6 GB; "
            "use method='smc'"
        )
    chosen = make_evidence(evidence, form, space.n_candidates, enumerated, points)
    if form.linear is not None:
        _refuse_dependent(space, chosen)
    saved = None
    if checkpoint is not None:
        if enumerated:
            raise ModelError(
                f"checkpoint= is for runs of SMC, and these 2^{space.n_candidates} models are enumerated; "
                "leave it out, or use method='smc'"
            )
        identity = {"draws": draws, "chains": chains, "points": points} | _identity(space, chosen.name, evidence)
        saved = Checkpoint.open(checkpoint, form.target, identity, "model prior", random_seed, SAVED)
    *generators, rng = spawn_generators(saved.seed if saved else random_seed, chains + 1)
    if enumerated:
        found, attrs, stats = _enumerate(space, chosen, chains, draws, rng, progressbar)
    else:
        saved = saved.begin(ModelPath(space, chosen)) if saved else None
        runs = run_searches(space, chosen, draws, generators, executor, progressbar, saved)
        found, attrs, stats = runs.searched, _of_runs(runs), stage_stats(runs.runs)
    if attrs["warnings"]:
        more = "points" if enumerated else "draws"
        warnings.warn(
            f"select_variables: {attrs['warnings']}: increase {more}", SamplerWarning, stacklevel=user_level()
        )
    found = _certified(attrs, found, certify_convergence(space, chosen, found.models))
    found = _certified(attrs, found, certify_modes(space, chosen, found.models))
    found = _certified(attrs, found, certify_evidence(form, space, chosen, found))
    return search_inference_data(
        form,
        space,
        chosen,
        found,
        sampling_time=time.perf_counter() - clock,
        rng=rng,
        attrs=attrs | _described(form, space, chosen),
        sample_stats=stats,
    )


def _refuse_design(**given: Any) -> None:
    """Raise ModelError for options of a design that are given with a model."""
    for name, value in given.items():
        if value is not None:
            raise ModelError(f"{name} is an option for a design; with select= the model determines it")


def _refuse_dependent(space: ModelSpace, evidence: Evidence) -> None:
    """Raise ModelError for candidates of a linear model whose own columns are dependent, so that no model contains them."""
    rng = np.random.default_rng(0)
    if np.isneginf(evidence(space.always[None], rng)).any():
        raise ModelError("X: the columns that every model contains are linearly dependent; leave one out")
    alone = evidence(space.members | space.always, rng) if space.n_candidates else np.zeros(0)
    if np.isneginf(alone).any():
        name = space.names[int(np.argmin(alone))]
        raise ModelError(
            f"X: the columns of {name!r} and those of every model are linearly dependent, so no model can contain "
            f"{name!r}; leave a column out (such as one dummy of a factor)"
        )


def _renamed(given: Any, names: Mapping[Any, str]) -> Any:
    """Return groups or heredity with columns by their shown names; None and words are returned as they are."""
    if isinstance(given, str | int | np.integer):
        return names.get(given, given)
    if isinstance(given, Mapping):
        return {_renamed(key, names): _renamed(each, names) for key, each in given.items()}
    return [_renamed(each, names) for each in given] if isinstance(given, list | tuple) else given


def _identity(space: ModelSpace, name: str, asked: str) -> dict[str, Any]:
    """Return the identity of a search, by which a checkpoint is recognised."""
    prior = space.prior
    if callable(prior):  # a function is identified by its values
        prior = digest_of_numbers(space.log_prior(space.sample(_COMPARED, np.random.default_rng(_COMPARED))))
    return {
        "evidence": f"{name} {asked}",
        "model_prior": prior,
        "select or always": digest(space.always),
        "groups": digest(space.members),
        "heredity": digest(space.parents, space.strong),
    }


def _described(form: Form, space: ModelSpace, evidence: Evidence) -> dict[str, Any]:
    """Return attributes that describe the search."""
    relative = "relative to the model with an intercept alone" if form.linear is not None else None
    return {
        "evidence": evidence.name,
        "model_prior": "function" if callable(space.prior) else space.prior,
        "n_candidates": space.n_candidates,
        "link": form.link,
        "log_evidence_note": relative,
    }


def _certified(attrs: dict[str, Any], found: Searched, certificate: Certificate) -> Searched:
    """Add what a check found to attributes in place, and return inclusions with its error; warn if it fails."""
    attrs |= certificate.figures
    attrs["log_evidence_se"] = float(np.hypot(attrs["log_evidence_se"], certificate.log_evidence_error))
    if certificate.trouble:
        warnings.warn(f"select_variables: {certificate.trouble}", SamplerWarning, stacklevel=user_level())
        attrs["warnings"] = "; ".join(filter(None, [str(attrs["warnings"]), certificate.trouble]))
        attrs["log_evidence_trusted"] = 0
    return found._replace(inclusion_se=np.hypot(found.inclusion_se, certificate.inclusion_error))


def _of_runs(runs: Runs) -> dict[str, Any]:
    """Return attributes of runs of SMC."""
    unfinished = ["interrupted: the runs are not at β = 1"] if runs.interrupted else []
    return {
        "method": "SMC over models",
        "log_evidence": runs.evidence.log_evidence,
        "log_evidence_se": runs.evidence.standard_error,
        "log_evidence_df": runs.evidence.df,
        "log_evidence_trusted": int(not runs.reasons and not runs.interrupted),
        "complete": int(not runs.interrupted),
        "warnings": "; ".join(unfinished + runs.reasons),
    }


def _enumerate(
    space: ModelSpace, evidence: Evidence, chains: int, draws: int, rng: np.random.Generator, progressbar: bool
) -> tuple[Searched, dict[str, Any], dict[str, Any]]:
    """Return the evidences of all models, and draws from them."""
    with ChainProgress("models", 1, (), enabled=progressbar) as progress:
        every: Enumerated = enumerate_models(space, evidence, rng, lambda done: progress.update(0, done))
    drawn = systematic_resampling(every.probability, chains * draws, rng)
    bits = every.bits[rng.permutation(drawn)].reshape(chains, draws, space.n_candidates)
    listed = Listed(every.bits, every.log_evidence, every.probability).best()
    noise = ""
    # An estimate from a single point has no known error.
    if not (every.total_se <= LARGEST_SHIFT and np.all(every.inclusion_se <= LARGEST_CHANGE)):
        noise = (
            f"the estimated evidences give the log evidence a standard error of {every.total_se:.2g}, and inclusions of up "
            f"to {every.inclusion_se.max(initial=0.0):.2g}"
        )
    attrs = {
        "method": "enumeration of models",
        "n_models": len(every.bits),
        "log_evidence": every.total,
        "log_evidence_se": every.total_se,
        "log_evidence_df": float("inf"),
        "log_evidence_trusted": int(not noise),
        "warnings": noise,
    }
    return Searched(bits, every.inclusion, every.inclusion_se, listed), attrs, {}

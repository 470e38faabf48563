"""Compare models by their evidence: a table with posterior probabilities and the reliability of each figure, and a plot.

An evidence with an error bar (importance sampling, SMC), one without (Laplace, EP) and a lower bound (variational
inference) are three kinds of number. Each is labelled, and a comparison across kinds is flagged: a bound that is lower
may belong to the better model.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from concurrent.futures import Executor
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ppl_backends.approximations.base import Approximation
from ppl_backends.errors import ApproximationWarning, ModelError, user_level
from ppl_backends.marginal_likelihood import Evidence, evidence
from ppl_backends.numerics.weights import LARGEST_PARETO_K
from ppl_backends.options import checked, instance, none
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.results.inference_data import (
    group,
    group_names,
    is_before_posterior,
    is_inference_data,
    normalised_evidence_error,
)
from ppl_backends.results.tables import WholeTable
from ppl_backends.smc.sample import sample_smc
from ppl_backends.targets.convert import is_model
from ppl_backends.targets.propriety import improper_note
from ppl_backends.targets.protocol import BaseTarget

SIMULATIONS = 10_000
PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"  # checks of a result by its own method
KINDS = {"exact": "evidence", "approximate": "approximate evidence", "bound": "lower bound"}


class _Entry(NamedTuple):
    """The figures of one model; see the columns of :func:`compare_evidence`."""

    value: float
    se: float
    df: float
    kind: str
    method: str
    checks: str


@checked(
    results=instance(Mapping, "a dict from names to results: {'small': idata, 'large': approx}"),
    prior_probabilities=none | instance(Mapping, "a dict from names to probabilities"),
)
def compare_evidence(
    results: Mapping[str, Any],
    *,
    prior_probabilities: Mapping[str, float] | None = None,
    executor: Executor | None = None,
    random_seed: SeedLike = None,
) -> pd.DataFrame:
    """Compare evidences and posterior probabilities of models fitted to the same data.

    Parameters
    ----------
    results : mapping of str to InferenceData, Evidence, approximation or model
        By model name: a result of ``sample_smc``, ``sample_importance``, ``evidence``, ``fit_laplace``, ``fit_ep`` or
        ``fit_vi``, or any object with ``elbo`` or ``log_evidence``. ``evidence`` is called for a pair (draws, model),
        and ``sample_smc`` for a model alone.
    prior_probabilities : mapping of str to float, optional
        Prior probabilities of the models; equal by default.
    executor : concurrent.futures.Executor, optional
        Executor that runs the chains of ``sample_smc``.
    random_seed : int or numpy.random.Generator, optional
        Seed for runs of ``sample_smc`` and for drawing evidences within their errors.

    Returns
    -------
    pandas.DataFrame
        One row per model, the best first; it prints with all of its columns, which are

        ``log_evidence``
            Log of the evidence, of its approximation or of its lower bound, under the normalised prior.
        ``se``
            Its standard error; NaN if the method gives none.
        ``difference``
            Difference from the best model's log evidence.
        ``probability``, ``probability_se``
            Posterior probability of the model among the models compared, and its standard deviation over evidences
            drawn within their errors (Student's t if an error comes from few chains); NaN if an error is unknown.
        ``kind``
            ``"evidence"``, ``"approximate evidence"`` or ``"lower bound"``.
        ``method``
            Method that gave it.
        ``checks``
            ``"passed"`` or ``"failed"``: verdict of the method's own checks; ``"unknown"`` if the result has none, such as
            that of another package.
        ``trusted``
            Whether these checks passed.

    Raises
    ------
    ModelError
        If a result has no evidence, or its prior is improper, so that its evidence is known up to a constant only.

    Warns
    -----
    ApproximationWarning
        If kinds are mixed, a result is not trusted by its own method or has no verdict, or models have different observed
        data.

    References
    ----------
    Chérif-Abdellatif, B.-E. (2019). Consistency of ELBO maximization for model selection. *AABI*.

    Examples
    --------
    >>> import numpy as np
    >>> import ppl_backends as pb
    >>> def shifted(by):
    ...     return pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1) + by, -x))
    >>> fits = {name: pb.fit_laplace(shifted(by), progressbar=False) for name, by in {"A": 0.0, "B": np.log(3)}.items()}
    >>> compare_evidence(fits)["probability"].round(3).to_dict()
    {'B': 0.75, 'A': 0.25}
    """
    if not results:
        raise ModelError("results is empty: expected a result for each model, by name")
    seeds = spawn_generators(random_seed, len(results))
    results = {
        name: _fitted(result, executor, seed) for (name, result), seed in zip(results.items(), seeds, strict=True)
    }
    _refuse_other_tolerances(results)
    entries = {name: _entry(name, result) for name, result in results.items()}
    values = np.array([entry.value for entry in entries.values()])
    log_prior = np.log(_prior(list(entries), prior_probabilities))
    probability, error = _probabilities(values + log_prior, list(entries.values()))
    table = pd.DataFrame(
        {
            "log_evidence": values,
            "se": [entry.se for entry in entries.values()],
            "difference": values - values.max(),
            "probability": probability,
            "probability_se": error,
            "kind": [entry.kind for entry in entries.values()],
            "method": [entry.method for entry in entries.values()],
            "checks": [entry.checks for entry in entries.values()],
            "trusted": [entry.checks == PASSED for entry in entries.values()],
        },
        index=pd.Index(list(entries), name="model"),
    )
    table = WholeTable(table.sort_values("log_evidence", ascending=False, kind="stable"))
    troubles = [*_troubles(table), *_other_data(results)]
    table.attrs["warnings"] = "; ".join(troubles)
    for trouble in troubles:
        warnings.warn(f"compare_evidence: {trouble}", ApproximationWarning, stacklevel=user_level())
    return table


def _fitted(result: Any, executor: Executor | None, seed: np.random.Generator) -> Any:
    """Return a result as it is, the evidence of a pair (draws, model), or the run of a model."""
    if isinstance(result, tuple) and len(result) == 2 and is_model(result[1]):
        return evidence(*result, random_seed=seed)
    if is_model(result):
        return sample_smc(result, executor=executor, random_seed=seed, progressbar=False)
    return result


class _Given(NamedTuple):
    """Attributes read from an approximation of another package, and their defaults."""

    elbo: float = np.nan
    elbo_se: float = np.nan
    log_evidence: float = np.nan
    log_evidence_se: float = np.nan
    pareto_k: float = np.nan
    converged: bool | None = None
    target: BaseTarget | None = None
    method: str = ""
    trouble: str = ""


def _refuse_other_tolerances(results: Mapping[str, Any]) -> None:
    """Refuse evidences of approximate Bayesian computation at different tolerances, kernels, distances or summaries."""
    settings: dict[str, str] = {}
    for name, result in results.items():
        attrs = group(result, "posterior").attrs if is_inference_data(result) else {}
        shown = (
            f"ε = {attrs['epsilon']:.4g}, {attrs['kernel']} kernel, {attrs['discrepancy']}"
            if "epsilon" in attrs
            else ""
        )
        settings.setdefault(shown, name)
    if len(settings) > 1:
        (one, first), (other, second), *_ = settings.items()
        raise ModelError(
            f"evidences of {first!r} ({one or 'no tolerance'}) and {second!r} ({other or 'no tolerance'}) are of different "
            "events: run sample_abc with the same epsilon=, kernel, distance and summary"
        )


def _other_data(results: Mapping[str, Any]) -> list[str]:
    """Return a warning if observed variables of the same name have different values, in whatever order or shape."""
    seen: dict[str, tuple[str, np.ndarray]] = {}
    for name, result in results.items():
        for variable, values in _observed(result).items():
            these = np.sort(np.asarray(values, dtype=np.float64), axis=None)
            first, those = seen.setdefault(variable, (name, these))
            if these.shape != those.shape or not np.allclose(these, those, rtol=1e-6, equal_nan=True):
                return [
                    f"{first} and {name} have different observed data in {variable!r}: evidences of different data cannot be "
                    "compared"
                ]
    return []


def _observed(result: Any) -> Mapping[str, Any]:
    """Return the observed data of a result by name, as far as they are known."""
    if is_inference_data(result):
        known = group(result, "observed_data") if "observed_data" in group_names(result) else {}
        return {str(name): known[name].values for name in known}
    if isinstance(result, Evidence):
        return result.observed_data
    return result.target.observed_data if isinstance(result, Approximation) and result.target is not None else {}


def _entry(name: str, result: Any) -> _Entry:
    """Return the figures of one result of any accepted kind."""
    if isinstance(result, Evidence):
        return _of_evidence(name, result)
    if isinstance(result, Approximation):
        return _of_approximation(name, result)
    if is_inference_data(result):
        return _of_draws(name, result)
    known: dict[str, Any] = {key: getattr(result, key, value) for key, value in _Given._field_defaults.items()}
    given = _Given(**known)
    if not any(isinstance(value, Real) and not np.isnan(float(value)) for value in (given.elbo, given.log_evidence)):
        raise ModelError(
            f"model {name!r} is of type {type(result).__name__}: expected InferenceData, an approximation or a pair "
            "(draws, model)"
        )
    return _of_approximation(name, given if given.method else given._replace(method=type(result).__name__))


def _of_evidence(name: str, result: Evidence) -> _Entry:
    _refuse_improper(name, result.note)
    return _Entry(
        result.log_evidence - _normaliser(name, result.log_prior_normalizer),
        float(np.hypot(result.log_evidence_se, result.log_prior_normalizer_se)),
        result.log_evidence_df,
        KINDS["exact"],
        result.method,
        PASSED if result.trusted else FAILED,
    )


def _of_approximation(name: str, result: Approximation | _Given) -> _Entry:
    normaliser, error = 0.0, 0.0
    if result.target is not None:
        _refuse_improper(name, improper_note(result.target))
        normaliser = _normaliser(name, result.target.log_prior_normalizer)
        error = float(result.target.log_prior_normalizer_se)
    bound = not np.isnan(result.elbo)
    value, se = (result.elbo, result.elbo_se) if bound else (result.log_evidence, result.log_evidence_se)
    if not np.isfinite(value):
        raise ModelError(f"model {name!r}: {result.method} gave no evidence ({value})")
    return _Entry(
        float(value) - normaliser,
        float(np.hypot(se, error)),
        np.nan,
        KINDS["bound" if bound else "approximate"],
        str(result.method),
        _checks(result.converged, bool(result.trouble) or result.pareto_k > LARGEST_PARETO_K),
    )


def _of_draws(name: str, result: Any) -> _Entry:
    try:
        attrs = group(result, "posterior").attrs
    except KeyError:
        raise ModelError(f"model {name!r}: its InferenceData has no posterior") from None
    _refuse_improper(name, attrs.get("log_evidence_note"))
    bound = "elbo" in attrs
    key = "elbo" if bound else "log_evidence"
    if not np.isfinite(float(attrs.get(key, np.nan))):
        said = f"the result of {attrs['method']}" if "method" in attrs else "its InferenceData"
        if is_before_posterior(attrs):
            raise ModelError(
                f"model {name!r}: {said} has no evidence, because the run was stopped early; repeat the call that made it"
            )
        raise ModelError(f"model {name!r}: {said} has no evidence; give a pair (draws, model)")
    exact = attrs.get("accuracy", "exact") == "exact"
    verdict = attrs.get("log_evidence_trusted", attrs.get("converged"))
    return _Entry(
        float(attrs[key]) - _normaliser(name, attrs.get("log_prior_normalizer", 0.0)),
        normalised_evidence_error(attrs, key),
        float(attrs.get("log_evidence_df", np.nan)),
        KINDS["bound" if bound else "exact" if exact else "approximate"],
        str(attrs.get("method", "unknown")),
        _checks(verdict, bound and float(attrs.get("pareto_k", 0.0)) > LARGEST_PARETO_K),
    )


def _checks(verdict: Any, trouble: bool) -> str:
    """Return what a method's own checks said, given its verdict, None if it has none, and whether there is a fault."""
    if verdict is None:
        return FAILED if trouble else UNKNOWN
    return PASSED if verdict and not trouble else FAILED


def _refuse_improper(name: str, note: Any) -> None:
    if note:
        said = (
            f"known {note}; give it a proper prior to compare it"
            if str(note).startswith("up to")
            else f"not comparable: {note}"
        )
        raise ModelError(f"model {name!r}: its evidence is {said}")


def _normaliser(name: str, value: Any) -> float:
    normaliser = 0.0 if value is None else float(value)
    if not np.isfinite(normaliser):
        raise ModelError(
            f"model {name!r}: the integral of its prior is not known; give it a proper prior to compare it"
        )
    return normaliser


def _prior(names: list[str], given: Mapping[str, float] | None) -> np.ndarray:
    if given is None:
        return np.full(len(names), 1 / len(names))
    if set(given) != set(names):
        raise ModelError(f"prior_probabilities names {sorted(given)}; expected {sorted(names)}")
    weights = np.array([given[name] for name in names], dtype=np.float64)
    if not ((weights > 0) & np.isfinite(weights)).all():
        raise ModelError(f"prior_probabilities={dict(given)!r}: expected positive numbers")
    return weights / weights.sum()


def _probabilities(values: np.ndarray, entries: list[_Entry]) -> tuple[np.ndarray, np.ndarray]:
    """Return posterior probabilities, and their standard deviations given the errors of the values."""
    probability = _softmax(values[None])[0]
    errors = np.array([entry.se for entry in entries])
    if len(entries) == 1:
        return probability, np.zeros(1)
    if np.isnan(errors).any():
        return probability, np.full(len(entries), np.nan)
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((SIMULATIONS, len(entries)))
    for column, entry in enumerate(entries):
        if np.isfinite(entry.df):
            noise[:, column] = rng.standard_t(entry.df, SIMULATIONS)
    spread = _softmax(values + noise * errors) - probability
    return probability, np.sqrt((spread**2).mean(axis=0))


def _softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _troubles(table: pd.DataFrame) -> list[str]:
    said = []
    kinds = sorted(set(table["kind"]))
    if len(kinds) > 1:
        said.append(
            f"{' and '.join(kinds)} are compared with each other, so differences have errors of unknown sign and size: use "
            "sample_importance or sample_smc for all models"
        )
    doubtful, unchecked = (table.index[table["checks"] == checks] for checks in (FAILED, UNKNOWN))
    if len(unchecked):
        said.append(
            f"the results of {', '.join(map(str, unchecked))} have no verdict of their method, so their figures are not "
            "trusted: compare them with those of sample_smc"
        )
    if len(doubtful):
        said.append(
            f"the figures of {', '.join(map(str, doubtful))} did not pass their method's own checks: read the warnings of "
            "these results first"
        )
    return said


def plot_evidence(table: Any, *, ax: Any = None) -> Any:
    """Plot evidences of models with their errors, the best on top, and posterior probabilities beside them.

    Parameters
    ----------
    table : pandas.DataFrame or mapping
        Result of :func:`compare_evidence`, or the results that :func:`compare_evidence` takes.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        Lower bounds have an arrow to the right, figures that did not pass their method's checks are hollow.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> target = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> wide = pb.FunctionTarget(1, lambda x: (-0.05 * (x**2).sum(1), -0.1 * x))
    >>> table = pb.compare_evidence({"narrow": pb.fit_laplace(target), "wide": pb.fit_laplace(wide)})
    >>> axes = pb.plot_evidence(table)
    """
    import matplotlib.pyplot as plt

    if not isinstance(table, pd.DataFrame):
        table = compare_evidence(table)
    if ax is None:
        _, ax = plt.subplots(figsize=(7.5, 1.2 + 0.45 * len(table)), layout="constrained")
    colours = dict(zip(KINDS.values(), ("C0", "C1", "C2"), strict=True))
    half_width = 1.96 * table["se"].fillna(0.0)
    span = max(float(np.ptp(table["log_evidence"]) + half_width.max()), 1e-9)
    for row, (_, entry) in enumerate(table.iterrows()):
        colour, value = colours[entry["kind"]], entry["log_evidence"]
        known = np.isfinite(entry["se"])
        ax.errorbar(
            value,
            row,
            xerr=1.96 * entry["se"] if known else None,
            fmt="o",
            color=colour,
            markerfacecolor=colour if entry["trusted"] else "white",
            capsize=3,
            zorder=3,
        )
        if entry["kind"] == KINDS["bound"]:
            arrow = {"arrowstyle": "->", "color": colour}
            ax.annotate("", xy=(value + 0.08 * span, row), xytext=(value, row), arrowprops=arrow)
        share, share_se = entry["probability"], entry["probability_se"]
        error = f" ± {share_se:.2g}" if 5e-4 <= share_se < np.inf else ""  # smaller ones do not show in three digits
        text = f"{share:.3f}{error}" if share >= 5e-4 else f"{share:.0e}"
        ax.annotate(text, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize="small")
    ax.annotate("probability", (1.02, 1.0), xycoords="axes fraction", fontsize="small", va="bottom")
    for kind in dict.fromkeys(table["kind"]):
        ax.plot([], [], "o", color=colours[kind], label=kind)
    ax.legend(fontsize="small", loc="lower right")  # the best model is at the upper right, the worst at the lower left
    ax.set_yticks(range(len(table)), [str(name) for name in table.index])
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.margins(x=0.12)
    ax.set_xlabel("log evidence, with 95 % intervals")
    ax.grid(axis="x", alpha=0.3)
    return ax

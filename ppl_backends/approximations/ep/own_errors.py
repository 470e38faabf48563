"""EP's estimates of its own error: expansions in pairs of sites, corrections given one quantity, and weighted points.

The expansions cost little and say which fits may be wrong. Weighted points then decide, where their weights are even.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ppl_backends.approximations.elsewhere import reason_of_another_mode, share_of_another_mode
from ppl_backends.approximations.ep.conditional import SDRatio, share_errors, square_factor, worst_sd_ratio
from ppl_backends.approximations.ep.correction import Pairs, pairs_of, second_order
from ppl_backends.approximations.ep.hyper import EPMixture
from ppl_backends.approximations.ep.result import EPApproximation
from ppl_backends.approximations.ep.shards import EPSites
from ppl_backends.approximations.ep.weighted import (
    CLEAR,
    ERRORS,
    LARGE,
    WeightedMoments,
    mixed_moments,
    weighted_moments,
)
from ppl_backends.approximations.profile import fault_in_model_space
from ppl_backends.approximations.verdict import LARGEST_EVIDENCE_SHIFT, LARGEST_SHIFT, SD_RANGE
from ppl_backends.approximations.without_draws import mode_missed_by
from ppl_backends.errors import ApproximationWarning, user_level
from ppl_backends.targets.factors.factorisation import Factors, FactorsTarget
from ppl_backends.targets.factors.families import NormalMixture
from ppl_backends.targets.factors.sites import plain

MODES_KURTOSIS, MAX_INTERACTION = 5.0, 0.05  # excess kurtosis of a tilted distribution; second-order terms
MAX_CONDITIONAL_ERROR, MAX_SHARE_ERROR = 0.15, 0.02  # relative, of a standard deviation; of a component's probability
LARGE_SHARE, MAX_ERROR = 0.2, 0.1  # share of a site in its predictor's precision; relative, of a standard deviation
MAX_ERROR_AWAY, JUDGED, SOME_WEIGHT = 0.2, 25, 1e-3  # given φ away from its mode: limit, and number and weight of φ
MOST_UNCHECKED = 0.5  # error by EP's own estimate of a fit that can be used although no weighted points check it
SMALL, SMALL_CONDITIONAL = 0.05, 0.01  # estimates up to which no weighted points are needed
MOST_DIRECTIONS = 200  # predictors whose moments weighted points judge, those on which single sites weigh most

NOTHING = SDRatio(1.0, None, None)

Result = TypeVar("Result", EPApproximation, EPMixture)


class _Judgement(NamedTuple):
    """What estimates say in words, empty if nothing; whether weighted points can refute it, and should be drawn.

    ``worst`` is the quantity whose standard deviation is farthest off.
    """

    trouble: str
    refutable: bool
    doubtful: bool
    worst: SDRatio = NOTHING


def checked_by_itself(result: Result) -> Result:
    """Return the result with estimates of its own error, and warn if they are large.

    A single Gaussian, the one at the most probable hyper-parameters, represents the result. Standard deviations are judged at
    other hyper-parameters too: a wider prior there makes posteriors less Gaussian.
    """
    given = result.at_mode if isinstance(result, EPMixture) else result
    if given.factors is None or not given.converged or given.power != 1.0:
        return result
    figures: dict[str, float] = {}
    judged = _judged_by_sites(result, given, given.factors, figures)
    trouble, usable = judged.trouble, True
    if judged.doubtful:
        found = _weighted(result, judged.worst)
        if found is not None:
            trouble, usable = _weighed(found, judged, figures)
    if not trouble and _has_several_modes(given.factors):
        figures["other_mode_share"] = share_of_another_mode(FactorsTarget(given.factors), given)
        trouble = reason_of_another_mode(figures["other_mode_share"])
        usable = not trouble
    if not trouble and isinstance(result, EPMixture) and result.target is not None:
        trouble = mode_missed_by(result, result.target)
        usable = not trouble
    if not trouble:
        trouble = _fault_in_model_space(result)
        usable = not trouble
    return _with_verdict(result, figures, trouble, usable)


def _fault_in_model_space(result: Result) -> str:
    """Return the fault of a variable whose coordinate has the right moments, and a tail that the variable does not have.

    Hyper-parameters have no Gaussian.
    """
    if result.target is None:
        return ""
    skip = result.hyper_coordinates if isinstance(result, EPMixture) else ()
    said = fault_in_model_space(result.target, result, np.zeros(result.dim), np.ones(result.dim), skip)
    return (
        f"by Laplace's method for the other coordinates {said}, although that of its coordinate is right"
        if said
        else ""
    )


def checked_by_points(fit: EPApproximation, n_values: int) -> EPApproximation:
    """Return a fit of sites that are not in memory, with errors of its moments by weighted points alone; warn if large.

    The density of its target has ``n_values`` to compute at each point.
    """
    if not fit.converged or fit.power != 1.0 or fit.factor.ndim != 2:
        return fit
    assert fit.target is not None
    moments = weighted_moments(fit, fit.target.log_density, fit.factor / fit.sd[:, None], n_values)
    figures: dict[str, float] = {}
    trouble, usable = _weighed(_Found(moments, fit.names), _Judgement("", True, True), figures)
    return _with_verdict(fit, figures, trouble, usable)


def _with_verdict(result: Result, figures: dict[str, float], trouble: str, usable: bool) -> Result:
    """Return the result with figures and trouble, and warn of it."""
    result = result.replaced(diagnostics=result.diagnostics | figures, converged=result.converged and usable)
    if trouble:
        warnings.warn(f"EP: {trouble}: check with sample_smc", ApproximationWarning, stacklevel=user_level())
        result = result.replaced(trouble="; ".join(filter(None, [result.trouble, trouble])))
    return result


def _judged_by_sites(result: Result, given: EPApproximation, factors: Factors, figures: dict[str, float]) -> _Judgement:
    """Return what expansions in the sites say, and add their ``figures``."""
    families = [(plain(family), columns) for family, columns, _ in factors.sites.pieces(None)]
    several = _rows([columns for family, columns in families if not family.log_concave], factors)
    spikes = any(isinstance(family, NormalMixture) for family, _ in families)
    pairs = pairs_of(given, given.sites, factors, several)
    figures["interaction"] = _interaction(pairs)
    if figures["interaction"] > MAX_INTERACTION:
        worst = NOTHING if spikes else _given_one_quantity(given, factors, pairs, {})[1]
        return _Judgement(
            f"the interaction of sites with several modes is {figures['interaction']:.2g} in log evidence (limit "
            f"{MAX_INTERACTION}), so means and standard deviations may be off by 10 % of a standard deviation or more",
            not spikes,
            not spikes,
            worst,
        )
    if spikes:
        figures["share_error"] = share_errors(given, given.sites, factors, several)
        if figures["share_error"] > MAX_SHARE_ERROR:
            trouble = (
                f"the probability of a component of a mixture, such as an inclusion, is off by about "
                f"{figures['share_error']:.2g} by EP's own estimate (limit {MAX_SHARE_ERROR})"
            )
            return _Judgement(trouble, False, False)
    trouble, worst = _second_order(given, figures)
    if spikes:  # grids do not resolve them
        smooth = [part for family, part in families if not (family.log_concave or isinstance(family, NormalMixture))]
        pairs = pairs_of(given, given.sites, factors, _rows(smooth, factors))
    conditional, found = _given_one_quantity(given, factors, pairs, figures)
    trouble, worst = trouble or conditional, max(worst, found, key=lambda one: abs(np.log(one.ratio)))
    if isinstance(result, EPMixture):
        figures["sd_error_away"], away = _error_away(result)
        trouble = trouble or away
    expanded = max(figures.get(name, 0.0) for name in ("sd_error", "sd_error_away"))
    doubtful = expanded > SMALL or (not spikes and figures.get("conditional_sd_error", 0.0) > SMALL_CONDITIONAL)
    return _Judgement(trouble, True, bool(trouble) or doubtful, worst)


def _second_order(given: EPApproximation, figures: dict[str, float]) -> tuple[str, SDRatio]:
    """Add the largest second-order error of a standard deviation; return it in words if it is large, and whose it is."""
    if not _a_site_weighs_much(given.sites):
        return "", NOTHING
    errors = given.sd_errors()
    worst = int(np.argmax(np.abs(errors)))
    figures["sd_error"] = float(abs(errors[worst]))
    said = _far_from_gaussian(given.names[worst], errors[worst], MAX_ERROR) if figures["sd_error"] > MAX_ERROR else ""
    return said, SDRatio(float(max(1 + errors[worst], 1e-3)), None, worst)


def _given_one_quantity(
    given: EPApproximation, factors: Factors, pairs: Pairs | None, figures: dict[str, float]
) -> tuple[str, SDRatio]:
    """Add the largest error of a standard deviation given one quantity; return it in words if large, and whose it is."""
    if pairs is None:
        return "", NOTHING
    worst = worst_sd_ratio(given, given.sites, factors, pairs)
    figures["conditional_sd_error"] = abs(worst.ratio - 1)
    if figures["conditional_sd_error"] <= MAX_CONDITIONAL_ERROR:
        return "", worst
    name = f"the predictor of site {worst.site}" if worst.coordinate is None else given.names[worst.coordinate]
    return _far_from_gaussian(name, worst.ratio - 1, MAX_CONDITIONAL_ERROR), worst


def _has_several_modes(factors: Factors) -> bool:
    """Return whether the posterior may have several modes that one Gaussian should not cover; spikes are covered."""
    families = [plain(family) for family, _, _ in factors.sites.pieces(None)]
    return any(not family.log_concave for family in families) and not any(
        isinstance(family, NormalMixture) for family in families
    )


class _Found(NamedTuple):
    """Moments from weighted points, and whose they are."""

    moments: WeightedMoments
    names: Sequence[str]


def _weighted(result: EPApproximation | EPMixture, worst: SDRatio) -> _Found | None:
    """Return moments by weighted points, of a mixture given each of up to 25 hyper-parameters; None if not dense."""
    fits, weights = ([result], np.ones(1)) if isinstance(result, EPApproximation) else _judged_fits(result)
    if not fits or any(f.factor.ndim != 2 or f.factors is None or f.factors.n_auxiliary for f in fits):
        return None
    given = fits[0]
    if isinstance(result, EPApproximation):
        moments, names = _moments_of(given, worst)
        return _Found(moments, names)
    parts = [_moments_of(fit, worst, predictors=False)[0] for fit in fits]
    means, sds = np.stack([fit.mean for fit in fits]), np.stack([fit.sd for fit in fits])
    return _Found(mixed_moments(parts, weights, means, sds), given.names)


def _moments_of(fit: EPApproximation, worst: SDRatio, predictors: bool = True) -> tuple[WeightedMoments, list[str]]:
    """Return moments of coordinates, and of predictors on which single sites weigh most."""
    factors, names = fit.factors, list(fit.names)
    assert factors is not None
    root = square_factor(fit)
    directions, along = root / fit.sd[:, None], None
    if worst.coordinate is not None:
        along = directions[worst.coordinate]
    elif worst.site is not None and worst.site < factors.n_sites:
        along = np.asarray(factors.design[[worst.site]])[0] @ root
        along /= np.sqrt(along @ along)
    if predictors:
        share = np.where(fit.sites.failed, 0.0, np.abs(fit.sites.tau * fit.sites.variance))
        rows = np.argsort(-share, kind="stable")[:MOST_DIRECTIONS]
        rows = np.sort(rows[fit.sites.variance[rows] > 0])
        spread = np.asarray(factors.design[rows] @ root)
        directions = np.vstack([directions, spread / np.sqrt((spread**2).sum(axis=1))[:, None]])
        names += [f"the predictor of site {row}" for row in rows]
    return weighted_moments(fit, factors.log_density, directions, factors.n_sites, along), names


def _judged_fits(mixture: EPMixture) -> tuple[list[EPApproximation], NDArray[np.float64]]:
    """Return fits at up to 25 points of φ that stand for the mixture, with their weights: even steps of the total weight."""
    steps = (np.arange(JUDGED) + 0.5) / JUDGED
    at, counts = np.unique(
        np.searchsorted(np.cumsum(mixture.weights), steps * mixture.weights.sum()), return_counts=True
    )
    kept = [k for k, point in enumerate(at) if mixture._fits[point].converged]
    return [mixture._fits[at[k]] for k in kept], counts[kept] / max(counts[kept].sum(), 1)


def _weighed(found: _Found, judged: _Judgement, figures: dict[str, float]) -> tuple[str, bool]:
    """Return the trouble that remains after weighted points, and whether the fit can be used; add their ``figures``."""
    moments, names = found
    figures["effective_draws"] = moments.effective
    own = max(figures.get(name, 0.0) for name in ("sd_error", "conditional_sd_error"))
    if not moments.reliable:
        return judged.trouble, not own > MOST_UNCHECKED
    worst = int(np.argmax(moments.least if moments.least.any() else np.abs(moments.ratio - 1)))
    moved = int(np.argmax(np.abs(moments.shift) - ERRORS * moments.shift_se))
    figures["weighted_sd_error"] = float(abs(moments.ratio[worst] - 1))
    figures["weighted_shift"] = float(abs(moments.shift[moved]))
    figures["evidence_shift"] = moments.log_shift
    wrong = moments.least[worst] > LARGE or (bool(judged.trouble) and figures["weighted_sd_error"] > LARGE)
    ratio = f"{moments.ratio[worst]:.2f} ± {moments.ratio_se[worst]:.2f}"
    said = f"by weighted points the standard deviation of {names[worst]} is {ratio} times EP's"
    if wrong and (moments.even or own > MAX_ERROR):
        return said, SD_RANGE[0] <= moments.ratio[worst] <= SD_RANGE[1]
    if not moments.even:
        return judged.trouble, True
    if figures["weighted_shift"] - ERRORS * moments.shift_se[moved] > LARGEST_SHIFT:
        far = f"{figures['weighted_shift']:.2f} ± {moments.shift_se[moved]:.2f} standard deviations from EP's"
        return f"by weighted points the posterior mean of {names[moved]} is {far}", False
    if abs(moments.log_shift) > LARGEST_EVIDENCE_SHIFT:
        return f"by weighted points the log evidence is {abs(moments.log_shift):.2g} from EP's", False
    return ("" if judged.refutable and moments.most < CLEAR else judged.trouble), True


def _error_away(mixture: EPMixture) -> tuple[float, str]:
    """Return the largest second-order error of a standard deviation at points of φ, and in words if it is large."""
    points = np.argsort(-mixture.weights, kind="stable")
    points = points[mixture.weights[points] > SOME_WEIGHT]
    fits = [mixture._fits[k] for k in points[np.unique(np.linspace(0, len(points) - 1, JUDGED).astype(int))]]
    errors = [fit.sd_errors() for fit in fits if fit.converged and _a_site_weighs_much(fit.sites)]
    if not errors:
        return 0.0, ""
    error = max(errors, key=lambda found: float(np.abs(found).max()))
    worst = int(np.argmax(np.abs(error)))
    size = float(abs(error[worst]))
    if size <= MAX_ERROR_AWAY:
        return size, ""
    return size, (
        f"the standard deviation of {fits[0].names[worst]}, given hyper-parameters away from their mode, is off by up to "
        f"about {100 * size:.0f} % by EP's own estimate (limit {100 * MAX_ERROR_AWAY:.0f} %), because the posterior there is "
        "far from Gaussian"
    )


def _far_from_gaussian(name: str, error: float, limit: float) -> str:
    return (
        f"the standard deviation of {name} is off by about {100 * error:.0f} % by EP's own estimate "
        f"(limit {100 * limit:.0f} %), because the posterior is far from Gaussian"
    )


def _rows(columns: Sequence[Any], factors: Factors) -> NDArray[np.integer]:
    """Return the numbers of the sites in some of the pieces of all sites."""
    sites = np.arange(factors.n_sites)
    return np.concatenate([sites[:0], *(sites[part] for part in columns)])


def _interaction(pairs: Pairs | None) -> float:
    """Return the interaction of sites with several modes, which one Gaussian represents."""
    if pairs is None or np.abs(pairs.kurtosis).max() <= MODES_KURTOSIS:
        return 0.0
    return second_order(pairs).size


def _a_site_weighs_much(sites: EPSites) -> bool:
    """Return whether a site has a large share in its predictor's precision; if none has, EP's error is small."""
    return np.abs(sites.tau * sites.variance).max(where=~sites.failed, initial=0.0) >= LARGE_SHARE

"""Choose the learning rate λ of a Gibbs posterior, and the scale of its prior, from the data.

====================  ==============================================================================================
``cross-validation``  risk of predictions on held-out folds: by refitting (VI), by removing the folds' sites from one
                      EP fit per λ, or by reweighting the particles of one SMC run from the prior to the largest λ
``bound``             the PAC-Bayes bound itself, with log(number of candidates) added, so that the choice is certified
``annealing``         the same along increasing λ, each fit the start of the next, until the bound rises
``safe-bayes``        loss on every block of data, expected under the posterior given the blocks before it
====================  ==============================================================================================

All of them keep η = λ/n, the weight of one observation, when they leave data out. The pseudo-evidence cannot compare
learning rates, because it decreases in λ for any data, but it compares priors at one λ: :func:`choose_prior_scale`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from ppl_backends.approximations.ep import fit_ep
from ppl_backends.approximations.ep.fit import fixed_point
from ppl_backends.errors import ApproximationWarning, ModelError, SamplerWarning, user_level
from ppl_backends.gibbs.auc import auc_risk
from ppl_backends.gibbs.certificates import certify
from ppl_backends.gibbs.fit import ALIASES, FAMILY, fits_along, nearest_gaussian
from ppl_backends.gibbs.gaussian_vi import expected_risk
from ppl_backends.gibbs.posterior import POSTERIOR, GibbsPosterior, TuningRecord
from ppl_backends.numerics.arrays import as_floats
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.weights import LARGEST_PARETO_K
from ppl_backends.options import array, checked, choice, increasing, integer, none
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.targets.protocol import Array, Index

METHODS = ("cross-validation", "bound", "annealing", "safe-bayes")
FITS = ("vi", "ep", "smc")
TOLERANCE = 1e-2  # nats, of the fits that are compared
_SAME = 1e-3  # nats between the pseudo-evidences of all scales, below which they choose none


class LearningRateChoice(NamedTuple):
    """A learning rate and the figures of its alternatives.

    Attributes
    ----------
    posterior : GibbsPosterior
        The posterior at the chosen rate. It records the choice, for which :func:`certify` adds log(number of candidates).
    learning_rate : float
    grid : ndarray (k,)
    criterion : ndarray (k,)
        Held-out risk, bound, or cumulative loss per observation; the smallest is chosen. Infinite if a fit failed, or
        annealing stopped earlier.
    standard_error : ndarray (k,)
        Standard error from folds or blocks; NaN for the bound.
    pareto_k : ndarray (k,)
        Largest Pareto k of the weights that leave a fold out, for ``fit="smc"``, infinite if uneven weights have none;
        NaN for other fits.
    method : str
    """

    posterior: GibbsPosterior
    learning_rate: float
    grid: Array
    criterion: Array
    standard_error: Array
    pareto_k: Array
    method: str


class PriorScaleChoice(NamedTuple):
    """A scale of the prior.

    Attributes
    ----------
    posterior : GibbsPosterior
        The posterior with the prior N(m, scale² S).
    scale : float
    scales, log_evidence : ndarray (k,)
        The scales tried, and the log pseudo-evidence or its lower bound for each.
    """

    posterior: GibbsPosterior
    scale: float
    scales: Array
    log_evidence: Array


@checked(
    posterior=POSTERIOR,
    grid=none | increasing(above=0),
    method=choice(*METHODS),
    fit=choice(*FITS),
    folds=integer(2),
    family=FAMILY,
)
def choose_learning_rate(
    posterior: GibbsPosterior,
    grid: Sequence[float] | None = None,
    *,
    method: str = "cross-validation",
    fit: str = "vi",
    folds: int = 5,
    family: str = "dense",
    random_seed: SeedLike = None,
    draws: int = 1000,
    **certificate: Any,
) -> LearningRateChoice:
    """Choose λ from a grid.

    Parameters
    ----------
    posterior : GibbsPosterior
        A posterior of linear scores; its own λ is not used.
    grid : sequence of float, optional
        Increasing rates, to be fixed before seeing the data if a certificate is wanted; from n/16 to 8n by default.
    method : {"cross-validation", "bound", "annealing", "safe-bayes"}
        ``"annealing"`` stops at the first λ with a larger bound than the previous one (Alquier et al. 2016, Algorithm
        3), which saves the fits at larger ones; its bound includes the whole grid.
    fit : {"vi", "ep", "smc"}
        ``"smc"`` for cross-validation only. VI and EP need a Gaussian prior.
    folds : int
        Folds of the cross-validation, or blocks of SafeBayes.
    family : str
        Family of covariances, for ``fit="vi"``.
    random_seed : int or numpy.random.Generator, optional
        Seed of the folds and of SMC.
    draws : int
        Particles of SMC.
    **certificate
        For ``method="bound"`` and ``"annealing"``: ``inequality``, ``loss``, ``epsilon``, ``sharp``, ``feature_bound``.

    Returns
    -------
    LearningRateChoice

    Warns
    -----
    SamplerWarning
        If weights that leave a fold out have a Pareto k above 0.7 at the chosen λ.

    References
    ----------
    Grünwald (2012), The safe Bayesian. Opper & Winther (2000), Gaussian processes for classification (cavities).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(80, 2))
    >>> y = np.sign(X @ [1.0, -1.0] + 0.5 * rng.normal(size=80))
    >>> posterior = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=80.0)
    >>> choice = choose_learning_rate(posterior, [8.0, 80.0], random_seed=1)
    >>> choice.posterior.tuning
    (TuningRecord(what='learning rate', how='cross-validation', candidates=2),)
    """
    # by default eight rates from n/16 to 8n: η from 1/16 to 8, in powers of two
    rates = np.exp2(np.arange(-4.0, 4.0)) * float(posterior.n) if grid is None else as_floats("grid", grid)
    certified = method in ("bound", "annealing")
    if certificate and not certified:
        raise ModelError(f"{next(iter(certificate))!r} is an option of method='bound' and 'annealing' only")
    if fit == "smc" and method != "cross-validation":
        raise ModelError(f"method={method!r} takes fit='vi' or 'ep'; SMC gives cross-validation")
    fold_rng, smc_rng = spawn_generators(random_seed, 2)
    pareto_k, fitter = np.full(len(rates), np.nan), _Fitter(fit, family, np.zeros(len(rates), dtype=np.intp))
    if certified:
        criterion = _bounds(posterior, rates, fitter, certificate, stop=method == "annealing")
        error = np.full(len(rates), np.nan)
    else:
        pieces = _folds(posterior, folds, fold_rng)
        if method == "safe-bayes":
            table = _safe_bayes(posterior, rates, pieces, fitter)
        elif fit == "smc":
            table, pareto_k = _by_reweighting(posterior, rates, pieces, draws, smc_rng)
        else:
            table = (_by_cavities if fit == "ep" else _by_refits)(posterior, rates, pieces, fitter)
        criterion, error = table.mean(axis=0), table.std(axis=0, ddof=1) / len(table) ** 0.5
    criterion = np.where(np.isnan(criterion), np.inf, criterion)
    best = int(np.argmin(criterion))
    if not np.isfinite(criterion[best]):
        raise ModelError(f"no learning rate of the grid could be fitted by {fit}; try fit='vi' or a smaller grid")
    if fit == "smc" and not pareto_k[best] <= LARGEST_PARETO_K:
        warnings.warn(
            f"the weights that leave a fold out of the particles at λ = {rates[best]:.4g} have Pareto k "
            f"{pareto_k[best]:.2f}: use more folds or fit='vi'",
            SamplerWarning,
            stacklevel=user_level(),
        )
    if fitter.failed[best]:
        warnings.warn(
            f"{fitter.failed[best]} of the fits by variational inference at the chosen learning rate {rates[best]:.4g} did "
            "not converge, so the choice may be another: check it by fit='ep' or 'smc'",
            ApproximationWarning,
            stacklevel=user_level(),
        )
    chosen = posterior.with_learning_rate(rates[best])._tuned(
        *posterior.tuning, TuningRecord("learning rate", method, len(rates))
    )
    return LearningRateChoice(chosen, float(rates[best]), rates, criterion, error, pareto_k, method)


@checked(posterior=POSTERIOR, scales=none | array(), fit=choice("ep", "vi"), family=FAMILY)
def choose_prior_scale(
    posterior: GibbsPosterior, scales: Sequence[float] | None = None, *, fit: str = "ep", family: str = "dense"
) -> PriorScaleChoice:
    """Choose the scale of a Gaussian prior that maximises the pseudo-evidence.

    Parameters
    ----------
    posterior : GibbsPosterior
        A posterior with a prior N(m, S).
    scales : sequence of float, optional
        Factors of the prior's standard deviations to choose from. By default the maximum between 10⁻³ and 10³ is
        searched for; no certificate is then valid for the same data.
    fit : {"ep", "vi"}
        EP's pseudo-evidence, or VI's lower bound on it.
    family : str
        Family of covariances, for VI.

    Returns
    -------
    PriorScaleChoice

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import GibbsPosterior, choose_prior_scale
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 2))
    >>> y = np.sign(X @ [1.0, -1.0] + 0.5 * rng.normal(size=40))
    >>> posterior = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=10.0)
    >>> choose_prior_scale(posterior, [0.01, 1.0]).scale
    1.0
    """
    prior = posterior.gaussian_prior
    if prior is None:
        raise ModelError("only the scale of a Gaussian prior can be chosen; this posterior has another prior")
    if scales is not None and (np.ndim(scales) != 1 or not len(scales) or not np.all(np.asarray(scales) > 0)):
        raise ModelError(f"scales={scales!r}: expected a list of positive numbers")
    mean, cov = prior.gaussian.mean, prior.covariance
    tried: list[tuple[float, float]] = []

    def at(scale: float) -> GibbsPosterior:
        return posterior.with_prior((mean, scale**2 * cov), labels=prior.coords["coefficient"])

    def evidence(scale: float) -> float:
        q = _fit(at(scale), fit, family)
        value = q.log_evidence if fit == "ep" else q.elbo
        tried.append((scale, float(value)))
        return float(value)

    if scales is None:
        found = minimize_scalar(lambda u: -evidence(np.exp(u)), bounds=np.log([1e-3, 1e3]), method="bounded")
        best, candidates = float(np.exp(found.x)), None
    else:
        for scale in scales:
            evidence(float(scale))
        best, candidates = max(tried, key=lambda pair: pair[1])[0], len(tried)
    table = np.array(sorted(tried))
    _warn_if_same(table[:, 1], best)
    if fit == "ep":
        fit_ep(at(best))  # warns if its evidence or moments are wrong
    chosen = at(best)._tuned(*posterior.tuning, TuningRecord("prior", "pseudo-evidence", candidates))
    return PriorScaleChoice(chosen, best, table[:, 0], table[:, 1])


def _warn_if_same(evidence: Array, best: float) -> None:
    spread = np.ptp(evidence)
    if len(evidence) > 1 and spread <= _SAME:
        warnings.warn(
            f"the pseudo-evidence is the same at all scales (within {spread:.0e}), as with a loss that depends on the "
            f"direction of the coefficients only; the chosen scale {best:.4g} is arbitrary: keep that of the prior",
            ApproximationWarning,
            stacklevel=user_level(),
        )


def _folds(posterior: GibbsPosterior, k: int, rng: np.random.Generator) -> list[Index]:
    """Return random folds, balanced over the classes if there are two."""
    if not 2 <= k <= posterior.n:
        raise ModelError(f"folds={k}: expected between 2 and n = {posterior.n}")
    assert posterior.loss is not None
    if posterior.paired and posterior.y is not None:
        smaller = int(min((posterior.y > 0).sum(), (posterior.y <= 0).sum()))
        if smaller < k:  # a fold without pairs has no risk
            raise ModelError(f"folds={k}: the smaller class has {smaller} rows, and every fold needs one")
    order = rng.permutation(posterior.n)
    if posterior.loss.classification:
        assert posterior.y is not None
        order = order[np.argsort(posterior.y[order], kind="stable")]
    return [np.sort(order[f::k]) for f in range(k)]


def _without(n: int, fold: Index) -> Index:
    return np.setdiff1d(np.arange(n), fold)


def prediction_risk(posterior: GibbsPosterior, scores: Array) -> float:
    """Return the risk of mean scores ``(n,)``: misclassification, 1 − AUC, or the mean loss."""
    loss, y = posterior.loss, posterior.y
    assert loss is not None
    assert y is not None
    if posterior.paired:
        positive = y > 0
        n, pairs = len(y), positive.sum() * (~positive).sum()
        return float(auc_risk(scores[None], positive)[0] * n * (n - 1) / (2 * pairs))
    if loss.classification:
        return float((y * scores <= 0).mean())
    return float(loss.value(scores, y).mean())


def _fit(posterior: GibbsPosterior, fit: str, family: str) -> Any:
    if fit == "vi":
        return nearest_gaussian(posterior, family)
    return fixed_point(posterior)


class _Fitter(NamedTuple):
    """A method of fits at several rates; ``failed`` counts for every rate the fits of VI that did not converge."""

    fit: str
    family: str
    failed: Index

    def annealed(self, posterior: GibbsPosterior, rates: Array) -> Iterator[Any]:
        """Yield a fit at every rate, computed on request; None if EP did not converge."""
        last = None
        for column, rate in enumerate(rates):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ApproximationWarning)
                at = posterior.with_learning_rate(rate)
                if self.fit == "vi":
                    last = nearest_gaussian(at, self.family, initial=last, tolerance=TOLERANCE)
                else:
                    last = _fit(at, self.fit, self.family)
            self.failed[column] += self.fit == "vi" and not last.converged
            yield last if last.converged or self.fit == "vi" else None

    def path(self, posterior: GibbsPosterior, rates: Array) -> list[Any]:
        """Return a fit at every rate, each starting at the previous one; None if EP did not converge."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ApproximationWarning)
            if self.fit == "vi":
                largest = posterior.with_learning_rate(rates[-1])
                fits = fits_along(largest, ALIASES.get(self.family, self.family), rates[:-1], None, TOLERANCE)
                self.failed[:] += [not q.converged for q in fits]
                return fits
            fits = [_fit(posterior.with_learning_rate(rate), "ep", self.family) for rate in rates]
        return [q if q.converged else None for q in fits]


def _by_refits(posterior: GibbsPosterior, rates: Array, folds: list[Index], fitter: _Fitter) -> Array:
    """Return held-out risk ``(folds, rates)`` of VI on the other folds."""
    table = []
    for fold in folds:
        rest = posterior.subset(_without(posterior.n, fold))
        held_out = posterior.subset(fold)
        fits = fitter.path(rest, rates * rest.n / posterior.n)
        table.append([prediction_risk(held_out, held_out.scores(q.mean)[0]) for q in fits])
    return np.array(table)


def _by_cavities(posterior: GibbsPosterior, rates: Array, folds: list[Index], fitter: _Fitter) -> Array:
    """Return held-out risk ``(folds, rates)`` of EP with the sites of a fold removed; infinite if that fails."""
    table = np.full((len(folds), len(rates)), np.inf)
    owners = _site_owners(posterior)
    for column, q in enumerate(fitter.path(posterior, rates)):
        for row, fold in enumerate(folds):
            cavity = None if q is None else _cavity(q, np.asarray(np.isin(owners, fold).any(axis=1)))
            if cavity is not None:
                held_out = posterior.subset(fold)
                table[row, column] = prediction_risk(held_out, held_out.scores(cavity.mean)[0])
    return table


def _site_owners(posterior: GibbsPosterior) -> NDArray[np.integer]:
    """Return the observations of each site ``(sites, 1 or 2)``."""
    if not posterior.paired:
        return np.arange(posterior.n)[:, None]
    return np.stack(posterior._linear("cross-validation").all_pairs(), axis=1)


def _cavity(q: Any, removed: NDArray[np.bool_]) -> Gaussian | None:
    """Return EP's Gaussian without some of its sites; None if that is not proper."""
    design, prior = q.factors.design[removed], q.factors.prior
    tau, nu = q.sites.tau[removed], q.sites.nu[removed]
    shift = q.precision @ (q.mean - prior.mean) - design.T @ nu
    without = Gaussian.from_natural(q.precision - design.T @ (tau[:, None] * design), shift)
    return None if without is None else replace(without, mean=prior.mean + without.mean)


def _by_reweighting(
    posterior: GibbsPosterior, rates: Array, folds: list[Index], draws: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return held-out risk ``(folds, rates)`` and Pareto k ``(rates,)`` from one run of SMC, reweighted."""
    from ppl_backends.smc import sample_smc
    from ppl_backends.smc.ladder import reweight

    last = posterior.with_learning_rate(rates[-1])
    idata = sample_smc(last, draws=draws, chains=1, keep_ladder=True, random_seed=rng, progressbar=False)
    table, pareto_k = np.empty((len(folds), len(rates))), np.zeros(len(rates))
    for row, fold in enumerate(folds):
        rest, held_out = posterior.subset(_without(posterior.n, fold)), posterior.subset(fold)
        for column, rate in enumerate(rates):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SamplerWarning)
                sample = reweight(idata, model=rest.with_learning_rate(rate * rest.n / posterior.n))
            scores = sample.mean(held_out.scores(sample.x))
            table[row, column] = prediction_risk(held_out, scores)
            pareto_k[column] = max(pareto_k[column], _known_k(sample))
    return table, pareto_k


def _known_k(sample: Any) -> float:
    """Return the Pareto k of a reweighted sample, infinite where it cannot be fitted to uneven weights."""
    return float(np.nan_to_num(sample.pareto_k, nan=np.inf if sample.unreliable else 0.0, posinf=np.inf))


def _bounds(posterior: GibbsPosterior, rates: Array, fitter: _Fitter, options: dict[str, Any], stop: bool) -> Array:
    """Return the bound at every rate, with the number of rates in the bound if needed; or up to the first that rises."""
    choices = (*posterior.tuning, TuningRecord("learning rate", "bound", len(rates)))
    bounds = np.full(len(rates), np.inf)
    fits = (fitter.annealed if stop else fitter.path)(posterior, rates)
    for i, q in enumerate(fits):
        if q is not None:
            bounds[i] = certify(posterior.with_learning_rate(rates[i])._tuned(*choices), q, **options).bound
        if stop and i and bounds[i] > bounds[i - 1]:
            break
    return bounds


def _safe_bayes(posterior: GibbsPosterior, rates: Array, blocks: list[Index], fitter: _Fitter) -> Array:
    """Return mean expected loss of each block under the posterior of the blocks before it ``(blocks, rates)``."""
    if posterior.paired:
        raise ModelError("SafeBayes sums the losses of observations; use cross-validation for pair losses")
    prior = posterior.gaussian_prior
    if prior is None:
        raise ModelError("SafeBayes by VI or EP needs a Gaussian prior")
    table = np.empty((len(blocks), len(rates)))
    for row, block in enumerate(blocks):
        if row == 0:
            fits: list[Any] = [prior.normal] * len(rates)
        else:
            seen = posterior.subset(np.concatenate(blocks[:row]))
            fits = fitter.path(seen, rates * seen.n / posterior.n)
        new = posterior.subset(block)
        table[row] = [np.inf if q is None else expected_risk(new, q) for q in fits]
    return table

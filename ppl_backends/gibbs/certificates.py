r"""PAC-Bayes certificates: bounds on the risk of an approximation that are computed from the data.

Theorem 4.1 of Alquier, Ridgway & Chopin (2016): with probability at least 1 − ε over the data, at once for all ρ,

.. math:: \int R \,d\rho \le \int r_n \,d\rho + \frac{f(\lambda, n) + KL(\rho, \pi) + \log(1/\varepsilon)}{\lambda},

so that ρ may be any approximation, accurate or not, of the Gibbs posterior. The terms f, for a loss in [0, C], are:

* for means over independent observations, f = C²λ²/(2n); Hoeffding's lemma with its own constant gives C²λ²/(8n) (``sharp``);
* for means over ordered pairs, f = C²λ²/(n − 1); sharp C²λ²/(8⌊n/2⌋);
* for the hinge loss, which is unbounded, under a centred Gaussian prior N(0, S) and rows with √(xᵀSx) ≤ κ, known in advance,
  f = λ²/(4n) − (d/2) log(1 − κ²λ²/(2n)) for λ < √(2n)/κ.

The last one corrects Lemma 3 of the paper, which is printed with −½ in place of −d/2 and with a bound on single
entries of x: the Gaussian integral in its proof is over d coordinates, and |⟨θ, x⟩| ≤ ‖θ‖·‖x‖. It is vacuous at every
λ that learns from the data. Certify instead the error rate of a fit by the hinge loss with ``loss="zero_one"``; the
theorem covers it like that of any other ρ.

The kl-inverse bound (:mod:`~ppl_backends.gibbs.kl_inverse`) has the same assumptions, has no λ, and is smaller.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from ppl_backends.approximations.given import as_approximation
from ppl_backends.errors import ModelError
from ppl_backends.gibbs.gaussian_vi import GibbsVI, expected_risk
from ppl_backends.gibbs.kl_inverse import kl_inverse, log_moment, tangent
from ppl_backends.gibbs.losses import Hinge, PairLoss
from ppl_backends.gibbs.posterior import POSTERIOR, GibbsPosterior
from ppl_backends.options import approximation as approximation_option
from ppl_backends.options import checked, choice, flag, has_moments, integer, none, number
from ppl_backends.results.inference_data import (
    flat_draws,
    group,
    inference_data,
    is_inference_data,
    normalised_evidence_error,
)

MONTE_CARLO_SHARE = 0.1
"""Share of ε that is reserved for the error of an estimated pseudo-evidence."""


class Certificate(NamedTuple):
    """An upper bound on ∫ R dρ and its parts.

    Attributes
    ----------
    bound : float
        Upper bound on the mean risk of parameters drawn from ρ; vacuous if it is above the largest loss.
    epsilon : float
        The bound fails with at most this probability over the data.
    expected_risk : float
        ∫ r_n dρ.
    kl : float
        KL(ρ, π).
    deviation : float
        f(λ, n), or log ξ(m) of the kl-inverse bound; 0 for particles there.
    candidates : int
        Size of the grid from which λ and the prior were chosen, or only the prior for the kl-inverse bound;
        log(candidates) is part of the bound.
    learning_rate : float
    n : int
    about : str
        A description of ρ.
    predictor_bound : float
        Upper bound on the risk of one predictor: twice ``bound`` for the majority vote over a Gaussian under the 0–1 loss
        (the sign of the mean score), ``bound`` itself at the mean of ρ for a convex loss, else NaN.
    assumptions : tuple of str
        Assumptions of the bound; nothing here checks them.
    inequality : {"linear", "kl"}
    class_bound : float
        For pairs and a Gaussian, with ``inequality="kl"``: upper bound on the mean risk of a pair with one row of each
        class, which is 1 − AUC under the 0–1 loss. It is not 2n₊n₋/(n(n − 1)) times ``bound`` but a separate bound,
        given the numbers of rows of each class. Else NaN.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import GibbsPosterior, certify, fit_gibbs_vi
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = np.sign(X @ [1.0, -1.0] + 0.3 * rng.normal(size=60))
    >>> posterior = GibbsPosterior((0.0, 1.0), "zero_one", X, y, learning_rate=60.0)
    >>> found = certify(posterior, fit_gibbs_vi(posterior, family="diagonal"))
    >>> found.epsilon, bool(found.expected_risk < found.bound), found.candidates
    (0.05, True, 1)
    """

    bound: float
    epsilon: float
    expected_risk: float
    kl: float
    deviation: float
    candidates: int
    learning_rate: float
    n: int
    about: str
    predictor_bound: float
    assumptions: tuple[str, ...]
    inequality: str = "linear"
    class_bound: float = float("nan")

    def __str__(self) -> str:
        name = {"linear": "f", "kl": "log ξ"}[self.inequality]
        lines = [
            f"With probability at least {1 - self.epsilon:g} over the data, the mean risk of {self.about} is at most "
            f"{self.bound:.4f}",
            f"(empirical {self.expected_risk:.4f}, KL {self.kl:.4g} nats, {name} {self.deviation:.4g}, "
            f"log(candidates/ε) {np.log(self.candidates / self.epsilon):.4g}, λ {self.learning_rate:.6g}, n {self.n}).",
            *([f"Pairs of the two classes: at most {self.class_bound:.4f}."] if np.isfinite(self.class_bound) else []),
            "Assumed:",
            *(f"* {assumption}" for assumption in self.assumptions),
        ]
        return "\n".join(lines)


@checked(
    posterior=POSTERIOR,
    approximation=approximation_option() | inference_data("posterior"),
    inequality=choice("linear", "kl"),
    epsilon=number(above=0, below=1),
    sharp=flag,
    candidates=none | integer(1),
    feature_bound=none | number(above=0),
)
def certify(
    posterior: GibbsPosterior,
    approximation: Any,
    *,
    inequality: str = "linear",
    loss: Any = None,
    epsilon: float = 0.05,
    sharp: bool = False,
    candidates: int | None = None,
    feature_bound: float | None = None,
) -> Certificate:
    """Return the PAC-Bayes bound on the risk of an approximation of a Gibbs posterior.

    Parameters
    ----------
    posterior : GibbsPosterior
        Its λ, prior and loss enter the bound.
    approximation : Gaussian approximation or result of :func:`~ppl_backends.sample_smc`
        A Gaussian with ``mean`` and ``cov`` (VI, EP, Laplace on the posterior, or any other). For an SMC result ρ is
        the Gibbs posterior itself, and the bound follows from the pseudo-evidence.
    inequality : {"linear", "kl"}
        ``"linear"`` is the theorem of Alquier, Ridgway & Chopin (2016), 1/λ times a penalty added to the empirical
        risk. ``"kl"`` inverts the divergence of the empirical from the true risk (Seeger 2002; Maurer 2004). It is
        usually smaller, and valid for any λ, chosen in any way; both include a choice of the prior. For particles,
        whose KL is known only through λ, it is Catoni's bound (2007) at that λ, which is also smaller than the linear
        one.
    loss : str or Loss, optional
        The loss to certify, if it is not the loss of the posterior: ``"zero_one"`` for the error rate of a Gaussian
        that was fitted by the hinge or the logistic loss, ``"auc"`` for the wrong order of pairs of one fitted by
        ``"auc_hinge"``.
    epsilon : float
        Probability with which the bound may fail.
    sharp : bool
        For the linear bound: whether to use Hoeffding's lemma with its own constant, at most a quarter of the published f.
    candidates : int, optional
        Number of pairs (λ, prior), or of priors for ``inequality="kl"``, from which this one was chosen on the same
        data; they must have been fixed before seeing the data. The bound is then valid for all of them at once. By
        default the number that the choosing functions of this package recorded.
    feature_bound : float, optional
        For the hinge loss itself: κ with √(xᵀSx) ≤ κ for all rows x that can occur, S the prior covariance.

    Returns
    -------
    Certificate

    Raises
    ------
    ModelError
        If the theorem does not apply: an unbounded loss, a prior or λ tuned on the same data outside a fixed grid, or
        an approximation without an exact KL.

    References
    ----------
    Alquier, Ridgway & Chopin (2016), On the properties of variational approximations of Gibbs posteriors. JMLR 17.
    Maurer (2004), A note on the PAC Bayesian theorem. Catoni (2007), PAC-Bayesian supervised classification.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import fit_gibbs_vi
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> y = np.sign(X @ [1.0, -1.0] + 0.3 * rng.normal(size=500))
    >>> posterior = GibbsPosterior((0.0, 1.0), "zero_one", X, y, learning_rate=100.0)
    >>> q = fit_gibbs_vi(posterior, family="diagonal")
    >>> linear, kl = (certify(posterior, q, inequality=kind) for kind in ("linear", "kl"))
    >>> round(linear.expected_risk, 2), round(linear.bound, 2), round(kl.bound, 2)
    (0.06, 0.22, 0.12)
    """
    if sharp and inequality == "kl":
        raise ModelError("sharp=True is an option of inequality='linear'; the kl-inverse bound has no f")
    particles = is_inference_data(approximation)
    if loss is not None:
        if particles:
            raise ModelError(
                "loss= is for Gaussians: the KL of particles is known only for the loss they were drawn with"
            )
        posterior = posterior.with_loss(loss)
    free = inequality == "kl" and not particles  # whether the bound is valid for all λ at once
    count = _candidates(posterior, candidates, free)
    assumptions: tuple[str, ...] = ()
    if particles:
        share, about = 1 - MONTE_CARLO_SHARE, "the Gibbs posterior (which the particles represent)"
        risk, kl, surplus = _from_smc(posterior, approximation, MONTE_CARLO_SHARE * epsilon)
        assumptions = (
            f"the estimate of the pseudo-evidence is normal or Student t about its value; {MONTE_CARLO_SHARE:.0%} of ε is "
            "reserved for its error",
        )
    elif has_moments(approximation):
        share, surplus = 1.0, 0.0
        about = f"the Gaussian ({as_approximation(approximation).method})"
        risk, kl = _from_gaussian(posterior, approximation)
    else:
        kind = type(approximation).__name__
        raise ModelError(f"approximation={kind}: expected a Gaussian with mean and cov, or an SMC result")
    nats = kl + surplus + float(np.log(count / (share * epsilon)))
    if inequality == "kl":
        bound, deviation, needed = _kl_bound(posterior, risk, nats, particles)
    else:
        deviation, needed = _deviation(posterior, sharp, feature_bound)
        bound = risk + (deviation + nats) / posterior.learning_rate
    return Certificate(
        float(bound),
        float(epsilon),
        float(risk),
        float(kl),
        float(deviation),
        count,
        posterior.learning_rate,
        posterior.n,
        about,
        _of_predictor(posterior, float(bound)),
        needed + assumptions + (_fixed(count, free),),
        inequality,
        _class_bound(posterior, risk, nats) if free and posterior.paired else float("nan"),
    )


def _fixed(count: int, free: bool) -> str:
    """Return the assumption that a part of a posterior does not depend on the data."""
    what = "the prior was" if free else "λ and the prior were"
    if count > 1:
        return f"{what} chosen from {count} candidates that were fixed before seeing the data"
    return f"{what} fixed before seeing the data, and so was every scaling of X"


def _candidates(posterior: GibbsPosterior, given: int | None, free: bool) -> int:
    """Return the size of the grid in the bound; raise an error for choices that no grid covers."""
    recorded = 1
    for made in posterior.tuning:
        if free and made.what == "learning rate":
            continue
        if made.candidates is None:
            if given is None:
                raise ModelError(
                    f"the {made.what} was chosen on the same data by {made.how}, outside a grid fixed in advance: no "
                    "certificate holds; choose from a grid, split the data, or fix it in advance"
                )
            continue
        recorded *= made.candidates
    if given is not None and given < recorded:
        raise ModelError(f"candidates={given}: the choices recorded were from {recorded}")
    return recorded if given is None else int(given)


def _kl_bound(
    posterior: GibbsPosterior, risk: float, nats: float, particles: bool
) -> tuple[float, float, tuple[str, ...]]:
    """Return the kl-inverse bound, log ξ(m) and the assumptions; for particles its tangent at λ, by log Z = −λ r − KL."""
    largest, assumptions = _bounded(posterior)
    m = posterior.n // 2 if posterior.paired else posterior.n
    if particles:
        deviation, rate = 0.0, posterior.learning_rate * largest
        bound = tangent(rate * risk / largest + nats, rate, m)
    else:
        deviation = log_moment(m)
        bound = kl_inverse(risk / largest, (nats + deviation) / m)
    return min(1.0, bound) * largest, deviation, assumptions


def _class_bound(posterior: GibbsPosterior, risk: float, nats: float) -> float:
    """Return the kl-inverse bound over pairs of the two classes; the smaller class gives the number of independent pairs."""
    linear, (largest, _) = posterior._linear("certify"), _bounded(posterior)
    pairs, m = len(linear.above) * len(linear.below), min(len(linear.above), len(linear.below))
    share = risk * posterior.n * (posterior.n - 1) / (2 * pairs * largest)
    return largest * kl_inverse(share, (nats + log_moment(m)) / m)


def _bounded(posterior: GibbsPosterior) -> tuple[float, tuple[str, ...]]:
    """Return the largest loss, and the assumptions of its bound."""
    loss = posterior.loss
    if loss is None:
        raise ModelError("no certificate: it is not known whether the loss of this posterior is bounded")
    if loss.bound is None:
        inner = loss.inner if isinstance(loss, PairLoss) else loss
        target = "auc" if posterior.paired else "zero_one"
        hint = f"; loss={target!r} certifies the 0–1 risk of the same Gaussian" if inner.classification else ""
        if isinstance(loss, Hinge):
            hint += (
                ", feature_bound=, a bound on √(xᵀSx) known in advance, the hinge loss itself with inequality='linear'"
            )
        raise ModelError(f"no certificate: the {loss.name} loss is not bounded{hint}")
    return loss.bound, ("independent and identically distributed rows", f"a loss between 0 and {loss.bound:g}")


def _deviation(posterior: GibbsPosterior, sharp: bool, feature_bound: float | None) -> tuple[float, tuple[str, ...]]:
    """Return f(λ, n) and its assumptions."""
    if isinstance(posterior.loss, Hinge) and feature_bound is not None:
        return _hinge_deviation(posterior, float(feature_bound))
    largest, assumptions = _bounded(posterior)
    n, squared = posterior.n, (largest * posterior.learning_rate) ** 2
    if posterior.paired:
        return (squared / (8 * (n // 2)) if sharp else squared / (n - 1)), assumptions
    return (squared / (8 * n) if sharp else squared / (2 * n)), assumptions


def _hinge_deviation(posterior: GibbsPosterior, kappa: float) -> tuple[float, tuple[str, ...]]:
    prior, n, rate = posterior.gaussian_prior, posterior.n, posterior.learning_rate
    if prior is None or np.any(prior.gaussian.mean != 0):
        raise ModelError("the certificate of the hinge loss is for a centred Gaussian prior N(0, S)")
    risk = posterior._linear("certify")
    if np.any(risk.offset != 0):
        raise ModelError("the certificate of the hinge loss is for scores without an offset")
    largest = float(np.sqrt(np.einsum("nd,de,ne->n", risk.X, prior.covariance, risk.X)).max())
    if largest > kappa:
        raise ModelError(f"feature_bound={kappa:g} is below √(xᵀSx) of a row; give at least {largest:.4g}")
    share = kappa**2 * rate**2 / (2 * n)
    if share >= 1:
        raise ModelError(
            f"λ={rate:g} is too large for a certificate of the hinge loss; take one below {(2 * n) ** 0.5 / kappa:.4g}"
        )
    deviation = rate**2 / (4 * n) - 0.5 * prior.dim * np.log1p(-share)
    return float(deviation), (
        "independent and identically distributed rows",
        f"√(xᵀSx) ≤ {kappa:g} for every row that can occur, S the prior covariance; known before seeing the data",
    )


def _from_gaussian(posterior: GibbsPosterior, q: Any) -> tuple[float, float]:
    """Return exact expected risk and KL of a Gaussian under a Gaussian prior."""
    prior = posterior.gaussian_prior
    if prior is None:
        raise ModelError("the KL of a Gaussian approximation is exact under a Gaussian prior only; certify an SMC run")
    approximation = as_approximation(q)
    if approximation.representation == "mixture":
        raise ModelError("no exact KL is known for a mixture; certify a Gaussian or an SMC run")
    if approximation.dim != posterior.dim:
        raise ModelError(
            f"the approximation has {approximation.dim} coordinates, and the posterior has {posterior.dim}"
        )
    gaussian = approximation.gaussian
    kl = gaussian.kl_to(prior.normal)
    if isinstance(q, GibbsVI) and q.posterior._risk is posterior._risk:
        return q.expected_risk, kl  # of the same loss and data, whatever λ
    return expected_risk(posterior, gaussian), kl


def _from_smc(posterior: GibbsPosterior, idata: Any, share: float) -> tuple[float, float, float]:
    """Return expected risk, KL and the term that makes −log Ẑ a bound on −log Z except with probability ``share``."""
    attrs = group(idata, "posterior").attrs
    if "log_evidence" not in attrs or not attrs.get("log_evidence_trusted", 1):
        raise ModelError("no certificate: the run has no pseudo-evidence that can be trusted")
    if "SMC" not in str(attrs.get("method", "")):
        raise ModelError("draws alone have no KL; certify a Gaussian approximation, or a run of sample_smc")
    log_z = float(attrs["log_evidence"]) - float(attrs.get("log_prior_normalizer", 0.0))
    error, df = normalised_evidence_error(attrs), float(attrs.get("log_evidence_df", np.nan))
    quantile = norm.ppf(1 - share) if not np.isfinite(df) else student.ppf(1 - share, df)
    values = {name: draws.astype(np.float64) for name, draws in flat_draws(idata).items()}
    risk = float(posterior.risk(posterior.unconstrain(values)).mean())
    kl = -posterior.learning_rate * risk - log_z
    if kl < -3 * error - 0.5:
        raise ModelError(f"the run is not one of this posterior: λ E[r_n] + log Z = {-kl:.3g} is positive")
    return risk, kl, float(quantile * error)


def _of_predictor(posterior: GibbsPosterior, bound: float) -> float:
    if posterior.loss is None:
        return float("nan")
    if posterior.loss.name == "zero_one":
        return min(1.0, 2 * bound)
    return bound if posterior.loss.convex else float("nan")

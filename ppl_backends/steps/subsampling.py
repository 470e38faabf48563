"""Steps that look at a subset of the observations: control variates, informed subsets, and exact ones."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.mcmc.algorithm import Algorithm
from ppl_backends.mcmc.subsampling import control
from ppl_backends.mcmc.subsampling.check import mean_error
from ppl_backends.mcmc.subsampling.exact import Scalable, Tuna
from ppl_backends.mcmc.subsampling.informed import FEWEST_SWAPS, Informed, curvature_variance
from ppl_backends.mcmc.subsampling.rows import Rows, make_rows
from ppl_backends.steps.specification import Step
from ppl_backends.targets.protocol import BaseTarget

__all__ = [
    "InformedSubsampling",
    "ScalableMetropolis",
    "SubsampledHMC",
    "SubsampledMetropolis",
    "TunaMetropolis",
]

DEFAULT_SUBSET = 1000
SPREAD = 0.3
HESSIAN_ERROR = 0.05  # that the automatic size of informed subsets allows
PAIRS = 10  # full passes for the estimate of E|a − â|


class _SubsamplingStep(Step):
    """A step that never evaluates all data at once."""

    def make_target(self, model: Any) -> BaseTarget:
        """The target of a ``pm.Model``."""
        from ppl_backends.steps.adapter import forkable_target

        return forkable_target(model, prior_alone=True)


class SubsampledMetropolis(_SubsamplingStep):
    """Metropolis on an estimated log likelihood. Approximate.

    Parameters
    ----------
    vars : list of variables or names, optional
        The block to move, all by default. A block's step runs in Python, the full one is compiled where it can be.
    subset : int, optional
        Rows a step. By default as many as make the variance of the estimate about one or less, at least 20.
    estimator : {"control_variates", "uniform", "sequential"}
        Second-order control variates with a bias correction; plain uniform subsets (a baseline whose posterior is far too
        wide); or a sequential test on growing subsets (Korattikara, Chen & Welling 2014).
    proposal : {"random_walk", "independent"}
        Of control variates: (2.38²/d) Σ about the current point, or the Laplace approximation itself.
    steps : int
        Steps of control variates a draw: they cost microseconds where every row has one linear predictor of a known
        family, and PyMC's own loop a hundred.
    tolerance : float
        Probability of a wrong decision that the sequential test allows.
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
        Its mean is the pilot that the control variates expand about.
    model : pm.Model, optional

    References
    ----------
    Quiroz, M., Kohn, R., Villani, M. and Tran, M.-N. (2019). Speeding up MCMC by efficient data subsampling. *JASA* 114.
    """

    def __init__(
        self,
        vars: Any = None,
        *,
        subset: int | None = None,
        estimator: str = "control_variates",
        proposal: str = "random_walk",
        steps: int = 10,
        tolerance: float = 0.01,
        approximation: Any = "laplace",
        model: Any = None,
    ) -> None:
        _check_choice("estimator", estimator, ("control_variates", "uniform", "sequential"))
        _check_choice("proposal", proposal, ("random_walk", "independent"))
        _check_subset(subset)
        _check_steps(steps)
        if not 0 < tolerance < 0.5:
            raise ModelError(f"tolerance={tolerance!r}: expected a probability below 0.5")
        self.subset, self.estimator, self.proposal = subset, estimator, proposal
        self.steps, self.tolerance, self.approximation = steps, tolerance, approximation

    def bind(self, target: BaseTarget) -> Algorithm:
        """The algorithm on ``target``."""
        rows, rng = make_rows(target, self.approximation), np.random.default_rng(0)
        subset, variance = _subset_of(rows, self.subset, rng)
        algorithm: Any
        if self.estimator == "uniform":
            algorithm = control.UniformMetropolis(rows, min(rows.n, self.subset or 1000))
        elif self.estimator == "sequential":
            algorithm = control.SequentialMetropolis(rows, max(subset, 50), tolerance=self.tolerance)
        else:
            independent = self.proposal == "independent"
            algorithm = control.ControlVariateMetropolis(rows, subset, independent=independent, steps=self.steps)
        algorithm.attributes["single_row_variance"] = variance
        _announce(algorithm, rng)
        return algorithm


class SubsampledHMC(_SubsamplingStep):
    """Energy-conserving HMC on an estimated log likelihood with control variates (Dang et al. 2019). Approximate.

    Parameters
    ----------
    vars : list of variables or names, optional
    subset : int, optional
    path_length : float
        εL, in posterior standard deviations.
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
    model : pm.Model, optional
    """

    def __init__(
        self,
        vars: Any = None,
        *,
        subset: int | None = None,
        path_length: float = 1.0,
        approximation: Any = "laplace",
        model: Any = None,
    ) -> None:
        _check_subset(subset)
        self.subset, self.path_length, self.approximation = subset, path_length, approximation

    def bind(self, target: BaseTarget) -> Algorithm:
        """The algorithm on ``target``."""
        rows, rng = make_rows(target, self.approximation), np.random.default_rng(0)
        subset, variance = _subset_of(rows, self.subset, rng)
        algorithm = control.ControlVariateHmc(rows, subset, self.path_length)
        algorithm.attributes["single_row_variance"] = variance
        _announce(algorithm, rng)
        return algorithm


class ScalableMetropolis(_SubsamplingStep):
    """Scalable Metropolis–Hastings with second-order control variates (Cornish et al. 2019). Exact.

    For models whose rows have one linear predictor each, of a logit, probit or normal family.

    Parameters
    ----------
    vars : list of variables or names, optional
    proposal : {"random_walk", "independent"}
    steps : int
        Steps a draw.
    approximation : {"laplace", "ep"} or approximation
    model : pm.Model, optional
    """

    def __init__(
        self,
        vars: Any = None,
        *,
        proposal: str = "random_walk",
        steps: int = 10,
        approximation: Any = "laplace",
        model: Any = None,
    ) -> None:
        _check_choice("proposal", proposal, ("random_walk", "independent"))
        _check_steps(steps)
        self.proposal, self.steps, self.approximation = proposal, steps, approximation

    def bind(self, target: BaseTarget) -> Algorithm:
        """The algorithm on ``target``."""
        independent = self.proposal == "independent"
        return _compiled(Scalable(make_rows(target, self.approximation), independent=independent, steps=self.steps))


class TunaMetropolis(_SubsamplingStep):
    """TunaMH (Zhang, Cooper & De Sa 2020): Poisson minibatches, exact, for logit models.

    With bounds ‖aᵢ‖ on the slopes its minibatches grow with the data: exact, not fast.

    Parameters
    ----------
    vars : list of variables or names, optional
    chi : float
        χ of the paper.
    scale : float, optional
        Of the random walk, half the calibrated one by default.
    approximation : {"laplace", "ep"} or approximation
        Its covariance shapes the proposals.
    model : pm.Model, optional
    """

    def __init__(
        self,
        vars: Any = None,
        *,
        chi: float = 0.01,
        scale: float | None = None,
        approximation: Any = "laplace",
        model: Any = None,
    ) -> None:
        if not chi > 0:
            raise ModelError(f"chi={chi!r}: expected a positive number")
        self.chi, self.scale, self.approximation = chi, scale, approximation

    def bind(self, target: BaseTarget) -> Algorithm:
        """The algorithm on ``target``."""
        return _compiled(Tuna(make_rows(target, self.approximation), self.chi, self.scale))


class InformedSubsampling(_SubsamplingStep):
    """Informed sub-sampling MCMC: subsets chosen by their summary statistics (Maire, Friel & Alquier 2019). Approximate.

    Parameters
    ----------
    vars : list of variables or names, optional
    subset : int, optional
        Rows of a subset, n. By default at least 1,000 and as many as keep the error of the Hessian at 5 %; without the
        gradient correction at least √(2Nd)/(2.38 s), where single swaps mix: on fewer rows subsets stand still.
    spread : float, optional
        s: standard deviation, in posterior standard deviations, of the shifts of the mode that subsets may cause. The
        posterior's sds are inflated by √(1 + s²). Infinite: uniform subsets. By default 0.3, and infinite with the
        gradient correction, which takes the shifts out.
    correction : {"auto", "gradient", None}
        Whether the subset's gradient at the pilot is set right; ``"auto"`` where the subset is too small to mix otherwise.
    swaps : int, optional
        Swap proposals a step; automatic by default.
    summary : array (N, k) or callable, optional
        Summary statistics of the rows, or a function of the target that returns them, in place of the scores. They must
        identify the subset's *likelihood*: for a regression Σ x y alone does not.
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
        Its mean is the pilot where the scores are taken.
    model : pm.Model, optional
    """

    def __init__(
        self,
        vars: Any = None,
        *,
        subset: int | None = None,
        spread: float | None = None,
        correction: str | None = "auto",
        swaps: int | None = None,
        summary: Any = None,
        approximation: Any = "laplace",
        model: Any = None,
    ) -> None:
        _check_subset(subset)
        if spread is not None and not spread > 0:
            raise ModelError(f"spread={spread!r}: expected a positive number of posterior standard deviations")
        if correction not in ("auto", "gradient", None):
            raise ModelError(f"correction={correction!r}: expected 'auto', 'gradient' or None")
        self.subset, self.spread, self.correction = subset, spread, correction
        self.swaps, self.summary, self.approximation = swaps, summary, approximation

    def bind(self, target: BaseTarget) -> Algorithm:
        """The algorithm on ``target``."""
        rows, rng = make_rows(target, self.approximation), np.random.default_rng(0)
        spread, subset = SPREAD if self.spread is None else self.spread, self.subset
        healthy = np.sqrt(2 * rows.n * rows.dim) / (2.38 * min(spread, np.sqrt(rows.n)))
        if subset is None:
            curved = curvature_variance(rows, rng) / HESSIAN_ERROR**2
            wanted = max(DEFAULT_SUBSET if self.correction else healthy, curved)
            subset = min(rows.n // 2, int(np.ceil(wanted)))
        if subset >= rows.n:
            raise ModelError(f"subset={subset}: the model has {rows.n} observations; use RandomWalk")
        small = subset < healthy and np.isfinite(spread)
        corrected = self.correction == "gradient" or (self.correction == "auto" and bool(small))
        if corrected and self.spread is None:
            spread = np.inf  # nothing is left for weights to do
        algorithm = Informed(
            rows,
            subset,
            spread=spread,
            rng=rng,
            swaps=self.swaps,
            corrected=corrected,
            summaries=_summaries(self.summary, target, rows.n),
        )
        moves = algorithm.swaps * algorithm.swap_rate
        if small and not corrected and moves < FEWEST_SWAPS:
            warnings.warn(
                f"subsets of {subset} rows hardly move: {moves:.2g} accepted swaps a step, below the healthy size of "
                f"{healthy:.0f} rows; look at the ESS of z_first, or use correction='gradient'",
                SamplerWarning,
                stacklevel=3,
            )
        _announce(algorithm, rng)
        return algorithm


def _summaries(summary: Any, target: BaseTarget, n: int) -> Any:
    """User summaries, whitened on the scale of the scores: √N per standard deviation of a row."""
    if summary is None:
        return None
    values = np.asarray(summary(target) if callable(summary) else summary, dtype=np.float64)
    if values.ndim != 2 or len(values) != n:
        raise ModelError(f"summary has shape {values.shape}; expected ({n}, k), a row for each observation")
    centred = values - values.mean(axis=0)
    root = np.linalg.cholesky(np.cov(centred.T, ddof=0).reshape(values.shape[1], -1) + 1e-12 * np.eye(values.shape[1]))
    return np.sqrt(n) * np.linalg.solve(root, centred.T).T


def _subset_of(rows: Rows, asked: int | None, rng: np.random.Generator) -> tuple[int, float]:
    subset, variance = control.choose_subset_size(getattr(rows, "whole", rows), rng)
    return (subset if asked is None else min(asked, rows.n)), variance


def _compiled(algorithm: Any) -> Any:
    """The algorithm after one step, so that forked workers find everything compiled."""
    rng = np.random.default_rng(0)
    algorithm.step(algorithm.start(algorithm.initial_point(rng), rng), rng, False)
    return algorithm


def _announce(algorithm: Any, rng: np.random.Generator) -> None:
    """The warning that an approximate step gives, with its figure."""
    _compiled(algorithm)
    points = np.array([algorithm.rows.pilot.draw(rng) for _ in range(PAIRS)])
    estimated, exact = mean_error(algorithm, points, rng)
    error = float(np.abs(estimated - exact).mean())
    algorithm.attributes["acceptance_error_at_start"] = error
    warnings.warn(
        f"{algorithm.name} is approximate: E|a − â| is about {error:.2g} over {PAIRS} moves about the mode; for a chain that "
        f"mixes, the error in total variation is at most a multiple of it{_predicted(algorithm)}",
        SamplerWarning,
        stacklevel=4,
    )


def _predicted(algorithm: Any) -> str:
    """What theory says of informed subsets."""
    if not isinstance(algorithm, Informed):
        return ""
    error = algorithm.attributes["hessian_error"]
    if algorithm.corrected:
        return f"; sds are right to about {100 * error:.2g} %"
    return f"; sds are too wide by a factor of about {algorithm.inflation:.3g}, and right to {100 * error:.2g} % beside that"


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ModelError(f"{name}={value!r}: expected one of {', '.join(map(repr, allowed))}")


def _check_steps(steps: int) -> None:
    if not isinstance(steps, (int, np.integer)) or steps < 1:
        raise ModelError(f"steps={steps!r}: expected at least 1 step a draw")


def _check_subset(subset: int | None) -> None:
    if subset is not None and (not isinstance(subset, (int, np.integer)) or subset < 2):
        raise ModelError(f"subset={subset!r}: expected at least 2 rows")

"""Steps that use a subset of the observations: control variates, informed subsets, and exact ones."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from ppl_backends.approximations.resolve import resolve_approximation
from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.kernels.subsampling import control
from ppl_backends.kernels.subsampling.exact import Scalable, Tuna
from ppl_backends.kernels.subsampling.informed import FEWEST_SWAPS, Informed, curvature_variance
from ppl_backends.kernels.subsampling.kernel import RowsAlgorithm, RowsKernel
from ppl_backends.kernels.subsampling.rows import Rows, make_rows
from ppl_backends.kernels.subsampling.sufficient import sufficient_statistics
from ppl_backends.options import array, checked, choice, function, integer, none, number
from ppl_backends.steps.calibrated import APPROXIMATION
from ppl_backends.steps.specification import Step
from ppl_backends.targets.protocol import BaseTarget

SUBSET = none | integer(2)
DEFAULT_SUBSET = 1000
SPREAD = 0.3
HESSIAN_ERROR = 0.05  # largest error at the automatic size of informed subsets
COLLINEAR = 1e-10  # share of the largest variance below which a combination of summary statistics is rounding error
WORST_VARIANCE = 1.5  # largest variance of the estimated log likelihood without a warning
MANY_ROWS = 10_000  # above which a step on a subset should avoid passes over all rows
PAIRS = 10  # full passes for the estimate of E|a − â|


def rows_of(target: BaseTarget, approximation: Any = "laplace") -> Rows:
    """Return the rows of a target, or of a block, about the mode of an approximation."""
    if not isinstance(approximation, str):
        approximation = resolve_approximation(target.full, approximation)  # errors come before the target is evaluated
    own_mode = isinstance(approximation, str) and approximation == "laplace"
    return make_rows(target, partial(resolve_approximation, approximation=approximation), own_mode)


class _SubsamplingStep(Step):
    """A step that never evaluates all data at once."""

    approximation: Any

    def make_target(self, model: Any) -> BaseTarget:
        from ppl_backends.steps.adapter import forkable_target

        return forkable_target(model, prior_alone=True)

    def rows_of(self, target: BaseTarget) -> Rows:
        """Return the observations of a target; warn if other steps have to move some of its variables."""
        rows = rows_of(target, self.approximation)
        if len(target.others) and rows.n >= MANY_ROWS:
            names = [target.full.names[j] for j in target.others]
            others = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            warnings.warn(
                f"this step does not move {others}, and PyMC's own step for them evaluates all {rows.n:,} rows at every "
                "draw: leave out vars, so that this step moves all variables, or move the others on a subset too",
                SamplerWarning,
                stacklevel=user_level(),
            )
        return rows


class SubsampledMetropolis(_SubsamplingStep):
    """Metropolis on an estimated log likelihood. Approximate.

    Parameters
    ----------
    vars : list of variables or names, optional
        The block to move; all variables by default. A block's step runs in Python, the full one is compiled if possible.
    subset : int, optional
        Rows per step. By default the number for which the estimate has a variance of about one or less, at least 20.
    estimator : {"control_variates", "uniform", "sequential"}
        Second-order control variates with a bias correction; plain uniform subsets (a baseline whose posterior is far too
        wide); or a sequential test on growing subsets (Korattikara, Chen & Welling 2014).
    proposal : {"random_walk", "independent"}
        For control variates: (2.38²/d) Σ about the current point, or the Laplace approximation itself.
    steps : int
        Steps of control variates per draw. Each costs microseconds if every row has one linear predictor of a known
        family, while PyMC's loop costs a hundred.
    tolerance : float
        Probability of a wrong decision that the sequential test allows.
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
        Its mean is the expansion point of the control variates.
    model : pm.Model, optional

    Examples
    --------
    >>> import warnings, numpy as np, ppl_backends as pb
    >>> from ppl_backends.approximations.ep import Factors, FactorsTarget, Logit
    >>> rng = np.random.default_rng(0)
    >>> design, y = np.c_[np.ones(500), rng.normal(size=500)], rng.integers(0, 2, 500)
    >>> target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, 1.0))
    >>> step = pb.steps.SubsampledMetropolis(subset=100)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # it is approximate, and says so
    ...     idata = pb.sample_mcmc(target, step=step, draws=50, tune=50, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'approximate'

    References
    ----------
    Quiroz, M., Kohn, R., Villani, M. and Tran, M.-N. (2019). Speeding up MCMC by efficient data subsampling. *JASA* 114.
    """

    @checked(
        subset=SUBSET,
        estimator=choice("control_variates", "uniform", "sequential"),
        proposal=choice("random_walk", "independent"),
        steps=integer(1),
        tolerance=number(above=0, below=0.5),
        approximation=APPROXIMATION,
    )
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
        self.subset, self.estimator, self.proposal = subset, estimator, proposal
        self.steps, self.tolerance, self.approximation = steps, tolerance, approximation

    def bind(self, target: BaseTarget) -> RowsAlgorithm:
        rows, rng = self.rows_of(target), np.random.default_rng(0)
        subset, variance = _subset_of(rows, self.subset, rng)
        kernel: RowsKernel
        if self.estimator == "uniform":
            kernel = control.UniformMetropolis(rows, min(rows.n, self.subset or 1000))
        elif self.estimator == "sequential":
            kernel = control.SequentialMetropolis(rows, max(subset, 50), tolerance=self.tolerance)
        else:
            independent = self.proposal == "independent"
            _warn_of_variance(subset, variance, rows.n)
            kernel = control.ControlVariateMetropolis(rows, subset, independent=independent, steps=self.steps)
        kernel.attributes["single_row_variance"] = variance
        return _announced(RowsAlgorithm(kernel), rng)


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

    Examples
    --------
    >>> import warnings, numpy as np, ppl_backends as pb
    >>> from ppl_backends.approximations.ep import Factors, FactorsTarget, Logit
    >>> rng = np.random.default_rng(0)
    >>> design, y = np.c_[np.ones(500), rng.normal(size=500)], rng.integers(0, 2, 500)
    >>> target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, 1.0))
    >>> step = pb.steps.SubsampledHMC(subset=100)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # it is approximate, and says so
    ...     idata = pb.sample_mcmc(target, step=step, draws=50, tune=50, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'approximate'
    """

    @checked(subset=SUBSET, path_length=number(above=0), approximation=APPROXIMATION)
    def __init__(
        self,
        vars: Any = None,
        *,
        subset: int | None = None,
        path_length: float = 1.6,
        approximation: Any = "laplace",
        model: Any = None,
    ) -> None:
        self.subset, self.path_length, self.approximation = subset, path_length, approximation

    def bind(self, target: BaseTarget) -> RowsAlgorithm:
        rows, rng = self.rows_of(target), np.random.default_rng(0)
        subset, variance = _subset_of(rows, self.subset, rng)
        _warn_of_variance(subset, variance, rows.n)
        kernel = control.ControlVariateHmc(rows, subset, self.path_length)
        kernel.attributes["single_row_variance"] = variance
        return _announced(RowsAlgorithm(kernel), rng)


class ScalableMetropolis(_SubsamplingStep):
    """Scalable Metropolis–Hastings with second-order control variates (Cornish et al. 2019). Exact.

    For models whose rows have one linear predictor each, of a logit, probit or normal family.

    Parameters
    ----------
    vars : list of variables or names, optional
    proposal : {"random_walk", "independent"}
    steps : int
        Steps per draw.
    approximation : {"laplace", "ep"} or approximation
    model : pm.Model, optional

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.targets.factors import Factors, FactorsTarget, Logit
    >>> rng = np.random.default_rng(0)
    >>> design, y = np.c_[np.ones(2000), rng.normal(size=2000)], rng.integers(0, 2, 2000)
    >>> target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, 1.0))
    >>> step = pb.steps.ScalableMetropolis()
    >>> idata = pb.sample_mcmc(target, step=step, draws=500, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"], bool(idata.sample_stats["rows"].mean() < 500)
    ('exact', True)
    """

    @checked(proposal=choice("random_walk", "independent"), steps=integer(1), approximation=APPROXIMATION)
    def __init__(
        self,
        vars: Any = None,
        *,
        proposal: str = "random_walk",
        steps: int = 10,
        approximation: Any = "laplace",
        model: Any = None,
    ) -> None:
        self.proposal, self.steps, self.approximation = proposal, steps, approximation

    def bind(self, target: BaseTarget) -> RowsAlgorithm:
        independent = self.proposal == "independent"
        return _compiled(RowsAlgorithm(Scalable(self.rows_of(target), independent=independent, steps=self.steps)))


class TunaMetropolis(_SubsamplingStep):
    """TunaMH (Zhang, Cooper & De Sa 2020): Poisson minibatches, exact, for logit models.

    With bounds ‖aᵢ‖ on the slopes its minibatches grow with the data, so it is exact but not fast.

    Parameters
    ----------
    vars : list of variables or names, optional
    chi : float
        χ of the paper.
    scale : float, optional
        Scale of the random walk; half the calibrated one by default.
    approximation : {"laplace", "ep"} or approximation
        Its covariance shapes the proposals.
    model : pm.Model, optional

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.approximations.ep import Factors, FactorsTarget, Logit
    >>> rng = np.random.default_rng(0)
    >>> design, y = np.c_[np.ones(500), rng.normal(size=500)], rng.integers(0, 2, 500)
    >>> target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, 1.0))
    >>> step = pb.steps.TunaMetropolis()
    >>> idata = pb.sample_mcmc(target, step=step, draws=20_000, tune=500, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"]
    'exact'
    """

    @checked(chi=number(above=0), scale=none | number(above=0), approximation=APPROXIMATION)
    def __init__(
        self,
        vars: Any = None,
        *,
        chi: float = 0.01,
        scale: float | None = None,
        approximation: Any = "laplace",
        model: Any = None,
    ) -> None:
        self.chi, self.scale, self.approximation = chi, scale, approximation

    def bind(self, target: BaseTarget) -> RowsAlgorithm:
        return _compiled(RowsAlgorithm(Tuna(self.rows_of(target), self.chi, self.scale)))


class InformedSubsampling(_SubsamplingStep):
    """Informed sub-sampling MCMC: subsets chosen by their summary statistics (Maire, Friel & Alquier 2019). Approximate.

    Parameters
    ----------
    vars : list of variables or names, optional
    subset : int, optional
        Rows of a subset, n. By default 1,000, or the number that keeps the log surrogate's variance over subsets at
        one. If the Hessian is not corrected, the number that keeps its error at 5 %. Without any correction, at least
        √(2Nk)/(2.38 s) for k statistics, so that single swaps mix; with fewer rows subsets hardly move.
    spread : float, optional
        s: standard deviation, in posterior standard deviations, of the shifts of the mode that subsets may cause. The
        posterior's sds are inflated by √(1 + s²). Infinite: uniform subsets. By default 0.3, and infinite with a
        correction, which removes the shifts.
    correction : {"auto", "curvature", "gradient", None}
        Whether to correct the subset's gradient at the expansion point, or its gradient and Hessian. ``"auto"``
        corrects both if the subset is otherwise too small to mix.
    swaps : int, optional
        Swap proposals per step; automatic by default.
    summary : {"auto", "scores", "sufficient"}, array (N, k) or callable
        Summary statistics of the rows: the whitened scores at the expansion point; sufficient ones if the likelihood
        is an exponential family with few statistics (see
        :func:`~ppl_backends.kernels.subsampling.sufficient.sufficient_statistics`); or your own, as an array or a
        function of the target. They must identify the subset's *likelihood*: for a regression Σ x y alone does not.
        ``"auto"``: sufficient ones for weighted subsets without a correction, if there are any.
    approximation : {"laplace", "auto", "ep", "vi"} or approximation
        Its mean is the expansion point at which the scores are computed.
    model : pm.Model, optional

    Examples
    --------
    Two thousand rows of a logistic regression on a binary covariate: subsets of 200 by their three sufficient statistics.

    >>> import warnings, numpy as np, ppl_backends as pb
    >>> from ppl_backends.targets.factors import Factors, FactorsTarget, Logit
    >>> rng = np.random.default_rng(0)
    >>> design, y = np.c_[np.ones(2000), rng.integers(0, 2, 2000)], rng.integers(0, 2, 2000)
    >>> target = FactorsTarget(Factors(design, 0.0, Logit(y), 0.0, 1.0))
    >>> step = pb.steps.InformedSubsampling(subset=200, correction=None)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # it is approximate, and says so
    ...     idata = pb.sample_mcmc(target, step=step, draws=100, chains=1, random_seed=1, progressbar=False)
    >>> idata.posterior.attrs["accuracy"], int(idata.posterior.attrs["sufficient_statistics"])
    ('approximate', 3)

    References
    ----------
    Maire, F., Friel, N. and Alquier, P. (2019). Informed sub-sampling MCMC: approximate Bayesian inference for large
    datasets. *Statistics and Computing* 29.
    """

    @checked(
        subset=SUBSET,
        spread=none | number(above=0, at_most=np.inf),
        correction=choice("auto", "curvature", "gradient", None),
        swaps=none | integer(1),
        summary=choice("auto", "scores", "sufficient")
        | array("an array (N, k)")
        | function("a function of the target"),
        approximation=APPROXIMATION,
    )
    def __init__(
        self,
        vars: Any = None,
        *,
        subset: int | None = None,
        spread: float | None = None,
        correction: str | None = "auto",
        swaps: int | None = None,
        summary: Any = "auto",
        approximation: Any = "laplace",
        model: Any = None,
    ) -> None:
        self.subset, self.spread, self.correction = subset, spread, correction
        self.swaps, self.summary, self.approximation = swaps, summary, approximation

    def bind(self, target: BaseTarget) -> RowsAlgorithm:
        rows, rng = self.rows_of(target), np.random.default_rng(0)
        summaries, attributes = self._summaries(target, rows)
        n_statistics = rows.dim if summaries is None else summaries.shape[1]
        spread = SPREAD if self.spread is None else self.spread
        healthy = np.sqrt(2 * rows.n * n_statistics) / (2.38 * min(spread, np.sqrt(rows.n)))
        subset = self._size(rows, healthy, rng)
        small = subset < healthy and np.isfinite(spread)
        correction = self.correction
        if correction == "auto":
            correction = "curvature" if small else None
        if correction is not None and self.spread is None:
            spread = np.inf  # weights are not needed
        kernel = Informed(
            rows, subset, spread=spread, rng=rng, swaps=self.swaps, correction=correction, summaries=summaries
        )
        kernel.attributes |= attributes
        moves = kernel.swaps * kernel.swap_rate
        if small and correction is None and moves < FEWEST_SWAPS:
            warnings.warn(
                f"subsets of {subset} rows hardly move: {moves:.2g} swaps are accepted per step: use at least "
                f"{healthy:.0f} rows or correction='curvature', and check the ESS of z_first",
                SamplerWarning,
                stacklevel=user_level(),
            )
        return _announced(RowsAlgorithm(kernel), rng)

    def _summaries(self, target: BaseTarget, rows: Rows) -> tuple[Any, dict[str, Any]]:
        """Return summary statistics that replace the scores, or None, and their attributes for results."""
        if not isinstance(self.summary, str):
            values = self.summary(target) if callable(self.summary) else self.summary
            return _whitened(np.asarray(values, dtype=np.float64), rows.n), {}
        weighted = self.correction is None and (self.spread is None or np.isfinite(self.spread))
        if self.summary == "scores" or (self.summary == "auto" and not weighted):
            return None, {}
        try:
            found = sufficient_statistics(rows, np.random.default_rng(0))
        except ModelError:
            if self.summary == "sufficient":
                raise
            return None, {}
        if self.summary == "auto" and found.rank <= rows.whole.dim:
            return None, {}  # the scores are as many combinations of them
        attributes = {"sufficient_statistics": found.rank, "family_residual": found.residual}
        return _whitened(found.statistics, rows.n), attributes

    def _size(self, rows: Rows, healthy: float, rng: np.random.Generator) -> int:
        """Return the number of rows of a subset, as asked for or as the correction needs."""
        if self.subset is not None:
            if self.subset >= rows.n:
                raise ModelError(f"subset={self.subset}: the model has {rows.n} observations; use RandomWalk")
            return self.subset
        if self.correction in ("auto", "curvature"):
            wanted: float = max(DEFAULT_SUBSET, _subset_of(rows, None, rng)[0])
        else:
            curved = curvature_variance(rows, rng) / HESSIAN_ERROR**2
            wanted = max(DEFAULT_SUBSET if self.correction else healthy, curved)
        return min(rows.n // 2, int(np.ceil(wanted)))


def _whitened(values: Any, n: int) -> Any:
    """Return summary statistics on the scale of the scores: uncorrelated, √N per standard deviation of a row."""
    if values.ndim != 2 or len(values) != n:
        raise ModelError(f"summary has shape {values.shape}; expected ({n}, k), a row for each observation")
    centred, scale = values - values.mean(axis=0), values.std(axis=0)
    if not (np.isfinite(values).all() and (scale > 0).all()):
        raise ModelError("summary has a column that is constant or not finite")
    centred /= scale
    variances, axes = np.linalg.eigh(centred.T @ centred / n)
    kept = variances > COLLINEAR * variances[-1]
    return np.sqrt(n) * centred @ (axes[:, kept] / np.sqrt(variances[kept]))


def _subset_of(rows: Rows, asked: int | None, rng: np.random.Generator) -> tuple[int, float]:
    subset, variance = control.choose_subset_size(rows.whole, rng)
    return (subset if asked is None else min(asked, rows.n)), variance


def _warn_of_variance(subset: int, variance: float, n: int) -> None:
    if variance > WORST_VARIANCE * subset:
        wanted = int(np.ceil(variance))
        use = f"use {wanted} rows" if wanted < n else f"the model has {n}, so give another approximation=, such as 'ep'"
        warnings.warn(
            f"the estimated log likelihood has variance {variance / subset:.2g} with {subset} rows, and should have at most "
            f"one: {use}, or a step on all data if the posterior is far from Gaussian",
            SamplerWarning,
            stacklevel=user_level(),
        )


def _compiled(algorithm: RowsAlgorithm) -> RowsAlgorithm:
    """Return the algorithm after one step, so that forked workers find everything compiled."""
    rng = np.random.default_rng(0)
    start = algorithm.initial_point(rng)
    assert start is not None
    algorithm.step(algorithm.start(start, rng), rng, False)
    return algorithm


def _announced(algorithm: RowsAlgorithm, rng: np.random.Generator) -> RowsAlgorithm:
    """Return the algorithm, and emit the warning of an approximate step, with its figure."""
    _compiled(algorithm)
    estimated, exact = algorithm.acceptance_pairs(algorithm.rows.expansion_point.sample(PAIRS, rng), rng)
    error = float(np.abs(estimated - exact).mean())
    algorithm.attributes["acceptance_error_at_start"] = error
    warnings.warn(
        f"{algorithm.name} is approximate: estimated acceptance probabilities are off by {error:.2g} on average over {PAIRS} "
        f"moves near the mode, and the total variation error of a chain that mixes is at most a multiple of this"
        f"{_predicted(algorithm.kernel)}",
        SamplerWarning,
        stacklevel=user_level(),
    )
    return algorithm


def _predicted(kernel: RowsKernel) -> str:
    """Return the error that theory predicts for informed subsets."""
    if not isinstance(kernel, Informed):
        return ""
    error = kernel.attributes["hessian_error"]
    if kernel.correction == "curvature":
        noise = kernel.attributes["log_likelihood_spread"]
        return f"; the log surrogate varies by {noise:.2g} over subsets"
    if kernel.correction == "gradient":
        return f"; sds are right to about {100 * error:.3g} %"
    return (
        f"; sds are too wide by a factor of about {kernel.inflation:.3g}, and right to {100 * error:.3g} % beside that"
    )

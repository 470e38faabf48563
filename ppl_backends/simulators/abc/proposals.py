"""Proposals of sequential ABC: the prior, and small mixtures of Student t's fitted to weighted points, with a prior's share.

Every component has a separate scrambled net in every chain (Buchholz 2018, section 3.6.2, iii); the denominator of the
weights is the density of the whole mixture. Sizes are fixed before points are drawn, so that shares of the mixture are
exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import betaincinv, gammaincc, gammaln, logsumexp

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import PriorSamplingError
from ppl_backends.importance.proposals import STUDENT_DF, StudentT
from ppl_backends.importance.sampling import scrambled_net
from ppl_backends.kernels.table import make_kernel
from ppl_backends.numerics.bridge import bridge
from ppl_backends.numerics.student import Student
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.simulators.abc.problem import AbcProblem
from ppl_backends.smc.path import BridgePath
from ppl_backends.smc.sampler import run_tempering
from ppl_backends.smc.start import cauchy_around, check_proper
from ppl_backends.targets.protocol import Array

__all__ = ["AbcProposal", "fit_mixture", "fit_prior", "prior_proposal", "prior_start"]

INFLATION = 1.2  # λ of the thesis, a factor of scale matrices
DEFENSIVE = 8  # points of the mixture for each point of the prior
MOST_COMPONENTS = 4
LEAST_POINTS = 5  # least number of points of a component, per coordinate plus one
EM_STEPS = 30
PRIOR_DRAWS = 4096
MANY_FOR_ONE = 16  # weighted points per draw of a prior that is only a density
INTEGRAL_POINTS, INTEGRAL_SCRAMBLES = 4096, 8
CONTRADICTED = 4.0  # standard errors from zero at which a log density of the prior has another integral than one
RIDGE = 1e-9


class AbcProposal:
    """Points of the prior and of Student t's, in fixed numbers.

    Parameters
    ----------
    problem : AbcProblem
    students : list of StudentT
    weights : array
        Weights of the Student t's among themselves.
    prior : bool
        Whether points of the prior are included.
    """

    def __init__(self, problem: AbcProblem, students: list[StudentT], weights: Array, prior: bool) -> None:
        self.problem, self.students, self.weights, self.prior = problem, students, np.asarray(weights), prior

    @property
    def is_prior(self) -> bool:
        """Return whether all points come from the prior."""
        return not self.students

    def sizes(self, n: int) -> list[int]:
        """Return the number of points of each component for a net of ``n``; the prior comes last, with an eighth more."""
        if self.is_prior:
            return [n]
        bounds = np.round(n * np.concatenate([[0.0], np.cumsum(self.weights / self.weights.sum())])).astype(int)
        return [*np.diff(bounds), *([max(n // DEFENSIVE, 1)] if self.prior else [])]

    def points(self, n: int, qmc: bool, rng: np.random.Generator) -> Array:
        """Return the points ``(sum of sizes, dim)`` of one chain."""
        *own, last = self.sizes(n) if self.prior else (*self.sizes(n), 0)
        parts = [
            student_points(student, _cube(size, self.problem.dim, qmc, rng))
            for student, size in zip(self.students, own, strict=True)
            if size
        ]
        if last:
            parts.append(prior_points(self.problem, last, qmc, rng))
        return np.concatenate(parts)

    def log_ratio(self, x: Array, n: int) -> Array:
        """Return log p/q ``(m,)`` at points, with the shares of nets of ``n`` in q; ``-inf`` outside the prior's support."""
        if self.is_prior:
            return np.zeros(len(x))
        sizes = np.asarray(self.sizes(n), dtype=np.float64)
        with np.errstate(divide="ignore"):
            shares = np.log(sizes / sizes.sum())
        log_prior = self.problem.log_prior(x)
        parts = [share + student.log_density(x) for share, student in zip(shares, self.students, strict=False)]
        parts += [shares[-1] + log_prior] if self.prior else []
        return np.where(log_prior > -np.inf, log_prior - np.logaddexp.reduce(parts, axis=0), -np.inf)


def student_points(student: StudentT, u: Array) -> Array:
    """Return points of a Student t ``(n, dim)`` from as many points of the cube ``(n, dim)``.

    Normal points keep their directions, and their radius is mapped to that of the t of the same probability: 1 − F(r²)
    is the distribution function of a beta variable C, and r² = ν(1 − C)/C. A uniform number for the radius would add a
    dimension to the net.
    """
    gaussian, df = student.gaussian, student.df
    x = gaussian.from_uniform(u)
    square = (gaussian.whiten(x) ** 2).sum(axis=1)
    dim = u.shape[1]
    c = np.maximum(betaincinv(df / 2, dim / 2, gammaincc(dim / 2, square / 2)), 1e-300)
    stretch = np.sqrt(df * (1 - c) / c / np.maximum(square, 1e-300))
    return gaussian.mean + (x - gaussian.mean) * stretch[:, None]


def _cube(n: int, dim: int, qmc: bool, rng: np.random.Generator) -> Array:
    return scrambled_net(n, dim, rng)[:n] if qmc else rng.random((n, dim))


def prior_points(problem: AbcProblem, n: int, qmc: bool, rng: np.random.Generator) -> Array:
    """Return points of the prior ``(n, dim)``: of a scrambled net if it has an inverse cdf, else random draws."""
    target = problem.target
    if target.n_uniforms is not None:
        return target.prior_from_uniform(_cube(n, target.n_uniforms, qmc, rng))
    return target.sample_prior(n, rng)


def prior_start(problem: AbcProblem, n: int, qmc: bool, rng: np.random.Generator) -> Array:
    """Return ``n`` points of the prior ``(n, dim)``, in random order; weighted ones for a prior that is only a density."""
    if problem.fitted_prior is None:
        return rng.permutation(prior_points(problem, n, qmc, rng))
    proposal = _of_fitted_prior(problem)
    size = MANY_FOR_ONE * n
    x = proposal.points(size, qmc, rng)
    weights = np.exp(proposal.log_ratio(x, size))
    return x[rng.permutation(systematic_resampling(weights / weights.sum(), n, rng))]


def prior_proposal(problem: AbcProblem, qmc: bool, rng: np.random.Generator) -> AbcProposal:
    """Return the prior itself; if nets are asked for and it has no inverse cdf, a Student mixture fitted to its draws."""
    if problem.fitted_prior is not None:
        return _of_fitted_prior(problem)
    if not qmc or problem.target.n_uniforms is not None:
        return AbcProposal(problem, [], np.zeros(0), True)
    x = problem.target.sample_prior(PRIOR_DRAWS, rng)
    return fit_mixture(problem, x, np.full(len(x), 1 / len(x)), rng, len(x))


def fit_prior(problem: AbcProblem, rng: np.random.Generator) -> None:
    """Fit a Student mixture to a prior that is only a density, by a run that samples it, and compute its integral.

    If a prior has draws and its integral is not known, the log density may lack a constant, which is estimated.

    Raises
    ------
    PriorSamplingError
        If the prior can neither be sampled nor evaluated, or is improper.
    """
    target = problem.target
    try:
        prior_points(problem, 1, False, rng.spawn(1)[0])
        if target.log_prior_normalizer is None:
            _find_integral(problem, rng.spawn(1)[0])
        return
    except PriorSamplingError as error:
        prior = target if target.is_prior else target.prior_target()
        if prior is None:
            reason = str(error).replace("use initial='laplace'", "give it a prior that has draws")
            raise PriorSamplingError(f"ABC needs a prior that can be sampled: {reason}") from None
    check_proper(prior, "ABC draws from the prior, so give it a proper one")
    drawn = run_tempering(BridgePath(prior, cauchy_around(prior)), make_kernel("mixed"), PRIOR_DRAWS, rng)
    weights = np.full(len(drawn.x), 1 / len(drawn.x))
    problem.fitted_prior = _mixture(problem, drawn.x, weights, rng, len(drawn.x))
    proposal = _of_fitted_prior(problem)
    logs = [
        logsumexp(proposal.log_ratio(proposal.points(INTEGRAL_POINTS, True, rng), INTEGRAL_POINTS))
        - np.log(INTEGRAL_POINTS)
        for _ in range(INTEGRAL_SCRAMBLES)
    ]
    problem.log_prior_integral = float(logsumexp(logs) - np.log(len(logs)))
    problem.log_prior_integral_se = float(np.std(logs, ddof=1) / np.sqrt(len(logs)))


def _find_integral(problem: AbcProblem, rng: np.random.Generator) -> None:
    """Estimate the integral of a prior from its draws, by a bridge to a Student t; keep one if it may be one."""
    x = prior_points(problem, 2 * INTEGRAL_POINTS, False, rng)
    fitted_to, drawn = x[:INTEGRAL_POINTS], x[INTEGRAL_POINTS:]
    try:
        student = Student.fit(fitted_to)
    except np.linalg.LinAlgError:  # draws on a surface, which have no density
        return
    proposed = student.sample(INTEGRAL_POINTS, rng)
    at_drawn, at_proposed = (problem.target.evaluate_prior(at)[0] - student.log_density(at) for at in (drawn, proposed))
    if not np.isfinite(at_drawn).all() or not (at_proposed > -np.inf).any():
        return
    found = bridge(at_drawn, at_proposed, np.arange(INTEGRAL_POINTS))
    if abs(found.log_evidence) > CONTRADICTED * found.variance**0.5:
        problem.log_prior_integral, problem.log_prior_integral_se = found.log_evidence, found.variance**0.5


def _of_fitted_prior(problem: AbcProblem) -> AbcProposal:
    """Return the mixture that approximates a prior that is only a density."""
    assert problem.fitted_prior is not None
    return AbcProposal(problem, *problem.fitted_prior, False)


def fit_mixture(problem: AbcProblem, x: Array, weights: Array, rng: np.random.Generator, size: float) -> AbcProposal:
    """Return the Student mixture with the best BIC, with inflated scale matrices and a share of the prior.

    Parameters
    ----------
    x : ndarray (n, dim)
    weights : ndarray (n,)
        Normalised.
    rng : numpy.random.Generator
    size : float
        Number of independent points: smaller than the effective sample size if neighbours share hits.
    """
    students, shares = _mixture(problem, x, weights, rng, size)
    if problem.fitted_prior is None:
        return AbcProposal(problem, students, shares, True)
    others, among = problem.fitted_prior
    together = np.concatenate([DEFENSIVE * shares / shares.sum(), among / among.sum()])
    return AbcProposal(problem, [*students, *others], together, False)


def _mixture(
    problem: AbcProblem, x: Array, weights: Array, rng: np.random.Generator, size: float
) -> tuple[list[StudentT], Array]:
    """Return the components with the best BIC, and their shares."""
    used = weights > 0
    x, weights = x[used], weights[used] / weights[used].sum()
    best, lowest = _student_em(x, weights, 1, rng), np.inf
    for k in range(1, MOST_COMPONENTS + 1):
        if k > 1 and size < LEAST_POINTS * k * (problem.dim + 1):
            break
        found = best if k == 1 else _student_em(x, weights, k, rng)
        if k > 1 and found[0].min() * size < LEAST_POINTS * (problem.dim + 1):
            continue
        n_parameters = k * (1 + problem.dim + problem.dim * (problem.dim + 1) / 2) - 1
        bic = -2 * size * found[-1] + n_parameters * np.log(max(size, 2.0))
        if bic < lowest:
            best, lowest = found, bic
    shares, means, scales, _ = best
    students = [
        StudentT(GaussianApproximation(mean, cov=INFLATION * scale), STUDENT_DF)
        for mean, scale in zip(means, scales, strict=True)
    ]
    return students, shares


def _student_em(x: Array, weights: Array, k: int, rng: np.random.Generator) -> tuple[Array, Array, Array, float]:
    """Fit ``k`` Student t's of fixed degrees of freedom to weighted points: shares, means, scales and mean log density."""
    dim = x.shape[1]
    centre = weights @ x
    cov = (weights * (x - centre).T) @ (x - centre)
    floor = np.diag(np.maximum(np.diag(cov), 1e-300)) * max(RIDGE, (dim + 1) * np.sum(weights**2) / 4)
    means = x[systematic_resampling(weights, k, rng)] if k > 1 else centre[None]
    shares, scales = np.full(k, 1 / k), np.repeat((cov + floor)[None], k, axis=0) / k ** (2 / dim)
    density: Callable = _log_students
    for _ in range(EM_STEPS):
        logs, square = density(x, shares, means, scales)
        total = np.logaddexp.reduce(logs, axis=0)
        belongs = np.exp(logs - total) * weights
        drawn_in = belongs * (STUDENT_DF + dim) / (STUDENT_DF + square)
        shares = np.maximum(belongs.sum(axis=1), 1e-3)
        shares /= shares.sum()
        means = drawn_in @ x / np.maximum(drawn_in.sum(axis=1), 1e-300)[:, None]
        apart = x[None] - means[:, None]
        scales = np.einsum("kn,kni,knj->kij", drawn_in, apart, apart)
        scales = scales / np.maximum(belongs.sum(axis=1), 1e-300)[:, None, None] + floor
    logs, _ = density(x, shares, means, scales)
    return shares, means, scales, float(weights @ np.logaddexp.reduce(logs, axis=0))


def _log_students(x: Array, shares: Array, means: Array, scales: Array) -> tuple[Array, Array]:
    """Return log share plus log density ``(k, n)`` of every Student t, and squared distances ``(k, n)``."""
    dim, df = x.shape[1], STUDENT_DF
    roots = np.linalg.cholesky(scales)
    apart = np.swapaxes(x[None] - means[:, None], 1, 2)
    square = (np.linalg.solve(roots, apart) ** 2).sum(axis=1)
    constant = gammaln((df + dim) / 2) - gammaln(df / 2) - 0.5 * dim * np.log(df * np.pi)
    constant = constant - np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1) + np.log(shares)
    return constant[:, None] - 0.5 * (df + dim) * np.log1p(square / df), square

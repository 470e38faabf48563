"""Bounds of the tests of samplers, each from a stated rate of false failures.

If the sampler is right, a test fails at the rate ``FALSE_FAILURE`` over new seeds. Several
figures of one assertion share it (Bonferroni). Standard errors come from the draws themselves: from independent runs, or
from batches of a chain that are much longer than its autocorrelation.
"""

import numpy as np
from scipy import stats

FALSE_FAILURE = 1e-4
N_BATCHES = 12


def normal_bound(n_figures=1, rate=FALSE_FAILURE):
    """Return how many standard errors any of ``n_figures`` exceeds at the rate, where standard errors are known."""
    return stats.norm.isf(rate / (2 * n_figures))


def t_bound(df, n_figures=1, rate=FALSE_FAILURE):
    """Return the same where standard errors have ``df`` degrees of freedom."""
    return stats.t.isf(rate / (2 * n_figures), df)


def assert_mean_is(values, truth, allowance=0.0):
    """Assert that the mean of independent rows ``(n, k)`` is ``truth`` ``(k,)``, up to a known bias of ``allowance``."""
    values = np.reshape(values, (len(values), -1))
    error = values.mean(axis=0) - np.ravel(truth)
    standard_error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    bound = t_bound(len(values) - 1, values.shape[1]) * standard_error + allowance
    assert (np.abs(error) <= bound).all(), f"errors {error}, bounds {bound}"


def assert_evidence_is(log_evidence, standard_error, truth):
    """Assert that the mean of unbiased evidences of runs is exp(``truth``), given the standard errors that they report."""
    error = np.log(np.mean(np.exp(np.asarray(log_evidence) - truth)))
    bound = normal_bound() * np.sqrt(np.mean(np.square(standard_error)) / len(log_evidence))
    assert abs(error) <= bound, f"error {error}, bound {bound}"


def assert_runs_are_right(runs, known):
    """Assert evidence, means and sds of independent SMC runs from the prior or a Gaussian.

    The sds of n particles are low by order 1/n, for which a thousandth of an sd is allowed.
    """
    log_evidence = [run.log_evidence for run in runs]
    assert_evidence_is(log_evidence, np.sqrt([run.lineage.variance for run in runs]), known.log_evidence)
    assert_mean_is([run.x.mean(axis=0) for run in runs], known.mean, 1e-3 * known.sd)
    assert_mean_is([run.x.std(axis=0) for run in runs], known.sd, 1e-3 * known.sd)


def batches(chain, n_batches=N_BATCHES):
    """Return the means ``(n_batches, k)`` of equal stretches of a chain ``(n, k)``."""
    chain = np.reshape(chain, (len(chain), -1))
    length = len(chain) // n_batches
    return chain[: length * n_batches].reshape(n_batches, length, -1).mean(axis=1)


def assert_chain_is_right(chain, mean, sd):
    """Assert means and sds of an exact chain ``(n, k)`` whose autocorrelation is short beside a batch."""
    chain = np.reshape(chain, (len(chain), -1))
    z = (chain - mean) / sd
    assert_mean_is(batches(z), np.zeros(z.shape[1]))
    assert_mean_is(batches(z**2), np.ones(z.shape[1]))

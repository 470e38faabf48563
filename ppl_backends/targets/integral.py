"""The integral of a prior as written, and its entry in results."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ppl_backends.targets.protocol import BaseTarget

_ZERO = 1e-6  # absolute log integrals below this are rounding


class PriorIntegral(NamedTuple):
    """Log of the integral of a prior as written."""

    log_integral: float  # NaN for an improper prior, and if it is not known
    standard_error: float = 0.0  # 0 if it is exact
    df: float = float("inf")  # degrees of freedom of the standard error

    def added_to(self, standard_error: float, df: float) -> tuple[float, float]:
        """Return a standard error and its degrees of freedom, including those of this integral, which is independent."""
        if self.standard_error == 0:
            return standard_error, df
        return combined_error([standard_error, self.standard_error], [df, self.df])

    def attrs(self, log_evidence: float | None) -> dict[str, Any]:
        """Return the attributes of a result: the integral, its error, and a note if it is not zero."""
        estimated = self.standard_error > 0
        return {
            "log_prior_normalizer": self.log_integral,
            "log_prior_normalizer_se": self.standard_error if estimated else None,
            "log_prior_normalizer_df": self.df if estimated and np.isfinite(self.df) else None,
            "log_prior_normalizer_note": None if log_evidence is None else self._note(log_evidence),
        }

    def _note(self, log_evidence: float) -> str | None:
        if not np.isfinite(log_evidence) or not abs(self.log_integral) > _ZERO:
            return None
        error = f" ± {self.standard_error:.3f}" if self.standard_error > 0 else ""
        return (
            f"the prior as written integrates to exp({self.log_integral:.3f}{error}): compare models by log_evidence minus "
            f"log_prior_normalizer, {log_evidence - self.log_integral:.3f}"
        )


def combined_error(standard_errors: list[float], df: list[float]) -> tuple[float, float]:
    """Return the standard error of a sum of independent terms, and its degrees of freedom by Satterthwaite's formula."""
    variances = np.square(standard_errors)
    total, by_df = float(variances.sum()), float((variances**2 / np.asarray(df)).sum())
    return total**0.5, total**2 / by_df if by_df > 0 else float("inf")


def product(parts: list[PriorIntegral]) -> PriorIntegral:
    """Return the integral of independent parts together."""
    error, df = combined_error([part.standard_error for part in parts], [part.df for part in parts])
    return PriorIntegral(float(sum(part.log_integral for part in parts)), error, df)


def stated_integral(target: BaseTarget) -> PriorIntegral | None:
    """Return the target's integral of its prior, or None where it is unknown."""
    if target.log_prior_normalizer is None:
        return None
    return PriorIntegral(
        float(target.log_prior_normalizer),
        float(target.log_prior_normalizer_se),
        float(target.log_prior_normalizer_df),
    )

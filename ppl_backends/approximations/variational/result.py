"""What Gaussian variational inference returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.targets.protocol import Array

__all__ = ["VariationalApproximation"]

_FAMILIES = {"diagonal": "diagonal", "low_rank": "low_rank", "dense": "dense"}


class VariationalApproximation(GaussianApproximation):
    """The Gaussian of :func:`ppl_backends.fit_vi`; it has no evidence, but a lower bound of it.

    Attributes
    ----------
    family : {"diagonal", "low_rank", "dense"}
    elbo, elbo_se : float
        Lower bound of the log evidence, on points that the fit has not seen, and its standard error.
    pareto_k : float
        Of the importance weights p/q. Above 0.7 the Gaussian is too far from the posterior to be corrected by weights.
    evidence_note : str or None
        That the bound is known up to a constant only, where the prior is improper.
    history : dict of str to array
        Per sample size (or phase): ``draws``, ``elbo``, ``iterations``, ``change``.
    """

    evidence_note: str | None
    history: Mapping[str, Array]

    @property
    def family(self) -> str:
        """The family fitted, by the form of the covariance."""
        return _FAMILIES[self.representation]

    def _attributes(self) -> dict[str, Any]:
        figures = {"elbo": self.elbo, "elbo_se": self.elbo_se, "pareto_k": self.pareto_k, "family": self.family}
        return figures | ({} if self.evidence_note is None else {"log_evidence_note": self.evidence_note})

    def __repr__(self) -> str:
        return (
            f"VariationalApproximation(dim={self.dim}, family={self.family!r}, converged={self.converged}, "
            f"elbo={self.elbo:.6g}, elbo_se={self.elbo_se:.2g}, pareto_k={self.pareto_k:.2f})"
        )

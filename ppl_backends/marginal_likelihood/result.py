"""The result of an evidence estimate from draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import t as student_t

from ppl_backends.options import checked, number


@dataclass(frozen=True, repr=False)
class Evidence:
    """The log evidence of a model from draws of its posterior, with its error and a verdict.

    Attributes
    ----------
    log_evidence : float
        Log ∫ exp(log density), of the program as written.
    log_evidence_se : float
        Its standard error.
    log_evidence_df : float
        Degrees of freedom of that, for intervals by Student's t; infinite where there are many.
    trusted : bool
        Whether all diagnostics pass.
    method : str
        ``"bridge"``, ``"warp3"``, ``"importance"`` or ``"smc"``.
    reasons : tuple of str
        Why it is not trusted, each with its figure; empty if it is trusted.
    choice : str
        Why this method was chosen.
    proposal : str
        Density fitted to the draws: ``"gaussian"``, ``"student"``, ``"mixture"`` or ``"hierarchical"``.
    log_prior_normalizer : float or None
        Log integral of the prior as written, None if the target does not provide it; models are compared by
        ``log_evidence - log_prior_normalizer``.
    log_prior_normalizer_se : float
    note : str or None
        A remark about the integral, such as that a prior is improper and the evidence known only up to a constant.
    diagnostics : dict of str to float
        ``rhat`` (the largest, if there are several chains) and ``effective_draws`` (the fewest) over coordinates,
        ``n_divergent``, ``n_repaired`` (draws without a finite density), ``log_density_mismatch`` (if the sampler stored
        its log densities); ``bridge`` and ``bridge_se``; ``pareto_k`` of the bridge's terms, ``blocks_apart`` (the
        largest distance of bridges from reshuffled blocks from their mean, in standard errors), ``efficiency`` and
        ``weights_pareto_k`` of importance weights at the proposal's points; ``large_energy_errors``, ``drift`` and
        ``neck_growth`` of moves.
    observed_data : dict of str to array
        Observed data of the model by name; empty if the target does not provide them.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> q = pb.fit_laplace(target)
    >>> found = pb.evidence(q.to_inference_data(draws=1000, random_seed=1), target, random_seed=1)
    >>> bool(abs(found.log_evidence - np.log(2 * np.pi)) < 0.05), found.trusted, found.interval(0.95)[0] < found.log_evidence
    (True, True, True)

    References
    ----------
    Meng, X.-L. and Wong, W. H. (1996). Simulating ratios of normalizing constants via a simple identity. *Statistica
    Sinica* 6, 831–860.
    """

    log_evidence: float
    log_evidence_se: float
    log_evidence_df: float
    trusted: bool
    method: str
    reasons: tuple[str, ...]
    choice: str = ""
    proposal: str = ""
    log_prior_normalizer: float | None = None
    log_prior_normalizer_se: float = 0.0
    note: str | None = None
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    observed_data: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @checked(probability=number(above=0, below=1))
    def interval(self, probability: float = 0.95) -> tuple[float, float]:
        """Return the interval that contains the log evidence with a given probability, by Student's t.

        Parameters
        ----------
        probability : float

        Returns
        -------
        tuple of float

        Examples
        --------
        >>> low, high = Evidence(-10.0, 0.1, float("inf"), True, "bridge", ()).interval()
        >>> round(low, 3), round(high, 3)
        (-10.196, -9.804)
        """
        half = float(student_t.isf(0.5 * (1.0 - probability), self.log_evidence_df)) * self.log_evidence_se
        return self.log_evidence - half, self.log_evidence + half

    def __repr__(self) -> str:
        digits = int(np.clip(1 - np.floor(np.log10(max(self.log_evidence_se, 1e-12))), 1, 6))
        value = f"{self.log_evidence:.{digits}f} ± {self.log_evidence_se:.{digits}f}"
        few = f" ({self.log_evidence_df:.0f} df)" if self.log_evidence_df < 30 else ""
        said = [f"log evidence {value}{few} by {self.method}, {'trusted' if self.trusted else 'NOT trusted'}"]
        said += [f"  because {reason}" for reason in self.reasons]
        said += [f"  {text}" for text in (self.choice, self.note) if text]
        return "\n".join(said)

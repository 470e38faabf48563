"""Learning rates and priors suggested by theory, functions only of the numbers n of rows and d of columns.

With these the oracle inequalities of Alquier, Ridgway & Chopin (2016) have the rate √(d/n) up to logarithms:

===================  ==================  ===============
loss                 λ                   prior
===================  ==================  ===============
of observations      √(nd)               N(0, I/d)
of pairs             √(d(n − 1)/2)       N(0, I)
===================  ==================  ===============

for losses up to one; λ is divided by a larger bound. They do not depend on the data, so certificates do not pay for
them. The paper notes that they are not the best ones in practice.
"""

from __future__ import annotations

from ppl_backends.errors import ModelError
from ppl_backends.gibbs.losses import Loss, PairLoss

THEORY = "theory"


def theory_rate(loss: Loss | None, n: int, d: int) -> float:
    """Return λ for ``n`` rows of ``d`` columns.

    Raises
    ------
    ModelError
        If the loss is not bounded.
    """
    if loss is None or loss.bound is None:
        name = "this" if loss is None else f"the {loss.name}"
        raise ModelError(
            f"learning_rate='theory': {name} loss is not bounded; give a number (for the hinge loss the paper has "
            "√(nd)/c with c a bound on the entries of X)"
        )
    squared = d * (n - 1) / 2 if isinstance(loss, PairLoss) else n * d
    return float(squared**0.5) / loss.bound


def theory_prior(loss: Loss, d: int) -> tuple[float, float]:
    """Return mean and variance of every coefficient."""
    return 0.0, 1.0 if isinstance(loss, PairLoss) else 1.0 / d

"""Functions for PyTensor graphs, in models and Potentials."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from scipy.linalg import toeplitz

from ppl_backends.orthants.op import log_rectangle

__all__ = ["log_rectangle", "panel_cholesky"]


def panel_cholesky(effects: Any, persistence: Any, innovations: Any, n_periods: int) -> Any:
    """Return the Cholesky factor of the residuals of a panel: e_jt = α_j + η_jt, η_jt = ρ_j η_j,t−1 + ν_jt.

    The effects α_j have the standard deviations ``effects``, the innovations ν_jt ``innovations``, and η is stationary
    (Börsch-Supan, Hajivassiliou, Kotlikoff & Morris 1992).

    Parameters
    ----------
    effects, persistence, innovations : tensor (alternatives,)
    n_periods : int

    Returns
    -------
    TensorVariable
        Both sizes are ``n_periods * alternatives``, the first period first: the ``cholesky`` of
        :class:`ppl_backends.MultinomialProbit`.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.math import panel_cholesky
    >>> factor = panel_cholesky(np.ones(2), np.zeros(2), np.ones(2), 2).eval()
    >>> (factor @ factor.T).round(6).tolist()
    [[2.0, 0.0, 1.0, 0.0], [0.0, 2.0, 0.0, 1.0], [1.0, 0.0, 2.0, 0.0], [0.0, 1.0, 0.0, 2.0]]
    """
    effects, persistence, innovations = (pt.as_tensor(x).astype("float64") for x in (effects, persistence, innovations))
    lags = toeplitz(np.arange(n_periods))[:, :, None]
    over_time = effects**2 + innovations**2 / (1 - persistence**2) * persistence**lags  # (t, t', alternatives)
    alternatives = effects.shape[0]
    blocks = over_time[:, None, :, :] * pt.eye(alternatives)[None, :, None, :]  # (t, j, t', k)
    size = n_periods * alternatives
    return pt.linalg.cholesky(blocks.reshape((size, size)))

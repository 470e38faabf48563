"""Search over the models of a regression with indicators, as a step method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppl_backends.errors import ModelError
from ppl_backends.options import checked, choice, instance, integer, none
from ppl_backends.steps.specification import model_on_context


class ModelSearch:
    """Draw indicators and coefficients of a PyMC regression together, with coefficients integrated out of each proposal.

    In a model with ``gamma * beta`` in its predictor, separate updates of indicators and coefficients mix badly: an
    indicator is switched on only if the coefficient's prior draw happens to fit. This step proposes to add, delete or
    swap coefficients by the evidence of the model, which is the likelihood integrated over the included coefficients,
    as in :func:`~ppl_backends.select_variables`. With an estimated evidence it is exact.

    Parameters
    ----------
    indicators : mapping of str to str
        Names of 0/1 variables, with any prior, and of the coefficients that each multiplies, element by element.
        Coefficients that are always included are drawn with them. Other steps move all other free variables, such as
        scales of priors and the probability of an indicator; every step conditions on their current values.
    evidence : {"importance_laplace", "importance_ep", "laplace", "ep"}
        As for :func:`~ppl_backends.select_variables`; the last two are approximate.
    points : int
        Number of points of an importance estimate.
    moves : int, optional
        Proposals per step; by default the number of indicators.
    model : pm.Model, optional
        The model on the context stack by default.

    Raises
    ------
    ModelError
        If there are no known factors given the other free variables, or an indicator of 0 does not remove its
        coefficient from the likelihood.

    References
    ----------
    Kuo, L. and Mallick, B. (1998). Variable selection for regression models. *Sankhya B* 60.
    Andrieu, C., Doucet, A. and Holenstein, R. (2010). Particle Markov chain Monte Carlo methods. *JRSS B* 72(3).

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> rng = np.random.default_rng(1)
    >>> X = rng.standard_normal((80, 3))
    >>> with pm.Model() as model:
    ...     level = pm.Normal("level", 0, 20)
    ...     gamma = pm.Bernoulli("gamma", 0.5, shape=3)
    ...     beta = pm.Normal("beta", 0, 5, shape=3)
    ...     y = pm.Bernoulli("y", logit_p=level + X @ (gamma * beta), observed=X[:, 0] + rng.normal(size=80) > 0)
    >>> step = pb.steps.ModelSearch({"gamma": "beta"}, model=model)
    >>> run = {"chains": 1, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
    >>> idata = pm.sample(100, tune=0, step=step, model=model, **run)
    >>> idata.posterior["gamma"].mean(("chain", "draw")).values.round(1)[0]
    np.float64(1.0)
    """

    def __new__(cls, indicators: Mapping[str, str], *, model: Any = None, **options: Any) -> Any:
        """Return a PyMC step method."""
        specification = object.__new__(cls)
        model = model if model is not None else model_on_context()
        specification.__init__(indicators, model=model, **options)  # type: ignore[misc]
        if model is None:
            raise ModelError("ModelSearch is for pm.sample: make it inside a model context, or with model=")
        return specification.pymc_step(model)

    @checked(
        indicators=instance(Mapping, "a mapping of indicators to coefficients, by name"),
        evidence=choice("importance_laplace", "importance_ep", "laplace", "ep"),
        points=integer(1),
        moves=none | integer(1),
    )
    def __init__(
        self,
        indicators: Mapping[str, str],
        *,
        evidence: str = "importance_laplace",
        points: int = 16,
        moves: int | None = None,
        model: Any = None,
    ) -> None:
        self.indicators, self.evidence, self.points, self.moves = dict(indicators), evidence, points, moves

    def pymc_step(self, model: Any) -> Any:
        """Return the step method on a ``pm.Model``."""
        from ppl_backends.model_search.chain import ModelChain
        from ppl_backends.model_search.indicators import Selection, ravelled
        from ppl_backends.steps.adapter import step_class

        found = Selection(model, self.indicators, self.evidence, self.points)
        by_name = {variable.name: variable for variable in model.value_vars}
        layout = {name: value.shape for name, value in found.start.items()}
        chain = ModelChain(found.current, self.moves)
        return step_class("ModelSearch")(
            chain, found.target, [by_name[name] for name in found.own], layout, ravelled(found.start)
        )

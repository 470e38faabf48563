"""simuk as a host: its simulation-based calibration with a method of this package in place of ``pm.sample``.

simuk draws parameters and data and computes ranks; :func:`ppl_backends.pymc.sample` fits. If data sets have the same
shape, the compiled model is reused with new data, so that a simulation needs no compilation. Released versions of
simuk fit in a method of ``simuk.SBC``; later versions fit in a backend adapter. Both are supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.options import checked, choice, instance, that
from ppl_backends.pymc.methods import METHODS, Run, run_method
from ppl_backends.pymc.samplers import Sampler
from ppl_backends.targets.convert import as_target, is_instance
from ppl_backends.targets.protocol import BaseTarget

__all__ = ["adapt"]

HOSTS = ("pymc", "bambi")
"""Kinds of simuk models that a method can fit."""


@checked(
    sbc=that(lambda sbc: is_instance(sbc, "simuk", "SBC"), "a simuk.SBC"),
    sampler=choice(*METHODS) | instance(Sampler, "a sampler of pb.pymc"),
)
def adapt(sbc: Any, *, sampler: Any = "smc", **options: Any) -> Any:
    """Make a ``simuk.SBC`` draw from its posteriors by a method of this package.

    Parameters
    ----------
    sbc : simuk.SBC
        SBC of a PyMC or a Bambi model, prior or posterior. Its ``sample_kwargs`` (``draws``, ``chains``, ``cores``) are
        arguments of :func:`ppl_backends.pymc.sample`.
    sampler : str or Sampler
        ``"smc"``, ``"importance"``, ``"ep"``, ``"laplace"``, ``"vi"``, ``"mcmc"``; or an object such as
        ``pb.pymc.SMC(kernel="hmc")``.
    **options
        Further arguments of the method's own function.

    Returns
    -------
    simuk.SBC
        The same object; all its methods, such as ``run_simulations()``, are simuk's.

    Raises
    ------
    ModelError
        If ``sbc`` is not a ``simuk.SBC``, its model is of another library, or ``sample_kwargs`` has an unknown name.

    References
    ----------
    Talts, S., Betancourt, M., Simpson, D., Vehtari, A. and Gelman, A. (2018). Validating Bayesian inference algorithms
    with simulation-based calibration. Säilynoja, T., Schmitt, M., Bürkner, P.-C. and Vehtari, A. (2025). Posterior
    SBC.

    Examples
    --------
    >>> import simuk, ppl_backends as pb  # doctest: +SKIP
    >>> sbc = simuk.SBC(model, num_simulations=100, sample_kwargs={"draws": 99, "chains": 1})  # doctest: +SKIP
    >>> pb.simuk.adapt(sbc, sampler="importance").run_simulations()  # doctest: +SKIP
    """
    if sbc.engine not in HOSTS:
        raise ModelError(f"the model of this simuk.SBC is of {sbc.engine}: expected one of PyMC or Bambi")
    if isinstance(sampler, Sampler):
        if options:
            name, kind = next(iter(options)), type(sampler).__name__
            raise ModelError(f"{name}= is an option of {kind}: write sampler={kind}({name}=...)")
        sampler, options = sampler.method, sampler.options
    fits = Fits(sbc, sampler, options)
    adapter = getattr(sbc, "adapter", None)
    if adapter is None:
        sbc._get_posterior_samples = fits.of_release
    else:
        adapter.get_posterior_samples = fits.of_adapter
    return sbc


class Fits:
    """Fit a model to one data set after another, for simuk."""

    def __init__(self, sbc: Any, method: str, options: Mapping[str, Any]) -> None:
        known = {each.name for each in fields(Run)} - {"model", "random_seed", "unknown"}
        unread = sorted(set(sbc.sample_kwargs) - known)
        if unread:
            raise ModelError(f"sample_kwargs has {unread[0]!r}: give it to adapt(sbc, sampler={method!r}, …)")
        self.sbc, self.method, self.options = sbc, method, dict(options)
        self._target: BaseTarget | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}

    def of_release(self, replicated: Mapping[str, Any]) -> Any:
        """Return draws given a data set; simuk 0.3 calls it."""
        index = self.sbc._simulations_complete
        return self.draws(replicated, self.sbc.observed_vars, self.sbc._seeds[index], self.sbc.method, index)

    def of_adapter(
        self, parameters: Any, replicated: Mapping[str, Any], sample_kwargs: Any, seed: int, method: str, index: int
    ) -> Any:
        """Return draws given a data set, as ``get_posterior_samples`` of a backend adapter of simuk does."""
        return self.draws(replicated, parameters.observed_vars, seed, method, index)

    def draws(self, replicated: Mapping[str, Any], observed: Any, seed: int, method: str, index: int) -> Any:
        """Return draws with the dimensions of each variable and ``sample``."""
        from arviz_base import extract

        data = replicated if method == "prior" else self._augmented(replicated, observed, index)
        target = self._on({name: np.asarray(values) for name, values in data.items()}, index)
        run = Run(model=target, random_seed=int(seed), **self.sbc.sample_kwargs)
        return extract(run_method(self.method, run, self.options), group="posterior", keep_dataset=True)

    def _augmented(self, replicated: Mapping[str, Any], observed: Any, index: int) -> Mapping[str, Any]:
        """Return the observed and the drawn data combined (Säilynoja et al. 2025), or the result of the user's function."""
        first = self.sbc.trace["observed_data"]
        if self.sbc.augment_observed is not None:
            joined: Mapping[str, Any] = self.sbc.augment_observed(self.sbc.model, first, replicated, index)
            return joined
        return {name: np.concatenate([first[name].values, replicated[name]]) for name in observed}

    def _on(self, data: dict[str, Any], index: int) -> BaseTarget:
        """Return the target for a data set; data of the same shapes as before replace those in the compiled model."""
        update = self.sbc.update_data if self.sbc.method == "posterior" else None
        shapes = {name: values.shape for name, values in data.items()}
        if update is None and self._target is not None and shapes == self._shapes:
            found: BaseTarget = self._target.predictive.on(data)
            return found
        target = self._compiled(data, update, index)
        self._target, self._shapes = (target, shapes) if target.predictive is not None else (None, {})
        return target

    def _compiled(self, data: dict[str, Any], update: Any, index: int) -> BaseTarget:
        """Return the target of the model with its data replaced; restore the model's data containers afterwards."""
        import pymc as pm

        model = self.sbc.model
        containers = {each.name: each.get_value() for each in model.data_vars}
        holders = {rv.name: model.rvs_to_values[rv].name for rv in model.observed_RVs}
        coords = dict(model.coords)
        try:
            with model:
                if update is not None:
                    update(model, data, index)
                held = {holders[name]: values for name, values in data.items() if holders.get(name) in containers}
                pm.set_data({k: v for k, v in held.items() if np.array_equal(model[k].get_value(), containers[k])})
            return as_target(pm.observe(model, data), cores=self.sbc.sample_kwargs.get("cores"))
        finally:
            with model:
                pm.set_data(containers, coords=coords)

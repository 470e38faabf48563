"""Targets made from another target, whose members they have unless a subclass overrides them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Self

from ppl_backends.targets.protocol import BaseTarget


def _of_target(member: str) -> Any:
    """Return the property that is the wrapped target's ``member``, looked up at access."""
    return property(attrgetter(f"target.{member}"))


class WrappedTarget(BaseTarget):
    """Another target under a new name; subclasses change a part of it.

    Joint densities and their gradients follow from :meth:`evaluate`, which a subclass may override; every other member
    is the wrapped target's.
    """

    def __init__(self, target: BaseTarget) -> None:
        self.target = target

    dim = _of_target("dim")
    names = _of_target("names")
    label = _of_target("label")
    coords = _of_target("coords")
    dims = _of_target("dims")
    observed_data = _of_target("observed_data")
    constant_data = _of_target("constant_data")

    has_split = _of_target("has_split")
    has_gradient = _of_target("has_gradient")
    has_potentials = _of_target("has_potentials")
    is_estimated = _of_target("is_estimated")
    is_prior = _of_target("is_prior")
    circular = _of_target("circular")
    split_problem = _of_target("split_problem")
    stated_propriety = _of_target("stated_propriety")
    evidence_note = _of_target("evidence_note")
    parameter_names = _of_target("parameter_names")
    values_per_draw = _of_target("values_per_draw")
    generated_groups = _of_target("generated_groups")
    log_prior_normalizer = _of_target("log_prior_normalizer")
    log_prior_normalizer_se = _of_target("log_prior_normalizer_se")
    log_prior_normalizer_df = _of_target("log_prior_normalizer_df")

    evaluate = _of_target("evaluate")
    evaluate_prior = _of_target("evaluate_prior")
    evaluate_potentials = _of_target("evaluate_potentials")
    prior_terms = _of_target("prior_terms")
    hessian = _of_target("hessian")
    undefined = _of_target("undefined")
    explain = _of_target("explain")
    pointwise_log_likelihood = _of_target("pointwise_log_likelihood")
    observations = _of_target("observations")
    factors = _of_target("factors")
    likelihood_factors = _of_target("likelihood_factors")

    sample_prior = _of_target("sample_prior")
    prior_target = _of_target("prior_target")
    n_uniforms = _of_target("n_uniforms")
    prior_from_uniform = _of_target("prior_from_uniform")
    initial_points = _of_target("initial_points")
    simulate = _of_target("simulate")
    predictive = None  # the target's own is for another density
    log_likelihood_estimate = _of_target("log_likelihood_estimate")
    likelihood_is_known = _of_target("likelihood_is_known")
    state_space = _of_target("state_space")
    rest = _of_target("rest")
    constrain = _of_target("constrain")
    unconstrain = _of_target("unconstrain")
    tempered = _of_target("tempered")
    digests = _of_target("digests")

    def around(self, target: BaseTarget) -> Self:
        """Return the same change of another target."""
        other = copy.copy(self)
        other.target = target
        return other

    def with_fixed_batch_size(self) -> BaseTarget:
        return self.around(self.target.with_fixed_batch_size())

    def with_data(self, new: Mapping[str, Any]) -> BaseTarget:
        return self.around(self.target.with_data(new))

    def append(self, new: Mapping[str, Any]) -> BaseTarget:
        return self.around(self.target.append(new))

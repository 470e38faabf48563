"""Means of heavy-tailed draws."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.results.heavy_tails import unreliable_means

RNG = np.random.default_rng(5)
DRAWS = 4000


def test_a_variable_without_a_mean_is_named_with_pareto_k():
    # 1/x for x from a gamma distribution of shape 1/2 has a tail of index 1/2, so k = 2
    heavy = 1 / RNG.gamma(0.5, size=DRAWS)
    said = unreliable_means({"normal": RNG.normal(size=(DRAWS, 3)), "scale": np.column_stack([np.ones(DRAWS), heavy])})
    assert "`scale[1]`" in said
    assert "normal" not in said
    k = float(said.split("Pareto k ")[1].split(",")[0])
    assert abs(k - 2.0) < 4 * 3.0 / (3 * 2000**0.5) ** 0.5  # its standard error is (1 + k)/√m for m draws of the tail


@pytest.mark.parametrize(
    "draw",
    [
        lambda n: RNG.normal(size=n),
        lambda n: RNG.standard_t(3, size=n),
        lambda n: np.exp(RNG.normal(size=n)),
        lambda n: RNG.gamma(0.1, size=n),
        lambda n: RNG.normal(size=n) * (RNG.random(n) < 0.1),
        lambda n: np.full(n, 2.0),
        lambda n: RNG.poisson(1.0, size=n),
    ],
)
def test_draws_with_a_variance_give_no_warning(draw):
    assert not unreliable_means({"x": np.stack([draw(DRAWS) for _ in range(50)], axis=1)})


def test_three_names_are_given_and_the_rest_are_counted():
    said = unreliable_means({"x": 1 / RNG.gamma(0.5, size=(DRAWS, 2, 4))})
    assert said.count("`x[") == 3
    assert " and 5 more " in said


def test_a_posterior_without_a_mean_is_reported_though_its_evidence_is_right():
    target = pb.FunctionTarget(1, lambda x: (-np.log1p(x[:, 0] ** 2) - np.log(np.pi), -2 * x / (1 + x**2)))
    with pytest.warns(SamplerWarning, match="means and standard deviations are unreliable"):
        idata = pb.sample_smc(target, initial="laplace", random_seed=1, progressbar=False)
    attrs = idata["posterior"].attrs
    assert attrs["log_evidence_trusted"] == 1
    assert abs(attrs["log_evidence"]) < 4 * attrs["log_evidence_se"]
    assert "use medians and quantiles" in attrs["warnings"]

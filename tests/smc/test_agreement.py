"""The check that chains are in the same place."""

import numpy as np
import pytest

from ppl_backends.smc.health import chains_apart


def draws(rng, lineages, dim, centre=0.0, n=1000):
    """Return draws that cluster around one Cauchy point for every lineage, and the lineages."""
    ancestor = rng.integers(0, lineages, n)
    return centre + rng.standard_cauchy((lineages, dim))[ancestor] + 0.3 * rng.standard_normal((n, dim)), ancestor


@pytest.mark.parametrize("lineages", [25, 100])
@pytest.mark.parametrize("chains", [2, 4])
def test_lineages_explain_what_chains_of_one_distribution_differ_by(chains, lineages):
    found = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        pairs = [draws(rng, lineages, 10) for _ in range(chains)]
        found += chains_apart(*zip(*pairs, strict=True)) is not None
    assert found <= 3


def test_a_chain_elsewhere_is_found_with_its_coordinate():
    rng = np.random.default_rng(1)
    pairs = [draws(rng, 50, 3, np.array([0.0, 4.0 * (chain == 2), 0.0])) for chain in range(4)]
    apart = chains_apart(*zip(*pairs, strict=True))
    assert apart.coordinate == 1
    assert apart.distance > 0.3
    assert apart.errors > 4


def test_a_chain_of_another_width_is_found():
    rng = np.random.default_rng(2)
    widths, lineages = [1.0, 1.0, 0.2, 1.0], [np.arange(1000)] * 4
    apart = chains_apart([width * rng.standard_normal((1000, 2)) for width in widths], lineages)
    assert apart is not None


def test_one_chain_says_nothing():
    assert chains_apart([np.zeros((10, 1))], [np.arange(10)]) is None

"""Which elements of a term each site reads, found by perturbations."""

import numpy as np
import pytest

from ppl_backends.targets.pymc.factors.terms import group


@pytest.mark.parametrize("n_quantities", [2, 40])
def test_many_quantities_of_a_term_are_perturbed_in_few_calls(n_quantities):
    """A term of thousands of operations takes as long for one setting as for hundreds."""
    calls = []

    def evaluate(settings):
        calls.append(len(settings[0]))
        odd = sum((value**2 for value in settings[1::2]), np.zeros_like(settings[0]))
        return np.concatenate([sum(settings[::2]), odd], axis=1)

    cut = [np.linspace(0, 1, 5) + k for k in range(n_quantities)]
    found = group(evaluate, cut, np.random.default_rng(0))
    assert len(calls) <= 6
    assert found.n_sites == 10
    even, odd = found.site_of_term[:5], found.site_of_term[5:]
    np.testing.assert_array_equal(found.site_of_cut, np.tile(np.concatenate([even, odd]), n_quantities // 2))


def test_a_matrix_of_which_rows_are_read_and_a_sum_of_all():
    weights = np.ones((4, 3))

    def evaluate(settings):
        return np.hstack([settings[0].sum(axis=2), settings[1].sum(axis=1, keepdims=True)])

    found = group(evaluate, [weights, np.arange(3.0)], np.random.default_rng(0))
    assert found.n_sites == 5
    np.testing.assert_array_equal(found.site_of_cut, found.site_of_term[np.repeat(np.arange(5), 3)])

"""Which elements of a term each site reads, found by perturbations."""

import numpy as np
import pymc as pm
import pytest
from pytensor.tensor.rewriting.shape import ShapeFeature

import ppl_backends as pb
from ppl_backends.targets.pymc import PyMCTarget
from ppl_backends.targets.pymc.factors import find
from ppl_backends.targets.pymc.factors.graph import PointFunction, TermGraph
from ppl_backends.targets.pymc.factors.terms import group
from tests.targets.models import recursion


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


@pytest.mark.parametrize(("power", "unknown"), [(4, find.MOST_REFUSALS), (2, 0)])
def test_a_likelihood_of_no_known_family_is_not_looked_at_again_for_every_scale(power, unknown, monkeypatch):
    """exp(−|y − μ|⁴/s⁴) is of no family that is known; with squares it is normal, for every s."""
    tried, original = [], find.recognise
    monkeypatch.setattr(find, "recognise", lambda *given: tried.append(original(*given)) or tried[-1])
    y = np.array([0.3, -0.4, 1.0])
    with pm.Model() as model:
        mu, s = pm.Normal("mu", 0, 1), pm.HalfNormal("s", 1)
        pm.Potential("data", -0.5 * (pm.math.abs(y - mu) / s) ** power - pm.math.log(s))
    factors = pb.as_target(model).factors
    for phi in np.linspace(-1, 1, 12):
        given = factors.at([phi])
        theta = np.linspace(-1, 1, 5)[:, None]
        wanted = -0.5 * theta[:, 0] ** 2 - 0.5 * np.log(2 * np.pi) - len(y) * phi
        wanted = wanted - 0.5 * (np.abs(y - theta) ** power).sum(axis=1) * np.exp(-power * phi)
        np.testing.assert_allclose(given.log_density(theta), wanted, rtol=1e-8)
    assert sum(found is None for found in tried) == unknown


def test_the_batched_graph_of_a_loop_grows_linearly_and_needs_no_shapes(monkeypatch):
    operations = []
    for steps in (10, 20):
        model = recursion(steps)
        target = PyMCTarget(model)
        terms = TermGraph(model, target._data, target._shapes)
        with monkeypatch.context() as patch:
            patch.setattr(ShapeFeature, "on_attach", lambda *_: pytest.fail("shapes were inferred from the graph"))
            function = PointFunction(terms, set(), [term.value for term in terms.terms])
        operations.append(len(function._evaluate._function.maker.fgraph.apply_nodes))
        x = np.random.default_rng(1).normal(size=(3, 2))
        values = sum(value.reshape(3, -1).sum(axis=1) for value in function(x))
        np.testing.assert_allclose(values, target.log_density(x), rtol=1e-10)
    assert operations[1] < 2.2 * operations[0]

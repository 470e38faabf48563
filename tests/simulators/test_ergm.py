"""Random graphs: statistics by hand, every kind of move against enumeration, and the diagnostics."""

import itertools

import numpy as np
import pytest
from scipy import stats

from ppl_backends.datasets import load_florentine
from ppl_backends.errors import ModelError
from ppl_backends.simulators import ERGM
from ppl_backends.simulators import ergm_kernels as kernels
from ppl_backends.simulators.ergm import _graphs

TERMS = ["edges", "kstar(2)", "kstar(3)", "triangles", "gwesp(0.5)"]
LEVEL = 1e-5  # false-failure rate of a chi-square test with a fixed seed


def random_graph(rng, n, share=0.4):
    upper = np.triu(rng.random((n, n)) < share, 1)
    return (upper | upper.T).astype(np.int8)


def by_hand(graph):
    """Return the statistics of TERMS by counting sets of nodes."""
    n = len(graph)
    degree = graph.sum(axis=0)
    shared = graph.astype(int) @ graph.astype(int)
    ties = [(i, j) for i, j in itertools.combinations(range(n), 2) if graph[i, j]]
    triangles = sum(graph[i, j] and graph[j, k] and graph[i, k] for i, j, k in itertools.combinations(range(n), 3))
    stars = [sum(len(list(itertools.combinations(range(d), k))) for d in degree) for k in (2, 3)]
    gwesp = sum(np.exp(0.5) * (1 - (1 - np.exp(-0.5)) ** shared[i, j]) for i, j in ties)
    return [len(ties), *stars, triangles, gwesp]


def test_statistics_by_hand():
    rng = np.random.default_rng(0)
    model = ERGM(7, TERMS)
    graphs = np.stack([random_graph(rng, 7, share) for share in (0.0, 0.2, 0.5, 0.8, 1.0)])
    np.testing.assert_allclose(model.statistics(graphs), [by_hand(graph) for graph in graphs])
    np.testing.assert_allclose(model.statistics(graphs[2]), by_hand(graphs[2]))


def test_change_statistics_are_differences():
    rng = np.random.default_rng(1)
    model = ERGM(8, TERMS)
    for _ in range(20):
        graph = random_graph(rng, 8, rng.random())
        i, j = sorted(rng.choice(8, 2, replace=False))
        without, with_ = graph.copy(), graph.copy()
        without[i, j] = without[j, i] = 0
        with_[i, j] = with_[j, i] = 1
        out = np.empty(len(TERMS))
        degree = graph.sum(axis=0, dtype=np.int64)
        kernels.change_statistics(graph, degree, j, i, model._kinds, model._term_parameters, out)
        np.testing.assert_allclose(out, model.statistics(with_) - model.statistics(without), atol=1e-9)


def test_florentine_network():
    network = load_florentine()
    assert (network == network.T).all()
    np.testing.assert_array_equal(ERGM(16, ["edges", "kstar(2)", "triangles"]).statistics(network), [15, 36, 5])


def test_normaliser_of_independent_ties():
    assert ERGM(4, ["edges"]).log_normalizer([0.7]) == pytest.approx(6 * np.log1p(np.exp(0.7)))


MODEL_TERMS, THETA = ["edges", "kstar(2)", "triangles"], np.array([-0.6, 0.25, -0.4])
DYADS = np.tril_indices(4, -1)


def codes(graphs):
    return graphs[:, DYADS[0], DYADS[1]] @ 2 ** np.arange(6)


def p_value(draws, theta=THETA):
    """Return the chi-square of drawn graphs on four nodes against their exact probabilities."""
    model = ERGM(4, MODEL_TERMS, moves="enumerate")
    probabilities = np.exp(model._enumerated @ theta - model.log_normalizer(theta))
    return stats.chisquare(np.bincount(codes(draws), minlength=64), probabilities * len(draws)).pvalue


def draw_each(model, n, seed):
    """Return independent draws: one chain each."""
    rng = np.random.default_rng(seed)
    return np.concatenate([model.simulate(THETA, 1, rng) for _ in range(n)])


@pytest.mark.parametrize("moves", ["gibbs", "tnt"])
@pytest.mark.parametrize("complement", [True, False])
@pytest.mark.parametrize("start", ["random", "empty", "complete"])
def test_chains_follow_the_model(moves, complement, start):
    model = ERGM(4, MODEL_TERMS, moves=moves, complement=complement, burn_in=120, start=start)
    assert not model.exact
    draws = draw_each(model, 20_000, 2)
    assert p_value(draws) > LEVEL
    assert p_value(draws, np.add(THETA, [0.06, 0.0, 0.0])) < LEVEL  # the test detects a wrong distribution


def test_successive_draws_follow_the_model():
    model = ERGM(4, MODEL_TERMS, burn_in=60, interval=60)
    assert p_value(model.simulate(THETA, 20_000, np.random.default_rng(8))) > LEVEL


def test_short_chains_do_not_follow_the_model():
    assert p_value(draw_each(ERGM(4, MODEL_TERMS, burn_in=6, start="complete", complement=False), 20_000, 2)) < LEVEL


def test_enumeration_is_exact():
    model = ERGM(4, MODEL_TERMS, moves="enumerate")
    assert model.exact
    assert p_value(model.simulate(THETA, 20_000, np.random.default_rng(3))) > LEVEL
    values, counts = np.unique(
        model.simulate_statistics(THETA, 20_000, np.random.default_rng(3)), axis=0, return_counts=True
    )
    every = model.statistics(_graphs(np.arange(64), 4))
    mass = np.exp(every @ THETA - model.log_normalizer(THETA))
    expected = [mass[(every == value).all(axis=1)].sum() * 20_000 for value in values]
    assert sum(expected) == pytest.approx(20_000)
    assert stats.chisquare(counts, expected).pvalue > LEVEL


def test_statistics_of_a_chain_are_those_of_its_graphs():
    for moves in ("gibbs", "tnt"):
        model = ERGM(9, TERMS, moves=moves, burn_in=500, interval=7)
        theta = [-1.0, 0.1, 0.0, 0.1, 0.2]
        graphs = model.simulate(theta, 30, np.random.default_rng(4))
        statistics = model.simulate_statistics(theta, 30, np.random.default_rng(4))
        np.testing.assert_allclose(statistics, model.statistics(graphs), atol=1e-8)


# Two phases on 16 nodes: along theta_1 = -14 theta_2 the sparse and the dense one have equal mass.
TWO_PHASES = np.array([-3.5, 0.25])


def test_equilibration_sees_a_second_phase():
    rng = np.random.default_rng(5)
    network = load_florentine()
    stuck = ERGM(16, ["edges", "kstar(2)"], moves="tnt", burn_in=200, complement=False, start=network)
    found = stuck.equilibration([[-2.2, 0.05], TWO_PHASES], rng)
    assert not found.equilibrated
    assert found.gap[1].max() > 1.5
    assert "equilibrated: False" in str(found)
    assert not stuck.equilibration(TWO_PHASES, rng, burn_in=[400], replicates=50).equilibrated  # at 200, the one in use
    flipping = ERGM(16, ["edges", "kstar(2)"])
    healthy = flipping.equilibration([[-2.2, 0.05], TWO_PHASES], rng)
    assert healthy.equilibrated
    assert healthy.gap[:, healthy.burn_in == healthy.in_use].max() < 0.4


def test_complement_moves_balance_the_phases():
    model = ERGM(16, ["edges", "kstar(2)"])
    rng = np.random.default_rng(6)
    edges = np.array([model.simulate_statistics(TWO_PHASES, 1, rng)[0, 0] for _ in range(400)])
    assert abs((edges > 60).mean() - 0.5) < 0.125  # five standard errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ERGM(1), "at least two nodes"),
        (lambda: ERGM(5, ["stars"]), "unknown term 'stars'"),
        (lambda: ERGM(5, ["kstar"]), "unknown term 'kstar'"),
        (lambda: ERGM(5, ["kstar(1.5)"]), "unknown term"),
        (lambda: ERGM(5, []), "terms is empty"),
        (lambda: ERGM(5, moves="swap"), "moves='swap'"),
        (lambda: ERGM(8, moves="enumerate"), "up to 7 nodes"),
        (lambda: ERGM(8).log_normalizer([0.0]), "up to 7 nodes"),
        (lambda: ERGM(5, burn_in=0), "at least 1"),
        (lambda: ERGM(5, start="full"), "start='full'"),
        (lambda: ERGM(5, start=np.eye(4)), "start has shape"),
        (lambda: ERGM(5).statistics(np.eye(5)), "without loops"),
        (lambda: ERGM(5).statistics(np.full((5, 5), 2)), "0 and 1 only"),
        (lambda: ERGM(5).statistics(np.zeros((3, 3))), "data have shape"),
        (lambda: ERGM(5).simulate([0.0, 1.0], 1, np.random.default_rng()), "theta has 2 elements; expected 1"),
        (lambda: ERGM(5, moves="enumerate").equilibration([0.0], np.random.default_rng()), "nothing to equilibrate"),
        (lambda: ERGM(5).equilibration([0.0], np.random.default_rng(), replicates=4), "at least 32"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ModelError, match=message):
        make()

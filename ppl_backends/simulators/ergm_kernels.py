"""Compiled moves of a Markov chain over undirected graphs, by change statistics.

A graph is an adjacency matrix, its degrees, and a list of its ties with each dyad's position in the list, so that a
random tie can be drawn and a dyad toggled in constant time. Terms are coded by ``kinds`` and one parameter each.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.numerics.jit import jit

EDGES, KSTAR, TRIANGLES, GWESP = range(4)
GIBBS, TNT = range(2)
GIVEN, EMPTY, COMPLETE, RANDOM = range(4)


@jit
def _choose(n, k):
    """Return the binomial coefficient as a float."""
    value = 1.0
    for i in range(k):
        value *= (n - i) / (i + 1.0)
    return value if n >= k else 0.0


@jit
def _shared(adjacency, i, j):
    """Return the number of common neighbours of two nodes."""
    count = 0
    for k in range(adjacency.shape[0]):
        count += adjacency[i, k] & adjacency[j, k]
    return count


@jit
def _gwesp_change(adjacency, i, j, present, decay):
    """Return the gain of gwesp by the tie (i, j): its own term, and one more shared partner for the ties around it."""
    ratio = 1.0 - np.exp(-decay)
    shared, change = 0, 0.0
    for k in range(adjacency.shape[0]):
        if adjacency[i, k] & adjacency[j, k]:
            shared += 1
            change += ratio ** (_shared(adjacency, i, k) - present) + ratio ** (_shared(adjacency, j, k) - present)
    return change + np.exp(decay) * (1.0 - ratio**shared)


@jit
def change_statistics(adjacency, degree, i, j, kinds, parameters, out):
    """Return statistics of the graph with the tie (i, j) minus those without it, for either state of the tie."""
    present = adjacency[i, j]
    for t in range(kinds.size):
        if kinds[t] == EDGES:
            out[t] = 1.0
        elif kinds[t] == KSTAR:
            k = int(parameters[t]) - 1
            out[t] = _choose(degree[i] - present, k) + _choose(degree[j] - present, k)
        elif kinds[t] == TRIANGLES:
            out[t] = _shared(adjacency, i, j)
        else:
            out[t] = _gwesp_change(adjacency, i, j, present, parameters[t])


@jit
def count_statistics(adjacency, degree, kinds, parameters, out):
    """Return the statistics of a graph by a full count."""
    n = degree.size
    for t in range(kinds.size):
        total = 0.0
        if kinds[t] == EDGES:
            total = degree.sum() / 2.0
        elif kinds[t] == KSTAR:
            for i in range(n):
                total += _choose(degree[i], int(parameters[t]))
        else:
            ratio = 1.0 - np.exp(-parameters[t])
            for i in range(n):
                for j in range(i):
                    if adjacency[i, j]:
                        shared = _shared(adjacency, i, j)
                        if kinds[t] == TRIANGLES:
                            total += shared
                        else:
                            total += np.exp(parameters[t]) * (1.0 - ratio**shared)
        out[t] = total / 3.0 if kinds[t] == TRIANGLES else total  # each triangle was counted from three ties


@jit
def _toggle(adjacency, degree, ties, place, n_ties, i, j):
    """Add or remove the tie (i, j), i > j; returns the number of ties."""
    if adjacency[i, j]:
        adjacency[i, j] = adjacency[j, i] = 0
        degree[i] -= 1
        degree[j] -= 1
        n_ties -= 1
        hole = place[i, j]
        ties[hole, 0], ties[hole, 1] = ties[n_ties, 0], ties[n_ties, 1]
        place[ties[hole, 0], ties[hole, 1]] = hole
    else:
        adjacency[i, j] = adjacency[j, i] = 1
        degree[i] += 1
        degree[j] += 1
        ties[n_ties, 0], ties[n_ties, 1] = i, j
        place[i, j] = n_ties
        n_ties += 1
    return n_ties


@jit
def _log_tnt_ratio(n_ties, n_dyads, adding):
    """Return the log proposal ratio of tie/no-tie: half of the time it removes a random tie, else it toggles a dyad."""
    if adding:
        if n_ties == 0:
            return np.log(0.5 * n_dyads + 0.5)
        return np.log(1.0 + n_dyads / (n_ties + 1.0))
    if n_ties == 1:
        return -np.log(0.5 * n_dyads + 0.5)
    return np.log(n_ties / (n_dyads + n_ties))


@jit
def _any_dyad(rng, n):
    """Return a dyad (i, j), i > j, at random."""
    i = int(rng.random() * n)
    j = int(rng.random() * (n - 1))
    j += j >= i
    return max(i, j), min(i, j)


@jit
def _flip(rng, adjacency, degree, ties, place, n_ties, theta, kinds, parameters, statistics):
    """Draw the graph or its complement, given that it is one of the two; a deterministic flip would be periodic."""
    n = degree.size
    other, other_degree = 1 - adjacency, n - 1 - degree
    for i in range(n):
        other[i, i] = 0
    gained = np.empty_like(statistics)
    count_statistics(other, other_degree, kinds, parameters, gained)
    if rng.random() < 1.0 / (1.0 + np.exp(np.dot(theta, statistics - gained))):
        statistics[:] = gained
        adjacency[:] = other
        degree[:] = other_degree
        n_ties = _list_ties(adjacency, ties, place)
    return n_ties


@jit
def _list_ties(adjacency, ties, place):
    n_ties = 0
    for i in range(adjacency.shape[0]):
        for j in range(i):
            if adjacency[i, j]:
                ties[n_ties, 0], ties[n_ties, 1] = i, j
                place[i, j] = n_ties
                n_ties += 1
    return n_ties


@jit
def _first_graph(rng, start, given, adjacency, degree):
    n = degree.size
    for i in range(n):
        for j in range(i):
            tie = start == COMPLETE
            if start == GIVEN:
                tie = given[i, j] > 0
            elif start == RANDOM:
                tie = rng.random() < 0.5
            adjacency[i, j] = adjacency[j, i] = tie
    for i in range(n):
        degree[i] = adjacency[i].sum()


@jit
def chain(rng, theta, kinds, parameters, move, flip_every, start, given, toggles, graphs, keep, out):
    """Run one chain of graphs, recorded after each entry of ``toggles`` (m,) further toggles.

    Every ``flip_every`` toggles the complement is proposed (0: never). ``out`` (m, k) is filled with the statistics,
    and ``graphs`` (m, n, n) if ``keep``.
    """
    n = given.shape[0]
    n_dyads = n * (n - 1) // 2
    adjacency, degree = np.zeros((n, n), np.int8), np.zeros(n, np.int64)
    ties, place = np.empty((n_dyads, 2), np.int64), np.empty((n, n), np.int64)
    statistics, change = np.empty(kinds.size), np.empty(kinds.size)
    _first_graph(rng, start, given, adjacency, degree)
    count_statistics(adjacency, degree, kinds, parameters, statistics)
    n_ties = _list_ties(adjacency, ties, place)
    done = 0
    for record in range(toggles.size):
        for _ in range(toggles[record]):
            done += 1
            if move == TNT and n_ties > 0 and rng.random() < 0.5:
                chosen = int(rng.random() * n_ties)
                i, j = ties[chosen, 0], ties[chosen, 1]
            else:
                i, j = _any_dyad(rng, n)
            change_statistics(adjacency, degree, i, j, kinds, parameters, change)
            energy, present = np.dot(theta, change), adjacency[i, j] > 0
            if move == GIBBS:
                moved = (rng.random() < 1.0 / (1.0 + np.exp(-energy))) != present
            else:
                log_ratio = (-energy if present else energy) + _log_tnt_ratio(n_ties, n_dyads, not present)
                moved = np.log(rng.random()) < log_ratio
            if moved:
                n_ties = _toggle(adjacency, degree, ties, place, n_ties, i, j)
                for t in range(kinds.size):
                    statistics[t] += -change[t] if present else change[t]
            if flip_every > 0 and done % flip_every == 0:
                n_ties = _flip(rng, adjacency, degree, ties, place, n_ties, theta, kinds, parameters, statistics)
        out[record] = statistics
        if keep:
            graphs[record] = adjacency

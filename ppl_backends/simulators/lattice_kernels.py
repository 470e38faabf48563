"""Compiled moves of colourings of a lattice.

A colouring ``x`` of the sites has density ∝ exp(J · #{neighbouring pairs of equal colour} + Σ_i field[i, x_i]). Neighbours
are a table ``(sites, most)`` padded with -1.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.numerics.jit import jit


@jit
def _site(u, x, i, coupling, field, neighbours, weights):
    """Return the colour of site i given the rest, by inversion of one uniform number."""
    energy = field[i].copy()
    for k in range(neighbours.shape[1]):
        j = neighbours[i, k]
        if j >= 0:
            energy[x[j]] += coupling
    weights[:] = np.exp(energy - energy.max())
    rest = u * weights.sum()
    colour = 0
    while colour < weights.size - 1 and rest >= weights[colour]:
        rest -= weights[colour]
        colour += 1
    return colour


@jit
def coupled_heat_bath(low, high, uniforms, first, neighbours):
    """Sweep two colourings of two colours once per row of ``uniforms`` ``(sweeps, sites)``, with the same numbers.

    ``first`` ``(sites, most + 1)`` is the probability of colour zero at a site, by the number of its neighbours of
    colour one. If it falls with that number, ``low`` stays below ``high``.
    """
    for sweep in range(uniforms.shape[0]):
        for i in range(low.size):
            below, above = 0, 0
            for k in range(neighbours.shape[1]):
                j = neighbours[i, k]
                if j >= 0:
                    below += low[j]
                    above += high[j]
            low[i] = uniforms[sweep, i] >= first[i, below]
            high[i] = uniforms[sweep, i] >= first[i, above]


@jit
def gibbs(rng, x, sweeps, coupling, field, neighbours):
    """Make systematic sweeps from fresh random numbers."""
    weights = np.empty(field.shape[1])
    for _ in range(sweeps):
        for i in range(x.size):
            x[i] = _site(rng.random(), x, i, coupling, field, neighbours, weights)


@jit
def _root(parent, i):
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@jit
def swendsen_wang(rng, x, sweeps, coupling, field, neighbours):
    """Make clusters of equal neighbours, bonded with probability 1 − exp(−J), and give each a new colour given the field."""
    n, q = field.shape
    parent, energy, weights = np.empty(n, np.int64), np.empty((n, q)), np.empty(q)
    bond = 1.0 - np.exp(-coupling)
    for _ in range(sweeps):
        for i in range(n):
            parent[i] = i
        for i in range(n):
            for k in range(neighbours.shape[1]):
                j = neighbours[i, k]
                if j > i and x[j] == x[i] and rng.random() < bond:
                    parent[_root(parent, i)] = _root(parent, j)
        energy[:] = 0.0
        for i in range(n):
            energy[_root(parent, i)] += field[i]
        for i in range(n):
            if parent[i] == i:
                weights[:] = np.exp(energy[i] - energy[i].max())
                rest = rng.random() * weights.sum()
                colour = 0
                while colour < q - 1 and rest >= weights[colour]:
                    rest -= weights[colour]
                    colour += 1
                x[i] = colour
        for i in range(n):
            x[i] = x[_root(parent, i)]

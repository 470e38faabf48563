"""Ready-made simulators of models whose likelihood is known up to a constant: random graphs and lattices.

>>> import numpy as np
>>> from ppl_backends.datasets import load_florentine
>>> from ppl_backends.simulators import ERGM
>>> network = load_florentine()
>>> model = ERGM(16, ["edges", "kstar(2)"])
>>> model.statistics(network)
array([15., 36.])
>>> model.simulate([-2.0, 0.05], 3, np.random.default_rng(1)).shape
(3, 16, 16)
"""

from ppl_backends.simulators.equilibration import Equilibration
from ppl_backends.simulators.ergm import ERGM
from ppl_backends.simulators.family import ExponentialFamily
from ppl_backends.simulators.lattice import Ising, Potts

__all__ = ["ERGM", "Equilibration", "ExponentialFamily", "Ising", "Potts"]

"""The kernels by name. A new kernel needs one file, and one line here."""

from __future__ import annotations

from ppl_backends.errors import ModelError
from ppl_backends.kernels.barker import Barker
from ppl_backends.kernels.cycle import Cycle
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.independent import Independent
from ppl_backends.kernels.mala import Mala
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.kernels.random_walk import RandomWalk

KERNELS: dict[str, type[Kernel]] = {
    RandomWalk.name: RandomWalk,
    Independent.name: Independent,
    Cycle.name: Cycle,
    Mala.name: Mala,
    Barker.name: Barker,
    Hmc.name: Hmc,
}


def make_kernel(name: str) -> Kernel:
    """Return the kernel of that name.

    Raises
    ------
    ModelError
        If there is no kernel of that name.
    """
    if name not in KERNELS:
        raise ModelError(f"kernel={name!r} is unknown; choose 'auto' or one of {', '.join(map(repr, KERNELS))}")
    return KERNELS[name]()

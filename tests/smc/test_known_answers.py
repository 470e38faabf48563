"""Evidence, means and sds of every start, kernel, schedule, move and tuning of tempering, against known answers."""

import numpy as np
import pytest

from ppl_backends.approximations import GaussianApproximation
from ppl_backends.kernels.table import make_kernel
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.path import BridgePath, PriorPath
from ppl_backends.smc.sampler import run_tempering
from ppl_backends.smc.schedule import make_schedule
from tests.statistics import assert_mean_is, assert_runs_are_right
from tests.toys import bimodal, conjugate_gaussian, gamma_poisson

KNOWN = {"gaussian": conjugate_gaussian(), "skewed": gamma_poisson(), "bimodal": bimodal()}
VARIANTS = {
    "waste-free": {"len_chain": 10},
    "cess": {"schedule": make_schedule("cess", 0.9)},
    "given": {"schedule": make_schedule(np.geomspace(0.003, 1, 12), 0.5), "moves": MoveSettings(1, 20)},
    "unbiased": {"unbiased": True},
    "unbiased waste-free": {"unbiased": True, "len_chain": 10},
}
# target, start, kernel, particles, options
CASES = [
    *(
        (name, start, kernel, 1000, {})
        for name in KNOWN
        for start in ("prior", "rough")
        for kernel in ("hmc", "mala", "random_walk")
    ),
    *((name, "prior", "hmc", 1000, VARIANTS[variant]) for name in ("gaussian", "skewed") for variant in VARIANTS),
    *(("bimodal", "prior", "hmc", 1000, VARIANTS[variant]) for variant in ("waste-free", "given")),
    ("skewed", "prior", "hmc", 500, {"tuning": "pr"}),
    ("gaussian", "prior", "hmc", 500, {"tuning": "ft", "len_chain": 10}),
    ("skewed", "prior", "mala", 500, {"tuning": "pr", "len_chain": 10}),
    ("skewed", "prior", "mala", 500, {"tuning": "ft"}),
    ("skewed", "prior", "random_walk", 500, {"tuning": "pr"}),
    ("skewed", "prior", "random_walk", 500, {"tuning": "ft", "len_chain": 10}),
    ("skewed", "prior", "mixed", 500, {}),
    ("gaussian", "prior", "mixed", 500, {"len_chain": 10}),
    ("skewed", "prior", "barker", 500, {}),
]


def rough_start(known):
    """Return a start that is off in place and scale."""
    return GaussianApproximation(known.mean + 0.5 * known.sd, np.diag((1.5 * known.sd) ** 2))


@pytest.mark.parametrize(("name", "start", "kernel", "n", "options"), CASES)
def test_evidence_means_and_sds_are_right(name, start, kernel, n, options):
    known = KNOWN[name]
    path = PriorPath(known.target) if start == "prior" else BridgePath(known.target, rough_start(known))
    runs = [run_tempering(path, make_kernel(kernel), n, np.random.default_rng([7, s]), **options) for s in range(12)]
    assert_runs_are_right(runs, known)
    if all(run.weighted is None for run in runs):  # the particles were moved
        assert_mean_is([run.path_sampling.log_evidence for run in runs], known.log_evidence)

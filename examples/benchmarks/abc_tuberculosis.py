"""Sequential ABC on the tuberculosis outbreak (Buchholz 2018, section 3.7.3: Table 3.3 and Figure 3.11).

    python examples/benchmarks/abc_tuberculosis.py [runs]

Adaptive importance sampling to ε = 0.01 with 500 particles by nets and by random points, four data sets a point on average,
and SMC-ABC (Del Moral, Doucet & Jasra 2012): the ABC posterior mean of θ̄ = (α + γ)/2 and its variance over runs, data sets
simulated, and the variance times these.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np

import ppl_backends as pb

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.simulators.abc.tuberculosis import OBSERVED, prior, simulate

SAMPLERS = {
    "nets": {"qmc": True, "data_sets": 4},
    "random points": {"qmc": False, "data_sets": 4},
    "SMC-ABC": {"method": "smc"},
}


def sequential(runs, name):
    """Print one row: means and variances of θ̄ over runs, with the simulations of a run."""
    found, started = [], time.process_time()
    for seed in range(runs):
        idata = pb.sample_abc(
            prior(),
            simulate=simulate,
            observed=OBSERVED,
            epsilon=0.01,
            chains=1,
            draws=500,
            pilot_points=512,
            max_simulations=1_000_000,
            random_seed=seed,
            progressbar=False,
            **SAMPLERS[name],
        )
        mean = float(idata["estimates"]["x_mean"].mean())
        found.append([mean, idata.posterior.attrs["simulations"], idata.posterior.attrs["epsilon"]])
    mean, simulations, epsilon = np.array(found).T
    variance = mean.var(ddof=1)
    print(
        f"| {name} | {mean.mean():.4f} ± {mean.std(ddof=1) / runs**0.5:.4f} | {variance:.2e} | {simulations.mean():,.0f} | "
        f"{epsilon.max():.3g} | {variance * simulations.mean():.3g} | {(time.process_time() - started) / runs:.0f} |",
        flush=True,
    )


def main(runs):
    """Print the table."""
    warnings.simplefilter("ignore")
    print("| sampler | θ̄ | its variance over runs | simulations | ε | variance × simulations | CPU s a run |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in SAMPLERS:
        sequential(runs, name)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)

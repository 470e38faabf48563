"""Compare tempering SMC with its peers: squared error × CPU time on the same problems, on one core.

``peers/samplers.py`` has the samplers (ours from ``initial="auto"`` and from the prior, ``pymc.sample_smc``, blackjax,
waste-free SMC of ``particles``, nutpie), ``peers/problems.py`` the problems. Every seed runs all samplers in turn.
Results are lines of JSON in ``--file``, and runs that are in the file are not made again, so the comparison can be made
in parts. Time is CPU time of the process without compilation, which other work on the machine hardly affects.
``particles`` needs its own environment, whose Python PARTICLES_PYTHON names.

``--as-long-as prior`` changes the number of draws of the peers so that they take about the time of ours from the prior,
according to the rows with defaults in the file. The new rows are named ``pymc-matched`` and so on.

Run:   python examples/benchmarks/smc_against_peers.py --file peers.jsonl [--problems Pima ...] [--samplers auto ...]
           [--seeds 40] [--minutes 5] [--core 0] [--device cpu] [--as-long-as prior]
Print: python examples/benchmarks/peers_table.py peers.jsonl
"""

import argparse
import os
import time
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--file", type=Path, required=True)
parser.add_argument("--problems", nargs="+")
parser.add_argument("--samplers", nargs="+")
parser.add_argument("--seeds", type=int, default=40)
parser.add_argument("--first-seed", type=int, default=0)
parser.add_argument("--minutes", type=float, default=float("inf"), help="CPU time after which no run is begun")
parser.add_argument("--core", type=int)
parser.add_argument("--as-long-as", metavar="SAMPLER", help="whose CPU time the others are to take")
parser.add_argument("--device", help="platform of the accelerator that JAX uses, such as gpu; cpu by default")
arguments = parser.parse_args()
if arguments.core is not None and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {arguments.core})
for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[pool] = "1"

import logging  # noqa: E402
import warnings  # noqa: E402

import jax  # noqa: E402
from models import MODELS  # noqa: E402
from peers.samplers import SAMPLERS  # noqa: E402
from rows import append_row, keys_of, read_rows  # noqa: E402

logging.getLogger("pymc").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


def effort(path, problem, sampler, like):
    """Return the mean seconds of ``like`` over those of ``sampler``, both by their defaults."""
    rows = [row for row in read_rows(path) if row["problem"] == problem]
    wanted, own = (
        [row["seconds"] for row in rows if row["sampler"] == name and "seconds" in row] for name in (like, sampler)
    )
    return (sum(wanted) / len(wanted)) / (sum(own) / len(own))


def main():
    """Run what is missing."""
    suffix = "-matched" if arguments.as_long_as else ""
    if arguments.device:
        jax.config.update("jax_default_device", jax.devices(arguments.device)[0])
    done = keys_of(read_rows(arguments.file), "problem", "sampler", "seed")
    for problem in arguments.problems or MODELS:
        made = {}
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            for name in arguments.samplers or SAMPLERS:
                if (problem, name + suffix, seed) in done:
                    continue
                if time.process_time() > 60 * arguments.minutes:
                    return
                row = {"problem": problem, "sampler": name + suffix, "seed": seed}
                try:
                    if name not in made:
                        size = (
                            (effort(arguments.file, problem, name, arguments.as_long_as),)
                            if arguments.as_long_as
                            else ()
                        )
                        made[name] = SAMPLERS[name](problem, MODELS, *size)
                    row |= made[name](seed)
                except Exception as error:  # a sampler that fails is part of the comparison
                    row |= {"error": f"{type(error).__name__}: {error}"[:200]}
                append_row(arguments.file, **row)
                figures = {
                    key: row[key] for key in ("seconds", "log_evidence", "log_evidence_se", "error") if key in row
                }
                print(problem, name, seed, figures, flush=True)


if __name__ == "__main__":
    main()

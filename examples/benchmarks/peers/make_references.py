"""Write the reference evidences and posterior means of the comparison into ``references.json``.

Evidences come from a long run of tempering SMC, with its standard error; means and standard deviations of the problem's
quantities from NUTS by nutpie. Both are exact for the bimodal problem. Problems that are in the file are not run again,
except for their means and standard deviations with ``--means``.

Run: python examples/benchmarks/peers/make_references.py Musk-I Cox-400 [--draws 8000] [--chains 8] [--nuts 5000] [--means]
"""

import argparse
import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import nutpie
from models import MODELS

import ppl_backends as pb
from peers.problems import PROBLEMS, bimodal_truth
from ppl_backends.results.inference_data import group

REFERENCES = Path(__file__).parents[1] / "references.json"


def make(name, draws, chains, nuts):
    """Return one reference."""
    if name == "Bimodal":
        return bimodal_truth()
    run = pb.sample_smc(MODELS[name](), initial="auto", draws=draws, chains=chains, random_seed=77, progressbar=False)
    smc = group(run, "posterior")
    return {
        "log_evidence": smc.attrs["log_evidence"],
        "log_evidence_se": smc.attrs["log_evidence_se"],
        "smc_mean": quantities(name, smc).mean(axis=0).tolist(),
    } | moments(name, nuts)


def moments(name, nuts):
    """Return means and standard deviations by NUTS."""
    model = nutpie.compile_pymc_model(MODELS[name]())
    long = nutpie.sample(model, draws=nuts, tune=1000, chains=4, cores=1, seed=77, progress_bar=False)
    found = quantities(name, group(long, "posterior"))
    return {"mean": found.mean(axis=0).tolist(), "sd": found.std(axis=0).tolist(), "nuts": 4 * nuts}


def quantities(name, posterior):
    """Return draws ``(n, k)`` of the problem's quantities."""
    values = {str(k): v.values.reshape(-1, *v.shape[2:]) for k, v in posterior.data_vars.items()}
    return PROBLEMS[name]().quantities(values)


def main():
    """Add what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--draws", type=int, default=8000)
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--nuts", type=int, default=5000)
    parser.add_argument("--means", action="store_true")
    options = vars(parser.parse_args())
    again = options.pop("means")
    warnings.simplefilter("ignore")
    for name in options.pop("names"):
        known = json.loads(REFERENCES.read_text())
        if name not in known:
            known[name] = make(name, **options)
            REFERENCES.write_text(json.dumps(known, indent=1) + "\n")
            print(name, known[name]["log_evidence"], known[name]["log_evidence_se"], flush=True)
        elif again:
            known[name] |= moments(name, options["nuts"])
            REFERENCES.write_text(json.dumps(known, indent=1) + "\n")
            print(name, "means", flush=True)


if __name__ == "__main__":
    main()

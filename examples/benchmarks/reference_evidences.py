"""Reference evidences: each by two methods of this package and one of other software.

Every row is one method on one posterior, with seed, version, CPU seconds and the command that makes it. Rows are appended to
``--file`` as lines of JSON, and what is there is not run again. Ours are importance sampling by nets of points
(``importance``), bridge sampling (``bridge``; from 4 × 600 draws of ``sample_mcmc``, or 4 × 1,000 of nutpie), tempering
SMC (``smc``) and parallel tempering (``tempering``). Others' are ``vegas``, ``nautilus``, and ``quadrature`` by the
trapezoid rule in up to three coordinates; ``exact`` is a closed form. ``reference_collect.py`` makes the file of the
package from the rows.

``--database`` is a checkout of https://github.com/stan-dev/posteriordb, ``--eprv3`` the folder ``data`` of
https://github.com/EPRV3EvidenceChallenge/Inputs. Others' packages are vegas and nautilus-sampler.

Run: python examples/benchmarks/reference_evidences.py --file rows.jsonl --names pima-logit_gaussian --methods importance
     python examples/benchmarks/reference_evidences.py --file rows.jsonl [--database CHECKOUT] [--eprv3 FOLDER] [--families …]
"""

import argparse
import importlib.metadata
import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))
import reference_peer as peer
from evidence_from_draws import nutpie_draws
from reference_models import problems
from rows import append_row, keys_of, read_rows

import ppl_backends as pb
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.marginal_likelihood.proposals import FITS, choose_proposal
from ppl_backends.results.inference_data import group
from ppl_backends.targets.integral import stated_integral

PRECISE = 0.005  # standard error above which importance sampling is done again, from what is fitted to draws
SCRIPT = "python examples/benchmarks/reference_evidences.py"


class Run:
    """One posterior: its target, and draws of NUTS that the methods share."""

    def __init__(self, name, problem, seed):
        self.name, self.problem, self.seed = name, problem, seed
        made = problem.make()
        made, self.exact_value = made if isinstance(made, tuple) else (made, None)
        self.target, self._draws = pb.as_target(made), None
        self.nuts = problem.family == "posteriordb"
        self.label = "4 × 1000 draws of nutpie" if self.nuts else "4 × 600 draws of sample_mcmc"
        if problem.draws is not None:
            x = problem.draws(seed)
            self._draws, self.label = ({"x": x}, x), "4 × 1000 independent draws"

    @property
    def draws(self):
        """Values by name, and unconstrained points ``(chain, draw, dim)``: NUTS by nutpie, or HMC of this package."""
        if self._draws is None:
            self._draws = nutpie_draws(self.target, 1000, self.seed, tune=400) if self.nuts else self._hmc()
        return self._draws

    def _hmc(self):
        idata = pb.sample_mcmc(self.target, draws=600, tune=300, chains=4, random_seed=self.seed, progressbar=False)
        values = {str(name): one.values for name, one in group(idata, "posterior").data_vars.items()}
        flat = {name: one.reshape(-1, *one.shape[2:]) for name, one in values.items()}
        return values, np.asarray(self.target.unconstrain(flat)).reshape(4, 600, self.target.dim)

    @property
    def points(self):
        """Unconstrained points ``(n, dim)``."""
        return self.draws[1].reshape(-1, self.target.dim)

    def importance(self, draws=8192, chains=8, approximation="auto"):
        """Importance sampling by nets of points, from an approximation or from what is fitted to draws."""
        found = self._importance(approximation, draws, chains)
        if (found["trusted"] and found["log_evidence_se"] <= PRECISE) or approximation != "auto":
            return found
        fit = choose_proposal(self.draws[1], "auto", tuple(FITS))
        other = self._importance(FITS[fit](self.points), draws, chains)
        other["options"] = f"proposal fitted to {self.label}: {fit}"
        return min((other, found), key=lambda one: (not one["trusted"], one["log_evidence_se"]))

    def _importance(self, approximation, draws, chains):
        idata = pb.sample_importance(
            self.target,
            approximation=approximation,
            draws=draws,
            chains=chains,
            random_seed=self.seed,
            progressbar=False,
        )
        return of_attrs(idata) | {"options": f"{chains} × {draws} points"}

    def bridge(self):
        """Bridge sampling from draws of a Markov chain."""
        values, _ = self.draws
        found = pb.evidence(values, self.target, method="bridge", random_seed=self.seed)
        return {
            "log_evidence": found.log_evidence,
            "log_evidence_se": found.log_evidence_se,
            "log_evidence_df": found.log_evidence_df,
            "trusted": bool(found.trusted),
            "warnings": list(found.reasons),
            "options": f"{self.label}, proposal {found.proposal}",
        }

    def smc(self, draws=2000, chains=4, initial="auto", **options):
        """Tempering SMC."""
        idata = pb.sample_smc(
            self.target,
            draws=draws,
            chains=chains,
            initial=initial,
            random_seed=self.seed,
            progressbar=False,
            **options,
        )
        start = group(idata, "posterior").attrs["initial"]
        return of_attrs(idata) | {"options": f"{chains} × {draws} particles from {start}"}

    def tempering(self, draws=1000, chains=4, **options):
        """Parallel tempering."""
        idata = pb.sample_tempering(
            self.target, draws=draws, chains=chains, random_seed=self.seed, progressbar=False, **options
        )
        start = group(idata, "posterior").attrs["initial"]
        return of_attrs(idata) | {"options": f"{chains} × {draws} draws from {start}"}

    def vegas(self, **options):
        """Vegas."""
        value, se, df = peer.vegas(self.target.log_density, self.target.dim, self.points, self.seed, **options)
        return theirs(value, se, df, f"map from {self.label}")

    def nautilus(self, **options):
        """Nautilus."""
        value, se, df = peer.nautilus(self.target.log_density, self.target.dim, self.points, self.seed, **options)
        return theirs(value, se, df, f"map from {self.label}, widened")

    def quadrature(self, **options):
        """The trapezoid rule."""
        value, se = peer.quadrature(self.target.log_density, self.target.dim, self.points, **options)
        return theirs(value, se, None, f"trapezoid rule after a map from {self.label}")

    def exact(self):
        """The closed form."""
        return theirs(self.exact_value, 0.0, None, "")


def theirs(value, se, df, options):
    """The figures of a method that is not ours."""
    return {"log_evidence": value, "log_evidence_se": se, "log_evidence_df": df, "trusted": True, "options": options}


def of_attrs(idata):
    """The figures of a result of ours."""
    attrs = group(idata, "posterior").attrs
    warned = attrs.get("warnings", [])
    return {
        "log_evidence": float(attrs["log_evidence"]),
        "log_evidence_se": float(attrs["log_evidence_se"]),
        "log_evidence_df": attrs.get("log_evidence_df"),
        "trusted": bool(attrs["log_evidence_trusted"]),
        "warnings": [warned] if isinstance(warned, str) else list(warned),
    }


SOFTWARE = {
    "importance": ("ours", "ppl_backends"),
    "bridge": ("ours", "ppl_backends"),
    "smc": ("ours", "ppl_backends"),
    "tempering": ("ours", "ppl_backends"),
    "vegas": ("others", "vegas"),
    "nautilus": ("others", "nautilus-sampler"),
    "quadrature": ("others", "numpy"),
    "exact": ("exact", "scipy"),
}


def row(run, method, options):
    """One method on one posterior."""
    clock = time.process_time()
    found = getattr(run, method)(**options)
    by, package = SOFTWARE[method]
    integral = stated_integral(run.target)
    source = " --database CHECKOUT" if run.problem.family == "posteriordb" else ""
    source += " --eprv3 FOLDER" if run.problem.family == "radial velocities" else ""
    return {
        "name": run.name,
        "method": method,
        "dim": run.target.dim,
        "by": by,
        "software": package,
        "version": importlib.metadata.version(package),
        "seed": run.seed,
        "log_prior_normalizer": None if integral is None else integral.log_integral,
        "seconds": round(time.process_time() - clock, 2),
        "command": f"{SCRIPT} --file rows.jsonl --names {run.name} --methods {method} --seed {run.seed}{source}",
    } | found


def missing(options):
    """Names, problems and methods that are not in the file, in the order of ``--names``."""
    done = keys_of(read_rows(options.file), "name", "method")
    known = problems(options.database, options.eprv3)
    for name in options.names or known:
        problem = known[name]
        if options.families and problem.family not in options.families:
            continue
        left = [method for method in options.methods or problem.methods if (name, method) not in done]
        if left:
            yield name, problem, left


def run_missing(options):
    """Append what is missing."""
    for name, problem, methods in missing(options):
        try:
            run = Run(name, problem, options.seed)
        except Exception as error:
            append(
                options.file, {"name": name, "method": methods[0], "skipped": f"{type(error).__name__}: {error}"[:300]}
            )
            continue
        for method in methods:
            try:
                found = row(run, method, problem.options.get(method, {}))
            except Exception as error:  # a failure is a row of the table
                found = {"name": name, "method": method, "skipped": f"{type(error).__name__}: {error}"[:300]}
            append(options.file, found)


def append(file, found):
    """Append a row and print its figures."""
    append_row(file, **found)
    figures = (found.get(key) for key in ("log_evidence", "log_evidence_se", "trusted", "seconds", "skipped"))
    print(found["name"], found["method"], *figures, flush=True)


def main():
    """Run what is missing, collect, export or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--families", nargs="+")
    parser.add_argument("--methods", nargs="+", choices=list(SOFTWARE))
    parser.add_argument("--database", type=Path)
    parser.add_argument("--eprv3", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore", PPLBackendsWarning)  # what is warned of is in the row
    run_missing(options)


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()

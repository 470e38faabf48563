"""Two figures of Ridgway (2015, chapter 1): a Student prior by power EP, and mean field on a correlated normal.

``student``     Figure 1.6: linear regression with a Student prior on every coefficient, noise of known variance, by EP and
                by power EP with the fraction −2/(ν + 1), whose moments need no quadrature, beside importance sampling
                with 2¹⁶ scrambled Sobol points. The data are Boston's house prices, as in the thesis: of the package
                ``particles``, or from ``--file``. Columns are standardised, the noise variance is that of least
                squares, the scale of the prior is 0.1.
``mean_field``  Figure 1.7: the best independent normals for a bivariate normal with correlation 0.99 have variances
                1 − ρ².

Run: python examples/benchmarks/thesis_toolbox.py student | mean_field [--file boston_house_prices.csv]
"""

import argparse
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import ppl_backends as pb
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.results.inference_data import group
from ppl_backends.targets.factors import Normal, StudentT

SCALE = 0.1


def boston(path):
    """Standardised predictors with an intercept, and the response in units of the noise."""
    if path is None:
        path = Path(find_spec("particles").submodule_search_locations[0]) / "datasets" / "boston_house_prices.csv"
    table = np.loadtxt(path, delimiter=",", skiprows=2)
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    X, y = np.column_stack([np.ones(len(table)), table[:, :-1]]), table[:, -1]
    residual = y - X @ np.linalg.lstsq(X, y)[0]
    return X, y, float(np.sqrt(residual @ residual / (len(y) - X.shape[1])))


def student(path):
    """Print errors of EP and power EP, the largest over coefficients and those of the first three."""
    X, y, noise = boston(path)
    d = X.shape[1]
    print(f"{len(y)} rows, {d} coefficients, prior scale {SCALE}, noise {noise:.3f}")
    columns = ["ν", "fraction", "sweeps", "CPU ms", "mean off, sd", "first three", "sd off, %", "log Z", "log Z, exact"]
    print(f"| {' | '.join(columns)} |\n" + "| --- " * len(columns) + "|")
    for nu in (1.0, 4.0, 7.0):
        factors = pb.Factors([X, np.eye(d)], None, [Normal(y, noise), StudentT(np.zeros(d), nu, SCALE)], 0.0, 0.0)
        exact = reference(pb.as_target(factors), pb.fit_ep(factors))
        for fraction in (1.0, "student"):
            clock = time.process_time()
            for _ in range(20):
                q = pb.fit_ep(factors, fraction=fraction)
            milliseconds = 50 * (time.process_time() - clock)
            mean, sd, log_z = exact
            off = np.abs(q.mean - mean) / sd
            print(
                f"| {nu:g} | {fraction} | {q.diagnostics['sweeps']:.0f} | {milliseconds:.1f} | {off.max():.4f} | "
                f"{', '.join(f'{value:.4f}' for value in off[1:4])} | {100 * np.abs(q.sd / sd - 1).max():.2f} | "
                f"{q.log_evidence:.4f} | {log_z:.4f} |",
                flush=True,
            )


def reference(target, q):
    """Means, standard deviations and log evidence by importance sampling from EP's Gaussian with tails."""
    idata = pb.sample_importance(
        target, approximation=q, proposal="defensive", draws=2**13, chains=8, random_seed=1, progressbar=False
    )
    kept = group(idata, "proposal")
    x = np.concatenate(kept[next(name for name in kept.data_vars if name != "log_weight")].values)
    w = np.exp(kept["log_weight"].values.ravel() - kept["log_weight"].values.max())
    w /= w.sum()
    mean = w @ x
    return mean, np.sqrt(w @ (x - mean) ** 2), group(idata, "posterior").attrs["log_evidence"]


def mean_field(rho=0.99):
    """Print the variances of the fit and 1 − ρ²."""
    precision = np.linalg.inv([[1.0, rho], [rho, 1.0]])
    target = pb.FunctionTarget(2, lambda x: (-0.5 * np.einsum("ni,ij,nj->n", x, precision, x), -x @ precision))
    q = pb.fit_vi(target, family="diagonal", random_seed=1, progressbar=False)
    print(f"variances {q.sd[0] ** 2:.6f}, {q.sd[1] ** 2:.6f}; 1 − ρ² = {1 - rho**2:.6f}")


def main():
    """Print one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["student", "mean_field"])
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", PPLBackendsWarning)
    if options.part == "student":
        student(options.file)
    else:
        mean_field()


if __name__ == "__main__":
    main()

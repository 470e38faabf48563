"""Mixtures far apart and spikes by the samplers of this package: shares, evidences, and verdicts.

    python many_modes.py mixtures --repeats 20
    python many_modes.py spikes --repeats 20

Every target has a log evidence of zero. CPU seconds are of this process.
"""

import argparse
import time
import warnings

import numpy as np

import ppl_backends as pb

LOG_2PI = np.log(2 * np.pi)
PRIOR_SD = 10.0


def normals(x, shares, centres, sds):
    """Return the log density ``(n,)`` of a mixture of spherical normals, and its gradient ``(n, dim)``."""
    dim = x.shape[1]
    apart = [(x - centre) / sd for centre, sd in zip(centres, sds, strict=True)]
    logs = np.stack(
        [
            np.log(share) - 0.5 * (z**2).sum(axis=1) - dim * (np.log(sd) + 0.5 * LOG_2PI)
            for share, z, sd in zip(shares, apart, sds, strict=True)
        ]
    )
    total = np.logaddexp.reduce(logs, axis=0)
    belongs = np.exp(logs - total)
    return total, -sum(b[:, None] * z / sd for b, z, sd in zip(belongs, apart, sds, strict=True))


def posterior_of_normals(shares, centres, sds, prior_sd=PRIOR_SD):
    """Return a target whose posterior is a mixture of spherical normals, from the prior N(0, prior_sd² I)."""
    centres = np.atleast_2d(np.asarray(centres, float))
    dim = centres.shape[1]

    def prior(x):
        return normals(x, [1.0], np.zeros((1, dim)), [prior_sd])

    def likelihood(x):
        value, slope = normals(x, shares, centres, sds)
        base, base_slope = prior(x)
        return value - base, slope - base_slope

    return pb.FunctionTarget(dim, likelihood, prior, lambda n, rng: prior_sd * rng.standard_normal((n, dim)))


def two_modes(dim, along="diagonal", sds=(1.0, 1.0)):
    """Return 0.3 N(−c, s₁²) + 0.7 N(c, s₂²), whose means are ten apart along the diagonal, or along one axis."""
    c = np.full(dim, 5.0 / np.sqrt(dim)) if along == "diagonal" else 5.0 * np.eye(dim)[0]
    return posterior_of_normals([0.3, 0.7], [-c, c], sds)


def spike(dim, width, offset):
    """Return 0.1 N(0, 1) + 0.9 N(offset, width²), in every coordinate, from the prior N(0, 3²)."""
    return posterior_of_normals([0.1, 0.9], [np.zeros(dim), np.full(dim, offset)], [1.0, width], prior_sd=3.0)


SPIKES = {
    "d = 2, w = 0.01, concentric": (2, 0.01, 0.0),
    "d = 2, w = 0.01, one sd off": (2, 0.01, 1.0),
    "d = 3, w = 0.03, one sd off": (3, 0.03, 1.0),
    "d = 5, w = 0.05, concentric": (5, 0.05, 0.0),
    "d = 5, w = 0.05, half an sd off": (5, 0.05, 0.5),
    "d = 8, w = 0.1, concentric": (8, 0.1, 0.0),
    "d = 10, w = 0.1, 0.31 sd off": (10, 0.1, 0.31),
    "d = 10, w = 0.02, concentric": (10, 0.02, 0.0),
    "d = 20, w = 0.1, 0.31 sd off": (20, 0.1, 0.31),
    "d = 20, w = 0.1, concentric": (20, 0.1, 0.0),
}
MIXTURES = {
    "d = 20, along the diagonal": lambda: two_modes(20),
    "d = 20, along an axis": lambda: two_modes(20, "axis"),
    "d = 20, sds 1.2 and 1": lambda: two_modes(20, "diagonal", (1.2, 1.0)),
    "d = 50, along the diagonal": lambda: two_modes(50),
    "d = 50, along an axis": lambda: two_modes(50, "axis"),
    "d = 50, sds 1.2 and 1": lambda: two_modes(50, "diagonal", (1.2, 1.0)),
}
METHODS = {
    "smc prior": lambda target, seed: pb.sample_smc(target, random_seed=seed, progressbar=False),
    "smc auto": lambda target, seed: pb.sample_smc(target, initial="auto", random_seed=seed, progressbar=False),
    "importance": lambda target, seed: pb.sample_importance(target, random_seed=seed, progressbar=False),
    "tempering": lambda target, seed: pb.sample_tempering(target, random_seed=seed, progressbar=False),
}


def run(method, target, seed):
    """Return the draws ``(n, dim)``, attributes, and CPU seconds of one call."""
    clock = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = METHODS[method](target, seed)
    x = idata.posterior["x"].values
    return x.reshape(-1, x.shape[-1]), idata.posterior.attrs, time.process_time() - clock


def table(targets, methods, repeats, first_seed, share_of):
    """Print a row for every target and method."""
    print(
        "| target | method | runs | share within 0.03 | error of log Z, mean, largest | wrong, trusted | trusted | CPU s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, make in targets.items():
        for method in methods:
            rows = []
            for seed in range(first_seed, first_seed + repeats):
                x, attrs, seconds = run(method, make(), seed)
                share, truth = share_of(name, x)
                trusted = bool(attrs["log_evidence_trusted"])
                error = attrs["log_evidence"]
                z = abs(error) / max(attrs["log_evidence_se"], 1e-9)
                wrong = abs(share - truth) > 0.1 or (abs(error) > 0.2 and z > 4)
                rows.append((abs(share - truth) < 0.03, error, wrong and trusted, trusted, seconds))
            near, error, bad, trusted, seconds = np.array(rows, float).T
            print(
                f"| {name} | {method} | {repeats} | {near.mean():.0%} | {error.mean():+.3f}, {np.abs(error).max():.3f} | "
                f"{bad.sum():.0f} | {trusted.mean():.0%} | {seconds.mean():.1f} |",
                flush=True,
            )


def share_of_mixture(name, x):
    """Return the share of the draws in the smaller mode, and the true one."""
    side = x[:, 0] if "axis" in name else x.sum(axis=1)
    return float(np.mean(side < 0)), 0.3


def share_of_spike(name, x):
    """Return the share of the draws in the spike, and the true one."""
    dim, width, offset = SPIKES[name]
    return float(np.mean(((x - offset) ** 2).sum(axis=1) < 4 * width**2 * (dim + 4))), 0.9


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["mixtures", "spikes"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    chosen = MIXTURES if options.what == "mixtures" else {k: (lambda v=v: spike(*v)) for k, v in SPIKES.items()}
    chosen = {name: make for name, make in chosen.items() if options.only in name}
    share = share_of_mixture if options.what == "mixtures" else share_of_spike
    table(chosen, options.methods, options.repeats, options.seed, share)

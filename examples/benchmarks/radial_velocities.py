"""Planets in radial velocities: evidences of the six sets of Nelson et al. (2020), and their spread over seeds.

The model is that of ``model.tex`` of EPRV3EvidenceChallenge/Inputs: Keplerian orbits, an offset and a jitter, under noise of
known correlation, with the challenge's narrow priors of periods. Angles are not coordinates here, because a posterior
around 0 and 2π would be cut in two. Eccentricity e and argument ω are in (h, k) = (e cos ω, e sin ω) / 0.2, of which the
prior is a standard normal within e < 1. The mean longitude λ at the mean time is that of a point whose distance from the
origin is a normal around one, with a standard deviation of 0.15, and independent of everything else. Neither the volume of
the prior nor the evidence depends on this choice. Jitter, offset, log periods and log amplitudes have uniform priors, and
the logits of these uniforms are coordinates.

Run: python examples/benchmarks/radial_velocities.py --eprv3 FOLDER --file rows.jsonl [--planets 1 2 3] [--seeds 5]
     python examples/benchmarks/radial_velocities.py --file rows.jsonl --print
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from rows import append_row, keys_of, read_rows
from scipy.special import expit, logit, ndtri

import ppl_backends as pb
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.results.inference_data import group

LOG_2PI = np.log(2 * np.pi)
ECCENTRICITY = 0.2  # scale of its Rayleigh distribution
OUTSIDE = np.exp(-0.5 / ECCENTRICITY**2)  # its mass above one
RING = 0.15  # standard deviation of the radius whose angle is the mean longitude
LOG_JITTERS, LARGEST_OFFSET, LOG_AMPLITUDES = np.log(100.0), 1000.0, np.log(1000.0)
ROWS = 1000  # points evaluated at once
METHODS = {
    "importance": lambda target, seed: pb.sample_importance(target, random_seed=seed, progressbar=False),
    "smc": lambda target, seed: pb.sample_smc(target, initial="auto", draws=1000, random_seed=seed, progressbar=False),
}


class RadialVelocities:
    """A challenge of Nelson et al. (2020): Keplerian orbits, an offset and jitter under correlated noise.

    Parameters
    ----------
    table : ndarray (n, 3)
        Times in days, velocities and their errors in m/s.
    periods : ndarray (planets, 2)
        Bounds of the periods.
    """

    def __init__(self, table, periods):
        time, self.velocity, errors = table.T
        lag = time[:, None] - time
        kernel = 3.0 * np.exp(-0.5 * (np.sin(np.pi * lag / 20.0) ** 2 / 0.5**2 + lag**2 / 50.0**2))
        self.values, self.vectors = np.linalg.eigh(kernel + np.diag(errors**2))
        self.time = time - time.mean()
        self.log_periods = np.log(np.asarray(periods, float).reshape(-1, 2))
        self.planets = len(self.log_periods)
        self.dim = 2 + 6 * self.planets
        first = 2 + 6 * np.arange(self.planets)
        self.uniform = np.concatenate([[0, 1], np.ravel(first[:, None] + [0, 1])])
        # (h, k) and the point of the mean longitude, of each planet
        self.pairs = np.ravel(first[:, None] + [2, 3, 4, 5])

    def target(self):
        """Return the target."""
        return pb.FunctionTarget(
            self.dim,
            self.log_likelihood,
            self.log_prior,
            sample_prior=lambda n, rng: self.from_uniform(rng.random((n, self.dim))),
            prior_from_uniform=self.from_uniform,
        )

    def from_uniform(self, u):
        """Return the points ``(n, dim)`` of the prior that uniforms give."""
        x = np.empty_like(u)
        x[:, self.uniform] = logit(u[:, self.uniform])
        radius, turn = np.moveaxis(u[:, self.pairs].reshape(len(u), self.planets, 2, 2), 3, 0)
        radius = np.stack(
            [np.sqrt(-2 * np.log1p(-radius[:, :, 0] * (1 - OUTSIDE))), 1 + RING * ndtri(radius[:, :, 1])], axis=2
        )
        x[:, self.pairs] = np.stack(
            [radius * np.cos(2 * np.pi * turn), radius * np.sin(2 * np.pi * turn)], axis=3
        ).reshape(len(u), -1)
        return x

    def log_prior(self, x):
        """Return the log prior ``(n,)`` and its gradient."""
        flat, pairs = x[:, self.uniform], x[:, self.pairs].reshape(len(x), self.planets, 2, 2)
        shape, place = pairs[:, :, 0], pairs[:, :, 1]
        square, radius = (shape**2).sum(axis=2), np.hypot(*np.moveaxis(place, 2, 0))
        of_radius = -0.5 * ((radius - 1) / RING) ** 2 - 0.5 * LOG_2PI - np.log(RING) - LOG_2PI - np.log(radius)
        value = -(np.logaddexp(0, flat) + np.logaddexp(0, -flat)).sum(axis=1)
        value += (-0.5 * square - LOG_2PI - np.log1p(-OUTSIDE) + of_radius).sum(axis=1)
        value = np.where((ECCENTRICITY**2 * square < 1).all(axis=1), value, -np.inf)
        slope, slopes = np.empty_like(x), np.empty_like(pairs)
        slope[:, self.uniform] = 1 - 2 * expit(flat)
        slopes[:, :, 0] = -shape
        slopes[:, :, 1] = ((-(radius - 1) / RING**2 - 1 / radius) / radius)[:, :, None] * place
        slope[:, self.pairs] = slopes.reshape(len(x), -1)
        return value, slope

    def log_likelihood(self, x):
        """Return the log likelihood ``(n,)`` and its gradient."""
        found = [self._block(block) for block in np.array_split(x, max(1, len(x) // ROWS))]
        return tuple(np.concatenate(part) for part in zip(*found, strict=True))

    def _block(self, x):
        u = expit(x)
        slope_u = u * (1 - u)
        jitter = np.expm1(u[:, 0] * LOG_JITTERS)
        residual = self.velocity - LARGEST_OFFSET * (2 * u[:, 1:2] - 1)
        orbits = []
        for j, log_periods in enumerate(self.log_periods):
            own = slice(2 + 6 * j, 8 + 6 * j)
            orbits.append(Orbit(self.time, x[:, own], u[:, own], slope_u[:, own], log_periods))
            residual = residual - orbits[-1].velocity
        turned, spread = residual @ self.vectors, self.values + jitter[:, None] ** 2
        white = turned / spread
        value = -0.5 * (turned * white + np.log(spread) + LOG_2PI).sum(axis=1)
        pull = white @ self.vectors.T  # of the log likelihood along the model's velocities
        of_jitter = (white**2 - 1 / spread).sum(axis=1) * jitter * (jitter + 1) * LOG_JITTERS * slope_u[:, 0]
        of_offset = pull.sum(axis=1) * 2 * LARGEST_OFFSET * slope_u[:, 1]
        return value, np.column_stack([of_jitter, of_offset, *(orbit.slope(pull) for orbit in orbits)])


class Orbit:
    """The velocities ``(n, times)`` that one planet causes, at points ``x`` ``(n, 6)``.

    ``u`` are the inverse logits of the points and ``slope_u`` their derivatives.
    """

    def __init__(self, time, x, u, slope_u, log_periods):
        low, high = log_periods
        self.time, self.x, self.slope_u, self.range = time, x, slope_u, high - low
        self.period = np.exp(low + self.range * u[:, 0])[:, None]
        self.amplitude = np.expm1(u[:, 1] * LOG_AMPLITUDES)[:, None]
        self.h, self.k = ECCENTRICITY * x[:, 2:3], ECCENTRICITY * x[:, 3:4]
        self.e, self.argument = np.clip(np.hypot(self.h, self.k), 1e-9, 0.999999), np.arctan2(self.k, self.h)
        mean = 2 * np.pi * time / self.period + np.arctan2(x[:, 5:6], x[:, 4:5]) - self.argument
        eccentric = eccentric_anomaly(mean - 2 * np.pi * np.round(mean / (2 * np.pi)), self.e)
        cosine, sine = np.cos(eccentric), np.sin(eccentric)
        self.root, self.q = np.sqrt(1 - self.e**2), 1 - self.e * cosine
        self.cos_true, self.sin_true = (cosine - self.e) / self.q, self.root * sine / self.q
        cos_w, sin_w = np.cos(self.argument), np.sin(self.argument)
        self.cos_w, self.sin_w = cos_w, sin_w
        self.sine = self.sin_true * cos_w + self.cos_true * sin_w  # of true anomaly plus argument
        self.shape = self.cos_true * cos_w - self.sin_true * sin_w + self.e * cos_w
        self.velocity = self.amplitude * self.shape

    def slope(self, pull):
        """Return derivatives ``(n, 6)`` of a function whose derivatives by the velocities are ``pull`` ``(n, times)``."""
        e, amplitude = self.e, self.amplitude
        by_mean = -amplitude * self.sine * self.root / self.q**2
        by_e = -amplitude * self.sine * self.sin_true * (2 + e * self.cos_true) / (1 - e**2) + amplitude * self.cos_w
        by_argument = -amplitude * (self.sine + e * self.sin_w) - by_mean
        of_mean = pull * by_mean
        of_longitude, of_e, of_argument = (
            part.sum(axis=1, keepdims=True) for part in (of_mean, pull * by_e, pull * by_argument)
        )
        of_period = -(of_mean @ self.time)[:, None] * 2 * np.pi / self.period
        of_amplitude = (pull * self.shape).sum(axis=1, keepdims=True)
        along, across = self.x[:, 4:5], self.x[:, 5:6]
        square = along**2 + across**2
        return np.hstack(
            [
                of_period * self.range * self.slope_u[:, :1],
                of_amplitude * (amplitude + 1) * LOG_AMPLITUDES * self.slope_u[:, 1:2],
                ECCENTRICITY * (of_e * self.h / e - of_argument * self.k / e**2),
                ECCENTRICITY * (of_e * self.k / e + of_argument * self.h / e**2),
                -of_longitude * across / square,
                of_longitude * along / square,
            ]
        )


def eccentric_anomaly(mean, e):
    """Return the solution E of E − e sin E = M, for M from −π to π: Danby's start, Newton's steps of third order."""
    eccentric = mean + 0.85 * e * np.sign(mean)
    for _ in range(10):
        sine, cosine = e * np.sin(eccentric), e * np.cos(eccentric)
        off, slope = eccentric - sine - mean, 1 - cosine
        step = off / (slope - 0.5 * off * sine / slope)
        eccentric = eccentric - step
        if np.abs(step).max() < 1e-5:  # its third power is below the precision of a double
            break
    return eccentric


def read(folder, number):
    """Return the table of a set and the bounds ``(3, 2)`` of its periods."""
    lines = (folder / f"prior_bounds_000{number}.txt").read_text().split("\n")
    bounds = np.array([[float(one) for one in line.split(",")[2:]] for line in lines if line.strip()])
    return np.loadtxt(folder / f"rvs_000{number}.txt"), bounds


def row(number, planets, method, seed, target):
    """Return the figures of one run."""
    clock = time.process_time()
    attrs = group(METHODS[method](target, seed), "posterior").attrs
    return {
        "set": number,
        "planets": planets,
        "method": method,
        "seed": seed,
        "log_evidence": float(attrs["log_evidence"]),
        "se": float(attrs["log_evidence_se"]),
        "trusted": int(attrs["log_evidence_trusted"]),
        "seconds": time.process_time() - clock,
    }


def table(rows):
    """Print the table as Markdown."""
    print("| set | planets | method | seeds | log evidence: mean, range | median se | trusted | published | CPU s |")
    print("| --- " * 9 + "|")
    for key in dict.fromkeys((one["set"], one["planets"], one["method"]) for one in rows):
        these = [one for one in rows if (one["set"], one["planets"], one["method"]) == key]
        found = np.array([one["log_evidence"] for one in these])
        known = pb.datasets.reference_evidence(f"eprv3_000{key[0]}-{key[1]}_planets")
        others = [known.estimate, *known.cross_checks]
        published = sorted(one.log_evidence for one in others if one.method.startswith("published"))
        print(
            f"| {key[0]} | {key[1]} | {key[2]} | {len(these)} | {found.mean():.3f}, {np.ptp(found):.3f} | "
            f"{np.median([one['se'] for one in these]):.3f} | {sum(one['trusted'] for one in these)} | "
            f"{published[0]:.1f} to {published[-1]:.1f} | {np.mean([one['seconds'] for one in these]):.0f} |"
        )


def main():
    """Run what is missing, or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eprv3", type=Path, help="the folder data of EPRV3EvidenceChallenge/Inputs")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--sets", type=int, nargs="+", default=range(1, 7))
    parser.add_argument("--planets", type=int, nargs="+", default=[3])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    rows = read_rows(options.file)
    if options.print:
        return table(rows)
    warnings.simplefilter("ignore", PPLBackendsWarning)
    known = keys_of(rows, "set", "planets", "method", "seed")
    for seed in range(1, options.seeds + 1):
        for number in options.sets:
            observed, bounds = read(options.eprv3, number)
            for planets in options.planets:
                target = RadialVelocities(observed, bounds[:planets]).target()
                for method in options.methods:
                    if (number, planets, method, seed) not in known:
                        append_row(options.file, **row(number, planets, method, seed, target))


if __name__ == "__main__":
    main()

"""All posteriors with a reference evidence: name, program in words or as Stan text, data, and how it is integrated."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import radial_velocities
import reference_closed as closed
import reference_series as series
from posteriordb_smc import names_with_references, read_target, read_zip
from radial_velocities import RadialVelocities
from reference_regressions import describe, raw_data, regression
from scipy import stats

from ppl_backends import GaussianApproximation

STANDARD = ("importance", "bridge", "vegas")


@dataclass(frozen=True)
class Problem:
    """One posterior.

    Attributes
    ----------
    family : str
    make : callable
        ``() -> target``, or ``() -> (target, exact log evidence)``.
    program : callable
        ``() -> str``: Stan's text, or the density in words.
    data : callable
        ``() -> dict`` of numbers, lists and text.
    methods : tuple of str
        What is run by default.
    improper : bool
    note : str
    dim : int
        Where nothing is run.
    options : dict
        Options of the methods, by method.
    prior_integral : float, optional
        Log integral of the prior as written, where it is known.
    draws : callable, optional
        ``seed -> (chain, draw, dim)``, independent draws of the posterior.
    """

    family: str
    make: Callable
    program: Callable
    data: Callable
    methods: tuple = STANDARD
    improper: bool = False
    note: str = ""
    dim: int = 0
    options: dict = field(default_factory=dict)
    prior_integral: float | None = None
    draws: Callable | None = None


def words(text):
    """A program in words."""
    return lambda: text


def of(function, *arguments):
    """A program that is the docstring of the function that makes it, with its arguments."""
    text = " ".join(function.__doc__.split())
    return words(text if not arguments else f"{text} Arguments: {', '.join(map(str, arguments))}.")


def regressions():
    """The sets of the package with four pairs of prior and link, unit priors, and the two flat ones of a suite."""
    found = {}
    small = ("plasma", "pima", "breast_wisconsin", "glass", "heart", "australian", "german_credit")
    large = ("breast_cancer", "ionosphere", "sonar", "musk")
    prepared = ("german_credit", "breast_cancer", "sonar", "musk")
    for name in small + large:
        for link in ("logit", "probit"):
            for prior in ("gaussian", "cauchy", "unit"):
                scaling = "raw" if prior == "unit" and name in prepared else "gelman"
                if name == "ionosphere" and prior == "unit":
                    scaling = "unit"
                if name in ("glass", "breast_cancer") and prior == "unit":
                    continue
                found[f"{name}-{link}_{prior}"] = Problem(
                    "binary regression",
                    partial(regression, name, link, prior, scaling),
                    words(describe(link, prior, scaling)),
                    partial(raw_data, name),
                )
    return found


def closed_forms():
    """Exact evidences."""
    conjugate = {
        "hald-normal_inverse_gamma": (closed.hald, (), lambda: {"hald": closed.HALD.tolist()}),
        "horse_kicks-gamma_poisson": (closed.horse_kicks, (), lambda: closed.HORSE_KICKS),
        "peas-dirichlet_multinomial": (closed.peas, (), lambda: {"counts": closed.PEAS}),
        "eight_schools-pooled": (closed.pooled_schools, (), dict),
        "nile-states": (closed.nile_states, (), lambda: {"nile": closed.NILE.tolist()}),
    }
    for dim in (5, 20, 50):
        conjugate[f"gaussian_regression-{dim}"] = (closed.gaussian_regression, (dim,), dict)
    hard = {
        "funnel-6": (closed.funnel, (6,)),
        "funnel-10": (closed.funnel, (10,)),
        "funnel-20": (closed.funnel, (20,)),
        "funnel-100": (closed.funnel, (100,)),
        "four_gaussians-1": (closed.four_bumps, ()),
        "forty_gaussians-2": (closed.forty_gaussians, ()),
        "student_mixture-2": (closed.student_mixture, ()),
        "many_well-32": (closed.many_well, (32,)),
        "eggbox-2": (closed.eggbox, ()),
        "shells-2": (closed.shells, (2,)),
        "shells-10": (closed.shells, (10,)),
    }
    found = {}
    for name, (make, arguments, data) in conjugate.items():
        found[name] = Problem(
            "conjugate model", partial(make, *arguments), of(make, *arguments), data, ("exact", *STANDARD)
        )
    for name, (make, arguments) in hard.items():
        found[name] = Problem(
            "normalising constant", partial(make, *arguments), of(make, *arguments), dict, ("exact", "smc", "tempering")
        )
    found["funnel-100"] = replace(
        found["funnel-100"], methods=("exact", "bridge"), draws=partial(closed.funnel_draws, 100)
    )
    # The path begins where all modes are: at the prior, or without one at a wide Gaussian.
    starts = {name: "prior" for name in ("eggbox-2", "shells-2", "shells-10")}
    starts["many_well-32"] = GaussianApproximation(np.zeros(32), cholesky=np.full(32, 1.5))
    for name, start in starts.items():
        found[name] = replace(found[name], options={"smc": {"initial": start}, "tempering": {"initial": start}})
    found["many_well-32"] = replace(
        found["many_well-32"],
        methods=(*found["many_well-32"].methods, "vegas"),
        draws=partial(closed.many_well_draws, 32),
        options=found["many_well-32"].options | {"vegas": {"evaluations": 200_000, "rotate": False, "adapt": 30}},
    )
    return found


def time_series():
    """States integrated out exactly, the g-and-k distribution and Cox processes."""
    quadrature = ("importance", "bridge", "quadrature")
    known = {
        "linear_gaussian_100-stationary": (
            "state-space model",
            series.linear_gaussian,
            ("smc", "tempering", "quadrature"),
        ),
        "nile-local_level": ("state-space model", series.nile_variances, quadrature),
        "stochastic_volatility_400-stationary": ("state-space model", series.volatility, quadrature),
        "g_and_k_100-uniform": ("g-and-k", series.g_and_k, STANDARD),
    }
    data = {
        "linear_gaussian_100-stationary": lambda: {"y": read_series("linear_gaussian")},
        "nile-local_level": lambda: {"nile": closed.NILE.tolist()},
        "stochastic_volatility_400-stationary": lambda: {"y": read_series("stochastic_volatility")},
        "g_and_k_100-uniform": lambda: {"y": [float(f"{one:.10g}") for one in series.quantile_data()]},
    }
    found = {
        name: Problem(family, make, of(make), data[name], methods) for name, (family, make, methods) in known.items()
    }
    slow = "stochastic_volatility_400-stationary"  # 2 ms a likelihood
    found[slow] = replace(
        found[slow],
        methods=("importance", "smc", "quadrature"),
        options={
            "importance": {"draws": 512, "approximation": "laplace"},
            "smc": {"draws": 250, "initial": "prior", "kernel": "random_walk"},
            "quadrature": {"points": 27},
        },
    )
    for side in (10, 20):
        found[f"finpines-cox_{side**2}"] = Problem(
            "Cox process",
            partial(series.cox, side),
            of(series.cox, side),
            pines,
            ("importance", "smc", "bridge", "vegas"),
        )
    return found


def pines():
    """Positions of the pines."""
    from ppl_backends.datasets import load_finpines

    return {"positions": load_finpines().tolist()}


def read_series(name):
    """A series of the tests."""
    return np.loadtxt(series.SERIES / f"{name}.csv", skiprows=1).tolist()


def planets(folder):
    """The challenge on radial velocities with its narrow priors of periods, for its six sets."""
    if folder is None:
        return {}
    found = {}
    for number in range(1, 7):
        table, bounds = radial_velocities.read(folder, number)
        for count in (0, 1, 2, 3):
            coordinates = ", eccentricities and angles in Cartesian ones" if count else ""
            found[f"eprv3_000{number}-{count}_planets"] = Problem(
                "radial velocities",
                lambda table=table, bounds=bounds, count=count: RadialVelocities(table, bounds[:count]).target(),
                words(
                    " ".join(RadialVelocities.__doc__.split("\n")[0].split())
                    + f" Planets: {count}; priors and noise of model.tex of EPRV3EvidenceChallenge/Inputs, periods log "
                    f"uniform on {bounds[:count].tolist()}; uniforms in logit coordinates{coordinates}."
                ),
                lambda table=table: {"t_v_error": table.tolist()},
                ("smc", "importance") if count else ("importance", "bridge", "quadrature"),
                note="Published values of five teams, which disagree." if count else "",
                options={"smc": {"draws": 1000}} if count else {},
            )
    return found


# Posteriors of posteriordb without reference draws, with proper priors and one mode, that cost little.
WITHOUT_DRAWS = (
    "GLM_Binomial_data-GLM_Binomial_model",
    "GLM_Poisson_Data-GLM_Poisson_model",
    "Rate_1_data-Rate_1_model",
    "Rate_2_data-Rate_2_model",
    "Rate_3_data-Rate_3_model",
    "Rate_4_data-Rate_4_model",
    "Rate_5_data-Rate_5_model",
    "dogs-dogs",
    "dogs-dogs_log",
    "dugongs_data-dugongs_model",
    "seeds_data-seeds_model",
    "seeds_data-seeds_stanified_model",
    "surgical_data-surgical_model",
    "GLMM_Poisson_data-GLMM_Poisson_model",
    "sir-sir",
    "soil_carbon-soil_incubation",
    "M0_data-M0_model",
    "Mb_data-Mb_model",
    "Mt_data-Mt_model",
)
# A parameter without a statement has a flat prior in Stan.
IMPROPER = ("earnings-", "kidiq", "mesquite-", "nes1", "nes2", "garch-", "kilpisjarvi")
FLAT = "A parameter has a flat prior without bounds, so that the value, if there is one, is up to a constant."
# Curved or with several modes: nested sampling is the method of others.
NESTED = (
    "eight_schools-eight_schools_centered",
    "eight_schools-eight_schools_noncentered",
    "gp_pois_regr-gp_pois_regr",
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs",
    "low_dim_gauss_mix-low_dim_gauss_mix",
    "hmm_example-hmm_example",
)
HALF = -float(np.log(2))  # a density that a bound cuts in two, or an order of two coordinates of the same prior
ABOVE_ZERO = stats.truncnorm(-3, np.inf, loc=3)  # the first mean of the hidden Markov model, before its order
PRIOR_INTEGRALS = {
    "sblrc-blr": HALF,
    "sblri-blr": HALF,
    "arK-arK": HALF,
    "arma-arma11": HALF,
    "gp_pois_regr-gp_regr": 2 * HALF,
    "gp_pois_regr-gp_pois_regr": HALF,
    "low_dim_gauss_mix-low_dim_gauss_mix": 3 * HALF,
    "bball_drive_event_0-hmm_drive_0": 2 * float(np.log(stats.norm.expect(lambda m: stats.norm.sf(m - 3), lb=0))),
    "bball_drive_event_1-hmm_drive_1": 2 * float(stats.norm.logcdf(3 / np.sqrt(2))),
    "hudson_lynx_hare-lotka_volterra": 2 * float(stats.norm.logcdf(2) + stats.norm.logcdf(1)),
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs": 4 * HALF,
    "diamonds-diamonds": 0.0,
    "mcycle_gp-accel_gp": 0.0,
    "hmm_example-hmm_example": float(
        stats.norm.logcdf(3) + np.log(ABOVE_ZERO.expect(lambda m: stats.norm.cdf(10 - m)))
    ),
    "eight_schools-eight_schools_centered": HALF,
    "eight_schools-eight_schools_noncentered": HALF,
}
CLOSED = {name: closed.eight_schools for name in PRIOR_INTEGRALS if name.startswith("eight_schools")} | {
    "diamonds-diamonds": closed.diamonds
}


def posteriordb(database):
    """Posteriors of posteriordb, as Stan programs."""
    if database is None:
        return {}
    root, found = database / "posterior_database", {}
    for name in [*names_with_references(database), *WITHOUT_DRAWS]:
        about = json.loads((root / "posteriors" / f"{name}.json").read_text())
        program = root / "models" / "stan" / f"{about['model_name']}.stan"
        read = partial(read_target, name, database)
        data = partial(read_zip, root / "data" / "data" / f"{about['data_name']}.json.zip")
        found[name] = Problem(
            "posteriordb",
            partial(with_exact, read, CLOSED[name], data) if name in CLOSED else read,
            program.read_text,
            data,
            ("importance", "bridge", "nautilus" if name in NESTED else "vegas"),
            improper=name.startswith(IMPROPER),
            note=FLAT if name.startswith(IMPROPER) else "",
            dim=sum(int(np.prod(size)) for size in about["dimensions"].values()),
            prior_integral=PRIOR_INTEGRALS.get(name),
        )
    return found


def with_exact(read, exact, data):
    """A target and its exact log evidence, a function of the data."""
    return read(), exact(data())


def problems(database=None, eprv3=None):
    """All of them, by name."""
    return (
        closed_forms()
        | time_series()
        | regressions()
        | posteriordb(Path(database) if database else None)
        | planets(Path(eprv3) if eprv3 else None)
    )

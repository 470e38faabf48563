"""The demonstration of ``ppl-backends demo``: one real data set, three methods, and the time of each.

The model is the logistic regression of Chopin & Ridgway (2017) on the Pima data: standardised predictors and the
weakly informative prior of Gelman et al. (2008), independent Cauchy distributions of scale 10 for the intercept and 2.5
for the other coefficients. Laplace approximates its posterior by a Gaussian at the mode; importance sampling corrects
draws of that Gaussian by weights; tempering SMC moves particles from the prior to the posterior. The last two are exact
up to Monte Carlo error, so their evidences agree within their standard errors. Laplace's evidence has a bias.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.datasets import load_binary_regression
from ppl_backends.results.inference_data import group


class Answer(NamedTuple):
    """One method's evidence: a row of the demo's table."""

    method: str
    accuracy: str
    log_evidence: float
    standard_error: float
    seconds: float


def pima_model() -> Any:
    """Return logistic regression on the Pima data in PyMC, with Cauchy priors of scale 10 (intercept) and 2.5."""
    import pymc as pm

    X, y, names, _ = load_binary_regression("pima")
    scale = np.where(np.arange(len(names)) == 0, 10.0, 2.5)
    with pm.Model(coords={"predictor": names}) as model:
        beta = pm.Cauchy("beta", alpha=0.0, beta=scale, dims="predictor")
        pm.Bernoulli("diabetes", logit_p=X @ beta, observed=y)
    return model


def run_demo(draws: int, random_seed: int | None, progressbar: bool) -> tuple[list[Answer], Any, Any]:
    """Run Laplace, importance sampling and SMC on the Pima model; return answers, Laplace, and SMC's InferenceData."""
    import ppl_backends as pb

    model = pima_model()
    start = time.perf_counter()
    laplace = pb.fit_laplace(model, progressbar=progressbar)
    answers = [Answer("Laplace", "approximate", laplace.log_evidence, float("nan"), time.perf_counter() - start)]
    settings = {"draws": draws, "random_seed": random_seed, "progressbar": progressbar}
    importance = pb.sample_importance(model, approximation=laplace, **settings)
    smc = pb.sample_smc(model, **settings)
    for name, idata in (("importance sampling", importance), ("tempering SMC", smc)):
        attrs = group(idata, "posterior").attrs
        figures = (float(attrs[key]) for key in ("log_evidence", "log_evidence_se", "sampling_time"))
        answers.append(Answer(name, attrs["accuracy"], *figures))
    return answers, laplace, smc


def plot_posterior(idata: Any, laplace: Any, path: Path) -> None:
    """Plot histograms of the coefficients' draws with Laplace's Gaussian marginals on top, and save the figure."""
    from matplotlib.figure import Figure

    beta = group(idata, "posterior")["beta"]
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots(2, 4)
    for j, (axis, name) in enumerate(zip(axes.flat, beta["predictor"].values, strict=True)):
        draws = beta.values[..., j].ravel()
        low, high = np.quantile(draws, [0.0005, 0.9995])
        grid = np.linspace(low, high, 200)
        sd = np.sqrt(laplace.cov[j, j])
        density = np.exp(-0.5 * ((grid - laplace.mean[j]) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
        axis.hist(draws, bins=60, range=(low, high), density=True, color="C0", alpha=0.45, label="tempering SMC")
        axis.plot(grid, density, color="C1", label="Laplace")
        axis.axvline(0.0, color="0.6", linewidth=0.8, zorder=0)
        axis.set(title=name, yticks=[])
        axis.spines[["left", "top", "right"]].set_visible(False)
    figure.suptitle("Pima: coefficients of the logistic regression, Cauchy prior")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="upper right", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)

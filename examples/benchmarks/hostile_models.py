"""PyMC models for ``hostile_cases.py`` whose verdicts are easily wrong: curved posteriors, and mixtures.

Their posteriors have no closed form. Means and standard deviations come from 4 chains of 10,000 draws of nutpie, log
evidences from 8 runs of 8,000 particles from the prior. Both are stored in ``hostile_models.json``.

Run: python examples/benchmarks/hostile_models.py [NAME ...]      (computes the references again)
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pymc as pm

sys.path.insert(0, str(Path(__file__).parent))
from hostile_targets import Case

REFERENCES = Path(__file__).with_suffix(".json")


def student_hierarchy():
    """Return a non-centred Student hierarchy: ten groups, location, spread, scale and degrees of freedom."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(10), 12)
    y = (1.0 + rng.standard_normal(10))[group] + 0.8 * rng.standard_t(4, size=len(group))
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2)
        sigma, nu = pm.HalfNormal("sigma", 2), pm.Gamma("nu", 2, 0.1)
        z = pm.Normal("z", 0, 1, shape=10)
        pm.StudentT("y", nu=nu, mu=mu + tau * z[group], sigma=sigma, observed=y)
    return model


def negative_binomial():
    """Return a non-centred hierarchy of counts: 26 groups."""
    rng = np.random.default_rng(4)
    group, x = np.repeat(np.arange(26), 8), rng.standard_normal(208)
    y = rng.poisson(np.exp((1.0 + 0.7 * rng.standard_normal(26))[group] + 0.4 * x) * rng.gamma(2.0, 0.5, size=208))
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1)
        tau, alpha = pm.HalfNormal("tau", 1), pm.Exponential("alpha", 0.5)
        z = pm.Normal("z", 0, 1, shape=26)
        pm.NegativeBinomial("y", mu=pm.math.exp(a + tau * z[group] + b * x), alpha=alpha, observed=y)
    return model


def _schools(centred):
    effects, errors = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=8) if centred else mu + tau * pm.Normal("z", 0, 1, shape=8)
        pm.Normal("y", theta, errors, observed=effects)
    return model


def group_effect():
    """Return a linear regression with group intercepts, as Bambi writes it."""
    rng = np.random.default_rng(5)
    group, x = np.repeat(np.arange(12), 10), rng.standard_normal(120)
    y = 2.0 + 0.5 * x + (0.3 * rng.standard_normal(12))[group] + rng.standard_normal(120)
    with pm.Model() as model:
        intercept, slope = pm.Normal("Intercept", 2, 3), pm.Normal("x", 0, 2.5)
        spread = pm.HalfNormal("1|g_sigma", 3)
        offset = pm.Normal("1|g_offset", 0, 1, shape=12)
        sigma = pm.HalfStudentT("sigma", 4, 1.2)
        pm.Normal("y", intercept + slope * x + (spread * offset)[group], sigma, observed=y)
    return model


def ordered_mixture(k, centres, n, seed):
    """Return a mixture of k normals with ordered means."""
    rng = np.random.default_rng(seed)
    y = np.asarray(centres)[rng.integers(len(centres), size=n)] + rng.standard_normal(n)
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.full(k, 2.0))
        mu = pm.Normal(
            "mu", 0, 5, shape=k, transform=pm.distributions.transforms.ordered, initval=np.linspace(-3, 3, k)
        )
        sigma = pm.HalfNormal("sigma", 2)
        pm.NormalMixture("y", w=w, mu=mu, sigma=sigma, observed=y)
    return model


def horseshoe():
    """Return a regression with a centred horseshoe prior on eight slopes, two of them real."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((60, 8))
    y = x[:, 0] * 2.0 - x[:, 1] + rng.standard_normal(60)
    with pm.Model() as model:
        tau, lam = pm.HalfCauchy("tau", 0.5), pm.HalfCauchy("lam", 1, shape=8)
        beta = pm.Normal("beta", 0, tau * lam, shape=8)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", x @ beta, sigma, observed=y)
    return model


def student_regression():
    """Return a robust regression with unknown degrees of freedom."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((80, 3))
    y = x @ np.array([1.0, -0.5, 0.0]) + 0.7 * rng.standard_t(3, size=80)
    with pm.Model() as model:
        beta, sigma, nu = pm.Normal("beta", 0, 2, shape=3), pm.HalfNormal("sigma", 2), pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=x @ beta, sigma=sigma, observed=y)
    return model


def random_intercepts():
    """Return a logistic regression with intercepts of 15 groups, non-centred."""
    rng = np.random.default_rng(8)
    group, x = np.repeat(np.arange(15), 10), rng.standard_normal(150)
    eta = 0.3 + x + (0.8 * rng.standard_normal(15))[group]
    y = (rng.random(150) < 1 / (1 + np.exp(-eta))).astype(int)
    with pm.Model() as model:
        a, b, tau = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2), pm.HalfNormal("tau", 1)
        z = pm.Normal("z", 0, 1, shape=15)
        pm.Bernoulli("y", logit_p=a + b * x + tau * z[group], observed=y)
    return model


def gaussian_process():
    """Return Gaussian process regression with a marginal likelihood."""
    rng = np.random.default_rng(9)
    x = np.sort(rng.uniform(0, 10, size=60))[:, None]
    y = np.sin(x[:, 0]) + 0.3 * rng.standard_normal(60)
    with pm.Model() as model:
        length, eta, sigma = pm.HalfNormal("length", 3), pm.HalfNormal("eta", 2), pm.HalfNormal("sigma", 1)
        gp = pm.gp.Marginal(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, length))
        gp.marginal_likelihood("y", X=x, y=y, sigma=sigma)
    return model


MODELS = {
    "Student hierarchy, non-centred": student_hierarchy,
    "negative binomial hierarchy": negative_binomial,
    "eight schools, non-centred": lambda: _schools(False),
    "eight schools, centred": lambda: _schools(True),
    "group effect": group_effect,
    "mixture of three ordered normals": lambda: ordered_mixture(3, [-3.0, 0.0, 3.0], 200, 1),
    "mixture of four ordered normals, two too many": lambda: ordered_mixture(4, [-2.0, 2.0], 150, 2),
    "horseshoe, centred": horseshoe,
    "Student regression": student_regression,
    "random intercepts": random_intercepts,
    "Gaussian process": gaussian_process,
}


def model_cases():
    """Return the models that have references, as cases."""
    known = json.loads(REFERENCES.read_text())
    return [_case(name, found) for name, found in known.items()]


def _case(name, found):
    summary = {
        one: (np.ravel(found["mean"][one]), np.ravel(found["sd"][one]), np.asarray(found["quantiles"][one]))
        for one in found["mean"]
    }
    return Case(name, "models", MODELS[name], found["log_evidence"], summary=summary, error=found["log_evidence_se"])


def reference(name):
    """Return means, sds and the log evidence with its error."""
    import nutpie

    import ppl_backends as pb
    from ppl_backends.results.inference_data import group

    model = MODELS[name]()
    compiled = nutpie.compile_pymc_model(model)
    trace = nutpie.sample(
        compiled, draws=10_000, tune=2000, chains=4, seed=1, cores=1, target_accept=0.99, progress_bar=False
    )
    posterior = group(trace, "posterior")
    names = [rv.name for rv in model.free_RVs]
    flat = {one: np.asarray(posterior[one]).reshape(40_000, -1) for one in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = pb.sample_smc(model, draws=8000, chains=8, random_seed=1, progressbar=False)
    attrs = group(idata, "posterior").attrs
    return {
        "mean": {one: x.mean(axis=0).tolist() for one, x in flat.items()},
        "sd": {one: x.std(axis=0).tolist() for one, x in flat.items()},
        "quantiles": {one: np.quantile(x, [0.05, 0.5, 0.95], axis=0).tolist() for one, x in flat.items()},
        "divergences": int(np.asarray(group(trace, "sample_stats")["diverging"]).sum()),
        "log_evidence": attrs["log_evidence"],
        "log_evidence_se": attrs["log_evidence_se"],
        "tempering": [attrs["log_evidence_tempering"], attrs["log_evidence_tempering_se"]],
        "log_prior_normalizer": attrs["log_prior_normalizer"],
        "trusted": attrs["log_evidence_trusted"],
        "warnings": attrs["warnings"],
    }


if __name__ == "__main__":
    known = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    for name in sys.argv[1:] or MODELS:
        known[name] = reference(name)
        figures = {key: known[name][key] for key in ("log_evidence", "log_evidence_se", "trusted", "divergences")}
        print(name, figures, known[name]["warnings"][:200], flush=True)
        REFERENCES.write_text(json.dumps(known, indent=1) + "\n")

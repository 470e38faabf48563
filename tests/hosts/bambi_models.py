"""Models of Bambi that differ in what Bambi does with their posteriors: name → function that returns a model."""

import bambi as bmb
import numpy as np
import pandas as pd


def frame(n=60, seed=0):
    """Return two predictors far from zero, a group, a categorical predictor."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"x": rng.normal(3.0, 1.0, n), "z": rng.normal(size=n)})
    table["g"] = np.tile(list("abcdef"), n // 6 + 1)[:n]
    table["c"] = pd.Categorical(rng.choice(["low", "mid", "high"], n), categories=["low", "mid", "high"])
    return table, rng


def linear():
    table, rng = frame()
    table["y"] = 1 + 0.5 * table["x"] - 0.3 * table["z"] + 0.7 * rng.normal(size=60)
    return bmb.Model("y ~ x + z + x:c", table)


def bernoulli():
    table, rng = frame()
    table["y"] = np.where(rng.random(60) < 1 / (1 + np.exp(-(table["x"] - 3))), "yes", "no")
    return bmb.Model("y['yes'] ~ x + z", table, family="bernoulli")


def group_effects():
    table, rng = frame()
    effect = dict(zip("abcdef", 0.5 * rng.normal(size=6), strict=True))
    table["y"] = rng.poisson(np.exp(0.2 * table["x"] + table["g"].map(effect)))
    return bmb.Model("y ~ x + (1|g)", table, family="poisson")


def group_slopes():
    table, rng = frame()
    slope = dict(zip("abcdef", 0.4 * rng.normal(size=6), strict=True))
    table["y"] = 1 + (0.5 + table["g"].map(slope)) * table["x"] + 0.5 * rng.normal(size=60)
    return bmb.Model("y ~ x + (x|g)", table)


def negative_binomial():
    table, rng = frame()
    table["y"] = rng.negative_binomial(3.0, 3.0 / (3.0 + np.exp(0.3 * table["x"])))
    return bmb.Model("y ~ 0 + c + x", table, family="negativebinomial")


def splines():
    table, rng = frame()
    table["y"] = np.sin(table["x"]) + 0.3 * rng.normal(size=60)
    return bmb.Model("y ~ bs(x, df=4) + z", table)


def categorical():
    table, rng = frame()
    table["y"] = pd.Categorical(rng.choice(["one", "two", "three"], 60, p=[0.5, 0.3, 0.2]))
    return bmb.Model("y ~ x", table, family="categorical")


def distributional():
    table, rng = frame()
    table["y"] = 1 + 0.5 * table["x"] + np.exp(-0.5 + 0.2 * table["z"]) * rng.normal(size=60)
    return bmb.Model(bmb.Formula("y ~ x", "sigma ~ z"), table)


def ordinal():
    table, rng = frame()
    cut = np.digitize(table["x"] - 3 + rng.normal(size=60), [-0.5, 0.8])
    table["y"] = pd.Categorical(cut, categories=[0, 1, 2], ordered=True)
    return bmb.Model("y ~ 0 + x", table, family="cumulative")


def gamma():
    table, rng = frame()
    table["y"] = rng.gamma(4.0, np.exp(0.3 * table["x"]) / 4.0)
    model = bmb.Model("y ~ x + c", table, family="gamma", link="log")
    model.set_alias({"x": "slope"})
    return model


MODELS = {
    make.__name__: make
    for make in (
        linear,
        bernoulli,
        group_effects,
        group_slopes,
        negative_binomial,
        splines,
        categorical,
        distributional,
        ordinal,
        gamma,
    )
}

"""
ROC curves of rankings
======================

A score ranks rows. Its ROC curve plots the share of positive rows above every threshold against that of negative rows,
and the AUC is the area below it. This page has three scores on held-out rows: linear scores by EP of the AUC, scores of
a Gaussian process by the same method, and logistic regression by EP (after Ridgway et al. 2014, Figure 2).
"""

import matplotlib.pyplot as plt
import numpy as np

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.targets.factors import Logit


def halves(name, positive=None, most=400):
    """Return training and test rows, scaled by the training rows, with labels −1 and +1."""
    X, y, *_ = load_binary_regression(name, scaling="raw", positive=positive)
    order = np.random.default_rng(1).permutation(len(y))
    train, test = np.split(order, [min(len(y) // 2, most)])
    spread = X[train, 1:].std(axis=0)
    X, y = (X[:, 1:] - X[train, 1:].mean(axis=0)) / np.where(spread > 0, spread, 1.0), 2.0 * y - 1
    return X[train], y[train], X[test], y[test]


def held_out_scores(X, y, new):
    """Return scores of new rows; learning rate and length scale are the middle values of ``auc_scores.py``."""
    linear = pb.GibbsPosterior((0.0, 1.0), "auc", X, y, learning_rate=len(y))
    process = pb.gibbs.GaussianProcess(X, length_scale=2 * X.shape[1] ** 0.5)
    of_process = pb.gibbs.fit_pair_ep(process.posterior("auc", y, learning_rate=len(y)), tolerance=1e-3)
    with_one = np.column_stack([np.ones(len(X)), X])
    logit = pb.fit_ep(pb.Factors(with_one, None, Logit((y > 0).astype(int)), 0.0, 1.0))
    return {
        "AUC, linear": new @ pb.gibbs.fit_pair_ep(linear, tolerance=1e-3).mean,
        "AUC, Gaussian process": process.scores(of_process, new).mean,
        "logistic regression": new @ logit.mean[1:],
    }


def roc(scores, y):
    """Return false and true positive rates at every threshold, and the area below the curve."""
    positive = y[np.argsort(-scores, kind="stable")] > 0
    false, true = (np.r_[0, np.cumsum(part)] / part.sum() for part in (~positive, positive))
    return false, true, np.trapezoid(true, false)


sets = {"Pima": ("pima",), "Glass, other windows": ("glass", "WinNF"), "DNA, 400 rows": ("dna",)}
figure, axes = plt.subplots(1, 3, figsize=(10, 3.8), sharey=True, layout="constrained")
for axis, (title, name) in zip(axes, sets.items(), strict=True):
    X, y, X_test, y_test = halves(*name)
    for (method, scores), style in zip(held_out_scores(X, y, X_test).items(), ("k-", "C0-", "C3--"), strict=True):
        false, true, area = roc(scores, y_test)
        axis.step(false, true, style, where="post", label=f"{method}, {area:.3f}")
    axis.set(title=title, xlabel="false positive rate")
    axis.legend(loc="lower right", fontsize=8)
axes[0].set_ylabel("true positive rate")
plt.show()

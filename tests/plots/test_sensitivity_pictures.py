"""Pictures of sensitivity have a panel for each component and quantity."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError


def test_panels_and_curves():
    target = pb.FunctionTarget(
        2,
        lambda x: (-0.5 * ((x - 3) ** 2).sum(axis=1), 3 - x),
        lambda x: (-0.5 * (x**2).sum(axis=1), -x),
        sample_prior=lambda n, rng: rng.standard_normal((n, 2)),
    )
    draws = {"x": 1.5 + np.sqrt(0.5) * np.random.default_rng(0).standard_normal((2, 500, 2))}
    result = pb.sensitivity(draws, target, random_seed=1)
    axes = pb.plot_sensitivity(result)
    assert axes.shape == (2, 2)
    assert len(axes[0, 0].lines) == 3
    assert pb.plot_sensitivity(result, ["x[1]"], components=["prior"], kind="moments").shape == (1, 1)
    with pytest.raises(ModelError, match="quantities"):
        pb.plot_sensitivity(result, ["y"])
    plt.close("all")

"""The picture of inclusion probabilities."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError

mpl.use("Agg")


def test_inclusion_is_drawn_with_its_names_and_errors():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4))
    y = X[:, 0] + rng.standard_normal(60)
    idata = pb.select_variables(X=X, y=y, family="gaussian", method="smc", draws=200, random_seed=1, progressbar=False)
    axes = pb.plot_inclusion(idata)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x0", "x1", "x2", "x3"]
    bars = [patch.get_width() for patch in axes.patches]
    np.testing.assert_allclose(bars, idata.selection["inclusion"])
    with pytest.raises(ModelError, match="is not known"):
        pb.plot_inclusion(idata, var_name="beta")
    plt.close("all")

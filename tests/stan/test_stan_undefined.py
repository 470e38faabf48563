"""A Stan density that is not a number on a part of the posterior."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.results.inference_data import group

# sqrt of a negative number is NaN and not an exception; below the cut at zero the density counts as zero
PROGRAM = """
data { real cut; }
parameters { real x; }
model {
  x ~ normal(0, 1);
  target += 0 * sqrt(x - cut);
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("cut", "trusted"), [(0.0, 0), (-20.0, 1)])
def test_a_hole_in_a_stan_posterior_is_counted(tmp_path, cut, trusted):
    path = tmp_path / "hole.stan"
    path.write_text(PROGRAM)
    target = pb.as_target(path, {"cut": cut})
    x = np.array([[cut - 1.0], [cut + 1.0]])
    assert target.undefined(x).tolist() == [True, False]
    start = pb.GaussianApproximation([0.0], [[1.0]])
    if trusted:
        idata = pb.sample_smc(target, initial=start, draws=500, chains=2, random_seed=1, progressbar=False)
    else:
        with pytest.warns(SamplerWarning, match="NaN or"):
            idata = pb.sample_smc(target, initial=start, draws=500, chains=2, random_seed=1, progressbar=False)
    assert group(idata, "posterior").attrs["log_evidence_trusted"] == trusted

"""A search that was killed continues to the same bits; another search refuses its file."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.model_search.evidences.laplace import ImportanceEvidence, LaplaceEvidence
from ppl_backends.model_search.evidences.linear import LinearEvidence
from ppl_backends.model_search.forms import design_form
from ppl_backends.model_search.sampler import SAVED, run_search
from ppl_backends.model_search.space import make_space
from ppl_backends.smc.checkpoint import ChainStore

pytestmark = pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")  # runs are as short as can be

RNG = np.random.default_rng(31)
X = RNG.standard_normal((60, 6))
Y = X[:, 0] - 0.8 * X[:, 3] + 0.5 * RNG.standard_normal(60)


class Diary(ChainStore):
    """A file of a chain, whose content after every stage is kept."""

    def save(self, progress):
        super().save(progress)
        self.path.with_name(f"stage{len(progress.stages)}").write_bytes(self.path.read_bytes())


def evidences():
    laplace = LaplaceEvidence(design_form(X, Y > 0, "binomial", "logit", None, None).regression)
    return {"exact": LinearEvidence(X, Y, "g"), "laplace": laplace, "importance": ImportanceEvidence(laplace, 2)}


@pytest.mark.parametrize("name", ["exact", "laplace", "importance"])
def test_a_search_goes_on_from_every_stage_to_the_same_bits(tmp_path, name):
    """A search with a surrogate continues too, and does not search for the surrogate again."""
    p = 6 + (name != "exact")
    always = np.arange(p) < p - 6
    space = make_space(tuple(map(str, range(p))), always, None, None, "uniform")
    whole = run_search(
        space, evidences()[name], 60, np.random.default_rng(1), store=Diary(tmp_path / "run", "", 0, SAVED)
    )
    assert len(whole.stages) > 1
    assert any(stage.surrogate for stage in whole.stages) == (name != "exact")
    for stage in range(1, len(whole.stages) + 1):
        store = ChainStore(tmp_path / f"stage{stage}", "", 0, SAVED)
        again = run_search(space, evidences()[name], 60, np.random.default_rng(99), store=store)
        np.testing.assert_array_equal(again.population.x, whole.population.x)
        np.testing.assert_array_equal(again.population.share, whole.population.share)
        assert again.log_evidence == whole.log_evidence
        assert again.lineage.variance == whole.lineage.variance
        assert again.rng.bit_generator.state == whole.rng.bit_generator.state
        assert [s.beta for s in again.stages] == [s.beta for s in whole.stages]


class KilledError(Exception):
    pass


class Sizes:
    """A prior of models by their size, which raises an error after a number of calls."""

    def __init__(self, most=np.inf):
        self.calls, self.most = 0, most

    def __call__(self, columns):
        self.calls += 1
        if self.calls > self.most:
            raise KilledError
        return -0.5 * columns.sum(axis=1)


def search(**options):
    options = {"X": X, "y": Y, "model_prior": Sizes(), "random_seed": 3, **options}
    return pb.select_variables(family="gaussian", method="smc", draws=40, chains=2, progressbar=False, **options)


def test_a_call_that_was_killed_gives_the_same_result(tmp_path):
    whole = Sizes()
    expected = search(model_prior=whole)
    with pytest.raises(KilledError):
        search(checkpoint=tmp_path / "run", model_prior=Sizes(0.7 * whole.calls))
    assert (tmp_path / "run.chain1").exists()
    rest = Sizes()
    found = search(checkpoint=tmp_path / "run", random_seed=None, model_prior=rest)
    assert rest.calls < whole.calls
    for name in ("gamma", "beta", "sigma"):
        np.testing.assert_array_equal(found.posterior[name], expected.posterior[name])
    np.testing.assert_array_equal(found.selection["inclusion"], expected.selection["inclusion"])
    assert found.posterior.attrs["log_evidence"] == expected.posterior.attrs["log_evidence"]


@pytest.mark.parametrize(
    ("options", "differs"),
    [
        ({"X": X + 1e-12}, "X"),
        ({"y": Y + 1e-12}, "y"),
        ({"prior": "hyper-g"}, "prior"),
        ({"model_prior": lambda columns: -0.6 * columns.sum(axis=1)}, "model_prior"),
        ({"heredity": {"x5": ["x0"]}}, "heredity"),
        ({"always": ["x1"]}, "always"),
        ({"groups": {"both": ["x1", "x2"]}}, "groups"),
        ({"random_seed": 4}, "random_seed"),
    ],
)
def test_another_search_is_refused(begun, options, differs):
    with pytest.raises(ModelError, match=rf"belongs to another run.*{differs}.* differ"):
        search(checkpoint=begun, **options)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    path = tmp_path_factory.mktemp("search") / "run"
    search(checkpoint=path)
    return path


def test_an_enumeration_has_no_checkpoint(tmp_path):
    with pytest.raises(ModelError, match="enumerated; leave it out"):
        pb.select_variables(X=X, y=Y, family="gaussian", checkpoint=tmp_path / "run")

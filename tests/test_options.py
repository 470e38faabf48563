"""Every option of every public call: a wrong value is refused in one line, before anything is evaluated."""

import inspect
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pymc as pm
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppl_backends as pb
from ppl_backends import options
from ppl_backends.approximations.ep import fit_ep_sharded
from ppl_backends.errors import ModelError
from ppl_backends.gibbs.fit import fit_gibbs_vi_path
from ppl_backends.handover import initvals_for_pymc
from ppl_backends.targets import FunctionTarget


def public_calls():
    """Return every public function and class that has options, by its first public name."""
    found = dict.fromkeys(
        [fit_ep_sharded, fit_gibbs_vi_path, initvals_for_pymc, pb.GaussianApproximation.to_inference_data]
    )
    for room in (pb, *(getattr(pb, name) for name in pb.__all__ if inspect.ismodule(getattr(pb, name)))):
        for name in getattr(room, "__all__", ()):
            call = getattr(room, name)
            call = call.__init__ if inspect.isclass(call) else call
            if hasattr(call, "options"):
                found[call] = None
    return list(found)


CALLS = public_calls()
# What no check of a value alone can judge: models, data, variables, arrays that have to fit each other.
OPEN = {
    *(
        "self",
        "model",
        "data",
        "target_options",
        "certificate",
        "options",
        "vars",
        "step",
        "initvals",
        "axes",
        "source",
        "loss",
    ),
    *("x", "rows", "columns", "values", "weights", "shape", "shards", "prior_mean", "prior_precision", "names"),
    *("X", "y", "prior", "kernel", "length_scale"),
    *("spikes", "cholesky", "mean", "idata", "fit"),
}
# Never right, whatever the option: a type that none takes, NaN, an infinity with the wrong sign.
NEVER = [object(), {1, 2}, np.nan, -np.inf, b"auto", 1j, "no such thing"]
BY_KIND = {
    "at least": [0, -1, 2.5, "3", True, None, np.nan, np.array([1, 2])],
    "True or False": [1, 0, "yes", None, np.array([True])],
    "a number": ["3", True, np.nan, [0.5], -np.inf],
    "increasing numbers": [[], [0.5, 0.2], [0.1, np.nan, 1], [0.0, 1], "12", [True, 2], 3.5],
    "'": ["", "AUTO", 7],
    "Executor": [5, "threads", ThreadPoolExecutor],
    "generator": [-1, 1.5, "12", True, [-1]],
    "a path": [5, object()],
}


def counting_target(calls):
    def log_density(x):
        calls.append(len(x))
        return -0.5 * (x**2).sum(1), -x

    return FunctionTarget(2, log_density, log_density, sample_prior=lambda n, rng: rng.normal(size=(n, 2)))


def accepts(option, value):
    try:
        option.check("", value)
    except ModelError:
        return False
    return True


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_bad_values_are_one_line_before_anything_is_evaluated(call):
    calls = []
    parameters = inspect.signature(call).parameters
    before = [object()] if "self" in parameters else []
    target = {"model": counting_target(calls)} if "model" in parameters else {}
    for name, option in call.options.items():
        values = [*NEVER, *(v for kind, bad in BY_KIND.items() if kind in option.expected for v in bad)]
        refused = [value for value in values if not accepts(option, value)]
        assert refused
        for value in refused:
            with pytest.raises(ModelError) as caught:
                call(*before, **target | {name: value})
            message = str(caught.value)
            assert message.startswith(f"{name}=")
            assert "\n" not in message
            assert len(message) < 250
    assert not calls


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_every_option_has_a_check(call):
    unchecked = set(inspect.signature(call).parameters) - set(call.options) - OPEN
    assert not unchecked


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_defaults_pass_their_own_checks(call):
    for name, option in call.options.items():
        default = inspect.signature(call).parameters[name].default
        if default is not inspect.Parameter.empty and name != "idata":  # None only because a model may stand before it
            assert accepts(option, default), name


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (bad, kind)
        for kind, values in {
            "draws": [0, -1, 2.5, "3", True, None, np.nan, 10**12],
            "chains": [0, 1.5, "2"],
            "cores": [0, -1, 1.5],
            "executor": [5],
            "max_moves": [2.5, "3", 0],
            "max_time": [-1, np.nan, "1"],
            "ess_threshold": ["a", 0, 1, np.nan],
            "schedule": [[0.1, np.nan, 1], "slow", [], 3],
            "random_seed": [-1, "a", 1.5],
            "progressbar": ["yes", 1],
            "len_chain": [1, 2.5, "long", 10**6],
        }.items()
        for bad in values
    ],
)
def test_sample_smc_names_what_is_wrong(bad, kind):
    calls = []
    with pytest.raises(ModelError, match=f"^{kind}=") as caught:
        pb.sample_smc(counting_target(calls), **{kind: bad})
    assert "\n" not in str(caught.value)
    assert not calls


@given(st.one_of(st.integers(), st.floats(), st.text(), st.booleans(), st.none(), st.lists(st.floats()), st.binary()))
def test_numbers_are_taken_as_they_are_and_nothing_else_is(value):
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    assert accepts(options.integer(1), value) == (is_integer and value >= 1)
    is_number = is_integer or (isinstance(value, float) and np.isfinite(value))
    assert accepts(options.number(above=0, below=1), value) == (is_number and 0 < value < 1)
    assert accepts(options.number(at_least=0), value) == (is_number and value >= 0)
    if is_integer and abs(value) < 2**62:
        assert options.integer().check("n", np.int64(value)) == value
        assert type(options.integer().check("n", np.int64(value))) is int


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=5))
def test_schedules_increase_within_their_bounds(values):
    right = bool(values) and all(0 < v <= 1 for v in values) and all(b > a for a, b in pairwise(values))
    assert accepts(options.increasing(above=0, at_most=1), values) == right
    assert accepts(options.increasing(above=0, at_most=1), np.array(values)) == right


@given(st.one_of(st.text(), st.binary(), st.dictionaries(st.text(), st.text()), st.lists(st.text())))
def test_messages_are_one_short_line(value):
    with pytest.raises(ModelError) as caught:
        options.integer(1).check("draws", value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 150


def test_numbers_of_numpy_are_numbers():
    idata = pb.sample_smc(
        counting_target([]),
        draws=np.int32(500),
        chains=np.uint8(1),
        ess_threshold=np.float32(0.5),
        unbiased=np.False_,
        random_seed=np.int64(1),
        progressbar=False,
    )
    assert idata["posterior"].sizes["draw"] == 500


def test_the_habits_of_pymc_are_named():
    target = counting_target([])
    with pytest.raises(ModelError, match=r"^model=2000 is an integer; .*: write sample_smc\(model, draws=2000\)$"):
        pb.sample_smc(2000)
    with pytest.raises(ModelError, match=r"^model=5 is an integer; .*: write fit_laplace\(model\)$"):
        pb.fit_laplace(5)
    with pytest.raises(ModelError, match=r"^sample_smc\(\) takes options by name, not by position: write draws=1000$"):
        pb.sample_smc(target, 1000)
    with pytest.raises(ModelError, match=r"which is one of pm.sample: write log_likelihood=True or log_prior=True$"):
        pb.sample_smc(target, idata_kwargs={"log_likelihood": True})
    with pytest.raises(
        ModelError, match=r"^sample_mcmc\(\) has no option 'idata_kwargs', .*: write log_likelihood=True$"
    ):
        pb.sample_mcmc(target, idata_kwargs={"log_likelihood": True})
    with pytest.raises(ModelError, match=r"not by position: write data=\{'N': 3\}$"):
        pb.sample_smc("model.stan", {"N": 3})
    with pytest.raises(ModelError, match=r"^select_variables\(\) takes data by name, not by position: write select_v"):
        pb.select_variables(np.zeros((20, 2)), np.zeros(20))
    with pytest.raises(TypeError, match=r"has no option 'draws'; it has prior_probabilities, executor, random_seed$"):
        pb.compare_evidence({}, draws=10)
    with pytest.raises(ModelError, match=r"by position: write option=array of shape \(20, 2\), where"):
        pb.fit_vi(None, np.zeros((20, 2)))
    with pytest.raises(ModelError, match=r"by position: write option='dense', where option is one of data, family, "):
        pb.fit_vi(target, "dense")


def test_deterministics_count_as_memory_of_the_draws():
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Deterministic("mu", np.arange(1000.0) * b)
    with pytest.raises(ModelError, match="16 TB of memory are needed for 1001 values a draw"):
        pb.sample_mcmc(model, draws=10**9, chains=1)


def test_more_draws_than_memory_are_refused_with_both_figures():
    for call in (pb.sample_smc, pb.sample_importance, pb.sample_mcmc):
        calls = []
        with pytest.raises(
            ModelError, match=r"draws=1000000000000, chains=2: 64 TB of memory .* [\d.]+ \wB are available"
        ):
            call(counting_target(calls), draws=10**12, chains=2)
        assert not calls


def test_starting_values_have_the_names_of_the_model():
    target = counting_target([])
    right = {"x": [0.0, 1.0]}
    for initvals, message in [
        ({"y": 1.0}, "initvals: the value of 'x' is missing"),
        (right | {"y": 1.0}, "initvals: 'y' is not a variable of the model; those are x"),
        ({"x": "a"}, "initvals: could not convert"),
        ("here", "initvals='here': expected"),
        ([np.nan, 1.0], "initvals="),
        ([right], "initvals gives 1 points for 2 chains"),
    ]:
        with pytest.raises(ModelError, match=message):
            pb.sample_mcmc(target, initvals=initvals, draws=5, tune=0, chains=2, progressbar=False)
    with pytest.raises(ModelError, match="initvals: 'y' is not a variable"):
        pb.fit_laplace(target, initvals=right | {"y": 1.0}, progressbar=False)


@pytest.mark.parametrize(
    ("shape", "message"), [((50, 2), "50 draws where 100"), ((100, 3), r"expected \(n_points, 2\)")]
)
def test_prior_draws_of_another_number_or_size_are_refused(shape, message):
    target = FunctionTarget(2, standard, standard, sample_prior=lambda n, rng: np.zeros(shape if n > 1 else (1, 2)))
    with pytest.raises(ModelError, match=message):
        pb.sample_smc(target, draws=100, chains=1, progressbar=False)


def standard(x):
    return -0.5 * (x**2).sum(1), -x


def test_messages_show_numbers_and_text_of_numpy_as_plain_ones():
    assert options.shown(np.str_("a")) == "'a'"
    assert options.shown(np.float64(1.5)) == "1.5"

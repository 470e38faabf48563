"""Batched simulators that pass the test, and those that fail it; errors that name the parameters."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.simulators.abc.calls import Simulator, ignores_generator, with_valid_batches
from ppl_backends.simulators.abc.discrepancy import Discrepancy
from tests.simulators.abc.toys import box, conjugate, conjugate_answer, mixture, standard_normal

SMALL = {"progressbar": False, "chains": 2, "draws": 256, "pilot_points": 256}


def right(values, rng):
    return values["mu"][:, None] + rng.standard_normal((len(values["mu"]), 5))


def one_noise_vector(values, rng):
    return values["mu"][:, None] + rng.standard_normal(5)


def mixed_rows(values, rng):
    return values["mu"][::-1, None] + rng.standard_normal((len(values["mu"]), 5))


def noise_shared_in_part(values, rng):
    return right(values, rng) + 2 * rng.standard_normal()


def too_narrow(values, rng):
    n = len(values["mu"])
    return values["mu"][:, None] + rng.standard_normal((n, 5)) / (1 if n == 1 else 3)


def own_seed(values, rng):
    return values["mu"][:, None] + np.random.default_rng(3).standard_normal((len(values["mu"]), 5))


def counts(values, rng):
    return rng.poisson(0.3, (len(values["mu"]), 5))


def without_noise(values, rng):
    return np.repeat(values["mu"][:, None], 5, axis=1)


def judged(function, seed=0):
    def single(values, rng):
        return function({"mu": np.asarray(values["mu"])[None]}, rng)[0]

    simulator = Simulator("y", (5,), function, single)
    rng = np.random.default_rng(seed)
    return with_valid_batches(simulator, {"mu": np.array([0.0, 1.5])}, Discrepancy(np.zeros(5), None, "euclidean"), rng)


@pytest.mark.parametrize("function", [right, counts, without_noise])
def test_right_batches_are_used(function):
    for seed in range(10):
        simulator, reason = judged(function, seed)
        assert simulator.at_once, reason


@pytest.mark.parametrize("function", [one_noise_vector, mixed_rows, noise_shared_in_part, too_narrow])
def test_wrong_batches_are_refused(function):
    simulator, reason = judged(function)
    assert not simulator.at_once
    assert "batch" in reason or "independent" in reason


def test_a_simulator_with_a_fixed_seed_of_its_own_is_refused():
    with pytest.raises(ModelError, match="same data in 48 calls"):
        judged(own_seed)


def test_one_noise_vector_for_a_batch_is_called_row_by_row_and_gives_the_right_answer():
    def broken(parameters, rng):
        return parameters["x"][:, 0] + 0.2 * rng.standard_normal()

    options = {"observed": 1.0, "kernel": "gaussian", "epsilon": 0.5}
    idata = pb.sample_abc(standard_normal(), simulate=broken, random_seed=1, data_sets=2, **options, **SMALL)
    assert idata.posterior.attrs["batched"] == 0
    assert "independent" in idata.posterior.attrs["batches_refused"]
    log_evidence = conjugate_answer(0.5)[2]
    assert abs(idata.posterior.attrs["log_evidence"] - log_evidence) < 4 * idata.posterior.attrs["log_evidence_se"]


def test_simulators_with_random_numbers_of_their_own_are_named():
    own = np.random.default_rng(1)

    def simulate(parameters, rng):
        return conjugate(parameters, own)

    with pytest.warns(SamplerWarning, match="'y' gave different data in two calls with the same seed"):
        pb.sample_abc(standard_normal(), simulate=simulate, observed=1.0, epsilon=0.5, random_seed=1, **SMALL)


def test_simulators_that_ignore_their_generator_are_not_trusted():
    """A fixed seed in every call: data are a function of the parameters alone. Counts may be equal by chance."""

    def one_by_one(parameters, rng):
        return float(parameters["x"][0]) + 0.2 * np.random.default_rng(3).standard_normal()

    def zeros(parameters, rng):
        return rng.poisson(1e-6 * np.exp(parameters["x"][:, 0]))

    options = {"observed": 0.0, "epsilon": 0.5, "random_seed": 1, **SMALL}
    for simulate in (lambda p, rng: p["x"][:, 0] + 0.2, one_by_one):
        with pytest.warns(SamplerWarning, match="the same data in 8 calls with different generators"):
            idata = pb.sample_abc(standard_normal(), simulate=simulate, **options)
        assert idata.posterior.attrs["log_evidence_trusted"] == 0
    simulator = Simulator("y", (), zeros, zeros, at_once=True)
    assert not ignores_generator(simulator, {"x": np.array([[0.0], [1.5]])}, np.random.default_rng(0))


def test_functions_of_single_values_are_called_one_by_one():
    def scalar(parameters, rng):
        return float(parameters["x"][0]) + 0.2 * rng.standard_normal()

    options = {"observed": 1.0, "kernel": "gaussian", "epsilon": 0.5}
    idata = pb.sample_abc(standard_normal(), simulate=scalar, random_seed=1, data_sets=2, **options, **SMALL)
    assert idata.posterior.attrs["batched"] == 0
    log_evidence = conjugate_answer(0.5)[2]
    assert abs(idata.posterior.attrs["log_evidence"] - log_evidence) < 4 * idata.posterior.attrs["log_evidence_se"]


def test_errors_name_the_parameters():
    def fails(parameters, rng):
        raise ZeroDivisionError("no rate")

    with pytest.raises(ModelError, match=r"simulator 'y' failed at x=.*ZeroDivisionError: no rate"):
        pb.sample_abc(standard_normal(), simulate=fails, observed=1.0, epsilon=0.5, random_seed=1, **SMALL)

    def sometimes(parameters, rng):
        if (parameters["x"] > 1.5).any():
            raise ValueError("too large")
        return conjugate(parameters, rng)

    with pytest.raises(ModelError, match=r"failed at x.*too large"):
        pb.sample_abc(standard_normal(), simulate=sometimes, observed=1.0, epsilon=0.5, random_seed=1, **SMALL)


@pytest.mark.parametrize("name", ["summary", "distance"])
def test_errors_of_summaries_and_distances_name_the_parameters_in_one_line(name):
    def refuses_large(*data):
        if np.any(np.asarray(data[-1]) > 1.5):
            raise FloatingPointError("too\nlarge")
        return np.abs(data[-1] - data[0]) if name == "distance" else data[-1]

    options = {"observed": 1.0, "epsilon": 0.5, "random_seed": 1, name: refuses_large}
    pattern = r"^summary or distance failed on data 'y' drawn at x=\d\S*: FloatingPointError: too large$"
    with pytest.raises(ModelError, match=pattern):
        pb.sample_abc(standard_normal(), simulate=conjugate, **options, **SMALL)


def test_summaries_that_fail_on_the_observed_data_and_distances_of_many_numbers_are_refused():
    options = {"simulate": conjugate, "epsilon": 0.5, "random_seed": 1, **SMALL}
    with pytest.raises(
        ModelError, match=r"^the summary failed on the observed data: ZeroDivisionError: division by zero$"
    ):
        pb.sample_abc(standard_normal(), observed=1.0, summary=lambda y: 1 / 0, **options)
    with pytest.raises(ModelError, match=r"a distance is one number per data set, not an array of shape \(3,\)"):
        pb.sample_abc(
            standard_normal(),
            observed=np.zeros(3),
            distance=lambda a, b: np.abs(a - b),
            **{**options, "simulate": lambda p, rng: p["x"] + rng.standard_normal((len(p["x"]), 3))},
        )


def test_summaries_that_are_not_defined_beside_the_observed_data_are_called_one_by_one():
    def log_odds(y):
        return np.log(float(y) / (1 - float(y)))  # of one number in (0, 1)

    def share(parameters, rng):
        return 1 / (1 + np.exp(-conjugate(parameters, rng)))

    options = {"kernel": "gaussian", "epsilon": 0.5, "random_seed": 1, "data_sets": 2, **SMALL}
    observed = 1 / (1 + np.exp(-1.0))
    idata = pb.sample_abc(standard_normal(), simulate=share, observed=observed, summary=log_odds, **options)
    log_evidence = conjugate_answer(0.5)[2]
    assert abs(idata.posterior.attrs["log_evidence"] - log_evidence) < 4 * idata.posterior.attrs["log_evidence_se"]


def test_data_of_another_shape_are_refused():
    with pytest.raises(ModelError, match=r"shape .* expected numbers of shape \(3,\)"):
        pb.sample_abc(standard_normal(), simulate=conjugate, observed=np.zeros(3), epsilon=1.0, random_seed=1, **SMALL)


def test_nan_and_infinite_data_are_rejections_and_counted():
    def broken_half(parameters, rng):
        y = conjugate(parameters, rng)
        u = rng.random(len(y))
        return np.where(u < 0.25, np.nan, np.where(u < 0.5, np.inf, y))

    options = {"observed": 1.0, "kernel": "gaussian", "epsilon": 0.5, "data_sets": 4, **SMALL}
    idata = pb.sample_abc(standard_normal(), simulate=broken_half, random_seed=1, **options)
    log_evidence = conjugate_answer(0.5)[2] + np.log(0.5)
    assert abs(idata.posterior.attrs["log_evidence"] - log_evidence) < 4 * idata.posterior.attrs["log_evidence_se"]
    stats = idata.sample_stats
    np.testing.assert_allclose(stats["not_finite"] / stats["simulations"], 0.5, atol=0.1)


@pytest.mark.parametrize(
    ("constant", "message"),
    [(np.nan, "no simulated data set is at a finite distance"), (np.inf, "no simulated data set is at a finite")],
)
def test_nothing_finite_ends_with_a_reason(constant, message):
    def simulate(parameters, rng):
        return np.full(len(parameters["x"]), constant)

    with pytest.raises(ModelError, match=message):
        pb.sample_abc(standard_normal(), simulate=simulate, observed=1.0, random_seed=1, **SMALL)


def test_equal_distances_and_discrete_ones_end_with_a_reason():
    def equal(parameters, rng):
        return np.full(len(parameters["x"]), 2.0)

    with pytest.warns(SamplerWarning, match="have the same distance"):
        idata = pb.sample_abc(standard_normal(), simulate=equal, observed=1.0, random_seed=1, **SMALL)
    assert idata.posterior.attrs["epsilon"] == 1.0
    assert idata.posterior.attrs["log_evidence"] == pytest.approx(0.0, abs=0.1)

    def discrete(parameters, rng):
        return rng.poisson(np.exp(parameters["x"][:, 0]))

    idata = pb.sample_abc(standard_normal(), simulate=discrete, observed=2, random_seed=1, **SMALL)
    assert idata.posterior.attrs["epsilon"] < 1.0
    assert idata.posterior.attrs["ended_by"]


def test_a_tolerance_out_of_reach_ends_with_a_reason():
    def far(parameters, rng):
        return 5 + np.abs(conjugate(parameters, rng))

    with pytest.warns(SamplerWarning, match="was not reached"):
        idata = pb.sample_abc(standard_normal(), simulate=far, observed=1.0, epsilon=0.1, random_seed=1, **SMALL)
    assert idata.posterior.attrs["epsilon"] > 4
    assert idata.posterior.attrs["log_evidence_trusted"] == 0


@pytest.mark.parametrize("unit", [1.0, 1e5])
def test_a_summary_that_the_distance_does_not_depend_on_is_named(unit):
    def simulate(parameters, rng):
        return np.column_stack(
            [rng.normal(parameters["x"][:, 0], 0.3), unit * rng.standard_normal(len(parameters["x"]))]
        )

    call = partial(pb.sample_abc, standard_normal(), simulate=simulate, observed=[1.0, 0.0], random_seed=1, **SMALL)
    if unit == 1.0:
        assert call().posterior.attrs["warnings"] == ""
    else:
        with pytest.warns(SamplerWarning, match="does not depend on 1 of 2 summaries, the first at index 0"):
            idata = call()
        assert abs(float(idata.posterior["x"].mean())) < 0.2  # near the prior, and not near one


def test_nothing_is_simulated_outside_the_support():
    def strict(parameters, rng):
        assert (np.abs(parameters["x"]) <= 10).all()
        return mixture(parameters, rng)

    idata = pb.sample_abc(box(2), simulate=strict, observed=np.full(2, 10.0), epsilon=1.0, random_seed=1, **SMALL)
    assert (idata.posterior["x"] <= 10).all()


def test_workers_give_the_same_bits():
    options = {"simulate": mixture, "observed": np.zeros(2), "epsilon": 1.0, "random_seed": 1, **SMALL}
    here = pb.sample_abc(box(2), **options)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        there = pb.sample_abc(box(2), executor=executor, **options)
    assert np.array_equal(here.posterior["x"], there.posterior["x"])
    assert here.posterior.attrs["log_evidence"] == there.posterior.attrs["log_evidence"]


@pytest.mark.parametrize("limit", [{"max_simulations": 3000}, {"max_time": 0.0}])
def test_budgets_keep_what_is_there(limit):
    with pytest.warns(SamplerWarning):
        idata = pb.sample_abc(
            box(3), simulate=mixture, observed=np.zeros(3), epsilon=0.3, random_seed=1, data_sets=4, **limit, **SMALL
        )
    assert idata.posterior.sizes["draw"] == 256
    if "max_simulations" in limit:
        assert idata.posterior.attrs["simulations"] <= 3100

"""The log density of Stan programs: against formulas, against BridgeStan's client, and at its edges."""

import logging
import os
import pickle
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_expit

from ppl_backends.errors import ModelError, PriorSamplingError, SamplerWarning

pytest.importorskip("httpstan", reason="needs the stan extra")

from ppl_backends.targets.convert import as_target
from ppl_backends.targets.stan import stan_target
from ppl_backends.targets.stan.data import read_data

pytestmark = [pytest.mark.stan, pytest.mark.slow]

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def points(regression):
    return np.random.default_rng(5).normal(size=(20, regression.dim))


def client(target):
    bridgestan = pytest.importorskip("bridgestan")
    from ppl_backends.targets.stan.data import to_json

    return bridgestan.StanModel(str(target.library), to_json(target.data), warn=False, capture_stan_prints=False)


def log_prior(x):
    """Return half-Cauchy scale τ on the log scale, normal coefficients of that scale."""
    tau = np.exp(x[:, 3])
    return stats.cauchy.logpdf(tau) + x[:, 3] + stats.norm.logpdf(x[:, :3], scale=tau[:, None]).sum(axis=1)


def log_likelihood(x, data):
    eta = x[:, :3] @ data["X"].T
    return log_expit(np.where(data["y"] == 1, eta, -eta))


def test_density_keeps_constants_and_jacobian(regression, regression_data, points):
    expected = log_prior(points) + log_likelihood(points, regression_data).sum(axis=1)
    np.testing.assert_allclose(regression.log_density(points), expected, rtol=1e-12)


def test_prior_and_likelihood_apart(regression, regression_data, points):
    parts = regression.evaluate(points, gradient=True)
    np.testing.assert_allclose(parts.log_prior, log_prior(points), rtol=1e-12)
    np.testing.assert_allclose(parts.log_likelihood, log_likelihood(points, regression_data).sum(axis=1), rtol=1e-11)
    np.testing.assert_allclose(parts.gradient, regression.log_density_and_gradient(points)[1], atol=1e-11)
    assert regression.has_split
    assert "no rows (N = 0)" in regression.split.description
    np.testing.assert_array_equal(regression.prior_target().log_density(points), parts.log_prior)


def test_without_rows_the_split_is_found(regression, regression_data, points):
    target = stan_target(PROGRAMS / "regression.stan", regression_data)
    assert target.split.route == "no_observations"
    np.testing.assert_array_equal(target.evaluate(points).log_prior, regression.evaluate(points).log_prior)
    assert list(target.observed_data) == ["y"]
    assert list(target.constant_data) == ["N", "D", "X"]


def test_no_prior_on_request(regression_data):
    target = stan_target(PROGRAMS / "regression.stan", regression_data, prior=None)
    assert not target.has_split
    assert target.evaluate(np.zeros((1, 4))).log_prior is None
    with pytest.raises(PriorSamplingError, match="initial='laplace'"):
        target.prior_target()


def test_same_bits_as_bridgestan_client(regression, language, points):
    for target in (regression, language):
        x = target.initial_points(10, np.random.default_rng(1))
        model = client(target)
        expected = [model.log_density_gradient(point, propto=False, jacobian=True) for point in x]
        value, gradient = target.log_density_and_gradient(x)
        np.testing.assert_array_equal(value, [v for v, _ in expected])
        np.testing.assert_array_equal(gradient, [g for _, g in expected])
        for point, one in zip(x, value, strict=True):
            assert target.log_density_and_gradient(point)[0] == one


def test_bridgestan_client_opens_everything(regression, points):
    model = client(regression)
    assert model.param_unc_names() == ["beta.1", "beta.2", "beta.3", "tau"]
    x = points[0]
    constrained = model.param_constrain(x)
    np.testing.assert_allclose(model.param_unconstrain(constrained), x, rtol=1e-14)
    json = '{"beta": [0.1, 0.2, 0.3], "tau": 2}'
    np.testing.assert_allclose(model.param_unconstrain_json(json), [0.1, 0.2, 0.3, np.log(2)])
    start = model.param_initialize(model.new_rng(3), '{"tau": 2}', init_radius=1.0)
    assert start[3] == np.log(2)
    assert (np.abs(start[:3]) <= 1).all()
    assert model.param_constrain(x, include_tp=True, include_gq=True, rng=model.new_rng(1)).shape == (4 + 120,)
    _, gradient, hessian = model.log_density_hessian(x, propto=False)
    np.testing.assert_array_equal(gradient, regression.log_density_and_gradient(x)[1][0])
    np.testing.assert_allclose(hessian, regression.hessian(x)[0], atol=1e-12)
    _, product = model.log_density_hessian_vector_product(x, np.array([1.0, 2.0, -1.0, 0.5]), propto=False)
    np.testing.assert_allclose(product, hessian @ [1.0, 2.0, -1.0, 0.5], rtol=1e-8)
    dropped = [model.log_density(point, propto=True) - model.log_density(point, propto=False) for point in points[:2]]
    assert dropped[0] == pytest.approx(dropped[1], abs=1e-10)


def test_library_without_our_entry_points(regression, points, monkeypatch):
    """What only BridgeStan's own functions do gives the same numbers."""
    from ppl_backends.targets.stan.library import CompiledModel

    plain = CompiledModel.from_json(regression._model.library, regression.data, "plain")
    for gradient in (False, True):
        ours, theirs = regression._model.evaluate(points, gradient, 2), plain.evaluate(points, gradient, 1)
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[1], theirs[1])
    seeds = np.arange(len(points)).astype(np.uint32)
    for everything in (False, True):
        values = plain.constrain(points, seeds, everything, 1)[0]
        np.testing.assert_array_equal(values, regression._model.constrain(points, seeds, everything, 2)[0])
    np.testing.assert_allclose(plain.unconstrain(plain.constrain(points, seeds, False, 1)[0], 1), points, rtol=1e-13)
    np.testing.assert_allclose(plain.hessian(points[:2], 1), regression.hessian(points[:2]), atol=1e-10)


def test_prebuilt_library(regression, regression_data, points):
    target = stan_target(regression.library, regression_data)
    np.testing.assert_array_equal(target.log_density(points), regression.log_density(points))
    assert not target.has_split
    assert "no program text" in target.split_problem
    with_rows = stan_target(str(regression.library), regression_data, rows={"N": ["X", "y"]})
    np.testing.assert_array_equal(with_rows.evaluate(points).log_prior, regression.evaluate(points).log_prior)


def test_hessian_of_both_parts(regression, regression_data, points):
    x = points[:3]
    eta = x[:, :3] @ regression_data["X"].T
    weight = np.exp(log_expit(eta) + log_expit(-eta))
    exact = -np.einsum("ni,pn,nj->pij", regression_data["X"], weight, regression_data["X"])
    likelihood = regression.hessian(x, part="likelihood")
    np.testing.assert_allclose(likelihood[:, :3, :3], exact, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(likelihood[:, 3], 0, atol=1e-8)
    from ppl_backends.targets.protocol import BaseTarget

    np.testing.assert_allclose(regression.hessian(x), BaseTarget.hessian(regression, x), rtol=1e-5, atol=1e-5)


def test_number_of_threads_does_not_change_bits(regression, regression_data):
    x = np.random.default_rng(2).normal(size=(500, 4))
    alone = stan_target(PROGRAMS / "regression.stan", regression_data, cores=1)
    np.testing.assert_array_equal(alone.log_density_and_gradient(x)[1], regression.log_density_and_gradient(x)[1])
    drawn = [target.constrain(x, np.random.default_rng(0))["y_rep"] for target in (alone, regression)]
    np.testing.assert_array_equal(*drawn)


def test_any_python_thread_may_call(regression, language):
    x = np.random.default_rng(2).normal(size=(300, 4))
    z = language.initial_points(50, np.random.default_rng(2))
    expected, expected_z = regression.log_density_and_gradient(x)[1], language.log_density_and_gradient(z)[1]
    equal = []

    def work():
        for _ in range(20):
            equal.append(np.array_equal(regression.log_density_and_gradient(x)[1], expected))
            equal.append(np.array_equal(regression.log_density_and_gradient(x[:1])[1], expected[:1]))
            equal.append(np.array_equal(language.log_density_and_gradient(z)[1], expected_z))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(equal) == 240
    assert all(equal)


def _density_in_child(target, x):
    return target.log_density(x)


def test_pickles_as_a_recipe(regression, points):
    copy = pickle.loads(pickle.dumps(regression))
    np.testing.assert_array_equal(copy.log_density(points), regression.log_density(points))
    assert copy.observations.n == 60
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        there = pool.submit(_density_in_child, regression, points).result()
    np.testing.assert_array_equal(there, regression.log_density(points))


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # from JAX, where another test has started it
def test_forked_child_evaluates(regression, points):
    """Batches in the parent have started threads; a forked child must neither hang nor differ."""
    regression.log_density(np.random.default_rng(2).normal(size=(500, 4)))
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        there = pool.submit(_density_in_child, regression, points).result(timeout=60)
    np.testing.assert_array_equal(there, regression.log_density(points))


def test_new_data_without_compiling(regression, regression_data, points):
    half = {"N": 30, "X": regression_data["X"][:30], "y": regression_data["y"][:30]}
    target = regression.with_data(half)
    assert target.library == regression.library
    expected = log_prior(points) + log_likelihood(points, regression_data)[:, :30].sum(axis=1)
    np.testing.assert_allclose(target.log_density(points), expected, rtol=1e-12)


def test_accepts_text_paths_json_and_cmdstan_models(regression, regression_data, points, tmp_path):
    from ppl_backends.targets.stan.data import to_json

    (tmp_path / "data.json").write_text(to_json(regression_data))
    expected = regression.log_density(points)
    given = [
        (str(PROGRAMS / "regression.stan"), to_json(regression_data)),
        (PROGRAMS / "regression.stan", tmp_path / "data.json"),
        (_cmdstan_model(tmp_path), regression_data),
    ]
    for model, data in given:
        np.testing.assert_array_equal(stan_target(model, data).log_density(points), expected)
    with pytest.raises(ModelError, match=r"stanc: .*line 2, column"):
        stan_target("parameters { real x; }\nmodel { x ~ norml(0, 1); }")


def _cmdstan_model(folder):
    """A CmdStanModel of the program; its executable is never run, and no CmdStan is needed for its .stan file."""
    cmdstanpy = pytest.importorskip("cmdstanpy")
    (folder / "regression").touch()
    return cmdstanpy.CmdStanModel(stan_file=PROGRAMS / "regression.stan", exe_file=folder / "regression")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, "y"),
        ({"y": [0, 1]}, r"data variable 'y' has shape \(2\); the program \(line \d+\) declares \(60\)"),
        ({"y": [2] * 60}, r"y\[1\] is 2, but must be less than or equal to 1"),
        ({"y": [0.5] * 60}, r"'y' \(line \d+\) is declared int, and has values that are not integers"),
        ({"y": [0.0, 1.0] * 30}, r"'y' \(line \d+\) is declared int, and its values are integers of a type for reals"),
        ({"y": [0.0, np.nan] * 30}, r"'y' \(line \d+\) is declared int, and contains NaN; Stan has no missing values"),
        ({"y": (0, 1) * 30}, r"'y' \(line \d+\) is no tuple in the program; pass a list"),
        ({3: 1.0}, "data= has the key 3: expected the names of data variables"),
        ({"X": [[1.0], [2.0, 3.0]]}, "'X' is not a rectangular array"),
        ({"y": [1, None] * 30}, "'y' contains None; Stan has no missing values"),
        ({"y": {"a": 1}}, "'y' is not a rectangular array"),
        ({"N": 2**40}, "'N' holds an integer beyond"),
    ],
)
def test_bad_data_are_named(regression_data, change, message):
    with pytest.raises(ModelError, match=message) as caught:
        stan_target(PROGRAMS / "regression.stan", {**regression_data, **change})
    assert "\n" not in str(caught.value)


def test_an_error_of_the_density_names_missing_values(regression_data):
    rows = np.array(regression_data["X"], dtype=float)
    rows[3] = np.nan
    target = stan_target(PROGRAMS / "regression.stan", {**regression_data, "X": rows})
    said = target.explain(np.zeros(target.dim))
    assert f"{rows.shape[1]} of {rows.size} values of data variable 'X' are NaN" in said
    assert "declare them as parameters" in said


@pytest.mark.skipif(os.name != "posix", reason="pipes have paths")
def test_data_are_read_from_a_pipe():
    out, into = os.pipe()
    os.write(into, b'{"N": 3}')
    os.close(into)
    try:
        assert read_data(f"/dev/fd/{out}") == {"N": 3}
    finally:
        os.close(out)


def test_missing_data_and_files(tmp_path):
    with pytest.raises(ModelError, match=r"data variable 'N' \(line \d+\) is missing; pass it in data="):
        stan_target(PROGRAMS / "regression.stan")
    with pytest.raises(ModelError, match="no such data file"):
        stan_target(PROGRAMS / "regression.stan", "nowhere.json")
    with pytest.raises(ModelError, match="data: the name 'N' occurs twice in one JSON object"):
        stan_target(PROGRAMS / "regression.stan", '{"N": 3, "K": 1, "N": 4}')
    with pytest.raises(ModelError, match="no such Stan program"):
        stan_target("nowhere.stan")
    with pytest.raises(ModelError, match="no such library"):
        stan_target("nowhere.so")
    (tmp_path / "broken.so").write_bytes(b"no library")
    with pytest.raises(ModelError, match="cannot be loaded"):
        stan_target(tmp_path / "broken.so")


def test_names_shapes_and_values_of_the_whole_language(language):
    x = language.initial_points(4, np.random.default_rng(3))
    values = language.constrain(x, np.random.default_rng(0))
    shapes = {name: value.shape[1:] for name, value in values.items()}
    assert shapes == {
        **{"mu": (), "none": (0,), "p": (3,), "z": (2, 3), "t.1": (), "t.2": (2,), "c": (), "L": (2, 2), "Z": (2, 3)},
        **{"counts": (2, 3), "cv": (2,), "made.1": (2,), "made.2": (2, 1), "list.1": (2,), "list.2": (2, 2)},
        **{"empty": (0,), "empty_too": (0, 4), "log_lik": (3,), "noise": ()},
    }
    assert language.names[:4] == ("mu", "p[0]", "p[1]", "z[0,0]")
    mu, c = values["mu"], values["c"]
    np.testing.assert_array_equal(values["Z"], values["z"])
    np.testing.assert_array_equal(values["counts"], np.broadcast_to([[11, 12, 13], [21, 22, 23]], (4, 2, 3)))
    assert values["counts"].dtype.kind == "i"
    np.testing.assert_array_equal(values["cv"], np.stack([c, 2 * c], axis=1))
    np.testing.assert_array_equal(values["made.1"], np.stack([mu, 2 * mu], axis=1))
    np.testing.assert_array_equal(values["list.2"][:, 0], np.stack([mu, mu], axis=1))
    np.testing.assert_array_equal(values["list.2"][:, 1], [[4, 5]] * 4)
    np.testing.assert_allclose(values["p"].sum(axis=1), 1)
    np.testing.assert_allclose(language.unconstrain(values), x, atol=1e-12)


def test_density_of_the_whole_language(language):
    x = language.initial_points(4, np.random.default_rng(3))
    v = language.constrain(x)
    c, y = v["c"], np.array([1.0, 2.0, 3.0])
    density = stats.norm.logpdf(v["mu"], 1.0, 1) + stats.expon.logpdf(v["t.1"]) + np.log(v["t.1"])
    density += stats.norm.logpdf(v["t.2"], 1.5, [1, 2]).sum(axis=1) + stats.norm.logpdf(v["z"]).sum(axis=(1, 2))
    density += stats.norm.logpdf(c.real, 1) + stats.norm.logpdf(c.imag, 2)
    density += stats.norm.logpdf(y, v["mu"][:, None]).sum(axis=1)
    density += [stats.dirichlet.logpdf(p, [2, 3, 4]) for p in v["p"]]
    # In two dimensions LKJ(2) is a Beta(2, 2) density of (r + 1) / 2, and r = tanh of the unconstrained value.
    r = v["L"][:, 1, 0]
    density += stats.beta.logpdf((r + 1) / 2, 2, 2) - np.log(2) + np.log1p(-(r**2))
    # Only the simplex's own Jacobian is left, which differs between Stan versions.
    rest = language.log_density(x) - density
    x[:, [0, *range(3, language.dim)]] = language.initial_points(4, np.random.default_rng(4))[
        :, [0, *range(3, language.dim)]
    ]
    assert np.isfinite(rest).all()
    jacobian = client_jacobian(language, x)
    np.testing.assert_allclose(rest, jacobian, atol=1e-9)


def client_jacobian(language, x):
    """Log absolute Jacobian of the simplex, by differences of its first two elements."""
    base, step = x.copy(), 1e-6
    columns = []
    for j in (1, 2):
        up, down = base.copy(), base.copy()
        up[:, j] += step
        down[:, j] -= step
        columns.append((language.constrain(up)["p"] - language.constrain(down)["p"])[:, :2] / (2 * step))
    return np.log(np.abs(np.linalg.det(np.stack(columns, axis=2))))


def test_prints_go_to_the_log(language, language_data, caplog, capfd):
    with caplog.at_level(logging.INFO, logger="ppl_backends.stan"):
        again = language.with_data({})
        x = np.zeros((1, language.dim))
        x[0, 0] = 200.0
        again.log_density(np.repeat(x, 3, axis=0))
    assert "language.stan prints: constructed with N = 3" in caplog.text
    assert "mu is large" in caplog.text
    assert capfd.readouterr().out == ""


def test_generators_are_seeded_by_draw(regression, points):
    first, again = (regression.constrain(points, np.random.default_rng(7))["y_rep"] for _ in range(2))
    other = regression.constrain(points, np.random.default_rng(8))["y_rep"]
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    same_point = regression.constrain(np.repeat(points[:1], 2000, axis=0), np.random.default_rng(1))["y_rep"]
    probability = 1 / (1 + np.exp(-points[0, :3] @ regression.data["X"].T))
    z = (same_point.mean(axis=0) - probability) / np.sqrt(probability * (1 - probability) / 2000)
    assert np.abs(z).max() < 5
    assert (z**2).sum() < stats.chi2.ppf(1 - 1e-5, 60)


def test_log_lik_is_pointwise(regression, regression_data, points):
    pointwise = regression.pointwise_log_likelihood(points)
    assert list(pointwise) == ["y"]
    np.testing.assert_allclose(pointwise["y"], log_likelihood(points, regression_data), rtol=1e-12)


def test_results_of_the_whole_language(language, language_data, tmp_path):
    """Complex numbers, tuples and empty variables survive the file; ``log_lik`` is in its group."""
    from ppl_backends.handover import cmdstan_inits
    from ppl_backends.results.inference_data import build_inference_data, group

    dims = {"y": ["obs"], "log_lik": ["obs"]}
    target = stan_target(language.program, language_data, coords={"obs": list("abc")}, dims=dims)
    rng = np.random.default_rng(0)
    x = target.initial_points(6, rng)
    options = {"method": "test", "accuracy": "exact", "sampling_time": 0.0, "rng": rng}
    idata = build_inference_data(target, x.reshape(2, 3, -1), **options)
    idata.to_netcdf(tmp_path / "idata.nc")
    arviz = pytest.importorskip("arviz")
    back = arviz.from_netcdf(tmp_path / "idata.nc")
    posterior = group(back, "posterior")
    assert posterior["c"].shape == (2, 3, 2)
    assert "log_lik" not in posterior
    pointwise = group(back, "log_likelihood")["y"]
    assert pointwise.dims == ("chain", "draw", "obs")
    assert list(pointwise["obs"].values) == ["a", "b", "c"]
    np.testing.assert_array_equal(pointwise.values.reshape(6, 3), target.pointwise_log_likelihood(x)["y"])
    (init,) = cmdstan_inits(back, chains=1, seed=0, target=target)
    assert init["c"] in target.parameters(x)["c"]


def test_thrown_points_are_impossible(rejecting):
    x = np.array([[1.0, 0], [-0.5, 0], [1, 4.5], [1, 6]])
    value, gradient = rejecting.log_density_and_gradient(x)
    allowed = [stats.norm.logpdf(point).sum() for point in ([1, 0], [1, 6])]
    np.testing.assert_allclose(value, [allowed[0], -np.inf, -np.inf, allowed[1]], rtol=1e-14)
    np.testing.assert_array_equal(gradient, [[-1, 0], [0, 0], [0, 0], [0, 0]])
    reasons = [rejecting.explain(point) for point in x]
    assert reasons[0] == "the log density and its gradient are finite"
    assert "x is negative: -0.5" in reasons[1]
    assert "line" in reasons[1]
    assert reasons[2] == "the log density is not finite"
    assert reasons[3] == "the gradient of the log density is not finite, and counts as zero"
    np.testing.assert_array_equal([rejecting.log_density(row)[0] for row in x], value)


def test_thrown_quantities_are_missing(rejecting):
    with pytest.warns(SamplerWarning, match="generated quantities of 1 of 2 draws failed.*no quantities"):
        values = rejecting.constrain(np.array([[-2.0, 0], [1, 0]]))
    np.testing.assert_array_equal(values["x"], [-2, 1])
    np.testing.assert_array_equal(values["after"], [np.nan, 1])


def test_starts_are_finite(rejecting):
    x = rejecting.initial_points(50, np.random.default_rng(0))
    assert np.isfinite(rejecting.log_density(x)).all()
    assert (x[:, 0] > 0).all()


def test_starts_may_be_farther_than_those_of_stan():
    """The support of ``endpoint`` has no point in (-2, 2), where Stan looks for starts."""
    endpoint = """
    data { int N; vector[N] y; }
    parameters { real endpoint; }
    model { endpoint ~ normal(0, 20); y ~ uniform(0, endpoint); }
    """
    target = stan_target(endpoint, {"N": 3, "y": [1.0, 9.5, 8.0]})
    assert (target.initial_points(4, np.random.default_rng(0)) > 9.5).all()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat_where_half_the_points_throw(rejecting):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    x = np.random.default_rng(0).normal(size=(10_000, 2))

    def evaluate():
        for start in range(0, len(x), 1000):
            rejecting.log_density_and_gradient(x[start : start + 1000])
        for point in x[:, None]:
            rejecting.log_density_and_gradient(point)

    evaluate()
    before = resident()
    evaluate()
    assert (~np.isfinite(rejecting.log_density(x))).mean() == pytest.approx(0.5, abs=0.03)
    assert resident() - before < 2**20  # 50 bytes for each of 20,000 evaluations


def test_ode_solvers():
    times = np.arange(1, 5) / 2
    data = {"N": 4, "times": times, "observed": np.exp(-1.3 * times)}
    target = stan_target(PROGRAMS / "ode.stan", data, prior=None)
    x = np.log([[0.7], [1.3]])
    solution = np.exp(-np.exp(x) * times)
    expected = stats.norm.logpdf(x[:, 0]) + 2 * stats.norm.logpdf(data["observed"], solution, 0.1).sum(axis=1)
    np.testing.assert_allclose(target.log_density(x), expected, rtol=1e-4)  # the solver's own tolerance
    assert target.log_density_and_gradient([[800.0]])[0] == -np.inf
    assert "ode.stan" in target.explain([800.0])


def test_unknown_options_and_programs_without_parameters_are_explained():
    with pytest.raises(ModelError, match="unknown option 'foo' for a Stan program; known are cores"):
        as_target("data { int n; } model { }", data={"n": 1}, foo=1)
    with pytest.raises(ModelError, match="has no parameters"):
        as_target("data { int n; } model { }", data={"n": 1})


@pytest.mark.slow
def test_draws_of_unit_vectors_determine_the_evidence():
    from ppl_backends import evidence

    def von_mises_fisher(k):  # along the first axis
        w = 1 + np.log(np.exp(-2 * k) + rng.random((4, 1500)) * (1 - np.exp(-2 * k))) / k
        turn = rng.uniform(0, 2 * np.pi, w.shape)
        return np.stack([w, np.sqrt(1 - w**2) * np.cos(turn), np.sqrt(1 - w**2) * np.sin(turn)], axis=-1)

    rng = np.random.default_rng(1)
    program = "parameters { array[2] unit_vector[3] u; } model { target += 4 * u[1][1] + 2 * u[2][1]; }"
    target = as_target(program)
    draws = np.stack([von_mises_fisher(4.0), von_mises_fisher(2.0)], axis=2)
    assert target.names == ("u[0,0]", "u[0,1]", "u[0,2]", "u[1,0]", "u[1,1]", "u[1,2]")
    rows = target.unconstrain({"u": draws.reshape(-1, 2, 3)})
    assert np.allclose(target.constrain(rows)["u"], draws.reshape(-1, 2, 3))
    found = evidence({"u": draws}, target, random_seed=1)
    exact = sum(np.log(4 * np.pi * np.sinh(k) / k) for k in (4.0, 2.0)) + np.log(np.pi / 2)  # Stan's radii: √(π/2)
    assert found.trusted
    assert abs(found.log_evidence - exact) < 5 * found.log_evidence_se


@pytest.mark.filterwarnings("ignore::ppl_backends.errors.ApproximationWarning")
def test_methods_take_complex_numbers(language, language_data):
    """Only mu has data; all priors are proper densities."""
    from ppl_backends import evidence, fit_vi, sample_importance, sensitivity

    y = np.array(language_data["y"])
    exact = stats.multivariate_normal.logpdf(y, np.ones(3), np.eye(3) + 1)
    idata = sample_importance(language, random_seed=1, progressbar=False)
    found = evidence(idata, language, random_seed=1)
    assert abs(idata["posterior"].attrs["log_evidence"] - exact) < 0.02
    assert abs(found.log_evidence - exact) < 5 * found.log_evidence_se
    table = sensitivity(idata, language, var_names=["c"], powers=[0.8], random_seed=1).table
    assert np.isfinite(table["prior"]).tolist() == [True, True]  # of real and imaginary part
    fit_vi(language, random_seed=1, progressbar=False)


@pytest.mark.parametrize("digits", [6, 8])
def test_draws_with_the_digits_of_cmdstans_files(digits):
    """Rounded simplexes and unit vectors do not sum to one to 1e-8, which Stan requires."""
    target = as_target("""
    parameters { array[2] simplex[3] s; simplex[2] p; unit_vector[3] u; real<lower=0> z; }
    model { z ~ exponential(1); }
    """)
    x = np.random.default_rng(1).normal(size=(200, target.dim))
    values = {name: target.constrain(x)[name] for name in target.parameter_names}
    rounded = {name: np.vectorize(lambda v: float(f"{v:.{digits}g}"))(each) for name, each in values.items()}
    again = target.constrain(target.unconstrain(rounded))
    for name, each in values.items():
        np.testing.assert_allclose(again[name], each, rtol=10.0 ** (1 - digits), atol=3 * 10.0**-digits)
    with pytest.raises(ModelError, match="200 of 200 points cannot be unconstrained"):
        target.unconstrain({**values, "p": values["p"] + 1e-4})


def test_names_of_coordinates_are_those_of_the_elements_that_they_determine():
    """Stan's own names of the elements of an array of vectors are in another order than its coordinates."""
    target = as_target("""
    parameters {
      array[2] vector[3] v; array[2, 2] simplex[3] s; array[2] matrix[2, 2] m; matrix[2, 3] a; array[3, 2] real r;
      array[2] cholesky_factor_corr[3] l; array[2, 3] real<lower=0> w; real z;
    }
    model {
      for (i in 1:2) { v[i] ~ std_normal(); to_vector(m[i]) ~ std_normal(); w[i] ~ exponential(1); }
      for (i in 1:3) r[i] ~ std_normal();
      to_vector(a) ~ std_normal(); z ~ std_normal();
    }
    """)
    x = np.vstack([np.zeros(target.dim), 0.1 * np.eye(target.dim)])
    values = target.constrain(x)
    n_array = {"v": 2, "s": 2, "m": 3, "a": 2, "r": 2, "l": 1, "w": 2, "z": 0}
    assert len(set(target.names)) == target.dim
    for row, name in enumerate(target.names, 1):
        base, _, index = name.rstrip("]").partition("[")
        changed = np.argwhere(values[base][row] != values[base][0])
        index = [int(each) for each in index.split(",") if each]
        assert len(changed)
        assert (changed[:, : n_array[base]] == index[: n_array[base]]).all(), name

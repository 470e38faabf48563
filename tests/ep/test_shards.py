"""EP as a map over shards, in memory and from files."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
import pytest

from ppl_backends.approximations.ep import ArrayShard, Factors, FactorsTarget, FileShard, Logit, fit_ep, fit_ep_sharded
from ppl_backends.approximations.ep.parallel import Sites
from ppl_backends.approximations.ep.sharded_target import ShardedTarget
from ppl_backends.errors import ApproximationWarning, ModelError

N, D = 3000, 4


def read_rows(path, first, last):
    table = np.memmap(path, dtype=np.float64, mode="r", shape=(N, D + 1))[first:last]
    return np.asarray(table[:, :D]), 0.1, Logit(table[:, D])


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    y = rng.random(N) < 1 / (1 + np.exp(-X @ [1.0, -1.0, 0.5, 0.0] - 0.1))
    return np.c_[X, y]


def same(a, b):
    np.testing.assert_allclose(a.mean, b.mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(a.cov, b.cov, rtol=0, atol=1e-10)
    assert a.log_evidence == pytest.approx(b.log_evidence, abs=1e-8)
    np.testing.assert_allclose(a.loo.log_density, b.loo.log_density, atol=1e-9)


def test_files_and_processes_give_the_single_process_result(table, tmp_path):
    path = tmp_path / "table.bin"
    table.tofile(path)
    whole = fit_ep(Factors(table[:, :D], 0.1, Logit(table[:, D]), 0.0, 1.0))
    ends = [0, 700, 1900, N]
    shards = [FileShard(partial(read_rows, path, a, b), b - a) for a, b in pairwise(ends)]
    same(fit_ep_sharded(shards, 0.0, 1.0, dim=D), whole)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        same(fit_ep_sharded(shards, 0.0, 1.0, dim=D, executor=executor), whole)
        same(fit_ep(Factors(table[:, :D], 0.1, Logit(table[:, D]), 0.0, 1.0), n_shards=3, executor=executor), whole)


@pytest.mark.slow
def test_a_dask_cluster_gives_the_single_process_result(table, tmp_path):
    distributed = pytest.importorskip("distributed")
    path = tmp_path / "table.bin"
    table.tofile(path)
    factors = Factors(table[:, :D], 0.1, Logit(table[:, D]), 0.0, 1.0)
    whole = fit_ep(factors)
    shards = [FileShard(partial(read_rows, path, a, b), b - a) for a, b in pairwise([0, 1300, N])]
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        executor = client.get_executor()
        same(fit_ep_sharded(shards, 0.0, 1.0, dim=D, executor=executor), whole)
        same(fit_ep(factors, n_shards=2, executor=executor), whole)


def read_zarr(path, first, last):
    import zarr

    rows = zarr.open_array(path, mode="r")[first:last]
    return rows[:, :D], 0.1, Logit(rows[:, D])


def read_parquet(path, group):
    import pyarrow.parquet as pq

    rows = np.column_stack([c.to_numpy() for c in pq.ParquetFile(path).read_row_group(group).columns])
    return rows[:, :D], 0.1, Logit(rows[:, D])


def zarr_shards(table, path):
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(str(path), shape=table.shape, chunks=(500, D + 1), dtype="f8")
    array[:] = table
    return [FileShard(partial(read_zarr, str(path), a, b), b - a) for a, b in pairwise([0, 1000, 2500, N])]


def parquet_shards(table, path):
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = pa.table({f"c{j}": table[:, j] for j in range(D + 1)})
    pq.write_table(columns, path, row_group_size=1000)
    return [FileShard(partial(read_parquet, path, k), 1000) for k in range(3)]


@pytest.mark.parametrize("make", [zarr_shards, parquet_shards])
def test_shards_from_libraries_of_files(table, tmp_path, make):
    whole = fit_ep(Factors(table[:, :D], 0.1, Logit(table[:, D]), 0.0, 1.0))
    same(fit_ep_sharded(make(table, tmp_path / "table"), 0.0, 1.0, dim=D), whole)


def separated(n=40):
    x = np.linspace(-1, 1, n)
    return np.column_stack([np.ones(n), x]), x > 0


def test_an_improper_posterior_is_named_as_by_fit_ep():
    X, y = separated()
    said = []
    for fit in (
        lambda: fit_ep(Factors(X, 0.1, Logit(y), 0.0, 0.0)),
        lambda: fit_ep_sharded([ArrayShard(X[k::2], np.full(20, 0.1), Logit(y[k::2])) for k in range(2)], 0, 0, dim=2),
    ):
        with pytest.warns(ApproximationWarning, match="^EP: the posterior is improper: its density does not") as caught:
            assert not fit().converged
        said.append(str(caught[0].message))
    assert said[0] == said[1]


def test_a_flat_prior_is_no_fault_if_the_data_are_not_separated():
    X, y = separated()
    y[10] = True
    shards = [ArrayShard(X[a : a + 20], np.full(20, 0.1), Logit(y[a : a + 20])) for a in (0, 20)]
    q = fit_ep_sharded(shards, 0.0, 0.0, dim=2)
    assert q.converged
    assert not q.trouble
    same(q, fit_ep(Factors(X, 0.1, Logit(y), 0.0, 0.0)))


def test_the_density_of_shards_is_that_of_all_rows(table, tmp_path):
    table.tofile(path := tmp_path / "rows.bin")
    factors = Factors(table[:, :D], 0.1, Logit(table[:, D]), 0.3, 2.0, log_constant=1.5)
    shards = [FileShard(partial(read_rows, path, a, b), b - a) for a, b in pairwise([0, 700, N])]
    target = ShardedTarget(Sites(shards, factors.prior), 1.5, factors.names)
    whole, x = FactorsTarget(factors), np.random.default_rng(3).standard_normal((4, D))
    for one, other in zip(target.evaluate(x, True), whole.evaluate(x, True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-8)
    np.testing.assert_allclose(target.log_density(x), whole.log_density(x), rtol=1e-10)
    for part in ("joint", "likelihood"):
        np.testing.assert_allclose(target.hessian(x, part), whole.hessian(x, part), rtol=1e-10, atol=1e-8)


def test_a_shard_must_have_the_rows_it_says(table, tmp_path):
    path = tmp_path / "table.bin"
    table.tofile(path)
    with pytest.raises(ModelError, match="a shard of 10 sites read 700 rows"):
        fit_ep_sharded([FileShard(partial(read_rows, path, 0, 700), 10)], 0.0, 1.0, dim=D)

"""The format of checkpoints: every value comes back as it was, a changed byte is found, and nothing in a file can run."""

import io
import itertools
import json
import os
import pickle
import zipfile

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ppl_backends.kernels.table import make_kernel
from ppl_backends.smc.checkpoint import _TYPES
from ppl_backends.smc.codec import DamagedError, _checksum, pack, unpack
from ppl_backends.smc.core import SMCState
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.sampler import run_tempering
from ppl_backends.smc.schedule import make_schedule
from tests.toys import conjugate_gaussian


def equal(a, b):
    """Return whether two values are the same to the last bit, types included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, np.random.Generator):
        return equal(dict(a.bit_generator.state), dict(b.bit_generator.state))
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes() or (np.isnan(a) and np.isnan(b))
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    return equal(vars(a), vars(b)) if hasattr(a, "__dict__") else bool(a == b)


arrays = hnp.arrays(
    st.one_of(hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(), hnp.floating_dtypes()),
    hnp.array_shapes(min_dims=0, min_side=0),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), arrays, arrays.map(lambda a: a.sum())),
    lambda inner: st.one_of(st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


@settings(max_examples=100)
@given(values)
def test_values_come_back_as_they_were(value):
    assert equal(unpack(pack(value)), value)


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937"])
def test_generators_go_on_where_they_were(kind):
    rng = np.random.Generator(getattr(np.random, kind)(3))
    rng.integers(0, 10, dtype=np.int32)  # leaves half a word for the next one
    again = unpack(pack(rng))
    np.testing.assert_array_equal(
        again.integers(0, 2**31, 5, dtype=np.int32), rng.integers(0, 2**31, 5, dtype=np.int32)
    )


def test_an_array_that_occurs_twice_is_written_once():
    x = np.arange(1000.0)
    first, second = unpack(pack((x, x)))
    assert first is second
    assert len(pack((x, x))) < 1.2 * len(pack(x))


@pytest.mark.parametrize("value", [object(), {1: 2}, {"a"}, np.array([None]), print, 1j, SMCState])
def test_what_cannot_be_written_is_named(value):
    with pytest.raises(TypeError, match="cannot be written"):
        pack(value)


class Checked:
    """A store that reads every state back as soon as it is written."""

    def __init__(self):
        self.seen = 0

    def load(self):
        return None

    def save(self, progress):
        self.seen += 1
        assert equal(unpack(pack(progress, _TYPES), _TYPES), progress)


@pytest.mark.parametrize("kernel", ["hmc", "mala", "mixed", "independent", "random_walk"])
@pytest.mark.parametrize("tuning", ["acceptance", "ft", "pr"])
def test_every_state_of_a_run_comes_back(kernel, tuning):
    path = PriorPath(conjugate_gaussian(2).target)
    for schedule, unbiased, keep_ladder, len_chain in itertools.product(
        ("ess", "cess", (0.1, 0.4)), (False, True), (False, True), (None, 5)
    ):
        store = Checked()
        options = {"schedule": make_schedule(schedule, 0.5), "tuning": tuning, "len_chain": len_chain}
        options |= {"unbiased": unbiased, "keep_ladder": keep_ladder, "store": store}
        run = run_tempering(path, make_kernel(kernel), 20, np.random.default_rng(1), **options)
        assert store.seen >= len(run.stages)


def test_a_changed_byte_is_found_wherever_it_is():
    content = bytearray(pack({"x": np.arange(3.0), "n": 2}))
    for place in range(len(content)):
        content[place] ^= 1
        with pytest.raises(DamagedError):
            unpack(bytes(content))
        content[place] ^= 1
    for length in range(len(content)):
        with pytest.raises(DamagedError):
            unpack(bytes(content[:length]))


class Payload:
    """Code that a pickle would run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def sealed(members):
    """Return an archive with a checksum that matches, which anyone who knows the format can make."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = bytes(64)
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    content = file.getvalue()[:-64]
    return content + _checksum(content)


def npy(array, allow_pickle=False):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def test_nothing_in_a_file_can_run(tmp_path):
    made = tmp_path / "made"
    pickled = pickle.dumps(Payload(str(made)))
    objects = npy(np.array([Payload(str(made))], dtype=object), allow_pickle=True)
    trees = [
        {"object": "Payload", "fields": {"dict": {"path": str(made)}}},
        {"object": "os.mkdir", "fields": {"path": str(made)}},
        {"generator": {"dict": {"bit_generator": "Payload"}}},
        {"object": "Stage", "fields": {"unknown": 1}},
        {"array": "missing"},
        {"what": 1},
        {},
    ]
    texts = [npy(np.frombuffer(json.dumps(tree).encode(), np.uint8)) for tree in trees]
    files = [sealed({"value": text}) for text in texts]
    files += [pickled + _checksum(pickled), sealed({"value": pickled}), sealed({"value": objects}), sealed({})]
    files += [sealed({"value": npy(np.frombuffer(b'{"array": "a"}', np.uint8)), "a": objects})]
    for content in files:
        with pytest.raises(ValueError):
            unpack(content, _TYPES)
    assert not made.exists()
    pickle.loads(pickled)  # the payload itself works
    assert made.exists()

"""Files of arrays: their bytes, and that nobody sees half of one."""

from __future__ import annotations

import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.array_file import read_npz
from neuronjax.testing.archive import npz_bytes, write_atomically
from neuronjax.testing.inputs import drawn, raw_words

ARRAYS = {"b/1": np.arange(5, dtype=">u4"), "a": np.asfortranarray(np.ones((2, 3)))}


def test_bytes_depend_on_the_arrays_alone(tmp_path):
    data = npz_bytes(ARRAYS)
    assert data == npz_bytes(dict(reversed(ARRAYS.items())))
    (tmp_path / "x.npz").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        assert {i.date_time for i in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    for name, array in read_npz(data).items():
        np.testing.assert_array_equal(array, ARRAYS[name])


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "deep" / "x"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, None)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidProgramError, match="x cannot be written") as caught:
        write_atomically(tmp_path / "file" / "x", b"new")
    assert "make the folder writable" in str(caught.value)


def test_drawn_numbers_are_the_same_everywhere():
    """The stream of NumPy's Philox generator, key (0, 0)."""
    assert [hex(w) for w in raw_words(2, 0)] == FIRST_WORDS
    x = drawn(jax.ShapeDtypeStruct((4, 8), jnp.float32), "x", 1, 2)
    assert x.dtype == np.float32
    assert np.all((x >= -1) & (x < 1))
    assert np.all(x * 2**23 == np.round(x * 2**23))
    assert not np.array_equal(
        x, drawn(jax.ShapeDtypeStruct(x.shape, x.dtype), "", 1, 3)
    )


FIRST_WORDS = ["0x2f4ba6408e4d89b", "0x3dd62b0b9ca8c5b2"]


def test_integers_are_not_drawn():
    with pytest.raises(InvalidProgramError, match=r"argument ids .* only floats"):
        drawn(jax.ShapeDtypeStruct((2,), jnp.int32), "ids", 0, 0)

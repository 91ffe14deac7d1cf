"""Files of tensors: what is read, and that no bad file is believed."""

import contextlib
import io
import json
import zipfile

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from neuronjax.diagnostics.dumps.reading import read_dump
from neuronjax.errors import InvalidProgramError, NeuronJaxError

A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = np.asarray([1.5, -2.0], ml_dtypes.bfloat16)


def safetensors(path, tensors, **changes):
    """The format by hand; `changes` of a name override its entry."""
    header, data = {"__metadata__": {"format": "np"}}, b""
    words = {"float32": "F32", "bfloat16": "BF16", "int64": "I64", "bool": "BOOL"}
    for name, array in tensors.items():
        begin = len(data)
        data += array.tobytes()
        header[name] = {
            "dtype": words[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, len(data)],
        } | changes.get(name, {})
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_mappings_and_files_hold_the_same(tmp_path):
    np.save(tmp_path / "a.npy", A)
    np.savez(tmp_path / "all.npz", a=A)
    (tmp_path / "folder" / "layer").mkdir(parents=True)
    np.save(tmp_path / "folder" / "layer" / "a.npy", A)
    safetensors(tmp_path / "all.safetensors", {"a": A, "b": B})
    for source in (
        tmp_path / "a.npy",
        str(tmp_path / "all.npz"),
        {"a": jnp.asarray(A)},
    ):
        [(name, found)] = read_dump(source).items()
        assert name == "a"
        np.testing.assert_array_equal(found, A)
    assert list(read_dump(tmp_path / "folder")) == ["layer/a"]
    found = read_dump(tmp_path / "all.safetensors")
    np.testing.assert_array_equal(found["a"], A)
    assert found["b"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found["b"], B)


def test_safetensors_without_tensors_bytes_and_scalars(tmp_path):
    tensors = {"none": np.zeros((0, 3), np.float32), "one": np.asarray(7, np.int64)}
    found = read_dump(safetensors(tmp_path / "x.safetensors", tensors))
    assert found["none"].shape == (0, 3)
    assert found["one"] == 7
    empty = safetensors(tmp_path / "e.safetensors", {"none": tensors["none"]})
    assert read_dump(empty)["none"].shape == (0, 3)


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ({"dtype": "F31"}, "has dtype"),
        ({"dtype": ["F32"]}, "has dtype"),
        ({"shape": [3, -4]}, "not whole numbers"),
        ({"shape": [3, True]}, "not whole numbers"),
        ({"shape": "34"}, "not whole numbers"),
        ({"shape": [2**62, 2**62]}, "has 48 bytes"),
        ({"data_offsets": [0, 47]}, "has 47 bytes"),
        ({"data_offsets": [48, 0]}, "claims bytes 48 to 0"),
        ({"data_offsets": [0, 2**63]}, "bytes"),
        ({"data_offsets": [0]}, "not whole numbers"),
        ({"data_offsets": [0, 12], "shape": [3]}, "hole"),
        ({"data_offsets": None}, "not whole numbers"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, entry, what):
    path = safetensors(tmp_path / "x.safetensors", {"a": A, "b": B}, a=entry)
    with pytest.raises(InvalidProgramError, match=what):
        read_dump(path)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "too few for the size"),
        (b"\xff" * 8, "a header of"),
        ((2).to_bytes(8, "little") + b"[]", "not an object"),
        ((2).to_bytes(8, "little") + b"{x", "not JSON"),
        ((8).to_bytes(8, "little") + b'{"a": 1}', "lacks one of"),
        ((15).to_bytes(8, "little") + b'{"a":1,"a":{}} ', "occurs twice"),
        ((2).to_bytes(8, "little") + b"{}junk", "belong to no tensor"),
        ((90000).to_bytes(8, "little") + b"[" * 90000, "not JSON"),
    ],
)
def test_bytes_that_are_no_safetensors_are_refused(tmp_path, data, what):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(InvalidProgramError, match=what):
        read_dump(path)


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors"])
def test_whatever_is_cut_or_changed_is_a_named_error(tmp_path, kind):
    """A file that was cut off anywhere, or has one byte changed, never crashes."""
    path = tmp_path / f"x.{kind}"
    if kind == "safetensors":
        safetensors(path, {"a": A, "b": B})
    elif kind == "npy":
        np.save(path, A)
    else:
        np.savez(path, a=A)
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    for n in range(120):
        damaged = bytearray(whole[: generator.integers(len(whole))] if n % 2 else whole)
        if damaged:
            damaged[generator.integers(len(damaged))] = generator.integers(256)
        path.write_bytes(damaged)
        with contextlib.suppress(NeuronJaxError):
            read_dump(path)


def test_what_an_archive_says_is_checked_before_it_is_unpacked(tmp_path):
    """A header of 2^60 bytes, and a member that says it has them."""
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**58,)}
    np.lib.format.write_array_header_1_0(stream, header)
    for path in (tmp_path / "x.npz", tmp_path / "x.npy"):
        if path.suffix == ".npz":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("a.npy", stream.getvalue())
        else:
            path.write_bytes(stream.getvalue())
        with pytest.raises(InvalidProgramError, match="the file has 0"):
            read_dump(path)


def test_columns_first_is_an_order_too(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(A))
    np.testing.assert_array_equal(read_dump(tmp_path / "x.npy")["x"], A)


def test_nothing_is_unpickled(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.asarray([{"code": 1}], object), allow_pickle=True)
    with pytest.raises(InvalidProgramError, match="holds Python objects"):
        read_dump(path)
    np.savez(tmp_path / "x.npz", a=np.asarray([None]))
    with pytest.raises(InvalidProgramError, match="holds Python objects"):
        read_dump(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ({}, "holds no tensor"),
        ({"a": "text"}, "dtype"),
        ({"a": [[1], [1, 2]]}, "no array"),
        ({"a": np.asarray([1j])}, "dtype complex128"),
        ("missing.npz", "no such file"),
    ],
)
def test_what_is_no_dump_is_refused(source, what):
    with pytest.raises(InvalidProgramError, match=what):
        read_dump(source)


def test_an_unknown_ending_is_refused(tmp_path):
    (tmp_path / "x.pt").write_bytes(b"PK")
    with pytest.raises(InvalidProgramError, match="unknown kind of file"):
        read_dump(tmp_path / "x.pt")

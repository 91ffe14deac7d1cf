"""Files that were made to harm: each is refused by name, in little memory."""

import io
import json
import os
import tracemalloc
import zipfile

import numpy as np
import pytest

import neuronjax as nj
from neuronjax.capture import parsing
from neuronjax.capture.exported import TEXT_BYTES, TEXT_RATIO, FlatBuffer
from neuronjax.diagnostics.dumps.reading import read_dump
from neuronjax.errors import InvalidProgramError
from neuronjax.testing import conformance
from tests.files.loaders import LOADERS, safetensors_bytes

MOST_BYTES = 64 << 20


def refused(path, match):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidProgramError, match=match):
            read_dump(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_an_archive_that_says_it_has_terabytes(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(4, np.float32))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    at = data.index(b"PK\x01\x02") + 24  # its size in the list of the archive
    data[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    (tmp_path / "x.npz").write_bytes(data)
    refused(tmp_path / "x.npz", "would unpack to")


@pytest.mark.slow
def test_a_bomb_of_zeros(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        member = io.BytesIO()
        np.save(member, np.zeros(48 << 20, np.uint8))
        for n in range(24):
            archive.writestr(f"{n}.npy", member.getvalue())
    refused(tmp_path / "x.npz", "would unpack to")


@pytest.mark.parametrize("shape", [[1] * 65, [0, 2**63]])
def test_a_shape_that_no_array_has(tmp_path, shape):
    entry = {"a": {"dtype": "F32", "shape": shape}}
    end = 4 * int(0 not in shape)
    entry["a"]["data_offsets"] = [0, end]
    text = json.dumps(entry).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(end)
    (tmp_path / "x.safetensors").write_bytes(data)
    refused(tmp_path / "x.safetensors", "a shape too large for NumPy")
    assert safetensors_bytes({})[8:].startswith(b"{")


def test_a_pipe_and_a_folder_in_the_place_of_a_file(tmp_path):
    os.mkfifo(tmp_path / "x.npy")
    refused(tmp_path, "a device or a pipe")
    for path, match in ((tmp_path / "x.npy", "pipe"), ("/dev/zero", "device")):
        with pytest.raises(InvalidProgramError, match=match):
            nj.load(path)
    (tmp_path / "x.npy").unlink()
    (tmp_path / "x.npy").mkdir()
    refused(tmp_path, "Is a directory")


def test_vectors_outside_their_folder(tmp_path):
    manifest = LOADERS["vectors"].write(tmp_path)
    found = json.loads(manifest.read_bytes())
    found["files"]["../secret"] = ""
    manifest.write_text(json.dumps(found))
    with pytest.raises(InvalidProgramError, match="not in the folder"):
        conformance.read(tmp_path)


@pytest.mark.parametrize("name", ["golden", "vectors", "silicon", "verdict"])
def test_json_nested_too_deep(tmp_path, name):
    path = LOADERS[name].write(tmp_path)
    path.write_bytes(b'{"a":' * 100_000)
    with pytest.raises(InvalidProgramError, match="not JSON"):
        LOADERS[name].load(path)


def test_one_text_many_times_is_counted():
    buffer = FlatBuffer(b"x" * 1000)
    for _ in range(TEXT_RATIO + TEXT_BYTES // 1000):
        buffer.text(0, 1000)
    with pytest.raises(InvalidProgramError, match="many times longer"):
        buffer.text(0, 1000)


@pytest.mark.parametrize(
    ("answers", "match"),
    [
        ("(1 << 62).to_bytes(8, 'little')", "answers with"),
        ("(4).to_bytes(8, 'little') + b'[1]\\n'", "no answer|answers b"),
    ],
)
def test_a_parser_that_answers_nonsense(monkeypatch, tmp_path, answers, match):
    start = "(3).to_bytes(8, 'little') + b'{}\\n'"
    (tmp_path / "child.py").write_text(
        f"import sys, time\nout = sys.stdout.buffer\nout.write({start}); out.flush()\n"
        f"sys.stdin.buffer.read(8)\nout.write({answers}); out.flush()\ntime.sleep(60)\n"
    )
    parsing.stop()
    monkeypatch.setattr(parsing, "CHILD", tmp_path / "child.py")
    try:
        with pytest.raises(InvalidProgramError, match=match):
            parsing.parse(b"module {}", "MLIR text")
    finally:
        parsing.stop()

"""Machine code kept from one process to the next, and believed only if whole."""

import ctypes
import os

import pytest
from llvmlite import ir

from neuronjax.numerics.host_kernels import compiled

TRIPLE = "kept_triple"


def triple(factor):
    """The text of a module with a function that multiplies by a number."""

    def write(module):
        word = ir.IntType(64)
        function = ir.Function(module, ir.FunctionType(word, [word]), TRIPLE)
        builder = ir.IRBuilder(function.append_basic_block())
        builder.ret(builder.mul(function.args[0], word(factor)))
        return str(module)

    return write


@pytest.fixture
def emitted(monkeypatch, tmp_path):
    """The texts that were compiled, from an empty folder on."""
    monkeypatch.setenv("NEURONJAX_CACHE_DIR", str(tmp_path))
    texts, emit = [], compiled._emitted

    def emitting(text):
        texts.append(text)
        return emit(text)

    monkeypatch.setattr(compiled, "_emitted", emitting)
    return texts


def called(monkeypatch, factor=3):
    """What a process that knows no kernel gets of the function of 14."""
    monkeypatch.setattr(compiled, "_ENGINES", {})
    address = compiled.address(TRIPLE, triple(factor))
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(14)


def test_another_process_compiles_nothing(monkeypatch, emitted, tmp_path):
    assert called(monkeypatch) == called(monkeypatch) == 42
    assert len(emitted) == 1
    assert called(monkeypatch, factor=4) == 56
    assert len(emitted) == 2
    assert len(list((tmp_path / "kernels").iterdir())) == 2


def test_a_damaged_file_is_written_again(monkeypatch, emitted, tmp_path):
    assert called(monkeypatch) == 42
    (path,) = (tmp_path / "kernels").iterdir()
    whole = path.read_bytes()
    places = range(0, len(whole), 41)
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert called(monkeypatch) == 42
        assert path.read_bytes() == whole
    for content in (b"", whole[:5], whole[:-1], whole + b"\0"):
        path.write_bytes(content)
        assert called(monkeypatch) == 42
    assert len(emitted) == 1 + len(places) + 4


def test_another_kernels_code_is_not_believed(monkeypatch, emitted, tmp_path):
    assert called(monkeypatch) == 42
    (triples,) = (tmp_path / "kernels").iterdir()
    assert called(monkeypatch, factor=4) == 56
    (fourfold,) = set((tmp_path / "kernels").iterdir()) - {triples}
    fourfold.write_bytes(triples.read_bytes())
    assert called(monkeypatch, factor=4) == 56
    assert len(emitted) == 3


@pytest.mark.parametrize("place", ["file", "pipe", "folder"])
def test_a_folder_that_cannot_be_written(monkeypatch, emitted, tmp_path, place):
    if place == "file":
        (tmp_path / "kernels").write_text("")
    else:
        assert called(monkeypatch) == 42
        (path,) = (tmp_path / "kernels").iterdir()
        path.unlink()
        os.mkfifo(path) if place == "pipe" else (path / "x").mkdir(parents=True)
    before = len(emitted)
    assert called(monkeypatch) == 42
    assert len(emitted) == before + 1

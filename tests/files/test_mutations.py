"""Files that are not what they should be: an error of ours, never another, and soon."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

import neuronjax as nj
from tests.files.loaders import LOADERS, Loader
from tests.files.mutations import cut, mutated

SECONDS = 2.0


def verdict(loader: Loader, path: Path) -> str:
    """What reading a file ends in; asserts what is promised of it."""
    for _ in range(2):  # a busy machine may be slow once
        start = time.monotonic()
        try:
            loader.load(path)
            found = "read"
        except nj.InternalError:
            raise
        except (nj.NeuronJaxError, *loader.others):
            found = "refused"
        if time.monotonic() - start < SECONDS:
            return found
    raise AssertionError(f"reading {path} takes more than {SECONDS} s")


def check(name: str, folder: Path, cuts: int, mutations: int) -> None:
    loader = LOADERS[name]
    path = loader.write(folder)
    assert verdict(loader, path) == "read"
    data = path.read_bytes()
    found = []
    for new in itertools.chain(cut(data, cuts), mutated(data, mutations, name)):
        path.write_bytes(new)
        loader.sign(path)
        found.append(verdict(loader, path))
    assert "refused" in found
    assert {p.name for p in folder.iterdir()} <= {q.name for q in path.parent.iterdir()}


@pytest.mark.parametrize("name", LOADERS)
def test_a_sample_of_mutations(name, tmp_path):
    check(name, tmp_path, cuts=10, mutations=20)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
def test_mutations(name, tmp_path):
    check(name, tmp_path, cuts=500, mutations=2000)

"""The folder of what is kept, and the name of a host in it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from neuronjax.numerics.host_kernels import kept_files

CHANGES = {
    "jax.lib.__version__": lambda patch: patch.setattr("jax.lib.__version__", "0.0.1"),
    "processor": lambda patch: patch.setattr(kept_files, "_processor", lambda: "other"),
    "os.sched_getaffinity": lambda patch: patch.setattr(
        "os.sched_getaffinity", lambda pid: set(range(1000)), raising=False
    ),
    "XLA_FLAGS": lambda patch: patch.setenv("XLA_FLAGS", "--xla_x=1"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_host_has_another_name(what, monkeypatch):
    before = kept_files.host_fingerprint()
    kept_files.host_fingerprint.cache_clear()
    CHANGES[what](monkeypatch)
    try:
        assert kept_files.host_fingerprint() != before
    finally:
        kept_files.host_fingerprint.cache_clear()


def make(kind: str, path: Path) -> None:
    {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "dangling link": lambda: path.symlink_to("nowhere"),
        "endless device": lambda: path.symlink_to("/dev/zero"),
        "enormous": lambda: path.write_bytes(bytes(101)),
    }[kind]()


KINDS = ["folder", "pipe", "dangling link", "endless device", "enormous"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_a_sane_size_is_not_read(tmp_path, kind):
    make(kind, tmp_path / "kept")
    with pytest.raises((OSError, ValueError)):
        kept_files.read(tmp_path / "kept", 100)


@pytest.mark.parametrize("operation", ["mkstemp", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_file_that_cannot_be_written_leaves_nothing(
    tmp_path, operation, code, monkeypatch
):
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    module = "tempfile" if operation == "mkstemp" else "os"
    monkeypatch.setattr(f"{module}.{operation}", refuse)
    with pytest.raises(OSError, match=os.strerror(code)):
        kept_files.replace(tmp_path / "kept", b"x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["mit Leerzeichen", "ä ö ü ß é ñ", "缓存", "a" * 200])
def test_replace_writes_files_at_unusual_paths(tmp_path, name):
    path = tmp_path / name / "x y" / "kept"
    for content in (b"one", b"two"):
        kept_files.replace(path, content)
        assert kept_files.read(path, 100) == content
    assert [p.name for p in path.parent.iterdir()] == ["kept"]


def test_without_a_home_files_last_as_long_as_the_process(monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("NEURONJAX_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    folder = kept_files.cache_folder()
    assert folder.name.startswith("neuronjax-")
    assert kept_files.cache_folder() == folder

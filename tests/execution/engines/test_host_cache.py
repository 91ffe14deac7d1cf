"""Findings about this host in a file: whatever happens to it costs time and no bit."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest

from neuronjax.execution.engines import dot_verdicts, host_cache
from neuronjax.execution.engines.array_fold import Matrix
from neuronjax.execution.engines.host_cache import HostCache


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NEURONJAX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def kept(folder) -> HostCache:
    """A cache whose file says "good": "true"."""
    cache = HostCache("dot", str)
    assert cache.find("good", lambda: "true") == "true"
    assert json.loads(cache.path.read_text())["findings"] == {"good": "true"}
    return cache


def found_again(cache: HostCache) -> str:
    """What a new process says of "good": "true" from the file, or "tried anew"."""
    cache.forget()
    return cache.find("good", lambda: "tried anew")


def test_a_finding_is_read_by_the_next_process(kept):
    assert found_again(kept) == "true"
    assert found_again(HostCache("dot", str)) == "true"


def flipped(text: str) -> str:
    return text.replace('"true"', '"other"')


DAMAGE: dict[str, Callable[[str], bytes]] = {
    "empty": lambda text: b"",
    "cut short": lambda text: text[: len(text) // 2].encode(),
    "one finding changed": lambda text: flipped(text).encode(),
    "no digest": lambda text: json.dumps({"findings": {"good": "false"}}).encode(),
    "a list": lambda text: b"[]",
    "null": lambda text: b"null",
    "another form": lambda text: b'{"good": "false"}',
    "findings that are a list": lambda text: b'{"findings": [], "digest": ""}',
    "nested beyond measure": lambda text: b"[" * 100_000,
    "not UTF-8": lambda text: b"\xff\xfe" + text.encode(),
    "a lone surrogate": lambda text: b'{"findings": {"\\ud800": "x"}, "digest": ""}',
    "zeros": lambda text: bytes(len(text)),
    "enormous": lambda text: b" " * (host_cache.MOST_BYTES + 1) + text.encode(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_built_again(kept, damage):
    kept.path.write_bytes(DAMAGE[damage](kept.path.read_text()))
    assert found_again(kept) == "tried anew"
    assert json.loads(kept.path.read_text())["findings"] == {"good": "tried anew"}


def test_every_single_changed_byte_is_noticed(kept):
    text = kept.path.read_bytes()
    for place in range(len(text)):
        changed = bytearray(text)
        changed[place] ^= 1
        kept.path.write_bytes(bytes(changed))
        assert found_again(kept) == "tried anew", place


@pytest.mark.parametrize(
    "what",
    ["jax.lib.__version__", "_processor", "os.sched_getaffinity", "XLA_FLAGS"],
)
def test_another_host_finds_out_for_itself(kept, what, monkeypatch):
    """By another file; and the file of one host under the other's name is not read."""
    changes = {
        "jax.lib.__version__": lambda: monkeypatch.setattr(
            "jax.lib.__version__", "0.0.1"
        ),
        "_processor": lambda: monkeypatch.setattr(
            host_cache, "_processor", lambda: "another"
        ),
        "os.sched_getaffinity": lambda: monkeypatch.setattr(
            "os.sched_getaffinity", lambda pid: set(range(1000)), raising=False
        ),
        "XLA_FLAGS": lambda: monkeypatch.setenv("XLA_FLAGS", "--xla_x=1"),
    }
    text, path = kept.path.read_text(), kept.path
    host_cache.host_fingerprint.cache_clear()
    changes[what]()
    try:
        assert kept.path != path
        kept.path.write_text(text)  # carried over, under the name that is looked for
        assert found_again(kept) == "tried anew"
        assert path.read_text() == text
    finally:
        host_cache.host_fingerprint.cache_clear()


def test_a_file_of_another_revision_is_not_read(kept, monkeypatch):
    monkeypatch.setattr(host_cache, "REVISION", host_cache.REVISION + 1)
    assert found_again(kept) == "tried anew"


@pytest.mark.parametrize("what", ["folder", "pipe", "dangling link", "endless device"])
def test_what_is_no_file_is_passed_over(kept, what):
    kept.path.unlink()
    make = {
        "folder": lambda: kept.path.mkdir(),
        "pipe": lambda: os.mkfifo(kept.path),
        "dangling link": lambda: kept.path.symlink_to("nowhere"),
        "endless device": lambda: kept.path.symlink_to("/dev/zero"),
    }
    make[what]()
    assert found_again(kept) == "tried anew"
    assert not list(kept.path.parent.glob("*.tmp"))


@pytest.mark.parametrize("operation", ["open", "write", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_costs_only_the_file(
    folder, operation, code, monkeypatch
):
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    names = {"open": "tempfile.mkstemp", "write": "os.fsync", "replace": "os.replace"}
    monkeypatch.setattr(names[operation], refuse)
    cache = HostCache("dot", str)
    tries: list[int] = []
    for _ in range(2):
        assert cache.find("good", lambda: tries.append(1) or "true") == "true"
    assert tries == [1]
    assert not list(folder.glob("*.tmp"))
    assert not cache.path.exists()


def test_processes_that_write_at_once_leave_a_whole_file(folder):
    """Each writes 20 findings, all of them at once; the file is one that is read."""
    code = (
        "import sys; from neuronjax.execution.engines.host_cache import HostCache\n"
        "c = HostCache('dot', str)\n"
        "for n in range(20): c.find(f'{sys.argv[1]}-{n}', lambda: 'x' * 500)\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(n)], env=os.environ)
        for n in range(3)
    ]
    assert [p.wait(120) for p in running] == [0, 0, 0]
    cache = HostCache("dot", str)
    # What the last one wrote is there, all of it.
    lasts = {"0-19", "1-19", "2-19"} & cache._load().keys()
    assert lasts
    assert set(cache._load().values()) == {"x" * 500}
    assert [p.name for p in folder.iterdir()] == [cache.path.name]


def test_threads_that_ask_at_once_try_once(folder):
    cache, tries, found = HostCache("dot", str), [], []

    def ask() -> None:
        found.append(cache.find("good", lambda: tries.append(1) or "true"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["true"] * 8
    assert tries == [1]


def test_a_failed_attempt_leaves_nothing_and_is_tried_again(folder):
    cache = HostCache("dot", str)

    def fail() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.find("good", fail)
    assert not cache.path.exists()
    assert cache.find("good", lambda: "true") == "true"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:")
def test_a_forked_child_finds_out_by_its_own_thread(kept):
    """The parent's thread is not there, and its lock may be held for ever."""
    with kept._lock:
        child = os.fork()
        if not child:
            same = kept.find("good", lambda: "anew") == "true"
            other = kept.find("other", lambda: "anew") == "anew"
            os._exit(0 if same and other else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_a_home_findings_last_as_long_as_the_process(monkeypatch, tmp_path):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("NEURONJAX_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    cache = HostCache("dot", str)
    assert cache.find("good", lambda: "true") == "true"
    assert found_again(cache) == "true"
    assert cache.path.parent.name.startswith("neuronjax-")
    os.unlink(cache.path)


@pytest.mark.parametrize("name", ["mit Leerzeichen", "ä ö ü ß é ñ", "缓存", "a" * 200])
def test_any_path_will_do(tmp_path, name, monkeypatch):
    monkeypatch.setenv("NEURONJAX_CACHE_DIR", str(tmp_path / name / "x y"))
    cache = HostCache("dot", str)
    assert cache.find("good", lambda: "true") == "true"
    assert found_again(cache) == "true"


def test_a_false_verdict_of_a_foreign_file_is_not_believed(monkeypatch):
    """The dot of these operands is tried again, whatever stands in the file."""
    cache = HostCache("dot", bool)
    monkeypatch.setattr(dot_verdicts, "_VERDICTS", cache)
    ones = Matrix(jnp.ones((1, 3, 20)), k_first=False)
    columns = Matrix(jnp.ones((1, 20, 64)), k_first=True)
    verdict = dot_verdicts.is_left_fold(ones, columns)
    text = cache.path.read_text()
    opposite = {True: "false", False: "true"}[verdict]
    cache.path.write_text(text.replace(str(verdict).lower(), opposite))
    cache.forget()
    before = dot_verdicts.verified
    assert dot_verdicts.is_left_fold(ones, columns) == verdict
    assert dot_verdicts.verified == before + 1

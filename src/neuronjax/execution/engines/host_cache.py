"""What was found out about this host by trying it, kept in a file.

A finding belongs to a jaxlib, device, processor and thread count; it is kept in memory
and in a JSON file of the user's cache folder (`kept_files`). Losing the file costs time
and changes no result, and a file that is not, to the bit, what this package wrote on
this host counts as lost. What is tried, and what for, is the business of
`dot_verdicts` and `tile_search`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

import jax

from neuronjax.numerics.host_kernels import kept_files
from neuronjax.numerics.host_kernels.kept_files import cache_folder

Finding = TypeVar("Finding", bool, str)

#: Of what is tried and how: files of another one are not read.
REVISION = 2
#: Findings are some hundred bytes each; a larger file is none of ours.
MOST_BYTES = 1 << 24


class HostCache(Generic[Finding]):
    """Findings of one kind, by name.

    Args:
        name: the file's, before the host's fingerprint.
        kind: of the values; others in the file are passed over.
    """

    def __init__(self, name: str, kind: type[Finding]) -> None:
        self._name = name
        self._kind = kind
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Also in a forked child: it has neither the thread nor who holds the lock."""
        self._known: dict[str, Finding] | None = None
        self._lock = threading.Lock()
        # A trial must not be traced into the program that asks for its outcome; traces
        # are local to a thread.
        self._worker = ThreadPoolExecutor(1, f"neuronjax-{self._name}")

    @property
    def path(self) -> Path:
        """The file of this jaxlib, device, processor and thread count."""
        device = jax.devices()[0]
        host = _hash(f"{host_fingerprint()} {device.platform} {device.device_kind}")
        return cache_folder() / f"{self._name}-{host}.json"

    def find(
        self,
        key: str,
        attempt: Callable[[], Finding],
        *,
        usable: Callable[[Finding], bool] = lambda finding: True,
    ) -> Finding:
        """The finding for `key`, kept or by one attempt, which runs on another thread.

        Args:
            key: names everything that the finding depends on, the host aside.
            attempt: finds out.
            usable: whether a kept finding may be used; else it is found again.
        """
        with self._lock:
            if self._known is None:
                self._known = self._load()
            if key not in self._known or not usable(self._known[key]):
                self._known[key] = self._worker.submit(attempt).result()
                self._save(self._known)
            return self._known[key]

    def forget(self) -> None:
        """Empties the memory, not the file, which is read again."""
        with self._lock:
            self._known = None

    def _load(self) -> dict[str, Finding]:
        try:
            loaded = json.loads(kept_files.read(self.path, MOST_BYTES))
            found, digest = loaded["findings"], loaded["digest"]
            if digest != self._digest(found):
                return {}  # another host's, or damaged
            return {k: v for k, v in found.items() if isinstance(v, self._kind)}
        # No file yet, none that may be read, or no such JSON: it is built again.
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return {}

    def _save(self, findings: dict[str, Finding]) -> None:
        findings = {**self._load(), **findings}  # other processes save too
        content = {"findings": findings, "digest": self._digest(findings)}
        try:
            text = json.dumps(content, indent=0, sort_keys=True)
            kept_files.replace(self.path, text.encode())
        except OSError:
            return  # a read-only home or a full disk costs time, not correctness

    def _digest(self, findings: dict[str, Finding]) -> str:
        about = [REVISION, self.path.stem, findings]
        return _hash(json.dumps(about, sort_keys=True))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@functools.cache
def host_fingerprint() -> str:
    """Return a short hash of what of the host may change the order or speed of XLA's
    code. It asks for no device: a program may still say how many there are."""
    parts = (
        jax.__version__,
        jax.lib.__version__,
        platform.machine(),
        _processor(),
        str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0),
        os.environ.get("XLA_FLAGS", ""),
    )
    return _hash("\n".join(parts))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags")
    return "\n".join(sorted({x for x in lines if x.startswith(wanted)}))

"""What was found out about this host by trying it, kept in a file.

A finding belongs to a jaxlib, device, processor and thread count; it is kept in memory
and in a JSON file of the user's cache directory (`NEURONJAX_CACHE_DIR`, else
`$XDG_CACHE_HOME/neuronjax`, else `~/.cache/neuronjax`). Losing the file costs time and
changes no result. What is tried, and what for, is the business of `dot_verdicts` and
`tile_search`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

import jax

Finding = TypeVar("Finding", bool, str)


class HostCache(Generic[Finding]):
    """Findings of one kind, by name.

    Args:
        name: the file's, before the host's fingerprint.
        kind: of the values; others in the file are passed over.
    """

    def __init__(self, name: str, kind: type[Finding]) -> None:
        self._name = name
        self._kind = kind
        self._known: dict[str, Finding] | None = None
        self._lock = threading.Lock()
        # A trial must not be traced into the program that asks for its outcome; traces
        # are local to a thread.
        self._worker = ThreadPoolExecutor(1, f"neuronjax-{name}")

    @property
    def path(self) -> Path:
        """The file of this jaxlib, device, processor and thread count."""
        return cache_folder() / f"{self._name}-{host_fingerprint()}.json"

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
            loaded = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}  # no file yet, or one cut short: it is built again
        return {k: v for k, v in loaded.items() if isinstance(v, self._kind)}

    def _save(self, findings: dict[str, Finding]) -> None:
        path = self.path
        findings = {**self._load(), **findings}  # other processes save too
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=path.parent, delete=False, suffix=".json"
            ) as file:
                json.dump(findings, file, indent=0, sort_keys=True)
            os.replace(file.name, path)
        except OSError:
            return  # a read-only home costs time, not correctness


def cache_folder() -> Path:
    """Where this package keeps what it found out."""
    root = os.environ.get("NEURONJAX_CACHE_DIR")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(root) if root else base / "neuronjax"


@functools.cache
def host_fingerprint() -> str:
    """A short hash of everything that may change the order or speed of XLA's code."""
    device = jax.devices()[0]
    parts = (
        jax.lib.__version__,
        device.platform,
        device.device_kind,
        platform.machine(),
        _processor(),
        str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0),
        os.environ.get("XLA_FLAGS", ""),
    )
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags")
    return "\n".join(sorted({x for x in lines if x.startswith(wanted)}))

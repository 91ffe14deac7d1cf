"""Check whether this process may run programs, and make room for compiled ones.

XLA reads `XLA_FLAGS` once, when it starts: fast math there would change bits. XLA also
starts threads; a forked process does not have them, and would wait for them for ever.

Linux limits the memory regions that a process maps (`vm.max_map_count`, by default
65,530). Every program that XLA compiles takes about ten, and beyond the limit XLA ends
the process with a segmentation fault. Thousands of shapes, or a long program op by op,
reach it. Near the limit JAX's caches are cleared, including the user's programs; a
program that is needed again is compiled again and gives the same bits.
"""

from __future__ import annotations

import functools
import gc
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from neuronjax.errors import UnsupportedError

#: XLA options that change bits; off by default. They reorder sums, fuse products with
#: sums and assume that NaN and Inf do not occur.
CHANGES_BITS = ("xla_cpu_enable_fast_math",)

#: Share of the limit above which caches are cleared. The rest is enough for the program
#: that is being compiled, some hundred regions.
FULL = 0.75
#: Counting takes 10 ms at the limit; in five seconds a few thousand regions are added.
SECONDS_BETWEEN_COUNTS = 5.0

_started = False
_has_threads = False
_forked = False
_counted_at = 0.0


def check() -> None:
    """Raise UnsupportedError if `XLA_FLAGS` has an option that changes bits, or if the
    process was forked from one in which programs had run."""
    global _started
    if _forked:
        raise UnsupportedError(
            "this process was forked after programs had run: it lacks XLA's threads, "
            "and the call would wait for them for ever",
            remedy='start processes by "spawn", multiprocessing.get_context("spawn"), '
            "or fork before the first call",
        )
    if not _started:
        _refuse(_options(os.environ.get("XLA_FLAGS", "")), "XLA_FLAGS")
        _started = True


def check_compiler_options(options: Mapping[str, Any] | None) -> None:
    """Raise UnsupportedError for options of `jax.jit` that change bits."""
    _refuse((options or {}).items(), "compiler_options")


def _options(flags: str) -> Iterable[tuple[str, str]]:
    """Yield (name, value) of each option in `flags`, or in the file it names."""
    if flags.strip() and not flags.lstrip().startswith("-"):
        file = Path(flags.strip())
        flags = file.read_text(errors="replace") if file.is_file() else ""
    for word in flags.split():
        name, _, value = word.lstrip("-").partition("=")
        yield name, value or "true"


def _refuse(options: Iterable[tuple[str, Any]], where: str) -> None:
    last = {name: str(value).lower() for name, value in options}
    for name in CHANGES_BITS:
        if last.get(name, "false") not in ("false", "0"):
            raise UnsupportedError(
                f"{where} turns on {name}, with which XLA changes bits",
                remedy=f"take {name} out of {where}; it is off by default",
            )


def make_room() -> None:
    """Clear JAX's caches if the limit is near, before something is compiled."""
    global _counted_at
    now = time.monotonic()
    if now - _counted_at < SECONDS_BETWEEN_COUNTS:
        return
    _counted_at = now
    limit = most_regions()
    if limit and mapped_regions() > FULL * limit:
        jax.clear_caches()
        gc.collect()


def mapped_regions() -> int:
    """Return how many memory regions are mapped; 0 on a system without /proc."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


@functools.cache
def most_regions() -> int:
    """Return how many memory regions may be mapped; 0 if there is no such limit."""
    limit = Path("/proc/sys/vm/max_map_count")
    return int(limit.read_text()) if limit.exists() else 0


def _before_fork() -> None:
    """Record whether XLA has threads; programs of plain JAX start them too."""
    global _has_threads
    names = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
    _has_threads = _started or any("XLA" in name for name in names)


def _after_fork() -> None:
    global _forked
    _forked = _has_threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)

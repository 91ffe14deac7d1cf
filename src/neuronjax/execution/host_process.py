"""Whether this process may run programs: not with fast math, nor as a forked copy, nor
without room for what is compiled.

XLA reads `XLA_FLAGS` once, when it starts, and starts threads, which a fork leaves
behind. The first would change bits, and the second would wait for ever.

Linux lets a process map so many regions of memory, `vm.max_map_count`, by default
65,530. Every program that XLA compiles takes some ten, and past the limit XLA ends the
process with a segmentation fault: thousands of shapes, or a long program op by op, come
there. Near it JAX's caches are cleared, the user's programs included; what is asked for
again is compiled again, and has the same bits.
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

#: Options of XLA that change bits, off by default: sums in another order, products and
#: sums fused, NaN and Inf taken for impossible.
CHANGES_BITS = ("xla_cpu_enable_fast_math",)

#: Past this share of the limit there is no room. Clearing takes what is being compiled
#: for granted: some hundred regions.
FULL = 0.75
#: Counting takes 10 ms at the limit, and in so many seconds a few thousand are added.
SECONDS_BETWEEN_COUNTS = 5.0

_started = False
_has_threads = False
_forked = False
_counted_at = 0.0


def check() -> None:
    """Refuse a call that would change bits or wait for ever.

    Raises:
        UnsupportedError: `XLA_FLAGS` turn on what changes bits, or the process was
            forked from one in which programs had run.
    """
    global _started
    if _forked:
        raise UnsupportedError(
            "a call in a process that was forked after programs had run: XLA's threads "
            "are not in it, and it would wait for them for ever",
            remedy='start processes by "spawn", multiprocessing.get_context("spawn"), '
            "or fork before the first call",
        )
    if not _started:
        _refuse(_options(os.environ.get("XLA_FLAGS", "")), "XLA_FLAGS")
        _started = True


def check_compiler_options(options: Mapping[str, Any] | None) -> None:
    """Refuse options of `jax.jit` that change bits.

    Raises:
        UnsupportedError: they turn on what changes bits.
    """
    _refuse((options or {}).items(), "compiler_options")


def _options(flags: str) -> Iterable[tuple[str, str]]:
    """Name and value of each: `--name=value`, `--name`; or a file holds them."""
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


# -- room ------------------------------------------------------------------------------


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
    """Return how many regions are mapped; 0 where the system does not say."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


@functools.cache
def most_regions() -> int:
    """Return how many may be; 0 where nothing limits them but memory."""
    limit = Path("/proc/sys/vm/max_map_count")
    return int(limit.read_text()) if limit.exists() else 0


# -- forks -----------------------------------------------------------------------------


def _before_fork() -> None:
    """What JAX alone has run counts too, where the system names the threads."""
    global _has_threads
    names = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
    _has_threads = _started or any("XLA" in name for name in names)


def _after_fork() -> None:
    global _forked
    _forked = _has_threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)

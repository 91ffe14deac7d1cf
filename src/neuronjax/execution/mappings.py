"""Compiled programs are let go before a process may map no more memory.

Linux lets a process map so many regions of memory, `vm.max_map_count`, by default
65,530. Every program that XLA compiles takes some ten, and past the limit XLA ends the
process with a segmentation fault: thousands of shapes, or a long program op by op, come
there. Near it JAX's caches are cleared, the user's programs included; what is asked for
again is compiled again, and has the same bits.
"""

from __future__ import annotations

import functools
import gc
import time
from pathlib import Path

import jax

#: Past this share of the limit there is no room. Clearing takes what is being compiled
#: for granted: some hundred regions.
FULL = 0.75
#: Counting takes 10 ms at the limit, and in so many seconds a few thousand are added.
SECONDS_BETWEEN_COUNTS = 5.0
_counted_at = 0.0


def make_room() -> None:
    """Before something is compiled: clears JAX's caches if the limit is near."""
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
    """How many this process has; 0 where the system does not say."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


@functools.cache
def most_regions() -> int:
    """How many it may have; 0 where nothing limits them but memory."""
    limit = Path("/proc/sys/vm/max_map_count")
    return int(limit.read_text()) if limit.exists() else 0

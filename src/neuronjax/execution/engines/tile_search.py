"""Which of several ways to compute the same bits is the fastest on this host.

How fast a fold is depends on the tile that it works on, through caches, vector width
and threads, by factors that no rule foretells (design, section 6). So the ways are
timed, once per host and class of problems, and the name of the fastest is kept in a
`HostCache`. Whichever it is, the bits are the same: a time decides nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import jax

from neuronjax.execution.engines.host_cache import HostCache

# Each way is run once to compile it, then this often; its shortest time counts, which
# other programs on the host disturb least.
ROUNDS = 5

_FASTEST = HostCache("tiles", str)

# Seconds spent on searches by this process.
spent_seconds = 0.0
# False takes the first way everywhere.
enabled = True


def fastest(problem: str, ways: Mapping[str, Callable[[], jax.Array]]) -> str:
    """The name of the fastest way, known or found out now, in seconds.

    Args:
        problem: names the class of problems; it keys the cache.
        ways: by name, computations of a problem of that class, jitted. The first is the
            one to take without a search.
    """
    if not enabled:
        return next(iter(ways))
    return _FASTEST.find(problem, lambda: _timed(ways), usable=ways.__contains__)


def _timed(ways: Mapping[str, Callable[[], jax.Array]]) -> str:
    global spent_seconds
    start = time.perf_counter()
    for way in ways.values():
        jax.block_until_ready(way())
    # In turn, so that a host that slows down slows all of them.
    rounds = [[_seconds(way) for way in ways.values()] for _ in range(ROUNDS)]
    best = map(min, zip(*rounds, strict=True))
    spent_seconds += time.perf_counter() - start
    return min(zip(best, ways, strict=True))[1]


def _seconds(way: Callable[[], jax.Array]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(way())
    return time.perf_counter() - start

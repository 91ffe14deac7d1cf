"""What all tests share: the platform, the Hypothesis profiles, and a few fixtures.

Strict promotion is a fixture and not the default: captured programs run under JAX's own
promotion, which Optax needs. Markers are declared in pyproject.toml.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

# Before the first import of JAX, and only where the user has not chosen.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

from neuronjax.execution import interpreter
from tests import compilation_cache

compilation_cache.use()

# A first example compiles, so no deadline; CI repeats the same examples every time.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the cache small: the process that starts the workers, before they do."""
    if not hasattr(config, "workerinput"):
        compilation_cache.forget_if_large()


SLOW_TESTS = Path(__file__).parent / "slow_tests.txt"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Marks the tests of `slow_tests.txt`."""
    lines = SLOW_TESTS.read_text().splitlines()
    slow = {line for line in lines if line and not line.startswith("#")}
    found = {item.nodeid: item for item in items}
    for name in slow & found.keys():
        found[name].add_marker("slow")
    whole = not any("::" in argument for argument in config.args)
    files = {name.split("::")[0] for name in found}
    stale = [n for n in slow - found.keys() if n.split("::")[0] in files]
    if whole and stale:
        raise pytest.UsageError(f"{SLOW_TESTS.name} names no tests: {sorted(stale)}")


# Linux lets a process map 65,530 regions (vm.max_map_count); every program that XLA
# compiles takes some, and past the limit it ends in a segmentation fault.
MOST_REGIONS = 50_000
#: Counting them takes 10 ms; in so many seconds at most a few thousand are added.
SECONDS_BETWEEN_COUNTS = 5.0
_counted_at = 0.0


@pytest.fixture(autouse=True)
def forget_compiled_programs() -> Iterator[None]:
    """Keeps a process that runs hundreds of tests within the limit."""
    global _counted_at
    yield
    if time.monotonic() - _counted_at < SECONDS_BETWEEN_COUNTS:
        return
    _counted_at = time.monotonic()
    if _mapped_regions() > MOST_REGIONS:
        interpreter.forget_kernels()
        jax.clear_caches()
        gc.collect()


def _mapped_regions() -> int:
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


@pytest.fixture
def key() -> jax.Array:
    """A typed PRNG key, the same in every test."""
    return jax.random.key(0)


@pytest.fixture
def strict_promotion() -> Iterator[None]:
    """Implicit dtype and rank promotion raise: for our own functions."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def x64() -> Iterator[None]:
    """64-bit JAX types, for references in float64."""
    with jax.enable_x64(True):
        yield

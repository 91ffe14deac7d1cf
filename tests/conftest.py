"""What all tests share: the platform, the Hypothesis profiles, and a few fixtures.

Strict promotion is a fixture and not the default: captured programs run under JAX's own
promotion, which Optax needs. Markers are declared in pyproject.toml.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before the first import of JAX, and only where the user has not chosen.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

from neuronjax.execution import host_process
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-of-each",
        action="store_true",
        help="of every parametrized test only the first case that -m and -k choose",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Marks the tests of `slow_tests.txt`; and, asked to, takes one of each test."""
    _mark_slow(config, {item.nodeid: item for item in items})
    yield
    if config.getoption("one_of_each"):
        first = {item.nodeid.split("[")[0]: item for item in reversed(items)}
        left = [item for item in items if item not in first.values()]
        config.hook.pytest_deselected(items=left)
        items[:] = sorted(first.values(), key=items.index)


def _mark_slow(config: pytest.Config, found: dict[str, pytest.Item]) -> None:
    lines = SLOW_TESTS.read_text().splitlines()
    slow = {line for line in lines if line and not line.startswith("#")}
    for name in slow & found.keys():
        found[name].add_marker("slow")
    whole = not any("::" in argument for argument in config.args)
    files = {name.split("::")[0] for name in found}
    stale = [n for n in slow - found.keys() if n.split("::")[0] in files]
    if whole and stale:
        raise pytest.UsageError(f"{SLOW_TESTS.name} names no tests: {sorted(stale)}")


@pytest.fixture(autouse=True)
def forget_compiled_programs() -> Iterator[None]:
    """After tests of JAX alone, too: programs of ours make room for themselves."""
    yield
    host_process.make_room()


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

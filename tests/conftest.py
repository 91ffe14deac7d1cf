"""What all tests share: the platform, the Hypothesis profiles, and a few fixtures.

Strict promotion is a fixture and not the default: captured programs run under JAX's own
promotion, which Optax needs. Markers are declared in pyproject.toml.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-of-each",
        action="store_true",
        help="of every parametrized test only the first case that -m and -k choose",
    )
    parser.addoption(
        "--part",
        type=_part,
        metavar="K/N",
        help="every N-th of the chosen tests, from the K-th on: N parts are all",
    )


def _part(text: str) -> tuple[int, int]:
    """Return the numbers of a part "K/N".

    Raises:
        ValueError: they are no numbers, or there is no such part.
    """
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(f"there is no part {part} of {parts}")
    return part, parts


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the line that says which part of the tests is run."""
    part = config.getoption("part")
    return ["part {} of {} of the chosen tests".format(*part)] if part else []


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Mark the slow cases as slow; and, asked to, take one of each test, or a part."""
    tests: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        test, _, case = item.nodeid.partition("[")
        tests.setdefault(test, {})[case.removesuffix("]")] = item
    whole = not any("::" in argument for argument in config.args)
    for test, cases in tests.items():
        unknown = _mark_slow(cases)
        if whole and unknown:
            raise pytest.UsageError(f"{test} has no cases {unknown}")
    yield
    chosen = list(items)
    if config.getoption("one_of_each"):
        first = {item.nodeid.split("[")[0]: item for item in reversed(items)}
        chosen = sorted(first.values(), key=items.index)
    if part := config.getoption("part"):
        number, parts = part
        chosen = chosen[number - 1 :: parts]
    if len(chosen) < len(items):
        kept = set(chosen)
        config.hook.pytest_deselected(items=[i for i in items if i not in kept])
        items[:] = chosen


def pytest_collection_finish() -> None:
    """Look for garbage only in what tests make: what is imported by now stays."""
    gc.freeze()


def _mark_slow(cases: dict[str, pytest.Item]) -> list[str]:
    """Mark cases of one test by its `slow_cases` or `slow_except`.

    Returns the names there that are no cases of the test.
    """
    item = next(iter(cases.values()))
    unknown: list[str] = []
    for marker, named_are_slow in (("slow_cases", True), ("slow_except", False)):
        for mark in item.iter_markers(marker):
            named = {name: _cases_of(name, cases) for name in mark.args}
            unknown += [name for name, found in named.items() if not found]
            chosen = set().union(*named.values())
            for case in cases:
                if (case in chosen) == named_are_slow:
                    cases[case].add_marker("slow")
    return unknown


def _cases_of(name: str, cases: Iterable[str]) -> set[str]:
    """Return the cases of a name, which may have the wildcards of `fnmatch`."""
    return {case for case in cases if case == name or fnmatchcase(case, name)}


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

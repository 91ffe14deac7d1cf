"""Faults that a run shows by itself: on which line, by which name, in which steps."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.execution.probes.statistics import Statistics

ONES = np.ones((16, 16), np.float32)


def _line(function: Callable[..., Any]) -> str:
    """Of the one that ends with "# here"."""
    lines, first = inspect.getsourcelines(function)
    (n,) = [n for n, text in enumerate(lines) if text.rstrip().endswith("# here")]
    return f"{Path(__file__).name}:{first + n}"


def _collected(function: Callable[..., Any], *args: Any, **options: Any) -> Statistics:
    return nj.jit(function, collect=True, **options)(*args)[1]


def _found(statistics: Statistics) -> set[tuple[str, str]]:
    return {
        (Path(r["source"]).name, kind)
        for r in statistics.records
        for kind in r["faults"]
    }


def vanishing(x):
    return jnp.exp(x.astype(jnp.float16) - 31)  # here


def beyond_fp32(x):
    return jnp.exp(100 * x)  # here


def logarithm_of_zero(x):
    return jnp.log(x - 1)  # here


def root_of_negative(x):
    return jnp.sqrt(x - 2)  # here


def wrapping(x):
    return x.astype(jnp.int32) * 70_000 * 70_000  # here


def out_of_int8(x):
    return (300 * x).astype(jnp.int8)  # here


def sum_beyond_int8(x):
    return jnp.sum(x.astype(jnp.int8), dtype=jnp.int8)  # here


def lost_update(w):
    return w - 1e-9 * w  # here


def standing_clock(x):
    def turn(total, _):
        return total + jnp.bfloat16(1), None  # here

    return jax.lax.scan(turn, x[0, 0].astype(jnp.bfloat16), None, length=800)[0]


def scan_that_adds_inf(x):
    def turn(total, row):
        return total + jnp.where(row > 50, jnp.inf, row), None  # here

    return jax.lax.scan(turn, jnp.zeros(16), x.at[3].set(100))[0]


def while_that_adds_inf(x):
    def turn(state):
        n, total = state
        return n + 1, total + jnp.where(n == 3, jnp.inf, x[0])  # here

    return jax.lax.while_loop(lambda s: s[0] < 8, turn, (0, jnp.zeros(16)))[1]


def scan_that_adds_an_overflow(x):
    def turn(total, row):
        return total + jnp.exp(row), None  # here

    return jax.lax.scan(turn, jnp.zeros(16), x.at[3].set(100))[0]


@pytest.mark.slow_except(
    "beyond_fp32-overflow", "out_of_int8-integer", "scan_that_adds_inf-overflow"
)
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (vanishing, "underflow"),
        (beyond_fp32, "overflow"),
        (logarithm_of_zero, "singular"),
        (root_of_negative, "non-finite"),
        (wrapping, "integer"),
        (out_of_int8, "integer"),
        (sum_beyond_int8, "integer"),
        (lost_update, "absorption"),
        (standing_clock, "stagnation"),
        (scan_that_adds_inf, "overflow"),
        (while_that_adds_inf, "overflow"),
        (scan_that_adds_an_overflow, "overflow"),
    ],
)
def test_a_fault_is_named_on_its_line(function, kind):
    assert _found(_collected(function, ONES)) == {(_line(function), kind)}


def in_jax(x):
    return jax.nn.relu(jnp.cumsum(x.astype(jnp.bfloat16), axis=0))


@pytest.mark.slow
def test_functions_of_jax_are_on_the_line_that_calls_them():
    def function(x):
        return in_jax(x), jax.nn.relu(x.astype(jnp.bfloat16))

    sources = [site.source for site in _collected(function, ONES).sites]
    assert all(sources)
    assert len(set(sources)) == 2


@pytest.mark.slow
def test_what_a_choice_leaves_out_is_no_fault():
    def entropy(p):
        return -jnp.where(p > 1, p * jnp.log(p - 1), 0.0)

    assert not _found(_collected(entropy, ONES))


@pytest.mark.slow
def test_who_is_given_inf_has_not_made_it():
    def function(x):
        return jnp.exp(x) / 2

    assert not _found(_collected(function, ONES * np.inf))
    assert not _found(_collected(function, ONES))


@pytest.mark.slow
def test_masked_scores_do_not_underflow():
    def softmax(x):
        scores = jnp.where(jnp.eye(16, dtype=bool), x, -1e9).astype(jnp.bfloat16)
        return jax.nn.softmax(scores)

    assert not _found(_collected(softmax, ONES))


@pytest.mark.slow
def test_in_how_many_steps_and_since_when():
    step = nj.jit(beyond_fp32, collect=True)
    merged = step.init_statistics(ONES)
    for scale in (0.1, 0.2, 1.0, 0.1, 1.0):
        merged = merged.merge(step(np.float32(scale) * ONES)[1])
    (record,) = [r for r in merged.records if r["faults"]]
    assert record["faults"] == {"overflow": {"steps": 2, "since": 2}}
    assert record["steps"] == 5
    assert merged.as_metrics()["faults/overflow"] == pytest.approx(2 / 5)
    assert merged.as_metrics()["faults/integer"] == 0
    assert "overflow in 2 of 5 steps, since step 2" in merged.table()
    traced = jax.jit(lambda s: s.as_metrics())(merged)
    assert float(traced["faults/overflow"]) == pytest.approx(2 / 5)


@pytest.mark.slow_cases("add-int8", "mul-int8", "mul-int32", "sub-int32")
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int32])
@pytest.mark.parametrize("oracle", [operator.add, operator.sub, operator.mul])
def test_integers_wrap_as_python_counts_them(oracle, dtype):
    info, emulated = np.iinfo(dtype), nj.jit(oracle, collect=True)
    rng = np.random.default_rng(0)
    size = 2 ** (info.bits // 2 + 1)
    for low, high in ((-size // 4, size // 4), (info.min // 2, info.max // 2)):
        for _ in range(4):
            x, y = rng.integers(low, high, (2, 3)).astype(dtype)
            exact = [oracle(int(a), int(b)) for a, b in zip(x, y, strict=True)]
            wraps = any(not info.min <= z <= info.max for z in exact)
            found = _found(emulated(x, y)[1])
            assert ({kind for _, kind in found} == {"integer"}) == wraps


@pytest.mark.slow
def test_an_integer_that_a_choice_leaves_out_is_no_fault():
    def modulo(x):
        large = x.astype(jnp.int32) * 2**30
        return jnp.where(large < 0, large + 2**30, large + 2**30)

    def sum_of(x):
        return x.astype(jnp.int32) * 2**30 + 2**30

    assert not _found(_collected(modulo, ONES))
    assert {kind for _, kind in _found(_collected(sum_of, ONES))} == {"integer"}

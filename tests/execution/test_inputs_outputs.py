"""`jax_debug_infs` and `jax_debug_nans` op by op: the user's stop, ours do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import neuronjax as nj

X = np.float32([1, 2, 3])


def largest_of_windows(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "SAME")


def running_largest(x: Any) -> Any:
    start = jnp.full((3,), -jnp.inf)
    return lax.fori_loop(0, 2, lambda i, y: jnp.maximum(y, x), start)


OURS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a constant": ("inf", lambda x: jnp.minimum(x, jnp.float32([np.inf, 2, 3]))),
    "a broadcast one": ("inf", lambda x: jnp.maximum(x, jnp.full((3,), -jnp.inf))),
    "what a maximum starts from": ("inf", lambda x: jnp.max(x) + x),
    "padding": ("inf", largest_of_windows),
    "what a loop starts from": ("inf", running_largest),
    "softmax": ("inf", jax.nn.softmax),
    "a NaN not chosen": ("nan", lambda x: jnp.where(x > 0, x, jnp.nan)),
    "a variance": ("nan", jnp.var),
    "an Inf where NaN is sought": ("nan", lambda x: x * 3e38),
    "the canonical NaN": ("nan", lambda x: (x * 2).astype(jnp.float16)),
    "of FP8": ("nan", lambda x: (x * 2).astype(jnp.float8_e5m2)),
}
THEIRS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "an overflow": ("inf", lambda x: jnp.exp(-(x * 3e38))),
    "a cast": ("inf", lambda x: 1 / (x * 1e5).astype(jnp.float16)),
    "a division": ("inf", lambda x: jnp.tanh(1 / (x - 1))),
    "a sum": ("inf", lambda x: 1 / jnp.sum(x * 1e38)),
    "a result": ("inf", lambda x: jnp.full((3,), jnp.inf)),
    "no number": ("nan", lambda x: jnp.maximum(x, (x - 1) / (x - 1)) > 0),
    "a logarithm": ("nan", lambda x: jnp.isnan(jnp.log(-x))),
    "a NaN that is a result": ("nan", lambda x: jnp.where(x > 1, x, jnp.nan)),
}
FLAGS = {"inf": jax.debug_infs, "nan": jax.debug_nans}


@pytest.mark.slow_except("a broadcast one", "a NaN not chosen", "the canonical NaN")
@pytest.mark.parametrize("name", OURS)
def test_nans_inside_the_emulator_raise_nothing(name):
    what, program = OURS[name]
    expected = nj.jit(program)(X)
    with FLAGS[what](True), jax.disable_jit():
        got = nj.jit(program)(X)
    assert np.asarray(got).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.slow_except("a NaN that is a result", "no number")
@pytest.mark.parametrize("name", THEIRS)
def test_nans_of_the_user_raise_op_by_op(name):
    what, program = THEIRS[name]
    with FLAGS[what](True), jax.disable_jit():
        with pytest.raises(FloatingPointError):
            nj.jit(program)(X)


@pytest.mark.parametrize("name", ["a result", "a NaN that is a result"])
def test_nans_in_results_raise_when_compiled(name):
    what, program = THEIRS[name]
    with FLAGS[what](True), pytest.raises(FloatingPointError):
        nj.jit(program)(X)


@pytest.mark.slow
def test_an_argument_that_is_no_number_stops_what_computes_with_it():
    x = jnp.asarray(np.array([1, np.nan, 2], ml_dtypes.bfloat16))
    with jax.debug_nans(True), jax.disable_jit():
        assert nj.jit(lambda x: jnp.isnan(x))(x).tolist() == [False, True, False]
        with pytest.raises(FloatingPointError):
            nj.jit(lambda x: jnp.sum(x * 2) > 0)(x)

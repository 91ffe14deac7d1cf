"""Whether a fold has the same bits by kernels of the host's and by XLA in programs.

Random programs of dots among what XLA might fuse with them, move through them or lay
out anew: transposes, casts, sums, constants, batches, loops, gradients. Each is
compiled twice, with the host's kernels and without, and the bits are equal.
`python -m tests.execution.engines.test_tensor_programs 1000` runs so many, and with a
second number those from there on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from neuronjax.execution import interpreter
from neuronjax.numerics.host_kernels import choice
from tests.conformance import bits

ROWS = (1, 3, 8, 33)
DEPTHS = (16, 40, 128, 150)
COLUMNS = (1, 5, 64, 70)
POLICIES = ("bf16", "bf16", "fp32")

Array = jax.Array
Step = Callable[[Array, Array], Array]


def _values(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Sums in which the order counts: magnitudes from 2^-70 to 2^40, zeros, -0."""
    x = random.standard_normal(shape).astype(np.float32)
    x *= np.float32(2.0) ** random.choice([0, 0, 0, -20, 12, -70, 40], shape)
    return np.where(random.random(shape) < 0.05, np.float32(-0.0), x)


# What is done to an operand on its way into a dot, and to a result on its way out.
BEFORE: tuple[Callable[[Array], Array], ...] = (
    lambda x: x,
    lambda x: x.astype(jnp.bfloat16),
    lambda x: x * 0.5 + 0.25,
    lambda x: jnp.tanh(x),
    lambda x: x[::-1],
    lambda x: jnp.where(x > 0, x, 0.125 * x),
    lambda x: x / (1 + jnp.abs(x)),
    lambda x: x - x.mean(-1, keepdims=True),
    lambda x: x.T.copy().T,
    lambda x: jnp.concatenate([x[:1], x[1:]]),
)
AFTER: tuple[Callable[[Array], Array], ...] = (
    lambda y: y,
    lambda y: y.T,
    lambda y: y + 1.5,
    lambda y: jax.nn.relu(y),
    lambda y: jnp.tanh(y) @ jnp.tanh(y).T,
    lambda y: y.sum(0),
    lambda y: y.sum(-1),
    lambda y: jax.nn.softmax(y.astype(jnp.float32), -1),
    lambda y: y.astype(jnp.bfloat16),
    lambda y: y * y,
)


def _dot(x: Array, w: Array) -> Array:
    return x @ w


def _transposed(x: Array, w: Array) -> Array:
    """Both operands the other way round in memory."""
    return jnp.einsum("km,nk->mn", x.T, w.T)


def _swapped(x: Array, w: Array) -> Array:
    return (w.T @ x.T).T


def _batched(x: Array, w: Array) -> Array:
    stacked = jnp.stack([w, -w, w[::-1]])
    return jax.vmap(lambda w: x @ w)(stacked).sum(0)


def _batched_both(x: Array, w: Array) -> Array:
    return jnp.einsum("bmk,bkn->bmn", jnp.stack([x, x * 2]), jnp.stack([w, w]))[1]


def _scanned(x: Array, w: Array) -> Array:
    """Carried: the weight changes, the layout may."""

    def turn(w: Array, scale: Array) -> tuple[Array, Array]:
        return w * scale, x @ w

    return lax.scan(turn, w, jnp.array([0.5, -1.5, 1.0], w.dtype))[1].sum(0)


def _branched(x: Array, w: Array) -> Array:
    return lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: (x * 2) @ w)


def _twice(x: Array, w: Array) -> Array:
    """Two dots of one shape that XLA could make one."""
    return x @ w + x[::-1] @ w


def _constant(x: Array, w: Array) -> Array:
    rows = np.resize(np.float32([0.5, -1.25, 3.0, 2.0**-20]), x.shape)
    return jnp.asarray(rows, x.dtype) @ w + x[:, :1]


def _gradient(x: Array, w: Array) -> Array:
    def loss(w: Array) -> Array:
        return jnp.sum(jnp.tanh(x @ w).astype(jnp.float32))

    return x @ jax.grad(loss)(w)


DOTS: tuple[Step, ...] = (
    *(_dot, _transposed, _swapped, _batched, _batched_both),
    *(_scanned, _branched, _twice, _constant, _gradient),
)


def program(seed: int) -> tuple[Step, tuple[Array, Array], str]:
    """A program of one or two dots, its operands, and the policy."""
    random = np.random.default_rng(seed)

    def one(choices: tuple) -> Any:
        return choices[random.integers(len(choices))]

    m, k, n = one(ROWS), one(DEPTHS), one(COLUMNS)
    before, after = (one(BEFORE), one(BEFORE)), (one(AFTER), one(AFTER))
    dot, second = one(DOTS), one(DOTS)
    twice = random.random() < 0.3

    def run(x: Array, w: Array) -> Array:
        x, w = before[0](x), before[1](w)
        x, w = x.astype(jnp.result_type(x, w)), w.astype(jnp.result_type(x, w))
        y = after[0](dot(x, w))
        if twice and y.ndim == 2:
            right = jnp.resize(w.astype(y.dtype), (y.shape[1], 16))
            y = after[1](second(y, right))
        return y

    args = jnp.asarray(_values(random, (m, k))), jnp.asarray(_values(random, (k, n)))
    return run, args, one(POLICIES)


def check(seed: int) -> None:
    """Equal bits, by kernels and by XLA."""
    function, args, policy = program(seed)
    found = []
    before = choice.enabled
    try:
        for choice.enabled in (True, False):
            interpreter.forget_kernels()  # an instruction alone is compiled one way
            found.append(nj.jit(lambda *a: function(*a), policy=policy)(*args))
    finally:
        choice.enabled = before
    bits.assert_same(found[0], found[1], f"program {seed}, {policy}")


@pytest.mark.slow
def test_three_random_programs_match_the_oracle():
    for seed in range(3):
        check(seed)


@pytest.mark.exhaustive
@pytest.mark.timeout(0)
def test_a_thousand_random_programs_match_the_oracle():
    assert main(1000) == []


def main(count: int, first: int = 0) -> list[str]:
    """What differs in so many programs."""
    wrong, start = [], time.monotonic()
    for seed in range(first, first + count):
        try:
            check(seed)
        except AssertionError as error:
            wrong.append(str(error))
            print(error, flush=True)
        done = seed - first + 1
        if done % 50 == 0:
            jax.clear_caches()
            print(f"{done} in {time.monotonic() - start:.0f} s", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(len(main(*map(int, sys.argv[1:]))))

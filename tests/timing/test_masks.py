"""Which blocks of scores are not computed, against masks that are computed whole."""

from __future__ import annotations

from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.timing.assumptions import MASK_COLUMNS, MASK_ROWS
from neuronjax.timing.fusion import fuse
from neuronjax.timing.schedule import schedule
from neuronjax.timing.work import Core

F32, BF16 = jnp.float32, jnp.bfloat16
TARGET = resolve_target("trn2")
CORE = Core.of(TARGET, 1)


def program_of(function, *arguments):
    low = nj.jit(function, target="trn2", policy="bf16").lower(*arguments)
    return low.captured.instructions


def masked(function, *shapes):
    """What the steps say that are masked."""
    program = program_of(function, *(jax.ShapeDtypeStruct(s, F32) for s in shapes))
    steps = fuse(program.main, program.functions, CORE).steps
    return [s.masked for s in steps if s.masked is not None]


def share(mask, columns):
    """Of a mask the share of its scores in blocks of which any counts."""
    found, rows = 0, int(MASK_ROWS.value)
    for n in range(ceil(mask.shape[0] / rows)):
        for m in range(ceil(mask.shape[1] / columns)):
            block = mask[n * rows : (n + 1) * rows, m * columns : (m + 1) * columns]
            found += block.size * bool(block.any())
    return found / mask.size


MASKS = {
    "causal": lambda i, j: j <= i,
    "causal, the other way round": lambda i, j: ~(j > i),
    "anticausal": lambda i, j: i <= j,
    "band": lambda i, j: abs(i - j) < 150,
    "window": lambda i, j: (j <= i) & (i - j < 130),
    "two bounds": lambda i, j: (i >= j - 3) & (i <= j + 600),
    "prefix": lambda i, j: (j <= i) | (j < 200),
    "outside a band": lambda i, j: (i - j > 300) | (j - i > 300),
    "clipped": lambda i, j: j <= jnp.maximum(i - 100, 64),
    "a diagonal": lambda i, j: i == j,
    "all but a block": lambda i, j: ~((i < 256) & (j >= 512)),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("shape", [(1024, 1024), (400, 1100), (1300, 700)], ids=str)
def test_blocks_that_are_hidden_whole_are_left_out(name, shape):
    def f(x):
        i, j = jnp.arange(shape[0])[:, None], jnp.arange(shape[1])[None]
        return jnp.where(MASKS[name](i, j), jnp.exp(x), 0.0)

    mask = np.asarray(MASKS[name](*np.indices(shape)))
    expected = [share(mask, int(c.value)) for c in (MASK_COLUMNS, MASK_ROWS)]
    (found,) = masked(f, shape) or [None]
    if found is None:
        assert expected[0] == 1
    else:
        assert found[1:] == pytest.approx(tuple(expected))


def test_the_mask_of_jax_is_recognised_with_heads_and_batch():
    def f(x):
        mask = jnp.tril(jnp.ones((1024, 2048), bool), k=1024)[:, 512:1536]
        return jnp.where(mask[None, None], jnp.exp(x), 0.0)

    (found,) = masked(f, (2, 3, 1024, 1024))
    mask = np.tril(np.ones((1024, 2048), bool), k=1024)[:, 512:1536]
    assert found.computed == pytest.approx(share(mask, int(MASK_COLUMNS.value)))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.where(x > 0, x, 0.0),
        lambda x: jnp.where(jnp.arange(1024)[:, None] < 7, x, 0.0),
        lambda x: jnp.where(jnp.arange(1024) < 7, x, 0.0),
        lambda x: jnp.where(jnp.tri(1024, dtype=bool), x, -x),
        lambda x: jnp.where(jnp.tri(1024, dtype=bool), 1.0, 0.0) * x,
        lambda x: (y := jnp.exp(x), jnp.where(jnp.tri(1024, dtype=bool), y, 0.0)),
    ],
    ids=["values", "rows alone", "columns alone", "both used", "a factor", "wanted"],
)
def test_what_hides_no_blocks_of_scores(f):
    assert masked(f, (1024, 1024)) == []


def timeline_of(function, *arguments):
    program = program_of(function, *arguments)
    return schedule(program, CORE, TARGET)


def attention(**options):
    def f(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, scale=1.0, **options)

    length = jax.ShapeDtypeStruct((1, 8192, 1, 64), BF16)
    return timeline_of(f, length, length, length)


def by_hand(mask):
    def f(q, k, v):
        scores = jnp.einsum("qd,kd->qk", q, k, preferred_element_type=F32)
        i, j = jnp.arange(8192)[:, None], jnp.arange(8192)[None]
        scores = jnp.where(mask(i, j), scores, -jnp.inf)
        return jax.nn.softmax(scores, -1).astype(v.dtype) @ v

    return timeline_of(f, *[jax.ShapeDtypeStruct((8192, 64), BF16)] * 3)


def test_a_sliding_window_is_the_same_however_it_is_written():
    """And takes a small part of the causal time: 1.25 of 8.5 blocks of a row."""
    jax_nn = attention(is_causal=True, local_window_size=(127, 0)).total_seconds
    written = by_hand(lambda i, j: (j <= i) & (i - j < 128)).total_seconds
    assert jax_nn == pytest.approx(written, rel=0.02)
    both_ways = attention(local_window_size=(127, 127)).total_seconds
    assert jax_nn < both_ways < 1.3 * jax_nn
    assert jax_nn < 0.25 * attention(is_causal=True).total_seconds


@pytest.mark.slow
def test_a_wider_window_takes_no_less():
    causal = attention(is_causal=True).total_seconds
    widths = (64, 128, 512, 2048, 8192)
    seconds = [
        attention(is_causal=True, local_window_size=(w - 1, 0)).total_seconds
        for w in widths
    ]
    assert seconds == sorted(seconds)
    assert seconds[-1] == pytest.approx(causal, rel=0.02)

"""Which steps share a loop over rows."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings, strategies as st

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.timing.access import rows_of
from neuronjax.timing.assumptions import BLOCK_K
from neuronjax.timing.fusion import fuse
from neuronjax.timing.tiling import blocked_reads, group
from neuronjax.timing.work import Core

CORE = Core.of(resolve_target("trn2"), 1)
BF16, F32 = jnp.bfloat16, jnp.float32


def regions_of(function, *shapes, dtype=BF16):
    arguments = [jax.ShapeDtypeStruct(s, dtype) for s in shapes]
    program = nj.jit(function, target="trn2", policy="fp32").lower(*arguments)
    block = program.captured.instructions.main
    return group(fuse(block, program.captured.instructions.functions, CORE), CORE)


def attention(q, k, v):
    scores = jnp.einsum("qd,kd->qk", q, k, preferred_element_type=F32)
    return jax.nn.softmax(scores, -1).astype(v.dtype) @ v


def test_rows_are_products_of_leading_dimensions():
    assert rows_of((2, 3, 5)) == {1, 2, 6, 30}
    assert rows_of((2, 3, 5), 1) == {1, 2}
    assert rows_of(()) == {1}


def test_attention_is_one_region():
    (region,) = regions_of(attention, (1024, 64), (1024, 64), (1024, 64))
    assert (region.rows, region.tiles(CORE)) == (1024, 8)
    assert (len(region.whole), len(region.streamed)) == (2, 1)


def test_batched_attention_has_rows_of_all_heads():
    def f(q, k, v):
        return jax.vmap(jax.vmap(attention))(q, k, v)

    (region,) = regions_of(f, *[(2, 4, 256, 64)] * 3)
    assert region.rows == 2 * 4 * 256


def test_an_mlp_is_one_region():
    def mlp(x, gate, up, down):
        return (jax.nn.silu(x @ gate) * (x @ up)) @ down

    (region,) = regions_of(mlp, (1024, 512), (512, 256), (512, 256), (256, 512))
    assert region.rows == 1024
    assert [s.form for s in region.steps].count("matmul") == 3


def test_a_contraction_over_the_rows_ends_a_region():
    def f(x, w):
        y = jnp.exp(x)
        return y.T @ (y @ w)

    assert len(regions_of(f, (1024, 512), (512, 256))) > 1


def test_a_reduction_over_rows_is_not_in_their_loop():
    two = regions_of(lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x), 0), (4096, 512))
    assert len(two) > 1


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_sbuf_is_what_the_toolchain_leaves(target):
    core = Core.of(resolve_target(target))
    usable = core.spec.sbuf_usable_bytes_per_partition
    assert core.sbuf_bytes == usable * 128 * core.lnc


def test_operands_of_which_one_fits_are_read_once():
    assert blocked_reads(1000, 10**9, 10, 10**7, 2000, 2) == (1, 1)


def test_a_blocked_matmul_by_hand():
    """[4096, 8192] x [8192, 8192] in BF16: 64 and 128 MiB, 16 MiB of SBUF."""
    lhs, rhs, room = 64 * 2**20, 128 * 2**20, 16 * 2**20
    best = min(
        lhs * over_n + rhs * over_m
        for over_n, over_m in itertools.product(range(1, 65), range(1, 4097))
        if _fits(-(-4096 // over_m), -(-8192 // over_n), room)
    )
    assert _moved(lhs, rhs, 4096, 8192, room) == best
    assert best < 10 * (lhs + rhs)


def _moved(lhs: int, rhs: int, m: int, n: int, room: float) -> int:
    reads = blocked_reads(lhs, rhs, m, n, room, 2)
    return lhs * reads[0] + rhs * reads[1]


def _fits(rows: int, columns: int, room: int) -> bool:
    """FP32 sums, and both operands' blocks twice."""
    return 4 * rows * columns + 2 * 2 * BLOCK_K.value * (rows + columns) <= room


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(18, 25))
def test_more_sbuf_never_moves_more(m, n, room):
    sizes = (2 * 1024 * m * 8192, 2 * 8192 * n * 1024, 1024 * m, 1024 * n)
    small, big = (_moved(*sizes, r) for r in (2.0**room, 2.0 ** (room + 1)))
    assert big <= small
    assert big >= sizes[0] + sizes[1]

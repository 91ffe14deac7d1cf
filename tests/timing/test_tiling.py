"""Which steps share a loop over rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.timing.access import rows_of
from neuronjax.timing.fusion import fuse
from neuronjax.timing.tiling import group
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

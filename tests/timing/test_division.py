"""Regions that do not fit SBUF at once, cores that share rows, scores of attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.timing.division import copies
from neuronjax.timing.fusion import fuse
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.schedule import schedule
from neuronjax.timing.work import Core

BF16, F32 = jnp.bfloat16, jnp.float32
TRN2 = resolve_target("trn2")
CORE = Core.of(TRN2, 1)


def struct(*shape: int, dtype=BF16):
    return jax.ShapeDtypeStruct(shape, dtype)


def program_of(function, *arguments):
    lowered = nj.jit(function, target="trn2", policy="fp32").lower(*arguments)
    return lowered.captured.instructions


def plan_of(function, *arguments, lnc=1):
    return plan_memory(program_of(function, *arguments), Core.of(TRN2, lnc))


def norm_mlp(x, gamma, up, down):
    mean = jnp.mean(jnp.square(x.astype(F32)), axis=-1, keepdims=True)
    h = (x * jax.lax.rsqrt(mean + 1e-6)).astype(BF16) * gamma
    return jax.nn.silu(h @ up) @ down


def norm_mlp_arguments(rows: int, hidden: int, width: int):
    weights = struct(hidden, width), struct(width, hidden)
    return struct(rows, hidden), struct(hidden), *weights


# -- attention -------------------------------------------------------------------------


def attend(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("groups", [8, 2])
def test_scores_of_many_heads_stay_on_the_chip(groups):
    """Heads of a batch follow each other: only two heads' keys are there at a time."""
    q, k = struct(1, 4096, 8, 128), struct(1, 4096, groups, 128)
    plan = plan_of(attend, q, k, k)
    size = 4096 * 8 * 128 * 2
    assert plan.hbm_read_bytes == size + 2 * size * groups // 8
    assert plan.hbm_write_bytes == size


def test_gradients_of_attention_stay_on_the_chip():
    """Sums over the queries are kept while their tiles go by."""
    q = struct(1, 4096, 8, 128)
    plan = plan_of(lambda q, k, v, g: jax.vjp(attend, q, k, v)[1](g), q, q, q, q)
    size = 4096 * 8 * 128 * 2
    assert plan.spill_save_bytes == 0
    assert plan.hbm_read_bytes == 4 * size
    assert plan.hbm_write_bytes == 3 * size


def test_gradients_of_a_wide_layer_are_matmuls_of_their_own():
    """No batch: compilers do not fuse the backward pass with the forward one."""

    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w).astype(F32) ** 2)

    plan = plan_of(jax.grad(loss), struct(512, 512), struct(65536, 512))
    steps = [s for u in plan.main.units for s in u.region.steps]
    assert not any(s.sums for s in steps if s.form == "matmul")


def test_sides_are_exchanged_where_that_spares_a_transposition():
    def transposed(p, v):
        return jnp.einsum("bkd,bqk->bdq", v, p).swapaxes(1, 2)

    program = program_of(transposed, struct(2, 256, 512), struct(2, 512, 64))
    steps = fuse(program.main, program.functions, CORE).steps
    assert [step.form for step in steps] == ["matmul"]
    assert steps[0].instruction.results[0].type.shape == (2, 256, 64)


# -- rows in blocks --------------------------------------------------------------------


def test_what_nobody_reads_costs_nothing():
    def unused(x):
        _ = jnp.tanh(x) @ x
        return x + 1

    assert (
        schedule(
            program_of(unused, struct(512, 512)), Core.of(TRN2, 1), TRN2
        ).busy_seconds("tensor")
        == 0
    )


def test_weights_stay_where_they_fit_beside_two_tiles():
    """Blocks of 512 rows follow each other, but need not load the weights again."""
    arguments = norm_mlp_arguments(8192, 1024, 2048)
    plan = plan_of(norm_mlp, *arguments)
    (unit,) = plan.main.units
    assert (unit.passes, unit.blocks) == (1, 8192 // 512)
    weights = 2 * 1024 * 2048 * 2 + 1024 * 2
    assert plan.hbm_read_bytes == 8192 * 1024 * 2 + weights


def test_weights_pass_by_where_they_do_not_fit():
    rows, hidden, width = 8192, 8192, 640
    plan = plan_of(norm_mlp, *norm_mlp_arguments(rows, hidden, width))
    (unit,) = plan.main.units
    weights = 2 * hidden * width * 2
    assert weights < Core.of(TRN2, 1).sbuf_bytes
    assert unit.passes > 1
    assert plan.hbm_read_bytes > rows * hidden * 2 + 2 * weights


def test_a_block_waits_for_the_room_of_the_one_before():
    """Rows so wide that two tiles and the weights' window do not fit."""
    arguments = norm_mlp_arguments(2048, 32768, 128)
    program, core = program_of(norm_mlp, *arguments), Core.of(TRN2, 1)
    timeline = schedule(program, core, TRN2)
    (unit,) = timeline.memory.main.units
    assert unit.blocks > 1
    busy = max(map(timeline.busy_seconds, ("tensor", "vector", "scalar", "dma")))
    assert timeline.total_seconds > 1.2 * busy
    assert timeline.flops == pytest.approx(2 * 2 * 2048 * 32768 * 128)


@pytest.mark.parametrize(("hidden", "width"), [(4096, 2048), (8192, 640)])
def test_weights_are_loaded_for_every_512_rows(hidden, width):
    """As many rows go through a step before the next; the next rows wait."""
    plan = plan_of(norm_mlp, *norm_mlp_arguments(8192, hidden, width))
    (unit,) = plan.main.units
    assert (unit.passes, unit.blocks) == (8192 // 512, 8192 // 512)


@pytest.mark.slow
def test_cores_that_share_rows_read_the_weights_each():
    arguments = norm_mlp_arguments(8192, 1024, 1024)
    plans = [plan_of(norm_mlp, *arguments, lnc=lnc) for lnc in (1, 2)]
    extra = plans[1].hbm_read_bytes - plans[0].hbm_read_bytes
    assert extra == 2 * 1024 * 1024 * 2 + 1024 * 2
    (unit,) = plans[1].main.units
    assert copies(plans[1].main.fused, unit.region, Core.of(TRN2, 2)) == 2


def test_cores_share_the_columns_of_few_rows():
    arguments = norm_mlp_arguments(4, 4096, 1024)
    plans = [plan_of(norm_mlp, *arguments, lnc=lnc) for lnc in (1, 2)]
    assert plans[0].hbm_read_bytes == plans[1].hbm_read_bytes


def test_a_chain_of_matmuls_is_divided_by_rows_even_if_weights_are_more():
    """The next matmul contracts the columns that the other core would have."""
    arguments = norm_mlp_arguments(512, 1024, 4096)
    plans = [plan_of(norm_mlp, *arguments, lnc=lnc) for lnc in (1, 2)]
    extra = plans[1].hbm_read_bytes - plans[0].hbm_read_bytes
    assert extra == 2 * 1024 * 4096 * 2 + 1024 * 2


def test_a_lone_matmul_is_divided_by_the_columns_of_its_larger_side():
    def projected(x, w):
        return jax.nn.relu(x) @ w

    rows, hidden, width = 256, 1024, 8192
    plans = [
        plan_of(projected, struct(rows, hidden), struct(hidden, width), lnc=lnc)
        for lnc in (1, 2)
    ]
    (unit,) = plans[1].main.units
    assert copies(plans[1].main.fused, unit.region, Core.of(TRN2, 2)) == 1
    assert plans[1].hbm_read_bytes == plans[0].hbm_read_bytes


def test_members_of_a_batch_are_divided_over_the_cores():
    """Keys and values are read by the core that has their rows."""
    q, kv = struct(8, 512, 8, 128), struct(8, 2048, 8, 128)
    plans = [plan_of(attend, q, kv, kv, lnc=lnc) for lnc in (1, 2)]
    assert plans[0].hbm_read_bytes == plans[1].hbm_read_bytes


# -- what is known, folded or stacked on the way ---------------------------------------

WIDE = 8192
SIDES = struct(WIDE, 1024, dtype=F32), struct(1024, WIDE, dtype=F32)


def test_a_fold_of_a_whole_tensor_comes_with_the_product_that_makes_it():
    """So does the largest magnitude by which an operand in FP8 is scaled."""

    plan = plan_of(lambda x, w: jnp.abs(x @ w).max(), *SIDES)
    assert plan.spill_save_bytes == plan.spill_reload_bytes == 0


def test_scalars_that_wait_for_no_tensor_are_there_before_it():
    """So are the scales of delayed scaling, and a cast comes with its tensor."""

    def scaled(x, w, s):
        y = x @ w
        return y * jnp.exp(s)

    plan = plan_of(scaled, *SIDES, struct(dtype=F32))
    assert plan.spill_save_bytes == 0
    assert plan.hbm_write_bytes == 4 * WIDE**2


def test_what_a_scan_stacks_is_read_where_it_lies():
    def stacked(c, x):
        def turn(c, _):
            y = jnp.tanh(x * c)
            return (y * jnp.abs(y).max()).sum(), y

        return jax.lax.scan(turn, c, length=4)

    plan = plan_of(stacked, struct(dtype=F32), struct(WIDE, WIDE, dtype=F32))
    assert plan.hbm_write_bytes < 1.1 * 4 * WIDE**2 < plan.hbm_read_bytes

"""What stays on chip, what moves, and what HBM holds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.timing.hbm import (
    capacity_bytes,
    categories_of,
    check_fits,
    with_donation,
)
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.work import Core

BF16, F32 = jnp.bfloat16, jnp.float32
CORE = Core.of(resolve_target("trn2"), 1)


def struct(*shape: int, dtype=BF16):
    return jax.ShapeDtypeStruct(shape, dtype)


def plan_of(function, *arguments, core=CORE):
    low = nj.jit(function, target=core.chip.name, policy="fp32").lower(*arguments)
    return plan_memory(low.captured.instructions, core, low.program.argument_names)


def moved(plan):
    """Bytes by reason."""
    found: dict[str, int] = {}
    for transfer in plan.main.transfers():
        found[transfer.reason] = found.get(transfer.reason, 0) + transfer.bytes
    return found


def test_a_matmul_that_fits_reads_its_operands_once():
    plan = plan_of(lambda x, w: x @ w, struct(1024, 512), struct(512, 256))
    assert moved(plan) == {
        "input": 1024 * 512 * 2,
        "weight": 512 * 256 * 2,
        "output": 1024 * 256 * 2,
    }


def test_scores_never_reach_hbm():
    def attention(q, k, v):
        scores = jnp.einsum("qd,kd->qk", q, k, preferred_element_type=F32)
        return jax.nn.softmax(scores, -1).astype(v.dtype) @ v

    plan = plan_of(attention, *[struct(16384, 128)] * 3)
    tensor = 16384 * 128 * 2
    assert (plan.hbm_read_bytes, plan.hbm_write_bytes) == (3 * tensor, tensor)
    assert plan.spill_save_bytes == 0


@pytest.mark.parametrize("layers", [1, 3])
def test_an_argument_that_is_updated_in_place_does_not_spill(layers):
    """A cache of keys is read as what it is, an argument, however often updated."""

    def decode(cache, new, q, at):
        for n in range(layers):
            cache = jax.lax.dynamic_update_slice(cache, new + n, (0, at + n, 0))
        return cache, jnp.einsum("bd,btd->bt", q, cache)

    shapes = [(64, 16384, 128), (64, 1, 128), (64, 128)]
    arguments = [*(struct(*s) for s in shapes), struct(dtype=jnp.int32)]
    found = moved(plan_of(decode, *arguments))
    cache, slice_ = 64 * 16384 * 128 * 2, 64 * 128 * 2
    assert found["output"] == slice_ + 64 * 16384 * 2
    assert found.get("update", 0) == (layers - 1) * slice_
    assert found["input"] + found["weight"] > cache
    spilled = found.get("spill_save", 0) + found.get("spill_reload", 0)
    assert spilled < slice_


def test_what_is_read_later_stays_if_it_fits():
    def f(x):
        y = jnp.exp(x)
        return y + jnp.sum(y, 0)

    plan = plan_of(f, struct(1024, 512))
    assert plan.spill_save_bytes == 0
    assert plan.hbm_read_bytes == 1024 * 512 * 2


def test_what_does_not_fit_is_saved_once_and_read_again():
    def f(x):
        y = jnp.exp(x)
        return y + jnp.sum(y, 0)

    size = 32768 * 4096 * 2
    assert size > CORE.sbuf_bytes
    plan = plan_of(f, struct(32768, 4096))
    assert plan.spill_save_bytes == size
    assert size <= plan.spill_reload_bytes <= 2 * size
    assert plan.hbm.categories["workspace"] == size


def test_a_slice_is_all_that_is_read_of_it():
    plan = plan_of(lambda x: jnp.exp(x[:64]), struct(1024, 512))
    assert plan.hbm_read_bytes == 64 * 512 * 2


def test_an_embedding_reads_its_rows():
    tokens = jax.ShapeDtypeStruct((128,), jnp.int32)
    plan = plan_of(lambda table, t: table[t], struct(50_000, 256), tokens)
    table = 50_000 * 256 * 2
    assert plan.hbm_read_bytes < table / 50
    assert plan.hbm.bytes >= table


def test_an_argument_that_is_returned_is_copied():
    plan = plan_of(lambda x: x.T, struct(64, 32))
    assert moved(plan) == {"copy": 2 * 64 * 32 * 2}


def test_every_result_is_written():
    plan = plan_of(lambda x: (jnp.exp(x), jnp.exp(x)), struct(64, 32))
    assert moved(plan)["output"] >= 64 * 32 * 2


def test_an_update_in_a_scan_writes_its_slice():
    def f(x):
        return jax.lax.scan(lambda c, y: (c + y, c * y), x[0], x)

    plan = plan_of(f, struct(4096, 128 * 128, dtype=F32))
    (loop,) = [u for u in plan.main.units if u.inner]
    row = 128 * 128 * 4
    (body,) = loop.inner
    by_reason = {t.reason: t.bytes for t in body.transfers()}
    assert max(by_reason.values()) <= 2 * row  # never the whole of 256 MiB


def test_a_small_carry_stays_in_sbuf():
    def f(x):
        return jax.lax.fori_loop(0, 10, lambda i, c: jnp.tanh(c), x)

    plan = plan_of(f, struct(128, 128))
    (loop,) = [u for u in plan.main.units if u.inner]
    (body,) = loop.inner
    assert list(body.transfers()) == []


def test_lnc_2_has_twice_the_sbuf():
    assert Core(CORE.chip, 2).sbuf_bytes == 2 * CORE.sbuf_bytes


# -- HBM -------------------------------------------------------------------------------


def train_step(width: int, batch: int):
    optimizer = optax.adam(1e-3)

    def step(state, x):
        def loss(params):
            y = jnp.tanh(x @ params["w1"])
            return jnp.mean((y @ params["w2"]) ** 2)

        gradients = jax.grad(loss)(state["params"])
        updates, opt = optimizer.update(gradients, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}

    w = struct(width, width, dtype=F32)
    params = {"w1": w, "w2": w}
    opt = jax.eval_shape(optimizer.init, params)
    return step, {"params": params, "opt": opt}, struct(batch, width, dtype=F32)


def test_categories_of_a_train_step():
    plan = plan_of(*train_step(1024, 8192))
    weights = 2 * 1024 * 1024 * 4
    totals = plan.hbm.categories
    assert totals["parameters"] == weights
    assert totals["optimizer state"] == 2 * weights + 4
    assert totals["inputs"] == 8192 * 1024 * 4
    assert totals["activations"] == 8192 * 1024 * 4  # tanh's result
    assert sum(totals.values()) == plan.hbm.bytes == max(plan.hbm.usage)
    assert "state/params/w1" in {t.name for t in plan.arguments}
    assert plan.hbm.biggest[0].bytes == 8192 * 1024 * 4


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("state/params/w", "parameters"),
        ("params/layers/0/kernel", "parameters"),
        ("state/opt/0/mu/params/w", "optimizer state"),
        ("opt_state/0/count", "optimizer state"),
        ("optimizer/step/value", "optimizer state"),
        ("state/1/step/value", "optimizer state"),
        ("batch/x", None),
        ("step", None),
        ("", None),
    ],
)
def test_category_of_a_path(name, category):
    assert categories_of([name]) == (category,)


def test_a_norms_scale_is_a_parameter_among_parameters():
    names = ["model/head/kernel/value", "model/norm/scale/value", "tokens"]
    assert categories_of(names) == ("parameters", "parameters", None)


@pytest.mark.parametrize("policy", ["fp32", "bf16", "fp8", "mxfp8"])
def test_what_looks_like_a_parameter_does_under_every_policy(policy):
    """No name says what is what: a stack of layers, one more, a table, an input."""

    def step(stack, last, table, x):
        x = x + table[jnp.arange(x.shape[0])]
        x, _ = jax.lax.scan(lambda x, w: (jax.nn.relu(x @ w), None), x, stack)
        return ((x @ last) ** 2).sum()

    shapes = [(3, 128, 128), (128, 128), (256, 128), (256, 128)]
    arguments = [struct(*shape, dtype=F32) for shape in shapes]
    for function in (step, jax.grad(step)):
        low = nj.jit(function, target="trn3", policy=policy).lower(*arguments)
        plan = plan_memory(low.captured.instructions, CORE, low.program.argument_names)
        found = [tensor.category for tensor in plan.arguments]
        assert found == ["parameters"] * 3 + ["inputs"]


def test_capacity_of_a_logical_core():
    gib = 2**30
    assert capacity_bytes(CORE) == 12 * gib - 96_000_000
    assert capacity_bytes(Core(CORE.chip, 2)) == 24 * gib - 2 * 96_000_000


def test_a_scan_needs_the_weights_that_it_runs_over_once():
    """What no turn changes stays where it is, and what turns stack is in one place."""

    def layers(weights, x):
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), c), x, weights)

    found = plan_of(layers, struct(64, 1024, 1024), struct(64, 1024))
    assert found.hbm.categories["parameters"] == 64 * 1024 * 1024 * 2
    assert found.hbm.categories["workspace"] == 0
    assert found.hbm.categories["outputs"] == 65 * 64 * 1024 * 2


def test_a_loop_updates_what_the_program_made_in_place():
    def written(x):
        def turn(n, kept):
            return jax.lax.dynamic_update_slice(kept, jnp.exp(x[:1]) * n, (n, 0))

        return jax.lax.fori_loop(0, 64, turn, jnp.exp(x))

    found = plan_of(written, struct(65536, 1024, dtype=F32))
    assert found.hbm.bytes < 2.01 * 65536 * 1024 * 4


def test_every_device_holds_its_part_of_a_sharded_array():
    """64 devices of 1 GiB each: globally 64 GiB, more than a core of trn2 has."""
    sharded = jax.shard_map(
        lambda x: jnp.exp(x) * 2,
        mesh=nj.make_mesh((64,), ("d",)),
        in_specs=PartitionSpec("d"),
        out_specs=PartitionSpec("d"),
    )
    low = nj.jit(sharded, target="trn2.48xlarge", policy="fp32").lower(
        struct(64 * 2**14, 2**14, dtype=F32)
    )
    plan = plan_memory(low.captured.instructions, CORE)
    assert plan.hbm.categories["inputs"] == plan.hbm.categories["outputs"] == 2**30
    assert plan.hbm.bytes == 2**31
    assert with_donation(plan, (0,)).hbm.bytes == 2**30
    assert check_fits(plan, CORE) is None


def test_a_program_that_fits_is_no_error():
    assert check_fits(plan_of(*train_step(256, 128)), CORE) is None


def test_a_program_that_does_not_fit_says_why_and_what_helps():
    error = check_fits(plan_of(*train_step(16384, 65536)), CORE)
    assert isinstance(error, nj.InvalidProgramError)
    text = str(error)
    assert "state/params/w1" in text or "state/opt/0/mu/w1" in text
    assert "jax.checkpoint" in text
    assert "sharding parameters" in text
    assert "11.9 GiB" in text


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ((4, 2**32), "half the batch saves"),
        ((1, 2**34), "half of the 17179869184 elements along axis 1 of "),
        ((1, 1, 2**34), "half of the 17179869184 elements along axis 2 of "),
    ],
)
def test_what_is_advised_is_possible(shape, advice):
    plan = plan_of(lambda x, table: x + table.sum(), struct(*shape), struct(8, 2))
    error = check_fits(plan, CORE)
    assert error is not None
    assert advice in (error.remedy or "")


def test_a_program_without_inputs_is_not_to_halve_them():
    error = check_fits(plan_of(lambda one: jnp.zeros(2**34) + one, struct()), CORE)
    assert error is not None
    assert "half" not in (error.remedy or "")

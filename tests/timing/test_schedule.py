"""The schedule against cases counted by hand, from the prices of its parts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from neuronjax.hardware import chips_that_take, resolve_target
from neuronjax.ir.collective_set import AllReduce, Collective
from neuronjax.ir.collectives.placement import Placement
from neuronjax.timing import assumptions as a
from neuronjax.timing.assumptions import PLANNING_CONSTANTS, PROGRAM_SECONDS
from neuronjax.timing.collectives import collective_time
from neuronjax.timing.cost_collective import collective_seconds
from neuronjax.timing.cost_dma import dma_times
from neuronjax.timing.engines.throttle import after_idle_seconds
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.schedule import schedule
from neuronjax.timing.work import QUEUES, Core, Transfer, Work

BF16, F32 = jnp.bfloat16, jnp.float32
TRN2 = resolve_target("trn2")
CORE = Core.of(TRN2, 1)


def struct(*shape: int, dtype=BF16):
    return jax.ShapeDtypeStruct(shape, dtype)


def program_of(function, *arguments, target="trn2"):
    lowered = nj.jit(function, target=target, policy="fp32").lower(*arguments)
    return lowered.captured.instructions


def timeline_of(function, *arguments, core=CORE, **options):
    return schedule(program_of(function, *arguments), core, TRN2, **options)


def reads(timeline):
    return [e for e in timeline.events if e.queue == "dma" and e.source.is_read]


def writes(timeline):
    return [e for e in timeline.events if e.queue == "dma" and not e.source.is_read]


def works(timeline):
    return [e for e in timeline.events if isinstance(e.source, Work)]


def products(timeline):
    """Matmuls that are no transposes."""
    return [e for e in timeline.of("tensor") if e.source.flops]


# -- one step --------------------------------------------------------------------------


def test_one_tile_is_loaded_computed_and_stored():
    """[128, 64] in BF16 is less than a chunk of a load: nothing overlaps."""
    timeline = timeline_of(lambda x: x + 1, struct(128, 64))
    (load,), (store,) = reads(timeline), writes(timeline)
    (work,) = works(timeline)
    latency = TRN2.chip.dma_start_seconds
    assert load.start_seconds == 0
    assert load.end_seconds == pytest.approx(dma_times(load.source, CORE)[0])
    assert work.start_seconds == pytest.approx(load.end_seconds + latency)
    done = work.end_seconds + work.source.latency_seconds
    end = done + dma_times(store.source, CORE)[0] + latency
    assert timeline.scheduled_seconds == pytest.approx(end, rel=0.02)
    assert timeline.around_seconds == PROGRAM_SECONDS.value


def test_what_is_around_a_program_is_there_once():
    """Loops, sizes and what is computed do not change it; a core of two has more."""
    turned = timeline_of(
        lambda x: lax.fori_loop(0, 9, lambda _, y: jnp.tanh(y), x), struct(128, 64)
    )
    assert turned.around_seconds == PROGRAM_SECONDS.value
    two = timeline_of(jnp.exp, struct(128, 64), core=Core(TRN2.chip, 2))
    assert two.around_seconds == PROGRAM_SECONDS.value + TRN2.chip.joining_seconds


def test_a_table_is_loaded_while_the_operand_comes():
    timeline = timeline_of(jnp.exp, struct(128, 64))
    table, activation = works(timeline)
    assert (table.name, table.start_seconds) == ("ACT_TABLE_LOAD", 0)
    assert table.queue_seconds == a.TABLE_LOAD.value
    assert activation.start_seconds > table.end_seconds


def test_a_long_elementwise_program_is_limited_by_dma():
    timeline = timeline_of(lambda x, y: x + y, struct(65536, 512), struct(65536, 512))
    busy = timeline.busy_seconds("dma")
    expected = 3 * 65536 * 512 * 2 / (16 * 23e9)
    assert busy == pytest.approx(expected, rel=0.05)
    assert busy <= timeline.total_seconds <= 1.05 * busy


def test_a_big_matmul_is_limited_by_the_array():
    """4096 x 8192 x 8192 in FP32, four passes of 512 cycles each: 27.96 ms."""
    f32 = struct(4096, 8192, dtype=F32), struct(8192, 8192, dtype=F32)
    timeline = timeline_of(lambda x, w: x @ w, *f32)
    cycles = 4096 * 8192 * 8192 / (128 * 128) * 4
    assert timeline.busy_seconds("tensor") == pytest.approx(cycles / 2.4e9, rel=0.01)
    assert timeline.total_seconds == pytest.approx(cycles / 2.4e9, rel=0.02)
    assert timeline.busy_seconds("dma") < 0.5 * timeline.total_seconds


def test_decoding_streams_weights():
    """One row through an MLP: 3 x 16384 x 416 weights over 16 engines of 23 GB/s."""

    def mlp(x, gate, up, down):
        return (jax.nn.silu(x @ gate) * (x @ up)) @ down

    weights = struct(16384, 416), struct(16384, 416), struct(416, 16384)
    timeline = timeline_of(mlp, struct(1, 16384), *weights)
    streaming = 3 * 16384 * 416 * 2 / (16 * 23e9)
    assert streaming < timeline.scheduled_seconds < streaming * 1.1


def test_attention_overlaps_its_engines():
    def attention(q, k, v):
        scores = jnp.einsum("qd,kd->qk", q, k, preferred_element_type=F32)
        return jax.nn.softmax(scores, -1).astype(v.dtype) @ v

    timeline = timeline_of(attention, *[struct(8192, 128)] * 3)
    busy = [timeline.busy_seconds(q) for q in ("tensor", "vector", "scalar")]
    assert timeline.total_seconds < 1.1 * max(busy)
    assert sum(busy) > 1.5 * timeline.total_seconds


def test_a_causal_mask_saves_nearly_half():
    def attention(q, k, v, *, causal):
        scores = jnp.einsum("qd,kd->qk", q, k, preferred_element_type=F32)
        if causal:
            mask = jnp.tril(jnp.ones(scores.shape, bool))
            scores = jnp.where(mask, scores, -jnp.inf)
        return jax.nn.softmax(scores, -1).astype(v.dtype) @ v

    seconds = [
        timeline_of(
            lambda q, k, v, c=c: attention(q, k, v, causal=c), *[struct(8192, 128)] * 3
        ).total_seconds
        for c in (True, False)
    ]
    assert 0.5 < seconds[0] / seconds[1] < 0.65


# -- loops and branches ----------------------------------------------------------------


def chain(turns: int):
    return lambda x: lax.fori_loop(0, turns, lambda i, c: jnp.tanh(c * 2), x)


@pytest.mark.parametrize("turns", [2, 3, 10, 100])
def test_a_loop_costs_between_n_minus_1_and_n_plus_1_periods(turns):
    timeline = timeline_of(chain(turns), struct(128, 2048))
    (loop,) = timeline.loops
    assert loop.trips == turns
    periods = (loop.end_seconds - loop.start_seconds) / loop.period_seconds
    assert turns - 1 <= periods <= turns + 1


def test_turns_are_equal():
    short, long = (timeline_of(chain(n), struct(128, 2048)) for n in (10, 110))
    (loop,) = long.loops
    difference = long.total_seconds - short.total_seconds
    assert difference == pytest.approx(100 * loop.period_seconds)
    assert long.busy_seconds("scalar") > 9 * short.busy_seconds("scalar")


def test_events_of_a_loop_count_its_turns():
    timeline = timeline_of(chain(10), struct(128, 256))
    (loop,) = timeline.loops
    inside = timeline.events[loop.first_event : loop.last_event]
    assert {e.count for e in inside if e.name != "ACT_TABLE_LOAD"} == {10}
    assert {e.count for e in inside if e.name == "ACT_TABLE_LOAD"} == {1}
    others = [e for e in timeline.events if e not in inside]
    assert {e.count for e in others} == {1}


def test_nested_loops_multiply():
    def f(x):
        inner = lambda i, c: jnp.tanh(c)  # noqa: E731
        return lax.fori_loop(0, 5, lambda i, c: lax.fori_loop(0, 7, inner, c), x)

    timeline = timeline_of(f, struct(128, 256))
    assert max(e.count for e in timeline.events) == 35
    assert [loop.count for loop in timeline.loops] == [5, 1]


def test_a_loop_that_never_turns_costs_nothing_inside():
    low = timeline_of(chain(1), struct(128, 256))
    none = schedule(program_of(chain(1), struct(128, 256)), CORE, TRN2)
    assert none.total_seconds == low.total_seconds


def unknown(x):
    return lax.while_loop(lambda c: jnp.sum(c) < 9, lambda c: jnp.tanh(c), x)


def test_an_unknown_count_is_one_and_said_so():
    timeline = timeline_of(unknown, struct(128, 256))
    assert timeline.loops[0].is_assumed
    assert "1 iteration assumed" in timeline.notes[0]


def test_a_given_count_is_taken():
    source = timeline_of(unknown, struct(128, 256)).loops[0].source
    name = source.rpartition("/")[2]
    timeline = timeline_of(unknown, struct(128, 256), trips={name: 50})
    assert (timeline.loops[0].trips, timeline.notes) == (50, ())


def test_a_branch_is_its_most_expensive_block():
    def f(n, x):
        cheap = lambda x: x + 1  # noqa: E731
        dear = lambda x: x @ x  # noqa: E731
        return lax.switch(n, [cheap, dear, cheap], x)

    index = jax.ShapeDtypeStruct((), jnp.int32)
    timeline = timeline_of(f, index, struct(1024, 1024))
    assert timeline.flops == 2 * 1024**3
    assert "block 1 of 3" in timeline.notes[0]


def test_a_branch_waits_for_what_it_reads():
    def f(n, x):
        y = jnp.exp(x)
        return lax.cond(n > 0, lambda: y @ y, lambda: y)

    index = jax.ShapeDtypeStruct((), jnp.int32)
    timeline = timeline_of(f, index, struct(1024, 1024))
    exp = next(e for e in works(timeline) if e.name == "ACTIVATE")
    matmul = next(timeline.of("tensor"))
    assert matmul.start_seconds >= exp.start_seconds + exp.queue_seconds / exp.pieces


# -- TensorE ---------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_tensor_engine_is_slow_after_idle(target):
    machine = resolve_target(target)
    core = Core.of(machine, 1)
    program = program_of(jnp.matmul, struct(128, 128), struct(128, 512), target=target)
    matmul, *_ = schedule(program, core, machine).of("tensor")
    lost = after_idle_seconds(core, matmul.queue_seconds)
    assert (lost > 0) == (target == "trn2")
    spent = matmul.end_seconds - matmul.start_seconds
    assert spent >= (matmul.queue_seconds + lost) * (1 - 1e-9)
    assert spent <= 2 * matmul.queue_seconds + lost


def test_tensor_engine_is_not_slow_again_right_away():
    timeline = timeline_of(
        lambda x, y, z: (x @ y, x @ z), struct(128, 128), struct(128, 2048),
        struct(128, 256),
    )  # fmt: skip
    one, two = products(timeline)
    assert one.queue_seconds > two.queue_seconds
    assert two.start_seconds - one.end_seconds < 1.5e-6
    assert two.end_seconds - two.start_seconds == pytest.approx(two.queue_seconds)


def test_a_matmul_waits_for_banks_of_psum():
    """16 banks of results leave more slowly than they come: 8 may be under way."""
    timeline = timeline_of(
        lambda x, y, z: (x @ y, z.T @ z), struct(128, 8), struct(8, 16384),
        struct(128, 128),
    )  # fmt: skip
    first, second = products(timeline)
    copies = [e for e in works(timeline) if e.source.psum_read_bytes]
    copy = max(copies, key=lambda e: e.queue_seconds)
    assert copy.pieces == 16
    freed = copy.end_seconds - 8 * copy.queue_seconds / 16
    assert copy.queue_seconds > first.queue_seconds
    assert second.start_seconds >= freed


# -- collectives -----------------------------------------------------------------------


def sharded(function, devices: int = 4):
    mesh = nj.make_mesh((devices,), ("x",))
    return jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x"))


def test_a_collective_is_on_its_own_cores():
    program = program_of(
        sharded(lambda x: lax.psum(jnp.exp(x), "x") + x), struct(512, 1024)
    )
    core = Core.of(TRN2)
    timeline = schedule(program, core, TRN2)
    (event,) = timeline.of("cc")
    (instruction,) = [i for i in program.walk() if isinstance(i, Collective)]
    assert event.queue_seconds == collective_seconds(instruction, core, TRN2)
    exp = next(e for e in timeline.events if e.name == "ACTIVATE")
    assert event.start_seconds >= exp.end_seconds


def test_compute_goes_on_beside_a_collective():
    def f(x):
        y = jnp.exp(x)
        return lax.psum(y, "x") + y @ (y.T @ y)

    program = program_of(sharded(f), struct(4096, 1024))
    timeline = schedule(program, Core.of(TRN2), TRN2)
    (event,) = timeline.of("cc")
    tensor = list(timeline.of("tensor"))
    assert any(
        e.start_seconds < event.end_seconds and e.end_seconds > event.start_seconds
        for e in tensor
    )


@pytest.mark.parametrize("placement", [(), (3, 2, 1, 0), (0, 4, 8, 12)])
def test_a_collective_takes_what_its_placement_makes_it_take(placement):
    policy = nj.Policy(placement=placement)
    step = sharded(lambda x: lax.psum(x, "x"))
    target = resolve_target("trn2.48xlarge")
    emulated = nj.jit(step, target=target.name, policy=policy)
    lowered = emulated.lower(struct(512, 1024))
    (instruction,) = [i for i in lowered.instructions if isinstance(i, Collective)]
    assert isinstance(instruction, AllReduce)
    moved = collective_time(
        "all_reduce",
        128 * 1024 * 2,
        instruction.groups,
        target,
        placement=Placement.of(target, cores=placement),
        plan=instruction.plan,
    )
    expected = moved.seconds + target.chip.collective_start_seconds
    assert lowered.timeline().busy_seconds("cc") == expected
    profile = nj.profile(emulated)(struct(512, 1024))
    assert profile.timeline.busy_seconds("cc") == expected
    core = Core.of(target)
    alone = schedule(lowered.captured.instructions, core, target, placement=placement)
    assert alone.busy_seconds("cc") == expected


def test_devices_of_several_chips_take_longer():
    policies = [nj.Policy(placement=p) for p in ((), (0, 4, 8, 12))]
    step = sharded(lambda x: lax.psum(x, "x"))
    near, far = (
        nj.jit(step, target="trn2.48xlarge", policy=p)
        .lower(struct(512, 1024))
        .timeline()
        .busy_seconds("cc")
        for p in policies
    )
    assert far > near


# -- what a timeline says --------------------------------------------------------------


def test_totals_are_those_of_the_events():
    timeline = timeline_of(
        lambda x, w: jnp.exp(x @ w), struct(512, 256), struct(256, 128)
    )
    totals = timeline.totals
    assert len(totals) == len(timeline.instructions) == len(timeline.fused)
    assert sum(t.flops for t in totals) == timeline.flops == 2 * 512 * 256 * 128
    for queue in QUEUES:
        seconds = sum(t.seconds.get(queue, 0.0) for t in totals)
        assert seconds == pytest.approx(timeline.busy_seconds(queue))
    assert sum(t.read_bytes for t in totals) == timeline.hbm_read_bytes


def test_instructions_are_those_of_the_program():
    program = program_of(lambda x: jnp.exp(x * 2), struct(512, 256))
    timeline = schedule(program, CORE, TRN2)
    assert {i.name for i in timeline.instructions} == {"activation"}
    assert [i.name for i in timeline.fused[0]] == ["tensor_tensor", "activation"]
    walked = {id(i) for i in program.walk()}
    assert all(id(i) in walked for members in timeline.fused for i in members)


def test_a_given_plan_is_taken():
    program = program_of(jnp.exp, struct(512, 256))
    plan = plan_memory(program, CORE)
    assert schedule(program, CORE, TRN2, plan=plan).memory is plan


def test_sources_of_events_are_works_and_transfers():
    timeline = timeline_of(jnp.exp, struct(512, 256))
    for event in timeline.events:
        kind = Transfer if event.queue == "dma" else Work
        assert isinstance(event.source, kind)
        assert event.pieces >= 1


def test_constants_have_sources():
    assert len(PLANNING_CONSTANTS) == 11
    for constant in PLANNING_CONSTANTS.values():
        assert constant.source
        assert constant.is_assumption or "[" in constant.source


@pytest.mark.parametrize("target", chips_that_take("float32"))
def test_a_train_step_on_every_chip(target):
    def step(w, x):
        def loss(w):
            return jnp.mean(jax.nn.softmax(jnp.tanh(x @ w), -1) ** 2)

        return w - jax.grad(loss)(w)

    w, x = struct(512, 512, dtype=F32), struct(2048, 512, dtype=F32)
    machine = resolve_target(target)
    program = program_of(step, w, x, target=target)
    timeline = schedule(program, Core.of(machine), machine)
    least = timeline.flops / 1e12 / 200
    assert least < timeline.total_seconds < 1e-2


def test_an_empty_program_takes_no_time():
    program = program_of(lambda x: (), struct(4, 4))
    timeline = schedule(program, CORE, TRN2)
    assert (timeline.total_seconds, timeline.events) == (0.0, ())


def test_a_program_of_constants():
    timeline = timeline_of(lambda: jnp.asarray(np.arange(8.0, dtype=np.float32)))
    assert timeline.total_seconds >= 0

"""Loops that are priced as scans, and those that stay loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.ir.instruction_set import DmaCopy, Loop, TensorTensorScan
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.recurrences import with_scans
from neuronjax.timing.schedule import schedule
from neuronjax.timing.work import Core

F32 = jnp.float32
TRN2 = resolve_target("trn2")
CORE = Core.of(TRN2, 1)
TURNS, CHANNELS, STATES = 256, 128, 16


def struct(*shape: int, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


def rewritten(function, *arguments):
    lowered = nj.jit(function, target="trn2", policy="fp32").lower(*arguments)
    program = lowered.captured.instructions
    return program, with_scans(program, CORE)


def found(program, kind):
    return [i for i in program.walk() if isinstance(i, kind)]


def decay(h, x):
    return h * 0.5 + x, h


def selective(delta, u, a, b, c):
    """Mamba's, time first."""

    def turn(h, x):
        step, driven, b_now, c_now = x
        h = jnp.exp(step[:, None] * a) * h + driven[:, None] * b_now
        return h, jnp.sum(h * c_now, axis=-1)

    return jax.lax.scan(turn, jnp.zeros_like(a), (delta, delta * u, b, c))


CHANNEL, STATE = struct(TURNS, CHANNELS), struct(TURNS, STATES)
SELECTIVE = (CHANNEL, CHANNEL, struct(CHANNELS, STATES), STATE, STATE)


@pytest.mark.parametrize(
    ("turn", "scans"),
    [
        (decay, 1),
        (lambda h, x: (h + x, h + x), 1),  # a cumulative sum
        (lambda h, x: (jnp.maximum(h, x), None), 1),
        (lambda h, x: ((h + x) * x, h + x), 1),  # what is between is read
        (lambda h, x: (jnp.exp(x) * h + jnp.sin(x), jnp.tanh(h)), 1),
        (lambda h, x: (jnp.tanh(h + x), h), 0),
        (lambda h, x: (h * h + x, h), 0),
        (lambda h, x: (x - h, h), 0),  # the scan's state comes first
        (lambda h, x: (h[::-1] * 0.5 + x, h), 0),
    ],
)
def test_which_loops_are_recurrences(turn, scans):
    def f(xs):
        return jax.lax.scan(turn, jnp.zeros(CHANNELS), xs)

    before, after = rewritten(f, CHANNEL)
    assert len(found(after, TensorTensorScan)) == scans
    assert len(found(after, Loop)) == 1 - scans
    assert (after is before) == (scans == 0)


def test_states_of_16_bits_round_every_turn_and_stay():
    def f(xs):
        return jax.lax.scan(decay, jnp.zeros(CHANNELS, jnp.bfloat16), xs)

    before, after = rewritten(f, struct(TURNS, CHANNELS, dtype=jnp.bfloat16))
    assert after is before


def test_results_keep_their_buffers_and_types():
    before, after = rewritten(selective, *SELECTIVE)
    (loop,) = found(before, Loop)
    written = {b.number: b for i in after.main.instructions for b in i.results}
    for buffer in loop.results:
        assert written[buffer.number] == buffer
    assert after.main.results == before.main.results
    numbers = [b.number for i in after.main.instructions for b in i.results]
    assert len(numbers) == len({*numbers})


def test_a_scan_has_time_last():
    _, after = rewritten(selective, *SELECTIVE)
    (scan,) = found(after, TensorTensorScan)
    assert scan.results[0].type.shape == (CHANNELS, STATES, TURNS)
    assert scan.axis == 2
    assert [v.type.shape for v in scan.operands] == [
        (CHANNELS, STATES, TURNS),
        (CHANNELS, STATES),
        (CHANNELS, STATES, TURNS),
    ]


def test_one_state_may_drive_another():
    def turn(carry, x):
        fast, slow = carry
        fast = fast * 0.5 + x
        slow = slow * 0.9 + fast
        return (fast, slow), slow

    def f(xs):
        return jax.lax.scan(turn, (jnp.zeros(CHANNELS),) * 2, xs)[1]

    _, after = rewritten(f, CHANNEL)
    assert len(found(after, TensorTensorScan)) == 2
    assert not found(after, Loop)


def test_backward_and_gradient_loops_are_scans_too():
    def backward(xs):
        return jax.lax.scan(decay, jnp.zeros(CHANNELS), xs, reverse=True)

    assert len(found(rewritten(backward, CHANNEL)[1], TensorTensorScan)) == 1

    def loss(*arguments):
        return (selective(*arguments)[1] ** 2).sum()

    _, after = rewritten(jax.grad(loss, argnums=(0, 1)), *SELECTIVE)
    assert len(found(after, TensorTensorScan)) >= 2
    assert not found(after, Loop)


def test_transpositions_that_undo_each_other_vanish():
    def time_last(xs):
        return jax.lax.scan(decay, jnp.zeros(CHANNELS), xs.T)[1].T

    _, after = rewritten(time_last, struct(CHANNELS, TURNS))
    moves = [i for i in after.main.instructions if isinstance(i, DmaCopy)]
    read = {v.buffer.number for i in after.main.instructions for v in i.operands}
    read |= {v.buffer.number for v in after.main.results}
    turned = [i for i in moves if i.kind == "transpose" and i.results[0].number in read]
    plan = plan_memory(after, CORE)
    assert all(not t.transposes for t in plan.main.transfers())
    # What is left is the loop's own result, which nobody but its reshape reads.
    assert len(turned) <= 1


def test_turns_that_are_work_stay_turns():
    """A row of 64 KiB a turn comes as it lies; time last it would be transposed."""
    before, after = rewritten(
        lambda xs: jax.lax.scan(decay, xs[0], xs), struct(4096, 128 * 128)
    )
    assert after is before


def test_a_loop_inside_a_loop_is_rewritten():
    def outer(total, xs):
        ys = jax.lax.scan(decay, jnp.zeros(CHANNELS), xs)[1]
        return jnp.tanh(total + ys.sum()), None

    def f(xs):
        return jax.lax.scan(outer, jnp.float32(0), xs)[0]

    before, after = rewritten(f, struct(4, TURNS, CHANNELS))
    assert len(found(before, Loop)) == 2
    assert len(found(after, Loop)) == 1
    assert len(found(after, TensorTensorScan)) == 1


def test_a_scan_is_quicker_and_turns_are_given_up_for_it():
    lowered = nj.jit(selective, target="trn2", policy="fp32").lower(*SELECTIVE)
    timeline = schedule(lowered.captured.instructions, CORE, TRN2)
    assert not timeline.loops
    (note,) = timeline.memory.notes
    assert "test_recurrences.py" in note
    scans = [e for e in timeline.events if e.name == "SCAN"]
    # 16 states of 256 turns, 2 cycles each, and what instructions need to start.
    cycles = 2 * STATES * TURNS
    (scan,) = scans
    assert cycles <= scan.queue_seconds * 0.96e9 < 1.3 * cycles
    assert timeline.total_seconds < TURNS * 0.3e-6

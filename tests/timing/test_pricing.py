"""Steps that are alike are priced once, and as if each were alone."""

from __future__ import annotations

import gc
import itertools
import random

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.timing.pricing import Pricing
from neuronjax.timing.schedule import schedule
from neuronjax.timing.work import Core
from tests.timing.test_schedule_properties import OPS, build
from tests.zoo import PROGRAMS

TRN2 = resolve_target("trn2")
CORE = Core.of(TRN2)


def layers(*widths: int):
    """A multilayer perceptron of these widths."""

    def f(x, weights):
        for w in weights:
            x = jax.nn.gelu(x @ w)
        return x

    pairs = itertools.pairwise(widths)
    weights = [jax.ShapeDtypeStruct(pair, jnp.bfloat16) for pair in pairs]
    x = jax.ShapeDtypeStruct((8192, widths[0]), jnp.bfloat16)
    return nj.jit(f, target="trn2").lower(x, weights).captured.instructions


@pytest.fixture
def alone(monkeypatch):
    """The schedule of a program where nothing is found out once for several."""

    def options(self, plan, unit, n):
        self._ways.clear()
        return own(self, plan, unit, n)

    own = Pricing._options

    def scheduled(program, core=CORE):
        with monkeypatch.context() as patch:
            patch.setattr(Pricing, "_options", options)
            return schedule(program, core, TRN2)

    return scheduled


def same(one, two) -> bool:
    return one.total_seconds == two.total_seconds and one.events == two.events


def test_what_is_shared_changes_no_time(alone):
    program = layers(*[8192] * 5)
    assert same(schedule(program, CORE, TRN2), alone(program))


def test_what_is_shared_changes_no_time_of_random_programs(alone):
    draw = random.Random(0)
    for _ in range(30):
        ops = draw.choices(OPS, k=draw.randint(1, 5)) * draw.choice([1, 2, 3])
        rows, columns = draw.choices([1, 3, 128, 300, 1024, 16384], k=2)
        b = build(ops, rows, columns)
        program, core = b.program(b.last), Core.of(TRN2, draw.choice([1, 2]))
        assert same(schedule(program, core, TRN2), alone(program, core)), ops


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_shared_changes_no_time_of_the_zoo(alone, program):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        function, args = program.make(0)
        lowered = nj.jit(function, target="trn3", policy="bf16").lower(*args)
    found = lowered.captured.instructions
    core = Core.of(resolve_target("trn3"))
    assert same(schedule(found, core, TRN2), alone(found, core))


def test_events_are_made_when_they_are_asked_for():
    timeline = schedule(layers(256, 256), CORE, TRN2)
    events = tuple(timeline.events)
    assert len(timeline.events) == len(events) > 0
    assert timeline.events == events
    assert timeline.events[-1] is events[-1]
    assert timeline.events[1:3] == events[1:3]
    assert repr(timeline.events) == repr(events)


@pytest.mark.slow
def test_much_is_old_at_once_and_what_is_frozen_stays(monkeypatch):
    program = layers(*[256] * 4)
    monkeypatch.setattr("neuronjax.ir.collection.MANY", 0)
    gc.unfreeze()  # Python 3.12 has some hundred frozen objects of its own
    gc.collect()
    before = gc.get_freeze_count()
    schedule(program, CORE, TRN2)
    assert gc.isenabled()
    assert gc.get_freeze_count() <= before
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        schedule(program, CORE, TRN2)
        assert gc.get_freeze_count() > 0.9 * frozen
    finally:
        gc.unfreeze()


def test_the_collector_is_on_again_afterwards():
    program = layers(256, 256)
    assert gc.isenabled()
    schedule(program, CORE, TRN2)
    assert gc.isenabled()

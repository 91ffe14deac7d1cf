"""Regions that are alike are planned and priced once, and as if each were alone."""

from __future__ import annotations

import gc
import itertools

import jax
import jax.numpy as jnp

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.timing.alike import Alike
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.schedule import schedule
from neuronjax.timing.work import Core

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
    return nj.jit(f, target="trn2").lower(x, weights)._instructions


def keys(program) -> list[int]:
    units = plan_memory(program, CORE).main.units
    return [u.region.key for u in units if u.region.has_matmul]


def test_equal_layers_are_alike():
    found = keys(layers(*[8192] * 7))
    assert len(found) > 3
    assert len(set(found[1:-1])) == 1


def test_layers_of_different_widths_are_not():
    found = keys(layers(4096, 8192, 2048, 16384, 1024))
    assert len(set(found)) == len(found)


def test_what_is_shared_changes_no_time(monkeypatch):
    program = layers(*[8192] * 5)
    shared, original = schedule(program, CORE, TRN2), Alike.mark

    def mark(self, fused, regions):
        for region in regions:  # every region like itself alone
            original(Alike(), fused, [region])
            region.key = id(region)

    monkeypatch.setattr("neuronjax.timing.memory.Alike.mark", mark)
    alone = schedule(program, CORE, TRN2)
    assert shared.total_seconds == alone.total_seconds
    spans = [
        [(e.start_seconds, e.end_seconds) for e in t.events] for t in (shared, alone)
    ]
    assert spans[0] == spans[1]


def test_the_collector_is_on_again_afterwards():
    program = layers(256, 256)
    assert gc.isenabled()
    schedule(program, CORE, TRN2)
    assert gc.isenabled()

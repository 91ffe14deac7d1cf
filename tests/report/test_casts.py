"""Why BF16 may be predicted slower than TF32."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj
from neuronjax.report.casts import operand_seconds
from neuronjax.report.quantities import percent
from neuronjax.timing.work import QUEUES


def profiled(policy, dtype=jnp.float32):
    def step(w, x):
        return jnp.tanh(x @ w["up"]) @ w["down"]

    square = jax.ShapeDtypeStruct((512, 512), dtype)
    found = nj.profile(step, target="trn2", policy=policy)
    return found({"up": square, "down": square}, square)


def casts(found):
    return [note for note in found.notes if note.startswith("casting FP32")]


def test_what_casts_take_is_a_note():
    (note,) = casts(profiled("bf16"))
    assert "to BF16 takes " in note
    assert "TensorE is as fast in TF32" in note
    assert "policy='tf32'" in note


def in_fp8(found):
    return [note for note in found.notes if note.startswith("preparing FP8 operands")]


def test_what_operands_in_fp8_take_is_a_note():
    (note,) = in_fp8(profiled("fp8"))
    for part in ("largest magnitudes", "scaling and casts", "scaling='delayed'"):
        assert part in note
    assert re.search(r"\d % of this is for (up|down|w/up|w/down)", note)


def test_the_share_of_fp8_is_that_of_all_parts_that_are_named():
    """Transposes are among them; the busy time of all queues is the whole."""
    found = profiled("fp8")
    (note,) = in_fp8(found)
    spent = operand_seconds(found.timeline)
    kinds = {kind for kind, _ in spent}
    assert all(f" for {kind}" in note for kind in kinds)
    whole = sum(map(found.timeline.busy_seconds, QUEUES))
    share = percent(sum(spent.values()) / whole)
    assert note.startswith(
        f"preparing FP8 operands takes {share} of the time of all queues"
    )


def test_the_note_on_fp8_is_true():
    """Scales that are known before spare a tensor's second reading."""
    fp8 = nj.Policy.preset("fp8")
    policies = (dataclasses.replace(fp8, scaling=s) for s in ("none", "delayed"))
    none, delayed = map(profiled, policies)
    assert in_fp8(none) == []
    assert "scaling='delayed'" not in "".join(in_fp8(delayed))
    assert none.total_seconds < delayed.total_seconds < profiled(fp8).total_seconds


def test_the_note_is_true():
    """Products take the array as long; it turns an operand of 4 bytes in two passes."""
    bf16, tf32 = profiled("bf16"), profiled("tf32")
    assert tf32.total_seconds < 1.02 * bf16.total_seconds
    busy = [
        sum(e.queue_seconds for e in each.timeline.of("tensor") if e.source.flops)
        for each in (bf16, tf32)
    ]
    assert busy[0] == pytest.approx(busy[1], rel=0.05)


@pytest.mark.parametrize(
    ("policy", "dtype"),
    [("tf32", jnp.float32), ("fp32", jnp.float32), ("bf16", jnp.bfloat16)],
)
def test_without_casts_there_is_none(policy, dtype):
    assert casts(profiled(policy, dtype)) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int16"])
def test_casts_of_the_program_are_its_own(dtype):
    profile = nj.profile(lambda x: x.astype(dtype) + x.astype(dtype), policy="bf16")
    assert casts(profile(jnp.ones((512, 512), jnp.float32))) == []

"""The examples of parallel training: right, reproducible, and they learn.

Every gradient of every example is compared twice: with that of the undistributed
program, whose sums are taken in another order, and bit for bit with a loop over the
shards on one device (`one_device`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from examples.parallel import model, training
from tests.conformance import bits
from tests.examples import one_device

RING = dataclasses.replace(nj.Policy.preset("bf16"), collective_algorithm="ring")
MESH = dataclasses.replace(RING, collective_algorithm="mesh")
#: Sums and functions are XLA's: quick to compile.
HOST = nj.Policy(
    accumulation="host", transcendentals="host", collective_algorithm="ring"
)
#: Of a gradient, in the 2-norm. Other orders of FP32 sums leave a few 1e-7, and where
#: one of them pushes an operand over the edge to the next BF16 number, a few 1e-6.
BOUND = 2e-5

#: Collectives in the gradients' program; a scan over layers or ticks counts once.
COLLECTIVES = {
    "data_parallel": {"all_reduce": 11},  # a loss and ten parameters
    # Four parameters beside the layers; six of a layer, forward and again backward.
    "fsdp": {"all_gather": 16, "reduce_scatter": 10, "all_reduce": 1},
    "tensor_parallel": {"all_reduce": 4},
    # As many moves, and the gradients of six parameters that are not cut.
    "sequence_parallel": {"all_gather": 4, "reduce_scatter": 4, "all_reduce": 7},
    "expert_parallel": {"all_to_all": 4, "all_reduce": 10},
    "pipeline": {"collective_permute": 2, "all_reduce": 5},
    "combined": {"collective_permute": 2, "all_reduce": 22},
}
#: The others compile for long.
QUICK = ("fsdp",)
NAMES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in COLLECTIVES
]


def strategy(name: str) -> training.Strategy:
    return importlib.import_module(f"examples.parallel.{name}").STRATEGY


@functools.cache
def tokens() -> np.ndarray:
    return next(model.batches(1))


@functools.cache
def on_mesh(name: str, policy: nj.Policy) -> Any:
    """(loss, gradients), as the example has them."""
    chosen = strategy(name)
    return training.value_and_grad(chosen, policy)(chosen.init(), tokens())


@functools.cache
def _undistributed(init: Any, loss: Any, policy: nj.Policy) -> Any:
    step = nj.jit(jax.value_and_grad(loss), target=training.TARGET, policy=policy)
    return step(init(), tokens())


def undistributed(name: str, policy: nj.Policy) -> Any:
    chosen = strategy(name)
    return _undistributed(chosen.init, chosen.whole_loss, policy)


def shards_in_a_loop(name: str, policy: nj.Policy) -> Any:
    chosen = strategy(name)
    mapped = jax.shard_map(
        chosen.value_and_grad,
        mesh=chosen.mesh,
        in_specs=(chosen.params, chosen.batch),
        out_specs=(P(), chosen.params),
        check_vma=False,
    )
    args = chosen.init(), tokens()
    return one_device.run(mapped, *args, target=training.TARGET, policy=policy)


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTIVES)
def test_runs_as_native_jax_without_a_mesh(name):
    chosen = strategy(name)
    native = jax.jit(jax.value_and_grad(chosen.whole_loss))
    errors = bits.relative_errors(on_mesh(name, HOST), native(chosen.init(), tokens()))
    assert max(errors.values()) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_undistributed_program(name):
    errors = bits.relative_errors(on_mesh(name, RING), undistributed(name, RING))
    assert len(errors) == 1 + len(jax.tree.leaves(strategy(name).params))
    assert {path: e for path, e in errors.items() if e > BOUND} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_bits_are_those_of_the_shards_in_a_loop(name):
    bits.assert_same(on_mesh(name, RING), shards_in_a_loop(name, RING))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fsdp", "tensor_parallel"])
def test_another_algorithm_has_other_bits(name):
    bits.assert_same(on_mesh(name, MESH), shards_in_a_loop(name, MESH))
    with pytest.raises(AssertionError, match="differ"):
        bits.assert_same(on_mesh(name, MESH), on_mesh(name, RING))


@pytest.mark.slow
def test_compiled_is_op_by_op():
    chosen = strategy("fsdp")
    gradients = training.value_and_grad(chosen, RING)
    args = chosen.init(), tokens()
    bits.assert_same(bits.op_by_op(gradients, *args), on_mesh("fsdp", RING))


@pytest.mark.slow
def test_a_pipeline_forgets_in_time(monkeypatch):
    """Eight microbatches, of which a stage remembers seven."""
    pipeline = importlib.import_module("examples.parallel.pipeline")
    monkeypatch.setattr(pipeline, "MICROBATCHES", 8)
    got = training.value_and_grad(pipeline.STRATEGY, RING)(pipeline.init(), tokens())
    errors = bits.relative_errors(got, undistributed("pipeline", RING))
    assert max(errors.values()) < BOUND


@pytest.mark.slow_except("data_parallel")
@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_goes_over_the_wire(name):
    chosen = strategy(name)
    params = jax.eval_shape(chosen.init)
    program = training.value_and_grad(chosen).lower(params, tokens())
    found = Counter(re.findall(r" = cc\.(\w+)", program.as_text("instructions")))
    moves = {
        n: count for n, count in found.items() if n not in ("spmd", "partition_id")
    }
    assert moves == COLLECTIVES[name]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_moments_are_cut_as_their_parameters(name):
    chosen = strategy(name)
    adam, _ = training.state_specs(chosen)
    assert adam.mu == adam.nu == chosen.params
    assert adam.count == P()


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTIVES)
def test_it_learns(name):
    losses = list(training.train(strategy(name), steps=24))
    assert np.isfinite(losses).all()
    assert losses[0] > np.log(model.V)
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.5


def test_the_printout(capsys, monkeypatch):
    monkeypatch.setattr(training, "train", lambda _, steps: iter(range(steps)))
    training.main(strategy("combined"), steps=20)
    assert capsys.readouterr().out.splitlines() == [
        f"2 dp x 2 pp x 2 tp on an emulated {training.TARGET}, BF16; "
        "nats per character",
        "steps   1- 10: 4.500",
        "steps  11- 20: 14.500",
    ]

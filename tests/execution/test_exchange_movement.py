"""Movement between devices: no bit changes; against loops in NumPy."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.exchange import exchange
from neuronjax.ir.collective_set import (
    AllGather,
    AllToAll,
    Collective,
    CollectiveBroadcast,
    CollectivePermute,
    PartitionId,
)
from tests.oracles import collective_channels as oracle

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
FP8 = np.dtype(ml_dtypes.float8_e4m3)


def run(i: Collective, *arrays: np.ndarray) -> list[np.ndarray]:
    """The instruction, compiled, on arrays of all devices."""

    def body(*arrays: jax.Array) -> tuple:
        zero, key = jnp.float32(-0.0), jnp.uint32(0)
        return exchange(i, arrays, len(arrays[0]), zero, key)

    return [np.asarray(x) for x in jax.jit(body)(*arrays)]


def same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


GROUPS = ((2, 0, 3), (1, 5, 4))
DTYPES = [F32, BF16, FP8, np.dtype(np.int32), np.dtype(bool)]


def numbers(shape, dtype):
    return np.arange(np.prod(shape)).reshape(shape).astype(np.float32).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "dimension"), [*((d, 0) for d in DTYPES), (F32, 1)], ids=str
)
def test_all_gather(dtype, dimension):
    x = numbers((6, 2, 3), dtype)
    i = AllGather(operands=(), results=(), dimension=dimension, groups=GROUPS)
    (found,) = run(i, x)
    for group in GROUPS:
        expected = np.concatenate([x[r] for r in group], axis=dimension)
        for rank in group:
            same_bits(found[rank], expected)


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("concat", [0, 1])
def test_all_to_all(split, concat):
    x = numbers((6, 6, 9), F32)
    i = AllToAll(
        operands=(),
        results=(),
        split_dimension=split,
        concat_dimension=concat,
        groups=GROUPS,
    )
    (found,) = run(i, x)
    for group in GROUPS:
        parts = {r: np.split(x[r], 3, axis=split) for r in group}
        for number, rank in enumerate(group):
            received = [parts[sender][number] for sender in group]
            same_bits(found[rank], np.concatenate(received, axis=concat))


def test_collective_permute():
    x = numbers((4, 3), BF16) + BF16.type(1)
    pairs = ((0, 2), (2, 0), (3, 3))
    i = CollectivePermute(operands=(), results=(), pairs=pairs)
    (found,) = run(i, x)
    same_bits(found, np.stack([x[2], np.zeros_like(x[0]), x[0], x[3]]))
    ring_ = CollectivePermute(
        operands=(), results=(), pairs=tuple((k, (k + 1) % 4) for k in range(4))
    )
    same_bits(run(ring_, x)[0], np.roll(x, 1, axis=0))
    empty = CollectivePermute(operands=(), results=(), pairs=())
    assert not run(empty, x)[0].any()


def test_collective_broadcast():
    x = numbers((5, 2), F32) + np.float32(1)
    groups = ((2, 0), (4, 3))
    i = CollectiveBroadcast(operands=(), results=(), groups=groups)
    (found,) = run(i, x)
    same_bits(found, np.stack([x[2], np.zeros_like(x[0]), x[2], x[4], x[4]]))


def test_nan_payloads_move():
    x = np.array([[0x7FC01234], [0xFFA00001]], np.uint32).view(np.float32)
    i = AllGather(operands=(), results=(), dimension=0, groups=((1, 0),))
    same_bits(run(i, x)[0], np.stack([x[::-1, 0]] * 2))


def test_partition_id():
    i = PartitionId(operands=(), results=())
    (found,) = exchange(i, [], 5, jnp.float32(-0.0), jnp.uint32(0))
    same_bits(np.asarray(found), np.arange(5, dtype=np.uint32))


# -- errors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "groups", [((0, 1),), ((0, 1), (2,)), ((0, 1), (1, 2)), ((0, 1), (2, 7))]
)
def test_illegal_groups(groups):
    i = AllGather(operands=(), results=(), dimension=0, groups=groups)
    with pytest.raises(InvalidProgramError, match="all_gather"):
        run(i, numbers((4, 2), F32))


@pytest.mark.parametrize(
    "pairs", [((0, 1), (2, 1)), ((0, 1), (0, 2)), ((0, 9),), ((-1, 0),)]
)
def test_illegal_pairs(pairs):
    i = CollectivePermute(operands=(), results=(), pairs=pairs)
    with pytest.raises(InvalidProgramError, match="collective_permute"):
        run(i, numbers((4, 2), F32))


# -- parts of sizes that only the run knows --------------------------------------------


def mapped(function: Any, devices: int) -> Any:
    """`function` on the devices of an axis "x"."""
    mesh = nj.make_mesh((devices,), ("x",))
    specs: dict[str, Any] = dict(in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return nj.jit(jax.shard_map(function, mesh=mesh, **specs), target="trn2.48xlarge")


def ragged(*arrays: Any, groups: Any = None) -> Any:
    return lax.ragged_all_to_all(*arrays, axis_name="x", axis_index_groups=groups)


def test_the_documented_exchange():
    """The example of jax.lax.ragged_all_to_all."""
    i32 = functools.partial(np.array, dtype=np.int32)
    found = mapped(ragged, 2)(
        i32([1, 2, 2, 3, 4, 0]),
        np.zeros(8, np.int32),
        i32([0, 1, 0, 1]),
        i32([1, 2, 1, 1]),
        i32([0, 0, 1, 2]),
        i32([1, 1, 2, 1]),
    )
    np.testing.assert_array_equal(found, [1, 3, 0, 0, 2, 2, 4, 0])


def exchanges(groups: Any, each: int, rows: int, seed: int) -> tuple[np.ndarray, ...]:
    """Offsets and sizes by rank whose parts do not overlap at the receivers."""
    random, n = np.random.default_rng(seed), len(groups[0])
    devices, parts = n * len(groups), n * each
    sizes = random.integers(0, rows // parts + 1, (devices, parts))
    starts = random.integers(0, rows - sizes + 1)
    targets, received = np.zeros_like(sizes), np.zeros_like(sizes)
    for group in groups:
        for place, receiver in enumerate(group):
            at = 0
            for k, sender in enumerate(np.repeat(group, each)):
                part = place * each + k % each
                targets[sender, part] = at
                received[receiver, k] = sizes[sender, part]
                at += sizes[sender, part] + random.integers(0, 2)
    found = (starts, sizes, targets, received)
    return tuple(x.astype(np.int32) for x in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "each", "dtype"),
    [
        (((1, 0), (3, 2)), 2, np.float32),
        pytest.param(
            ((3, 1, 0, 2), (4, 6, 5, 7)), 3, jnp.bfloat16, marks=pytest.mark.slow
        ),
        pytest.param(((0, 1, 2, 3, 4, 5, 6, 7),), 1, np.int8, marks=pytest.mark.slow),
        pytest.param(((1, 0), (3, 2)), 1, np.complex64, marks=pytest.mark.slow),
    ],
)
def test_ragged_all_to_all(groups, each, dtype):
    devices, rows, length = sum(map(len, groups)), 24, 40
    facts = exchanges(groups, each, rows, seed=devices)
    operand = numbers((devices, rows, 3), F32).astype(dtype)
    if dtype == np.complex64:
        operand *= 1 + 2j
    output = np.full((devices, length, 3), 7, dtype)
    starts, sizes, places = facts[:3]
    want = oracle.ragged_all_to_all(operand, output, starts, sizes, places, groups)
    program = mapped(functools.partial(ragged, groups=groups), devices)
    flat = [x.reshape(-1, *x.shape[2:]) for x in (operand, output, *facts)]
    np.testing.assert_array_equal(program(*flat), want.reshape(-1, 3))
    with jax.disable_jit():
        np.testing.assert_array_equal(program(*flat), want.reshape(-1, 3))

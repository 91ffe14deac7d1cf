"""Every instruction has a cost or a schedule, and costs are finite and sensible."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

import neuronjax.ir.algebra_set
import neuronjax.ir.block_set
import neuronjax.ir.collective_set  # noqa: F401
from neuronjax.errors import InternalError
from neuronjax.hardware import CHIPS
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    Activation,
    BitcastCopy,
    Call,
    Compare,
    DmaCopy,
    Im2col,
    LocalGather,
    LocalScatter,
    Memset,
    Rng,
    Select,
    Sort,
    TensorCopy,
    TensorTensor,
    TopK,
    Window,
)
from neuronjax.lowering import elementwise
from neuronjax.timing.cost import own_seconds, ways
from neuronjax.timing.cost_rules import PLAIN, Reading, rule
from neuronjax.timing.cost_scalar import RECIPES
from neuronjax.timing.engines.scalar import IN_EVERY_TABLE
from neuronjax.timing.work import Core
from tests.timing.instructions import SCHEDULED, make

BF16, FP16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
FP32, INT32 = np.dtype(np.float32), np.dtype(np.int32)
INT8, BOOL = np.dtype(np.int8), np.dtype(np.bool_)
CORES = {name: Core(chip, 1) for name, chip in CHIPS.items()}
TRN1, TRN2, TRN3 = CORES["trn1"], CORES["trn2"], CORES["trn3"]


def concrete(kind: type[Instruction]) -> Iterator[type[Instruction]]:
    for sub in kind.__subclasses__():
        if sub.__subclasses__():
            yield from concrete(sub)
        elif sub.__module__.startswith("neuronjax.ir."):
            yield sub


def queues(found: tuple) -> set[str]:
    return {way[0].queue for way in found}


def of(found: tuple, queue: str):
    return next(way[0] for way in found if way[0].queue == queue)


@pytest.mark.parametrize("kind", list(concrete(Instruction)), ids=lambda k: k.__name__)
def test_every_instruction_has_a_rule_or_is_scheduled(kind):
    default = rule.dispatch(Instruction)
    assert (rule.dispatch(kind) is default) == issubclass(kind, SCHEDULED)


def test_control_flow_has_no_cost():
    call = Call(operands=(), results=(), engine="sync", callee="f")
    with pytest.raises(InternalError, match="call"):
        ways(call, TRN2)


def test_every_elementary_function_has_a_recipe():
    functions = {*elementwise.FUNCTIONS, *elementwise.CHLO_FUNCTIONS}
    assert functions <= set(RECIPES)


@pytest.mark.parametrize("core", CORES.values(), ids=CORES.keys())
@pytest.mark.parametrize("op", [*elementwise.BINARY, *elementwise.CHLO_BINARY])
def test_binary_operations_take_time(op, core):
    for dtype in (FP32, BF16, INT32, INT8):
        pair = ((256, 64), dtype)
        i = make(TensorTensor, [pair, pair], pair, op=op)
        assert all(0 < own_seconds(way) < 1e-3 for way in ways(i, core))


@pytest.mark.parametrize("op", elementwise.SIMPLE_UNARY)
def test_unary_operations_take_time(op):
    pair = ((256, 64), FP32)
    i = make(TensorTensor, [pair], pair, op=op)
    assert all(math.isfinite(own_seconds(way)) for way in ways(i, TRN3))


@pytest.mark.parametrize("function", sorted(RECIPES))
def test_activations_name_their_tables(function):
    pair = ((128, 512), FP32)
    i = make(Activation, [pair], pair, engine="scalar", function=function)
    way = next(w for w in ways(i, TRN2) if w[0].queue == "scalar")
    tables = [w.table for w in way if w.queue == "scalar"]
    assert tables == list(RECIPES[function].tables)
    assert all(tables) or function in IN_EVERY_TABLE


def test_exponential_of_the_newest_vector_engine_is_four_times_as_fast():
    pair = ((128, 32768), BF16)
    i = make(Activation, [pair], pair, engine="scalar", function="exponential")
    assert queues(ways(i, TRN2)) == {"scalar"}
    found = ways(i, TRN3)
    ratio = of(found, "scalar").seconds / of(found, "vector").seconds
    assert ratio == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize(
    ("core", "source", "target", "psum", "mode"),
    [
        (TRN1, BF16, BF16, False, ""),
        (TRN2, BF16, FP16, False, "4x"),
        (TRN2, BF16, BF16, True, "2x"),
        (TRN2, BF16, np.dtype(ml_dtypes.float8_e4m3), False, "2x"),
        (TRN3, BF16, np.dtype(ml_dtypes.float8_e4m3fn), False, "4x"),
        (TRN2, FP32, BF16, False, ""),
        (TRN2, FP32, FP32, False, ""),
    ],
)
def test_performance_modes_of_a_copy(core, source, target, psum, mode):
    i = make(TensorCopy, [((128, 2048), source)], ((128, 2048), target))
    reading = Reading(in_psum=frozenset({0} if psum else ()))
    found = ways(i, core, reading)
    assert of(found, "vector").performance_mode == mode
    assert ("gpsimd" in queues(found)) is not psum  # it does not reach PSUM


def test_two_tensors_take_twice_as_long_where_one_is_read_in_a_cycle():
    """On NeuronCore-v2, unless they are narrow or one is in PSUM."""

    def cycles(dtype, core=TRN1, clock_hz=1.12e9, reading=PLAIN):
        pair = ((128, 1 << 15), dtype)
        i = make(TensorTensor, [pair, pair], pair, op="add")
        return of(ways(i, core, reading), "vector").seconds * clock_hz / (1 << 15)

    assert cycles(FP32) == pytest.approx(2, rel=0.05)
    assert cycles(FP32, TRN2, 0.96e9) == pytest.approx(1, rel=0.05)
    assert cycles(BF16, TRN2, 0.96e9) == pytest.approx(1, rel=0.05)
    assert cycles(BF16) == pytest.approx(1, rel=0.05)
    assert cycles(FP32, reading=Reading(in_psum=frozenset({1}))) == pytest.approx(
        1, rel=0.05
    )
    assert cycles(FP32, reading=Reading(frozenset({1}))) == pytest.approx(1, rel=0.05)


def test_32_bit_integers_are_exact_on_gpsimd_only():
    pair = ((128, 512), INT32)
    add = make(TensorTensor, [pair, pair], pair, op="add", engine="gpsimd")
    assert queues(ways(add, TRN2)) == {"gpsimd"}
    both = make(TensorTensor, [pair, pair], pair, op="xor", engine="gpsimd")
    assert queues(ways(both, TRN2)) == {"vector", "gpsimd"}
    less = make(
        Compare, [pair, pair], ((128, 512), BOOL), engine="gpsimd", direction="LT"
    )
    assert queues(ways(less, TRN2)) == {"gpsimd"}


def test_divisions_are_reciprocals():
    pair = ((1024, 4096), FP32)
    i = make(TensorTensor, [pair, pair], pair, op="divide")
    (fast, slow) = ways(i, TRN2)
    assert [w.queue for w in fast] == ["scalar", "vector"]
    assert [w.queue for w in slow] == ["vector", "vector"]
    by_row = ways(i, TRN2, Reading(frozenset({1})))[0]
    assert by_row[0].seconds < fast[0].seconds / 100  # one reciprocal a row
    assert by_row[1].seconds < fast[1].seconds


@pytest.mark.parametrize("kind", ["broadcast", "reshape", "slice"])
def test_access_patterns_are_free(kind):
    i = make(DmaCopy, [((64, 64), FP32)], ((4096,), FP32), kind=kind)
    assert ways(i, TRN2) == ((),)
    assert own_seconds(()) == 0
    bits = make(BitcastCopy, [((64, 64), FP32)], ((64, 64), INT32))
    assert ways(bits, TRN2) == ((),)


def test_constants():
    def memset(value):
        return make(Memset, [], (value.shape, value.dtype), value=value)

    assert ways(memset(np.float32(3)), TRN2) == ((),)  # an immediate
    assert ways(memset(np.arange(9.0, dtype=np.float32)), TRN2) == ((),)  # a transfer
    zeros = of(ways(memset(np.zeros((4096, 512), BF16)), TRN2), "vector")
    ones = of(ways(memset(np.ones((4096, 512), BF16)), TRN2), "vector")
    assert zeros.seconds < ones.seconds


@pytest.mark.parametrize(
    ("shape", "permutation", "free"),
    [
        ((256, 512), (1, 0), False),
        ((4, 256, 64), (0, 2, 1), False),
        ((4, 256, 8, 64), (0, 2, 1, 3), True),  # rows move as wholes
        ((128, 16, 64), (0, 2, 1), True),  # within the lanes
        ((1, 256, 512), (1, 0, 2), True),
    ],
)
def test_transposes_turn_only_what_leaves_its_lane(shape, permutation, free):
    turned = tuple(shape[d] for d in permutation)
    i = make(
        DmaCopy,
        [(shape, BF16)],
        (turned, BF16),
        kind="transpose",
        parameters=(permutation,),
    )
    found = ways(i, TRN2)
    assert (found == ((),)) is free
    if not free:
        assert queues(found) == {"tensor", "dma"}
        assert of(found, "tensor").transpose_flops > 0
        assert queues(ways(i, TRN1)) == {"tensor"}  # no DMA transpose


def test_updates_move_what_they_update():
    shapes = [((4096, 1024), BF16), ((1, 1024), BF16), ((), INT32), ((), INT32)]
    i = make(DmaCopy, shapes, shapes[0], kind="dynamic_update_slice")
    whole = make(DmaCopy, shapes[:1], shapes[0], kind="reverse")
    assert own_seconds(ways(i, TRN2)[0]) < own_seconds(ways(whole, TRN2)[0]) / 5
    least = of(ways(i, TRN2), "vector").seconds
    assert least == pytest.approx(600 / 0.96e9)


def test_gathers_and_scatters_have_rows():
    def gather(width):
        return make(
            LocalGather,
            [((50_000, width), BF16), ((512, 1), INT32)],
            ((512, width), BF16),
            dimension_numbers=(),
            slice_sizes=(1, width),
        )

    wide, narrow = (of(ways(gather(w), TRN2), "dma").seconds for w in (4096, 1))
    assert wide > narrow
    assert wide / 4096 < narrow / 20  # a row costs its start, then its bytes
    scatter = make(
        LocalScatter,
        [((50_000, 64), FP32), ((512, 1), INT32), ((512, 64), FP32)],
        ((50_000, 64), FP32),
        op="add",
        dimension_numbers=(("update_window_dims", (1,)),),
    )
    assign = dataclasses.replace(scatter, op="assign")
    assert own_seconds(ways(assign, TRN2)[0]) < own_seconds(ways(scatter, TRN2)[0])


def test_sorting_and_the_largest():
    pair = ((256, 1024), FP32)
    sort = make(Sort, [pair], pair, dimension=1, descending=(False,), total=(True,))
    top = make(TopK, [pair], ((256, 8), FP32), k=8)
    assert own_seconds(ways(top, TRN2)[0]) < own_seconds(ways(sort, TRN2)[0])


def test_random_bits():
    def rng(algorithm):
        return make(Rng, [((2,), INT32)], ((1 << 20,), INT32), algorithm=algorithm)

    own, philox, threefry = (
        own_seconds(ways(rng(name), TRN3)[0])
        for name in ("DEFAULT", "PHILOX", "THREE_FRY")
    )
    assert own < philox < threefry
    assert own < own_seconds(ways(rng("DEFAULT"), TRN2)[0])  # XORWOW


@pytest.mark.parametrize(
    ("channels", "free"), [(3, False), (16, False), (32, True), (256, True)]
)
def test_patches_are_read_in_place_where_channels_fill_the_rows(channels, free):
    window = Window((3, 3), (1, 1), (1, 1), (1, 1), ((1, 1), (1, 1)))
    i = make(
        Im2col,
        [((1, 8, 32, 32, channels), BF16)],
        ((1, 8 * 32 * 32, 9 * channels), BF16),
        engine="dma",
        window=window,
    )
    assert (ways(i, TRN2) == ((),)) is free
    assert ways(dataclasses.replace(i, side_by_side=16), TRN2) == ((),)


def test_selecting_counts_tensors():
    pair, mask = ((1024, 1024), FP32), ((1024, 1024), BOOL)
    i = make(Select, [mask, pair, pair], pair)
    whole = of(ways(i, TRN1), "vector").seconds
    masked = of(ways(i, TRN1, Reading(frozenset({2}))), "vector").seconds
    assert masked == pytest.approx(whole * 2 / 3, rel=0.05)


def test_a_square_is_an_activation():
    pair = ((1024, 1024), FP32)
    multiply = make(TensorTensor, [pair, pair], pair, op="multiply")
    square = dataclasses.replace(multiply, operands=multiply.operands[:1] * 2)
    assert "scalar" not in queues(ways(multiply, TRN2))
    assert "scalar" in queues(ways(square, TRN2))


def test_ways_come_quickest_first():
    pair = ((1024, 1024), FP32)
    found = ways(make(TensorTensor, [pair], pair, op="negate"), TRN2)
    assert len(found) == 3
    assert [*map(own_seconds, found)] == sorted(map(own_seconds, found))

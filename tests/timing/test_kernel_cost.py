"""The cost of single kernel instructions, by hand from the published formulas.

Cycles of VectorE and ScalarE are what the formula says and the start of one access (60
cycles), 64 at least; see `timing.engines.lanes.engine_work`.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.errors import UnimplementedError
from neuronjax.hardware import CHIPS, resolve_target
from neuronjax.ir.kernel import Access, DynamicOffset, KernelInstruction, Storage
from neuronjax.nki import collectives as ncc
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_collective import OPS
from neuronjax.timing.cost_rules import KERNEL_RULES as RULES
from neuronjax.timing.kernel_cost import Prices
from neuronjax.timing.kernel_operands import box, contains, overlap, run_bytes
from neuronjax.timing.work import Core

TRN1, TRN2, TRN3 = (Core(CHIPS[name], 1) for name in ("trn1", "trn2", "trn3"))
START = 60
NUMBERS = iter(range(10_000))


def price(i, core, target=None):
    return Prices(core, target).price(i)


def storage(memory, shape, dtype="float32", address=None):
    return Storage(next(NUMBERS), memory, tuple(shape), dtype, address=address)


def whole(memory, shape, dtype="float32"):
    """All of a new storage."""
    return part(storage(memory, shape, dtype))


def part(s, offset=0, pattern=None):
    strides = np.cumprod([1, *s.shape[:0:-1]])[::-1]
    plain = tuple((int(x), n) for x, n in zip(strides, s.shape, strict=True))
    return Access(s, s.dtype, offset, pattern or plain)


def instruction(name, engine, outputs, inputs=(), **attributes):
    parameters = attributes.pop("parameters", ())
    return KernelInstruction(
        name=name,
        engine=engine,
        outputs=tuple(outputs),
        inputs=tuple(inputs),
        parameters=parameters,
        attributes=attributes,
    )


def cycles(i, core=TRN2):
    found = price(i, core)
    return found.work.seconds * getattr(core.spec, i.engine).clock_hz


def sbuf(n, dtype="float32", rows=128):
    return whole("sbuf", (rows, n), dtype)


def psum(n, dtype="float32"):
    return whole("psum", (128, n), dtype)


def strided(n, dtype, stride):
    s = storage("sbuf", (128, n * stride), dtype)
    return part(s, 0, ((n * stride, 128), (stride, n)))


VECTOR = [
    # tensor_copy and tensor_scalar: 4x, 2x, 1x.
    ("tensor_copy", [sbuf(512, "bfloat16")], [sbuf(512, "bfloat16")], 128),
    ("tensor_copy", [sbuf(512, "float16")], [sbuf(512, "bfloat16")], 128),
    ("tensor_copy", [sbuf(512)], [sbuf(512)], 512),
    ("tensor_copy", [sbuf(512, "bfloat16")], [psum(512, "bfloat16")], 256),
    ("tensor_copy", [sbuf(512)], [psum(512)], 512),
    ("tensor_copy", [sbuf(512, "bfloat16")], [strided(512, "bfloat16", 2)], 256),
    ("tensor_copy", [sbuf(512, "bfloat16")], [sbuf(512)], 512),
    # An innermost stride of 16 bytes or more.
    ("tensor_copy", [sbuf(512)], [strided(512, "float32", 4)], 1024),
    ("tensor_copy", [sbuf(512)], [strided(512, "float32", 2)], 512),
    # Two streams.
    ("tensor_tensor", [sbuf(512)], [sbuf(512), sbuf(512)], 512),
    ("tensor_tensor", [sbuf(512)], [sbuf(512), psum(512)], 512),
    ("tensor_tensor", [sbuf(512, "bfloat16")], [sbuf(512, "bfloat16")] * 2, 512),
    ("tensor_tensor", [sbuf(512)], [sbuf(512, "bfloat16")] * 2, 512),
    ("tensor_tensor_scan", [sbuf(512)], [sbuf(512), sbuf(512)], 1024),
    ("scalar_tensor_tensor", [sbuf(512)], [sbuf(512), sbuf(1), psum(512)], 512),
    ("scalar_tensor_tensor", [sbuf(512)], [sbuf(512), sbuf(1), sbuf(512)], 512),
    ("tensor_copy_predicated", [sbuf(256)], [sbuf(256), sbuf(256, "uint8")], 256),
    ("tensor_copy_predicated", [sbuf(256)], [psum(256), sbuf(256, "uint8")], 256),
    # One stream.
    ("reciprocal", [sbuf(100)], [sbuf(100)], 800),
    ("bn_aggr", [sbuf(2)], [sbuf(300)], 1300),
    ("max8", [sbuf(8)], [sbuf(1000)], 1144),
    ("nc_find_index8", [sbuf(8, "uint32")], [sbuf(1000), sbuf(8)], 1000),
    ("tensor_scalar_reduce", [sbuf(512), sbuf(1)], [sbuf(512)], 576),
    ("range_select", [sbuf(512)], [sbuf(512), sbuf(1), sbuf(1)], 512),
    ("nc_stream_shuffle", [sbuf(512)], [sbuf(512)], 512),
]


@pytest.mark.parametrize(("name", "outputs", "inputs", "expected"), VECTOR)
def test_vector_engine(name, outputs, inputs, expected):
    i = instruction(name, "vector", outputs, inputs)
    assert cycles(i) == pytest.approx(expected + START)


def test_short_instructions_take_the_least_interval():
    i = instruction("tensor_copy", "vector", [sbuf(1)], [sbuf(1)])
    assert cycles(i) == a.MINIMUM_INTERVAL.value


def test_a_reciprocal_of_the_oldest_core_takes_what_its_counter_says():
    i = instruction("reciprocal", "vector", [sbuf(512)], [sbuf(512)])
    newer, oldest = cycles(i), cycles(i, TRN1)
    assert newer - oldest == pytest.approx((8 - 2.6) * 512, abs=64)


def test_the_modes_are_of_their_generation():
    half = [sbuf(512, "bfloat16")]
    copy = instruction("tensor_copy", "vector", half, half)
    add = instruction("tensor_tensor", "vector", half, half * 2, op="add")
    largest = instruction("tensor_tensor", "vector", half, half * 2, op="maximum")
    assert cycles(copy, TRN1) == 512 + START
    assert cycles(add, TRN1) == 512 + START  # [V26]
    assert cycles(largest, TRN1) == 1024 + START
    assert cycles(largest, TRN2) == 512 + START
    eight = [sbuf(512, "float8_e4m3")]
    narrow = instruction("tensor_copy", "vector", eight, eight)
    assert cycles(narrow, TRN2) == 512 + START
    assert cycles(narrow, TRN3) == 128 + START


def test_reductions():
    half = instruction(
        "tensor_reduce", "vector", [sbuf(1, "bfloat16")], [sbuf(512, "bfloat16")],
        op="add",
    )  # fmt: skip
    full = instruction("tensor_reduce", "vector", [sbuf(1)], [sbuf(512)], op="add")
    assert cycles(half) == 256 + START
    assert cycles(full) == 512 + START


def test_memset_of_zeros_in_16_bits_is_twice_as_fast():
    out = [sbuf(512, "bfloat16")]
    zeros = instruction("memset", "vector", out, parameters=(0,))
    ones = instruction("memset", "vector", out, parameters=(1,))
    known = Prices(TRN2)
    assert cycles(zeros) == 256 + START
    assert cycles(ones) == 512 + START
    assert known.price(zeros).work.seconds < known.price(ones).work.seconds


def test_scalar_engine():
    exp = instruction("activation", "scalar", [sbuf(512)], [sbuf(512)], op="exp")
    summed = instruction(
        "activation", "scalar", [sbuf(512), sbuf(1)], [sbuf(512)], op="exp"
    )
    assert cycles(exp) == 512 + START
    assert cycles(summed) == 512 + 64 + START
    assert price(exp, TRN2).work.table == "exp"
    copy = instruction("activation", "scalar", [sbuf(512)], [sbuf(512)], op="copy")
    assert price(copy, TRN2).work.table == ""


def test_gpsimd_engine():
    out, index = sbuf(512), sbuf(16, "uint16")
    assert cycles(instruction("iota", "gpsimd", [out])) == 512 + 150
    topk = instruction(
        "topk", "gpsimd", [sbuf(8), sbuf(8, "uint32")], [sbuf(64, "bfloat16")], n=1000
    )
    assert cycles(topk) == 4 * 1000 + 8 + 150
    gather = instruction(
        "local_gather", "gpsimd", [sbuf(256)], [sbuf(512), index], valid=256, elements=1
    )
    assert cycles(gather) == 256 * (7 + 1) + 150


# -- TensorE ---------------------------------------------------------------------------


def matmul(m, n, dtype="bfloat16", rows=128, **attributes):
    stationary, moving = sbuf(m, dtype, rows), sbuf(n, dtype, rows)
    out = whole("psum", (m, n))
    name = attributes.pop("name", "nc_matmul")
    return instruction(name, "tensor", [out], [stationary, moving], **attributes)


@pytest.mark.parametrize(
    ("i", "core", "expected"),
    [
        (matmul(128, 512), TRN2, 512),
        (matmul(128, 1), TRN2, 64),
        (matmul(16, 8), TRN2, 16),
        (matmul(128, 512, "float32"), TRN2, 2048),
        (matmul(128, 512, "float32", is_moving_onezero=True), TRN2, 1024),
        (matmul(128, 128, "float32", is_transpose=True), TRN2, 256),
        (matmul(256, 1024, "float8_e4m3", rows_per_cell=2), TRN2, 512),
        (
            matmul(128, 512, "float8_e4m3fn_x4", name="nc_matmul_mx"),
            TRN3,
            512,
        ),
    ],
)
def test_matmuls(i, core, expected):
    assert cycles(i, core) == pytest.approx(expected)


def test_flops_of_matmuls():
    plain = price(matmul(128, 512), TRN2).work
    assert plain.flops == plain.hardware_flops == 2 * 128 * 128 * 512
    double = price(matmul(256, 1024, "float8_e4m3", rows_per_cell=2), TRN2).work
    assert double.flops == 2 * 256 * 128 * 512
    assert double.hardware_flops == double.flops / 2
    wide = price(matmul(128, 512, "float32"), TRN2).work
    assert wide.hardware_flops == 4 * wide.flops


def test_transposes():
    data = sbuf(128, "bfloat16", rows=64)
    on_tensor = instruction(
        "nc_transpose", "tensor", [whole("psum", (128, 64), "bfloat16")], [data]
    )
    assert cycles(on_tensor) == 64  # max(P, min(64, F))
    work = price(on_tensor, TRN2).work
    assert work.flops == 0 < work.transpose_flops
    tile = sbuf(32, rows=32)
    on_vector = instruction("nc_transpose", "vector", [sbuf(32, rows=32)], [tile])
    assert cycles(on_vector) == 32 + START


# -- DMA -------------------------------------------------------------------------------


def load(shape, dtype="bfloat16", columns=None, name="dma_copy", **attributes):
    """From a matrix in HBM of so many columns to SBUF."""
    source = storage("shared_hbm", (shape[0], columns or shape[1]), dtype)
    inside = part(source, 0, ((source.shape[1], shape[0]), (1, shape[1])))
    out = whole("sbuf", shape, dtype)
    return instruction(name, "dma", [out], [inside], **attributes)


def test_an_engine_moves_eight_partitions():
    """The measured transfers of [DM]: 97 ns and 1,416 ns."""
    many, few = price(load((128, 128)), TRN2), price(load((4, 4096)), TRN2)
    assert many.dma_engines == (0, 16)
    assert few.dma_engines == (0, 1)
    assert _alone(many) == pytest.approx(97e-9, rel=0.03)
    assert _alone(few) == pytest.approx(1416e-9, rel=0.03)


def test_transfers_in_a_stream_are_faster():
    """SiLU of [KDA]: 235 MB in 0.58 ms by 16 engines."""
    few = price(load((4, 4096)), TRN2)
    assert 32768 / few.work.seconds == pytest.approx(235e6 / 0.58e-3 / 16, rel=0.02)
    before = price(load((4, 4096)), TRN1)
    assert _alone(before) == before.work.seconds


def _alone(p):
    """Until the last byte, if no other transfer follows."""
    return p.work.seconds + p.work.latency_seconds - a.DMA_SEMAPHORE.value


def test_pieces_and_partitions_of_a_transfer():
    rows = price(load((128, 128), columns=4096), TRN2)
    together = price(load((128, 128)), TRN2)
    assert rows.work.seconds - together.work.seconds == pytest.approx(
        7 * a.DMA_ELEMENT.value
    )
    out = storage("sbuf", (128, 64), "bfloat16")
    upper = part(out, 64 * 64, ((64, 64), (1, 64)))
    source = whole("shared_hbm", (64, 64), "bfloat16")
    placed = price(instruction("dma_copy", "dma", [upper], [source]), TRN2)
    assert placed.dma_engines == (8, 8)


def test_who_makes_descriptors():
    by_hardware, before = price(load((128, 128)), TRN2), price(load((128, 128)), TRN1)
    assert by_hardware.ring == "dge.sync"
    assert by_hardware.issue_seconds == pytest.approx(600e-9)
    assert before.issue_seconds == 0
    chosen = price(load((128, 128), dge_engine="scalar"), TRN2)
    assert chosen.ring == "dge.scalar"
    none = price(load((128, 128), dge_mode="none"), TRN2)
    assert (none.ring, none.issue_seconds) == ("dma.load", 0)
    (read,) = none.moves
    assert read.bytes == 128 * 128 * 2
    cast = instruction(
        "dma_copy", "dma", [sbuf(64)], [whole("shared_hbm", (128, 64), "bfloat16")]
    )
    assert price(cast, TRN2).ring == "dma.load"  # hardware casts nothing


# -- what the rules rest on ------------------------------------------------------------


def test_run_bytes():
    s = storage("shared_hbm", (256, 512))
    assert run_bytes(part(s)) == 256 * 512 * 4
    assert run_bytes(part(s, 0, ((512, 128), (1, 512)))) == 128 * 512 * 4
    assert run_bytes(part(s, 0, ((512, 128), (1, 64)))) == 256
    assert run_bytes(part(s, 0, ((0, 128), (1, 512)))) == 2048
    assert run_bytes(part(s, 0, ((512, 128), (2, 64)))) == 4


def test_boxes_hold_every_element():
    """Against the elements themselves, of all kinds of patterns."""
    generator = np.random.default_rng(0)
    s = storage("sbuf", (8, 4, 6))
    elements = np.arange(8 * 4 * 6).reshape(8, 4, 6)
    accesses, touched = [], []
    while len(accesses) < 60:
        inner = [
            (int(x), int(n))
            for x, n in zip(
                generator.choice([1, 2, 3, 6, 12], 2), generator.integers(1, 5, 2),
                strict=True,
            )
        ]  # fmt: skip
        pattern = ((24, int(generator.integers(1, 5))), *inner)
        offset = int(generator.integers(0, 60))
        last = offset + sum(x * (n - 1) for x, n in pattern)
        if last >= elements.size:
            continue
        accesses.append(part(s, offset, pattern))
        grid = np.indices([n for _, n in pattern])
        numbers = offset + sum(g * x for g, (x, _) in zip(grid, pattern, strict=True))
        touched.append(set(np.ravel(numbers).tolist()))
    for one, mine in zip(accesses, touched, strict=True):
        b = box(one)
        inside = elements if b is None else elements[tuple(slice(*r) for r in b)]
        assert mine <= set(inside.ravel().tolist())
        for other, its in zip(accesses, touched, strict=True):
            if mine & its:
                assert overlap(b, box(other))
            if contains(box(other), b):
                theirs = box(other)
                space = (
                    elements
                    if theirs is None
                    else elements[tuple(slice(*r) for r in theirs)]
                )
                assert mine <= set(space.ravel().tolist())


def test_halves_of_a_tile_do_not_overlap():
    s = storage("sbuf", (128, 2, 64))
    halves = [part(s, n * 64, ((128, 128), (1, 64))) for n in range(2)]
    assert not overlap(*map(box, halves))
    assert box(part(s)) is None


def test_an_unknown_instruction_is_an_error():
    i = instruction("nc_novelty", "vector", [sbuf(1)])
    with pytest.raises(UnimplementedError, match="nc_novelty"):
        price(i, TRN2)


def test_documented_instructions_have_a_rule():
    """Those of nki.isa that are no collectives, and no helpers of Python."""
    helpers = {"register_alloc", "get_nc_version", "get_nc_sub_version"}
    named = {
        name
        for name in vars(nisa)
        if callable(getattr(nisa, name)) and getattr(nisa, name).__module__.startswith(
            "neuronjax.nki.isa"
        ) and not isinstance(getattr(nisa, name), type)
    }  # fmt: skip
    assert named - helpers - RULES.keys() == set()


# -- collectives -----------------------------------------------------------------------

SIZE = 128 * 4096 * 2
FOUR = ((0, 1, 2, 3),)


def hbm(n, dtype="bfloat16"):
    return whole("private_hbm", (128, n), dtype)


def on_a_chip(hops, moved):
    """Seconds by hand: start, a hop per step, bytes of a channel over its share of a
    quarter of the engines."""
    return 0.6e-6 + hops * 1.5e-6 + moved / (0.21 * 128 / 4 * 23e9)


PAIRS = {"source_target_pairs": ((0, 1), (2, 3))}
RING = {"rings": (((0, 1, 2, 3),),)}
TWO_RINGS = {"rings": (((0, 1, 2, 3),), ((3, 2, 1, 0),))}
COLLECTIVES = [
    ("collective_permute", [hbm(4096)], [hbm(4096)], PAIRS, (1, SIZE)),
    ("collective_permute_implicit", [hbm(4096)], [hbm(4096)], RING, (1, SIZE)),
    (
        "collective_permute_implicit",
        [hbm(4096), hbm(4096)],
        [hbm(4096), hbm(4096)],
        TWO_RINGS,
        (1, SIZE),  # of each ring, side by side
    ),
    (
        "collective_permute_implicit_reduce",
        [hbm(4096)],
        [hbm(4096), hbm(4096)],
        RING,
        (1, SIZE),
    ),
]


@pytest.mark.parametrize(("name", "outputs", "inputs", "how", "expected"), COLLECTIVES)
def test_messages_between_ranks_of_a_chip(name, outputs, inputs, how, expected):
    i = instruction(name, "cc", outputs, inputs, **how)
    found = price(i, TRN2)
    assert found.work.queue == "cc"
    assert found.work.seconds == pytest.approx(on_a_chip(*expected), rel=1e-9)


@pytest.mark.parametrize("factor", [2, 8])
def test_more_bytes_and_more_ranks_take_longer(factor):
    def seconds(n, groups, name="all_gather"):
        many = len(groups[0])
        metadata = [whole("private_hbm", (3, many), "uint32")] * name.endswith("_v")
        i = instruction(name, "cc", [hbm(n * many)], [hbm(n), *metadata], groups=groups)
        return price(i, TRN2).work.seconds

    wide = tuple(range(4 * factor))
    assert seconds(factor * 512, FOUR) > seconds(512, FOUR)
    assert seconds(512, (wide,)) > seconds(512, FOUR)
    assert seconds(512, FOUR, "all_gather_v") == seconds(512, FOUR)


def test_a_collective_is_that_of_the_machine():
    """Sixteen chips of a server, and the ranks of one that no network joins."""
    wide = tuple(range(64))
    i = instruction("all_to_all", "cc", [hbm(64)], [hbm(64)], groups=(wide,))
    server = price(i, TRN2, resolve_target("trn2.48xlarge"))
    assert server.work.seconds > on_a_chip(1, 128 * 64 * 2)
    j = instruction("all_novel", "cc", [hbm(64)], [hbm(64)], groups=(wide,))
    with pytest.raises(UnimplementedError, match=r"nki.collectives.all_novel"):
        price(j, TRN2)


def test_every_collective_has_a_price():
    helpers = {"ReplicaGroup"}
    named = {n for n in vars(ncc) if getattr(ncc, n) in _public(ncc)} - helpers
    registers = {"rank_id", "collective_permute_implicit_current_processing_rank_id"}
    assert named <= OPS.keys() | registers
    assert registers <= RULES.keys()


def _public(module):
    return [
        value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and inspect.isfunction(value)
        and value.__module__ == module.__name__
    ]


@nki.jit(target="trn2")
def small(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.activation(tile, nl.exp, tile)
    nl.store(out, tile)
    return out


def test_traced_instructions_are_priced():
    program = small.trace(np.zeros((128, 256), np.float32))
    known = Prices(TRN2)
    found = [known.price(i) for i in program.body.walk()]
    assert [p.work.queue for p in found] == ["dma", "scalar", "dma"]
    assert all(p.work.seconds > 0 for p in found)


def streamed(core, apart, columns, rows=128):
    """Bytes per second of a load of rows of BF16, `apart` elements from one another."""
    matrix = storage("shared_hbm", (rows, apart), "bfloat16")
    source = part(matrix, pattern=((apart, rows), (1, columns)))
    tile = whole("sbuf", (rows, columns), "bfloat16")
    found = price(instruction("dma_copy", "dma", [tile], [source]), core)
    return rows * columns * 2 / found.work.seconds


def test_rows_whole_turns_of_hbm_channels_apart_use_a_part_of_them():
    """Tutorial of matrix products on trn1: rows of 1 KiB, 16 KiB apart, at 100 GB/s."""
    channel = 820e9 / 16
    assert streamed(TRN1, 8192, 512) == pytest.approx(2 * channel)
    assert streamed(TRN1, 4096, 128) == pytest.approx(channel)
    padded = streamed(TRN1, 8192 + 512, 512)
    assert padded > 2.3 * 2 * channel, "as the author of kiln found"
    full = streamed(TRN1, 8192, 2048)
    assert full == streamed(TRN1, 8192 + 512, 2048), "4 KiB: eight channels are enough"
    assert streamed(TRN1, 512, 512) >= padded, "rows one behind the other use all"
    assert streamed(TRN2, 8192, 512) == streamed(TRN2, 8192 + 512, 512)


def test_descriptors_of_software_take_gpsimd():
    """A microsecond, and 35 to 51 ns for each piece (the author of kiln)."""
    table, tile = storage("shared_hbm", (1024, 64)), whole("sbuf", (128, 64))
    index = whole("sbuf", (128, 1), "int32")
    rows = DynamicOffset("vector", index, 64, 1024)
    source = Access(table, "float32", 0, ((64, 128), (1, 64)), rows)
    found = price(instruction("dma_copy", "dma", [tile], [source]), TRN2)
    assert found.ring == "gpsimd"
    assert found.issue_seconds == pytest.approx(1e-6 + 128 * 43e-9)
    plain = price(instruction("dma_copy", "dma", [tile], [part(table)]), TRN1)
    assert plain.issue_seconds == 0


def test_a_row_for_all_partitions_is_in_no_stride_of_hbm():
    """On trn1 rows of 1 KiB that lie 16 KiB apart are in two of 16 channels."""
    table, tile = storage("shared_hbm", (128, 8192)), whole("sbuf", (128, 256))

    def seconds(stride):
        source = part(table, pattern=((stride, 128), (1, 256)))
        i = instruction("dma_copy", "dma", [tile], [source])
        return price(i, TRN1).work.seconds

    assert seconds(0) == seconds(4096 + 128) < seconds(4096)

"""The schedule of kernels: dependencies, conservation, monotony, determinism.

Kernels here are streams of instructions written by hand; traced ones are in tests/nki.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import CHIPS, resolve_target
from neuronjax.ir.kernel import (
    Access,
    KernelBlock,
    KernelInstruction,
    KernelLoop,
    KernelProgram,
    KernelWhile,
    Register,
    Storage,
)
from neuronjax.timing import assumptions as a, kernel_unroll
from neuronjax.timing.assumptions import LOOP_TURN
from neuronjax.timing.cost_rules import KernelPrice
from neuronjax.timing.kernel_schedule import KernelSchedule, schedule_kernel, what_if
from neuronjax.timing.kernel_timeline import critical_seconds, kernel_timeline
from neuronjax.timing.work import QUEUES

TRN1, TRN2 = resolve_target("trn1"), resolve_target("trn2")
NUMBERS = itertools.count()
NS = 1e-9


def storage(memory="sbuf", shape=(128, 512), dtype="float32", address=None):
    return Storage(next(NUMBERS), memory, tuple(shape), dtype, address=address)


def access(s, first=0, count=None):
    """Columns of a storage, all by default."""
    free = s.free_size
    pattern = ((free, s.shape[0]), (1, count or free))
    return Access(s, s.dtype, first, pattern)


class Writer:
    """Appends instructions, numbered."""

    def __init__(self):
        self.items = []
        self.count = 0

    def add(self, name, engine, out, *inputs, program=0, line=1, **attributes):
        as_access = lambda x: x if isinstance(x, Access) else access(x)  # noqa: E731
        i = KernelInstruction(
            name=name,
            engine=engine,
            outputs=(as_access(out),) if out is not None else (),
            inputs=tuple(map(as_access, inputs)),
            attributes=attributes,
            ordinal=self.count,
            program=program,
            location=f"kernels.py:{line}",
        )
        self.count += 1
        self.items.append(i)
        return i

    def copy(self, out, source, engine="vector", **options):
        return self.add("tensor_copy", engine, out, source, **options)

    def dma(self, out, source, **options):
        return self.add("dma_copy", "dma", out, source, **options)

    def program(self, **fields):
        accesses = [x for i in self.items_flat() for x in i.accesses]
        storages = tuple(dict.fromkeys(x.storage for x in accesses))
        return KernelProgram(
            **{
                "name": "kernel",
                "arguments": (),
                "results": (),
                "body": KernelBlock(tuple(self.items)),
                "storages": storages,
                "registers": 0,
                "target": "trn2",
            }
            | fields
        )

    def items_flat(self):
        return list(KernelBlock(tuple(self.items)).walk())


def run(writer, target=TRN2, **options) -> KernelSchedule:
    fields = options.pop("fields", {})
    return schedule_kernel(writer.program(**fields), target, **options)


def visible(s, n):
    return s.ends[n] + s.priced[n].work.latency_seconds


# -- dependencies ----------------------------------------------------------------------


def test_a_reader_waits_for_the_writer_and_its_latency():
    w, tiles = Writer(), [storage() for _ in range(3)]
    w.copy(tiles[1], tiles[0])
    w.copy(tiles[2], tiles[1], engine="scalar")
    s = run(w)
    assert s.starts[1] == pytest.approx(visible(s, 0))


def test_a_writer_waits_for_readers_and_writers():
    w, x, y, z = Writer(), storage(), storage(), storage()
    w.copy(y, x, engine="scalar")  # reads x
    w.copy(x, z)  # WAR
    w.copy(x, y, engine="gpsimd")  # WAW (and RAW)
    s = run(w)
    assert s.starts[1] == pytest.approx(visible(s, 0))
    assert s.starts[2] == pytest.approx(visible(s, 1))


def test_what_does_not_overlap_does_not_wait():
    w, x, y = Writer(), storage(), storage()
    w.copy(access(y, 0, 256), access(x, 0, 256))
    w.copy(access(y, 256, 256), access(x, 256, 256), engine="scalar")
    s = run(w)
    assert s.starts == [0.0, 0.0]


def test_an_instruction_that_writes_what_it_reads_starts():
    w, x = Writer(), storage()
    w.add("tensor_tensor", "vector", x, x, x, op="add")
    w.copy(x, x)
    s = run(w)
    assert s.starts[1] == pytest.approx(visible(s, 0))


def test_addresses_that_overlap_are_one_place():
    early, late = storage(address=(0, 0)), storage(address=(0, 1024))
    apart = storage(address=(0, 65536))
    w, source = Writer(), storage()
    w.copy(early, source)
    w.copy(late, source, engine="scalar")
    w.copy(apart, source, engine="gpsimd")
    s = run(w)
    assert s.starts[1] == pytest.approx(visible(s, 0))
    assert s.starts[2] == 0.0


def test_depends_on():
    w, x, y, z = Writer(), storage(), storage(), storage()
    w.copy(y, x)
    w.copy(z, x, engine="scalar")
    assert run(w).starts[1] == 0.0
    told = run(w, fields={"dependencies": {(0, 1): (0,)}})
    assert told.starts[1] == pytest.approx(visible(told, 0))


def test_room_is_used_again_after_its_last_reader():
    """PSUM holds eight banks: the ninth matmul waits for the first copy."""
    w, dtype = Writer(), "bfloat16"
    held, moved = storage(shape=(128, 128), dtype=dtype), storage(dtype=dtype)
    for _ in range(10):
        sums, out = storage("psum"), storage()
        w.add("nc_matmul", "tensor", sums, held, moved)
        w.add("reciprocal", "vector", out, sums)  # slow
    s = run(w)
    matmuls, copies = s.starts[0::2], [visible(s, n) for n in range(1, 20, 2)]
    assert matmuls[7] < copies[0]
    assert matmuls[8] >= copies[0]
    assert matmuls[9] >= copies[1]


def test_a_large_tile_waits_for_all_that_had_its_room_and_keeps_few_notes():
    """Generations of 102 small tiles, nearly all of SBUF, and one large of as much, in
    pieces: each piece waits for the slowest, and what is noted grows with the pieces,
    not with their product."""
    w, source, pieces = Writer(), storage(shape=(128, 512)), 102
    edges = []
    for _ in range(4):
        small = [storage(shape=(128, 512)) for _ in range(pieces)]
        for n, tile in enumerate(small):
            w.copy(tile, source, engine=("vector", "gpsimd", "scalar")[n % 3])
        large = storage(shape=(128, 512 * pieces))
        edges.append(w.count)
        for n in range(pieces):
            w.copy(access(large, 512 * n, 512), source, engine="scalar")
    s = run(w)
    for first in edges:
        before = max(visible(s, n) for n in range(first - pieces, first - 1))
        assert min(s.starts[first : first + pieces]) >= before
    noted = sum(map(len, s.found.waits)) + sum(map(len, s.found.joined))
    assert noted < 4 * len(s.priced)


def test_a_full_sbuf_is_noted():
    w = Writer()
    big = [storage(shape=(128, 32768)) for _ in range(2)]
    w.copy(big[1], big[0])
    assert any("SBUF" in note for note in run(w).notes)


def test_the_compiler_moves_what_waits():
    """A chain and an instruction that has nothing to do with it, on one engine."""
    w, tiles = Writer(), [storage() for _ in range(5)]
    w.copy(tiles[1], tiles[0])
    w.copy(tiles[2], tiles[1])  # waits for the latency of the first
    w.copy(tiles[4], tiles[3])
    s = run(w)
    assert s.starts[2] == pytest.approx(s.ends[0])
    assert s.starts[1] == pytest.approx(s.ends[2])


# -- engines ---------------------------------------------------------------------------


def test_a_stationary_operand_is_loaded_once():
    w, held, other = Writer(), storage(shape=(128, 128)), storage(shape=(128, 128))
    moved, sums = storage(), [storage("psum") for _ in range(3)]
    for out, stationary in zip(sums, (held, held, other), strict=True):
        w.add("nc_matmul", "tensor", out, stationary, moved)
    s = run(w, TRN1)
    load, spent = s.priced[0].load_seconds, s.priced[0].work.seconds
    assert list(s.found.stationary.values()) == [0, 0, 1]
    assert s.starts[0] == pytest.approx(load)
    assert s.starts[1] == pytest.approx(s.ends[0])
    assert s.starts[2] == pytest.approx(s.ends[1])  # hidden behind the one before
    assert load < spent


def test_accumulation_needs_no_waiting():
    w, held, moved, sums = (
        Writer(),
        storage(shape=(128, 128)),
        storage(),
        storage("psum"),
    )
    for _ in range(4):
        w.add("nc_matmul", "tensor", sums, held, moved)
    s = run(w, TRN1)
    assert s.starts[1:] == pytest.approx(s.ends[:-1])


def test_the_array_takes_what_can_start_and_adds_in_order():
    """A product that waits lets the next ones by, but not those of its own sum; so the
    compiler of the older style orders them, the newer one keeps the kernel's order."""
    w, late, held = Writer(), storage(), storage(shape=(128, 128))
    moved, sums, other = storage(), storage("psum"), storage("psum")
    w.add("reciprocal", "vector", late, moved)  # slow
    w.add("nc_matmul", "tensor", sums, held, late)
    w.add("nc_matmul", "tensor", sums, held, moved)
    w.add("nc_matmul", "tensor", other, held, moved)
    newer = run(w)
    assert newer.starts[1] <= newer.starts[2] <= newer.starts[3]
    s = run(w, fields={"older": True})
    assert s.starts[3] < s.starts[1] <= s.starts[2]
    assert s.found.order == {2: [1]}
    assert s.starts[1] >= visible(s, 0)


def test_tiles_of_the_array_work_side_by_side():
    def both(**second):
        w = Writer()
        held, moved = storage(shape=(32, 32)), storage(shape=(32, 512))
        for position in ((0, 0), (32, 0)):
            w.add(
                "nc_matmul", "tensor", storage("psum", (32, 512)), held, moved,
                **({"tile_size": (32, 32), "tile_position": position} | second),
            )  # fmt: skip
        return run(w, TRN1)

    side_by_side = both()
    in_line = both(tile_position=(0, 0))
    assert side_by_side.starts[1] < side_by_side.ends[0]
    assert in_line.starts[1] == pytest.approx(in_line.ends[0])


def test_an_idle_array_starts_slowly():
    """50 to 100 % over 3 us from NeuronCore-v3 on [GL]."""
    w, held, moved, sums = (
        Writer(),
        storage(shape=(128, 128)),
        storage(),
        storage("psum"),
    )
    for _ in range(40):
        w.add("nc_matmul", "tensor", sums, held, moved)
    s = run(w)
    plain = s.priced[0].work.seconds
    spent = np.subtract(s.ends, s.starts)
    assert plain / 0.5 > spent[0] > plain / 0.65
    assert s.ends[-1] - s.starts[0] == pytest.approx(40 * plain + 0.75e-6)
    assert spent[-1] == pytest.approx(plain)


@pytest.mark.parametrize(("rows", "note"), [(128, False), (32, True)])
def test_a_schedule_tells_of_its_throttle(rows, note):
    w, held, moved, sums = (
        Writer(),
        storage(shape=(rows, 128)),
        storage(shape=(rows, 512)),
        storage("psum"),
    )
    for _ in range(400):
        w.add("nc_matmul", "tensor", sums, held, moved)
    s = run(w)
    assert any("throttle" in said for said in s.notes) == note
    assert s.total_seconds > (1.99 if note else 1.0) * 400 * s.priced[0].work.seconds


def test_an_empty_kernel_has_no_throttle_to_tell_of():
    assert run(Writer()).notes == ()


def test_tables_are_loaded_when_the_function_changes():
    w, tiles = Writer(), [storage() for _ in range(4)]
    for n, op in enumerate(("exp", "exp", "tanh")):
        w.add("activation", "scalar", tiles[n + 1], tiles[0], op=op)
    s = run(w)
    load = a.TABLE_LOAD.value
    assert s.starts[0] == pytest.approx(load)
    assert s.starts[1] == pytest.approx(s.ends[0])
    assert s.starts[2] == pytest.approx(s.ends[1] + load)


def test_engines_that_share_a_port_take_turns_on_the_first_core():
    w, tiles = Writer(), [storage() for _ in range(4)]
    w.copy(tiles[1], tiles[0])
    w.copy(tiles[3], tiles[2], engine="gpsimd")
    first, later = run(w, TRN1), run(w, TRN2)
    assert max(first.starts) == pytest.approx(min(first.ends))
    assert later.starts == [0.0, 0.0]


# -- DMA -------------------------------------------------------------------------------


def test_transfers_overlap_their_starts_and_share_engines():
    w = Writer()
    for _ in range(3):
        w.dma(storage(), storage("shared_hbm"))
    s = run(w, TRN1)
    p = s.priced[0]
    assert s.starts[0] == pytest.approx(p.start_seconds)
    assert s.starts[1] == pytest.approx(s.ends[0])
    assert s.total_seconds == pytest.approx(
        p.start_seconds + 3 * p.work.seconds + p.work.latency_seconds
    )


def test_a_generator_issues_one_transfer_after_another():
    w = Writer()
    for _ in range(4):
        w.dma(storage(shape=(128, 16)), storage("shared_hbm", (128, 16)))
    s = run(w)
    issue = s.priced[0].issue_seconds
    assert np.diff(s.starts) == pytest.approx([issue] * 3)


def test_few_partitions_leave_engines_to_others():
    w = Writer()
    tall = storage(shape=(128, 4096))
    upper = Access(tall, "float32", 64 * 4096, ((4096, 64), (1, 4096)))
    lower = Access(tall, "float32", 0, ((4096, 64), (1, 4096)))
    for part in (lower, upper):
        w.dma(part, storage("shared_hbm", (64, 4096)))
    s = run(w, TRN1)
    assert s.starts[0] == s.starts[1]


# -- loops -----------------------------------------------------------------------------


def loop_of(turns, length=3):
    w, x, y = Writer(), storage(), storage()
    body = Writer()
    for _ in range(length):
        body.copy(y, x)
    stop = turns if isinstance(turns, int) else Register(1)
    body = KernelBlock(tuple(body.items))
    w.items = [KernelLoop(Register(0), 0, stop, 1, body, "kernels.py:7")]
    return w


def test_a_loop_turns_as_often_as_it_says():
    one, many = run(loop_of(1)), run(loop_of(10))
    assert len(many.ends) == 30
    assert many.total_seconds > 9 * one.ends[-1]
    turn = np.diff(many.ends[2::3])
    assert turn == pytest.approx([turn[0]] * 9)
    assert turn[0] > LOOP_TURN.value


def test_long_loops_are_cut_and_cost_the_same(monkeypatch):
    whole = run(loop_of(500))
    monkeypatch.setattr(kernel_unroll, "MOST_INSTRUCTIONS", 300)
    cut = run(loop_of(500))
    assert len(cut.ends) == 3 * 16
    assert cut.total_seconds == pytest.approx(whole.total_seconds, rel=1e-9)
    timelines = [kernel_timeline(s) for s in (whole, cut)]
    busy = [t.busy_seconds("vector") for t in timelines]
    assert busy[0] == pytest.approx(busy[1])
    (span,) = timelines[1].loops
    assert (span.trips, span.source) == (500, "kernels.py:7")
    assert span.end_seconds == pytest.approx(timelines[0].loops[0].end_seconds)


def test_turns_that_nobody_knows_are_given_or_noted():
    unknown = loop_of("register")
    assert "once" in run(unknown).notes[0]
    told = run(unknown, trips={"kernels.py:7": 4})
    assert len(told.ends) == 12
    assert told.notes == ()
    body = KernelBlock(tuple(loop_of(1).items[0].body.items))
    unknown.items = [KernelWhile(Register(0), body, "kernels.py:9")]
    assert len(run(unknown, trips={"kernels.py:9": 2}).ends) == 6


# -- grids -----------------------------------------------------------------------------


def test_programs_of_a_grid_have_cores_of_their_own():
    w = Writer()
    for program in range(2):
        tiles = [storage(), storage()]
        w.copy(tiles[1], tiles[0], program=program)
    two, one = run(w), run(w, lnc=1)
    assert two.core.lnc == 2
    assert two.starts == [0.0, 0.0]
    assert one.starts[1] == pytest.approx(one.ends[0])
    assert kernel_timeline(two).busy_seconds("vector") == pytest.approx(two.ends[0])


def test_barriers_hold_every_program():
    w, x, y = Writer(), storage(), storage()
    w.copy(y, x, program=0)
    w.add("core_barrier", "sync", None, program=0)
    w.add("core_barrier", "sync", None, program=1)
    z = [storage(), storage()]
    w.copy(z[1], z[0], program=1)
    s = run(w)
    assert s.starts[3] >= visible(s, 0)


# -- in general ------------------------------------------------------------------------

ENGINES = ("vector", "scalar", "gpsimd")


def random_kernel(choices):
    """Copies and loads among a few tiles; choices are (engine, out, source, width)."""
    w = Writer()
    tiles = [storage() for _ in range(4)]
    matrix = storage("shared_hbm")
    for engine, out, source, width in choices:
        target = access(tiles[out], 0, 64 * width)
        if engine == 3:
            w.dma(target, access(matrix, 0, 64 * width))
        else:
            origin = access(tiles[source], 0, 64 * width)
            w.copy(target, origin, engine=ENGINES[engine])
    return w


CHOICES = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(1, 8)
    ),
    min_size=1,
    max_size=24,
)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(CHOICES, st.sampled_from([TRN1, TRN2]))
def test_conservation_order_and_determinism(choices, target):
    w = random_kernel(choices)
    s = run(w, target)
    timeline = kernel_timeline(s)
    for queue in QUEUES:
        assert timeline.busy_seconds(queue) <= s.total_seconds * (1 + 1e-9)
    for n, waits in enumerate(s.found.waits):
        begin = s.starts[n] - (s.priced[n].start_seconds if s.priced[n].ring else 0)
        for code in waits:
            assert begin >= visible(s, code >> 1) - 1e-15
    assert sum(critical_seconds(s).values()) == pytest.approx(s.total_seconds)
    again = run(w, target)
    assert (again.starts, again.ends) == (s.starts, s.ends)
    assert timeline.hbm_read_bytes == sum(
        128 * 64 * width * 4 for engine, _, _, width in choices if engine == 3
    )


@settings(max_examples=15, deadline=None, derandomize=True)
@given(CHOICES)
def test_no_kernel_is_quicker_than_its_longest_chain(choices):
    """Nor is it after an instruction more that waits for all others."""
    w = random_kernel(choices)
    s = run(w)
    done = []
    for p, waits in zip(s.priced, s.found.waits, strict=True):
        begin = max((done[code >> 1] for code in waits), default=0.0)
        done.append(begin + p.start_seconds + p.work.seconds + p.work.latency_seconds)
    assert s.total_seconds >= max(done) * (1 - 1e-9)
    last = w.copy(storage(), storage())
    after = {(0, last.ordinal): tuple(range(last.ordinal))}
    longer = run(w, fields={"dependencies": after})
    assert longer.total_seconds >= s.total_seconds + longer.priced[-1].work.seconds


def test_in_line_slower_instructions_never_end_earlier():
    """Of one chain; a list schedule in general may, as Graham showed."""
    w, tiles = Writer(), [storage() for _ in range(6)]
    for n in range(5):
        w.copy(tiles[n + 1], tiles[n], engine=ENGINES[n % 3])
    s = run(w)
    times = []
    for factor in (0.5, 1.0, 2.0):

        def slower(n, p: KernelPrice, factor=factor):
            seconds = p.work.seconds * (factor if n == 2 else 1)
            return dataclasses.replace(
                p, work=dataclasses.replace(p.work, seconds=seconds)
            )

        times.append(what_if(s, slower))
    assert times == sorted(times)
    assert times[1] == pytest.approx(s.total_seconds)


def test_an_lnc_that_the_chip_does_not_have():
    w = Writer()
    w.copy(storage(), storage())
    with pytest.raises(InvalidProgramError):
        run(w, TRN1, lnc=2)


def test_nothing_takes_no_time():
    s = run(Writer())
    assert s.total_seconds == 0.0
    assert kernel_timeline(s).events == ()
    assert math.isfinite(CHIPS["trn2"].dma_start_seconds)


def test_a_measured_example():
    """exp of [128, 128] BF16 on trn2 [DM]: the first byte after 739 ns, 468 ns of
    transfer in all, ScalarE 0.3 us after it (its table is there), 0.40 us of it."""
    w = Writer()
    half = dict(shape=(128, 128), dtype="bfloat16")
    x, y = storage(**half), storage(**half)
    w.dma(x, storage("shared_hbm", (128, 128), "bfloat16"))
    w.add("activation", "scalar", y, x, op="copy")
    s = run(w)
    assert s.starts[0] == pytest.approx(739 * NS, rel=0.05)
    assert s.starts[1] - s.ends[0] == pytest.approx(a.DMA_SEMAPHORE.value, rel=0.05)
    assert visible(s, 1) - s.starts[1] == pytest.approx(400 * NS, rel=0.3)

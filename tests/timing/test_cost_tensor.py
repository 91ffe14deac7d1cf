"""TensorE from first principles: the documented peaks, tiles, passes, transposes."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from neuronjax.errors import InternalError
from neuronjax.hardware import CHIPS
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    DotDimensions,
    NcMatmul,
    NcMatmulMx,
    NcMatmulSparse,
    NcTranspose,
)
from neuronjax.timing.cost import ways
from neuronjax.timing.cost_rules import Reading
from neuronjax.timing.engines.tensor import column_cycles, peak_flops_per_second
from neuronjax.timing.work import Core, Work
from tests.timing.instructions import MATRICES, make

BF16, FP32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
FP8, TAGS = np.dtype(ml_dtypes.float8_e4m3), np.dtype(np.uint8)
KINDS = ("mx", "fp8", "bf16", "fp32", "sparse")
CORES = {name: Core(chip, 1) for name, chip in CHIPS.items()}
TRN1, TRN2, TRN3 = CORES["trn1"], CORES["trn2"], CORES["trn3"]
BATCHED = DotDimensions((0,), (0,), (2,), (1,))


def matmul(
    m: int, k: int, n: int, *, dtype: np.dtype = BF16, batch: int = 0, **fields
) -> Instruction:
    lead = (batch,) if batch else ()
    return make(
        NcMatmul,
        [((*lead, m, k), dtype), ((*lead, k, n), dtype)],
        ((*lead, m, n), FP32),
        engine="tensor",
        dimensions=BATCHED if batch else MATRICES,
        **{"passes": 4 if dtype == FP32 else 1, **fields},
    )


def mx(m: int, k: int, n: int) -> Instruction:
    return make(
        NcMatmulMx,
        [((m, k), FP8), ((k, n), FP8), ((m, k // 32), TAGS), ((k // 32, n), TAGS)],
        ((m, n), FP32),
        engine="tensor",
        dimensions=MATRICES,
    )


def sparse(m: int, k: int, n: int, pattern: str = "4:16") -> Instruction:
    kept, group = map(int, pattern.split(":"))
    stored = k * kept // group
    return make(
        NcMatmulSparse,
        [((m, stored), BF16), ((m, stored), TAGS), ((k, n), BF16)],
        ((m, n), FP32),
        engine="tensor",
        dimensions=MATRICES,
        stationary="lhs",
        pattern=pattern,
    )


def big(kind: str, chip: str) -> Instruction:
    """A matmul whose every tile is full."""
    size = 4096
    double = dict(dtype=FP8, k_tile=256, rows_per_cell=2)
    plain = "fp8_double_row" not in CORES[chip].spec.capabilities
    return {
        "mx": lambda: mx(size, size, size),
        "fp8": lambda: matmul(size, size, size, **({} if plain else double)),
        "bf16": lambda: matmul(size, size, size),
        "fp32": lambda: matmul(size, size, size, dtype=FP32),
        "sparse": lambda: sparse(size, size, size),
    }[kind]()


def array(instruction: Instruction, core: Core, **reading) -> Work:
    work = ways(instruction, core, **reading)[0][0]
    assert work.queue == "tensor"
    return work


def cycles(instruction: Instruction, core: Core = TRN2) -> float:
    return array(instruction, core).seconds * core.spec.tensor.clock_hz


def documented_tflops(chip, kind):
    return getattr(CHIPS[chip].core.documented_tflops, kind)


EVERY = [(chip, kind) for chip in CHIPS for kind in KINDS]


@pytest.mark.parametrize(("chip", "kind"), [c for c in EVERY if documented_tflops(*c)])
def test_peaks_are_the_documented_ones(chip, kind):
    documented = documented_tflops(chip, kind)
    peak = peak_flops_per_second(CORES[chip], kind)
    assert peak is not None
    # "20" is printed for 19.66: the guide rounds to whole TFLOPS.
    is_rounded = round(peak / 1e12) == documented
    assert is_rounded or peak / 1e12 == pytest.approx(documented, rel=0.01)


@pytest.mark.parametrize(
    ("chip", "kind"), [c for c in EVERY if peak_flops_per_second(CORES[c[0]], c[1])]
)
@pytest.mark.parametrize("lnc", [1, 2])
def test_a_big_matmul_reaches_the_peak(chip, kind, lnc):
    core = Core(CHIPS[chip], lnc)
    peak = peak_flops_per_second(core, kind)
    assert peak is not None
    work = array(big(kind, chip), core)
    reached = work.flops / work.seconds / peak
    # A minimum of 64 cycles a matmul is what a chip of several columns a cycle meets.
    # Where loads are seen, each bank of 512 columns has one, of all rows of a cell.
    packed = {"mx": 4, "fp8": 2}.get(kind, 1)
    packed = packed if "fp8_double_row" in core.spec.capabilities else 1
    column = 1.0 if kind == "sparse" else column_cycles(core, kind, packed)
    seen = (core.spec.seen_load_cycles or 0.0) * packed * max(1.0, column)
    seen = 1 + seen / (512 * column)
    assert 0.985 <= reached * seen <= 1.005
    assert work.flops == pytest.approx(2.0 * 4096**3)


def test_the_hardware_counts_passes_in_bf16():
    for kind, factor in (("fp32", 4), ("bf16", 1), ("fp8", 0.5)):
        work = array(big(kind, "trn2"), TRN2)
        assert work.hardware_flops == pytest.approx(factor * work.flops)
    work = array(big("mx", "trn3"), TRN3)
    assert work.hardware_flops == pytest.approx(0.25 * work.flops)


def test_rows_and_columns_that_do_not_fill_a_tile_cost_a_tile():
    full = cycles(matmul(1024, 1024, 1024))
    assert cycles(matmul(1024, 1025, 1024)) == pytest.approx(full * 9 / 8, rel=0.01)
    assert cycles(matmul(1024, 1023, 1024)) == pytest.approx(full, rel=0.01)
    # One column more is streamed, one row more too: it becomes the moving one.
    for shape in ((1024, 1024, 1025), (1025, 1024, 1024)):
        assert full < cycles(matmul(*shape)) < full * 1.02


def load(held: int, rows: int = 128, passes: float = 1) -> float:
    """Cycles of trn2's array until a stationary operand is in: a quarter of its columns
    and 16 at least, its rows, and 60 cycles of half the clock."""
    return max(64, held) / 4 * passes + rows + 120


def test_a_matrix_moves_past_a_stationary_vector():
    """64 cycles for each 128 x 128 block, not 128: two column tiles at once."""
    blocks = 32 * 32
    spent = cycles(matmul(1, 4096, 4096))
    assert spent == pytest.approx(64 * blocks + load(1))


def test_loads_set_the_pace_of_short_matmuls():
    """The next stationary operand loads when a matmul begins, not before."""
    short, long = (cycles(matmul(128, 4096, n)) for n in (128, 512))
    assert short == pytest.approx(32 * load(128))
    assert long == pytest.approx(32 * 512 + load(128))


def test_small_matmuls_share_the_array():
    one, many = (matmul(128, 32, 2048, batch=b) for b in (1, 64))
    alone = cycles(matmul(128, 128, 2048, batch=64))
    assert cycles(many) == pytest.approx(alone / 4, rel=0.05)  # 4 row tiles of 32
    assert cycles(many, TRN1) == pytest.approx(alone / 2, rel=0.05)  # 2 of 64
    assert cycles(one) < cycles(many)


def test_double_rows_take_no_column_tiles():
    shape, fields = (32, 8192, 1024), dict(dtype=FP8, k_tile=256, rows_per_cell=2)
    two_tiles = pytest.approx(64 * 1024 / 2 + load(32))
    assert cycles(matmul(*shape)) == two_tiles
    assert cycles(matmul(*shape, **fields)) == pytest.approx(32 * 1024 + load(32))


@pytest.mark.parametrize(("pattern", "speed"), [("4:16", 4), ("4:8", 2), ("1:4", 4)])
def test_sparse_matmuls_skip_what_is_not_stored(pattern, speed):
    dense = cycles(matmul(1024, 4096, 1024))
    found = cycles(sparse(1024, 4096, 1024, pattern))
    assert found == pytest.approx(dense / speed, rel=0.01)


def test_results_leave_psum_by_either_engine():
    found = ways(matmul(1024, 1024, 1024), TRN2)
    assert {way[1].queue for way in found} == {"vector", "scalar"}
    assert all(way[1].psum_read_bytes == 4.0 * 1024**2 for way in found)
    vector = next(way[1] for way in found if way[1].queue == "vector")
    # 8 tiles of 128 rows, two banks each: 512 elements and a start of 60 cycles.
    assert vector.seconds == pytest.approx(16 * (512 + 60) / 0.96e9)
    assert vector.tiles == 16


def test_bf16_sums_leave_twice_as_fast():
    instruction = matmul(1024, 1024, 1024)
    half = [dataclasses.replace(instruction.results[0])]
    half[0] = dataclasses.replace(
        half[0], type=dataclasses.replace(half[0].type, dtype=BF16)
    )
    narrow = dataclasses.replace(instruction, results=tuple(half))
    copies = [
        next(w[1] for w in ways(i, TRN3) if w[1].queue == "vector")
        for i in (narrow, instruction)
    ]
    assert copies[0].performance_mode == "2x"
    assert copies[0].seconds < 0.6 * copies[1].seconds


def test_a_matmul_that_the_chip_has_not():
    with pytest.raises(InternalError, match="trn2 has no mx matmul"):
        ways(mx(64, 512, 64), TRN2)


def test_integers_are_contracted_by_gpsimd():
    i = matmul(64, 64, 64, dtype=np.dtype(np.int32), accumulation="integer")
    assert ways(i, TRN2)[0][0].queue == "gpsimd"


def test_transposed_operands_cost_the_array():
    plain = ways(matmul(1024, 1024, 1024), TRN2)[0]
    turned = ways(matmul(1024, 1024, 1024), TRN2, Reading(to_transpose=frozenset({0})))[
        0
    ]
    assert len(turned) == len(plain) + 2
    assert turned[0].transpose_flops == 2.0 * 1024 * 1024 * 128
    # 64 squares, each stationary.
    assert turned[0].seconds == pytest.approx(64 * load(128) / 2.4e9)


def test_transposes_on_the_array():
    """64 squares: as they load, or of FP32 on trn1 as they pass."""

    def found(dtype, core=TRN2):
        i = make(NcTranspose, [((1024, 1024), dtype)], ((1024, 1024), dtype))
        return cycles(i, core)

    assert found(BF16) == pytest.approx(64 * load(128))
    assert found(FP32) == pytest.approx(64 * load(128, passes=2))
    assert found(FP32, TRN1) == pytest.approx(64 * 128 * 4 + load(128, passes=4))

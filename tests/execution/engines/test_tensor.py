"""TensorE's ways through a large matmul without kernels of the host's: by blocks of
rows, and tile after tile.

Both are choices of speed. With their limits set low, small matrices take them, and the
bits are those of all tiles at once and of the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import pytest

from neuronjax.execution import interpreter
from neuronjax.execution.engines import tensor
from neuronjax.ir.instruction_set import DotDimensions, NcMatmul
from neuronjax.numerics.host_kernels import choice
from tests.conformance import instructions
from tests.oracles import contraction, data, floats

BATCH, ROWS, K, COLUMNS = 2, 70, 300, 5
TILES = 3
#: name -> dtype of the operands, passes, rows of a cell.
OPERANDS = {
    "bf16": (ml_dtypes.bfloat16, 1, 1),
    "fp32": (np.float32, 4, 1),
}
#: Where K is: the axis of lhs and of rhs.
ORDERS = {
    "K last, first": (2, 1),
    "K first, last": (1, 2),
    "K first": (1, 1),
    "K last": (2, 2),
}


@pytest.fixture(autouse=True)
def _no_kernels_of_other_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(choice, "enabled", False)
    interpreter.forget_kernels()
    yield
    interpreter.forget_kernels()


class Spy:
    """A function that counts its calls."""

    def __init__(self, function: Callable) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


def matrices(name: str, order: str) -> tuple[np.ndarray, np.ndarray]:
    """Operands of the dtype in an order, as their definition has them."""
    rng = np.random.default_rng(len(order))
    lhs = data.cancelling(rng, (BATCH, ROWS, K))
    rhs = data.cancelling(rng, (BATCH, K, COLUMNS))
    lhs_axis, rhs_axis = ORDERS[order]
    lhs = lhs if lhs_axis == 2 else lhs.swapaxes(1, 2)
    rhs = rhs if rhs_axis == 1 else rhs.swapaxes(1, 2)
    dtype = OPERANDS[name][0]
    return np.ascontiguousarray(lhs.astype(dtype)), np.ascontiguousarray(
        rhs.astype(dtype)
    )


def multiplied(name: str, order: str, result=np.float32, **fields) -> np.ndarray:
    lhs_axis, rhs_axis = ORDERS[order]
    _, passes, per_cell = OPERANDS[name]
    [out] = instructions.run(
        NcMatmul,
        [*matrices(name, order)],
        ((BATCH, ROWS, COLUMNS), result),
        engine="tensor",
        dimensions=DotDimensions((0,), (0,), (lhs_axis,), (rhs_axis,)),
        passes=passes,
        rows_per_cell=per_cell,
        **fields,
    )
    return out


def expected(name: str, order: str, psum: str = "fp32") -> np.ndarray:
    lhs_axis, rhs_axis = ORDERS[order]
    lhs, rhs = (x.astype(np.float32) for x in matrices(name, order))
    array = contraction.Array(lhs=name, rhs=name, psum=psum)
    numbers = (((lhs_axis,), (rhs_axis,)), ((0,), (0,)))
    return contraction.dot_general(lhs, rhs, numbers, array)


def width(name: str) -> int:
    """Results of all tiles and passes for one row."""
    return TILES * BATCH * COLUMNS * OPERANDS[name][1]


def by_rows(monkeypatch: pytest.MonkeyPatch, name: str, rows: int) -> Spy:
    """Limits under which so many rows are a block."""
    spy = Spy(tensor._by_rows)
    monkeypatch.setattr(tensor, "_by_rows", spy)
    monkeypatch.setattr(tensor, "FEWEST_ROWS", 1)
    monkeypatch.setattr(tensor, "CACHED_RESULTS", rows * width(name))
    return spy


def tile_by_tile(monkeypatch: pytest.MonkeyPatch) -> Spy:
    spy = Spy(tensor._looped_tiles)
    monkeypatch.setattr(tensor, "_looped_tiles", spy)
    monkeypatch.setattr(tensor, "CACHED_RESULTS", 1)
    monkeypatch.setattr(tensor, "STACKED_RESULTS", 1)
    return spy


CASES = [
    ("bf16", "K last, first"),
    ("fp32", "K first, last"),
    pytest.param("bf16", "K first", marks=pytest.mark.slow),
    pytest.param("fp32", "K last", marks=pytest.mark.slow),
]


@pytest.mark.slow_cases("24-bf16-K last, first")
@pytest.mark.parametrize(("name", "order"), CASES)
@pytest.mark.parametrize("rows", [24, pytest.param(35, marks=pytest.mark.slow)])
def test_blocks_of_rows_give_the_same_bits(monkeypatch, name, order, rows):
    """70 rows in blocks of 24: the last one overlaps; of 40: it would stand over."""
    spy = by_rows(monkeypatch, name, rows)
    out = multiplied(name, order)
    assert spy.calls
    floats.same_bits(out, expected(name, order))


@pytest.mark.slow_cases("fp32-K first, last")
@pytest.mark.parametrize(("name", "order"), CASES)
def test_tile_after_tile_gives_the_same_bits(monkeypatch, name, order):
    spy = tile_by_tile(monkeypatch)
    out = multiplied(name, order)
    assert spy.calls
    floats.same_bits(out, expected(name, order))


def test_without_the_limits_neither_way_is_taken(monkeypatch):
    spies = [Spy(getattr(tensor, n)) for n in ("_by_rows", "_looped_tiles")]
    for spy in spies:
        monkeypatch.setattr(tensor, spy.function.__name__, spy)
    out = multiplied("bf16", "K last, first")
    assert [spy.calls for spy in spies] == [0, 0]
    floats.same_bits(out, expected("bf16", "K last, first"))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_sums_in_bf16(monkeypatch, way):
    if way == "rows":
        spy = by_rows(monkeypatch, "bf16", 24)
    else:
        spy = tile_by_tile(monkeypatch)
    out = multiplied("bf16", "K last, first", ml_dtypes.bfloat16)
    assert spy.calls
    want = expected("bf16", "K last, first", psum="bf16")
    floats.same_bits(out, want.astype(ml_dtypes.bfloat16))


@pytest.mark.slow
def test_stochastic_sums_keep_their_keys(monkeypatch):
    """Tile by tile the keys count on; blocks of rows, which would not, are not used."""

    def stochastic() -> np.ndarray:
        interpreter.forget_kernels()
        return multiplied(
            "bf16", "K last, first", ml_dtypes.bfloat16, rounding="stochastic"
        )

    whole = stochastic()
    with monkeypatch.context() as patch:
        spy = by_rows(patch, "bf16", 24)
        assert np.array_equal(stochastic().view(np.uint16), whole.view(np.uint16))
        assert not spy.calls
    spy = tile_by_tile(monkeypatch)
    assert np.array_equal(stochastic().view(np.uint16), whole.view(np.uint16))
    assert spy.calls

"""TensorE without kernels of the host's: tile after tile, in every memory order."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from neuronjax.execution import interpreter
from neuronjax.ir.instruction_set import DotDimensions, NcMatmul
from neuronjax.numerics.host_kernels import choice
from tests.conformance import instructions
from tests.oracles import contraction, data, floats

BATCH, ROWS, K, COLUMNS = 2, 70, 300, 5
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
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(choice, "enabled", False)
    interpreter.forget_kernels()
    yield
    interpreter.forget_kernels()


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
        group_rows=32 if passes == 4 else None,
        **fields,
    )
    return out


def expected(name: str, order: str, psum: str = "fp32") -> np.ndarray:
    lhs_axis, rhs_axis = ORDERS[order]
    lhs, rhs = (x.astype(np.float32) for x in matrices(name, order))
    array = contraction.Array(lhs=name, rhs=name, psum=psum)
    numbers = (((lhs_axis,), (rhs_axis,)), ((0,), (0,)))
    return contraction.dot_general(lhs, rhs, numbers, array)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("bf16", "K last, first"),
        ("fp32", "K first, last"),
        pytest.param("bf16", "K first", marks=pytest.mark.slow),
        pytest.param("fp32", "K last", marks=pytest.mark.slow),
    ],
)
def test_tiles_are_added_in_order(name, order):
    floats.same_bits(multiplied(name, order), expected(name, order))


@pytest.mark.slow
def test_sums_in_bf16():
    out = multiplied("bf16", "K last, first", ml_dtypes.bfloat16)
    want = expected("bf16", "K last, first", psum="bf16")
    floats.same_bits(out, want.astype(ml_dtypes.bfloat16))


@pytest.mark.slow
def test_stochastic_sums_have_the_same_keys_by_kernels(monkeypatch):
    """A tile's number is part of its key."""
    found = []
    for enabled in (False, True):
        monkeypatch.setattr(choice, "enabled", enabled)
        interpreter.forget_kernels()
        out = multiplied(
            "bf16", "K last, first", ml_dtypes.bfloat16, rounding="stochastic"
        )
        found.append(out.view(np.uint16))
    np.testing.assert_array_equal(*found)

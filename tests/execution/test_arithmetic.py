"""Exact arithmetic in NumPy has the bits of the engines, of numbers of every kind."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neuronjax.execution import inputs_outputs
from neuronjax.execution.arithmetic import _has_below, computed
from neuronjax.execution.engines import Registers, execute
from neuronjax.ir.instruction import Buffer, View
from neuronjax.ir.instruction_set import (
    Activation,
    Compare,
    Select,
    TensorCopy,
    TensorReduce,
    TensorTensor,
)
from neuronjax.ir.program import TensorType
from neuronjax.numerics.host_kernels import choice

FLOAT32, BFLOAT16 = np.dtype("float32"), np.dtype(ml_dtypes.bfloat16)
FLOAT8, BOOL = np.dtype(ml_dtypes.float8_e4m3), np.dtype(bool)
INT32, UINT32, INT8 = map(np.dtype, ("int32", "uint32", "int8"))
SIZE = 1 << 12
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.5, 2.5, 3.4e38]
EDGES += [2.0**-126, -(2.0**-126), 2.0**-127, -(2.0**-149), 2.0**-63, 240.0, 250.0]


def numbers(dtype: np.dtype, seed: int) -> np.ndarray:
    """Return numbers of every kind: random bits, of every size, and the edges."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (SIZE, dtype.itemsize), np.uint8)
    if dtype.kind == "b":
        return codes[:, 0] > 127
    x = codes.view(dtype)[:, 0].copy()
    with np.errstate(all="ignore"):
        if dtype.kind in "iu":
            x[:64] = rng.integers(0, 4, 64)
            x[64:70] = np.iinfo(dtype).min
            return x
        some = rng.normal(size=SIZE) * 10.0 ** rng.integers(-45, 38, SIZE)
        x[::2] = some.astype(np.float32).astype(dtype)[::2]
        edges = np.array(EDGES, np.float32).astype(dtype)
    x[1::4] = edges[rng.integers(0, len(edges), SIZE // 4)]
    return x


def instruction(cls: type, result: np.dtype, *read: np.dtype, **fields: Any):
    types = [TensorType((SIZE,), dtype) for dtype in (*read, result)]
    *views, written = (Buffer(n, kind) for n, kind in enumerate(types))
    return cls(
        operands=tuple(map(View, views)),
        results=(written,),
        engine="vector",
        **fields,
    )


def both(i, x, of_engine) -> tuple[np.ndarray, np.ndarray]:
    """Return what NumPy makes of arrays, and what the engine makes of its own."""
    rule = computed(i)
    assert rule is not None
    with np.errstate(all="ignore"):
        ours = rule(x)
    registers = Registers(inputs_outputs.make_zero(True), jnp.uint32(0))
    arrays = [jnp.asarray(a) for a in of_engine]
    [theirs] = map(np.asarray, execute(i, arrays, registers))
    return ours, theirs


def assert_same(i, x) -> None:
    assert_bits(*both(i, x, x), x)


def assert_bits(ours: np.ndarray, theirs: np.ndarray, x=()) -> None:
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    if ours.dtype.kind in "iub":
        np.testing.assert_array_equal(ours, theirs)
        return
    nan = np.isnan(ours.astype(np.float32)) & np.isnan(theirs.astype(np.float32))
    code = f"u{ours.dtype.itemsize}"
    same = (ours.view(code) == theirs.view(code)) | nan
    assert same.all(), [a[~same][:3] for a in (*x, ours, theirs)]


FLOATS = [FLOAT32, BFLOAT16, FLOAT8]
OF_TWO = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
OF_ONE = ("abs", "negate", "sign", "floor", "ceil", "round_nearest_even")
WHOLE = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
CASES = [
    *((TensorTensor, d, (d, d), {"op": op}) for op in OF_TWO for d in FLOATS),
    *((TensorTensor, d, (d,), {"op": op}) for op in OF_ONE for d in FLOATS),
    *((TensorTensor, BOOL, (d,), {"op": "is_finite"}) for d in FLOATS),
    *((TensorTensor, d, (d, d), {"op": op}) for op in WHOLE for d in (INT8, BOOL)),
    *((TensorTensor, INT32, (INT32,), {"op": op}) for op in ("abs", "negate")),
    *(
        (TensorTensor, UINT32, (UINT32, UINT32), {"op": f"shift_{way}"})
        for way in ("left", "right_logical")
    ),
    *(
        (Compare, BOOL, (d, d), {"direction": way})
        for way in ("EQ", "NE", "LT", "LE", "GT", "GE")
        for d in (FLOAT32, BFLOAT16, INT32)
    ),
    *((Select, d, (BOOL, d, d), {}) for d in (FLOAT32, BFLOAT16, INT8)),
    *(
        (Activation, d, (FLOAT32,), {"function": name})
        for name in ("sqrt", "rsqrt", "reciprocal")
        for d in (FLOAT32, BFLOAT16)
    ),
    *(
        (TensorCopy, d, (source,), {"overflow": overflow})
        for d in FLOATS
        for source in (FLOAT32, BFLOAT16, FLOAT8, INT32, BOOL)
        for overflow in ("ieee", "saturate")
    ),
    *((TensorCopy, d, (INT32,), {}) for d in (INT8, UINT32, BOOL)),
]


def name_of(case: Any) -> str:
    cls, result, read, fields = case
    words = (cls.__name__, *map(str, read), result.name, *map(str, fields.values()))
    return "-".join(words)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_an_exact_instruction_has_the_bits_of_its_engine(case):
    cls, result, read, fields = case
    i = instruction(cls, result, *read, **fields)
    assert_same(i, [numbers(dtype, n) for n, dtype in enumerate(read)])


@pytest.mark.parametrize("start", [np.inf, -np.inf, -0.0, 0.0])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_an_extreme_has_the_sign_of_its_zeros(op, dtype, start):
    shapes = [(SIZE // 4, 4), (), (SIZE // 4,)]
    kinds = [Buffer(n, TensorType(s, dtype)) for n, s in enumerate(shapes)]
    views, result = tuple(map(View, kinds[:2])), (kinds[2],)
    fields: dict[str, Any] = dict(op=op, axes=(1,), engine="vector")
    i = TensorReduce(operands=views, results=result, **fields)
    x = numbers(dtype, 5).reshape(-1, 4)
    with np.errstate(invalid="ignore"):
        small = np.where(np.abs(x) < 4, x, np.copysign(dtype.type(0), x))
    for operand in (x, small, np.copysign(dtype.type(0), x)):
        assert_same(i, [operand, np.asarray(start, dtype)])


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(CASES), st.integers(0, 999)), min_size=4),
    st.integers(0, 9),
)
def test_a_program_of_exact_instructions_has_the_bits_of_the_engines(steps, seed):
    """Each reads what others wrote, so that no side sees the other's numbers."""
    ours = {d: [numbers(d, seed)] for d in (*FLOATS, BOOL, INT32, UINT32, INT8)}
    theirs = {dtype: [*arrays] for dtype, arrays in ours.items()}
    for (cls, result, read, fields), chosen in steps:
        at = [(dtype, -1 - (chosen + n) % 3) for n, dtype in enumerate(read)]
        at = [(dtype, max(back, -len(ours[dtype]))) for dtype, back in at]
        reads = [[side[d][back] for d, back in at] for side in (ours, theirs)]
        made = both(instruction(cls, result, *read, **fields), *reads)
        assert_bits(*made, reads[0])
        ours[result].append(made[0])
        theirs[result].append(made[1])


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("least", [0.0, -(2.0**-149), 2.0**-127, 2.0**-126])
def test_one_subnormal_at_any_place_is_found(kernels, least, monkeypatch):
    monkeypatch.setattr(choice, "enabled", kernels)
    x = np.array([1, -3e38, np.inf, -0.0, np.nan] * 7, np.float32)
    for place in range(x.size):
        y = x.copy()
        y[place] = least
        assert _has_below(y, 0x00800000) == (0 < abs(least) < 2.0**-126)
        assert _has_below(y, 0x00800001) == (least != 0)


@pytest.mark.parametrize("op", ["multiply", "divide"])
def test_a_result_is_rounded_and_then_flushed(op):
    """Between the numbers that FP32 has around its smallest normal one."""
    rng = np.random.default_rng(3)
    x = ((rng.random(SIZE) + 1) * 2.0 ** rng.integers(-60, 60, SIZE)).astype("float32")
    near = 2.0**-126 * (1 - rng.integers(-4, 5, SIZE) * 2.0**-25)
    wide = x.astype(np.float64)
    y = near / wide if op == "multiply" else wide / near
    i = instruction(TensorTensor, FLOAT32, FLOAT32, FLOAT32, op=op)
    with np.errstate(over="ignore"):
        assert_same(i, [x, y.astype("float32")])


@pytest.mark.parametrize(
    ("cls", "read", "fields"),
    [
        (TensorTensor, (FLOAT32, FLOAT32), {"op": "power"}),
        (TensorTensor, (FLOAT32, FLOAT32), {"op": "add", "rounding": "stochastic"}),
        (TensorTensor, (FLOAT32, FLOAT32), {"op": "add", "write_format": "tfloat32"}),
        (TensorTensor, (INT32, INT32), {"op": "add", "integer_path": "fp32"}),
        (Activation, (FLOAT32,), {"function": "exponential"}),
        (TensorReduce, (FLOAT32, FLOAT32), {"op": "add", "axes": (0,)}),
    ],
)
def test_what_is_not_exact_is_left_to_the_engine(cls, read, fields):
    assert computed(instruction(cls, read[0], *read, **fields)) is None

"""Gathers of every form, and the other ops that move data.

Against the StableHLO reference interpreter, all forms of a kind in one module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance import modules
from tests.conformance.modules import DTYPES, ints, some
from tests.oracles import floats

I32 = np.int32


def gather(
    name: str, operand: Any, indices: Any, sizes: tuple, result: tuple, numbers: str
) -> modules.Form:
    like = np.zeros(result, operand.dtype)
    types = f"({modules.tensor(operand)}, {modules.tensor(indices)})"
    body = (
        '%r = "stablehlo.gather"(%0, %1) <{dimension_numbers = #stablehlo.gather<'
        f"{numbers}>, slice_sizes = array<i64: {', '.join(map(str, sizes))}>}}> : "
        f"{types} -> {modules.tensor(like)}"
    )
    return modules.form(name, (operand, indices), (like,), body)


ROW_NUMBERS = (
    "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], "
    "index_vector_dim = 1"
)


def gathers() -> list[modules.Form]:
    rng = np.random.default_rng(6)
    forms = []
    for dtype in DTYPES:
        operand = some(rng, (5, 3), dtype)
        rows = np.array([[2], [-3], [9], [4]], I32)
        name = f"dtype_{dtype.name}"
        forms.append(gather(name, operand, rows, (1, 3), (4, 3), ROW_NUMBERS))
    table = ints(rng, 4, 5, 6)
    where = rng.integers(-2, 7, (2, 7, 3)).astype(I32)
    batched = rng.integers(-2, 7, (7, 4, 1)).astype(I32)
    return [
        *forms,
        gather(
            "exchanged",
            table,
            where,
            (2, 1, 3),
            (2, 7, 2, 3),
            "offset_dims = [2, 3], collapsed_slice_dims = [1], "
            "start_index_map = [2, 0, 1], index_vector_dim = 2",
        ),
        gather(
            "batched",
            table,
            batched,
            (1, 1, 4),
            (7, 4, 4),
            "offset_dims = [2], collapsed_slice_dims = [1], operand_batching_dims = "
            "[0], start_indices_batching_dims = [1], start_index_map = [1], "
            "index_vector_dim = 2",
        ),
        gather(
            "vector_in_front",
            table,
            where.transpose(2, 0, 1)[:2].copy(),
            (1, 1, 6),
            (6, 2, 7),
            "offset_dims = [0], collapsed_slice_dims = [0, 1], start_index_map = "
            "[0, 1], index_vector_dim = 0",
        ),
        gather("empty", table[0], batched[0], (1, 0), (4, 0), ROW_NUMBERS),
        gather("none", table[0], batched[0][:0], (1, 6), (0, 6), ROW_NUMBERS),
    ]


def movements() -> list[modules.Form]:
    rng = np.random.default_rng(7)
    table = ints(rng, 5, 7)
    ops = [
        (
            "pad",
            "tensor<7x10xi32>",
            "%c = stablehlo.constant dense<-7> : tensor<i32>\n"
            "%r = stablehlo.pad %0, %c, low = [-2, 3], high = [0, -6], "
            "interior = [1, 1] : (tensor<5x7xi32>, tensor<i32>) -> tensor<7x10xi32>",
        ),
        (
            "reverse",
            "tensor<5x7xi32>",
            "%r = stablehlo.reverse %0, dims = [1, 0] : tensor<5x7xi32>",
        ),
        (
            "one",
            "tensor<5x7xi32>",
            "%r = stablehlo.concatenate %0, dim = 1 : "
            "(tensor<5x7xi32>) -> tensor<5x7xi32>",
        ),
        (
            "with_empty",
            "tensor<5x14xi32>",
            "%e = stablehlo.slice %0 [0:5, 3:3] : (tensor<5x7xi32>) -> tensor<5x0xi32>"
            "\n%r = stablehlo.concatenate %0, %e, %0, dim = 1 : (tensor<5x7xi32>, "
            "tensor<5x0xi32>, tensor<5x7xi32>) -> tensor<5x14xi32>",
        ),
        (
            "wider",
            "tensor<5xui64>",
            "%p = stablehlo.slice %0 [0:5, 1:7:4] : "
            "(tensor<5x7xi32>) -> tensor<5x2xi32>\n"
            "%r = stablehlo.bitcast_convert %p : (tensor<5x2xi32>) -> tensor<5xui64>",
        ),
        (
            "narrower",
            "tensor<5x7x2xbf16>",
            "%r = stablehlo.bitcast_convert %0 : "
            "(tensor<5x7xi32>) -> tensor<5x7x2xbf16>",
        ),
        (
            "bytes",
            "tensor<5x7x4xi8>",
            "%r = stablehlo.bitcast_convert %0 : (tensor<5x7xi32>) -> tensor<5x7x4xi8>",
        ),
        (
            "size",
            "tensor<i32>",
            "%r = stablehlo.get_dimension_size %0, dim = 1 : "
            "(tensor<5x7xi32>) -> tensor<i32>",
        ),
    ]
    return [modules.form(name, (table,), (type_,), text) for name, type_, text in ops]


def iotas() -> list[modules.Form]:
    names = ["i8", "ui16", "i64", "f32", "f16", "bf16", "f8E5M2", "f8E4M3"]
    return [
        modules.form(
            f"iota_{name}",
            (),
            (f"tensor<2x9x{name}>",),
            f"%r = stablehlo.iota dim = 1 : tensor<2x9x{name}>",
        )
        for name in names
    ]


@pytest.mark.slow_cases("gathers")
@pytest.mark.parametrize("forms", [gathers, movements, iotas], ids=lambda f: f.__name__)
def test_movement_is_that_of_the_reference(forms):
    given = forms()
    text, arrays = modules.module(given)
    outputs, expected = modules.run(text, *arrays), modules.reference(text, *arrays)
    for name, got, want in zip(modules.labels(given), outputs, expected, strict=True):
        floats.same_bits(got, want, name)


STARTS = [
    (np.uint8, 250),
    (np.int8, -100),
    (np.int8, 100),
    (np.uint16, 65535),
    (np.uint32, 2**31 + 5),
    (np.int64, -(2**40)),
    (np.int64, 2**33 + 1),
    (np.uint64, 2**63 + 1),
]


@pytest.mark.slow
def test_slices_and_gathers_at_integers_of_every_dtype():
    """The reference interpreter clamps in the dtype of the index, which may be too
    narrow, and takes large unsigned ones for negative."""
    line = ints(np.random.default_rng(7), 300)
    forms, expected = [], []
    for number, (dtype, value) in enumerate(STARTS):
        start = np.array(value, dtype)
        type_ = modules.tensor(start)
        sliced = (
            "%r = stablehlo.dynamic_slice %0, %1, sizes = [20] : "
            f"(tensor<300xi32>, {type_}) -> tensor<20xi32>"
        )
        updated = (
            "%r = stablehlo.dynamic_update_slice %0, %2, %1 : "
            f"(tensor<300xi32>, tensor<20xi32>, {type_}) -> tensor<300xi32>"
        )
        part, at = line[:20].copy(), min(max(value, 0), 280)
        forms += [
            modules.form(f"slice_{number}", (line, start), (part,), sliced),
            modules.form(f"update_{number}", (line, start, part), (line,), updated),
        ]
        part_of, new = line[at : at + 20], line.copy()
        new[at : at + 20] = part
        column, at = line[:, None], min(max(value, 0), 299)
        rows = np.full((2, 1), value, dtype)
        numbers = (rows, (1, 1), (2, 1), ROW_NUMBERS)
        forms.append(gather(f"gather_{number}", column, *numbers))
        expected += [part_of, new, column[[at, at]]]
    text, arrays = modules.module(forms)
    outputs = modules.run(text, *arrays)
    for name, got, want in zip(modules.labels(forms), outputs, expected, strict=True):
        floats.same_bits(got, want, name)


def test_older_forms():
    rng = np.random.default_rng(8)
    x, where = ints(rng, 2, 5, 3), np.array([[0, 4, 9], [-2, 3, 1]], I32)
    forms = [
        modules.form(
            "broadcast",
            (x,),
            ("tensor<4x1x2x5x3xi32>",),
            '%r = "stablehlo.broadcast"(%0) <{broadcast_sizes = array<i64: 4, 1>}> : '
            "(tensor<2x5x3xi32>) -> tensor<4x1x2x5x3xi32>",
        ),
        modules.form(
            "batched_select",
            (x, where),
            ("tensor<2x3x3xi32>",),
            '%r = "stablehlo.torch_index_select"(%0, %1) <{dim = 1 : i64, batch_dims = '
            "1 : i64}> : (tensor<2x5x3xi32>, tensor<2x3xi32>) -> tensor<2x3x3xi32>",
        ),
        modules.form(
            "select",
            (x, where),
            ("tensor<2x5x2x3xi32>",),
            '%r = "stablehlo.torch_index_select"(%0, %1) <{dim = 2 : i64, batch_dims = '
            "0 : i64}> : (tensor<2x5x3xi32>, tensor<2x3xi32>) -> tensor<2x5x2x3xi32>",
        ),
    ]
    text, arrays = modules.module(forms)
    spread, batched, selected = modules.run(text, *arrays)
    floats.same_bits(spread, np.broadcast_to(x, (4, 1, 2, 5, 3)), "broadcast")
    rows = [x[b][np.clip(where[b], 0, 4)] for b in range(2)]
    floats.same_bits(batched, np.stack(rows), "batched select")
    floats.same_bits(selected, x[:, :, np.clip(where, 0, 2)], "select")

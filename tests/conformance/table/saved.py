"""Ops that no JAX function lowers to: text as a saved program may hold it.

All are loaded as one module. What is expected is written here in NumPy, on small
whole numbers, where every op is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
Y = np.array([2, 4, -1], np.float32)
I = np.array([[1, -2, 300], [7, 0, -(2**31)]], np.int32)  # noqa: E741
J = np.array([3, 1, 2], np.int32)
ARGUMENTS: Mapping[str, tuple[np.ndarray, str]] = {
    "%x": (X, "tensor<2x3xf32>"),
    "%y": (Y, "tensor<3xf32>"),
    "%i": (I, "tensor<2x3xi32>"),
    "%j": (J, "tensor<3xi32>"),
}


@dataclass(frozen=True)
class Saved:
    """Lines of StableHLO that define `%r` of a type, and what it is."""

    text: str
    type: str
    expected: Any


def _binary(
    op: str,
    other: str,
    kind: str,
    out: str,
    expected: Any,
    left: str | None = None,
    right: str | None = None,
) -> Saved:
    """A CHLO op that broadcasts a vector to a matrix."""
    left = left or ("%x" if kind == "f32" else "%i")
    right = right or ("%y" if kind == "f32" else "%j")
    types = f"(tensor<2x3x{kind}>, tensor<3x{kind}>) -> tensor<2x3x{out}>"
    return Saved(
        f"%r = chlo.{op} {left}, {right}{other} : {types}", f"2x3x{out}", expected
    )


_MATRIX = "(tensor<2x3xf32>, tensor<3xf32>)"
_SHIFTED = I.view(np.uint32)
_STATISTICS = "tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>"

SAVED: Mapping[str, Saved] = {
    "broadcast_add": _binary("broadcast_add", "", "f32", "f32", X + Y),
    "broadcast_subtract": _binary("broadcast_subtract", "", "f32", "f32", X - Y),
    "broadcast_multiply": _binary("broadcast_multiply", "", "f32", "f32", X * Y),
    "broadcast_divide": _binary("broadcast_divide", "", "f32", "f32", X / Y),
    "broadcast_maximum": _binary(
        "broadcast_maximum", "", "f32", "f32", np.maximum(X, Y)
    ),
    "broadcast_minimum": _binary(
        "broadcast_minimum", "", "f32", "f32", np.minimum(X, Y)
    ),
    "broadcast_remainder": _binary(
        "broadcast_remainder", "", "f32", "f32", np.fmod(X, Y)
    ),
    "broadcast_next_after": _binary(
        "broadcast_next_after", "", "f32", "f32", np.nextafter(X, Y)
    ),
    "broadcast_power": _binary(
        "broadcast_power", "", "f32", "f32", (X.astype(float) ** Y).astype(np.float32)
    ),
    "broadcast_compare": _binary(
        "broadcast_compare",
        " {comparison_direction = #chlo<comparison_direction LT>}",
        "f32",
        "i1",
        X < Y,
    ),
    "broadcast_and": _binary("broadcast_and", "", "i32", "i32", I & J),
    "broadcast_or": _binary("broadcast_or", "", "i32", "i32", I | J),
    "broadcast_xor": _binary("broadcast_xor", "", "i32", "i32", I ^ J),
    "broadcast_shift_left": _binary("broadcast_shift_left", "", "i32", "i32", I << J),
    "broadcast_shift_right_arithmetic": _binary(
        "broadcast_shift_right_arithmetic", "", "i32", "i32", I >> J
    ),
    "broadcast_shift_right_logical": _binary(
        "broadcast_shift_right_logical",
        "",
        "i32",
        "i32",
        (_SHIFTED >> J.view(np.uint32)).view(np.int32),
    ),
    "broadcast_atan2": _binary(
        "broadcast_atan2", "", "f32", "f32", np.zeros(X.shape, np.float32), "%x0", "%o"
    ),
    "broadcast_zeta": _binary(
        "broadcast_zeta",
        "",
        "f32",
        "f32",
        np.full(X.shape, np.inf, np.float32),
        "%o2",
        "%o",
    ),
    "broadcast_select": Saved(
        "%p = stablehlo.compare GT, %x, %x0 : (tensor<2x3xf32>, tensor<2x3xf32>)"
        " -> tensor<2x3xi1>\n"
        "%r = chlo.broadcast_select %p, %x, %y : (tensor<2x3xi1>, tensor<2x3xf32>,"
        " tensor<3xf32>) -> tensor<2x3xf32>",
        "2x3xf32",
        np.where(X > 0, X, Y),
    ),
    "constant": Saved(
        "%r = chlo.constant dense<[1, 2]> : tensor<2xi32>",
        "2xi32",
        np.array([1, 2], np.int32),
    ),
    "constant_like": Saved(
        '%r = "chlo.constant_like"(%x) {value = 3.0 : f32}'
        " : (tensor<2x3xf32>) -> tensor<2x3xf32>",
        "2x3xf32",
        np.full_like(X, 3),
    ),
    "is_inf": Saved(
        "%q = stablehlo.divide %x, %x0 : tensor<2x3xf32>\n"
        "%r = chlo.is_inf %q : tensor<2x3xf32> -> tensor<2x3xi1>",
        "2x3xi1",
        np.full(X.shape, True),
    ),
    "is_pos_inf": Saved(
        "%q = stablehlo.divide %x, %x0 : tensor<2x3xf32>\n"
        "%r = chlo.is_pos_inf %q : tensor<2x3xf32> -> tensor<2x3xi1>",
        "2x3xi1",
        X > 0,
    ),
    "is_neg_inf": Saved(
        "%q = stablehlo.divide %x, %x0 : tensor<2x3xf32>\n"
        "%r = chlo.is_neg_inf %q : tensor<2x3xf32> -> tensor<2x3xi1>",
        "2x3xi1",
        X < 0,
    ),
    "conj": Saved(
        "%q = stablehlo.complex %x, %x : tensor<2x3xcomplex<f32>>\n"
        "%c = chlo.conj %q : tensor<2x3xcomplex<f32>> -> tensor<2x3xcomplex<f32>>\n"
        "%r = stablehlo.imag %c : (tensor<2x3xcomplex<f32>>) -> tensor<2x3xf32>",
        "2x3xf32",
        -X,
    ),
    "broadcast": Saved(
        "%r = stablehlo.broadcast %y, sizes = [2] : (tensor<3xf32>) -> tensor<2x3xf32>",
        "2x3xf32",
        np.stack([Y, Y]),
    ),
    "dot": Saved(
        f"%r = stablehlo.dot %x, %y : {_MATRIX} -> tensor<2xf32>", "2xf32", X @ Y
    ),
    "torch_index_select": Saved(
        '%r = "stablehlo.torch_index_select"(%y, %k) {dim = 0 : i64,'
        " batch_dims = 0 : i64} : (tensor<3xf32>, tensor<3xi32>) -> tensor<3xf32>",
        "3xf32",
        Y[[2, 0, 1]],
    ),
    "map": Saved(
        '%r = "stablehlo.map"(%x, %x) ({\n'
        "^bb0(%a: tensor<f32>, %b: tensor<f32>):\n"
        "  %s = stablehlo.multiply %a, %b : tensor<f32>\n"
        "  %t = stablehlo.add %s, %a : tensor<f32>\n"
        "  stablehlo.return %t : tensor<f32>\n"
        "}) {dimensions = array<i64: 0, 1>}"
        " : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>",
        "2x3xf32",
        X * X + X,
    ),
    "get_dimension_size": Saved(
        "%r = stablehlo.get_dimension_size %x, dim = 1"
        " : (tensor<2x3xf32>) -> tensor<i32>",
        "i32",
        np.int32(3),
    ),
    "logistic": Saved(
        "%q = stablehlo.multiply %x0, %x : tensor<2x3xf32>\n"
        "%r = stablehlo.logistic %q : tensor<2x3xf32>",
        "2x3xf32",
        np.full(X.shape, 0.5, np.float32),
    ),
    "mulhi": Saved(
        "%q = stablehlo.constant dense<65536> : tensor<2x3xi32>\n"
        "%r = chlo.mulhi %i, %q : tensor<2x3xi32>, tensor<2x3xi32> -> tensor<2x3xi32>",
        "2x3xi32",
        (I.astype(np.int64) * 65536 >> 32).astype(np.int32),
    ),
    "tuple": Saved(
        "%t = stablehlo.tuple %x, %y : tuple<tensor<2x3xf32>, tensor<3xf32>>\n"
        "%r = stablehlo.get_tuple_element %t[1]"
        " : (tuple<tensor<2x3xf32>, tensor<3xf32>>) -> tensor<3xf32>",
        "3xf32",
        Y,
    ),
    "composite": Saved(
        '%r = stablehlo.composite "my.sum" %x, %x {decomposition = @added}'
        " : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>",
        "2x3xf32",
        X + X,
    ),
    "if": Saved(
        "%t = stablehlo.constant dense<true> : tensor<i1>\n"
        '%r = "stablehlo.if"(%t) ({ stablehlo.return %x : tensor<2x3xf32> },'
        " { stablehlo.return %x0 : tensor<2x3xf32> })"
        " : (tensor<i1>) -> tensor<2x3xf32>",
        "2x3xf32",
        X,
    ),
    "batch_norm_inference": Saved(
        '%r = "stablehlo.batch_norm_inference"(%x, %y, %y, %y, %o)'
        " {epsilon = 3.0 : f32, feature_index = 1 : i64}"
        f" : (tensor<2x3xf32>, {_STATISTICS}) -> tensor<2x3xf32>",
        "2x3xf32",
        (X - Y) / 2 * Y + Y,
    ),
    "batch_norm_grad": Saved(
        '%r, %s, %u = "stablehlo.batch_norm_grad"(%x, %o, %y, %o, %x0)'
        " {epsilon = 0.0 : f32, feature_index = 1 : i64}"
        " : (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>,"
        " tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>)",
        "2x3xf32",
        np.zeros_like(X),
    ),
    "batch_norm_training": Saved(
        '%r, %m, %v = "stablehlo.batch_norm_training"(%x4, %o, %y)'
        " {epsilon = 0.0 : f32, feature_index = 1 : i64}"
        " : (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>)"
        " -> (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>)",
        "2x3xf32",
        np.sign(X * X - (X * X)[::-1]) + Y,
    ),
}

#: What the composite calls.
ADDED = """
func.func private @added(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
%r = stablehlo.add %a, %b : tensor<2x3xf32>
return %r : tensor<2x3xf32>
}
"""
#: Before every op: zeros, indices, ones, and squares.
PREAMBLE = """
%x0 = stablehlo.constant dense<0.0> : tensor<2x3xf32>
%k = stablehlo.constant dense<[2, 0, 1]> : tensor<3xi32>
%o = stablehlo.constant dense<1.0> : tensor<3xf32>
%o2 = stablehlo.constant dense<1.0> : tensor<2x3xf32>
%x4 = stablehlo.multiply %x, %x : tensor<2x3xf32>
"""


def module() -> str:
    """One program of all ops: a function each, all called by main."""
    names = list(SAVED)
    signature = ", ".join(f"{name}: {kind}" for name, (_, kind) in ARGUMENTS.items())
    values = ", ".join(ARGUMENTS)
    kinds = ", ".join(kind for _, kind in ARGUMENTS.values())
    types = [f"tensor<{SAVED[name].type}>" for name in names]
    calls = "\n".join(
        f"%r{i} = func.call @op{i}({values}) : ({kinds}) -> {kind}"
        for i, kind in enumerate(types)
    )
    results = ", ".join(f"%r{i}" for i in range(len(names)))
    main = (
        f"func.func public @main({signature}) -> ({', '.join(types)}) {{\n{calls}\n"
        f"return {results} : {', '.join(types)}\n}}"
    )
    ops = (
        f"func.func private @op{i}({signature}) -> {kind} {{{PREAMBLE}"
        f"{SAVED[name].text}\nreturn %r : {kind}\n}}"
        for i, (name, kind) in enumerate(zip(names, types, strict=True))
    )
    return "module {\n" + "\n".join([main, ADDED, *ops]) + "\n}"

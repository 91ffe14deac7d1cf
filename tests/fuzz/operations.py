"""The operations that random programs are made of, as a table.

Every float result stays within about [-2, 2] if the operands do, by a factor or a
bounded function in the expression, so that programs of forty operations neither
overflow nor forget their inputs. A kink (abs, max, sort) is continuous, but its
gradient is not; a decision (compare, argmax, truncation) is not even continuous.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.fuzz.program import Value
from tests.fuzz.types import FLOATS, INTEGERS, SMALL_FLOATS, WIDE_INTEGERS

Choices = Callable[[Value], Sequence[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """One row.

    Attributes:
        name: for reports.
        expression: Python with {a}, {b}, {c} for the operands, {shape} and {dtype}
            for those of a, and {key} for every key of `choices`.
        operands: a letter each: f(loat), i(nteger), b(ool), n(ot bool), x (any).
            Operands of the letter of the first have its dtype too.
        broadcast: operands after the first are used as they are where their shapes
            broadcast, else resized to that of a. Without, the expression resizes.
        ranks: (lowest, highest) of a.
        exact: "never", "kept" (where all operands are) or "needed" (operands must be).
        kink: not smooth; in differentiated programs the operands must be exact.
        choices: attribute -> the values to draw from, given a.
    """

    name: str
    expression: str
    operands: str = "f"
    broadcast: bool = True
    ranks: tuple[int, int] = (0, 4)
    exact: str = "never"
    kink: bool = False
    choices: Mapping[str, Choices] = dataclasses.field(default_factory=dict)


def _axes(a: Value) -> Sequence[int]:
    return range(-len(a.shape), len(a.shape))


def _axis_sets(a: Value) -> Sequence[Any]:
    every = tuple(range(len(a.shape)))
    return [None, *every, every[:2], every[1:]]


def _orders(a: Value) -> Sequence[tuple[int, ...]]:
    n = len(a.shape)
    return [tuple(range(n))[::-1], (*range(1, n), 0), (n - 1, *range(n - 1))]


def _axis(*, keep: bool = False) -> Mapping[str, Choices]:
    keeps = {"keep": lambda a: (False, True)} if keep else {}
    return {"axis": _axes, **keeps}


def _fixed(*options: Any) -> Choices:
    return lambda a: options


_SETS: Mapping[str, Choices] = {"axis": _axis_sets, "keep": _fixed(False, True)}

_SMALL = sorted({name for names in SMALL_FLOATS.values() for name in names})
_EVERY_FLOAT = (*FLOATS, *_SMALL)


def _rows(expressions: Mapping[str, str], **common: Any) -> list[Operation]:
    return [
        Operation(name=name, expression=expression, **common)
        for name, expression in expressions.items()
    ]


_SMOOTH = _rows(
    {
        "tanh": "jnp.tanh({a})",
        "sin": "jnp.sin({a} * 3)",
        "cos": "jnp.cos({a})",
        "exp": "jnp.exp({a}) * 0.25",
        "log": "jnp.log({a} * {a} + 0.5)",
        "sqrt": "jnp.sqrt({a} * {a} + 0.25)",
        "rsqrt": "lax.rsqrt({a} * {a} + 0.5)",
        "sigmoid": "jax.nn.sigmoid({a})",
        "erf": "jax.scipy.special.erf({a})",
        "gelu": "jax.nn.gelu({a})",
        "expm1": "jnp.expm1({a} * 0.5)",
        "log1p": "jnp.log1p({a} * 0.25)",
        "cube": "{a} ** 3 * 0.25",
        "atan": "jnp.arctan({a})",
        "power": "(jnp.abs({a} * 0 + 1.5)) ** {a} * 0.5",
        "affine": "{a} * 0.75 + 0.25",
    }
)
_BINARY = _rows(
    {
        "add": "({a} + {b}) * 0.5",
        "subtract": "({a} - {b}) * 0.5",
        "multiply": "{a} * {b} * 0.5",
        "divide": "{a} / (1 + {b} * {b})",
        "atan2": "jnp.arctan2({a}, {b} * {b} + 0.5) * 0.5",
        "logaddexp": "jnp.logaddexp({a}, {b}) * 0.5",
    },
    operands="ff",
) + _rows({"fused": "{a} * {b} * 0.25 + {c} * 0.5"}, operands="fff")
_KINKS = (
    _rows(
        {
            "abs": "jnp.abs({a})",
            "relu": "jax.nn.relu({a})",
            "clip": "jnp.clip({a}, -1, 1)",
        },
        exact="kept",
        kink=True,
    )
    + _rows(
        {"maximum": "jnp.maximum({a}, {b})", "minimum": "jnp.minimum({a}, {b})"},
        operands="ff",
        exact="kept",
        kink=True,
    )
    + _rows(
        {
            "max": "jnp.max({a}, axis={axis}, keepdims={keep})",
            "min": "jnp.min({a}, axis={axis}, keepdims={keep})",
        },
        ranks=(1, 4),
        exact="kept",
        kink=True,
        choices=_SETS,
    )
    + _rows(
        {
            "sort": "jnp.sort({a}, axis={axis})",
            "cummax": "lax.cummax({a}, axis={axis} % {a}.ndim)",
        },
        ranks=(1, 4),
        exact="kept",
        kink=True,
        choices=_axis(),
    )
    + _rows(
        {
            "max pool": "lax.reduce_window({a}, -jnp.inf, lax.max, {window}, "
            "{window}, 'SAME')"
        },
        ranks=(1, 3),
        exact="kept",
        kink=True,
        choices={"window": lambda a: [(2,) * len(a.shape)]},
    )
)
_REDUCTIONS = (
    _rows(
        {
            "mean": "jnp.mean({a}, axis={axis}, keepdims={keep})",
            "sum": "jnp.sum({a} * 0.125, axis={axis}, keepdims={keep})",
            "tanh sum": "jnp.tanh(jnp.sum({a}, axis={axis}, keepdims={keep}))",
            "product": "jnp.prod(jnp.tanh({a}), axis={axis}, keepdims={keep})",
            "logsumexp": "jax.nn.logsumexp({a}, axis={axis}, keepdims={keep}) * 0.5",
            "variance": "jnp.var({a}, axis={axis}, keepdims={keep}) * 0.5",
        },
        ranks=(1, 4),
        choices=_SETS,
    )
    + _rows(
        {
            "softmax": "jax.nn.softmax({a}, axis={axis})",
            "log softmax": "jax.nn.log_softmax({a}, axis={axis}) * 0.25",
            "cumsum": "jnp.cumsum({a} * 0.25, axis={axis})",
            "cumprod": "jnp.cumprod(jnp.tanh({a}), axis={axis})",
            "normalize": "{a} / jnp.sqrt(jnp.sum({a} * {a}, axis={axis}, "
            "keepdims=True) + 1)",
            "standardize": "jax.nn.standardize({a}, axis={axis}, epsilon=0.1)",
        },
        ranks=(1, 4),
        choices=_axis(),
    )
    + _rows(
        {
            "average pool": "lax.reduce_window({a} * 0.25, 0.0, lax.add, {window}, "
            "{window}, 'SAME')"
        },
        ranks=(1, 3),
        choices={"window": lambda a: [(2,) * len(a.shape)]},
    )
)
_DOTS = (
    _rows(
        {
            "inner": "jnp.tanh({a} @ jnp.resize({b}, ({a}.shape[-1],)))",
            "matrix": "jnp.tanh({a} @ jnp.resize({b}, ({a}.shape[-1], 5)))",
            "transposed": "jnp.tanh(jnp.resize({b}, (3, {a}.shape[0])) @ "
            "{a}.reshape({a}.shape[0], -1))",
            "outer": "jnp.outer({a}[..., 0], jnp.resize({b}, (5,))) * 0.5",
            "wide": "jnp.resize({a}, (3, 260)) @ jnp.resize({b} / 64, (260, 5))",
        },
        operands="ff",
        broadcast=False,
        ranks=(1, 3),
    )
    + _rows(
        {
            "gram": "jnp.einsum('...ij,...kj->...ik', {a}, {a}) * 0.0625",
            "accumulate": "jnp.tanh(jnp.einsum('...ij,...ik->...jk', {a}, {a}, "
            "preferred_element_type=jnp.float32))",
        },
        ranks=(2, 4),
    )
    + _rows(
        {
            "convolution": "jnp.tanh(lax.conv_general_dilated(jnp.resize({a}, "
            "(2, 6, 6, 3)), jnp.resize({b}, (3, 2, 3, 2)), ({stride}, 1), {padding!r}, "
            "dimension_numbers=('NHWC', 'HWIO', 'NHWC'), lhs_dilation=(1, {dilate})))",
            "depthwise": "jnp.tanh(lax.conv_general_dilated(jnp.resize({a}, "
            "(2, 7, 4)), jnp.resize({b}, (3, 1, 4)), (1,), {padding!r}, "
            "dimension_numbers=('NWC', 'WIO', 'NWC'), feature_group_count=4, "
            "rhs_dilation=({dilate},)))",
        },
        operands="ff",
        broadcast=False,
        ranks=(1, 4),
        choices={
            "stride": _fixed(1, 2),
            "padding": _fixed("SAME", "VALID"),
            "dilate": _fixed(1, 2),
        },
    )
)
_MOVES = (
    _rows(
        {
            "transpose": "jnp.transpose({a}, {order})",
        },
        operands="x",
        ranks=(2, 4),
        exact="kept",
        choices={"order": _orders},
    )
    + _rows(
        {
            "flatten": "{a}.reshape(-1)",
            "expand": "{a}[None]",
            "broadcast": "jnp.broadcast_to({a}, (2, *{a}.shape))",
        },
        operands="x",
        ranks=(0, 3),
        exact="kept",
    )
    + _rows(
        {
            "flip": "jnp.flip({a}, axis={axis})",
            "roll": "jnp.roll({a}, 2, axis={axis})",
            "squeeze sum": "jnp.take({a}, 0, axis={axis})",
            "pair": "jnp.concatenate([{a}, {a}], axis={axis})",
            "strided": "lax.slice_in_dim({a}, 0, None, 2, axis={axis} % {a}.ndim)",
            "drop": "lax.slice_in_dim({a}, {a}.shape[{axis}] // 2, None, "
            "axis={axis} % {a}.ndim)",
            "pad": "jnp.pad({a}, 1)[1:]",
            "tile": "jnp.tile({a}, 2)",
            "diagonal": "jnp.diagonal(jnp.resize({a}, (3, 4)))",
            "triangle": "jnp.tril(jnp.resize({a}, (3, 5)))",
        },
        operands="x",
        ranks=(1, 4),
        exact="kept",
        choices=_axis(),
    )
    + _rows(
        {"stack": "jnp.stack([{a}, jnp.resize({b}, {shape})], axis={axis})"},
        operands="xx",
        broadcast=False,
        ranks=(1, 3),
        exact="kept",
        choices=_axis(),
    )
    + _rows(
        {
            "round": "jnp.round({a} * 2) / 2",
            "floor": "jnp.floor({a})",
            "sign": "jnp.sign({a})",
        },
        exact="needed",
    )
    + _rows({"negate": "-{a}"}, exact="kept")
)
_INDEXED = _rows(
    {
        "gather": "{a}[jnp.resize({b} % {a}.shape[0], (4,))]",
        "gather clipped": "{a}.at[jnp.resize({b}, (3,))].get(mode='clip')",
        "gather filled": "{a}.at[jnp.resize({b} % 7, (3,))].get(mode='fill', "
        "fill_value=0)",
        "dynamic slice": "lax.dynamic_slice_in_dim({a}, jnp.resize({b}, ()), "
        "max({a}.shape[0] - 1, 1))",
        "dynamic update": "lax.dynamic_update_index_in_dim({a}, {a}[0], "
        "jnp.resize({b}, ()).astype(jnp.int32), 0)",
        "take along": "jnp.take_along_axis({a}, jnp.resize({b} % {a}.shape[-1], "
        "{shape}), axis=-1)",
        "scatter": "{a}.at[jnp.resize({b} % 3, ())].set(1)",
        "scatter max": "{a}.at[jnp.resize({b} % {a}.shape[0], (5,))].max(0)",
    },
    operands="ni",
    broadcast=False,
    ranks=(1, 3),
    exact="kept",
) + _rows(
    {
        "scatter add": "jnp.tanh({a}.at[jnp.resize({b} % {a}.shape[0], (5,))]"
        ".add({a}[:1] * 0.5))",
        "segment sum": "jax.ops.segment_sum({a} * 0.25, jnp.resize({b} % 3, "
        "({a}.shape[0],)), 3)",
        "scatter multiply": "{a}.at[jnp.resize({b} % {a}.shape[0], (5,))]"
        ".multiply(0.75)",
    },
    operands="fi",
    broadcast=False,
    ranks=(1, 3),
)
_DECISIONS = (
    _rows(
        {
            "less": "{a} < {b}",
            "equal": "{a} == {b}",
            "at least": "{a} >= {b}",
        },
        operands="nn",
        exact="needed",
    )
    + _rows(
        {
            "argmax": "jnp.argmax({a}, axis={axis})",
            "argsort": "jnp.argsort({a}, axis={axis})",
            "top k": "lax.top_k({a}, 1)[1]",
        },
        operands="n",
        ranks=(1, 4),
        exact="needed",
        choices=_axis(),
    )
    + _rows(
        {"truncate": "({a} * 3).astype(jnp.int32)", "narrow": "{a}.astype(jnp.int8)"},
        exact="needed",
    )
    + _rows(
        {"bits": "lax.bitcast_convert_type({a}.astype(jnp.float32), jnp.uint32)"},
        exact="needed",
    )
    + _rows({"select": "jnp.where({a}, {b}, {c})"}, operands="bff", exact="kept")
    + _rows({"select integers": "jnp.where({a}, {b}, {c})"}, operands="bii")
    + _rows({"masked": "jnp.where({b}, {a}, 0.5)"}, operands="fb", exact="kept")
)
_CONVERSIONS = (
    _rows(
        {f"to {to}": f"{{a}}.astype(jnp.{to})" for to in _EVERY_FLOAT},
    )
    + _rows(
        {f"integer to {to}": f"({{a}} & 7).astype(jnp.{to}) / 4" for to in FLOATS}
        | {
            f"integer to {to}": f"{{a}}.astype(jnp.{to})"
            for to in (*INTEGERS, *WIDE_INTEGERS)
        },
        operands="i",
        exact="kept",
    )
    + _rows(
        {f"bool to {to}": f"{{a}}.astype(jnp.{to})" for to in (*FLOATS, "int32")},
        operands="b",
        exact="kept",
    )
)
_INTEGER = (
    _rows(
        {
            "not": "~{a}",
            "increment": "{a} + 1",
            "population": "lax.population_count({a})",
            "leading zeros": "lax.clz({a})",
            "square": "{a} * {a}",
            "third": "{a} // 3",
            "remainder": "{a} % 5",
            "shift": "({a} >> 3) ^ ({a} << 2)",
            "logical shift": "lax.shift_right_logical({a}, jnp.asarray(1, {a}.dtype))",
            "iabs": "jnp.abs({a} >> 1)",
            "isign": "jnp.sign({a})",
            "iclip": "jnp.clip({a}, 2, 90)",
        },
        operands="i",
        exact="kept",
    )
    + _rows(
        {
            "iadd": "{a} + {b}",
            "isubtract": "{a} - {b}",
            "imultiply": "{a} * {b}",
            "and": "{a} & {b}",
            "or": "{a} | {b}",
            "xor": "{a} ^ {b}",
            "imax": "jnp.maximum({a}, {b})",
            "idivide": "lax.div(*jnp.broadcast_arrays({a}, ({b} & 7) + 1))",
            "irem": "lax.rem(*jnp.broadcast_arrays({a}, ({b} & 7) + 1))",
            "variable shift": "{a} << ({b} & 7)",
        },
        operands="ii",
        exact="kept",
    )
    + _rows(
        {
            "isum": "jnp.sum({a}, axis={axis}, keepdims={keep})",
            "imax of": "jnp.max({a}, axis={axis}, keepdims={keep})",
            "imin of": "jnp.min({a}, axis={axis}, keepdims={keep})",
            "iproduct": "jnp.prod({a}, axis={axis}, keepdims={keep})",
        },
        operands="i",
        ranks=(1, 4),
        exact="kept",
        choices=_SETS,
    )
    + _rows(
        {"icumsum": "jnp.cumsum({a}, axis={axis})", "isort": "jnp.sort({a}, {axis})"},
        operands="i",
        ranks=(1, 4),
        exact="kept",
        choices=_axis(),
    )
    + _rows(
        {
            "idot": "jnp.matmul({a}, jnp.resize({b}, ({a}.shape[-1], 3)), "
            "preferred_element_type=jnp.int32)",
            "iscatter": "{a}.at[jnp.resize({b} % {a}.shape[0], (4,))].add(3)",
        },
        operands="ii",
        broadcast=False,
        ranks=(1, 3),
        exact="kept",
    )
    + _rows(
        {
            "one hot": "jax.nn.one_hot({a} % 4, 4)",
            "draw": "jax.random.uniform(jax.random.key(jnp.resize({a}, ())), (3, 5))",
        },
        operands="i",
        ranks=(0, 2),
        exact="kept",
    )
)
_LOGICAL = (
    _rows({"lnot": "~{a}"}, operands="b", exact="kept")
    + _rows(
        {"land": "{a} & {b}", "lor": "{a} | {b}", "lxor": "{a} ^ {b}"},
        operands="bb",
        exact="kept",
    )
    + _rows(
        {
            "any": "jnp.any({a}, axis={axis}, keepdims={keep})",
            "all": "jnp.all({a}, axis={axis}, keepdims={keep})",
            "count": "jnp.sum({a}, axis={axis}, keepdims={keep})",
        },
        operands="b",
        ranks=(1, 4),
        exact="kept",
        choices=_SETS,
    )
)

#: Group -> rows; a group is drawn first, so that long groups are not drawn more.
OPERATIONS: Mapping[str, Sequence[Operation]] = {
    "smooth": _SMOOTH,
    "binary": _BINARY,
    "kinks": _KINKS,
    "reductions": _REDUCTIONS,
    "dots": _DOTS,
    "moves": _MOVES,
    "indexed": _INDEXED,
    "decisions": _DECISIONS,
    "conversions": _CONVERSIONS,
    "integer": _INTEGER,
    "logical": _LOGICAL,
}

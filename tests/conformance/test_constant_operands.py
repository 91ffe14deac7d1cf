"""Operands that XLA knows: compiled is op by op, whatever its compiler would fold.

Constants of a closure, arguments that are constants of an outer jit, and literals, of
every dtype of the chips, over the numbers where arithmetic wraps, saturates or rounds.
Op by op an operand is an argument, of which the compiler knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import neuronjax as nj

Op = Callable[..., Any]

INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
FLOATS = "float8_e4m3 float8_e5m2 float8_e3m4 bfloat16 float16 float32".split()
#: Trainium3 has e4m3fn in place of e4m3.
ON_TRN3 = "float8_e4m3fn"
DTYPES = ("bool", *INTEGERS, *FLOATS, ON_TRN3)

COMMON: dict[str, Op] = {
    "eq": lax.eq,
    "lt": lax.lt,
    "maximum": lax.max,
    "minimum": lax.min,
    "select": lambda a, b: lax.select(lax.lt(a, b), a, b),
    "reduce_max": lambda a, b: lax.reduce_max(a, (0,)),
    "reduce_min": lambda a, b: lax.reduce_min(b, (0,)),
    "sort": lambda a, b: lax.sort([a, b], num_keys=1),
    "argmax": lambda a, b: jnp.argmax(a),
    "reverse": lambda a, b: lax.rev(a, (0,)),
}
ARITHMETIC: dict[str, Op] = {
    "add": lax.add,
    "subtract": lax.sub,
    "multiply": lax.mul,
    "divide": lax.div,
    "remainder": lax.rem,
    "negate": lambda a, b: lax.neg(a),
    "sign": lambda a, b: lax.sign(a),
    "clamp": lambda a, b: lax.clamp(lax.min(a, b), b, lax.max(a, b)),
    "reduce_sum": lambda a, b: lax.reduce_sum(a, (0,)),
    "reduce_prod": lambda a, b: lax.reduce_prod(a, (0,)),
    "cumsum": lambda a, b: lax.cumsum(a),
    "cumprod": lambda a, b: lax.cumprod(a),
    "dot": lambda a, b: lax.dot(a.reshape(1, -1), b.reshape(-1, 1)),
    "scatter_add": lambda a, b: a.at[jnp.array([0, 1, 0])].add(b[:3]),
}
OF_INTEGERS: dict[str, Op] = {
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "not": lambda a, b: lax.bitwise_not(a),
    "reduce_and": lambda a, b: lax.reduce_and(a, (0,)),
    "reduce_xor": lambda a, b: lax.reduce_xor(b, (0,)),
}
OF_NUMBERS: dict[str, Op] = {
    "mulhi": lax.mulhi,
    "popcnt": lambda a, b: lax.population_count(a),
    "clz": lambda a, b: lax.clz(a),
    "shift_left": lax.shift_left,
    "shift_right_logical": lax.shift_right_logical,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "integer_power": lambda a, b: lax.integer_pow(a, 5),
}
OF_FLOATS: dict[str, Op] = {
    "abs": lambda a, b: lax.abs(a),
    "floor": lambda a, b: lax.floor(a),
    "ceil": lambda a, b: lax.ceil(a),
    "round": lambda a, b: lax.round(a, lax.RoundingMethod.TO_NEAREST_EVEN),
    "is_finite": lambda a, b: lax.is_finite(a),
    "next_after": lax.nextafter,
    "power": lax.pow,
    "atan2": lax.atan2,
    "exp": lambda a, b: lax.exp(a),
    "log": lambda a, b: lax.log(a),
    "tanh": lambda a, b: lax.tanh(a),
    "rsqrt": lambda a, b: lax.rsqrt(a),
    "reduce_precision": lambda a, b: lax.reduce_precision(a, 4, 2),
}


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def target_of(name: str) -> str:
    return "trn3" if name == ON_TRN3 else "trn2"


def ops_of(name: str) -> dict[str, Op]:
    if name == "bool":
        return COMMON | OF_INTEGERS | conversions(name)
    if name in INTEGERS:
        return COMMON | ARITHMETIC | OF_INTEGERS | OF_NUMBERS | conversions(name)
    return COMMON | ARITHMETIC | OF_FLOATS | conversions(name)


def conversions(name: str) -> dict[str, Op]:
    targets = [t for t in DTYPES if t != name and t != ON_TRN3]
    if name == ON_TRN3:
        targets.remove("float8_e4m3")
        targets.remove("float8_e3m4")

    def to(target: str) -> Op:
        return lambda a, b: lax.convert_element_type(a, dtype_of(target))

    return {f"to {target}": to(target) for target in targets}


def extremes(name: str) -> np.ndarray:
    """The numbers at both ends, around zero, and between."""
    dtype = dtype_of(name)
    if name == "bool":
        return np.array([False, True])
    if name in INTEGERS:
        ends = np.iinfo(dtype)
        numbers = [ends.min, ends.min + 1, ends.max, ends.max // 3, -1, 0, 1, 3, 8, 100]
        return np.array([n for n in numbers if ends.min <= n], dtype)
    ends = ml_dtypes.finfo(dtype)
    tiny = [float(x) for x in (ends.tiny, ends.smallest_subnormal)]
    numbers = [float(ends.max), *tiny, 0.0, 1.0, 1.5, 0.1, np.nan, np.inf]
    signed = np.array([*numbers, *(-x for x in numbers)])
    with np.errstate(over="ignore", invalid="ignore"):
        return signed.astype(dtype)


def pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(extremes(name), extremes(name), indexing="ij")
    return a.ravel(), b.ravel()


def closure(ops: dict[str, Op], a: Any, b: Any, target: str) -> Any:
    def program() -> Any:
        x, y = jnp.asarray(a), jnp.asarray(b)
        return {name: op(x, y) for name, op in ops.items()}

    return nj.jit(program, target=target)()


def outer_jit(ops: dict[str, Op], a: Any, b: Any, target: str) -> Any:
    inner = nj.jit(
        lambda x, y: {name: op(x, y) for name, op in ops.items()}, target=target
    )
    return jax.jit(lambda: inner(jnp.asarray(a), jnp.asarray(b)))()


def bytes_of(results: Any) -> dict[str, list[bytes]]:
    return {
        name: [np.asarray(x).tobytes() for x in jax.tree.leaves(value)]
        for name, value in results.items()
    }


@pytest.fixture(autouse=True)
def _with_64_bit_integers():
    with jax.enable_x64(True):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("known", [closure, outer_jit])
def test_arrays(known, name):
    ops, target = ops_of(name), target_of(name)
    got = bytes_of(known(ops, *pairs(name), target))
    with jax.disable_jit():
        wanted = bytes_of(closure(ops, *pairs(name), target))
    assert [op for op in ops if got[op] != wanted[op]] == []


ELEMENTWISE = [
    *("add subtract multiply divide remainder maximum minimum eq lt").split(),
    *("and xor not popcnt clz shift_left shift_right_arithmetic mulhi").split(),
    *("to int8", "to int32", "to uint32", "to float8_e5m2", "to bfloat16"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "int32", "uint32", "bfloat16", "float8_e5m2"])
def test_literals(name):
    """Scalars of the program's text, spread over a tensor and not."""
    ops = {op: f for op, f in ops_of(name).items() if op in ELEMENTWISE}
    low, high = extremes(name)[[0, 2]]

    def program() -> Any:
        return {
            f"{op} {a} {b} {shape}": f(jnp.full(shape, a), jnp.full(shape, b))
            for op, f in ops.items()
            for a, b in ((low, high), (high, low), (low, low))
            for shape in ((), (3,))
        }

    got = bytes_of(nj.jit(program)())
    with jax.disable_jit():
        wanted = bytes_of(nj.jit(program)())
    assert [op for op in got if got[op] != wanted[op]] == []


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64"])
def test_leading_zeros_of_constants(name):
    """Computed ones, too: what is folded of a constant is one."""
    bits = np.iinfo(name).bits
    values = np.array([-1, -5, np.iinfo(name).min, 0, 7], name)
    got = nj.jit(lambda: lax.clz(jnp.asarray(values) + jnp.asarray(values) * 0))()
    assert np.asarray(got).tolist() == [0, 0, 0, bits, bits - 3]

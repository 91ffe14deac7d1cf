"""The operators of the ALUs, on FP32 and on bit patterns (nki.api.shared).

Comparisons and logical operators give 1.0 and 0.0. Every result that a rewrite by XLA
could change is sealed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.engines.vector import COMPARISONS, EXACT, INTEGERS, ROUNDED
from neuronjax.numerics import elementary
from neuronjax.numerics.elementary_core import flush
from neuronjax.numerics.exact import seal, sealed_product

Function = Callable[[Any, Any, jax.Array], jax.Array]

# Name of an operator in nki.language -> its name in `engines.vector`.
_COMPARISONS = {
    "equal": "EQ",
    "not_equal": "NE",
    "greater": "GT",
    "greater_equal": "GE",
    "less": "LT",
    "less_equal": "LE",
}
_BITS = {
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "left_shift": "shift_left",
    "right_shift": "shift_right_logical",
}


def _flag(condition: jax.Array) -> jax.Array:
    return jnp.where(condition, jnp.float32(1), jnp.float32(0))


def _compared(compare: Callable) -> Function:
    return lambda a, b, zero: _flag(compare(a, b))


def _logical(combine: Callable) -> Function:
    return lambda a, b, zero: _flag(combine(a != 0, b != 0))


def _rounded(name: str) -> Function:
    function = ROUNDED[name]
    return lambda a, b, zero: seal(function(a, b, zero), zero)


def _elementary(name: str) -> Function:
    function = elementary.UNARY[name]
    return lambda a, b, zero: seal(function(a, zero), zero)


def modulo(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the remainder with the sign of the divisor."""
    rest = elementary.BINARY["remainder"](a, b, zero)
    other = (rest != 0) & ((rest < 0) != (b < 0))
    return seal(jnp.where(other, rest + b, rest), zero)


def _size(x: jax.Array) -> jax.Array:
    return lax.abs(flush(x))


# abs_max and abs_min return an operand with its sign, and the second operand if the
# magnitudes are equal (nki.language.abs_max).
ARITHMETIC: dict[str, Function] = {
    **{op: _rounded(op) for op in ("add", "subtract", "multiply", "divide", "power")},
    "maximum": lambda a, b, zero: EXACT["maximum"](a, b),
    "minimum": lambda a, b, zero: EXACT["minimum"](a, b),
    **{op: _compared(COMPARISONS[name]) for op, name in _COMPARISONS.items()},
    "mod": modulo,
    "abs_max": lambda a, b, zero: jnp.where(_size(a) > _size(b), flush(a), flush(b)),
    "abs_min": lambda a, b, zero: jnp.where(_size(a) < _size(b), flush(a), flush(b)),
    "logical_and": _logical(jnp.logical_and),
    "logical_or": _logical(jnp.logical_or),
    "logical_xor": _logical(jnp.logical_xor),
    "abs": lambda a, b, zero: lax.abs(a),
    "square": lambda a, b, zero: sealed_product(a, a, zero),
    "relu": lambda a, b, zero: lax.max(flush(a), jnp.float32(0)),
    "rsqrt": _elementary("rsqrt"),
    "reciprocal": _elementary("reciprocal"),
}

# (a, b) on unsigned integers of the operand's width.
BITWISE: dict[str, Callable[[Any, Any], jax.Array]] = {
    **{op: INTEGERS[name] for op, name in _BITS.items()},
    "invert": lambda a, b: lax.bitwise_not(a),
}

# (a, b) on 32-bit integers, as GpSimd computes them: modulo 2^32.
INTEGER: dict[str, Callable[[Any, Any], jax.Array]] = {
    **{
        op: INTEGERS[op]
        for op in ("add", "subtract", "multiply", "maximum", "minimum", "divide")
    },
    **{op: COMPARISONS[name] for op, name in _COMPARISONS.items()},
    "mod": lambda a, b: jnp.mod(a, b),
    "abs_max": lambda a, b: jnp.where(lax.abs(a) > lax.abs(b), a, b),
    "abs_min": lambda a, b: jnp.where(lax.abs(a) < lax.abs(b), a, b),
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "logical_xor": lambda a, b: (a != 0) ^ (b != 0),
}


def arithmetic(
    op: str, a: Any, b: Any, zero: jax.Array, reverse: bool = False
) -> jax.Array:
    """Return a <op> b of FP32 arrays that broadcast, or b <op> a if `reverse`. A unary
    operator has no b."""
    if reverse and b is not None:
        a, b = b, a
    if b is not None and b.shape != a.shape:
        a, b = jnp.broadcast_arrays(a, b)
    return ARITHMETIC[op](a, b, zero)


def bitwise(op: str, a: Any, b: Any, reverse: bool = False) -> jax.Array:
    """Return a <op> b of bit patterns, in the dtype of the first operand."""
    if reverse and b is not None:
        a, b = b, a
    word = jnp.dtype(f"uint{8 * a.dtype.itemsize}")
    patterns = [_pattern(v, word) for v in (a, b) if v is not None]
    if len(patterns) == 1:
        patterns.append(patterns[0])
    shape = jnp.broadcast_shapes(*(p.shape for p in patterns))
    result = BITWISE[op](*(jnp.broadcast_to(p, shape) for p in patterns))
    return lax.bitcast_convert_type(result, a.dtype)


def _pattern(x: Any, word: Any) -> jax.Array:
    x = jnp.asarray(x)
    if x.dtype.itemsize == word.itemsize:
        return x if x.dtype == word else lax.bitcast_convert_type(x, word)
    return x.astype(word)

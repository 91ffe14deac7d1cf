"""ScalarE's functions as its tables compute them: piecewise cubic polynomials.

Sources: ScalarE evaluates piecewise polynomials (nki.isa); beyond its range the sine
continues as a cubic that is the Taylor polynomial at pi; and Amazon's patent US
10,740,432 describes the circuit: a table of base values and Taylor coefficients, chosen
by the argument, then subtractions, products and sums. Measurements decide the rest
(docs/exactness.md): four segments to an octave, expanded in their middles to degree 3,
give the published errors of two kernels with rsqrt to 0.05 %; segments of width 1/4
give nearly all of the error of three kernels with exp. The segments of the other
functions, and every bit within a segment, are our choice.

A function is data (tables/scalar_engine.json); one evaluator serves them all:

1. Subnormal arguments are zeros. For odd and even functions |x| is looked up.
2. `power`: x = m 2^2k with m in 1..4, or m 2^k with m in 1..2 for the reciprocal, and
   f(x) = f(m) times a power of two. `log`: x = m 2^k with m in 3/4..3/2, and
   log(x) = log(m) + k ln 2. Other functions look up x itself.
3. Sign, exponent and leading bits of the mantissa choose the row, and with it the base.
4. d = x - base, then ((c3 d + c2) d + c1) d + c0, every product and every sum rounded
   to FP32: the patent's circuits are separate.
5. Limits, values at zero and NaNs are set. Products and results below 2^-126 are zeros,
   so results below 2^-110 are inaccurate.

Products are sealed, so the bits are the same in every context.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.numerics.elementary import read_table
from neuronjax.numerics.elementary_core import (
    INF,
    MANTISSA,
    NAN,
    SIGN,
    bits_of,
    float_of,
    flush,
    magnitude,
    scale,
    shifted_integer,
    with_sign,
)
from neuronjax.numerics.exact import own_kernel, seal


@dataclass(frozen=True)
class Octave:
    """The segments of sign * 2^exponent <= x < sign * 2^(exponent + 1).

    Attributes:
        sign: 1 or -1.
        exponent: the binary exponent of its arguments.
        first: the row of the first segment; the others follow.
        bits: there are 2^bits segments of equal width, fewer where the limit of the
            function comes first.
    """

    sign: int
    exponent: int
    first: int
    bits: int


@dataclass(frozen=True)
class Limit:
    """The value of a function at `start` and at all arguments farther from zero.

    Attributes:
        start: the argument.
        value: the value, or None for a function that returns its argument.
    """

    start: np.float32
    value: np.float32 | None


@dataclass(frozen=True, kw_only=True, eq=False)
class PiecewiseCubic:
    """A function, as a table of piecewise cubic polynomials.

    Attributes:
        parity: "odd" or "even" if |x| is looked up, "none" if x itself is.
        reduction: "none", "power" or "log", see `numerics.scalar_engine`.
        power: the exponent of a function x^power, under "power".
        octaves: octaves of the arguments after the reduction. Smaller arguments than
            these use row 0; larger ones, if there is no limit, use the last row.
        bases: row -> the argument about which its segment is expanded, if that is not
            the segment's middle.
        above, below: the limits of large positive and negative arguments.
        at_zero: the value at signed zeros: "table", "zero" or "infinity" of their sign.
        ratios: coefficients 1 to 3 as multiples of coefficient 0, or ().
        coefficients: float32 [rows] each, lowest first; under `ratios` only one.
        error: the largest error of a segment, relative to the largest value in it.
    """

    parity: str
    reduction: str
    power: float
    octaves: tuple[Octave, ...]
    bases: Mapping[int, np.float32]
    above: Limit | None
    below: Limit | None
    at_zero: str
    ratios: tuple[np.float32, ...]
    coefficients: tuple[np.ndarray, ...]
    error: float

    @property
    def rows(self) -> int:
        return len(self.coefficients[0])


def _float(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def _limit(found: list[Any] | None) -> Limit | None:
    if found is None:
        return None
    start, value = found
    return Limit(_float(start), None if value == "x" else _float(value))


def _table(row: Mapping[str, Any]) -> PiecewiseCubic:
    fields = {name: row[name] for name in ("parity", "reduction", "power", "at_zero")}
    columns = row["coefficients"]
    return PiecewiseCubic(
        **fields,
        octaves=tuple(Octave(*octave) for octave in row["octaves"]),
        bases={int(n): _float(bits) for n, bits in row["bases"].items()},
        above=_limit(row["above"]),
        below=_limit(row["below"]),
        ratios=tuple(map(_float, row["ratios"])),
        coefficients=tuple(np.array(c, np.uint32).view(np.float32) for c in columns),
        error=row["error"],
    )


@functools.cache
def tables() -> Mapping[str, PiecewiseCubic]:
    """Return the table of every function, by its name in nki.language."""
    rows = read_table("scalar_engine.json")
    return MappingProxyType({name: _table(row) for name, row in rows.items()})


Function = Callable[[jax.Array, jax.Array], jax.Array]

# Operations of StableHLO and CHLO that are one function of the engine for any argument.
# For other operations, such as sine and cosine, the vendor's compiler chooses several
# instructions; these operations use `elementary`.
OF_PROGRAMS: Mapping[str, str] = MappingProxyType(
    {
        "atan": "arctan",
        "erf": "erf",
        "exponential": "exp",
        "log": "log",
        "logistic": "sigmoid",
        "rsqrt": "rsqrt",
        "sqrt": "sqrt",
        "tanh": "tanh",
    }
)

LN2 = np.float32(0.6931471805599453)
_LOG_START = np.uint32(0x3F400000)  # 3/4, the least m of the logarithm
# Tables of at most this many rows become chains of selections, others are gathered:
# in XLA's CPU code both take the same time with 8 rows; with 26 rows, selections take
# twice as long.
_FEW_ROWS = 8


def function(name: str) -> Function:
    """Return a function of (float32 array, opaque zero) by its nki.language name."""
    table = tables()[name]
    return lambda x, zero: evaluate(table, x, zero)


def evaluate(table: PiecewiseCubic, x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return a table's function at float32 `x`, unsealed; `zero` is `opaque_zero()`."""
    find = functools.partial(_place, table)
    value = functools.partial(_value, table)
    if table.rows > _FEW_ROWS:
        # XLA does not vectorize a loop with a gather, so an earlier loop finds the
        # rows.
        find, value = own_kernel(find), own_kernel(value)
    return value(x, find(x), zero)


def _place(table: PiecewiseCubic, x: jax.Array) -> jax.Array:
    """Return 32 * row + n as uint16, with the row of x in the table and 2^n the number
    of float32 numbers in its segment. The result is arbitrary where a limit applies."""
    bits = bits_of(_reduced(table, x)[0])
    octave = _octave_of(table, bits >> 23)
    width_bits = octave & 31
    row = (octave >> 5) + ((bits & MANTISSA) >> width_bits)
    row = jnp.minimum(row, np.uint32(table.rows - 1))
    return (row * 32 + width_bits).astype(jnp.uint16)


def _value(
    table: PiecewiseCubic, x: jax.Array, place: jax.Array, zero: jax.Array
) -> jax.Array:
    m, exponent = _reduced(table, x)
    row, width_bits = place >> 5, (place & 31).astype(jnp.uint32)
    result = _cubic(table, m - _base(table, m, row, width_bits), row, zero)
    if table.reduction == "power":
        result = _scaled(table, result, exponent)
    elif table.reduction == "log":
        result = result + seal(exponent * LN2, zero)
    return _specials(table, flush(x), flush(result))


def _reduced(table: PiecewiseCubic, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the reduced argument, and the exponent that corrects the result."""
    x = flush(x)
    x = x if table.parity == "none" else magnitude(x)
    bits = bits_of(x)
    if table.reduction == "none":
        return x, jnp.zeros_like(x)
    if table.reduction == "log":
        shift = (bits - _LOG_START) & ~MANTISSA
        k = lax.bitcast_convert_type(shift, jnp.int32) >> 23
        return float_of(bits - shift), k.astype(jnp.float32)
    k = (bits >> 23).astype(jnp.int32) - 127
    steps = table.octaves[-1].exponent + 1  # 2 for the roots: m in 1..4
    if steps == 2:
        k = k >> 1
    m = float_of(bits - lax.bitcast_convert_type((k * steps) << 23, jnp.uint32))
    return m, (k * int(table.power * steps)).astype(jnp.float32)


def _scaled(table: PiecewiseCubic, x: jax.Array, exponent: jax.Array) -> jax.Array:
    """Return x times 2^exponent. For roots |exponent| is too small for an overflow."""
    if abs(table.power) < 1:
        return float_of(bits_of(x) + shifted_integer(exponent))
    return scale(x, exponent)


def _base(
    table: PiecewiseCubic, x: jax.Array, row: jax.Array, width_bits: jax.Array
) -> jax.Array:
    unit = np.uint32(1) << width_bits
    base = float_of((bits_of(x) & ~(unit - 1)) | (unit >> 1))
    for special, value in table.bases.items():
        base = jnp.where(row == special, value, base)
    return base


def _octave_of(table: PiecewiseCubic, key: jax.Array) -> jax.Array:
    """Return 32 * row + n as `_place` does, for the first row of the octave that has
    the sign and exponent bits `key`."""
    word = jnp.full_like(key, 23)
    for octave in table.octaves:
        own = np.uint32(octave.exponent + 127 + (256 if octave.sign < 0 else 0))
        word = jnp.where(
            key == own, np.uint32(octave.first * 32 + 23 - octave.bits), word
        )
    if table.reduction == "none" and table.above is None:
        # Without a limit, the last segment applies to all larger arguments.
        last = np.uint32(table.octaves[-1].exponent + 127)
        word = jnp.where(key > last, np.uint32((table.rows - 1) * 32 + 23), word)
    return word


def _cubic(
    table: PiecewiseCubic, d: jax.Array, row: jax.Array, zero: jax.Array
) -> jax.Array:
    coefficients = [_entries(column, row) for column in table.coefficients]
    if table.ratios:
        c0 = coefficients[0]
        coefficients += [seal(c0 * ratio, zero) for ratio in table.ratios]
    result = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        result = coefficient + seal(result * d, zero)
    return result


def _entries(column: np.ndarray, row: jax.Array) -> jax.Array:
    if len(column) > _FEW_ROWS:
        return jnp.asarray(column).at[row].get(mode="promise_in_bounds")
    entries = jnp.full(row.shape, column[0])
    for n, value in enumerate(column[1:], start=1):
        entries = jnp.where(row == n, value, entries)
    return entries


def _specials(table: PiecewiseCubic, x: jax.Array, result: jax.Array) -> jax.Array:
    """Return `result` with limits, signs (odd functions), and values at 0 or NaN."""
    argument = x if table.parity == "none" else magnitude(x)
    result = _limited(argument >= _start(table.above), table.above, argument, result)
    result = _limited(argument <= _start(table.below), table.below, argument, result)
    if table.parity == "odd":
        result = float_of(bits_of(result) ^ (bits_of(x) & SIGN))
    if table.at_zero == "zero":
        result = jnp.where(x == 0, x, result)
    elif table.at_zero == "infinity":
        infinity = jnp.full_like(x, INF)
        infinity = -infinity if table.reduction == "log" else with_sign(infinity, x)
        result = jnp.where(x == 0, infinity, result)
    bad = x != x
    if table.reduction != "none" and table.parity == "none":
        bad |= x < 0
    return jnp.where(bad, NAN, result)


def _start(limit: Limit | None) -> np.float32:
    return NAN if limit is None else limit.start  # comparisons with NaN are false


def _limited(
    there: jax.Array, limit: Limit | None, x: jax.Array, result: jax.Array
) -> jax.Array:
    if limit is None:
        return result
    return jnp.where(there, x if limit.value is None else limit.value, result)

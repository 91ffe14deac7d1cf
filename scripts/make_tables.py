"""Makes the data files of `neuronjax.numerics.tables` from mpmath.

    python scripts/make_tables.py exceptions            # two minutes
    python scripts/make_tables.py accuracy [--stride N] [--only NAME ...]

`exceptions` finds the inputs of 16 and fewer bits whose FP32 result, rounded once, is
not the correctly rounded one, which mpmath gives. `accuracy` measures the FP32
functions against float64, whose own errors it compares with mpmath at a sample, and
updates the rows of the functions named. Both are deterministic.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import scipy.special

from neuronjax.numerics.elementary import ULP_FLOOR, UNARY
from neuronjax.numerics.exact import opaque_zero
from neuronjax.numerics.float_format import FloatFormat, get_format
from neuronjax.numerics.rounding import encode, round_to_format
from neuronjax.numerics.widening import decode

TABLES = Path(__file__).parent.parent / "src" / "neuronjax" / "numerics" / "tables"
# Of the formats that StableHLO and the engines share, those of at most 16 bits.
FORMATS = (
    "bfloat16",
    "float16",
    "float8_e5m2",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e3m4",
)
MIN_NORMAL = 2.0**-126
PRECISION_BITS = 120

# ---- The functions, in float64 and in mpmath.

Float64 = Callable[[np.ndarray], np.ndarray]


def _digamma(x: np.ndarray) -> np.ndarray:
    pole = (x <= 0) & (x == np.round(x))
    return np.where(pole, np.nan, scipy.special.psi(x))


def _lgamma(x: np.ndarray) -> np.ndarray:
    """C's limit at minus infinity, where SciPy has the other one."""
    return np.where(np.isinf(x), np.inf, scipy.special.gammaln(x))


FLOAT64: Mapping[str, Float64] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "bessel_i1e": scipy.special.i1e,
    "cbrt": np.cbrt,
    "cosh": np.cosh,
    "cosine": np.cos,
    "digamma": _digamma,
    "erf": scipy.special.erf,
    "erf_inv": scipy.special.erfinv,
    "erfc": scipy.special.erfc,
    "exponential": np.exp,
    "exponential_base2": np.exp2,
    "exponential_minus_one": np.expm1,
    "lgamma": _lgamma,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": scipy.special.expit,
    "reciprocal": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


def _cbrt(x: Any) -> Any:
    return mpmath.sign(x) * mpmath.cbrt(abs(x))


def _erf_inv(x: Any) -> Any:
    """mpmath's own does not converge at small arguments."""
    if abs(x) < mpmath.mpf(2) ** -30:
        return x * mpmath.sqrt(mpmath.pi) / 2 * (1 + mpmath.pi * x * x / 12)
    start = mpmath.mpf(float(scipy.special.erfinv(float(x))))
    return mpmath.findroot(lambda y: mpmath.erf(y) - x, start)


def _i1e(x: Any) -> Any:
    """From 500 on the asymptotic series, which is good to 2^-120 there."""
    size = abs(x)
    if size < 500:
        return mpmath.besseli(1, x) * mpmath.exp(-size)
    term, total = mpmath.mpf(1), mpmath.mpf(1)
    for k in range(1, 20):
        term *= ((2 * k - 1) ** 2 - 4) / (8 * k * size)
        total += term
    return mpmath.sign(x) * total / mpmath.sqrt(2 * mpmath.pi * size)


EXACT: Mapping[str, Callable[[Any], Any]] = {
    "acos": mpmath.acos,
    "acosh": mpmath.acosh,
    "asin": mpmath.asin,
    "asinh": mpmath.asinh,
    "atan": mpmath.atan,
    "atanh": mpmath.atanh,
    "bessel_i1e": _i1e,
    "cbrt": _cbrt,
    "cosh": mpmath.cosh,
    "cosine": mpmath.cos,
    "digamma": mpmath.digamma,
    "erf": mpmath.erf,
    "erf_inv": _erf_inv,
    "erfc": mpmath.erfc,
    "exponential": mpmath.exp,
    "exponential_base2": lambda x: mpmath.power(2, x),
    "exponential_minus_one": mpmath.expm1,
    "lgamma": lambda x: mpmath.re(mpmath.loggamma(x)),
    "log": mpmath.log,
    "log_plus_one": mpmath.log1p,
    "logistic": lambda x: 1 / (1 + mpmath.exp(-x)),
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sine": mpmath.sin,
    "sinh": mpmath.sinh,
    "sqrt": mpmath.sqrt,
    "tan": mpmath.tan,
    "tanh": mpmath.tanh,
}


def in_float64(name: str, x: np.ndarray) -> np.ndarray:
    """The function of float32 `x` in float64, NaN, infinities and zeros as defined."""
    with np.errstate(all="ignore"):
        result = FLOAT64[name](x.astype(np.float64))
    # SciPy loses the sign of zero here.
    return np.copysign(result, x) if name in ("bessel_i1e", "erf_inv") else result


def in_mpmath(name: str, x: float) -> Any:
    """The function of a finite `x` with a finite result, to `PRECISION_BITS`."""
    with mpmath.workprec(PRECISION_BITS):
        return EXACT[name](mpmath.mpf(x))


def in_float32(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """Our own function, compiled."""
    compiled = jax.jit(lambda x: UNARY[name](x, opaque_zero()))
    return lambda x: np.asarray(compiled(x))


# ---- Correct rounding.


def flushed(x: np.ndarray) -> np.ndarray:
    """Subnormals of float32 as zeros of their sign."""
    return np.where(np.abs(x) < MIN_NORMAL, np.copysign(0, x), x).astype(x.dtype)


def all_values(fmt: FloatFormat) -> np.ndarray:
    """The float32 value of every code."""
    codes = jnp.arange(fmt.code_count, dtype=fmt.code_dtype)
    return flushed(np.asarray(decode(codes, fmt)))


def to_odd(value: np.ndarray, exact_sign: np.ndarray) -> np.ndarray:
    """Float64 as float32 rounded to odd; `exact_sign` says where the truth lies.

    Rounding the result again, to 22 bits or fewer, rounds the truth correctly (Boldo
    and Melquiond, "When double rounding is odd"). `exact_sign` is that of the exact
    magnitude less `value`'s. Magnitudes below 2^-126 become zeros (FTZ).
    """
    with np.errstate(over="ignore", under="ignore"):
        near = value.astype(np.float32)
    magnitude, size = np.abs(value), np.abs(near).astype(np.float64)
    order = (magnitude > size).astype(int) - (magnitude < size)
    excess = np.where(order != 0, order, exact_sign)
    bits = near.view(np.uint32)
    bits = np.where(np.isfinite(near) & (excess < 0), bits - np.uint32(1), bits)
    odd = np.where(excess != 0, bits | np.uint32(1), bits).view(np.float32)
    huge = np.isinf(near) | (magnitude == 0)
    return flushed(np.where(huge | ~np.isfinite(near), near, odd))


def rounded(x: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    """Float32 rounded once, to nearest even."""
    return np.asarray(round_to_format(jnp.asarray(x), fmt))


def correctly_rounded(name: str, x: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    """The function of float32 `x`, rounded correctly to `fmt`, as float32.

    mpmath says where the exact result lies beside a float64; float64 functions give
    the infinities, the NaNs and the signs of zeros.
    """
    value = in_float64(name, x)
    sign = np.zeros_like(value)
    for i in np.flatnonzero(np.isfinite(value) & np.isfinite(x)):
        exact = in_mpmath(name, float(x[i]))
        if exact != 0:  # a zero keeps its sign
            value[i] = float(exact)
        sign[i] = int(mpmath.sign(abs(exact) - abs(mpmath.mpf(value[i]))))
    return rounded(to_odd(value, sign), fmt)


def differing(name: str, fmt: FloatFormat) -> Iterator[tuple[int, int]]:
    """(input code, output code) where rounding the FP32 result once is not correct."""
    x = all_values(fmt)
    want = correctly_rounded(name, x, fmt)
    got = rounded(in_float32(name)(x), fmt)
    codes = np.asarray(encode(jnp.asarray(want), fmt))
    same = (got.view(np.uint32) == want.view(np.uint32)) | np.isnan(got) & np.isnan(
        want
    )
    return ((int(i), int(codes[i])) for i in np.flatnonzero(~same))


def exceptions() -> dict[str, dict[str, list[tuple[int, int]]]]:
    """Format -> function -> sorted (input code, output code), where there are any."""
    table: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for format_name in FORMATS:
        fmt = get_format(format_name)
        rows = {name: sorted(differing(name, fmt)) for name in sorted(UNARY)}
        rows = {name: row for name, row in rows.items() if row}
        if rows:
            table[format_name] = rows
        count = sum(len(row) for row in rows.values())
        print(f"{format_name}: {count} exceptions", file=sys.stderr)
    return table


# ---- Accuracy.

CHUNK = 1 << 19
INFINITY_BITS = 0x7F800000
SIGN = np.uint32(1 << 31)
# f(-x) is -f(x) or f(x), bit by bit: float64 need not say it twice.
ODD = frozenset(
    {"asin", "asinh", "atan", "atanh", "bessel_i1e", "cbrt", "erf", "erf_inv"}
    | {"reciprocal", "sine", "sinh", "tan", "tanh"}
)
EVEN = frozenset({"cosh", "cosine"})


def chunk_starts(stride: int) -> range:
    """The bits of the first number of each chunk of numbers >= 0."""
    return range(0, INFINITY_BITS + 1, CHUNK * stride)


def chunk(start: int, stride: int) -> np.ndarray:
    """CHUNK numbers, every `stride`-th from these bits on, up to infinity."""
    stop = min(start + CHUNK * stride, INFINITY_BITS + 1)
    return np.arange(start, stop, stride, dtype=np.uint32).view(np.float32)


@jax.jit
def ulp_errors(got: jax.Array, want: jax.Array, floor: jax.Array) -> jax.Array:
    """Errors in float32 ULPs of max(|want|, floor), float64 each.

    Infinite where a special value, a zero or an overflow differs.
    """
    exact = want.astype(jnp.float32)
    normal = jnp.isfinite(exact) & (jnp.abs(want) >= MIN_NORMAL)
    size = jnp.maximum(jnp.where(normal, jnp.abs(want), 1.0), floor)
    bits = jax.lax.bitcast_convert_type(size, jnp.uint64) >> jnp.uint64(52)
    ulp = jax.lax.bitcast_convert_type(
        (bits - jnp.uint64(23)) << jnp.uint64(52), jnp.float64
    )
    error = jnp.abs(got.astype(jnp.float64) - want) / ulp
    small = jnp.where(jnp.abs(want) < MIN_NORMAL, jnp.sign(want) * 0, exact)
    same = jnp.where(jnp.isnan(want), jnp.isnan(got), got == small)
    return jnp.where(normal, error, jnp.where(same, 0.0, jnp.inf))


def floor_of(name: str, x: np.ndarray) -> np.ndarray:
    """What a function's errors are measured against at least; see `ULP_FLOOR`."""
    if name not in ULP_FLOOR:
        return np.zeros(1)
    at_mirror = np.abs(in_float64(name, np.abs(x)))
    floor = np.maximum(ULP_FLOOR[name], np.where(np.isfinite(at_mirror), at_mirror, 0))
    return np.where(x < 0, np.minimum(floor, float(np.finfo(np.float32).max)), 0)


def worst_of(name: str, x: np.ndarray, got: np.ndarray) -> tuple[float, float]:
    """(largest error, where) of our results for a chunk."""
    if x.view(np.uint32).min() << np.uint32(1) < 1 << 24:
        x = flushed(x)
    want, floor = in_float64(name, x), floor_of(name, x)
    with jax.enable_x64(True):
        errors = np.asarray(ulp_errors(got, want, floor))
    i = int(errors.argmax())
    return float(errors[i]), float(x[i])


def worst_of_both_signs(
    name: str, ours: Callable[[np.ndarray], np.ndarray], x: np.ndarray
) -> tuple[float, float]:
    """The same for `x` and `-x`.

    Raises:
        ValueError: our function is not as symmetric as the table says.
    """
    got, mirrored = ours(x), ours(-x)
    worst = worst_of(name, x, got)
    if name not in ODD | EVEN:
        return max(worst, worst_of(name, -x, mirrored))
    want = got.view(np.uint32) ^ (SIGN if name in ODD else np.uint32(0))
    if not ((mirrored.view(np.uint32) == want) | np.isnan(got)).all():
        raise ValueError(f"{name} is not symmetric near {x[0]}")
    return worst


def measure(name: str, stride: int) -> dict[str, Any]:
    """A row of the accuracy table."""
    ours, starts = in_float32(name), chunk_starts(stride)

    def worst(x: np.ndarray) -> tuple[int, float, float]:
        return 2 * x.size, *worst_of_both_signs(name, ours, x)

    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda start: worst(chunk(start, stride)), starts))
    _, error, place = max(rows, key=lambda row: row[1])
    return {
        "max_ulp": round(error, 4),
        "at": place.hex(),
        "inputs": sum(count for count, _, _ in rows),
        "stride": stride,
        "reference_ulp": float(f"{reference_error(name, place):.2g}"),
    }


def reference_error(name: str, *more: float, count: int = 500) -> float:
    """The largest error of the float64 function seen at a sample, in float32 ULPs."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, count // 2, dtype=np.uint32)
    wide = bits.view(np.float32)
    near = np.random.default_rng(1).uniform(-10, 10, count).astype(np.float32)
    x = np.concatenate([wide, near, np.array(more, np.float32)])
    x = x[np.isfinite(x) & (np.abs(x) >= MIN_NORMAL)]
    want, floor = in_float64(name, x), np.broadcast_to(floor_of(name, x), x.shape)
    sound = np.isfinite(want) & (np.abs(want) >= MIN_NORMAL) & (np.abs(want) < 2.0**128)
    errors = [0.0]
    for value, result, least in zip(x[sound], want[sound], floor[sound], strict=True):
        exact = in_mpmath(name, float(value))
        size = max(abs(float(result)), float(least))
        ulp = 2.0 ** (np.frexp(size)[1] - 24)
        errors.append(float(abs(exact - float(result)) / ulp))
    return max(errors)


# ---- Files.


def write(path: Path, table: Mapping[str, Any]) -> None:
    """JSON with one row per line."""
    text = json.dumps(table, sort_keys=True, separators=(", ", ": "))
    for mark in ('], "', '}, "'):
        text = text.replace(mark, mark[:2] + '\n"')
    new = path.with_suffix(".new")
    new.write_text(text + "\n")
    new.replace(path)  # at once: the package may be being imported


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("exceptions", "accuracy"))
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument(
        "--only", nargs="+", default=sorted(UNARY), choices=sorted(UNARY)
    )
    options = parser.parse_args()
    path = TABLES / f"{options.table}.json"
    if options.table == "exceptions":
        write(path, exceptions())
        return
    table = json.loads(path.read_text()) if path.exists() else {}
    for name in options.only:
        start = time.perf_counter()
        table[name] = measure(name, options.stride)
        seconds = time.perf_counter() - start
        print(f"{name}: {table[name]}, {seconds:.0f} s", file=sys.stderr, flush=True)
        write(path, table)


if __name__ == "__main__":
    main()

"""Makes `numerics/tables/scalar_engine.json`: ScalarE's functions, piece by piece.

    python scripts/make_scalar_engine_tables.py        # about a minute

A segment is a part of an octave of |x|, two to the power of some bits of them to the
octave; in it the function is its Taylor polynomial of degree 3 about the middle, in
FP32. An octave has the fewest bits, and at least `Function.least`, with which no
segment errs by more than TOLERANCE of its largest value. A segment that holds a zero of
the function is expanded there, and so are all x below the first octave about 0. Why:
`numerics.scalar_engine`. All of it is computed with mpmath, so it is reproducible.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mpmath
import numpy as np

TABLES = Path(__file__).parent.parent / "src" / "neuronjax" / "numerics" / "tables"
PRECISION_BITS = 120
# What a segment may err by, of its largest value. Four segments to an octave of rsqrt
# (4.2e-5) and a quarter for exp (1.0e-5) are within it, half as many are not (6.7e-4
# and 1.6e-4): any limit between gives the same tables of these two.
TOLERANCE = 2.0**-14
# From where on a function is its limit: half a unit in the last place of FP32.
LIMIT_TOLERANCE = 2.0**-25
MIN_NORMAL = 2.0**-126
SAMPLES = 13
MOST_BITS = 9

Real = Any  # mpmath has no types
Tail = Literal["x"] | float | None


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function of ScalarE.

    Attributes:
        value: of a real number.
        parity: "odd" or "even" if |x| is looked up, "none" if both signs are.
        reduction: "none"; "power" if x = m 4^k or m 2^k and f(x) = f(m) 2^(...), by
            `power`; "log" if x = m 2^k and f(x) = f(m) + k ln 2.
        power: p of a function x^p.
        octaves: of m under a reduction, (first, last exponent).
        above, below: what it is for large positive and negative x: "x", a number, or
            None where the last segment goes on.
        zeros: where it is 0, but for 0 itself.
        end: beyond this |x| the last segment goes on.
        floor: magnitudes below this count as this when errors are compared.
        least: bits of the segments of an octave at least.
        limit_tolerance: how close to `above` and `below` is there.
        ratios: coefficients 1 to 3 as multiples of coefficient 0, if they are.
        at_zero: of signed zeros: "table", "zero" (the argument) or "infinity", signed.
    """

    value: Callable[[Real], Real]
    parity: Literal["none", "odd", "even"] = "none"
    reduction: Literal["none", "power", "log"] = "none"
    power: float = 0.0
    octaves: tuple[int, int] | None = None
    above: Tail = None
    below: Tail = None
    zeros: tuple[Callable[[], Real], ...] = ()
    end: Callable[[], Real] | None = None
    floor: float = 0.0
    least: int = 2
    limit_tolerance: float = LIMIT_TOLERANCE
    ratios: tuple[Callable[[], Real], ...] = ()
    at_zero: Literal["table", "zero", "infinity"] = "table"


# ---- The functions.


def _sigmoid(x: Real) -> Real:
    return 1 / (1 + mpmath.exp(-x))


def _sigmoid_dx(x: Real) -> Real:
    return _sigmoid(x) * _sigmoid(-x)


def _normal(x: Real) -> Real:
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def _density(x: Real) -> Real:
    return mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)


def _gelu_dx(x: Real) -> Real:
    return _normal(x) + x * _density(x)


def _gelu_tanh(x: Real) -> Real:
    cubic = mpmath.mpf("0.044715")
    inner = mpmath.sqrt(2 / mpmath.pi) * (x + cubic * x**3)
    return x * _sigmoid(2 * inner)


def _scaled(x: Real) -> Real:
    return x * mpmath.mpf("1.702")


def _silu_dx(x: Real) -> Real:
    return _sigmoid(x) + x * _sigmoid_dx(x)


def _softplus(x: Real) -> Real:
    return mpmath.log1p(mpmath.exp(x))


def _root(function: Callable[[Real], Real], start: float) -> Callable[[], Real]:
    return lambda: mpmath.findroot(function, start)


def _gelu_sigmoid_dx(x: Real) -> Real:
    return _silu_dx(_scaled(x))


# Where the tail to the left is not worth its rows: FP32 loses it beside 1.
_GATE_FLOOR = 2.0**-10
_SQUARE_ROOT = dict(reduction="power", octaves=(0, 1))

FUNCTIONS: Mapping[str, Function] = {
    "arctan": Function(
        value=mpmath.atan,
        parity="odd",
        above=float(np.pi / 2),
        limit_tolerance=TOLERANCE,
        at_zero="zero",
    ),
    "erf": Function(value=mpmath.erf, parity="odd", above=1.0, at_zero="zero"),
    "erf_dx": Function(
        value=lambda x: 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-x * x),
        parity="even",
        above=0.0,
        floor=_GATE_FLOOR,
    ),
    "exp": Function(
        value=mpmath.exp,
        above=np.inf,
        below=0.0,
        least=1,
        ratios=(
            lambda: mpmath.mpf(1),
            lambda: mpmath.mpf(1) / 2,
            lambda: 1 / mpmath.mpf(6),
        ),
    ),
    "gelu": Function(
        value=lambda x: x * _normal(x),
        above="x",
        below=-0.0,
        floor=_GATE_FLOOR,
        at_zero="zero",
    ),
    "gelu_apprx_sigmoid": Function(
        value=lambda x: x * _sigmoid(_scaled(x)),
        above="x",
        below=-0.0,
        floor=_GATE_FLOOR,
        at_zero="zero",
    ),
    "gelu_apprx_sigmoid_dx": Function(
        value=_gelu_sigmoid_dx,
        above=1.0,
        below=0.0,
        floor=_GATE_FLOOR,
        zeros=(_root(_gelu_sigmoid_dx, -0.75),),
    ),
    "gelu_apprx_tanh": Function(
        value=_gelu_tanh, above="x", below=-0.0, floor=_GATE_FLOOR, at_zero="zero"
    ),
    "gelu_dx": Function(
        value=_gelu_dx,
        above=1.0,
        below=0.0,
        floor=_GATE_FLOOR,
        zeros=(_root(_gelu_dx, -0.75),),
    ),
    "log": Function(
        value=mpmath.log,
        reduction="log",
        octaves=(-1, 0),
        above=np.inf,
        zeros=(lambda: mpmath.mpf(1),),
        at_zero="infinity",
    ),
    "mish": Function(
        value=lambda x: x * mpmath.tanh(_softplus(x)),
        above="x",
        below=-0.0,
        floor=_GATE_FLOOR,
        at_zero="zero",
    ),
    "reciprocal": Function(
        value=lambda x: 1 / x,
        parity="odd",
        reduction="power",
        power=-1.0,
        octaves=(0, 0),
        above=0.0,
        at_zero="infinity",
    ),
    "rsqrt": Function(
        value=lambda x: 1 / mpmath.sqrt(x),
        power=-0.5,
        above=0.0,
        at_zero="infinity",
        **_SQUARE_ROOT,
    ),
    "sigmoid": Function(value=_sigmoid, above=1.0, below=0.0),
    "silu": Function(
        value=lambda x: x * _sigmoid(x), above="x", below=-0.0, at_zero="zero"
    ),
    "silu_dx": Function(
        value=_silu_dx,
        above=1.0,
        below=0.0,
        floor=_GATE_FLOOR,
        zeros=(_root(_silu_dx, -1.28),),
    ),
    "sin": Function(
        value=mpmath.sin,
        parity="odd",
        zeros=(lambda: +mpmath.pi,),
        end=lambda: +mpmath.pi,
        octaves=(-4, 1),
        at_zero="zero",
    ),
    "softplus": Function(value=_softplus, above="x", below=0.0),
    "sqrt": Function(
        value=mpmath.sqrt, power=0.5, above=np.inf, at_zero="zero", **_SQUARE_ROOT
    ),
    "tanh": Function(value=mpmath.tanh, parity="odd", above=1.0, at_zero="zero"),
}

# ---- A segment.


@dataclass(frozen=True)
class Segment:
    """A polynomial about a base, for arguments between two numbers.

    Attributes:
        base: where it is expanded, a float32.
        is_middle: whether that is the middle.
        coefficients: four float32, lowest first.
        error: the largest seen, of the largest value.
    """

    base: float
    is_middle: bool
    coefficients: tuple[float, ...]
    error: float


def float32(x: Real) -> float:
    """Rounded once, to nearest even; subnormals are zeros."""
    with mpmath.workprec(24):
        value = float(+mpmath.mpf(x))
    return value if abs(value) >= MIN_NORMAL else 0.0


def taylor(f: Function, base: Real) -> list[Real]:
    """The coefficients of the polynomial of degree 3, lowest first."""
    return mpmath.taylor(f.value, base, 3, chop=False)


def segment(f: Function, low: Real, high: Real) -> Segment:
    """The polynomial for low <= x <= high or, both negative, high <= x <= low."""
    ends = sorted((low, high))
    zeros = [z for z in (zero() for zero in f.zeros) if ends[0] <= z <= ends[1]]
    base = mpmath.mpf(float32(zeros[0] if zeros else (low + high) / 2))
    exact = taylor(f, base)
    return Segment(
        float(base),
        not zeros,
        tuple(map(float32, exact)),
        _error(f, exact, base, *ends),
    )


def _error(f: Function, exact: list[Real], base: Real, low: Real, high: Real) -> float:
    if f.end is not None:
        high = min(high, f.end())
    points = [low + (high - low) * i / (SAMPLES - 1) for i in range(SAMPLES)]
    values = [f.value(x) for x in points]
    size = max(f.floor, *map(abs, values))
    if high <= low or size < MIN_NORMAL:
        return 0.0
    taken = [_value(exact, x - base) for x in points]
    return float(max(abs(a - b) for a, b in zip(taken, values, strict=True)) / size)


def _value(coefficients: list[Real], d: Real) -> Real:
    return sum(c * d**n for n, c in enumerate(coefficients))


def octave(
    f: Function, sign: int, exponent: int, stop: Real
) -> tuple[int, list[Segment]]:
    """(bits, segments) of sign * 2^exponent..2^(exponent + 1), up to `stop`."""
    for bits in range(f.least, MOST_BITS):
        found = list(_segments(f, sign, exponent, bits, stop))
        if all(s.error <= TOLERANCE for s in found):
            return bits, found
    raise ValueError(f"octave {exponent} needs more than {MOST_BITS} bits")


def _segments(
    f: Function, sign: int, exponent: int, bits: int, stop: Real
) -> Iterator[Segment]:
    start, count = mpmath.mpf(2) ** exponent, 1 << bits
    made: Segment | None = None
    for i in range(count):
        low, high = (sign * start * (1 + mpmath.mpf(j) / count) for j in (i, i + 1))
        if abs(low) >= stop:
            return
        if made is None or f.end is None or abs(low) < f.end():
            made = segment(f, low, high)
        yield made


# ---- A function.


def central_exponent(f: Function) -> int:
    """The first octave: below it the polynomial about 0 is good enough."""
    zero = mpmath.mpf(0)
    exact = taylor(f, zero)
    for exponent in range(3, -30, -1):
        end = mpmath.mpf(2) ** exponent
        sides = [(zero, end)] + [(-end, zero)] * (f.parity == "none")
        if all(_error(f, exact, zero, *side) <= TOLERANCE for side in sides):
            return exponent
    raise ValueError("no polynomial about 0")


def limit(f: Function, sign: int) -> float | None:
    """The first multiple of 1/4 from which on |x| a function is its tail."""
    tail = f.above if sign > 0 else f.below
    if tail is None:
        return None
    for quarter in range(1, 1 << 20):
        x = sign * mpmath.mpf(quarter) / 4
        value, there = f.value(x), x if tail == "x" else mpmath.mpf(tail)
        if tail == np.inf:
            reached = value >= mpmath.mpf(2) ** 128
        elif tail == 0 and not f.floor:
            reached = value == 0 or abs(value) < MIN_NORMAL
        else:
            size = max(abs(there), f.floor)
            reached = abs(value - there) <= f.limit_tolerance * size
        if reached:
            return float(x)
    raise ValueError("it has no such limit")


def rows(name: str, f: Function) -> dict[str, Any]:
    """A function's table."""
    signs = (1,) if f.parity != "none" or f.reduction != "none" else (1, -1)
    limits = {s: None if f.reduction != "none" else limit(f, s) for s in signs}
    found: list[Segment] = []
    if f.reduction == "none":
        about_zero = tuple(map(float32, taylor(f, mpmath.mpf(0))))
        found = [Segment(0.0, False, about_zero, 0.0)]
        first = central_exponent(f) if f.octaves is None else f.octaves[0]
    octaves = []
    for sign in signs:
        end = limits[sign]
        stop = mpmath.inf if end is None else abs(mpmath.mpf(end))
        if f.octaves is None:
            exponents = range(first, int(mpmath.ceil(mpmath.log(stop, 2))))
        else:
            exponents = range(f.octaves[0], f.octaves[1] + 1)
        for exponent in exponents:
            bits, segments = octave(f, sign, exponent, stop)
            octaves.append([sign, exponent, len(found), bits])
            found += segments
    return {
        "parity": f.parity,
        "reduction": f.reduction,
        "power": f.power,
        "octaves": octaves,
        "bases": {
            str(n): _bits(s.base) for n, s in enumerate(found) if not s.is_middle
        },
        "above": _tail(f.above, limits.get(1)),
        "below": _tail(f.below, limits.get(-1)),
        "at_zero": f.at_zero,
        "ratios": [_bits(float32(ratio())) for ratio in f.ratios],
        "coefficients": [
            [_bits(s.coefficients[n]) for s in found]
            for n in range(1 if f.ratios else 4)
        ],
        "error": float(f"{max(s.error for s in found):.3g}"),
    }


def _tail(tail: Tail, start: float | None) -> list[Any] | None:
    """[from where, "x" or bits]; without a start the value at infinity alone."""
    if tail is None:
        return None
    value = tail if isinstance(tail, str) else _bits(tail)
    return [_bits(np.inf if start is None else start), value]


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def main() -> None:
    """See the module's docstring."""
    path = TABLES / "scalar_engine.json"
    with mpmath.workprec(PRECISION_BITS):
        tables = {name: rows(name, f) for name, f in FUNCTIONS.items()}
    text = json.dumps(tables, sort_keys=True, separators=(",", ":"))
    path.write_text(text.replace('},"', '},\n"') + "\n")
    for name, table in tables.items():
        count = len(table["coefficients"][0])
        print(f"{name}: {count} rows, error {table['error']:.2g}")


if __name__ == "__main__":
    main()

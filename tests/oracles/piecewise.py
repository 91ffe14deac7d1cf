"""ScalarE's piecewise cubics, step by step, in NumPy.

Written from `numerics/tables/scalar_engine.json` and the five steps that the docstring
of `numerics.scalar_engine` lists; it shares no code with it. Segments are found by
comparing numbers, not by their bits, and every product and sum is one float32
operation whose subnormal result is a zero of its sign.
"""

from __future__ import annotations

import json
from importlib import resources

import numpy as np

F32 = np.float32
TINY = np.finfo(F32).tiny
TABLES = json.loads(
    (
        resources.files("neuronjax.numerics") / "tables" / "scalar_engine.json"
    ).read_text()
)


def number(bits):
    return np.array(bits, np.uint32).view(F32)


def flush(x):
    x = np.asarray(x, F32)
    return np.where(np.abs(x) < TINY, np.copysign(F32(0), x), x)


def segments(name):
    """(lower end, base, row) of a table by the distance of its ends from 0, per sign.

    The segment about 0 begins at 0; of a reduced function there is none.
    """
    table = TABLES[name]
    found = {1: [], -1: []}
    rows = len(table["coefficients"][0])
    for sign, exponent, first, bits in table["octaves"]:
        width = 2.0**exponent / 2**bits
        for i in range(2**bits):
            low = 2.0**exponent + i * width
            row = min(first + i, rows - 1)
            base = table["bases"].get(str(row))
            middle = sign * (low + width / 2)
            found[sign].append((low, middle if base is None else number(base), row))
    if table["reduction"] == "none":
        for sign in found:
            found[sign].append((0.0, 0.0, 0))
    return {sign: sorted(every) for sign, every in found.items()}


def borders(name):
    """Where segments and limits begin, and the float32 on both sides of each."""
    table = TABLES[name]
    ends = [s * low for s, every in segments(name).items() for low, _, _ in every]
    ends += [number(limit[0]) for limit in (table["above"], table["below"]) if limit]
    x = np.array(ends, F32)
    down, up = (np.nextafter(x, F32(side)) for side in (-np.inf, np.inf))
    return np.concatenate([x, down, up, -x])


def evaluate(name, x):
    """The function of float32 `x`."""
    table = TABLES[name]
    with np.errstate(all="ignore"):
        x = flush(x)
        argument = x if table["parity"] == "none" else np.abs(x)
        usable = np.where(np.isfinite(argument), argument, F32(1))
        if table["reduction"] != "none":
            usable = np.where(usable > 0, usable, F32(1))
        result = _rescaled(table, *_reduced(table, usable), name)
        return _specials(table, x, argument, flush(result))


def _reduced(table, x):
    half, exponent = np.frexp(x)  # half in 1/2..1
    if table["reduction"] == "none":
        return x, np.zeros(x.shape, int)
    if table["reduction"] == "log":
        above = half >= 0.75  # as it is; below, twice that, from 1 to 3/2
        return np.where(above, half, 2 * half), np.where(above, exponent, exponent - 1)
    if table["power"] == -1:
        return 2 * half, exponent - 1
    k = (exponent - 1) // 2
    return np.ldexp(half, exponent - 2 * k).astype(F32), k


def _rescaled(table, m, k, name):
    value = _cubic(table, m.astype(F32), name)
    if table["reduction"] == "log":
        return flush(value + flush(k.astype(F32) * F32(np.log(2))))
    if table["reduction"] == "power":
        steps = 1 if table["power"] == -1 else 2
        return np.ldexp(value, (k * table["power"] * steps).astype(int)).astype(F32)
    return value


def _cubic(table, x, name):
    base, row = np.zeros(x.shape, F32), np.zeros(x.shape, int)
    for sign, every in segments(name).items():
        if every:
            lows, bases, rows = map(np.array, zip(*every, strict=True))
            at = np.searchsorted(lows, np.abs(x).astype(float), side="right") - 1
            here = np.signbit(x) == (sign < 0)
            base[here], row[here] = bases[at][here], rows[at][here]
    columns = [number(column)[row] for column in table["coefficients"]]
    if table["ratios"]:
        columns += [flush(columns[0] * number(ratio)) for ratio in table["ratios"]]
    d = flush(x - base)
    value = columns[3]
    for column in (columns[2], columns[1], columns[0]):
        value = flush(column + flush(value * d))
    return value


def _specials(table, x, argument, result):
    for limit, reached in (
        (table["above"], np.greater_equal),
        (table["below"], np.less_equal),
    ):
        if limit:
            value = argument if limit[1] == "x" else number(limit[1])
            result = np.where(reached(argument, number(limit[0])), value, result)
    if table["parity"] == "odd":
        result = np.where(np.signbit(x), -result, result)
    if table["above"] is None:
        result = np.where(np.isinf(x), x, result)
    if table["at_zero"] == "zero":
        result = np.where(x == 0, x, result)
    if table["at_zero"] == "infinity":
        of_zero = F32(np.inf) if table["reduction"] == "power" else F32(-np.inf)
        signed = np.copysign(of_zero, x) if table["reduction"] == "power" else of_zero
        result = np.where(x == 0, signed, result)
    bad = np.isnan(x)
    if table["reduction"] != "none" and table["parity"] == "none":
        bad |= x < 0
    return np.where(bad, number(0x7FC00000), result).astype(F32)

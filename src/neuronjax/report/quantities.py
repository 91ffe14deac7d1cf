"""Seconds, bytes, operations and shares as text of few characters, with units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")


def finite(value: Any, broken: Callable[[float], Any] = lambda _: None) -> Any:
    """Return `value` as plain data for JSON; `broken` converts an Inf or NaN."""
    if isinstance(value, Mapping):
        return {str(name): finite(part, broken) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part, broken) for part in value]
    is_broken = isinstance(value, float) and not math.isfinite(value)
    return broken(value) if is_broken else value


def seconds(value: float) -> str:
    """Return a time as text: "1.23 ms"; "0" for zero."""
    if value == 0:
        return "0"
    for size, unit in _SECONDS:
        if abs(value) >= size:
            return f"{_three(value / size)} {unit}"
    return f"{value / 1e-9:.2g} ns"


def time_unit(longest: float) -> tuple[float, str]:
    """Return the largest unit (seconds, name) of which `longest` has at least two."""
    return next((unit for unit in _SECONDS if longest >= 2 * unit[0]), _SECONDS[-1])


def binary(value: float) -> str:
    """Return bytes as text: "1.23 MiB"; "0" for zero."""
    return _scaled(value, 1024.0, _BINARY)


def decimal(value: float, unit: str = "") -> str:
    """Return a number as text: "1.23 TFLOP" for 1.23e12 and "FLOP"; "0" for zero."""
    return _scaled(value, 1000.0, tuple(prefix + unit for prefix in _DECIMAL)).rstrip()


def _scaled(value: float, step: float, units: tuple[str, ...]) -> str:
    if value == 0:
        return "0"
    power = 0
    while abs(value) >= step * 0.9995 and power < len(units) - 1:
        value, power = value / step, power + 1
    return f"{_three(value)} {units[power]}"


def _three(value: float) -> str:
    """Return three significant digits, without an exponent below a million."""
    if float(value).is_integer() and abs(value) < 1000:
        return f"{value:.0f}"
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f}"


def percent(share: float) -> str:
    """Return a share as text: "12.3 %" for 0.123."""
    return "<0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"

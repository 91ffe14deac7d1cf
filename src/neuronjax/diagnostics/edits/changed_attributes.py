"""Descriptions of what changed in an op: values of constants, attributes, types."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from neuronjax.ir.program import Op

CONSTANT = "stablehlo.constant"
#: Attributes that name something and do not affect what is computed.
NAMES = ("callee", "decomposition", "sym_name", "name")
_SHOWN_ELEMENTS, _WIDEST = 4, 76


def constant_text(op: Op) -> str:
    """Return the value of a constant as text; "" for any other op."""
    return value_text(op.attributes["value"]) if op.name == CONSTANT else ""


def changes(before: Op, after: Op) -> str:
    """Return what differs between two ops of one name, "dimensions (1,) -> (0,)"."""
    if before.name != after.name:
        return ""
    found = []
    for name in sorted({*before.attributes, *after.attributes} - {*NAMES}):
        then, now = (o.attributes.get(name) for o in (before, after))
        if not _is_equal(then, now):
            found.append(f"{name} {_change(then, now)}")
    then, now = (" ".join(str(v.type) for v in o.results) for o in (before, after))
    return ", ".join([*found, f"{then} -> {now}"] if then != now else found)


def _change(then: Any, now: Any) -> str:
    if not _are_alike(then, now) or (_is_one_number(then) and _is_one_number(now)):
        return f"{value_text(then)} -> {value_text(now)}"
    bits = (np.ascontiguousarray(a).reshape(-1, 1).view(np.uint8) for a in (then, now))
    differing = np.flatnonzero(np.not_equal(*bits).any(1))
    index = np.unravel_index(differing[0], then.shape)
    at = ", ".join(str(int(n)) for n in index)
    how_many = f"{len(differing)} of {then.size} elements differ"
    return f"at [{at}]: {then[index]!s} -> {now[index]!s}, {how_many}"


def _are_alike(a: Any, b: Any) -> bool:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return False
    return a.shape == b.shape and a.dtype == b.dtype


def _is_one_number(array: np.ndarray) -> bool:
    raw = array.tobytes()
    return raw == raw[: array.itemsize] * array.size != b""


def _is_equal(a: Any, b: Any) -> bool:
    if _are_alike(a, b):
        return a.tobytes() == b.tobytes()
    return type(a) is type(b) and repr(a) == repr(b)


def value_text(value: Any) -> str:
    """Return an attribute as short text: a number, or an array's first elements."""
    text = _array_text(value) if isinstance(value, np.ndarray) else str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _array_text(array: np.ndarray) -> str:
    flat = array.reshape(-1)
    if _is_one_number(array):
        whole = f" in {'x'.join(map(str, array.shape))}" if array.shape else ""
        return f"{flat[0]!s}{whole}"
    first = ", ".join(str(x) for x in flat[:_SHOWN_ELEMENTS])
    if flat.size <= _SHOWN_ELEMENTS:
        return f"[{first}]"
    return f"[{first}, ... {flat.size} elements, CRC {zlib.crc32(array.tobytes()):08x}]"

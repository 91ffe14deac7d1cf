"""Checks of policy fields that have no list of legal values.

Each takes the field, "Policy.seed", and its value, and returns the value as plain
Python has it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from neuronjax.errors import InvalidProgramError

_RANGES = {"seed": (0, 2**32 - 1), "amax_history_length": (1, 2**31 - 1)}


def checked_integer(name: str, value: object) -> int:
    """An integer in the field's range."""
    low, high = _RANGES[name.rpartition(".")[2]]
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if low <= value <= high:
            return int(value)
    raise InvalidProgramError(
        f"{name} is {value!r}", remedy=f"use an integer in [{low}, {high}]"
    )


def checked_loss_scale(name: str, value: object) -> float | None:
    """None, or a positive finite number."""
    numeric = (int, float, np.integer, np.floating)
    if value is None:
        return None
    if isinstance(value, numeric) and not isinstance(value, bool):
        if 0 < value < math.inf:
            return float(value)
    raise InvalidProgramError(
        f"{name} is {value!r}",
        remedy="use None or a positive finite number, best a power of two",
    )


def checked_placement(name: str, value: object) -> tuple[int, ...]:
    """Logical cores, from 0, none of them twice."""
    cores = tuple(value) if isinstance(value, (tuple, list, np.ndarray)) else (value,)
    legal = all(isinstance(core, (int, np.integer)) and core >= 0 for core in cores)
    if not legal or len(set(cores)) < len(cores):
        raise InvalidProgramError(
            f"{name} is {value!r}",
            remedy="give every device a logical core of its own, from 0",
        )
    return tuple(int(core) for core in cores)  # type: ignore[call-overload]


def check_pattern(name: str, pattern: str) -> None:
    """Refuses what is no regular expression."""
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise InvalidProgramError(
            f"Rule.{name} {pattern!r} is no regular expression: {error}",
            remedy="escape special characters with re.escape",
        ) from error


CHECKS: Mapping[str, Callable[[str, object], object]] = MappingProxyType(
    {
        **dict.fromkeys(_RANGES, checked_integer),
        "loss_scale": checked_loss_scale,
        "placement": checked_placement,
    }
)
"""The check of a field."""

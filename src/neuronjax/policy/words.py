"""A policy in a few words, for the command line and for remedies: "bf16,seed=1"."""

from __future__ import annotations

import contextlib
from typing import Any

from neuronjax.errors import InvalidProgramError

_CONSTANTS = {"true": True, "false": False}


def words_of(text: str) -> tuple[str | None, dict[str, Any]]:
    """("bf16", {"seed": 1}) of "bf16,seed=1"; without a preset in front, None.

    Raises:
        InvalidProgramError: a word behind the preset that is no field=value.
    """
    first, *others = (word.strip() for word in text.split(","))
    preset = None if "=" in first else first
    changes = {}
    for word in others if preset is not None else [first, *others]:
        field, equals, value = word.partition("=")
        if not equals:
            raise InvalidProgramError(
                f"policy {text!r}: {word!r} changes nothing",
                remedy="write a preset, then fields of Policy: bf16,overflow=saturate",
            )
        changes[field.strip()] = _value(value.strip())
    return preset, changes


def _value(text: str) -> Any:
    """A constant or a number, else the word itself."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text

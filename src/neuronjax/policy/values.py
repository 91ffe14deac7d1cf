"""Legal values of the fields of a policy: choices, presets, versions, words, checks.

`LEGAL` and `PRESETS` give the values of `policy.Policy`, `SDK_DEFAULTS` those of fields
that are not given. "bf16,seed=1" is a policy in a few words, for the command line and
for remedies. A check takes the field, "Policy.seed", and its value, and returns the
value as plain Python.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from neuronjax.errors import InvalidProgramError

_SCALE_RULES = ("ocp_floor", "neuron", "ceil", "rceil", "even", "nki_golden")

#: A pair "a+b" names an algorithm within a node, and one between nodes [IX].
IN_NODE = ("ring", "kangaring", "rdh", "mesh")
OVER_NODES = ("ring", "rdh", "mesh", "single_step_mesh")
_COLLECTIVES = (
    *IN_NODE,
    *(f"ring:{channels}" for channels in (2, 3, 4)),
    "single_step_mesh",
    "left_fold",
    *(f"{a}+{b}" for a in IN_NODE for b in OVER_NODES),
)

LEGAL: Mapping[str, tuple[object, ...]] = {
    "auto_cast": ("none", "matmult", "all"),
    "auto_cast_type": ("bf16", "fp16", "tf32", "fp8", "fp8_e4m3", "mxfp8", "mxfp4"),
    "dot_precision": ("auto", "ignored", "obeyed"),
    "cotangent_type": ("auto", "same", "bfloat16", "float16", "float8_e5m2"),
    "rounding": ("rne", "stochastic"),
    "scaling": ("none", "current", "delayed"),
    "accumulation": ("systolic", "sequential", "host"),
    "fp32_model": ("fp32_4pass_rows32", "fp32_4pass"),
    "psum_dtype": ("float32", "bfloat16"),
    "transcendentals": ("exact", "scalar_engine", "host"),
    "integer_path": ("auto", "exact", "fp32"),
    "integer_division": ("exact", "reciprocal"),
    "implicit_integer_downcast": ("all", "none"),
    "float_to_int": ("truncate", "rne"),
    "round_trips": ("kept", "folded"),
    "overflow": ("ieee", "saturate"),
    "mx_scale_rule": _SCALE_RULES,
    "mx_weight_scale_rule": _SCALE_RULES,
    "mx_emax": ("standard", "alternative"),
    "mx_layout": ("consecutive", "interleaved"),
    # The patterns of the hardware page of NeuronCore-v3 and -v4.
    "sparsity": (None, "4:16", "4:12", "4:8", "2:8", "2:4", "1:4", "1:2"),
    "host_custom_calls": (False, True),
    "callbacks": ("error", "drop", "host"),
    "collective_algorithm": ("auto", *_COLLECTIVES),
    "collective_reduce_dtype": (None, "bfloat16", "float16", "float32"),
    "lnc": (None, 1, 2),
}
"""Field -> legal values, for every field that is a choice."""

CAST_DTYPES: Mapping[str, str] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "tf32": "tfloat32",
    "fp8_e4m3": "float8_e4m3",
    "mxfp8": "mxfp8_e4m3",
    "mxfp4": "mxfp8_e4m3",
}
"""The formats behind the vendor's names; "fp8" is the chip's own forward format. MXFP4
is for weights (`WEIGHT_FORMATS`): `quantize_mx` has no FP4 output."""

WEIGHT_FORMATS: Mapping[str, str] = {"mxfp4": "mxfp4_e2m1"}
"""Formats of weights, prepared offline, that differ from those of activations."""

Preset = Literal["fp32", "bf16", "fp16", "tf32", "fp8", "mxfp8", "mxfp4"]
"""The names of presets, which editors complete."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "fp32": {"auto_cast": "none"},
    "bf16": {"auto_cast": "matmult", "auto_cast_type": "bf16"},
    "fp16": {"auto_cast": "matmult", "auto_cast_type": "fp16"},
    "tf32": {"auto_cast": "matmult", "auto_cast_type": "tf32"},
    "fp8": {"auto_cast": "matmult", "auto_cast_type": "fp8", "scaling": "current"},
    "mxfp8": {"auto_cast": "matmult", "auto_cast_type": "mxfp8"},
    "mxfp4": {"auto_cast": "matmult", "auto_cast_type": "mxfp4"},
}
"""Preset -> fields. They cast FP32 operands of matmuls and convolutions; PSUM adds in
FP32, and every other op computes in the dtype that the program declares."""


def check_word(what: str, value: object, legal: Iterable[object]) -> object:
    """Return a value that is in `legal`; refuse any other, see `illegal`."""
    legal = tuple(legal)
    if not isinstance(value, (str, int, type(None))) or value not in legal:
        raise illegal(what, value, legal)
    return value


def illegal(what: str, value: object, legal: tuple[object, ...]) -> InvalidProgramError:
    """Return the error for a word that is not in `legal`, with the nearest one."""
    names = [v for v in legal if isinstance(v, str)]
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(repr(v) for v in legal)
    return InvalidProgramError(
        f"{what} is {value!r}", remedy=f"{hint}legal values: {listed}"
    )


OLDEST_SDK = "2.9"
NEWEST_SDK = "2.32"
SDK_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    # Command line reference of SDK 2.9; "ocp_floor" is the oldest known MX rule.
    "2.9": {"auto_cast": "matmult", "mx_scale_rule": "ocp_floor"},
    "2.27": {"auto_cast": "none"},  # compiler release notes, 2.27.0
    "2.31": {"mx_scale_rule": "neuron"},  # NKI release notes, 0.5.0
}
"""First SDK version -> defaults that hold from it on. Not emulated: before 2.27 the
compiler also left mixed-precision accumulation off; it is always on here."""


def _sdk_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def normal_sdk(version: object) -> str:
    """Return a version without its patch level, which changes no default.

    Raises:
        InvalidProgramError: not a version, or outside the range whose defaults are
            known.
    """
    match = re.fullmatch(r"(\d+\.\d+)(\.\d+)?", str(version))
    if not match or not (
        _sdk_key(OLDEST_SDK) <= _sdk_key(match[1]) <= _sdk_key(NEWEST_SDK)
    ):
        raise InvalidProgramError(
            f"Policy.sdk is {version!r}",
            remedy=f"use a Neuron SDK version from {OLDEST_SDK!r} to {NEWEST_SDK!r}",
        )
    return match[1]


def sdk_defaults(version: str) -> Mapping[str, str]:
    """Return the defaults of one SDK, by field of `Policy`."""
    defaults: dict[str, str] = {}
    for since, changes in SDK_DEFAULTS.items():
        if _sdk_key(since) <= _sdk_key(version):
            defaults |= changes
    return defaults


_CONSTANTS = {"true": True, "false": False}


def words_of(text: str) -> tuple[str | None, dict[str, Any]]:
    """Return ("bf16", {"seed": 1}) for "bf16,seed=1", with None for a missing preset.

    Raises:
        InvalidProgramError: a word after the preset is not field=value.
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
    """Return a constant or a number; any other text is returned unchanged."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


_RANGES = {"seed": (0, 2**32 - 1), "amax_history_length": (1, 2**31 - 1)}


def checked_integer(name: str, value: object) -> int:
    """Return an integer in the field's range."""
    low, high = _RANGES[name.rpartition(".")[2]]
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if low <= value <= high:
            return int(value)
    raise InvalidProgramError(
        f"{name} is {value!r}", remedy=f"use an integer in [{low}, {high}]"
    )


def checked_loss_scale(name: str, value: object) -> float | None:
    """Return a loss scale, which is None or a positive finite number."""
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
    """Return the numbers of logical cores; refuse negative and repeated numbers."""
    cores = tuple(value) if isinstance(value, (tuple, list, np.ndarray)) else (value,)
    legal = all(isinstance(core, (int, np.integer)) and core >= 0 for core in cores)
    if not legal or len(set(cores)) < len(cores):
        raise InvalidProgramError(
            f"{name} is {value!r}",
            remedy="give every device its own logical core, a number from 0",
        )
    return tuple(int(core) for core in cores)  # type: ignore[call-overload]


def check_pattern(name: str, pattern: str) -> None:
    """Refuse a pattern that is no regular expression; `name` is the field that has it,
    such as "Rule.op"."""
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise InvalidProgramError(
            f"{name} {pattern!r} is no regular expression: {error}",
            remedy="escape special characters with re.escape",
        ) from error


CHECKS: Mapping[str, Callable[[str, object], object]] = MappingProxyType(
    {
        **dict.fromkeys(_RANGES, checked_integer),
        "loss_scale": checked_loss_scale,
        "placement": checked_placement,
    }
)
"""Field -> the function that checks its value, for fields that are not a choice."""

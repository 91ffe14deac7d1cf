"""The JSON schema of a verdict, made from its dataclasses."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any

from neuronjax.diagnostics.judging.verdict import SCHEMA, KernelVerdict

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAMES: Mapping[Any, str] = types.MappingProxyType(
    {str: "string", bool: "boolean", int: "integer", types.NoneType: "null"}
)


def schema() -> dict[str, Any]:
    """Return what `KernelVerdict.to_json` writes."""
    return {"$schema": _DIALECT, "$id": SCHEMA, **_of(KernelVerdict)}


def _of(kind: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = [f.name for f in dataclasses.fields(kind)]
        return {
            "type": "object",
            "properties": {name: _of(hints[name]) for name in names},
            "required": names,
            "additionalProperties": False,
        }
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return {"anyOf": [_of(argument) for argument in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _of(arguments[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _of(arguments[1])}
    if kind is float:  # Inf and NaN are no numbers of JSON
        return {"type": ["number", "string"]}
    return {"type": _NAMES[kind]} if kind in _NAMES else {}


def as_json() -> str:
    """Return docs/verdict.schema.json."""
    return json.dumps(schema(), indent=2) + "\n"

"""JSON from outside: an object, or a ValueError; never an error of the interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def json_object(
    text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> dict[str, Any]:
    """The object that a text is.

    Args:
        text: as it was found.
        pairs: what an object is made by, as `json.loads` takes it.

    Raises:
        ValueError: no JSON, no UTF-8, nested too deep, or no object.
    """
    try:
        found = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("no JSON: nested too deep") from None
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"no JSON object but a {type(found).__name__}")
    return found

"""Read untrusted JSON: return an object or raise ValueError, never another error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def json_object(
    text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> dict[str, Any]:
    """Return the object that an untrusted text describes; `pairs` makes an object of
    its pairs, as `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: the text is not JSON or UTF-8, is nested too deep, or is not an
            object.
    """
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("not JSON: nested too deep") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, not an object")
    return value

"""Arguments and results of a kernel as JSON, with types in place of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.nki.arguments import ArraySlot, is_array

_SCALARS = (str, int, float, bool, type(None))
#: Exceptions that `read` raises if its argument `data` describes no tree.
NO_TYPES = (AttributeError, LookupError, TypeError, ValueError, RecursionError)


def described(tree: Any) -> Any:
    """Return `tree`, of arrays, numbered leaves (slots) and plain values, as JSON with
    types in place of arrays.

    Raises:
        InvalidProgramError: the tree has a value of another type.
    """
    if isinstance(tree, ArraySlot):
        return {"slot": tree.number}
    if isinstance(tree, np.generic) and not is_array(tree):
        return described(tree.item())
    if is_array(tree):
        return {"shape": list(tree.shape), "dtype": np.dtype(tree.dtype).name}
    if isinstance(tree, _SCALARS):
        return {"value": tree}
    if isinstance(tree, list | tuple):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [described(v) for v in tree]}
    if isinstance(tree, dict):
        return {"dict": [[str(k), described(v)] for k, v in tree.items()]}
    raise InvalidProgramError(
        f"an argument or result has the type {type(tree).__name__}",
        remedy="pass and return arrays, numbers, strings, lists, tuples and dicts",
    )


def read(data: Any, slot: Callable[[int], Any] = ArraySlot) -> Any:
    """Return the tree that `data` describes; `slot` maps a slot's number to a leaf.

    Raises:
        NO_TYPES: `data` describes no tree.
    """
    ((kind, held), *_) = data.items()
    if kind == "slot":
        return slot(held)
    if kind == "shape":
        return jax.ShapeDtypeStruct(tuple(held), np.dtype(data["dtype"]))
    if kind == "value":
        return held
    if kind == "dict":
        return {k: read(v, slot) for k, v in held}
    values = [read(v, slot) for v in held]
    return values if kind == "list" else tuple(values)

"""Arguments and results of a kernel: arrays, static values, and trees of both.

Arrays are searched for in tuples, lists, dicts and the `__dict__` of objects.
Everything else is static and part of the cache key. Results have the framework of the
arguments: NumPy, JAX or PyTorch.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.nki.memory import NKIObject


class Unhashable(Exception):
    """A static argument that cannot be part of a cache key."""


@dataclasses.dataclass(frozen=True)
class ArraySlot:
    """The placeholder of the n-th array in a tree of arguments or results."""

    number: int


def is_array(value: Any) -> bool:
    """Return whether a value is an array, also of PyTorch, or a ShapeDtypeStruct."""
    return isinstance(value, _array_classes())


def _array_classes() -> tuple[type, ...]:
    # A package called torch may be only partly imported, so it may lack Tensor.
    of_torch = getattr(sys.modules.get("torch"), "Tensor", np.ndarray)
    return np.ndarray, jax.Array, jax.ShapeDtypeStruct, of_torch


def flatten(tree: Any, arrays: list[Any]) -> Any:
    """Return the tree with arrays replaced by slots, and append the arrays to `arrays`.

    An array that occurs twice has one slot."""
    leaf = _array_classes()
    return map_leaves(tree, leaf, lambda array: ArraySlot(_number(array, arrays)))


def _number(array: Any, arrays: list[Any]) -> int:
    for number, known in enumerate(arrays):
        if known is array:
            return number
    arrays.append(array)
    return len(arrays) - 1


def unflatten(tree: Any, values: list[Any]) -> Any:
    return map_leaves(tree, ArraySlot, lambda slot: values[slot.number])


def map_leaves(
    tree: Any, leaf: type | tuple[type, ...], function: Callable[[Any], Any]
) -> Any:
    """Return the tree with each object of class `leaf` replaced by a function of it."""
    if isinstance(tree, leaf):
        return function(tree)
    again = lambda value: map_leaves(value, leaf, function)  # noqa: E731
    if isinstance(tree, list):
        return [again(v) for v in tree]
    if isinstance(tree, tuple):
        values = [again(v) for v in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    if isinstance(tree, dict):
        return {k: again(v) for k, v in tree.items()}
    if _has_fields(tree):
        fields = {k: again(v) for k, v in vars(tree).items()}
        if all(v is vars(tree)[k] for k, v in fields.items()):
            return tree
        copy = object.__new__(type(tree))
        copy.__dict__.update(fields)
        return copy
    return tree


def _has_fields(value: Any) -> bool:
    if isinstance(value, type | enum.Enum | ArraySlot):
        return False
    is_plain = isinstance(value, NKIObject) or dataclasses.is_dataclass(value)
    return is_plain and hasattr(value, "__dict__")


def cache_key(tree: Any) -> Any:
    """Return a hashable value that is equal for equal arguments of equal types, or
    raise `Unhashable`."""
    if isinstance(tree, list | tuple):
        return (type(tree).__name__, *map(cache_key, tree))
    if isinstance(tree, dict):
        return ("dict", *((k, cache_key(v)) for k, v in tree.items()))
    if not isinstance(tree, ArraySlot) and _has_fields(tree):
        return (type(tree), cache_key(vars(tree)))
    try:
        hash(tree)
    except TypeError as error:
        raise Unhashable(str(type(tree))) from error
    # 1 == 1.0 == True, but a kernel may compute different values with each of them.
    return (type(tree), tree)


def to_jax(array: Any) -> jax.Array:
    """Return an argument as a JAX array of the same bits."""
    if isinstance(array, jax.Array):
        return array
    if isinstance(array, jax.ShapeDtypeStruct):
        raise InvalidProgramError(
            f"argument {array} is a type and not an array",
            remedy="kernel.eval_shape(...) and kernel.trace(...) take types",
        )
    if isinstance(array, np.ndarray):
        return jax.numpy.asarray(array)
    return jax.numpy.asarray(_torch_to_numpy(array))


def _torch_to_numpy(tensor: Any) -> np.ndarray:
    name = dtypes.as_dtype(tensor.dtype)
    tensor = tensor.detach().cpu().contiguous()
    numeric = dtypes.info(name).numeric
    if numeric.kind in "iufb" and numeric.type.__module__ == "numpy":
        return tensor.numpy().view(numeric) if name == "bool" else tensor.numpy()
    torch = sys.modules["torch"]
    word = {1: torch.uint8, 2: torch.int16}[numeric.itemsize]
    return tensor.view(word).numpy().view(numeric)


def _numpy_to_torch(array: np.ndarray, name: str) -> Any:
    torch = sys.modules["torch"]
    numeric = array.dtype
    if numeric.kind in "iufb" and numeric.type.__module__ == "numpy":
        return torch.from_numpy(np.array(array))
    word = {1: np.uint8, 2: np.int16}[numeric.itemsize]
    return torch.from_numpy(np.array(array).view(word)).view(getattr(torch, name))


def framework_of(arrays: list[Any]) -> str:
    """Return "jax", "torch" or "numpy", the framework of the results; refuse a mixture
    of JAX and PyTorch arrays."""
    is_jax = any(isinstance(a, jax.Array) for a in arrays)
    is_torch = not all(isinstance(a, jax.Array | np.ndarray) for a in arrays)
    if is_jax and is_torch:
        raise InvalidProgramError(
            "JAX and PyTorch arrays in one call", remedy="convert all to one kind"
        )
    return "jax" if is_jax else "torch" if is_torch else "numpy"


def to_framework(array: jax.Array, dtype: str, framework: str) -> Any:
    """Return a result of NKI data type `dtype` as an array of the framework."""
    if dtype == "bool":
        array = array.astype(bool)
    if framework == "jax":
        return array
    if framework == "numpy":
        return np.array(array)
    return _numpy_to_torch(np.asarray(array), dtype)


def store_in_place(target: Any, array: jax.Array) -> None:
    """Copy the values that the kernel wrote to an argument into the caller's array."""
    if isinstance(target, np.ndarray):
        target[...] = np.asarray(array).astype(target.dtype, copy=False)
    elif not isinstance(target, jax.Array):
        target.copy_(_numpy_to_torch(np.asarray(array), dtypes.as_dtype(target.dtype)))

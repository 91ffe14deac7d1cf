"""`nki.typing`: shapes of tensors, as `nt.tensor[128, 512]`.

In annotations they are only for the reader: nothing is checked, because the array has
its own shape. In a call of a kernel of `nki.benchmark`, `nt.tensor[[128, 512],
nl.bfloat16]` takes the place of an array.
"""

from __future__ import annotations

from typing import Any


class tensor:
    """A tensor type with a shape, for annotations and for calls without data.

    Attributes:
        shape: the given sizes.
        dtype: the given data type, or None.
    """

    def __init__(self, shape: tuple[Any, ...], dtype: Any = None) -> None:
        self.shape, self.dtype = shape, dtype

    def __class_getitem__(cls, item: Any) -> tensor:
        items = item if isinstance(item, tuple) else (item,)
        if isinstance(items[0], list | tuple):
            return cls(tuple(items[0]), *items[1:])
        return cls(items)

    def __repr__(self) -> str:
        return f"nki.typing.tensor[{', '.join(map(str, self.shape))}]"


class mutable_tensor(tensor):
    """An argument to which the kernel writes, for annotations."""
